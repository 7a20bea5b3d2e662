"""The command line: what it prints, what it writes, and what it refuses."""

import csv
import fcntl
import inspect
import io
import json
import math
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import datasets
import pytest
import torch
from lm_eval.tasks.wikitext.preprocess_wikitext import wikitext_detokenizer
from models import make_model, make_tokenizer, random_text

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from perplexity_sliding.cli import main as score  # noqa: E402
from perplexity_sliding.cli import measuring, options, plots  # noqa: E402
from perplexity_sliding.finding import wikitext  # noqa: E402

# Arguments that are live objects, or that the command line has another word for.
NOT_OPTIONS = {
    "detokenizer",  # follows from --detokenize and the protocol
    "self",
    "predictions",
    "model",
    "tokenizer",
    "callback",
    "return_token_scores",
    "return_totals",
    "contexts",  # a column of a table
    "score_spans",
    "words",  # whose rows are asked for by --words
}
# Options that are entries of a dictionary which is one argument.
PARTS_OF_ARGUMENTS = {*options.OF_REFERENCE, "evaluator"} - {"reference"}
SHORT_SIGNATURE = re.compile(r"ppl\|\S+\|L\d+\|S\d+\|[0-9a-f]{12}")


@pytest.fixture
def files(tmp_path):
    """Two text files, of 50 and of 40 tokens."""
    paths = [tmp_path / "first.txt", tmp_path / "second.txt"]
    for path, length in zip(paths, (50, 40)):
        path.write_text(random_text(length, seed=length), "utf-8")
    return [str(path) for path in paths]


@pytest.fixture
def texts(files):
    return [Path(name).read_text("utf-8") for name in files]


@pytest.fixture
def run(capsys, monkeypatch, tiny):
    """Run the command line with the tiny model; return what it printed, after exit code 0.

    The terminal is wide enough for all columns.
    """

    monkeypatch.setenv("COLUMNS", "200")

    def run(*argv: str) -> str:
        code = score.main([*argv, f"--model_id={tiny}"])
        printed = capsys.readouterr()
        assert code == 0, printed.err
        return printed.out

    return run


@pytest.fixture
def run_json(run):
    """What JSON holds of the numbers; what they cost is another each time."""

    def run_json(*argv: str) -> dict:
        report = strict_json(run(*argv, "--json"))
        assert all(report.pop(name) > 0 for name in COST)
        assert report.pop("num_empty_texts") == 0
        assert report.pop("options")["model_id"]  # what --verify takes
        return report

    return run_json


@pytest.fixture
def refuse(capsys, tiny):
    """Run the command line with the tiny model; return its one line on stderr, after exit code 2."""

    def refuse(*argv: str) -> str:
        named = any(word.startswith("--model_id=") for word in argv)
        code = score.main([*([] if named else [f"--model_id={tiny}"]), *argv])
        printed = capsys.readouterr()
        assert (code, printed.out) == (2, "")
        assert printed.err.startswith("score.py: error: ")
        assert printed.err.count("\n") == 1
        return printed.err

    return refuse


@pytest.fixture
def expected(metric, tiny):
    """What the metric itself gives."""
    return lambda texts, **arguments: metric.compute(predictions=texts, model_id=tiny, **arguments)


COST = ("num_forward_tokens", "seconds", "tokens_per_second", "peak_memory_bytes")


def strict_json(text: str) -> dict:
    """Parse JSON without the Infinity and NaN that Python's parser would let pass."""

    def refuse(constant):
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)


def stdin_of(data: bytes, terminal: bool = False) -> io.TextIOWrapper:
    stream = io.TextIOWrapper(io.BufferedReader(io.BytesIO(data)))
    stream.isatty = lambda: terminal
    return stream


def cells(line: str) -> list[str]:
    """A table's line, cut where two or more spaces stand."""
    return re.split(r"\s{2,}", line.strip())


# What is printed


