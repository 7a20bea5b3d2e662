"""What the command line makes of the numbers: formats, files, tables that fit, gates, citations."""

import csv
import hashlib
import io
import json
import math
import re
import shlex
import sys
from pathlib import Path

import pytest
from models import random_text
from wcwidth import wcswidth

from perplexity_sliding.cli import (
    citing,
    comparison_report,
    main,
    measuring,
    options,
    output,
    rows,
    tables,
)
from perplexity_sliding.cli.formats import to_csv
from perplexity_sliding.cli.progress import Progress, minutes

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
            "total_nll_nats": result["total_nll"],
            "total_nll_bits": result["total_nll"] / math.log(2),
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
    assert markdown[2].startswith(r"| 50%\_a\|b.txt |")
    latex = call("50%_a|b.txt", "--format=latex").out
    assert r"\toprule" in latex and r"50\%\_a" in latex
    assert " -- " in latex, "a dash between the bounds of an interval"


NAMES = [
    "a_b.txt",
    "*bold*.txt",
    "a`b.txt",
    "<i>.txt",
    "[x](y).txt",
    "1|2.txt",
    "~x~ & $5$ #1 {}.txt",
]


@pytest.mark.parametrize("name", NAMES)
def test_names_stay_names_in_markdown_and_latex(call, name):
    Path(name).write_text(TEXTS[0], "utf-8")
    cell = call(name, "--format=markdown").out.splitlines()[2].split(" | ")[0].removeprefix("| ")
    assert re.sub(r"\\(.)", r"\1", cell).strip() == name
    assert not re.search(r"(?<!\\)[*_`<>\[|~&$]", cell)
    latex = call(name, "--format=latex").out
    unescaped = re.sub(r"\\ensuremath{(.)}", r"\1", latex).replace(r"\textasciitilde{}", "~")
    assert re.sub(r"\\([&%$#_{}])", r"\1", unescaped).count(name) == 1
    assert not re.search(r"(?<!\\)[%$#_]", re.sub("^%.*", "", latex))


def test_what_is_asked_for_is_in_the_tables_for_a_paper(call):
    for name in ("markdown", "latex"):
        words = call("a.txt", "b.txt", "--words", f"--format={name}").out
        assert words.count("entropy") == 2 and "all together" in words
        curve = call("a.txt", "--context-lengths=8,16", f"--format={name}").out
        assert "against 16" in curve and "word perplexity" in curve


def test_joined_texts_have_their_one_number_in_tidy_rows(call):
    """It cannot be computed from those of the files, which are scored alone."""
    argv = ["a.txt", "b.txt", "--protocol=gptq"]
    corpus = call(*argv, "--json").json["corpus"]
    rows = read_csv(call(*argv, "--format=csv").out)
    assert [row["name"] for row in rows] == ["a.txt", "b.txt", "all together"]
    assert float(rows[2]["perplexity"]) == pytest.approx(corpus["perplexity"])
    assert corpus["perplexity"] not in [float(row["perplexity"]) for row in rows[:2]]


def test_the_total_stands_below_a_file_and_a_table(call):
    Path("t.csv").write_text("text\nw5 w6\nw7\n")
    argv = ["a.txt", "t.csv"]
    printed = call(*argv).out
    assert f"{call(*argv, '--json').json['corpus']['perplexity']:.2f}" in printed
    assert "all together     123" in printed
    assert "2 of the texts are rows of tables (--format csv lists each)." in printed
    assert "rows of tables" not in call("a.txt", "b.txt").out
    Path("t.csv").write_text("text\nw5 w6\n")
    assert "1 of the texts is a row of a table (" in call(*argv).out


def test_parquet_holds_columns_on_which_tables_disagree(call):
    pyarrow = pytest.importorskip("pyarrow.parquet")
    Path("a.jsonl").write_text('{"id": 1, "text": "w5"}\n')
    Path("b.csv").write_text("id,text\nx,w5\n")
    call("a.jsonl", "b.csv", "--output=scores.parquet")
    assert pyarrow.read_table("scores.parquet")["id"].to_pylist() == ["1", "x"]


