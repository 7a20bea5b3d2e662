"""What the command line writes: tidy rows, tables for papers and in a terminal, and the sentence of --cite."""

import csv
import io
import json
import math
import re
from pathlib import Path

import pyarrow.parquet
import pytest
from models import make_model, make_tokenizer, random_text, save
from space_models import byte_model as save_byte_model

from perplexity_sliding.cli import options, rows, tables
from perplexity_sliding.cli.reading import ReadText

TEXTS = [random_text(length, seed=length) for length in (150, 90)]


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, text in zip(("a.txt", "b.txt"), TEXTS):
        Path(name).write_text(text, "utf-8")
    return tmp_path


def read_csv(text: str, delimiter: str = ",") -> list[dict]:
    return list(csv.DictReader(io.StringIO(text), delimiter=delimiter))


# ---- rows


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


def test_all_tidy_formats_hold_the_same(call):
    jsonl = [json.loads(line) for line in call("a.txt", "b.txt", "--format=jsonl").out.splitlines()]
    comma = read_csv(call("a.txt", "b.txt", "--format=csv").out)
    assert comma == read_csv(call("a.txt", "b.txt", "--format=tsv").out, "\t")
    said = call("a.txt", "b.txt", "--output=scores.parquet")
    assert (said.out, said.err) == ("", "score.py: wrote scores.parquet\n")
    assert pyarrow.parquet.read_table("scores.parquet").to_pylist() == jsonl
    assert [{k: "" if v is None else str(v) for k, v in row.items()} for row in jsonl] == comma


@pytest.mark.parametrize("ending", [".json", ".jsonl", ".csv", ".tsv", ".md", ".tex", ".txt"])
def test_the_ending_of_the_output_is_the_format(call, ending):
    outcome = call("a.txt", f"--output=scores{ending}")
    assert (outcome.code, outcome.out) == (0, "")
    printed = call("a.txt", f"--format={options.ENDINGS[ending]}").out
    timeless = re.compile(r'"(seconds|tokens_per_second)": [\d.]+')
    assert timeless.sub("", Path(f"scores{ending}").read_text("utf-8")) == timeless.sub("", printed)


def test_parquet_holds_columns_on_which_tables_disagree(call):
    Path("t.jsonl").write_text('{"text": "w5", "x": 1, "y": [1]}\n{"text": "w6", "x": "one"}\n')
    call("t.jsonl", "--output=t.parquet")
    first, second = pyarrow.parquet.read_table("t.parquet").to_pylist()
    assert (first["x"], second["x"], first["y"], second["y"]) == ("1", "one", [1], None)


@pytest.fixture(scope="module")
def byte_model(tmp_path_factory) -> str:
    """A folder with a tiny model whose tokens are bytes, several of them for a character."""
    folder = tmp_path_factory.mktemp("bytes") / "model"
    save_byte_model(folder)
    return str(folder)


def test_the_tokens_are_written_as_the_text_writes_them(call, byte_model):
    text = "naïve — “horse”\r\n"
    Path("odd.txt").write_bytes(text.encode())
    outcome = call("odd.txt", "--tokens", "--format=jsonl", model=byte_model)
    written = [json.loads(line) for line in outcome.out.splitlines()]
    assert [text[row["first"] : row["last"]] for row in written] == [r["token"] for r in written]
    assert {"ï", "—", "“", "\n"} <= {row["token"] for row in written}
    assert any("Ã" in row["piece"] or "â" in row["piece"] for row in written)
    assert all(row["nll_bits"] == pytest.approx(row["nll_nats"] / math.log(2)) for row in written)
    cells = read_csv(call("odd.txt", "--tokens", "--format=csv", model=byte_model).out)
    assert [row["token"] for row in cells] == [row["token"] for row in written]
    table = call("odd.txt", "--tokens", model=byte_model).out
    assert ' "ï"\n' in table and r' "\n"' in table


def test_every_number_of_a_result_is_a_column_by_itself():
    """So that what the metric learns to measure shows without another edit."""
    result = {
        "total_nll": math.log(2),
        "new_number": 3.5,
        "new_interval": [1.0, 2.0],
        "new_part": {"mean": 4.0, "interval": None},
        "perplexities": [1.0],
    }
    assert rows.flat(result) == {
        **{"new_number": 3.5, "new_low": 1.0, "new_high": 2.0},
        **{"new_part_mean": 4.0, "new_part_low": None, "new_part_high": None},
        **{"total_nll_nats": math.log(2), "total_nll_bits": 1.0},
    }
    parts = {"tokens": ["He"], "offsets": [[0, 2]], "nll": [None], "entropy": [1.5]}
    assert list(rows.rows_of_parts(ReadText("a", "He left"), parts, "token")) == [
        {"name": "a", "number": 0, "token": "He", "first": 0, "last": 2}
        | {"nll_nats": None, "nll_bits": None, "entropy_nats": 1.5, "piece": "He"}
    ]


