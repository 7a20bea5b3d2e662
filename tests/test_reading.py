"""Where the command line's texts come from, and what it says of mistakes in them."""

import bz2
import csv
import errno
import gzip
import io
import json
import lzma
import math
import os
import re
import sys
import threading
from pathlib import Path

import datasets
import pyarrow
import pyarrow.parquet
import pytest
from models import random_text

from perplexity_sliding.cli import options, reading, suspicions, table_files, unpacking

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


def names_of(outcome) -> list[str]:
    return [row["name"] for row in outcome.json["files"]]


# ---- files


def test_a_folder_is_its_texts_and_those_of_its_folders(call):
    write_files("texts/b.txt", "texts/deeper/a.txt", "texts/.hidden.txt")
    Path("texts/picture.png").write_bytes(b"\x89PNG")
    outcome = call("texts", "--json")
    assert names_of(outcome) == ["texts/b.txt", "texts/deeper/a.txt"]
    assert outcome.json["corpus"]["num_tokens"] == 60
    (warning,) = outcome.warnings
    assert (
        "skipped in texts, as their endings are neither of texts nor of tables: texts/picture.png"
        in warning
    )


def test_a_folder_that_cannot_be_read_is_not_left_out(call, monkeypatch):
    """Its texts would be missing from the number without a word."""
    write_files("texts/a.txt", "texts/locked/b.txt")
    scandir = os.scandir

    def refuse(place):
        if Path(place).name == "locked":
            raise PermissionError(errno.EACCES, "Permission denied", str(place))
        return scandir(place)

    with monkeypatch.context() as patched:
        patched.setattr(os, "scandir", refuse)
        outcome = call("texts")
    assert (outcome.code, outcome.out) == (2, "")
    assert "texts/locked: Permission denied" in outcome.err
    assert names_of(call("texts", "--json")) == ["texts/a.txt", "texts/locked/b.txt"]


def test_links_in_a_folder_are_not_left_out_in_silence(call):
    write_files("texts/a.txt", "elsewhere/b.txt", "elsewhere/c.txt")
    os.symlink(Path("elsewhere").resolve(), "texts/more")
    os.symlink(Path("texts").resolve(), "texts/upwards")  # a circle
    os.symlink(Path("elsewhere/c.txt").resolve(), "texts/c.txt")
    outcome = call("texts", "--json")
    assert names_of(outcome) == ["texts/a.txt", "texts/c.txt"]
    (warning,) = outcome.warnings
    assert "skipped in texts, as links to folders: texts/more, texts/upwards" in warning
    os.remove("elsewhere/c.txt")
    outcome = call("texts")
    assert (outcome.code, outcome.out) == (2, "")
    assert "texts/c.txt: No such file or directory" in outcome.err


def test_a_glob_that_the_shell_left_alone_is_resolved(call):
    write_files("a1.md", "a2.md", "b.md")
    assert names_of(call("a*.md", "--json")) == ["a1.md", "a2.md"]


@pytest.mark.parametrize("pattern", ["texts/*", "texts/**/*.txt"])
def test_a_broken_link_that_a_glob_matches_is_not_left_out_in_silence(call, pattern):
    """It was an error only if the shell resolved the glob."""
    write_files("texts/a.txt")
    os.symlink("nowhere", "texts/b.txt")
    outcome = call(pattern)
    assert (outcome.code, outcome.out) == (2, "")
    assert "texts/b.txt: No such file or directory" in outcome.err


@pytest.mark.parametrize("pattern", ["texts/*/*.md", "texts/**/*.md", "texts/*/a.md"])
def test_a_glob_names_the_folders_that_it_cannot_read(call, monkeypatch, pattern):
    """Their texts were left out silently."""
    for folder in ("open", "closed"):
        os.makedirs(f"texts/{folder}")
        write_files(f"texts/{folder}/a.md")
    access = os.access
    monkeypatch.setattr(
        os, "access", lambda path, mode: "closed" not in str(path) and access(path, mode)
    )
    assert "that cannot be read: texts/closed." in call(pattern, "--quiet").err


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("nowhere.txt", "nowhere.txt: No such file or directory"),
        ("*.doc", "No file matches *.doc."),
        ("empty", "empty is a folder without .txt, .text, .csv"),
    ],
)
def test_what_is_not_there_is_told_before_anything_is_scored(call, argument, message):
    os.mkdir("empty")
    write_files("a.txt")
    outcome = call("a.txt", argument)
    assert (outcome.code, outcome.out) == (2, "")
    assert message in outcome.err