@pytest.mark.parametrize(
    "value", [{}, [{}], {"a": {}}, 2**64, {"a": [2**64]}], ids=lambda value: json.dumps(value)
)
def test_parquet_holds_what_it_has_no_type_for(call, value):
    """It was a crash, after all texts were scored."""
    pyarrow = pytest.importorskip("pyarrow.parquet")
    rows = [{"id": 1, "text": "w5"}, {"id": value, "text": "w6"}]
    Path("a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name in ("a.jsonl", "b.jsonl"):
        assert call(name, "--output=scores.parquet").code == 0
        (*_, last) = pyarrow.read_table("scores.parquet")["id"].to_pylist()[:2]
        assert json.loads(last) == value
        Path("b.jsonl").write_text(json.dumps(rows[1]) + "\n")


def test_parquet_holds_lists_too(call):
    pyarrow = pytest.importorskip("pyarrow.parquet")
    call("a.txt", "--num-alternatives=2", "--output=tokens.parquet")
    (first, *_) = pyarrow.read_table("tokens.parquet").to_pylist()
    (row, *_) = call("a.txt", "--num-alternatives=2", "--format=jsonl").out.splitlines()
    assert json.loads(first["alternatives_nats"]) == json.loads(row)["alternatives_nats"]


def test_the_tokens_are_written_as_the_text_writes_them(call, tmp_path, byte_model):
    text = "naïve — “horse”\n"
    Path("odd.txt").write_text(text, "utf-8")
    outcome = call("odd.txt", "--tokens", "--format=jsonl", model=byte_model)
    written = [json.loads(line) for line in outcome.out.splitlines()]
    assert [text[row["first"] : row["last"]] for row in written] == [r["token"] for r in written]
    assert {"ï", "—", "“", "\n"} <= {row["token"] for row in written}
    assert not any("Ġ" in row["token"] or "â" in row["token"] for row in written)
    assert any("Ã" in row["piece"] or "â" in row["piece"] for row in written)
    assert all(row["nll_bits"] == pytest.approx(row["nll_nats"] / math.log(2)) for row in written)
    table = call("odd.txt", "--tokens", model=byte_model).out
    assert ' "ï"\n' in table and r' "\n"' in table


@pytest.fixture(scope="module")
def byte_model(tmp_path_factory) -> str:
    """A folder with a tiny model whose tokens are bytes, several of them for a character."""
    from space_models import byte_model

    folder = tmp_path_factory.mktemp("bytes") / "model"
    byte_model(folder)
    return str(folder)


@pytest.mark.parametrize("argv", [["--tokens"], ["--words"], []])
def test_one_name_has_one_meaning(call, metric, tiny, argv):
    """Columns end in their unit; the terminal has the numbers of the file under the same names."""
    (first, *_) = map(json.loads, call("a.txt", *argv, "--format=jsonl").out.splitlines())
    assert not {"nats", "bits", "nll", "entropy", "surprisal", "probe"} & {*first}
    result = metric.compute(
        predictions=TEXTS[:1], model_id=tiny, words=True, return_token_scores=True
    )
    units = {"--tokens": "token_scores", "--words": "word_scores"}
    source = result[units[argv[0]]][0] if argv else result
    keys = {"--tokens": ["nll"], "--words": ["nll", "surprisal", "space_nll", "entropy"]}
    for key in keys[argv[0]] if argv else ["total_nll", "probe"]:
        expected = source[key][0] if argv else source[key]
        assert first.get(f"{key}_nats") == pytest.approx(expected, rel=1e-5)
        if f"{key}_bits" in first:
            assert first[f"{key}_bits"] * math.log(2) == pytest.approx(expected, rel=1e-5)
    table = call("a.txt", *argv).out.splitlines()
    titles = re.split("  +", next(line for line in table if "  " in line).strip())
    cells = re.split("  +", table[table.index(next(t for t in table if "  " in t)) + 1].strip())
    for title, cell in zip(titles, cells):
        if title.endswith((", nats", ", bits")):
            assert float(cell) == pytest.approx(first[title.replace(", ", "_")], abs=1e-4)


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
    assert list(rows.of_texts([rows.flat(result)])) == [
        {
            "name": "a",
            "new_number": 3.5,
            "new_low": 1.0,
            "new_high": 2.0,
            "new_part_mean": 4.0,
            "new_part_low": None,
            "new_part_high": None,
            "total_nll_nats": math.log(2),
            "total_nll_bits": 1.0,
        }
    ]
    parts = {"words": ["He"], "offsets": [[0, 2]], "nll": [None], "entropy": [1.5]}
    assert list(rows.of_parts(measuring.ReadText("a", "He left"), parts, "word")) == [
        {"name": "a", "number": 0, "word": "He", "first": 0, "last": 2}
        | {"nll_nats": None, "nll_bits": None, "entropy_nats": 1.5}
    ]


# ---- what stands beside the numbers


def test_a_text_that_the_model_does_not_read_is_pointed_out(metric, tmp_path):
    rows = [{"name": name, "bits_per_byte": bits} for name, bits in zip("abc", (1.4, 1.5, 5.1))]
    [note] = output.far_above(rows)
    assert note.startswith("c (5.10): bits per byte far above the others' 1.50.")
    assert output.far_above(rows[:2]) == [] == output.far_above(rows[2:])
    assert len(output.far_above([rows[0], rows[2]])) == 1


def test_the_samples_in_another_language_are_pointed_out(capsys, root):
    assert main.main([str(root / "samples" / name) for name in ("deutsch.txt", "story.txt")]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert re.search(r"deutsch\.txt ?\(\d\.\d\d\): bits per byte far above", shown)


@pytest.mark.parametrize("name", ["scores.csv", "scores.parquet", "scores.jsonl"])
def test_what_was_written_is_said_at_last(call, name):
    Path("t.jsonl").write_text('{"text": "w5 w6"}\n{"text": ""}\n{"text": "w7 w8 w9"}\n')
    last = call("t.jsonl", "-o", name).err.splitlines()[-1]
    assert last == f"score.py: wrote {name}: 2 rows, 1 empty text skipped"
    assert call("t.jsonl", "-o", name, "--quiet").err == ""
    assert call("a.txt", "-o", "table.md").err.splitlines()[-1] == "score.py: wrote table.md"


# ---- tables that fit


def test_a_table_fits_into_80_columns_and_says_what_it_left_out(call, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    name = "a rather long name of a file in which there is a text.txt"
    Path(name).write_text(TEXTS[0], "utf-8")
    for argv in (["--protocol=all"], ["--stride=16,8,4"], [], ["--tokens", "--num-alternatives=9"]):
        printed = call(name, *argv).out
        assert max(wcswidth(line) for line in printed.splitlines()) <= 80, argv
    assert "Hidden columns: word perplexity (--format csv" in call(name).out
    monkeypatch.setenv("COLUMNS", "200")
    assert "word perplexity" in call(name).out.splitlines()[0]


def test_wide_characters_take_two_columns():
    results = [{"stride": "日本語", "perplexity": 1.0}, {"stride": "abc", "perplexity": 12.0}]
    columns = {"name": lambda row: row["stride"], "number": tables.number("perplexity")}
    lines = tables.lay_out(tables.table(results, columns), 80).splitlines()
    assert {wcswidth(line) for line in lines} == {14}
    assert tables.shorten("日本語日本語日本語.txt", 12).endswith(".txt")
    assert wcswidth(tables.shorten("日本語日本語日本語.txt", 12)) <= 12


WIDE = [
    "日本語の長い名前のファイルがここにあります日本語の長い名前.txt",
    "👩‍👩‍👧‍👦 family 👍🏽 " * 5 + ".txt",
    "ทดสอบ é e\u0301 \u200b\u202e\x1b[31m.txt",
]


@pytest.mark.parametrize("name", WIDE)
def test_wide_names_and_reasons_fit_and_stand_in_columns(call, monkeypatch, name):
    monkeypatch.setenv("COLUMNS", "80")
    Path(name).write_text(TEXTS[0], "utf-8")
    Path(f"bad {name}").write_bytes(b"caf\xe9!")
    printed = call(name, "b.txt", f"bad {name}").out
    assert max(wcswidth(line) for line in printed.splitlines()) <= 80
    assert min(wcswidth(line) for line in printed.splitlines()) >= 0, "nothing moves the cursor"
    title, first, second, *_ = printed.splitlines()
    ends = [wcswidth(line[: line.index(cell) + len(cell)]) for line, cell in (
        (title, "tokens"), (first, " 120"), (second, " 90"),
    )]  # fmt: skip
    assert len(set(ends)) == 1


def test_tables_of_several_models_fit(monkeypatch):
    comparison = {
        "perplexity_ratio": {"ratio": 1.01784, "interval": [1.01, 1.0246]}, "kl": 0.02073,
        "kl_interval": [0.0194, 0.02215], "kl_percentiles": {"99": 0.1078}, "same_top": 0.873,
        "verdict": "no clear difference", "compared": "tokens", "reference_perplexity": 57.021,
        "reference_bits_per_byte": 1.6, "own_window": 64, "reference_own_window": 64,
        "window_is_cut": False,
    }  # fmt: skip
    name = "a-model-with-a-long-name-in-4-bit-with-groups-of-128"
    sizes = {"max_length": 64, "num_windows": 9, "num_texts": 3}
    rows = [{"name": name, "perplexity": 58.039, "comparison": comparison} | sizes] * 2
    lines = tables.lay_out(comparison_report.of_models(rows, "full"), 80).splitlines()
    assert max(map(wcswidth, lines)) <= 80
    assert lines[1].startswith("full (reference)")
    assert "no clear difference" in lines[2] and "1.0178" in lines[2]


def test_texts_of_one_name_keep_their_tokens_apart(call):
    Path("same.jsonl").write_text('{"id": 1, "text": "w5 w6"}\n{"id": 1, "text": "w7"}\n')
    printed = call("same.jsonl", "--id-column=id", "--tokens").out.split("\n\n")
    assert [block.splitlines()[0] for block in printed[:2]] == ["1", "1"]
    assert ['"w5"' in printed[0], '"w7"' in printed[0], '"w7"' in printed[1]] == [1, 0, 1]


def test_what_has_no_width_shows():
    assert tables.quoted("a\u200b\xa0\n") == r'"a\u200b\xa0\n"'


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
    assert "against 16: change in perplexity with its 95 % interval; - is lower" in printed


# ---- gates and citations


def test_fail_above_sets_the_exit_code(call):
    perplexity = call("a.txt", "--json").json["corpus"]["perplexity"]
    assert call("a.txt", f"--fail-above={perplexity + 1}").code == 0
    outcome = call("a.txt", f"--fail-above={perplexity - 1}")
    assert outcome.code == 1
    said = re.search(r"perplexity ([\d.]+) is above --fail-above ([\d.]+)\n", outcome.err)
    assert [float(number) for number in said.groups()] == pytest.approx(
        [perplexity, perplexity - 1], rel=1e-5
    )
    assert "perplexity" in outcome.out, "the table is printed all the same"


def test_a_perplexity_barely_above_the_limit_is_not_shown_as_equal_to_it(call):
    perplexity = call("a.txt", "--json").json["corpus"]["perplexity"]
    outcome = call("a.txt", f"--fail-above={perplexity * (1 - 1e-12)!r}")
    above, limit = re.search(
        r"perplexity (\S+) is above --fail-above (\S+)\n", outcome.err
    ).groups()
    assert float(above) > float(limit)


def test_a_gate_over_several_names_those_that_do_not_pass(call):
    first, second = (
        row["perplexity"] for row in call("a.txt", "--stride=16,8", "--json").json["measurements"]
    )
    between = (first + second) / 2
    larger, value = (16, first) if first > second else (8, second)
    outcome = call("a.txt", "--stride=16,8", f"--fail-above={between}")
    assert outcome.code == 1
    (said,) = [line for line in outcome.err.splitlines() if "above" in line]
    shown = re.search(rf"perplexity ([\d.]+) at stride {larger} is above --fail-above", said)[1]
    assert float(shown) == pytest.approx(value, rel=1e-5)
    assert call("a.txt", "--stride=16,8", f"--fail-above={value + 0.01}").code == 0
    both = call("a.txt", "b.txt", "--protocol=sliding,gptq", "--fail-above=1.5")
    assert ["at protocol sliding" in both.err, "at protocol gptq" in both.err] == [True, True]
    outcome = call("a.txt", "b.txt", "--fail-above=1.5")
    assert outcome.err.count("is above") == 1, "files are one corpus, with one perplexity"


def test_an_undefined_perplexity_does_not_pass_a_gate():
    report = measuring.Report(corpus={"perplexity": math.nan})
    assert len(main.above_limit(report, 1e9)) == 1


def test_what_could_not_be_scored_is_said_on_stderr_too(call):
    """A script that writes a file or cites sees no table."""
    Path("bad.txt").write_bytes(b"caf\xe9!")
    Path("worse.txt").write_text("")
    for argv in (["--output=scores.csv"], ["--cite"], ["--json"]):
        outcome = call("a.txt", "bad.txt", "worse.txt", *argv)
        assert outcome.code == 2
        assert outcome.err.startswith("score.py: error: bad.txt is not UTF-8 text: ")
        assert "(1 more could not be scored)" in outcome.err
    assert call("a.txt", "--stride=17,16").err.count("must be between 1 and --max-length 16") == 1


def test_cite_prints_a_sentence_with_interval_and_signature_and_bibtex(call):
    result = call("a.txt", "--json").json["corpus"]
    cited = call("a.txt", "--cite").out
    low, high = result["perplexity_interval"]
    sentence = cited.splitlines()[0]
    assert (
        f"is {result['perplexity']:.2f} (95 % interval within this text {low:.2f}–{high:.2f}) over 120 tokens"
        in (sentence)
    )
    assert "in windows of 16 tokens with a stride of 8" in sentence
    assert f"(protocol sliding; {result['signature_short']}; perplexity-sliding" in sentence
    assert "(protocol gptq, GPTQ and AWQ papers; " in call("a.txt", "--cite", "--protocol=gptq").out
    assert "@article{" in cited and cited.count("{") == cited.count("}")
    readme = (Path(__file__).parent.parent / "README.md").read_text("utf-8")
    (entry,) = re.findall(r"```bibtex\n(.+?)```", readme, re.DOTALL)
    assert entry in cited, "the same as in the README"


def test_protocols_stand_side_by_side_with_intervals(call):
    """The paired change to the first, and no ± of one standard error that looks like an interval."""
    argv = ("a.txt", "--protocol=sliding,lm-eval")
    _, second = call(*argv, "--json").json["measurements"]
    header, *lines = call(*argv).out.splitlines()
    assert "95 % interval" in header and "±" not in header
    low, high = second["perplexity_interval"]
    ratio = second["ratio_to_first"]
    changes = [100 * (value - 1) for value in (ratio["ratio"], *ratio["interval"])]
    assert f"{low:.2f} – {high:.2f}" in lines[1]
    assert "{:+.2f} % ({:+.2f} to {:+.2f})".format(*changes) in lines[1]


def test_a_stranger_repeats_the_number_from_the_citation(call, tiny, tmp_path, monkeypatch):
    """By its command, on the same file and model, which it pins by digests."""
    argv = [
        "a.txt",
        "--max-length=9",
        "--protocol",
        "sliding,gptq",
        "--cite",
        "-q",
        "-o",
        "cited.txt",
    ]
    assert call(*argv).code == 0
    cited = Path("cited.txt").read_text("utf-8")
    lines = dict(line.split(None, 1) for line in cited.splitlines() if re.match(r"\w+: ", line))
    assert (
        lines["Text:"] == f"a.txt, SHA-256 {hashlib.sha256(Path('a.txt').read_bytes()).hexdigest()}"
    )
    assert lines["Model:"].startswith(f"{tiny} (a folder), revision ")
    program, file, *words = shlex.split(lines["Command:"])
    assert f"{program} {file}" == "python score.py"
    again = call(*[word for word in words if not word.startswith("--model")], "--json").json
    for row in again["measurements"]:
        assert f"is {row['perplexity']:.2f} " in cited and row["signature"] in cited
        assert f"protocol {row['protocol']}" in cited
        assert f"digest {row['texts_digest']}" in cited
    assert words == ["a.txt", "--max-length=9", "--protocol", "sliding,gptq", f"--model={tiny}"]


def test_a_citation_names_the_place_on_the_hub():
    result = {"signature": "model:me/model|revision:0123456789abcdef"}
    found = citing.model(result, "me/model")
    assert found == "https://huggingface.co/me/model, revision 0123456789abcdef"


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


def test_the_last_minute_is_not_zero_minutes(capsys):
    now = [0.0]
    progress = Progress("Scoring", hidden=False, clock=lambda: now[0])
    for second in (0.0, 60.0):
        now[0] = second
        progress(Report(10 + second, 80))
    assert ", less than a minute left, perplexity" in capsys.readouterr().err


def test_the_first_batch_of_a_slow_start_foretells_nothing(capsys):
    now = [0.0]
    progress = Progress("Scoring", hidden=False, clock=lambda: now[0])
    for seconds, done in ((240.0, 1), (360.0, 121)):
        now[0] = seconds
        progress(Report(done, 241))
    assert capsys.readouterr().err.splitlines() == [
        "score.py: Scoring: 0% after 4 min, perplexity so far 20.00",
        "score.py: Scoring: 50% after 6 min, about 2 min left, perplexity so far 20.00",
    ]


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


def test_tables_say_what_intervals_speak_of(call, tmp_path):
    """Of one text and of several; a table for Markdown says so as well."""
    other = tmp_path / "b.txt"
    other.write_text(random_text(80, 3))
    assert "95 % interval within this text: other texts may differ by more." in call("a.txt").out
    several = call("a.txt", other, "--format=markdown").out
    assert "95 % interval within these texts: other texts" in several
    table = tmp_path / "rows.jsonl"
    table.write_text("".join(json.dumps({"text": random_text(90, n)}) + "\n" for n in range(12)))
    assert "95 % interval" not in call(table).out.partition("\n")[2]
    mixed = call(table, "a.txt").out
    assert "95 % intervals: within each text; for all together, over texts." in mixed
    assert "(95 % interval over texts " in call(table, "--cite").out


@pytest.mark.parametrize("delimiter", [",", "\t"])
def test_cells_with_ends_of_lines_are_one_cell(delimiter):
    """A token that is a carriage return made two rows, the first without numbers."""
    rows = [{"token": token, "nll": 1.5} for token in ("\r", "\n", "\r\n", "a\rb", 'a"b', "a,\tb")]
    written = "".join(to_csv(rows, delimiter))
    assert not written.endswith("\r\n")
    read = list(csv.DictReader(io.StringIO(written, newline=""), delimiter=delimiter))
    assert [row["token"] for row in read] == [row["token"] for row in rows]
    assert {row["nll"] for row in read} == {"1.5"}
