"""What the command line measures and prints of texts and settings: the numbers of the metric."""

import csv
import json
import math
import re
from pathlib import Path

import pytest
import torch
from lm_eval.tasks.wikitext.preprocess_wikitext import wikitext_detokenizer
from models import make_model, make_tokenizer, random_text

from perplexity_sliding.protocols import PROTOCOLS

COST = ("num_forward_tokens", "seconds", "tokens_per_second")


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch) -> Path:
    """A folder with two texts, and a terminal that is wide enough for all columns."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "250")
    for name, length in (("a.txt", 50), ("b.txt", 40)):
        Path(name).write_text(random_text(length, seed=length), "utf-8")
    return tmp_path


@pytest.fixture
def run(call):
    """Run the command line; return what it printed, after exit code 0."""

    def run(*argv: str) -> str:
        outcome = call(*argv)
        assert outcome.code == 0, outcome.err
        return outcome.out

    return run


@pytest.fixture
def expected(metric, tiny):
    """What the metric itself gives."""
    return lambda texts, **arguments: metric.compute(predictions=texts, model_id=tiny, **arguments)


def texts_of(*names: str) -> list[str]:
    return [Path(name).read_text("utf-8") for name in names]


def cells(line: str) -> list[str]:
    """A table's line, cut where two or more spaces stand."""
    return re.split(r"\s{2,}", line.strip())


def without_identity(result: dict) -> dict:
    """What does not depend on whether the model is identified."""
    return {key: value for key, value in result.items() if "probe" not in key}


# ---- texts


def test_a_table_of_files_and_corpus_then_the_signature(run, expected):
    lines = run("a.txt", "b.txt").splitlines()
    texts = texts_of("a.txt", "b.txt")
    corpus = expected(texts)
    titles = cells(lines[0])
    assert titles[:4] == ["text", "tokens", "perplexity", "95 % interval"]
    results = [*(expected([text]) for text in texts), corpus]
    for line, name, result in zip(lines[1:4], ["a.txt", "b.txt", "all together"], results):
        shown = dict(zip(titles, cells(line)))
        bounds = result["perplexity_interval"]
        assert shown["text"] == name
        assert shown["tokens"] == str(result["num_tokens"])
        assert shown["perplexity"] == f"{result['perplexity']:.2f}"
        assert shown["95 % interval"] == ("{:.2f} – {:.2f}".format(*bounds) if bounds else "–")
        assert f"  {result['bits_per_byte']:.3f}  " in line
        assert line.endswith(f"  {result['word_perplexity']:.2f}")
    assert cells(lines[4]) == ["mean of them", f"{corpus['mean_perplexity']:.2f}"]
    assert lines[-1] == corpus["signature_short"]
    assert run("a.txt", "b.txt", "--verbose").splitlines()[-1] == corpus["signature"]


def test_json_has_the_results_of_the_metric(run, expected):
    report = json.loads(run("a.txt", "b.txt", "--json"))
    texts = texts_of("a.txt", "b.txt")
    assert without_identity(report["corpus"]) == without_identity(expected(texts))
    assert [row["name"] for row in report["files"]] == ["a.txt", "b.txt"]
    for row, text in zip(report["files"], texts):
        assert row["perplexity"] == expected([text])["perplexity"]
    assert all(report[name] > 0 for name in COST)
    assert report["options"]["model_id"], "what --verify takes"


def test_infinite_numbers_are_null_in_json_and_inf_in_the_table(call):
    model = make_model("gpt2")
    with torch.no_grad():
        model.lm_head.weight.mul_(1e6)  # so sure of the wrong words that exp overflows
    model.save_pretrained("sure")
    make_tokenizer().save_pretrained("sure")
    written = call("a.txt", "--json", model="sure").out
    report = json.loads(written, parse_constant=lambda name: pytest.fail(name))
    assert report["corpus"]["perplexity"] is None and report["corpus"]["total_nll"] > 0
    assert "inf" in cells(call("a.txt", model="sure").out.splitlines()[1])
    assert call("a.txt", "--fail-above=1e300", model="sure").code == 1