def test_a_bad_file_is_a_row_and_not_the_end(call):
    write_files("a.txt", "c.txt")
    Path("b.txt").write_bytes(b"caf\xe9!")
    Path("d.txt").write_text("")
    outcome = call("a.txt", "b.txt", "c.txt", "d.txt", "--json")
    assert outcome.code == 2, "a script must see that not all were scored"
    assert names_of(outcome) == ["a.txt", "b.txt", "c.txt", "d.txt"]
    errors = [row.get("error") for row in outcome.json["files"]]
    assert errors[1].startswith("b.txt is not UTF-8 text: ") and "--encoding" in errors[1]
    assert errors[3] == "d.txt is empty."
    good = call("a.txt", "c.txt", "--json").json
    assert outcome.json["corpus"] == good["corpus"]
    table = call("a.txt", "b.txt").out
    assert "b.txt is not UTF-8 text" in table


def test_gzip_is_known_by_its_first_bytes(call):
    write_files("plain.txt")
    Path("packed").write_bytes(gzip.compress(TEXTS[0].encode()))
    packed, plain = (call(name, "--json").json["corpus"] for name in ("packed", "plain.txt"))
    assert packed == plain
    Path("broken").write_bytes(gzip.compress(TEXTS[0].encode())[:-9])
    assert "broken is gzipped, but broken: " in call("broken").err


def test_a_gzipped_bomb_is_not_unpacked(call, monkeypatch):
    """Nor tokenized: the largest expansion of gzip is 1,032 times."""
    Path("zeros.gz").write_bytes(gzip.compress(bytes(10**7)))
    assert "zeros.gz contains NUL characters, like a binary file." in call("zeros.gz").err
    Path("a.gz").write_bytes(gzip.compress(b"w5 " * 10**5))
    assert call("a.gz", "--json").json["corpus"]["num_tokens"] == 10**5, "small enough"
    monkeypatch.setattr(unpacking, "HARMLESS_BYTES", 10**5)
    for name in ("a.gz", "t.csv.gz"):
        Path(name).write_bytes(gzip.compress(b"text\n" + b"w5 " * 10**5))
        outcome = call(name)
        assert outcome.code == 2
        assert f"{name} unpacks to more than 200 times its size" in outcome.err


def test_nor_is_one_that_comes_through_a_pipe(call, monkeypatch):
    """Whose size nobody knows: it was unpacked to the end."""
    monkeypatch.setattr(unpacking, "HARMLESS_BYTES", 10**5)
    packed = gzip.compress(b"w5 " * 10**5)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(packed))))
    outcome = call("-")
    assert outcome.code == 2
    assert "Standard input unpacks to more than 200 times its size" in outcome.err
    text = random_text(40_000)  # larger than what is harmless, but no bomb
    packed = gzip.compress(text.encode())
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(packed))))
    assert call("-", "--json").json["corpus"]["num_tokens"] == 40_000
    os.mkfifo("pipe.gz")
    bomb = gzip.compress(b"w5 " * 10**5)
    threading.Thread(target=lambda: Path("pipe.gz").write_bytes(bomb), daemon=True).start()
    assert "pipe.gz unpacks to more than 200 times its size" in call("pipe.gz").err


class Wide(list):
    """A header so wide that looking for a column from its beginning, for each of them, takes minutes."""

    def index(self, *_):
        raise AssertionError("quadratic")

    count = index


def test_columns_by_the_hundred_thousand(call, monkeypatch):
    header = table_files.csv_header
    monkeypatch.setattr(table_files, "csv_header", lambda *args: Wide(header(*args)))
    Path("t.csv").write_text(f"a,text,b\n1,{TEXTS[0]},3\n")
    assert call("t.csv", "--format=csv").out.splitlines()[1].startswith("t.csv row 0,1,3,")
    with pytest.raises(ValueError, match="two columns 'b'"):
        header("t.csv", iter([Wide(["a", "b", "b"])]))