def test_a_table_of_files_and_corpus_then_the_signature(run, files, texts, expected):
    lines = run(*files).splitlines()
    corpus = expected(texts)
    assert cells(lines[0]) == [
        "text",
        "tokens",
        "perplexity",
        "95 % interval",
        "bits/byte",
        "word perplexity",
    ]
    results = [*(expected([text]) for text in texts), corpus]
    for line, name, result in zip(lines[1:], [*files, "all together"], results, strict=False):
        interval = result["perplexity_interval"]
        assert cells(line) == [
            name,
            str(result["num_tokens"]),
            f"{result['perplexity']:.2f}",
            "{:.2f} – {:.2f}".format(*interval) if interval else "–",
            f"{result['bits_per_byte']:.3f}",
            f"{result['word_perplexity']:.2f}",
        ]
    assert cells(lines[4]) == ["mean of them", f"{corpus['mean_perplexity']:.2f}"]
    assert lines[5].startswith("95 % interval within these texts")
    assert lines[6:8] == ["Lower is better.", ""]
    assert lines[8] == corpus["signature_short"]
    assert SHORT_SIGNATURE.fullmatch(lines[8])
    assert len(lines) == 9
    assert run(*files, "--verbose").splitlines()[8] == corpus["signature"]


def test_a_single_file_has_a_single_row(run, files):
    table = run(files[0]).split("\n\n")[0]
    assert [cells(line)[0] for line in table.splitlines()[:2]] == ["text", files[0]]


def test_columns_of_a_tool_and_of_word_counts_appear_when_there_are_such_numbers(run, files):
    header = run(files[0], "--protocol=llama.cpp", "--word_counts=50").splitlines()[0]
    assert "tool ±" in header
    assert "adjusted" in header


def test_json_has_the_results_of_the_metric(run_json, files, texts, expected):
    report = run_json(*files)
    assert report["corpus"] == expected(texts)
    assert report["files"] == [
        {"name": name} | expected([text]) for name, text in zip(files, texts)
    ]


def test_infinite_numbers_are_null_in_json_and_inf_in_the_table(capsys, files, tmp_path):
    model = make_model("gpt2")
    with torch.no_grad():
        model.lm_head.weight.mul_(1e6)  # so sure of the wrong words that exp overflows
    model.save_pretrained(tmp_path / "sure")
    make_tokenizer().save_pretrained(tmp_path / "sure")
    argv = [files[0], f"--model_id={tmp_path / 'sure'}"]
    assert score.main([*argv, "--json"]) == 0
    report = strict_json(capsys.readouterr().out)
    assert report["corpus"]["perplexity"] is None
    assert report["files"][0]["perplexities"] == [None]
    assert report["corpus"]["total_nll"] > 0
    assert score.main(argv) == 0
    assert "inf" in cells(capsys.readouterr().out.splitlines()[1])


def test_the_token_table_sums_up_to_the_perplexity(run, files, texts, expected):
    table = run(files[0], "--tokens").split("\n\n")[0].splitlines()
    assert table[0] == files[0]
    assert cells(table[1]) == ["characters", "context", "nll, nats", "nll, bits", "token"]
    rows = [cells(line) for line in table[2:]]
    result = expected(texts[:1], return_token_scores=True)
    scores = result["token_scores"][0]
    assert [json.loads(row[4]).strip() for row in rows] == texts[0].split()
    spans = [tuple(map(int, row[0].split("-"))) for row in rows]
    assert [texts[0][begin:end].strip() for begin, end in spans] == texts[0].split()
    assert [int(row[1]) for row in rows] == scores["context_length"]
    nats, bits = ([float(row[n]) for row in rows] for n in (2, 3))
    assert math.exp(sum(nats) / len(nats)) == pytest.approx(result["perplexity"], rel=1e-4)
    assert sum(bits) * math.log(2) == pytest.approx(sum(nats), rel=1e-4)


def test_a_token_that_is_not_scored_has_a_dash(run, files):
    table = run(files[0], "--tokens", "--add_start_token=false").splitlines()
    assert cells(table[2])[1:4] == ["0", "–", "–"]


def test_alternatives_come_with_their_ranks(run, files, texts, expected):
    lines = run(files[0], "--num_alternatives=2").splitlines()
    assert cells(lines[1])[4:] == ["rank", "token", "likeliest, nats"]
    scores = expected(texts[:1], num_alternatives=2)["token_scores"][0]
    assert [int(cells(line)[4]) for line in lines[2:52]] == scores["rank"]
    likeliest = ", ".join(
        f"{json.dumps(piece)} {nll:.2f}" for piece, nll in scores["alternatives"][0]
    )
    assert cells(lines[2])[6] == likeliest