def test_the_token_table_sums_up_to_the_perplexity(run, expected):
    table = run("a.txt", "--num-alternatives=2").split("\n\n")[0].splitlines()
    assert table[0] == "a.txt"
    titles = cells(table[1])
    rows = [dict(zip(titles, cells(line))) for line in table[2:]]
    [text] = texts_of("a.txt")
    result = expected([text], return_token_scores=["top2"])
    scores = result["token_scores"][0]
    assert [json.loads(row["token"]).strip() for row in rows] == text.split()
    spans = [tuple(map(int, row["characters"].split("-"))) for row in rows]
    assert [text[begin:end].strip() for begin, end in spans] == text.split()
    assert [int(row["context"]) for row in rows] == scores["context_length"]
    assert [int(row["rank"]) for row in rows] == scores["rank"]
    nats = [float(row["nll, nats"]) for row in rows]
    assert math.exp(sum(nats) / len(nats)) == pytest.approx(result["perplexity"], rel=1e-4)
    unscored = run("a.txt", "--tokens", "--add_start_token=false").splitlines()[2]
    assert cells(unscored)[1:4] == ["0", "–", "–"]


# ---- WikiText


PAGE = " \n = w5 w6 = \n \n \n w7 ' s w8 ( w9 ) , 1 @,@ 000 . \n"


def test_wikitext_is_read_and_counted_as_the_protocols_tool_does(run, expected):
    Path("page.txt").write_text(PAGE, "utf-8")
    theirs = wikitext_detokenizer({"page": PAGE})
    argv = ["page.txt", "--detokenize=wikitext", "--json"]
    counts = {
        "sliding": (theirs, len(PAGE.split())),
        "lm-eval": (theirs, len(re.split(r"\s+", PAGE))),
        "megatron": (theirs, len(PAGE.strip().split(" "))),
    }
    assert len({count for _, count in counts.values()}) == 3
    rows = json.loads(run(*argv, f"--protocol={','.join(counts)}"))["measurements"]
    for row, (protocol, (prose, count)) in zip(rows, counts.items(), strict=True):
        result = json.loads(run(*argv, f"--protocol={protocol}"))["corpus"]
        own = expected([prose], protocol=protocol)
        words = PROTOCOLS[protocol].count_words(prose)
        own["word_perplexity"] **= words / count
        for name in ("perplexity", "word_perplexity", "bits_per_byte"):
            assert row[name] == pytest.approx(own[name]), (protocol, name)
            assert result[name] == pytest.approx(own[name]), (protocol, name)
        assert "|detokenizer:wikitext|" in result["signature"]


@pytest.mark.parametrize("argv", [[], ["--protocol=lm-eval"], ["--protocol=lm-eval,sliding"]])
def test_the_bits_that_are_shown_are_per_byte_of_the_original(run, argv):
    """As lm-eval's are; those per byte of the prose are not in their place."""
    Path("page.txt").write_text(PAGE * 9, "utf-8")
    argv = ["page.txt", "--detokenize=wikitext", *argv]
    report = json.loads(run(*argv, "--json"))
    first = report["corpus"] if "corpus" in report else report["measurements"][0]
    own = first["total_nll"] / Path("page.txt").stat().st_size / math.log(2)
    assert first["bits_per_original_byte"] == pytest.approx(own)
    assert own != pytest.approx(first["bits_per_byte"], rel=0.01)
    head, _, row, *_ = run(*argv, "--format=markdown").splitlines()
    titles, shown = ([cell.strip() for cell in line.split("|")] for line in (head, row))
    assert "bits/byte" not in titles
    assert float(shown[titles.index("bits/original byte")]) == pytest.approx(own, abs=1e-3)


# ---- settings