BINARY = {
    "PDF": (b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n1 0 obj", "a PDF: extract its text first"),
    "Word": (b"PK\x03\x04\x14", "a zip archive, such as a Word file"),
    "old Excel": (
        b"\xd0\xcf\x11\xe0",
        "an old Office file: save a document as .txt, a table as CSV",
    ),
    "old Word": (b"\xd0\xcf\x11\xe0\xa1", "an old Office file"),
    "RTF": (b"{\\rtf1 w5}", "an RTF document"),
    "PNG": (b"\x89PNG\r\n\x1a\n", "a picture"),
    "JPEG": (b"\xff\xd8\xff\xe0", "a picture"),
    "film": (b"abcdftypisom", "a picture, an audio or a video file"),
    "sound": (b"RIFFabcdWAVE", "a picture, an audio or a video file"),
    "bzip2": (bz2.compress(b"w5"), "compressed, but not by gzip: unpack it"),
    "xz": (lzma.compress(b"w5"), "compressed, but not by gzip: unpack it"),
    "Parquet": (b"PAR1abcd", "a Parquet table: give it a name that ends in .parquet"),
    "a program": (b"\x7fELF\x02", "a binary file"),
    "PDF, gzipped": (gzip.compress(b"%PDF-1.4"), "a PDF"),
}


@pytest.mark.parametrize(("data", "kind"), BINARY.values(), ids=BINARY)
@pytest.mark.parametrize("name", ["a.txt", "a.csv", "a.jsonl"])
def test_what_is_no_text_is_called_by_its_kind(call, data, kind, name):
    """Any bytes are a text in some encodings."""
    Path(name).write_bytes(data)
    outcome = call(name, "--encoding=latin-1")
    assert (outcome.code, outcome.out) == (2, "")
    assert f"{name} is {kind}" in outcome.err


def test_nul_characters_are_no_text(call):
    """Not even behind the first piece; nor in UTF-16, whose bytes are full of NUL."""
    Path("a.txt").write_bytes(b"w5 " * 500_000 + b"\0")
    assert "a.txt contains NUL characters, like a binary file" in call("a.txt").err
    Path("wide.txt").write_text("w5 w6", "utf-16-le")
    assert "If it is a text, pass its --encoding, such as utf-16-le" in call("wide.txt").err
    assert call("wide.txt", "--encoding=utf-16-le", "--json").json["corpus"]["num_tokens"] == 2
    Path("wide.txt").write_text("w5\0w6", "utf-16")
    assert "wide.txt contains NUL characters" in call("wide.txt").err


def test_a_text_about_these_files_is_a_text(call):
    Path("a.txt").write_text("w5 %PDF-1.7 PK\x03\x04")
    assert call("a.txt").code == 0


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32", "utf-16-le", "latin-1"])
def test_encodings(call, encoding):
    text = "w5 w6 café w7"
    Path("plain.txt").write_text(text, "utf-8")
    Path("other.txt").write_bytes(text.encode(encoding))
    named = () if encoding in ("utf-8-sig", "utf-16", "utf-32") else (f"--encoding={encoding}",)
    other = call("other.txt", *named, "--json").json["corpus"]
    assert other == call("plain.txt", "--json").json["corpus"]


BROKEN_TEXTS = {
    "another encoding": (b"w5 caf\xe9 w6", "not UTF-8 text: .* at byte 6. Pass its .* cp1252"),
    "its last letter": (b"w5 caf\xe9", "not UTF-8 text: .* at byte 6. Pass its .* cp1252"),
    "cut behind other characters": ("w5 café café".encode()[:-1], "within a character, at byte 12"),
    "cut within the only one": ("w5 w6 …".encode()[:-1], "within a character, at byte 6"),
    "behind many bytes": (b"w5 w6\n" * 200_000 + b"\xe9 w7", "not UTF-8 .* at byte 1200000"),
    "cut behind many": (
        b"w5 w6\n" * 200_000 + b"\xe2\x80",
        "within .*, at byte 1200000: it is truncated",
    ),
}


@pytest.mark.parametrize("name", ["a.txt", "a.csv"])
@pytest.mark.parametrize(("data", "message"), BROKEN_TEXTS.values(), ids=BROKEN_TEXTS)
def test_a_text_that_was_cut_is_told_from_another_encoding(call, name, data, message):
    """At its place in the file, also where that is read in blocks."""
    Path(name).write_bytes(data)
    outcome = call(name)
    assert outcome.code == 2
    assert re.search(message, outcome.err), outcome.err


QUOTED = "w5 “w6” – w7 …"


@pytest.mark.parametrize("name", ["a.txt", "a.csv"])
def test_control_characters_of_a_wrong_encoding_are_said(call, name):
    """Windows-1252 read as latin-1 has them, UTF-8 too; each gets its own advice."""
    Path(name).write_bytes(b"text\n" + QUOTED.encode("cp1252"))
    (warning,) = call(name, "--encoding=latin-1").warnings
    assert f"{name}" in warning and "U+0093" in warning and "--encoding cp1252" in warning
    assert call(name, "--encoding=cp1252").warnings == []
    Path(name).write_bytes(b"text\n" + QUOTED.encode())
    assert call(name).warnings == []
    (warning,) = call(name, "--encoding=latin-1").warnings
    assert "is UTF-8, but read as LATIN-1" in warning and "Leave --encoding out" in warning
    Path(name).write_bytes(b"text\n" + QUOTED.encode("cp1252").decode("latin-1").encode())
    for argv in ([], ["--encoding=utf-8"]):  # as which cp1252 would make other characters again
        (warning,) = call(name, *argv).warnings
        assert "U+0093" in warning and "Repair the text" in warning and "cp1252" not in warning


def test_control_characters_of_a_context_are_said(call):
    write_table("t.jsonl", [{"before": "w5\x93", "text": " w6"}])
    (warning,) = call("t.jsonl", "--context-column=before").warnings
    assert "U+0093" in warning


def test_the_texts_say_how_much_of_the_input_they_are(call, monkeypatch):
    """What the bar of a run in many shards goes by."""
    write_files("a.txt", "b.txt")
    write_table("table.csv", [{"text": text} for text in TEXTS])
    args = options.parse_arguments(["a.txt", "b.txt", "table.csv"])
    shares = [text.share for text in reading.open_texts(args)]
    assert sum(shares) == pytest.approx(1)
    sizes = [os.stat(name).st_size for name in ("a.txt", "b.txt")]
    assert shares[0] / shares[1] == pytest.approx(sizes[0] / sizes[1])
    assert shares[2] == shares[3] == shares[4]


# ---- tables


def write_table(name: str, rows: list[dict]) -> None:
    if name.endswith((".csv", ".tsv")):
        with open(name, "w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]), delimiter="\t" if "tsv" in name else ",")
            writer.writeheader()
            writer.writerows(rows)
    elif name.endswith(".csv.gz"):
        lines = [",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]
        Path(name).write_bytes(gzip.compress("\n".join(lines).encode()))
    elif name.endswith(".parquet"):
        datasets.Dataset.from_list(rows).to_parquet(name)
    else:
        Path(name).write_text("\n".join(map(json.dumps, rows)), "utf-8")


ROWS = [
    {"key": f"00{n}", "text": text, "label": kind}
    for n, (text, kind) in enumerate(zip(TEXTS, ["NA", "x", "None"]))
]
ENDINGS = [".csv", ".tsv", ".jsonl", ".parquet", ".csv.gz"]


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_table_has_one_text_a_row_and_its_columns_are_carried_along(call, metric, tiny, ending):
    write_table(f"table{ending}", ROWS)
    outcome = call(f"table{ending}", "--id-column=key", "--format=jsonl")
    rows = [json.loads(line) for line in outcome.out.splitlines()]
    assert [row["name"] for row in rows] == ["000", "001", "002"], "as written, not as numbers"
    assert [row["label"] for row in rows] == ["NA", "x", "None"], "words, not missing values"
    for row, text in zip(rows, TEXTS):
        result = metric.compute(predictions=[text], model_id=tiny)
        assert row["perplexity"] == pytest.approx(result["perplexity"], rel=1e-6)
        assert row["total_nll_nats"] == pytest.approx(result["total_nll"], rel=1e-6)
        assert row["total_nll_bits"] == pytest.approx(result["total_nll"] / math.log(2), rel=1e-6)
    corpus = call(f"table{ending}", "--json").json
    assert corpus["corpus"]["perplexities"] == pytest.approx([row["perplexity"] for row in rows])
    assert "files" not in corpus


def test_a_column_of_another_name(call):
    write_table("table.csv", [{"sentence": text, "n": n} for n, text in enumerate(TEXTS)])
    assert (
        "has no column 'text': pass one of sentence, n as --text-column." in call("table.csv").err
    )
    by_name = call("table.csv", "--text-column=sentence", "--json").json["corpus"]
    assert by_name["num_tokens"] == 66
    for option in ("text", "id"):
        error = call("table.csv", "--text-column=sentence", f"--{option}-column=other").err
        assert f"--{option}-column must be one of the columns sentence, n of table.csv" in error
    write_table("numbers.jsonl", [{"text": 3}, {"text": 4}])
    assert "must have texts in the column 'text', got other values" in call("numbers.jsonl").err


def read(outcome) -> list[dict]:
    return [json.loads(line) for line in outcome.out.splitlines()]


HEAD = "item,text\n1,w5 w6\n"
WRITTEN = {
    "semicolons": ("t.csv", b'item;text\n1;"w5 w6"\n'),
    "tabs": ("t.csv", b"item\ttext\n1\tw5 w6\n"),
    "Windows line ends": ("t.csv", HEAD.replace("\n", "\r\n").encode()),
    "a byte order mark": ("t.csv", HEAD.encode("utf-8-sig")),
    "UTF-16": ("t.csv", HEAD.encode("utf-16")),
    "UTF-16, tabs": ("t.tsv", HEAD.replace(",", "\t").encode("utf-16")),
    "UTF-16, gzipped": ("t.csv.gz", gzip.compress(HEAD.encode("utf-16"))),
    "JSON lines, a byte order mark": ("t.jsonl", b'\xef\xbb\xbf{"item": 1, "text": "w5 w6"}\n'),
    "quotes, not closed by a comma": ("t.tsv", b'item\ttext\n1\tw5 w6\n2\t5" tall\n'),
}


@pytest.mark.parametrize(("name", "data"), WRITTEN.values(), ids=WRITTEN)
def test_tables_as_programs_write_them(call, name, data):
    Path(name).write_bytes(data)
    outcome = call(name, "--id-column=item", "--format=jsonl")
    assert outcome.code == 0, outcome.err
    row = read(outcome)[0]
    assert (row["name"], row["num_tokens"]) == ("1", 2)
    assert outcome.warnings == []


@pytest.mark.parametrize("header", [",text", '"","text"'], ids=["pandas", "R"])
def test_the_numbers_of_rows_that_other_programs_write_are_a_column(call, header):
    Path("t.csv").write_text(f'{header}\n7,"w5, w6"\n8,w7\n')
    rows = read(call("t.csv", "--format=jsonl"))
    assert [row[""] for row in rows] == ["7", "8"]
    assert [row["num_tokens"] for row in rows] == [2, 1]


def test_a_first_line_of_prose_is_told_to_be_a_name(call):
    Path("t.csv").write_text("w5 w6 w7\nw8 w9\n")
    [warning] = call("t.csv").warnings
    assert "the first line of t.csv, 'w5 w6 w7', is used as a header and not scored." in warning
    Path("t.csv").write_text("text\nw5 w6 w7\nw8 w9\n")
    assert call("t.csv").warnings == []


UNREADABLE = {
    "the first row too long": ("item,text\n1,w5, w6\n", "has 3 fields in line 2, but 2 columns"),
    "the last row too long": ("item,text\n1,w5\n2,w5, w6\n", "has 3 fields in line 3, but 2"),
    "a quote that is not closed": (
        'item,text\n1,w5\n2,"w5\n3,w6\n',
        "from line 3 on: unexpected end of data. Quote texts that contain quotes",
    ),
    "quotes within quotes": (
        'item,text\n1,"w5 "w6" w7"\n',
        "from line 2 on: ',' expected after '\"'. Quote texts that contain quotes, and",
    ),
    "two columns alike": ("text,text\n1,w5\n", "t.csv has two columns 'text': rename one of them"),
    "no rows": ("item,text\n", "t.csv has no rows."),
    "nothing": ("", "t.csv is empty."),
    "a blank line first": ("\nw5\n", "t.csv must have the names of its columns in the first line."),
}


@pytest.mark.parametrize(("text", "message"), UNREADABLE.values(), ids=UNREADABLE)
def test_a_table_that_would_be_read_otherwise_than_meant_is_refused(call, text, message):
    Path("t.csv").write_text(text)
    outcome = call("t.csv")
    assert (outcome.code, outcome.out) == (2, "")
    assert message in outcome.err
    write_files("a.txt")
    assert [bool(row.get("error")) for row in call("a.txt", "t.csv", "--json").json["files"]] == [
        0,
        1,
    ]


TWICE = {
    "lines": '{"text": "w5"}\n{"text": "w5", "n": 1, "text": "w6"}\n',
    "the first line": '{"text": "w5", "text": "w6"}\n',
    "a list": '[{"text": "w5"},\n{"text": "w5", "text": "w6"}]',
    "a message": '{"text": [{"role": "user", "text": "w5", "text": "w6", "content": "w7"}]}\n',
}


@pytest.mark.parametrize("text", TWICE.values(), ids=TWICE)
def test_a_key_twice_is_refused(call, text):
    Path("t.json").write_text(text)
    outcome = call("t.json")
    assert (outcome.code, outcome.out) == (2, "")
    assert re.search("t.json.* has the key 'text' twice", outcome.err)


@pytest.mark.parametrize("argv", [[], ["--text-column=label"]])
def test_two_columns_of_parquet_alike_are_refused(call, argv):
    columns = [pyarrow.array([value]) for value in ("w5 w6", "w7", "x")]
    table = pyarrow.table(columns, names=["text", "text", "label"])
    pyarrow.parquet.write_table(table, "t.parquet")
    outcome = call("t.parquet", *argv)
    assert (outcome.code, outcome.out) == (2, "")
    assert "t.parquet has two columns 'text': rename one of them" in outcome.err


def test_a_column_is_not_its_own_context(call):
    write_table("t.csv", ROWS)
    assert "--context-column must differ from the column of the texts, got 'text'" in (
        call("t.csv", "--context-column=text").err
    )
    write_table("t.jsonl", [{"text": ["w5", "w6"]}])
    assert "must have texts in the column 'text', got other values" in call("t.jsonl").err


def test_a_carried_column_does_not_hide_a_number(call):
    write_table("table.jsonl", [{"text": TEXTS[0], "perplexity": "high", "name": "n"}])
    (row,) = map(json.loads, call("table.jsonl", "--format=jsonl").out.splitlines())
    assert (row["perplexity_given"], row["name_given"]) == ("high", "n")
    assert row["perplexity"] > 1


def test_a_carried_column_does_not_hide_another(call):
    write_table("table.jsonl", [{"text": TEXTS[0], "name": "n", "name_given": "m"}])
    (row,) = map(json.loads, call("table.jsonl", "--format=jsonl").out.splitlines())
    assert (row["name_given"], row["name_given_given"]) == ("m", "n")


def test_a_row_that_cannot_be_scored_is_named_everywhere(call):
    write_table("t.jsonl", [{"text": TEXTS[0]}, {"text": " "}])
    argv = ["t.jsonl", "--add-start-token=false"]
    outcome = call(*argv, "--json")
    (refused,) = outcome.json["refused_rows"]
    assert (outcome.code, refused["name"], refused["row"]) == (2, "t.jsonl row 1", 1)
    assert len(outcome.json["corpus"]["perplexities"]) == 1
    assert outcome.err.startswith("score.py: error: t.jsonl row 1: ")
    assert "t.jsonl row 1: " in call(*argv).out


def test_a_column_of_errors_is_not_taken_for_ours(call, tiny):
    """Of the one text that is refused, and of those that are not."""
    write_table("t.jsonl", [{"text": TEXTS[0], "error": "typo"}, {"text": " ", "error": "none"}])
    outcome = call("t.jsonl", "--format=jsonl", "--add-start-token=false")
    first, second = read(outcome)
    assert (first["error_given"], second["error_given"]) == ("typo", "none")
    assert "error" not in first and "token" in second["error"]


def test_empty_rows_are_left_out_and_counted(call):
    write_table("table.jsonl", [{"text": ""}, {"text": TEXTS[0]}, {"text": None}])
    outcome = call("table.jsonl", "--json")
    assert outcome.code == 0
    assert outcome.json["num_empty_texts"] == 2
    assert len(outcome.json["corpus"]["perplexities"]) == 1
    assert "2 empty rows were skipped." in call("table.jsonl").out
    write_table("wikitext.jsonl", [{"text": " \n"}, {"text": " w5 @-@ w6 , \n"}])
    assert call("wikitext.jsonl", "--detokenize=wikitext", "--json").json["num_empty_texts"] == 1
    write_table("empty.jsonl", [{"text": ""}, {"text": ""}])
    assert "All texts are empty." in call("empty.jsonl").err


BLANK = [
    {"text": text}
    for text in (
        "",
        " w5 @-@ w6 , " * 9 + "\n",
        " \n",
        " w7 w8 w9 . " * 9 + "\n",
        "",
        " w5 w9 " * 12,
    )
]


@pytest.mark.parametrize("asked", ["--protocol=transformers-docs", "--separator="])
def test_empty_rows_between_joined_texts_count_no_words(call, asked):
    write_table("wikitext.jsonl", BLANK)
    outcome = call("wikitext.jsonl", "--detokenize=wikitext", "--json", asked)
    assert outcome.code == 0, outcome.err
    words = sum(len(row["text"].split()) for row in BLANK)
    corpus = outcome.json["corpus"]
    tokens = corpus["num_tokens"] + (
        asked == "--protocol=transformers-docs"
    )  # the first counts too
    loss = corpus["total_nll"] / corpus["num_tokens"]
    assert corpus["adjusted_perplexity"] == pytest.approx(math.exp(loss * tokens / words))
    assert outcome.json["num_empty_texts"] == 0


def test_empty_rows_are_left_out_where_texts_are_scored_one_by_one(call):
    """Beside protocols that join them, each protocol has the number that it has alone."""
    for asked in (["--detokenize=wikitext"], []):
        write_table("wikitext.jsonl", [row for row in BLANK if asked or row["text"] != " \n"])
        names = ["sliding", "gptq", "llama.cpp", "stock"]
        both = call("wikitext.jsonl", f"--protocol={','.join(names)}", "--json", *asked)
        assert both.code == 0, both.err
        for name, row in zip(names, both.json["measurements"], strict=True):
            alone = call("wikitext.jsonl", f"--protocol={name}", "--json", *asked).json["corpus"]
            same = ("perplexity", "num_tokens", "num_texts", "bits_per_byte")
            assert [row[key] for key in same] == [pytest.approx(alone[key]) for key in same]
        table = call("wikitext.jsonl", "--protocol=sliding,gptq", *asked).out
        assert f"{3 if asked else 2} empty rows were" in table
        assert "skipped by protocols that score each text." in table


def test_ratios_are_to_the_first_of_all(call):
    """Protocols that read other words are measured apart: one has no ratio to the first of those."""
    write_table("wikitext.jsonl", BLANK)
    names = ["sliding", "lm-eval", "paloma", "stock", "megatron", "mlx-lm", "run-clm"]
    argv = ["wikitext.jsonl", f"--protocol={','.join(names)}", "--detokenize=wikitext", "--json"]
    first, *others = call(*argv).json["measurements"]
    ratios = {row["protocol"]: row.get("ratio_to_first") for row in others}
    for row in others:
        if ratio := ratios[row["protocol"]]:
            of_row = pytest.approx(row["perplexity"] / first["perplexity"])
            assert ratio["ratio"] == of_row, row["protocol"]
    assert ratios["paloma"] and ratios["stock"]
    assert not ratios["mlx-lm"] and not ratios["run-clm"]


def test_a_dataset_may_be_a_file(call):
    write_table("table.csv", ROWS)
    direct = call("table.csv", "--json").json["corpus"]
    assert call("--dataset=table.csv::train:text", "--json").json["corpus"] == direct
    two = call("--dataset=table.csv::train[:2]:text", "--json").json["corpus"]
    assert two["num_tokens"] == 60
    write_files("a.txt")
    assert (
        "must be a CSV, TSV, JSON lines or Parquet file" in call("--dataset=a.txt::train:text").err
    )


@pytest.mark.parametrize("depth", [51, 500, 20_000])
@pytest.mark.parametrize("column", ["text", "other"])
def test_json_that_nests_too_deep_is_refused(call, depth, column):
    """Before a reader runs out of its stack."""
    row = json.dumps({"text": "w5"} | {column: 0}).replace("0", "[" * depth + "]" * depth)
    Path("deep.jsonl").write_text(json.dumps({"text": "w5"}) + "\n" + row)
    for argv in (["deep.jsonl"], ["--dataset=deep.jsonl::train:text"]):
        outcome = call(*argv)
        assert (outcome.code, outcome.err.count("\n")) == (2, 1)
        assert (
            "deep.jsonl: object 2 must not nest lists and objects more than 50 levels deep"
            in outcome.err
        )


def test_brackets_in_texts_do_not_nest(call):
    write_table("t.jsonl", [{"text": "w5 " + "[{" * 100 + '\\"', "list": [[[{"a": [1]}]]] * 40}])
    (row,) = read(call("t.jsonl", "--format=jsonl"))
    assert row["list"] == [[[{"a": [1]}]]] * 40


@pytest.mark.parametrize("indent", [None, 1])
def test_json_that_is_a_list_of_objects(call, indent):
    Path("t.json").write_text(json.dumps(ROWS, indent=indent))
    rows = read(call("t.json", "--id-column=key", "--format=jsonl"))
    assert [row["name"] for row in rows] == ["000", "001", "002"]
    Path("one.json").write_text(json.dumps(ROWS[0], indent=indent))
    assert len(read(call("one.json", "--format=jsonl"))) == 1


def test_rows_of_json_may_lack_columns(call):
    write_table("t.jsonl", [{"text": "w5"}, {"text": "w6", "b": [1]}, {"b": 2}])
    rows = read(call("t.jsonl", "--format=jsonl"))
    assert [row.get("b") for row in rows] == [None, [1]]
    assert call("t.jsonl", "--json").json["num_empty_texts"] == 1


def test_words_that_look_like_dates_stay_words(call):
    write_table("t.jsonl", [{"text": "w5", "id": "2024-01-01"}])
    assert read(call("t.jsonl", "--id-column=id", "--format=jsonl"))[0]["name"] == "2024-01-01"


def test_categories_of_parquet_are_texts(call):
    pyarrow = pytest.importorskip("pyarrow")
    pyarrow.parquet = pytest.importorskip("pyarrow.parquet")
    categories = pyarrow.array(["w5 w6", "w7"]).dictionary_encode()
    pyarrow.parquet.write_table(pyarrow.table({"text": categories}), "t.parquet")
    assert call("t.parquet", "--json").json["corpus"]["num_tokens"] == 3
    Path("broken.parquet").write_bytes(b"PAR1")
    assert "broken.parquet could not be read as a table: " in call("broken.parquet").err


def test_a_broken_table_is_told(call):
    Path("late.jsonl").write_text('{"text": "w5"}\n{"text": "w6}\n', "utf-8")
    assert "late.jsonl could not be read as a table: object 2: Invalid" in call("late.jsonl").err
    Path("late.jsonl").write_text('{"text": "w5"}\n3\n', "utf-8")
    assert 'late.jsonl: object 2 must be a JSON object such as {"text"' in call("late.jsonl").err
    Path("broken.jsonl").write_text("{]\n", "utf-8")
    outcome = call("broken.jsonl")
    assert outcome.code == 2
    assert "broken.jsonl could not be read as a table: " in outcome.err


# ---- what is surely a mistake

CSV = "id,text\n1,w5 w6\n2,w7 w8\n"
PROSE = "He came, he saw. Then he went home, and slept."
WIKITEXT = " w5 @-@ w6 , w7 . \n"
MISTAKES = {
    "Windows line ends": ("a.txt", "w5 w6\r\nw7\r\n", [], "has Windows line ends (\\r\\n)"),
    "CSV as prose": ("a.txt", CSV, [], "looks like CSV, but is read as prose"),
    "TSV as prose": ("a.txt", CSV.replace(",", "\t"), [], "looks like CSV"),
    "JSON lines as prose": ("a.txt", '{"text": "w5"}\n{"text": "w6"}\n', [], "JSON lines, but"),
    "WikiText's form": ("a.txt", WIKITEXT, [], "looks like WikiText's tokenised form"),
    "lines without their spaces": (
        "a.txt",
        WIKITEXT.rstrip() + "\n",
        ["--detokenize=wikitext"],
        "has lines that --detokenize cannot convert",
    ),
    "prose to detokenise": ("a.txt", PROSE, ["--detokenize=wikitext"], "looks like prose, not"),
}
FINE = {
    "prose": (PROSE, []),
    "verse with a comma a line": ("Roses are red, violets are blue,\nSugar is sweet, and so\n", []),
    "a list of words": ("apples\npears\n", []),
    "WikiText to detokenise": (WIKITEXT, ["--detokenize=wikitext"]),
    "more of it than is examined": (" w5 @-@ w6 , w7 ; w8 \n" * 4600, ["--detokenize=wikitext"]),
    "braces": ("{curly} w5 {braces}\n", []),
}


@pytest.mark.parametrize(("name", "text", "argv", "message"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_warned_of(call, name, text, argv, message):
    Path(name).write_bytes(text.encode())
    outcome = call(name, *argv)
    assert outcome.code == 0
    (warning,) = outcome.warnings
    assert warning.startswith(f"score.py: warning: {name} ")
    assert message in warning


@pytest.mark.parametrize(("text", "argv"), FINE.values(), ids=FINE)
def test_nothing_is_said_where_nothing_is_wrong(call, text, argv):
    Path("a.txt").write_bytes(text.encode())
    assert call("a.txt", *argv).warnings == []


def test_each_kind_of_mistake_is_told_once(capsys):
    watch = suspicions.Suspicions(detokenizes=False)
    for number in range(3):
        watch.look_at(f"{number}.txt", "w5\r\n", is_file=True)
    assert capsys.readouterr().err.count("Windows line ends") == 1


def test_the_same_file_twice(call):
    write_files("a.txt")
    os.link("a.txt", "b.txt")
    outcome = call("a.txt", "b.txt", "--json")
    (warning,) = outcome.warnings
    assert "b.txt is the same file as a.txt: it counts twice." in warning