def test_the_tokens_of_several_files_stand_under_their_names(run, run_json, files, texts):
    first, second = (part.splitlines() for part in run(*files, "--tokens").split("\n\n")[:2])
    assert (first[0], len(first)) == (files[0], 52)
    assert (second[0], len(second)) == (files[1], 42)
    joined = run(*files, "--tokens", "--separator= ").split("\n\n")[0].splitlines()
    assert (joined[0], len(joined)) == ("all together", 92)
    scores = run_json(*files, "--tokens")["corpus"]["token_scores"]
    assert [column["tokens"] for column in scores] == [text.split() for text in texts]


# Where texts come from


@pytest.mark.parametrize("argv", [["-"], []], ids=["dash", "nothing"])
def test_a_pipe_is_read(run_json, monkeypatch, texts, expected, argv):
    monkeypatch.setattr(sys, "stdin", stdin_of(texts[0].encode()))
    report = run_json(*argv)
    assert report["corpus"] == expected(texts[:1])
    assert report["files"][0]["name"] == "-"


def test_a_file_is_scored_as_it_is(run_json, tmp_path, expected):
    text = " w5 w6\r\n\r\nw7 w8\n"
    (tmp_path / "odd.txt").write_bytes(b"\xef\xbb\xbf" + text.encode())  # a byte order mark
    result = run_json(str(tmp_path / "odd.txt"))["corpus"]
    assert result == expected([text])
    assert result["bits_per_byte"] * len(text) * math.log(2) == pytest.approx(result["total_nll"])


@pytest.fixture
def dataset(tmp_path, monkeypatch):
    """A folder that `datasets` loads: split "test", column "text" of texts, "size" of numbers."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    folder = tmp_path / "data"
    folder.mkdir()
    rows = [random_text(length, seed=length) for length in (20, 40, 6)]
    with open(folder / "test.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerows([["text", "size"], *([row, len(row)] for row in rows)])
    return str(folder), rows


@pytest.mark.parametrize(
    ("config", "split", "count"), [("", "test", 3), ("default", "test[:2]", 2)]
)
def test_a_dataset_is_scored(run, run_json, dataset, expected, config, split, count):
    folder, rows = dataset
    spec = f"--dataset={folder}:{config}:{split}:text"
    assert run_json(spec) == {"corpus": expected(rows[:count])}
    names = [cells(line)[0] for line in run(spec).split("\n\n")[0].splitlines()]
    assert names[:3] == ["text", "all together", "mean of them"]
    assert f"{count} of the texts are rows of tables (--format csv lists each)." in names[3:]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("{folder}", "--dataset must be NAME:CONFIG:SPLIT:COLUMN, got '{folder}'"),
        ("{folder}::test:words", "must be one of the columns text, size of {folder}, got 'words'"),
        ("{folder}::test:size", "must have texts in the column 'size', got other values"),
        ("{folder}::train:text", "train"),
        ("{folder}/nowhere::test:text", "nowhere"),
    ],
    ids=["no columns", "another column", "numbers", "another split", "no folder"],
)
def test_a_dataset_that_is_not_there_is_refused(refuse, dataset, spec, message):
    folder = dataset[0]
    assert message.format(folder=folder) in refuse(f"--dataset={spec.format(folder=folder)}")


def test_wikitext_is_scored_as_prose_and_normalised_by_what_it_was(run_json, tmp_path, expected):
    page = " \n = w5 w6 = \n \n w7 @-@ w8 w9 , w10 's ( w11 ) . \n"
    (tmp_path / "page.txt").write_text(page, "utf-8")
    prose = wikitext.detokenize(page)
    result = run_json(str(tmp_path / "page.txt"), "--detokenize=wikitext")["corpus"]
    assert result.pop("bits_per_original_byte") * len(page) == pytest.approx(
        result["bits_per_byte"] * len(prose)
    )
    counts = [len(page.split())]
    assert result == expected([prose], word_counts=counts, detokenizer="wikitext")


def test_wikitext_is_read_and_counted_as_the_protocols_tool_does(run_json, tmp_path, expected):
    page = " \n = w5 w6 = \n \n \n w7 ' s w8 ( w9 ) , 1 @,@ 000 . \n"
    (tmp_path / "page.txt").write_text(page, "utf-8")
    theirs = wikitext_detokenizer({"page": page})
    assert theirs != wikitext.detokenize(page)
    argv = [str(tmp_path / "page.txt"), "--detokenize=wikitext"]
    counts = {
        "sliding": (wikitext.detokenize(page), len(page.split())),
        "lm-eval": (theirs, len(re.split(r"\s+", page))),
        "megatron": (theirs, len(page.strip().split(" "))),
    }
    assert len({count for _, count in counts.values()}) == 3
    rows = run_json(*argv, f"--protocol={','.join(counts)}")["measurements"]
    for row, (protocol, (prose, count)) in zip(rows, counts.items(), strict=True):
        result = run_json(*argv, f"--protocol={protocol}")["corpus"]
        own = expected([prose], word_counts=[count], protocol=protocol)
        for name in ("perplexity", "word_perplexity", "adjusted_perplexity", "bits_per_byte"):
            assert row[name] == pytest.approx(own[name]), (protocol, name)
            assert result[name] == pytest.approx(own[name]), (protocol, name)
        named = "wikitext" if protocol == "sliding" else "detokenize_wikitext"
        assert f"|detokenizer:{named}|" in result["signature"]
        assert f"|detokenizer:{named}|" in row["signature"]


def test_lm_evals_row_divides_by_the_words_and_bytes_of_the_page(run_json, tmp_path):
    page = " \n = w5 w6 = \n \n w7 w8 . \n"
    (tmp_path / "page.txt").write_text(page, "utf-8")
    argv = [str(tmp_path / "page.txt"), "--detokenize=wikitext", "--protocol=lm-eval"]
    result = run_json(*argv)["corpus"]
    words, size = len(re.split(r"\s+", page)), len(page.encode())
    assert result["word_perplexity"] == pytest.approx(math.exp(result["total_nll"] / words))
    assert result["bits_per_original_byte"] == pytest.approx(
        result["total_nll"] / size / math.log(2)
    )


@pytest.mark.parametrize(
    "argv",
    [[], ["--protocol=lm-eval"], ["--protocol=lm-eval,sliding"], ["--format=markdown"]],
    ids=str,
)
def test_the_bits_that_are_shown_are_per_byte_of_the_original(
    run, run_json, tmp_path, monkeypatch, argv
):
    """As lm-eval's are, in a table of 80 columns; those per byte of the prose are not in its place."""
    path = tmp_path / "page.txt"
    path.write_text(" \n = w5 w6 = \n \n w7 @-@ w8 w9 , w10 's ( w11 ) . \n" * 9, "utf-8")
    argv = [str(path), "--detokenize=wikitext", *argv]
    report = run_json(*[word for word in argv if not word.startswith("--format")])
    first = report["corpus"] if "corpus" in report else report["measurements"][0]
    own = first["total_nll"] / path.stat().st_size / math.log(2)
    assert own != pytest.approx(first["bits_per_byte"], rel=0.01)
    if "," not in argv[-1]:
        monkeypatch.setenv("COLUMNS", "80")
    lines = [line.strip("| ") for line in run(*argv).splitlines()]
    number = next(n for n, line in enumerate(lines) if "bits/original byte" in line)
    titles = re.split(r" *\| *|  +", lines[number])
    row = next(line for line in lines[number + 1 :] if re.search(r"\d\.\d", line))
    shown = float(re.split(r" *\| *|  +", row)[titles.index("bits/original byte")])
    assert shown == pytest.approx(own, abs=1e-3)
    assert "bits/byte" not in titles


