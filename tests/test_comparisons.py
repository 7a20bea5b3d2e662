"""The command line with several models: tables, paired changes, references, gates."""

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


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "250")
    Path("texts").mkdir()
    for number in range(12):
        Path(f"texts/{number:02}.txt").write_text(random_text(40, number), "utf-8")
    for seed, (name, length) in enumerate(zip(FILES, (150, 90))):
        Path(name).write_text(random_text(length, seed), "utf-8")
    return tmp_path


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory) -> Path:
    """Models that are alike but for their weights, named as a training names them."""
    folder = tmp_path_factory.mktemp("run")
    for seed, step in enumerate((9, 10, 100)):
        save(folder / f"checkpoint-{step}", make_model("gpt2", seed=seed), make_tokenizer())
    return folder


@pytest.fixture(scope="module")
def other(tmp_path_factory) -> str:
    """A folder with a model that is much like the tiny one."""
    folder = tmp_path_factory.mktemp("models") / "other"
    return save(folder, make_model("gpt2", spread=0.33), make_tokenizer())


@pytest.fixture(scope="module")
def of_bytes(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("models") / "bytes"
    return save(folder, make_model("gpt2", vocab_size=300), make_byte_tokenizer())


@pytest.fixture(scope="module")
def short(tmp_path_factory) -> str:
    """A folder with a model whose windows are half as long as the tiny one's."""
    folder = tmp_path_factory.mktemp("models") / "short"
    return save(folder, make_model("gpt2", seed=1, n_positions=8), make_tokenizer())


@pytest.fixture
def sweep(call, checkpoints):
    """Run the command line with all checkpoints."""
    return lambda *argv: call(*argv, model=f"{checkpoints}/checkpoint-*")


def texts_in(folder: str) -> list[str]:
    return [path.read_text("utf-8") for path in sorted(Path(folder).iterdir())]


def table_of(outcome) -> list[dict[str, str]]:
    """The lines of the first table of Markdown, each by its titles."""
    lines = outcome.out.replace("−", "-").split("\n\n")[0].splitlines()
    head, _, *rows = ([cell.strip() for cell in line.strip("|").split(" | ")] for line in lines)
    return [dict(zip(head, row)) for row in rows]


# ---- several models, settings and texts


def test_models_by_protocols_by_texts_is_one_table(sweep, metric, checkpoints):
    """Each number is that of a call by itself."""
    argv = (*FILES, f"--protocol={','.join(PROTOCOLS)}", "--columns=text", "--format=markdown")
    lines = table_of(sweep(*argv))
    models = [f"checkpoint-{step}" for step in (9, 10, 100)]
    places = [(line["model"], line["protocol"]) for line in lines]
    assert places == list(itertools.product(models, PROTOCOLS))
    for line, file in itertools.product(lines, FILES):
        result = metric.compute(
            predictions=[Path(file).read_text("utf-8")],
            model_id=str(checkpoints / line["model"]),
            protocol=line["protocol"],
        )
        assert line[file] == f"{result['perplexity']:.2f}"


@pytest.mark.parametrize("more", [[], ["--stride=4,8"]])
def test_the_paired_change_against_the_first_model(sweep, metric, checkpoints, more):
    """As a comparison with the first as the reference has it."""
    rows = sweep(*FILES, "--json", *more).json["measurements" if more else "models"]
    paired = [row["ratio_to_first_model"] for row in rows if "ratio_to_first_model" in row]
    assert len(paired) == len(rows) * 2 / 3
    expected = metric.compute(
        predictions=[Path(file).read_text("utf-8") for file in FILES],
        model_id=str(checkpoints / "checkpoint-100"),
        reference=str(checkpoints / "checkpoint-9"),
        stride=rows[-1]["stride"],
    )["comparison"]["perplexity_ratio"]
    for key in ("ratio", "interval", "pvalue"):
        assert paired[-1][key] == pytest.approx(expected[key], rel=1e-4)
    table = sweep(*FILES, *more).out
    assert f"{100 * (expected['ratio'] - 1):+.2f} %" in table
    assert "change: of the perplexity against checkpoint-9" in table


def test_a_change_stands_in_the_rows_to_which_it_applies(call, other, of_bytes, tiny):
    """Of other tokenizers no perplexities per token, but bits per byte with their interval."""
    argv = ("texts", f"--model={other}", f"--model={of_bytes}")
    rows = {row["name"]: row for row in call(*argv, "--json").json["models"]}
    outcome = call(*argv, "--format=markdown")
    lines = {line["model"]: line for line in table_of(outcome)}
    assert "perplexity" not in lines["tiny"]
    assert "The tokenizers differ: perplexities per token cannot be compared." in outcome.out
    assert "ratio_to_first_model" not in rows["bytes"] and lines["bytes"]["change"] == "–"
    change = 100 * (rows["tiny"]["ratio_to_first_model"]["ratio"] - 1)
    assert lines["tiny"]["change"] == f"{change:+.2f} %"
    bounds = "{:.4f} – {:.4f}".format(*rows["bytes"]["bits_per_byte_interval"])
    assert lines["bytes"]["bits interval"] == bounds
    only = call("texts", f"--model={of_bytes}").out
    assert "change" not in only, "no legend of a column that is not there"


def test_an_empty_cell_has_its_reason(sweep):
    """One text is too short for a protocol; the others of its row and column are scored."""
    Path("short.txt").write_text("w5 w6 w7", "utf-8")
    outcome = sweep(*FILES, "--protocol=sliding,gptq", "--columns=text")
    assert outcome.code == 2
    lines = [line.split() for line in outcome.out.splitlines()]
    assert [line[-1] for line in lines[1:7]].count("–") == 3
    assert "checkpoint-9, short.txt, gptq; checkpoint-10, short.txt, gptq" in outcome.out


def test_what_fails_is_a_row_and_costs_no_other(call, sweep, checkpoints):
    Path("picture.txt").write_bytes(b"\xff\xd8\xff")
    outcome = sweep(*FILES, "picture.txt", "--columns=text")
    assert outcome.code == 2 and "picture.txt is not UTF-8 text" in outcome.out
    assert re.search(r"^checkpoint-9 +\d+\.\d\d +\d+\.\d\d +–$", outcome.out, re.M)
    Path("broken").mkdir()
    Path("broken/config.json").write_text("{}")
    for more in ([], ["--protocol=sliding,lm-eval"], ["--protocol=all"]):
        outcome = call(*FILES, "--model=broken", *more, model=f"{checkpoints}/checkpoint-9")
        assert outcome.code == 2 and "error: " in outcome.err and "broken" in outcome.err
        assert "checkpoint-9" in outcome.out


def test_rows_with_ids_are_named_in_errors(call):
    """By their ids, not by positions among all texts."""
    Path("t.csv").write_text("id,text\nx,w5 w6 w7\ny, \n")
    argv = ("t.csv", "--id-column=id", "--add-start-token=false", "--stride=4,8")
    outcome = call(*argv)
    assert outcome.code == 2 and "(y)" in outcome.err and "position" not in outcome.err


def test_labels_columns_and_gates_name_models(sweep, call):
    argv = (*FILES, "--label=early,middle,late")
    assert [row["name"] for row in sweep(*argv, "--json").json["models"]] == [
        *("early", "middle", "late"),
    ]
    assert sweep(*argv, "--format=csv").out.startswith("label,perplexity,")
    outcome = sweep(*argv, "--stride=8,4", "--fail-above=1", "--columns=stride,change")
    assert outcome.code == 1 and " of early, stride 8 is above --fail-above 1" in outcome.err
    assert "8: change" not in outcome.out and re.search(r"^late +[-+]\d", outcome.out, re.M)


def test_other_windows_of_models_are_said(call, short):
    for argv in ([], ["--protocol=sliding,lm-eval"]):
        argv = ["long.txt", f"--model={short}", *argv]
        assert "The windows of the models differ; pass --max-length" in call(*argv).out
        assert "windows of the models" not in call(*argv, "--max-length=8").out


# ---- a reference


def test_the_report_of_a_model_and_its_reference(call, metric, tiny, other):
    """It begins with a sentence, and its numbers are the metric's."""
    outcome = call("texts", f"--reference={other}")
    texts = texts_in("texts")
    comparison = metric.compute(predictions=texts, model_id=tiny, reference=other)["comparison"]
    assert outcome.out.splitlines()[0] == comparison["summary"]
    assert f"  {comparison['perplexity_ratio']['ratio']:.4f}  " in outcome.out
    assert f"  {comparison['kl']:.5f}" in outcome.out
    rows = call("texts/00.txt", f"--reference={other}", "--tokens", "--format=jsonl").out
    first = json.loads(rows.splitlines()[0])
    assert {"kl_nats", "reference_nll_nats", "top", "reference_top", "nll_nats"} <= first.keys()
    (row,) = csv.DictReader(io.StringIO(call("texts", f"--reference={other}", "--format=csv").out))
    assert float(row["comparison_kl_nats"]) == pytest.approx(comparison["kl"])


def test_the_smaller_window_of_two_is_said(call, metric, tiny, short, of_bytes):
    outcome = call("long.txt", f"--reference={short}")
    (warning,) = outcome.warnings
    assert "windows of 8 tokens" in warning and "Pass --max-length 8" in warning
    for model in (tiny, of_bytes):
        shown = call("long.txt", f"--reference={short}", model=model).out
        assert "read the smaller of their two windows" in shown
    silent = call("long.txt", f"--reference={short}", "--max-length=8")
    assert silent.warnings == [] and "smaller of their two" not in silent.out


def test_margin_is_a_gate(call, tiny, other):
    """Against random text the tiny model is about a quarter better than the other."""
    assert call("texts", f"--reference={tiny}", "--margin=0.9", model=other).code == 0
    missed = call("texts", f"--reference={tiny}", "--margin=0.01", model=other)
    assert missed.code == 1
    assert "other is not within --margin 0.01 at 95 % confidence" in missed.err
    Path("short.txt").write_text("w5 w6 w7", "utf-8")
    short = call("short.txt", f"--reference={other}", "--margin=0.9")
    assert short.code == 1 and "confidence: there is too little text to tell" in short.err


def test_several_models_and_a_reference_make_one_table(call, metric, tiny, other, of_bytes):
    """With other tokenizers: bits per byte, their change and its interval."""
    argv = ("texts", f"--reference={other}", f"--model={of_bytes}", "--format=markdown")
    lines = {line["model"]: line for line in table_of(call(*argv))}
    for name, model in (("bytes", of_bytes), ("tiny", tiny)):
        result = metric.compute(predictions=texts_in("texts"), model_id=model, reference=other)
        comparison = result["comparison"]
        change, bounds = (comparison[f"bits_per_byte_change{of}"] for of in ("", "_interval"))
        shown = [lines[name][title] for title in ("bits/byte", "reference", "change", "interval")]
        assert shown == [
            f"{result['bits_per_byte']:.4f}",
            f"{comparison['reference_bits_per_byte']:.4f}",
            f"{change:+.4f}",
            "{:+.4f} – {:+.4f}".format(*bounds),
        ]
    alike = ("texts", f"--reference={tiny}", f"--model={tiny}", "--margin=0.9")
    text = call(*alike, model=other)
    assert "95 % interval over texts.\n" in text.out and text.code == 0
    assert "Margin: a perplexity up to 90 % higher." in text.out and "the same\n" in text.out
    expected = metric.compute(predictions=texts_in("texts"), model_id=tiny)["perplexity"]
    first, second = table_of(call(*alike, "--format=markdown", model=other))
    assert first["reference"] == second["reference"] == first["perplexity"] == f"{expected:.4f}"


# ---- a model and itself


def test_a_model_compared_with_itself_says_so_and_meets_no_margin(
    call, metric, tiny, gpt2, tokenizer
):
    """A gate that cannot fail: the reference takes --dtype, and bfloat16 was compared with bfloat16."""
    argv = ("texts", f"--reference={tiny}", "--dtype=bfloat16")
    said = call(*argv).out.splitlines()[0]
    assert said.startswith("The model is compared with itself, in the same settings")
    assert "--reference-dtype float32" in said
    refused = call(*argv, "--margin=0.001")
    assert refused.code == 2
    assert "--margin must be left out where a model is compared with itself" in refused.err
    assert "--reference-dtype, such as float32" in refused.err
    gated = call(*argv, "--margin=0.5", "--reference-dtype=float32")
    assert gated.code == 0 and "compared with itself" not in gated.out
    live = {"model": gpt2, "tokenizer": tokenizer, "reference": gpt2}
    comparison = metric.compute(predictions=texts_in("texts"), **live)["comparison"]
    assert comparison["summary"].startswith("The model is compared with itself")
    with pytest.raises(
        ValueError, match="`margin` must be left out where a model is compared with"
    ):
        metric.compute(predictions=texts_in("texts"), margin=0.1, **live)
    copy = metric.compute(
        predictions=texts_in("texts"), **(live | {"reference": make_model("gpt2", seed=5)})
    )["comparison"]
    assert "compared with itself" not in copy["summary"], (
        "two live models are not told apart by name"
    )