# ---- papers

COMMANDS = [
    ["a.txt", "b.txt"],
    ["a.txt", "--stride=8,4,2"],
    ["a.txt", "--protocol=all"],
    ["a.txt", "b.txt", "--protocol=sliding,gptq", "--columns=text"],
    ["a.txt", "--context-lengths=4,8,16"],
    ["a.txt", "b.txt", "--words"],
]


@pytest.mark.parametrize("argv", COMMANDS, ids=" ".join)
def test_latex_has_as_many_cells_as_columns_and_none_is_blank(call, argv):
    """In an environment with a caption, rules of booktabs and nothing that LaTeX would obey."""
    written = call(*argv, "--format=latex").out
    found = re.findall(r"\\begin{table}.*?\\end{table}", written, re.DOTALL)
    assert found
    for table in found:
        (columns,) = re.findall(r"\\begin{tabular}{([lr]+)}", table)
        lines = [line for line in table.splitlines() if line.endswith(r"\\")]
        assert len(lines) > 1
        for line in lines:
            cells = re.split(r"(?<!\\)&", line.removesuffix(r"\\"))
            assert len(cells) == len(columns) and all(cell.strip() for cell in cells)
        assert [table.count(rf"\{rule}") for rule in ("toprule", "midrule", "bottomrule")] == [
            *(1, 1, 1)
        ]
    assert not re.search(r"(?<!\\)[$#_^~]", re.sub("(?m)^%.*", "", written))
    assert written.count("{") - written.count(r"\{") == written.count("}") - written.count(r"\}")


def test_an_interval_is_that_of_the_column_before_it(call):
    """It was the perplexity's, whatever stood beside it."""
    argv = ["a.txt", "--stride=8,4"]
    row = call(*argv, "--json").json["measurements"][1]
    for name in ("perplexity", "bits_per_byte"):
        out = call(*argv, f"--columns={name},interval").out.splitlines()
        _, value, interval = re.split("  +", out[2].strip())
        bounds = row[f"{name}_interval"]
        assert value == f"{row[name]:.4f}"
        low, high = map(float, interval.split(" – "))
        assert [low, high] == pytest.approx(bounds, abs=0.006)
        assert low < row[name] < high


def test_settings_and_signatures_are_in_the_caption_or_in_comments(call):
    result = call("a.txt", "--max-length=12", "--stride=5", "--json").json["corpus"]
    for name in ("markdown", "latex"):
        written = call("a.txt", "--max-length=12", "--stride=5", f"--format={name}").out
        assert "model tiny, windows of 12 tokens, stride 5, protocol sliding" in written
        plain = re.sub(r"\\ensuremath{\|}|\\\|", "|", written)
        assert f"Signature: {result['signature_short']}." in plain
    argv = ("a.txt", "--stride=8,4")
    short = [row["signature_short"] for row in call(*argv, "--json").json["measurements"]]
    latex = call(*argv, "--format=latex").out.splitlines()
    assert latex[:2] == [f"% 8: {short[0]}", f"% 4: {short[1]}"]
    assert f"<!-- 4: {short[1]} -->" in call(*argv, "--format=markdown").out


def test_minus_signs_and_pvalues(call):
    argv = ("a.txt", "--stride=2,16")
    ratio = call(*argv, "--json").json["measurements"][1]["ratio_to_first"]
    for name, minus in (("markdown", "−"), ("latex", r"\(-\)")):
        written = call(*argv, f"--format={name}").out
        changes = [100 * (value - 1) for value in (ratio["ratio"], *ratio["interval"])]
        assert min(changes) < 0
        for change in changes:
            assert f"{change:+.2f}".replace("-", minus) in written
        assert f"{ratio['pvalue']:.4f}" in written


def test_names_stay_names_in_markdown_and_latex(call):
    name = "~x~ & $5$ #1 {} <i> [x](y) 1|2 *b* -1_5%.txt"
    Path(name).write_text(TEXTS[0], "utf-8")
    cell = call(name, "--format=markdown").out.splitlines()[2].split(" | ")[0].removeprefix("| ")
    assert re.sub(r"\\(.)", r"\1", cell).strip() == name
    assert not re.search(r"(?<!\\)[*_`<>\[|~&$]", cell)
    latex = call(name, "--format=latex").out
    unescaped = re.sub(r"\\ensuremath{(.)}", r"\1", latex).replace(r"\textasciitilde{}", "~")
    assert re.sub(r"\\([&%$#_{}])", r"\1", unescaped).count(name) == 1