def test_models_side_by_side_have_the_bits_of_the_original(run, tmp_path, tiny):
    path = tmp_path / "page.txt"
    path.write_text(" \n = w5 w6 = \n \n w7 @-@ w8 w9 , w10 's ( w11 ) . \n" * 9, "utf-8")
    table = run(str(path), "--detokenize=wikitext", f"--model={tiny}")
    assert "bits/original byte" in table and "bits/byte" not in table


# Options


def test_every_argument_of_the_metric_is_an_option(metric):
    arguments = set(inspect.signature(type(metric)._compute).parameters)
    assert arguments - NOT_OPTIONS == set(options.METRIC_ARGUMENTS) - PARTS_OF_ARGUMENTS


OPTIONS = {
    "--max_length 8": {"max_length": 8},
    "--max-length=8": {"max_length": 8},
    "--stride 3": {"stride": 3},
    "--add_start_token false": {"add_start_token": False},
    "--add-start-token TRUE": {"add_start_token": True},
    "--add_start_token once": {"add_start_token": "once"},
    "--add_start_token every": {"add_start_token": "every"},
    "--protocol lm-eval": {"protocol": "lm-eval"},
    r"--separator \n\tw4\n": {"separator": "\n\tw4\n"},
    "--separator –": {"separator": "–"},
    "--word_counts 11,12": {"word_counts": [11, 12]},
    "--dtype bfloat16": {"dtype": "bfloat16"},
    "--device cpu": {"device": "cpu"},
    "--batch_size 1": {"batch_size": 1},
    "--logits_memory 4096": {"logits_memory": 4096},
    '--model_kwargs {"attn_implementation":"eager"}': {
        "model_kwargs": {"attn_implementation": "eager"}
    },
    '--tokenizer_kwargs {"bos_token":"w9"}': {"tokenizer_kwargs": {"bos_token": "w9"}},
}


