"""What the command line makes of the numbers: formats, files, tables that fit, gates, citations."""

import csv
import io
import json
import math
import re
import sys
from pathlib import Path

import pytest
from models import random_text
from wcwidth import wcswidth

from cli import options, rows, tables
from cli.progress import Progress, minutes

TEXTS = [random_text(length, seed=length) for length in (120, 90)]


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, text in zip(("a.txt", "b.txt"), TEXTS):
        Path(name).write_text(text, "utf-8")
    return tmp_path


# ---- formats and files


def read_csv(text: str, delimiter: str = ",") -> list[dict]:
    return list(csv.DictReader(io.StringIO(text), delimiter=delimiter))


def test_a_tidy_row_has_the_numbers_of_the_metric_in_nats_and_bits(call, metric, tiny):
    written = read_csv(call("a.txt", "b.txt", "--format=csv").out)
    assert [row["name"] for row in written] == ["a.txt", "b.txt"]
    for row, text in zip(written, TEXTS):
        result = metric.compute(predictions=[text], model_id=tiny)
        low, high = result["perplexity_interval"]
        expected = {
            "perplexity": result["perplexity"],
            "perplexity_low": low,
            "perplexity_high": high,
            "nats": result["total_nll"],
            "bits": result["total_nll"] / math.log(2),
            "bits_per_byte": result["bits_per_byte"],
        }
        assert {key: float(row[key]) for key in expected} == pytest.approx(expected, rel=1e-6)
        assert row["signature"] == result["signature"]


def test_all_tidy_formats_hold_the_same(call):
    jsonl = [json.loads(line) for line in call("a.txt", "b.txt", "--format=jsonl").out.splitlines()]
    comma = read_csv(call("a.txt", "b.txt", "--format=csv").out)
    tab = read_csv(call("a.txt", "b.txt", "--format=tsv").out, "\t")
    assert comma == tab
    assert call("a.txt", "b.txt", "--output=scores.parquet").out == ""
    pyarrow = pytest.importorskip("pyarrow.parquet")
    parquet = pyarrow.read_table("scores.parquet").to_pylist()
    assert parquet == jsonl
    shown = [{key: "" if v is None else str(v) for key, v in row.items()} for row in jsonl]
    assert shown == comma


@pytest.mark.parametrize("ending", [".json", ".jsonl", ".csv", ".tsv", ".md", ".tex", ".txt"])
def test_the_ending_of_the_output_is_the_format(call, ending):
    outcome = call("a.txt", f"--output=scores{ending}")
    assert (outcome.code, outcome.out) == (0, "")
    printed = call("a.txt", f"--format={options.ENDINGS[ending]}").out
    written = Path(f"scores{ending}").read_text("utf-8")
    timeless = re.compile(r'"(seconds|tokens_per_second|peak_memory_bytes)": [\d.]+')
    assert timeless.sub("", written) == timeless.sub("", printed)


def test_a_named_format_goes_before_the_ending(call):
    call("a.txt", "--output=scores.txt", "--format=jsonl")
    assert json.loads(Path("scores.txt").read_text())["name"] == "a.txt"


def test_json_says_what_it_cost(call):
    report = call("a.txt", "--json").json
    assert 0 < report["seconds"] < 60
    forward = report["corpus"]["num_forward_tokens"]
    assert report["tokens_per_second"] == pytest.approx(forward / report["seconds"], rel=0.05)
    assert 50e6 < report["peak_memory_bytes"] < 50e9


def test_markdown_and_latex_are_tables_for_a_paper(call):
    Path("50%_a|b.txt").write_text(TEXTS[0], "utf-8")
    markdown = call("50%_a|b.txt", "--format=markdown").out.splitlines()
    assert re.match(r"\| text +\| +tokens \|", markdown[0])
    assert re.match(r"\|:-+\|-+:\|", markdown[1])
    assert markdown[2].startswith(r"| 50%_a\|b.txt |")
    latex = call("50%_a|b.txt", "--format=latex").out
    assert r"\toprule" in latex and r"50\%\_a" in latex
    assert " -- " in latex, "a dash between the bounds of an interval"