# ---- terminals

WIDE = "文" * 40 + ".txt"


@pytest.mark.parametrize("name", [WIDE, "long/" * 20 + "name.txt", "a.txt"])
def test_names_and_reasons_fit_into_80_columns(call, monkeypatch, name):
    monkeypatch.setenv("COLUMNS", "80")
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_text(TEXTS[0])
    Path("bad.txt").write_bytes(b"caf\xe9")
    lines = call(name, "bad.txt").out.splitlines()
    assert max(map(tables.columns_of, lines)) <= 80
    assert lines[1].endswith(tuple("0123456789")) and name[-5:] in lines[1]
    assert name == "a.txt" or "Hidden columns: " in "\n".join(lines)


# ---- the sentence for a paper


@pytest.fixture(scope="module")
def other(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("models") / "other"
    return save(folder, make_model("gpt2", seed=4), make_tokenizer())


@pytest.mark.parametrize(
    "argv, said",
    [
        ([], "in 2 texts (scored separately), "),
        (["--separator=\\n"], "in one text (joined by '\\n'), "),
        (["--protocol=transformers-docs"], r"(joined by '\n\n')"),
        (["--protocol=run-clm"], "(with their token ids joined)"),
        (["--detokenize=wikitext"], "detokenised from WikiText's form as lm-eval"),
    ],
    ids=str,
)
def test_the_layout_is_named(call, argv, said):
    outcome = call("a.txt", "b.txt", "--cite", *argv)
    assert outcome.code == 0, outcome.err
    assert said in outcome.out.splitlines()[0]


def test_contexts_and_what_stands_between_are_named(call):
    rows = [{"prompt": random_text(4, n), "text": random_text(20, n + 9)} for n in range(3)]
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    argv = ("--context-column=prompt", "--context-separator= ", "--boundary=separate")
    sentence = call("rows.jsonl", "--cite", *argv).out.splitlines()[0]
    expected = "its context from the column prompt, boundary separate, separated by ' '"
    assert expected in sentence


def test_the_share_that_is_scored_is_cited(call):
    """A protocol that cuts long texts gave the number of a beginning as that of the text."""
    assert " tokens in a.txt" in call("a.txt", "--cite").out
    share = call("a.txt", "--protocol=stock", "--json").json["corpus"]["scored_share"]
    assert share < 0.9
    assert (
        f" tokens ({100 * share:.2g} % of all) in a.txt"
        in call("a.txt", "--protocol=stock", "--cite").out
    )


def test_a_comparison_is_cited_with_its_reference(call, other):
    result = call("a.txt", f"--reference={other}", "--json").json["models"][0]
    cited = call("a.txt", f"--reference={other}", "--cite").out
    assert f"Compared with {other}: {result['comparison']['summary'][:40]}" in cited
    assert f"\nReference:  {other} (a folder), revision " in cited
    assert result["comparison"]["reference_signature"] in cited


@pytest.mark.parametrize("more", [[], ["--protocol=sliding,lm-eval", "--columns=text"]])
def test_several_models_are_cited_by_name(call, tiny, other, more):
    cited = call("a.txt", "b.txt", f"--model={other}", "--cite", *more, model=tiny).out
    for name, folder in (("tiny", tiny), ("other", other)):
        assert cited.count(f"The perplexity of {name} is ") == (4 if more else 1)
        assert f"\nModel:      {folder} (a folder), revision " in cited
    assert ("tokens in b.txt" in cited) is bool(more)


SECRETS = [
    ["--model-kwargs", '{"token": "hf_secret", "revision": "main"}'],
    ['--model-kwargs={"token": "hf_secret", "revision": "main"}'],
]


@pytest.mark.parametrize("argv", SECRETS, ids=" ".join)
def test_the_command_is_published_without_secrets(call, argv):
    """A token of the Hub stood in the entry for a paper, and in the report."""
    cited = call("a.txt", *argv, "--cite").out
    assert "secret" not in cited and re.search(r"Command: .*-kwargs.*main", cited)
    assert call("a.txt", *argv, "--html=r.html").code == 0
    report = Path("r.html").read_text("utf-8")
    assert "secret" not in report and "main" in report


@pytest.mark.parametrize("given", ['{"token": "hf_secret"', '["key:secret"]'])
def test_json_with_a_secret_is_not_shown(call, given):
    outcome = call("a.txt", f"--model-kwargs={given}")
    assert outcome.code == 2
    assert "--model-kwargs: the value" in outcome.err and "secret" not in outcome.err