@pytest.mark.parametrize(("argv", "arguments"), OPTIONS.items(), ids=OPTIONS)
def test_an_option_is_an_argument_of_the_metric(run_json, files, texts, expected, argv, arguments):
    assert run_json(*files, *argv.split(" "))["corpus"] == expected(texts, **arguments)


def test_a_checkpoint_is_written_and_read(run_json, files, tmp_path):
    path = tmp_path / "run.sqlite"
    first = run_json(*files, f"--checkpoint={path}")
    assert path.stat().st_size > 0
    assert run_json(*files, f"--checkpoint={path}") == first


def test_files_are_not_scored_again_after_the_corpus(run_json, files, monkeypatch):
    """One call for all of them: 300 files cost what the same texts as a dataset do."""
    calls = []
    plain = measuring.Scoring.compute
    monkeypatch.setattr(
        measuring.Scoring,
        "compute",
        lambda self, texts, wordings: calls.append(texts) or plain(self, texts, wordings),
    )
    monkeypatch.setattr(measuring.Scoring, "try_alone", None)
    assert len(run_json(*files)["files"]) == 2
    assert len(calls) == 1


def test_help_explains_every_protocol(capsys, metric):
    with pytest.raises(SystemExit) as exit:
        score.main(["--help"])
    assert exit.value.code == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert all(f" {name}" in printed for name in metric.protocols)


# Comparisons


def assert_measured(row: dict, expected: dict) -> None:
    """What a single call would give, but for rounding, and the setting beside it."""
    row = {key: value for key, value in row.items() if key != "ratio_to_first"}
    assert row["protocol"] in expected["signature"]
    assert row.keys() == expected.keys()
    for key, value in expected.items():
        numeric = not isinstance(value, str | None)
        assert row[key] == (pytest.approx(value, rel=1e-5) if numeric else value), key


def test_all_protocols_side_by_side(run, run_json, files, texts, expected, metric):
    rows = run_json(files[0], "--protocol=all")["measurements"]
    assert [row["protocol"] for row in rows] == list(metric.protocols)
    for row in rows:
        assert_measured(row, expected(texts[:1], protocol=row["protocol"]))
    lines = run(files[0], "--protocol=all").splitlines()
    for line, row in zip(lines[1:], rows):
        assert cells(line)[0] == row["protocol"]
        assert f"  {row['perplexity']:.4f}  " in line
        if "tool_stderr" in row:
            assert f"  {row['tool_stderr']:.4f}  " in line
    header = cells(lines[0])
    assert header[header.index("perplexity") + 1] == "95 % interval", "no ± that looks like one"
    assert "±" not in header and "tool ±" in header
    assert lines[-len(rows) :] == [row["signature_short"] for row in rows]
    shared = run(files[0], "--protocol=all", "--verbose").splitlines()[-1]
    assert all(field in row["signature"] for row in rows for field in shared.split("|"))
    assert "protocol:" not in shared


def test_the_share_that_was_scored_stands_beside_the_number(run, run_json, files):
    lines = run(files[0], "--protocol=sliding,stock").splitlines()
    shares = [row["scored_share"] for row in run_json(files[0], "--protocol=all")["measurements"]]
    assert shares[0] == 1.0
    assert "scored" in cells(lines[0])
    assert " %" not in lines[1]
    assert re.search(r"\d+ %", lines[2])


def test_a_protocol_that_cannot_be_applied_says_why_in_its_row(run, call, tmp_path, metric):
    short = tmp_path / "short.txt"
    short.write_text(random_text(10), "utf-8")
    rows = call(short, "--protocol=all", "--json").json["measurements"]
    refused = {row["protocol"]: row["error"] for row in rows if "error" in row}
    dropping = {p.name for p in metric.protocols.values() if p.last in ("dropped", "popped")}
    assert set(refused) == dropping
    printed = run(str(short), "--protocol=all")
    assert re.search(r"^llama.cpp +the input must have at least 32 tokens", printed, re.M)
    named = call(short, "--protocol=sliding,gptq")
    assert named.code == 2, "asked for by name and not measured"