def test_the_tokens_are_written_as_the_text_writes_them(call, tmp_path, byte_model):
    text = "naïve — “horse”\n"
    Path("odd.txt").write_text(text, "utf-8")
    outcome = call("odd.txt", "--tokens", "--format=jsonl", model=byte_model)
    written = [json.loads(line) for line in outcome.out.splitlines()]
    assert [text[row["first"] : row["last"]] for row in written] == [r["token"] for r in written]
    assert {"ï", "—", "“", "\n"} <= {row["token"] for row in written}
    assert not any("Ġ" in row["token"] or "â" in row["token"] for row in written)
    assert any("Ã" in row["piece"] or "â" in row["piece"] for row in written)
    assert all(row["bits"] == pytest.approx(row["nats"] / math.log(2)) for row in written)
    table = call("odd.txt", "--tokens", model=byte_model).out
    assert ' "ï"\n' in table and r' "\n"' in table


@pytest.fixture(scope="module")
def byte_model(tmp_path_factory) -> str:
    """A folder with a tiny model whose tokens are bytes, several of them for a character."""
    from space_models import byte_model

    folder = tmp_path_factory.mktemp("bytes") / "model"
    byte_model(folder)
    return str(folder)


def test_every_number_of_a_result_is_a_column_by_itself():
    """So that what the metric learns to measure shows without another edit."""
    result = {
        "name": "a",
        "total_nll": math.log(2),
        "new_number": 3.5,
        "new_interval": [1.0, 2.0],
        "new_part": {"mean": 4.0, "interval": None},
        "perplexities": [1.0],
    }
    assert rows.of_texts([result]) == [
        {
            "name": "a",
            "new_number": 3.5,
            "new_low": 1.0,
            "new_high": 2.0,
            "new_part_mean": 4.0,
            "new_part_low": None,
            "new_part_high": None,
            "nats": math.log(2),
            "bits": 1.0,
        }
    ]
    parts = {"words": ["He"], "offsets": [[0, 2]], "nll": [None], "entropy": [1.5]}
    assert list(rows.of_parts("a", "He left", parts, "word")) == [
        {"name": "a", "number": 0, "word": "He", "first": 0, "last": 2}
        | {"nats": None, "bits": None, "entropy": 1.5}
    ]


# ---- tables that fit


