"""Where the command line's texts come from, and what it says of mistakes in them."""

import csv
import gzip
import io
import json
import math
import sys
from pathlib import Path

import datasets
import pyarrow
import pyarrow.parquet
import pytest
from models import random_text

TEXTS = [random_text(length, seed=length) for length in (20, 40, 6)]


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch) -> Path:
    """An empty folder to be in, with the caches of `datasets` in another."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


def write_files(*names: str) -> None:
    for name, text in zip(names, TEXTS):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text, "utf-8")


def write_table(name: str, rows: list[dict]) -> None:
    if name.endswith((".csv", ".tsv")):
        with open(name, "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0]), delimiter="\t" if "tsv" in name else ",")
            writer.writeheader()
            writer.writerows(rows)
    elif name.endswith(".parquet"):
        datasets.Dataset.from_list(rows).to_parquet(name)
    else:
        Path(name).write_text("\n".join(map(json.dumps, rows)), "utf-8")


def rows_of(outcome) -> list[dict]:
    assert outcome.code == 0, outcome.err
    return [json.loads(line) for line in outcome.out.splitlines()]


def num_tokens(outcome) -> int:
    return outcome.json["corpus"]["num_tokens"]


# ---- files


def test_a_folder_is_its_texts_and_those_of_its_folders(call):
    write_files("texts/b.txt", "texts/deeper/a.txt", "texts/.hidden.txt")
    Path("texts/picture.png").write_bytes(b"\x89PNG")
    outcome = call("texts", "--json")
    names = [row["name"] for row in outcome.json["files"]]
    assert names == ["texts/b.txt", "texts/deeper/a.txt"]
    assert num_tokens(outcome) == 60
    [warning] = outcome.warnings
    assert warning.endswith("their endings: texts/picture.png.")
    assert num_tokens(call("texts/*.txt", "--json")) == 20, "a glob that the shell left alone"


REFUSED = {
    "no file": ("nowhere.txt", None, "nowhere.txt: No such file or directory"),
    "no match": ("*.md", None, "No file matches *.md."),
    "an empty folder": (".", None, ". has no .txt, .text, .csv"),
    "nothing": ("a.txt", b"", "is empty."),
    "PDF": ("a.txt", b"%PDF-1.7\n%\xe2", "is a PDF: extract its text first"),
    "Excel": ("t.xlsx", b"PK\x03\x04\x14", "is a zip archive, or a Word or Excel file: save it as"),
    "Parquet": ("a.txt", b"PAR1abcd", "a Parquet table: give it a name that ends in .parquet"),
    "binary": ("a.txt", b"w5 \0 w6", "contains NUL characters"),
    "latin": ("a.txt", b"w5 caf\xe9 w6", "Pass its --encoding, such as cp1252"),
    "a row too long": ("t.csv", b"item,text\n1,w5\n2,w5, w6\n", "3 on: 3 fields for 2 columns"),
    "an open quote": ("t.csv", b'item,text\n1,w5\n2,"w5\n', "from line 3 on: unexpected end of"),
    "no rows": ("t.csv", b"item,text\n", "t.csv has no rows."),
    "a blank line": ("t.csv", b"\nw5\n", "1 fields for 0 columns"),
    "no text column": ("t.csv", b"a,b\n1,2\n", "columns a, b of t.csv: pass one of them as"),
    "cut JSON": ("t.jsonl", b'{"text": "w5"}\n{"text": "w6}\n', "object 2 must be a JSON object"),
    "no object": ("t.jsonl", b'{"text": "w5"}\n3\n', "object 2 must be a JSON object"),
    "numbers": ("t.jsonl", b'{"text": 3}\n', "must have a text or a chat in 'text', got 3"),
    "no Parquet": ("t.parquet", b"PAR1", "t.parquet is no table"),
}


@pytest.mark.parametrize(("name", "data", "message"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_read_is_refused_with_what_to_do(call, name, data, message):
    if data is not None:
        Path(name).write_bytes(data)
    outcome = call(name)
    assert (outcome.code, outcome.out) == (2, "") and message in outcome.err


def test_a_bad_file_is_a_row_and_not_the_end(call):
    write_files("a.txt")
    Path("bad.txt").write_bytes(b"caf\xe9 w5")
    outcome = call("a.txt", "bad.txt", "--json")
    good, bad = outcome.json["files"]
    assert outcome.code == 2 and good["num_tokens"] == 20
    assert bad["error"].startswith("bad.txt is not UTF-8 text: ")


def test_standard_input_and_gzip(call, monkeypatch):
    data = gzip.compress(TEXTS[0].encode())
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(data))))
    assert num_tokens(call("-", "--json")) == 20
    Path("a.csv.gz").write_bytes(gzip.compress(b"text\nw5 w6\n"))
    assert num_tokens(call("a.csv.gz", "--json")) == 2
    Path("broken.txt").write_bytes(data[:-9])
    assert "broken.txt is gzipped, but broken" in call("broken.txt").err


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "latin-1"])
def test_encodings(call, encoding):
    Path("a.txt").write_text("w5 w6 café w7\n", "utf-8")
    Path("b.txt").write_bytes("w5 w6 café w7\n".encode(encoding))
    named = () if encoding in ("utf-8-sig", "utf-16") else (f"--encoding={encoding}",)
    other = call("b.txt", *named, "--json").json["corpus"]
    assert other == call("a.txt", "--json").json["corpus"]


# ---- tables

ROWS = [
    {"key": f"00{n}", "text": text, "label": kind}
    for n, (text, kind) in enumerate(zip(TEXTS, ["NA", "x", "None"]))
]


@pytest.mark.parametrize("ending", [".csv", ".tsv", ".jsonl", ".parquet"])
def test_a_table_has_one_text_a_row_and_its_columns_are_carried_along(call, metric, tiny, ending):
    write_table(f"table{ending}", ROWS)
    rows = rows_of(call(f"table{ending}", "--id-column=key", "--format=jsonl"))
    assert [row["name"] for row in rows] == ["000", "001", "002"], "as written, not as numbers"
    assert [row["label"] for row in rows] == ["NA", "x", "None"], "words, not missing values"
    for row, text in zip(rows, TEXTS):
        result = metric.compute(predictions=[text], model_id=tiny)
        assert row["perplexity"] == pytest.approx(result["perplexity"], rel=1e-6)
        assert row["total_nll_bits"] * math.log(2) == pytest.approx(result["total_nll"], rel=1e-6)


HEAD = "item,text\n1,w5 w6\n"
WRITTEN = {
    "semicolons": ("t.csv", b'item;text\n1;"w5 w6"\n'),
    "semicolons, a comma in a name": ("t.csv", b'item;"in s, at 1";text\n1;2;w5 w6\n'),
    "tabs": ("t.csv", b"item\ttext\n1\tw5 w6\n"),
    "a byte order mark": ("t.csv", HEAD.encode("utf-8-sig")),
    "UTF-16, tabs": ("t.tsv", HEAD.replace(",", "\t").encode("utf-16")),
    "JSON lines, a byte order mark": ("t.jsonl", b'\xef\xbb\xbf{"item": 1, "text": "w5 w6"}\n'),
    "a list": ("t.json", b'[{"item": 1,\n "text": "w5 w6"}]'),
    "no name, as R and pandas write": ("t.csv", b'"",item,text\n7,1,"w5 w6"\n'),
    "quotes within": ("t.tsv", b'item\ttext\n1\tw5 w6\n2\t5" tall\n'),
}


@pytest.mark.parametrize(("name", "data"), WRITTEN.values(), ids=WRITTEN)
def test_tables_as_programs_write_them(call, name, data):
    Path(name).write_bytes(data)
    outcome = call(name, "--id-column=item", "--format=jsonl")
    row = rows_of(outcome)[0]
    assert (row["name"], row["num_tokens"], outcome.warnings) == ("1", 2, [])


def test_columns_that_are_not_there_are_named(call):
    write_table("t.csv", ROWS)
    for option in ("text", "id", "context", "words"):
        error = call("t.csv", f"--{option}-column=other").err
        assert f"--{option}-column must be one of the columns key, text, label of t.csv" in error
    assert "must not be that of the texts" in call("t.csv", "--context-column=text").err


def test_a_carried_column_hides_no_number(call):
    given = {"text": TEXTS[0], "perplexity": "high", "name": "n", "error": "e"}
    write_table("t.jsonl", [given])
    (row,) = rows_of(call("t.jsonl", "--format=jsonl"))
    carried = [row[f"{name}_given"] for name in ("perplexity", "name")]
    assert carried == ["high", "n"] and row["perplexity"] > 1


def test_rows_of_json_may_lack_columns_and_categories_of_parquet_are_texts(call):
    write_table("t.jsonl", [{"text": "w5"}, {"text": "w6", "b": [1]}, {"b": 2}])
    rows = rows_of(call("t.jsonl", "--format=jsonl"))
    assert [row.get("b") for row in rows] == [None, [1]]
    categories = pyarrow.array(["w5 w6", "w7"]).dictionary_encode()
    pyarrow.parquet.write_table(pyarrow.table({"text": categories}), "t.parquet")
    assert num_tokens(call("t.parquet", "--json")) == 3


def test_a_row_that_cannot_be_scored_is_named(call):
    write_table("t.jsonl", [{"id": "a", "text": TEXTS[0]}, {"id": "b", "text": " "}])
    outcome = call("t.jsonl", "--add-start-token=false", "--id-column=id", "--json")
    (refused,) = outcome.json["refused_rows"]
    assert (outcome.code, refused["name"], refused["row"]) == (2, "b", 1)
    assert outcome.err.startswith("score.py: error: b: ")


def test_empty_rows_are_left_out_and_counted(call):
    write_table("t.jsonl", [{"text": ""}, {"text": TEXTS[0]}, {"text": None}])
    assert "Empty rows skipped: 2." in call("t.jsonl").out
    write_table("t.jsonl", [{"text": ""}, {"text": ""}])
    assert "All texts are empty." in call("t.jsonl").err


def test_empty_rows_count_beside_protocols_that_join_them(call):
    """Each protocol has the number that it has alone, and a ratio only to the first of all."""
    body = [" w5 @-@ w6 , " * 9 + "\n", " w7 w8 w9 . " * 9 + "\n", " w5 w9 " * 12]
    write_table("t.jsonl", [{"text": text} for text in ("", body[0], " \n", *body[1:])])
    names = ["sliding", "gptq", "llama.cpp", "stock"]
    argv = ["t.jsonl", "--detokenize=wikitext", "--json"]
    both = call(*argv, f"--protocol={','.join(names)}")
    assert both.code == 0, both.err
    for name, row in zip(names, both.json["measurements"], strict=True):
        alone = call(*argv, f"--protocol={name}").json["corpus"]
        for key in ("perplexity", "num_tokens", "num_texts", "bits_per_byte"):
            assert row[key] == pytest.approx(alone[key]), (name, key)
        ratio = row.get("ratio_to_first")
        assert ratio is None or ratio["ratio"] == pytest.approx(
            row["perplexity"] / both.json["measurements"][0]["perplexity"]
        )
    assert both.json["num_empty_texts"] == 2


# ---- datasets


@pytest.mark.parametrize("kind", ["folder", "saved splits", "saved"])
def test_a_dataset_is_read(call, kind):
    whole = datasets.Dataset.from_list(ROWS)
    if kind == "folder":
        Path("data").mkdir()
        write_table("data/train.csv", ROWS)
    else:
        (datasets.DatasetDict({"train": whole}) if "splits" in kind else whole).save_to_disk("data")
        assert "pass it as --dataset data::train:text" in call("data").err
    assert num_tokens(call("--dataset=data::train[:2]:text", "--json")) == 60
    assert num_tokens(call("--dataset=data::train:text", "--json")) == 66
    assert call("--dataset=data::train:words").code == 2
    if kind == "saved splits":
        assert "Unknown split" in call("--dataset=data::test:text").err
    assert "must be NAME:CONFIG:SPLIT:COLUMN, got 'data'" in call("--dataset=data").err


# ---- mistakes


def test_a_csv_that_is_read_as_prose_is_warned_of(call):
    Path("a.txt").write_text("id,text\n1,w5 w6\n2,w7 w8\n")
    (warning,) = call("a.txt").warnings
    assert warning.startswith("score.py: warning: a.txt looks like CSV")
    for text in ("He came, he saw. He slept.", "apples\npears\n", "Roses,\nlilies, and so\n"):
        Path("a.txt").write_text(text)
        assert call("a.txt").warnings == []
