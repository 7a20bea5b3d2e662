"""Several models, settings and texts in one call and one table."""

import csv
import io
import itertools
import json
import re
from pathlib import Path

import pytest
from models import make_byte_tokenizer, make_model, make_tokenizer, random_text, save

FILES = ("long.txt", "short.txt")
PROTOCOLS = ("sliding", "lm-eval", "llama.cpp")


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory) -> Path:
    """Models that are alike but for their weights, named as a training names them."""
    folder = tmp_path_factory.mktemp("run")
    for seed, step in enumerate((9, 10, 100)):
        save(folder / f"checkpoint-{step}", make_model("gpt2", seed=seed), make_tokenizer())
    (folder / "checkpoint-0.txt").write_text("no model")
    return folder


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    for seed, (name, length) in enumerate(zip(FILES, (150, 90))):
        Path(name).write_text(random_text(length, seed), "utf-8")


@pytest.fixture
def sweep(call, checkpoints):
    """Run the command line with all checkpoints."""
    return lambda *argv: call(*argv, model=f"{checkpoints}/checkpoint-*")


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_models_by_protocols_by_texts_is_one_table(sweep, metric, checkpoints):
    """Each number is that of a call by itself."""
    argv = (*FILES, f"--protocol={','.join(PROTOCOLS)}", "--columns=text", "--format=markdown")
    head, _, *lines = sweep(*argv).out.split("\n\n")[0].splitlines()
    assert cells(head) == ["model", "protocol", *FILES]
    models = [f"checkpoint-{step}" for step in (9, 10, 100)]
    assert [tuple(cells(line)[:2]) for line in lines] == list(itertools.product(models, PROTOCOLS))
    for line in lines:
        model, protocol, *shown = cells(line)
        for file, value in zip(FILES, shown):
            result = metric.compute(
                predictions=[Path(file).read_text("utf-8")],
                model_id=str(checkpoints / model),
                protocol=protocol,
            )
            assert value == f"{result['perplexity']:.2f}"


def test_a_signature_of_several_texts_is_printed_once(sweep):
    out = sweep(*FILES, "--columns=text").out
    signatures = [line for line in out.splitlines() if line.startswith("ppl|")]
    assert len(signatures) == len(set(signatures)) == 3, "one for each model"


def test_a_paper_names_settings_by_what_decides_over_them(sweep):
    """Windows differ by protocol, signatures by model and protocol too, neither by text."""
    latex = sweep(*FILES, "--columns=text", "--protocol=sliding,lm-eval", "--format=latex").out
    caption = next(line for line in latex.splitlines() if "caption" in line)
    assert "stride 8, start token once (sliding)" in caption
    assert "stride 16, start token once (lm-eval)" in caption
    comments = [line for line in latex.splitlines() if line.startswith("%")]
    assert [line.partition(": ppl|")[0] for line in comments] == [
        f"% checkpoint-{step}, {protocol}"
        for step in (9, 10, 100)
        for protocol in ("sliding", "lm-eval")
    ]


def test_without_columns_each_measurement_is_a_row_over_all_texts(sweep, metric, checkpoints):
    rows = list(csv.DictReader(io.StringIO(sweep(*FILES, "--stride=8,4", "--format=csv").out)))
    texts = [Path(file).read_text("utf-8") for file in FILES]
    assert [(row["model"], row["stride"]) for row in rows] == [
        (f"checkpoint-{step}", stride) for step in (9, 10, 100) for stride in ("8", "4")
    ]
    model = str(checkpoints / "checkpoint-10")
    result = metric.compute(predictions=texts, model_id=model, stride=4)
    assert float(rows[3]["perplexity"]) == pytest.approx(result["perplexity"], rel=1e-9)


@pytest.mark.parametrize("more", [[], ["--stride=4,8"]])
def test_the_paired_change_against_the_first_model(sweep, metric, checkpoints, more):
    """As a comparison with the first as the reference has it."""
    written = json.loads(sweep(*FILES, "--json", *more).out)
    rows = written["measurements" if more else "models"]
    texts = [Path(file).read_text("utf-8") for file in FILES]
    paired = [row["ratio_to_first_model"] for row in rows if "ratio_to_first_model" in row]
    assert len(paired) == len(rows) * 2 / 3
    expected = metric.compute(
        predictions=texts,
        model_id=str(checkpoints / "checkpoint-100"),
        reference=str(checkpoints / "checkpoint-9"),
        stride=rows[-1]["stride"],
    )["comparison"]["perplexity_ratio"]
    assert paired[-1]["ratio"] == pytest.approx(expected["ratio"], rel=1e-6)
    assert paired[-1]["interval"] == pytest.approx(expected["interval"], rel=1e-6)
    assert paired[-1]["pvalue"] == pytest.approx(expected["pvalue"], rel=1e-4)
    assert not any("totals" in row for row in rows)