def test_a_table_fits_into_80_columns_and_says_what_it_left_out(call, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    name = "a rather long name of a file in which there is a text.txt"
    Path(name).write_text(TEXTS[0], "utf-8")
    for argv in (["--protocol=all"], ["--stride=16,8,4"], [], ["--tokens", "--num-alternatives=9"]):
        printed = call(name, *argv).out
        assert max(wcswidth(line) for line in printed.splitlines()) <= 80, argv
    assert "No room here for: windows, word perplexity (--format csv" in call(name).out
    monkeypatch.setenv("COLUMNS", "200")
    assert "word perplexity" in call(name).out.splitlines()[0]


def test_wide_characters_take_two_columns():
    results = [{"stride": "日本語", "perplexity": 1.0}, {"stride": "abc", "perplexity": 12.0}]
    columns = {"name": lambda row: row["stride"], "number": tables.number("perplexity")}
    lines = tables.lay_out(tables.table(results, columns), 80).splitlines()
    assert {wcswidth(line) for line in lines} == {14}
    assert tables.shorten("日本語日本語日本語.txt", 12).endswith(".txt")
    assert wcswidth(tables.shorten("日本語日本語日本語.txt", 12)) <= 12


def test_a_long_reason_goes_on_below_itself():
    results = [{"name": "a"} | {"error": "reason " * 30}, {"name": "b", "perplexity": 2.0}]
    columns = {"name": lambda row: row["name"], "number": tables.number("perplexity")}
    lines = tables.lay_out(tables.table(results, columns), 60).splitlines()
    assert max(map(len, lines)) <= 60
    assert sum(line.count("reason") for line in lines) == 30
    assert all(line.startswith("      reason") for line in lines[2:-1])


def test_a_stride_that_gains_nothing_says_so(call):
    printed = call("a.txt", "--stride=16,8").out
    first, second = call("a.txt", "--stride=16,8", "--json").json["measurements"]
    change = 100 * (second["perplexity"] / first["perplexity"] - 1)
    assert f"{change:+.2f} %" in printed
    assert "against 16: change of the perplexity with its 95 % interval; - is lower" in printed


# ---- gates and citations


def test_fail_above_sets_the_exit_code(call):
    perplexity = call("a.txt", "--json").json["corpus"]["perplexity"]
    assert call("a.txt", f"--fail-above={perplexity + 1}").code == 0
    outcome = call("a.txt", f"--fail-above={perplexity - 1}")
    assert outcome.code == 1
    assert f"perplexity {perplexity:.2f} is above --fail-above" in outcome.err
    assert "perplexity" in outcome.out, "the table is printed all the same"
    assert call("a.txt", "--stride=16,8", f"--fail-above={perplexity - 1}").code == 1


def test_cite_prints_a_sentence_with_interval_and_signature_and_bibtex(call):
    result = call("a.txt", "--json").json["corpus"]
    cited = call("a.txt", "--cite").out
    low, high = result["perplexity_interval"]
    sentence = cited.splitlines()[0]
    assert (
        f"is {result['perplexity']:.2f} (95 % interval {low:.2f}–{high:.2f}) over 120 tokens"
        in (sentence)
    )
    assert "in windows of 16 tokens with a stride of 8" in sentence
    assert result["signature_short"] in sentence
    assert "@article{" in cited and cited.count("{") == cited.count("}")


def test_the_text_ends_with_the_short_signature(call):
    result = call("a.txt", "--json").json["corpus"]
    assert call("a.txt").out.splitlines()[-1] == result["signature_short"]
    assert call("a.txt", "--verbose").out.splitlines()[-1] == result["signature"]


# ---- progress


class Report:
    def __init__(self, done, total, perplexity=20.0):
        self.done, self.total, self.perplexity = done, total, perplexity


def test_a_log_has_a_line_a_minute_with_the_time_left(capsys):
    now = [0.0]
    progress = Progress("Scoring", hidden=False, clock=lambda: now[0])
    progress.begin_part(1)
    for second in range(0, 301):
        now[0] = float(second)
        progress(Report(100 + second, 700))  # 100 were in the checkpoint
    progress.close()
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == (
        "score.py: Scoring: 23% after 1 min, about 9 min left, perplexity so far 20.00"
    )
    assert len(lines) == 5


def test_shards_are_parts_of_one_bar(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    progress = Progress("Scoring", hidden=False)
    for _ in range(2):
        progress.begin_part(0.5)
        progress(Report(10, 10))
        progress.end_part()
    progress.close()
    shown = capsys.readouterr().err
    assert shown.count("Scoring") >= 1
    assert "100 %" in shown and "perplexity 20.00" in shown
    assert shown.index("50 %") < shown.index("100 %")


def test_no_perplexity_is_shown_while_there_is_none(capsys, monkeypatch):
    """A reference leaves its states in a file before anything is scored."""
    reports = [Report(10, 40, float("nan")), Report(20, 40, float("nan")), Report(30, 40)]
    now = [0.0]
    progress = Progress("Scoring", hidden=False, clock=lambda: now[0])
    for minute, report in enumerate(reports):
        now[0] = 61.0 * minute
        progress(report)
    progress.close()
    assert capsys.readouterr().err.splitlines() == [
        "score.py: Scoring: 50% after 1 min, about 2 min left",
        "score.py: Scoring: 75% after 2 min, about 1 min left, perplexity so far 20.00",
    ]
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    progress = Progress("Scoring", hidden=False)
    for report in reports[:2]:
        progress(report)
    assert "perplexity" not in capsys.readouterr().err
    progress(reports[2])
    progress.close()


def test_nothing_is_shown_where_all_comes_from_a_checkpoint(call, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    fresh = call("a.txt", "--checkpoint=run.sqlite")
    again = call("a.txt", "--checkpoint=run.sqlite")
    assert "100 %" in fresh.err
    assert "%" not in again.err
    assert again.out == fresh.out


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0, "0 min"), (89, "1 min"), (3600, "1 h 0 min"), (9000, "2 h 30 min")]
)
def test_minutes(seconds, shown):
    assert minutes(seconds) == shown