def test_some_protocols_side_by_side(run_json, files):
    rows = run_json(files[0], "--protocol=megatron,lm-eval")["measurements"]
    assert [row["protocol"] for row in rows] == ["megatron", "lm-eval"]


def test_strides_against_their_cost(run, run_json, files, texts, expected):
    argv = [*files, "--stride=16,8,2"]
    report = run_json(*argv)
    rows = report["measurements"]
    for row in rows:
        assert_measured(row, expected(texts, stride=row["stride"]))
    lines = run(*argv).splitlines()
    assert cells(lines[0])[:7] == [
        *["stride", "tokens", "windows", "forward tokens", "perplexity", "95 % interval"],
        "against 16",
    ]
    for line, row in zip(lines[1:], rows):
        assert cells(line)[0] == str(row["stride"])
        assert f"{row['perplexity']:.4f}" in line
    ratio = rows[2]["ratio_to_first"]
    assert ratio["ratio"] == pytest.approx(rows[2]["perplexity"] / rows[0]["perplexity"])
    assert f"{100 * (ratio['ratio'] - 1):+.2f} %" in lines[3]
    assert lines[4].startswith("against 16: change in perplexity")


def test_a_stride_that_the_window_does_not_allow_is_a_row_and_exit_code_2(call, files):
    outcome = call(files[0], "--stride=17,16", "--json")
    assert outcome.code == 2
    error = outcome.json["measurements"][0]["error"]
    assert error.startswith("--stride must be between 1 and --max-length 16, got 17")


def test_windows_and_strides_at_once(run_json, files):
    rows = run_json(files[0], "--max-length=16,8", "--stride=8,4")["measurements"]
    assert [(row["max_length"], row["stride"]) for row in rows] == [
        (16, 8),
        (16, 4),
        (8, 8),
        (8, 4),
    ]


@pytest.mark.parametrize("argv", ["--protocol=all", "--stride=16,8"])
def test_a_comparison_is_drawn(run, files, tmp_path, argv):
    run(files[0], argv, f"--plot={tmp_path / 'plot.png'}")
    header = (tmp_path / "plot.png").read_bytes()[:24]
    assert header[:8] == b"\x89PNG\r\n\x1a\n"
    assert all(int.from_bytes(header[n : n + 4], "big") > 300 for n in (16, 20))  # its size


def test_the_pictures_show_what_was_measured(run_json, files, tmp_path):
    long = tmp_path / "long.txt"
    long.write_text(random_text(200))
    strides = run_json(str(long), "--stride=16,8,4")["measurements"]
    axes = plots.draw_costs(strides).axes[0]
    drawn = axes.lines[0].get_xydata().tolist()
    ratios = [row["ratio_to_first"] for row in strides[1:]]
    changes = [0.0, *(100 * (ratio["ratio"] - 1) for ratio in ratios)]
    assert drawn == [[row["num_forward_tokens"], c] for row, c in zip(strides, changes)]
    bars = axes.collections[0].get_segments()
    assert [bar[:, 1].tolist() for bar in bars][1:] == [
        pytest.approx([100 * (bound - 1) for bound in ratio["interval"]]) for ratio in ratios
    ]
    low, high = (f"{100 * (bound - 1):+.2f}".replace("-", "−") for bound in ratios[0]["interval"])
    assert f"({low} to {high})" in axes.texts[1].get_text()
    assert axes.get_xlabel() == "cost: tokens through the model"
    assert axes.get_ylabel().startswith("perplexity against stride 16, %")
    protocols = run_json(files[0], "--protocol=all")["measurements"]
    axes = plots.draw_protocols(protocols).axes[0]
    assert axes.lines[0].get_xdata().tolist() == [row["perplexity"] for row in protocols]
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        row["protocol"] for row in protocols
    ]


def test_the_bars_of_a_picture_reach_as_far_as_the_interval():
    intervals = [[4.0, 7.0], None, [4.0, math.inf], [5.5, 6.0]]
    assert plots.reach([(5.0, interval) for interval in intervals]) == [
        [1.0, 0.0, 0.0, 0.0],
        [2.0, 0.0, 0.0, 1.0],
    ]