def test_the_change_stands_in_the_table(sweep):
    table = sweep(*FILES).out
    (result,) = json.loads(sweep(*FILES, "--json").out)["models"][2:]
    change = 100 * (result["ratio_to_first_model"]["ratio"] - 1)
    assert "against checkpoint-9" in table.splitlines()[0]
    assert f"{change:+.2f} % (" in table.splitlines()[3]
    assert "against checkpoint-9: change in perplexity" in table


def test_models_of_other_tokens_have_bits_per_byte_and_no_ratio(call, tiny, tmp_path):
    other = save(tmp_path / "bytes", make_model("gpt2", vocab_size=300), make_byte_tokenizer())
    argv = (*FILES, f"--model={other}", "--protocol=sliding,lm-eval")
    rows = json.loads(call(*argv, "--json").out)["measurements"]
    assert not any("ratio_to_first_model" in row for row in rows)
    table = call(*argv, "--columns=protocol").out
    for row in rows:
        assert f"{row['bits_per_byte']:.3f}" in table
    assert "Cells: bits per byte." in table and "The tokenizers differ" in table


def test_an_empty_cell_has_its_reason(sweep):
    """One text is too short for a protocol; the others of its row and column are scored."""
    Path("short.txt").write_text("w5 w6 w7", "utf-8")
    outcome = sweep(*FILES, "--protocol=sliding,gptq", "--columns=text")
    assert outcome.code == 2
    lines = [line.split() for line in outcome.out.splitlines()]
    assert [line[-1] for line in lines[1:7]].count("–") == 3
    assert "– checkpoint-9, short.txt, gptq; checkpoint-10, short.txt, gptq;" in outcome.out
    assert "at least 16 tokens" in outcome.out


def test_a_model_that_cannot_be_loaded_is_a_row_that_says_so(call, tmp_path, checkpoints):
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "config.json").write_text("{}")
    argv = ("long.txt", f"--model={checkpoints}/checkpoint-9", "--protocol=sliding,lm-eval")
    outcome = call(*argv, "--json", model=broken)
    assert outcome.code == 2
    rows = json.loads(outcome.out)["measurements"]
    assert ["error" in row for row in rows] == [False, False, True, True]


def test_a_file_that_cannot_be_read_is_no_loss_to_the_others(sweep):
    Path("picture.txt").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(100))
    outcome = sweep(*FILES, "picture.txt", "--columns=text")
    assert outcome.code == 2
    assert re.search(r"^checkpoint-9 +\d+\.\d\d +\d+\.\d\d +–$", outcome.out, re.M)
    assert "picture" in outcome.out.split("Cells:")[1]


def test_labels_name_the_models(sweep):
    argv = (*FILES, "--stride=8,4", "--label=start, middle,end")
    assert [line.split()[0] for line in sweep(*argv).out.splitlines()[1:7:2]] == [
        "start",
        "middle",
        "end",
    ]
    rows = list(csv.DictReader(io.StringIO(sweep(*argv, "--format=csv").out)))
    assert [(row["label"], row["model"]) for row in rows[::2]] == [
        ("start", "checkpoint-9"),
        ("middle", "checkpoint-10"),
        ("end", "checkpoint-100"),
    ]


def test_numbers_are_chosen(sweep, call):
    argv = (*FILES, "--protocol=sliding,lm-eval")
    head = sweep(*argv, "--columns=perplexity,pvalue", "--format=markdown").out.splitlines()[0]
    assert cells(head) == ["model", "protocol", "perplexity", "p"]
    head = sweep(*argv, "--columns=protocol,perplexity,change", "--format=markdown").out
    assert cells(head.splitlines()[0]) == [
        "model",
        *(f"{protocol}: {what}" for protocol in PROTOCOLS[:2] for what in ("perplexity", "change")),
    ]
    of_one = call(*argv, "--columns=tokens,bits_per_byte", "--format=markdown").out
    assert cells(of_one.splitlines()[0]) == ["protocol", "tokens", "bits/byte"]