def assert_measured(row: dict, expected: dict) -> None:
    """What a single call would give, but for rounding, and the setting beside it."""
    row = without_identity({k: value for k, value in row.items() if k != "ratio_to_first"})
    expected = without_identity(expected)
    assert row.keys() == expected.keys()
    for key, value in expected.items():
        numeric = not isinstance(value, str | None)
        assert row[key] == (pytest.approx(value, rel=1e-5) if numeric else value), key


def test_all_protocols_side_by_side(run, expected, metric):
    rows = json.loads(run("a.txt", "--protocol=all", "--json"))["measurements"]
    assert [row["protocol"] for row in rows] == list(metric.protocols)
    for row in rows:
        assert_measured(row, expected(texts_of("a.txt"), protocol=row["protocol"]))
    lines = run("a.txt", "--protocol=all").splitlines()
    titles = cells(lines[0])
    assert titles[0] == "protocol" and "tool ±" in titles and "scored" in titles
    printed = "\n".join(lines)
    for row in rows:
        assert f"  {row['perplexity']:.4f}  " in printed
        assert row["signature_short"] in lines


def test_a_protocol_that_cannot_be_applied_says_why_in_its_row(call, metric):
    Path("short.txt").write_text(random_text(10))
    outcome = call("short.txt", "--protocol=all", "--json")
    refused = {row["protocol"] for row in outcome.json["measurements"] if "error" in row}
    dropping = {p.name for p in metric.protocols.values() if p.last in ("dropped", "popped")}
    assert (outcome.code, refused) == (0, dropping)
    printed = call("short.txt", "--protocol=all").out
    assert "– llama.cpp: the input must have at least 32 tokens" in " ".join(printed.split())
    assert call("short.txt", "--protocol=sliding,gptq").code == 2, "asked for by name"


def test_strides_against_their_cost(run, expected):
    argv = ["a.txt", "b.txt", "--stride=16,8,2"]
    rows = json.loads(run(*argv, "--json"))["measurements"]
    for row in rows:
        assert_measured(row, expected(texts_of("a.txt", "b.txt"), stride=row["stride"]))
    head, _, *lines = run(*argv, "--format=markdown").replace("−", "-").splitlines()[:5]
    titles, *shown = (
        [cell.strip() for cell in line.strip("|").split(" | ")] for line in (head, *lines)
    )
    assert titles[:4] == ["stride", "tokens", "windows", "forward tokens"]
    ratio = rows[2]["ratio_to_first"]
    assert ratio["ratio"] == pytest.approx(rows[2]["perplexity"] / rows[0]["perplexity"])
    last = dict(zip(titles, shown[2]))
    assert last["change"] == f"{100 * (ratio['ratio'] - 1):+.2f} %"
    assert last["of it"] == " to ".join(f"{100 * (end - 1):+.2f}" for end in ratio["interval"])
    assert "change: of the perplexity against 16, with its 95 % interval" in run(*argv)


def test_a_stride_that_the_window_does_not_allow_is_a_row_and_exit_code_2(call):
    outcome = call("a.txt", "--stride=17,16", "--json")
    assert outcome.code == 2
    error = outcome.json["measurements"][0]["error"]
    assert error.startswith("--stride must be between 1 and --max-length 16, got 17")
    both = call("a.txt", "--max-length=16,8", "--stride=8,4", "--json").json["measurements"]
    settings = [(row["max_length"], row["stride"]) for row in both]
    assert settings == [(16, 8), (16, 4), (8, 8), (8, 4)]


def test_context_lengths_are_a_curve_over_all_texts(call):
    texts = [random_text(length, seed=length) for length in (20, 40, 60, 80)]
    with open("t.csv", "w", newline="") as file:
        csv.writer(file).writerows([["text"], *([text] for text in texts)])
    outcome = call("t.csv", "--context-lengths=4,8,16")
    assert outcome.code == 0
    curve = call("t.csv", "--context-lengths=4,8,16", "--json").json["corpus"]["by_context_length"]
    assert [row["context_length"] for row in curve] == [4, 8, 16]
    assert len({row["num_tokens"] for row in curve}) == 1
    for row in curve:
        assert f"{row['perplexity']:.4f}" in outcome.out