def test_infinite_perplexities_cannot_be_drawn(tmp_path):
    rows = [{"stride": 4, "perplexity": math.inf}, {"stride": 9, "error": "too large"}]
    with pytest.raises(ValueError, match="--plot has nothing to draw: no perplexity is finite"):
        plots.draw("settings", rows, str(tmp_path / "plot.png"))


@pytest.mark.parametrize(("rank", "prints"), [("0", True), ("1", False)])
def test_only_the_first_process_of_a_torchrun_prints(
    capsys, monkeypatch, files, tiny, rank, prints
):
    monkeypatch.setenv("RANK", rank)
    arguments = {"model_id": tiny}
    monkeypatch.setattr(measuring, "metric_arguments", lambda args: dict(arguments))
    assert score.main([files[0], "--distributed"]) == 0
    assert bool(capsys.readouterr().out) == prints


# Errors


REFUSED = {
    "no such file": (["nowhere.txt"], r"nowhere\.txt: No such file or directory"),
    "unknown option": (
        ["FILE", "--strid=3"],
        r"unrecognized arguments: --strid=3 \(did you mean --stride\?\)\. See score",
    ),
    "no such device": (["FILE", "--device=mps:9"], "Leave --device out to choose automatically"),
    "no report": (["FILE", "--html="], r"--html must not be empty, got ''"),
    "no model": (["FILE", "--model="], r"--model must not be empty, got ''"),
    "no name": ([""], r"FILE must not be empty, got ''"),
    "strides one by one": (
        ["FILE", "--stride=8", "--stride=4"],
        r"--stride: must be given only once\. Separate several values by commas",
    ),
    "protocols one by one": (["FILE", "--protocol=stock", "--protocol=yarn"], "given only once"),
    "stride no number": (["FILE", "--stride=few"], "'few' must be a whole number, or several"),
    "stride too large": (["FILE", "--stride=17"], "--stride must be between 1 and --max-length 16"),
    "window past the table": (["FILE", "--max_length=99"], "--max-length must be between 2 and 16"),
    "start token": (["FILE", "--add_start_token=no"], "'no' must be one of true, false, once"),
    "unknown protocol": (
        ["FILE", "--protocol=best"],
        "--protocol=best is not known. Use sliding, ",
    ),
    "misspelt protocol": (["FILE", "--protocol=all,lm-evil"], "Did you mean lm-eval\\?"),
    "no setting for it": (["FILE", "--protocol=lm-eval", "--stride=3"], "no such setting"),
    "bad JSON": (["FILE", "--model_kwargs={a}"], r"'\{a\}' is not JSON: Expecting"),
    "JSON with a key twice": (
        ["FILE", '--model-kwargs={"revision": "a", "revision": "b"}'],
        "has the key 'revision' twice",
    ),
    "no JSON object": (["FILE", "--tokenizer_kwargs=3"], "'3' must be a JSON object such as"),
    "bad escape": (["FILE", r"--separator=\x"], "has a bad escape"),
    "word counts": (["FILE", "--word_counts=3,4"], "--word-counts must have one number per text"),
    "no such model": (
        ["FILE", "--model_id=./nowhere"],
        "--model ./nowhere: there is no such folder",
    ),
    "a text as checkpoint": (
        ["FILE", "--checkpoint=FILE"],
        "--checkpoint must not be one of the texts",
    ),
    "no such dtype": (["FILE", "--dtype=int3"], "--dtype must be 'auto', 'float32'"),
    "files and dataset": (["FILE", "--dataset=a:b:c:d"], "FILE and --dataset cannot be combined"),
    "two word counts": (
        ["FILE", "--word_counts=3", "--detokenize=wikitext"],
        "--word-counts and --detokenize cannot be combined",
    ),
    "tokens of a comparison": (
        ["FILE", "--stride=4,2", "--tokens"],
        "--tokens and several protocols, windows or strides cannot be combined",
    ),
    "plot of nothing": (
        ["FILE", "--plot=a.png"],
        "--plot requires several protocols, windows or strides",
    ),
    "plot of no kind": (
        ["FILE", "--protocol=all", "--plot=a.doc"],
        r"--plot must end in one of .*\.png.*, got 'a\.doc'",
    ),
    "plot nowhere": (
        ["FILE", "--protocol=all", "--plot=nowhere/a.png"],
        "--plot must be in an existing folder, got 'nowhere/a.png'",
    ),
}


