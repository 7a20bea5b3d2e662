"""The command line with a second model: the report in words, tables, pictures, gates."""

import csv
import io
import json
import math
import re
from pathlib import Path

import pytest
from models import make_byte_tokenizer, make_model, make_tokenizer, random_text, save

from perplexity_sliding.cli import comparison_plots, comparison_report


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for number in range(12):
        Path(f"text-{number:02}.txt").write_text(random_text(40, number), "utf-8")
    Path("texts").mkdir()
    for number in range(12):
        Path(f"text-{number:02}.txt").rename(f"texts/{number:02}.txt")
    return tmp_path


@pytest.fixture(scope="module")
def other(tmp_path_factory) -> str:
    """A folder with a model that is much like the tiny one."""
    folder = tmp_path_factory.mktemp("models") / "other"
    return save(folder, make_model("gpt2", spread=0.33), make_tokenizer())


@pytest.fixture(scope="module")
def of_bytes(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("models") / "bytes"
    return save(folder, make_model("gpt2", vocab_size=300), make_byte_tokenizer())


def test_the_report(call, metric, tiny, other):
    """It begins with a sentence, and its numbers are the metric's."""
    outcome = call("texts", f"--reference={other}")
    assert outcome.code == 0, outcome.err
    texts = [Path(f"texts/{n:02}.txt").read_text("utf-8") for n in range(12)]
    result = metric.compute(predictions=texts, model_id=tiny, reference=other)
    comparison = result["comparison"]
    lines = outcome.out.splitlines()
    assert lines[0] == comparison["summary"]
    assert f"× {comparison['perplexity_ratio']['ratio']:.4f}" in outcome.out
    assert f"{comparison['kl']:.5f} nats" in outcome.out
    assert f"{100 * comparison['token_agreement']:.1f} % if sampled" in outcome.out
    for group in comparison["by_tokens_seen"]:
        assert f"{group['kl']:.5f}" in outcome.out
    begin, end = comparison["worst_tokens"][0]["offset"]
    word = texts[comparison["worst_tokens"][0]["text"]][begin:end]
    assert f"[{word}]" in outcome.out


@pytest.fixture(scope="module")
def short(tmp_path_factory) -> str:
    """A folder with a model whose windows are half as long as the tiny one's."""
    folder = tmp_path_factory.mktemp("models") / "short"
    return save(folder, make_model("gpt2", seed=1, n_positions=8), make_tokenizer())


def test_the_smaller_window_of_two_is_said(call, metric, tiny, short, of_bytes):
    """In a warning, in the tables, and in the result; the number is that of the smaller window."""
    Path("long.txt").write_text(random_text(150, 1), "utf-8")
    text = Path("long.txt").read_text("utf-8")
    own = metric.compute(predictions=[text], model_id=tiny)
    assert own["max_length"] > 8
    outcome = call("long.txt", f"--reference={short}")
    (warning,) = outcome.warnings
    assert "windows of 8 tokens" in warning and f"the model reads {own['max_length']}" in warning
    assert "Pass --max-length 8" in warning
    (line,) = [line for line in outcome.out.splitlines() if line.startswith("window")]
    assert line.endswith(" the smaller of the two")
    assert f"8 of {own['max_length']}" in line
    with pytest.warns(UserWarning, match="`reference`"):
        result = metric.compute(predictions=[text], model_id=tiny, reference=short)
    comparison = result["comparison"]
    assert (comparison["own_window"], comparison["reference_own_window"]) == (own["max_length"], 8)
    asked = metric.compute(predictions=[text], model_id=tiny, max_length=8)["perplexity"]
    assert result["perplexity"] == pytest.approx(asked, rel=1e-6)
    assert asked != pytest.approx(own["perplexity"], rel=1e-3)
    for argv, model in (([f"--model={short}"], tiny), ([], of_bytes)):
        table = call("long.txt", f"--reference={short}", *argv, "--format=markdown", model=model)
        assert re.search(r"\| +window \|", table.out) and f"8 of {own['max_length']}" in table.out
    other = call("long.txt", f"--reference={short}", model=of_bytes).out
    assert "Both read the smaller of their windows: reference 8   model 8 of" in other


def test_a_window_that_is_asked_for_or_never_filled_is_no_news(call, short):
    Path("long.txt").write_text(random_text(150, 1), "utf-8")
    Path("short.txt").write_text(random_text(6, 1), "utf-8")
    for argv in (["long.txt", "--max-length=8"], ["short.txt"]):
        outcome = call(*argv, f"--reference={short}")
        assert outcome.warnings == []
        assert not any(line.startswith("window") for line in outcome.out.splitlines())


@pytest.mark.parametrize("protocol", ["stock", "yarn-truncated"])
def test_a_smaller_window_that_cuts_texts_off_is_said(call, short, protocol):
    """It has one window per text as well, and was taken for one that no text fills."""
    Path("long.txt").write_text(random_text(150, 1), "utf-8")
    outcome = call("long.txt", f"--reference={short}", f"--protocol={protocol}")
    assert "windows of 8 tokens" in outcome.warnings[0]
    assert "8 of 16" in outcome.out and "the smaller of the two" in outcome.out


def test_a_smaller_window_that_drops_contexts_is_said(call, short):
    row = {"context": random_text(9, 1), "text": random_text(3, 2)}
    Path("rows.jsonl").write_text(json.dumps(row))
    argv = ("--context-column=context", "--context-separator= ", "--protocol=lm-eval")
    outcome = call("rows.jsonl", f"--reference={short}", *argv)
    assert "windows of 8 tokens" in outcome.warnings[0]
    assert "the smaller of the two" in outcome.out


def test_the_reference_has_a_row_for_each_window(call, tiny, short, other, tmp_path):
    """It stood with its perplexity in one window beside a ratio to that in another."""
    Path("long.txt").write_text(random_text(150, 1), "utf-8")
    argv = ("long.txt", f"--model={short}", f"--reference={other}")
    printed = call(*argv).out
    rows = call(*argv, "--json").json["models"]
    for row in rows:
        perplexity = row["comparison"]["reference_perplexity"]
        name = f"reference, L{row['max_length']}"
        assert re.search(rf"^{name} +{perplexity:.4f} ", printed, re.MULTILINE), printed
    said = "smaller of their two windows, in tokens: short 8, tiny 16. The reference is other."
    assert said in " ".join(printed.split())


def test_other_windows_of_models_without_a_reference_are_said(call, short):
    """Their change is that of the window as well."""
    Path("long.txt").write_text(random_text(150, 1), "utf-8")
    said = "The windows differ, in tokens: short 8, tiny 16. --max-length 8 compares"
    for argv in ([], ["--protocol=sliding,lm-eval"]):
        argv = ["long.txt", f"--model={short}", *argv]
        assert said in " ".join(call(*argv).out.split())
        assert "The windows differ" not in call(*argv, "--max-length=8").out


def test_a_model_and_itself_are_the_same(call, tiny):
    """Its perplexity was "0 % higher (95 % interval: 0 % higher to 0 % higher)"."""
    first = call("texts", f"--reference={tiny}").out.splitlines()[0]
    assert first == (
        "No difference between the model and the reference: the perplexity of both is the same."
    )


def test_tokens_that_no_model_changed_are_not_its_worst(call, tiny):
    """The first eight tokens of the text were listed, and the perplexity was "0 % higher"."""
    report = call("texts/00.txt", f"--reference={tiny}").out
    assert report.startswith("The model against the reference: its perplexity is the same. ")
    assert "No token's probability changed.\n" in report
    tokens = [{"nll": 1.5, "reference_nll": 1.5, "text": 0, "offset": (0, 1)}]
    assert comparison_report.of_worst(tokens, ["a"]).startswith("No token's")


def test_shards_do_not_cut_a_comparison(call, other):
    """What is paired is paired over all texts, however little is asked for at a time."""
    argv = ("texts", f"--reference={other}", "--json")
    whole, parts = (
        json.loads(call(*argv, *more).out)["models"] for more in ((), ("--shard-characters=1",))
    )
    assert parts == whole and whole[0]["num_tokens"] == 12 * 40


@pytest.mark.parametrize("margin, code", [(0.9, 0), (0.01, 1)])
def test_margin_is_a_gate(call, tiny, other, margin, code):
    """Against random text the tiny model is about a quarter better than the other."""
    outcome = call("texts", f"--reference={tiny}", f"--margin={margin}", model=other)
    assert outcome.code == code, outcome.err
    assert ("other is not within --margin 0.01 at 95 % confidence" in outcome.err) is (code == 1)


def test_a_margin_is_not_met_by_too_little_text(call, other):
    Path("short.txt").write_text("w5 w6 w7", "utf-8")
    assert call("short.txt", f"--reference={other}", "--margin=0.9").code == 1


def test_several_models_make_one_table(call, tiny, other, of_bytes):
    outcome = call("texts", f"--reference={other}", f"--model={other}", f"--model={of_bytes}")
    names = [line.split()[0] for line in outcome.out.splitlines()[:5]]
    assert names == ["model", "other", "other", "bytes", "tiny"]
    assert "other (reference)" in outcome.out.splitlines()[1]
    assert "+0.0000" in outcome.out.splitlines()[2] and "no clear difference" in outcome.out


def numbers_of(line: str) -> list[float]:
    return [float(cell) for cell in re.findall(r"[-+]?\d+\.\d+", line)]


@pytest.mark.parametrize("format", ["text", "markdown", "latex"])
def test_other_tokenizers_have_no_perplexities_in_one_column(
    call, metric, tiny, other, of_bytes, format
):
    """Bits per byte, their change and its interval, of models alike and of others."""
    outcome = call("texts", f"--reference={other}", f"--model={of_bytes}", f"--format={format}")
    texts = [Path(f"texts/{n:02}.txt").read_text("utf-8") for n in range(12)]
    assert "× reference" not in outcome.out
    for name, model in (("bytes", of_bytes), ("tiny", tiny)):
        result = metric.compute(predictions=texts, model_id=model, reference=other)
        comparison = result["comparison"]
        [line] = [line for line in outcome.out.splitlines() if name in line and "." in line]
        change = comparison["bits_per_byte_change"]
        low, high = comparison["bits_per_byte_change_interval"]
        line = line.replace("--", " ").replace("–", " ").replace("−", "-").replace(r"\(-\)", "-")
        ratio = comparison.get("byte_perplexity_ratio") or comparison["perplexity_ratio"]
        pvalues = [] if format == "text" else [max(ratio["pvalue"], 1e-4)]
        expected = [result["bits_per_byte"], change, low, high, *pvalues]
        assert numbers_of(line) == pytest.approx(expected, abs=1e-4)


def test_the_change_per_byte_is_there_where_the_tokens_are_alike(metric, tiny, other):
    texts = [Path(f"texts/{n:02}.txt").read_text("utf-8") for n in range(12)]
    comparison = metric.compute(predictions=texts, model_id=tiny, reference=other)["comparison"]
    num_bytes, num_tokens = sum(len(text.encode()) for text in texts), 12 * 40
    expected = math.log2(comparison["perplexity_ratio"]["ratio"]) * num_tokens / num_bytes
    assert comparison["bits_per_byte_change"] == pytest.approx(expected)
    low, high = comparison["bits_per_byte_change_interval"]
    assert low < expected < high


def test_the_reference_has_a_row(call, metric, tiny, other):
    outcome = call("texts", f"--reference={tiny}", f"--model={tiny}", model=other)
    texts = [Path(f"texts/{n:02}.txt").read_text("utf-8") for n in range(12)]
    expected = metric.compute(predictions=texts, model_id=tiny)["perplexity"]
    line = outcome.out.splitlines()[1]
    assert line.startswith("tiny (reference)") and f"{expected:.4f}" in line


def test_several_models_without_a_reference(call, metric, tiny, other, of_bytes):
    """Absolute numbers; of other tokenizers no perplexities per token, and none of their intervals.

    Converted to bytes, those ignored how tokens per byte vary: a fifth of the width.
    """
    alike = call("texts", f"--model={other}")
    texts = [Path(f"texts/{n:02}.txt").read_text("utf-8") for n in range(12)]
    for name, model in (("tiny", tiny), ("other", other)):
        result = metric.compute(predictions=texts, model_id=model)
        [line] = [line for line in alike.out.splitlines() if line.startswith(name)]
        low, high = result["perplexity_interval"]
        shown = numbers_of(line)
        assert shown[0] == pytest.approx(result["perplexity"], abs=1e-4)
        assert shown[1:3] == pytest.approx([low, high], abs=0.005)
    mixed = call("texts", f"--model={of_bytes}")
    assert "interval" not in mixed.out and "bits/byte" in mixed.out
    result = metric.compute(predictions=texts, model_id=of_bytes)
    [line] = [line for line in mixed.out.splitlines() if line.startswith("bytes")]
    assert numbers_of(line)[0] == pytest.approx(result["bits_per_byte"], abs=1e-4)


@pytest.mark.parametrize("referred", [True, False])
def test_models_of_several_tokenizers_are_drawn(call, other, of_bytes, referred):
    """Which crashed after all the work, with the exit code of a gate."""
    more = [f"--reference={other}"] if referred else []
    outcome = call("texts", f"--model={of_bytes}", "--plot=plot.png", *more)
    assert outcome.code == 0, outcome.err
    assert Path("plot.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_json_and_csv(call, other):
    written = json.loads(call("texts", f"--reference={other}", "--json").out)
    (result,) = written["models"]
    assert result["comparison"]["kl"] > 0 and "token_scores" not in result
    (row,) = csv.DictReader(io.StringIO(call("texts", f"--reference={other}", "--format=csv").out))
    assert float(row["comparison_kl_nats"]) == result["comparison"]["kl"]
    assert float(row["comparison_kl_percentiles_99_nats"]) == pytest.approx(
        result["comparison"]["kl_percentiles"]["99"]
    )


def test_tokens(call, other):
    outcome = call("texts/00.txt", f"--reference={other}", "--tokens", "--format=jsonl")
    rows = [json.loads(line) for line in outcome.out.splitlines()]
    assert len(rows) == 40
    assert all(
        {"kl_nats", "reference_nll_nats", "top", "reference_top", "nll_nats"} <= row.keys()
        for row in rows
    )
    table = call("texts/00.txt", f"--reference={other}", "--tokens").out
    assert f"{rows[0]['kl_nats']:.5f}" in table


def test_other_tokenizers(call, of_bytes):
    outcome = call("texts", f"--reference={of_bytes}")
    assert "compared in bits per byte over" in outcome.out
    assert outcome.out.startswith(
        "The model predicts these texts better than the reference: its perplexity per byte is"
    )


@pytest.mark.parametrize("models", [1, 2])
def test_plots(call, other, models):
    more = [f"--model={other}"] if models == 2 else []
    outcome = call("texts", f"--reference={other}", "--plot=plot.png", *more)
    assert outcome.code == 0, outcome.err
    assert Path("plot.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_plotted_numbers(metric, tiny, other):
    texts = [Path(f"texts/{n:02}.txt").read_text("utf-8") for n in range(12)]
    result = metric.compute(
        predictions=texts, model_id=tiny, reference=other, return_token_scores=True
    )
    by_context, _, change, distribution = comparison_plots.draw_comparison(result).axes[:4]
    groups = result["comparison"]["by_tokens_seen"]
    assert by_context.lines[0].get_ydata().tolist() == [group["kl"] for group in groups]
    assert change.lines[0].get_ydata().tolist() == [group["log_ratio"] for group in groups]
    assert sum(bar.get_height() for bar in distribution.patches) == result["num_tokens"]
    rows = [{"name": name} | result for name in ("tiny", "again")]
    ratios, divergences = comparison_plots.draw_models(rows).axes
    ratio = result["comparison"]["perplexity_ratio"]["ratio"]
    assert ratios.lines[0].get_xdata().tolist() == [ratio] * 2
    assert divergences.lines[0].get_xdata().tolist() == [result["comparison"]["kl"]] * 2


def test_infinite_divergence_is_said():
    comparison = {
        "kl": math.inf,
        "kl_interval": None,
        "kl_percentiles": {"50": 0.1, "99": math.inf, "100": math.inf},
        "token_agreement": 0.5,
        "same_top": 0.5,
        "delta_p": 0.0,
        "rms_delta_p": 0.1,
        "num_infinite_kl": 3,
        "interval_sample": None,
        "interval_scope": None,
    }
    assert "3 tokens have an infinite divergence" in comparison_report.of_divergence(comparison)


@pytest.mark.parametrize(
    "argv, message",
    [
        (["--margin=0.01"], "--margin requires a model to compare with: pass --reference NAME"),
        (["--reference-dtype=float32"], "--reference-dtype requires a model to compare with"),
        (["--reference=./nowhere"], "--reference ./nowhere: there is no such folder."),
        (
            ["--reference=x", "--protocol=all"],
            "--reference and several protocols, windows or strides cannot be combined",
        ),
        (
            ["--reference=x", "--model=y", "--tokens"],
            "several models and --tokens cannot be combined",
        ),
        (["--reference=x", "--margin=2"], "--margin: must be at least 0 and below 1, got 2"),
    ],
)
def test_what_does_not_go_together(call, argv, message):
    outcome = call("texts", *argv)
    assert outcome.code == 2
    assert message in outcome.err