def test_a_gate_names_model_text_and_setting(sweep):
    outcome = sweep(*FILES, "--columns=text", "--stride=8,4", "--fail-above=2")
    assert outcome.code == 1
    assert "of checkpoint-9, long.txt, 8 is above --fail-above 2" in outcome.err
    assert outcome.err.count("is above") == 12


def test_a_grid_is_drawn(sweep):
    outcome = sweep(*FILES, "--columns=text", "--stride=8,4", "--plot=plot.png")
    assert outcome.code == 0, outcome.err
    assert Path("plot.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_a_bar_ends_at_its_end(sweep, monkeypatch):
    """Each of the cells is a part of it."""
    from perplexity_sliding.cli.progress import Progress

    shares = []
    monkeypatch.setattr(Progress, "_draw", lambda self, share, _: shares.append(share))
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    sweep(*FILES, "--columns=text", "--stride=8,4")
    assert shares == sorted(shares) and shares[-1] == pytest.approx(1.0)
    assert len({round(6 * share, 6) for share in shares} & set(range(1, 7))) == 6


@pytest.mark.parametrize(
    "argv, said",
    [
        (["--columns=colour"], "--columns must be among model, text, protocol,"),
        (["--columns=protocol"], "--columns protocol requires several protocols"),
        (["--columns=text,model"], "--columns must have at most one of model, text,"),
        (["--label=one,two"], "--label must have one name per model, got 2 for 3"),
        (
            ["--label=one,two,one"],
            "--label must have a different name for each model, got 'one' twice",
        ),
        (["--columns=perplexity", "--format=csv"], "--columns requires --format text"),
        (["--columns=text", "--words"], "--columns and --tokens or --words"),
        (["--columns=text", "--html=page.html"], "--columns text and --show or --html"),
    ],
    ids=str,
)
def test_what_is_refused(sweep, argv, said):
    outcome = sweep(*FILES, *argv)
    assert outcome.code == 2
    assert said in outcome.err


def test_a_glob_without_models(call, tmp_path):
    outcome = call(*FILES, model=f"{tmp_path}/nothing-*")
    assert outcome.code == 2
    assert "nothing-*: no folder and no .gguf file matches" in outcome.err


def test_a_broken_link_among_models_is_not_left_out(call, tiny, tmp_path):
    (tmp_path / "one").symlink_to(tiny)
    (tmp_path / "two").symlink_to("nowhere")
    outcome = call(*FILES, model=f"{tmp_path}/*")
    assert outcome.code == 2
    assert f"{tmp_path}/two" in outcome.err


def test_a_sweep_over_checkpoints_is_drawn_as_paired_changes(sweep):
    """Intervals of perplexities overlap where the change is certain."""
    from perplexity_sliding.cli import comparison_plots, plots

    rows = json.loads(sweep(*FILES, "--json").out)["models"]
    (axes,) = comparison_plots.draw_models(rows).axes
    expected = [0.0, *(100 * (row["ratio_to_first_model"]["ratio"] - 1) for row in rows[1:])]
    assert axes.lines[0].get_xdata().tolist() == pytest.approx(expected)
    assert axes.get_xlabel().startswith("perplexity against checkpoint-9, %")
    (low, _), (high, _) = axes.collections[0].get_segments()[2]
    bounds = rows[2]["ratio_to_first_model"]["interval"]
    assert [low, high] == pytest.approx([100 * (bound - 1) for bound in bounds])
    grid = json.loads(sweep(*FILES, "--stride=8,4", "--json").out)["measurements"]
    assert len(comparison_plots.paired_changes(grid, "ratio_to_first_model", several=True)) == 6
    assert comparison_plots.paired_changes(grid, "ratio_to_first_model") == []
    assert plots.paired_changes([{}, {"ratio_to_first": {"ratio": None}}]) == []


def test_lengths_of_context_are_drawn_as_paired_changes(call):
    from matplotlib.figure import Figure

    from perplexity_sliding.cli import plots

    rows = call(FILES[0], "--context-lengths=4,8,16", "--json").json["corpus"]["by_context_length"]
    axes = Figure().add_subplot()
    plots.draw_contexts(axes, rows)
    expected = [*(100 * (row["ratio_to_longest"]["ratio"] - 1) for row in rows[:-1]), 0.0]
    assert axes.lines[0].get_ydata().tolist() == pytest.approx(expected)
    assert axes.get_ylabel().startswith("perplexity against a context of 16, %")