@pytest.mark.parametrize(("argv", "message"), REFUSED.values(), ids=REFUSED)
def test_bad_input_is_one_line_and_exit_code_2(refuse, files, argv, message):
    assert re.search(message, refuse(*[word.replace("FILE", files[0]) for word in argv]))


@pytest.mark.parametrize(
    ("data", "message"),
    [(b"", r"empty\.txt is empty\."), (b"caf\xe9!", r"empty\.txt is not UTF-8 text: .* at byte 3")],
)
def test_a_file_without_text_is_named(refuse, files, tmp_path, data, message):
    (tmp_path / "empty.txt").write_bytes(data)
    assert re.search(message, refuse(str(tmp_path / "empty.txt")))


def test_a_pipe_without_text_is_named(refuse, monkeypatch):
    monkeypatch.setattr(sys, "stdin", stdin_of(b""))
    assert "Standard input is empty. Pass the texts as FILEs, or pipe them in." in refuse()


def test_a_terminal_is_not_waited_for(refuse, monkeypatch):
    monkeypatch.setattr(sys, "stdin", stdin_of(b"text", terminal=True))
    assert "There is nothing to score: pass a FILE, as in `python score.py samples/" in refuse()


def test_plots_need_matplotlib(refuse, files, monkeypatch):
    monkeypatch.delattr("perplexity_sliding.cli.plots", raising=False)
    monkeypatch.setitem(sys.modules, "perplexity_sliding.cli.plots", None)
    message = refuse(files[0], "--protocol=all", "--plot=a.png")
    assert "--plot requires matplotlib: pip install matplotlib." in message


def test_an_interruption_ends_with_its_own_code_and_says_how_to_go_on(monkeypatch, capsys):
    def interrupted(args):
        raise KeyboardInterrupt

    monkeypatch.setattr(score, "run", interrupted)
    assert score.main(["-"]) == 130
    assert "Nothing was stored; with --checkpoint FILE" in capsys.readouterr().err
    assert score.main(["-", "--checkpoint=run.sqlite"]) == 130
    assert "Run the same command again to resume from run.sqlite." in capsys.readouterr().err


def test_a_warning_is_one_line(capsys, tmp_path, files):
    make_model("gpt2").save_pretrained(tmp_path / "model")
    make_tokenizer(bos=False).save_pretrained(tmp_path / "model")
    assert score.main([files[0], f"--model_id={tmp_path / 'model'}"]) == 0
    warnings = [line for line in capsys.readouterr().err.splitlines() if "warning" in line]
    assert len(warnings) == 1
    assert warnings[0].startswith("score.py: warning: The tokenizer has no start token")


# As a program


def start_in_terminal(*argv: str, cwd: Path) -> tuple[subprocess.Popen, int]:
    """Start the program with stderr on a terminal; return the process and the terminal."""
    terminal, stderr = pty.openpty()
    fcntl.ioctl(stderr, termios.TIOCSWINSZ, struct.pack("4H", 24, 120, 0, 0))
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "score.py"), *argv],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=stderr,
        env={**os.environ, "COLUMNS": "300"},  # however deep the checkout lies, names stay whole
    )
    os.close(stderr)
    return process, terminal


def read_to_the_end(terminal: int) -> str:
    parts = []
    while True:
        try:
            parts.append(os.read(terminal, 65536))
        except OSError:  # how Linux ends a terminal that no one writes to any more
            os.close(terminal)
            return b"".join(parts).decode()


def test_the_bundled_model_scores_a_sample_from_anywhere(tmp_path):
    """The terminal shows how the scoring goes; a pipe gets the table only."""
    sample = str(ROOT / "samples" / "note.txt")
    process, terminal = start_in_terminal(sample, cwd=tmp_path)
    shown = read_to_the_end(terminal)
    lines = process.communicate()[0].decode().splitlines()
    assert process.returncode == 0, shown
    assert cells(lines[1])[0] == sample
    assert SHORT_SIGNATURE.fullmatch(lines[-1])
    assert "Scoring: 100 %" in shown


def test_nothing_is_shown_when_quiet_not_even_that_the_reader_has_gone(tiny, files, tmp_path):
    argv = [files[0], f"--model_id={tiny}", "--tokens", "--quiet"]
    process, terminal = start_in_terminal(*argv, cwd=tmp_path)
    process.stdout.close()  # as head does when it has seen enough
    shown = read_to_the_end(terminal)
    assert (process.wait(), shown) == (0, "")
