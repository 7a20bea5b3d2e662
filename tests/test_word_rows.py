"""A table of sentences with contexts becomes a table of word surprisals by one command."""

import csv
import io
import json
import re

import pytest
from models import make_byte_tokenizer, make_model, save

from perplexity_sliding.cli import options
from perplexity_sliding.cli.reading import ReadText
from perplexity_sliding.cli.rows import of_parts, without_punctuation

TABLE = "item,condition,context,sentence\n7,x,w3 w4 ,w5 w6\n8,y,w7 ,w8\n"


@pytest.fixture
def items(tmp_path):
    path = tmp_path / "items.csv"
    path.write_text(TABLE, encoding="utf-8")
    return path


def rows_of(out):
    return list(csv.DictReader(io.StringIO(out)))


def test_a_row_for_every_word(call, items, metric, gpt2, tokenizer):
    ran = call(
        *(items, "--words", "--text-column", "sentence", "--context-column", "context"),
        *("--id-column", "item", "--format", "csv"),
    )
    rows = rows_of(ran.out)
    result = metric.compute(
        predictions=["w5 w6", "w8"],
        contexts=["w3 w4 ", "w7 "],
        words=True,
        model=gpt2,
        tokenizer=tokenizer,
    )
    scores = result["word_scores"]
    expected = [nats for of_text in scores for nats in of_text["surprisal"]]
    assert [row["word"] for row in rows] == ["w5", "w6", "w8"]
    assert [(row["name"], row["item"], row["condition"]) for row in rows] == [
        ("7", "7", "x"),
        ("7", "7", "x"),
        ("8", "8", "y"),
    ]
    assert [float(row["surprisal_nats"]) for row in rows] == pytest.approx(expected, rel=1e-5)
    bits = [float(row["surprisal_bits"]) for row in rows]
    assert bits == pytest.approx([nats / 0.6931471805599453 for nats in expected], rel=1e-5)
    places = [slice(int(row["first"]), int(row["last"])) for row in rows]
    assert ["w5 w6"[places[0]], "w5 w6"[places[1]], "w8"[places[2]]] == ["w5", "w6", "w8"]
    assert [row["first"] for row in rows] == ["0", "3", "0"], "in the text, after its context"
    assert [row["number"] for row in rows] == ["0", "1", "0"]


CHINESE = ["我喜欢读书", "猫睡了"]
WORDS = {
    "words with spaces between": ["我 喜欢 读书", "猫 睡了"],
    "lists": [["我", "喜欢", "读书"], ["猫", "睡了"]],
    "regions": [[[0, 1], [1, 3], [3, 5]], [[0, 1], [1, 3]]],
}


@pytest.fixture(scope="module")
def of_bytes(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("models") / "bytes"
    return save(folder, make_model("gpt2", vocab_size=300), make_byte_tokenizer())


@pytest.mark.parametrize("words", WORDS.values(), ids=WORDS)
@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_words_come_from_a_column(call, metric, tmp_path, of_bytes, ending, words):
    """Of texts that are written without spaces, which are warned of otherwise."""
    path = tmp_path / f"t.{ending}"
    rows = [{"text": text, "parts": of_text} for text, of_text in zip(CHINESE, words)]
    if ending == "jsonl":
        path.write_text("\n".join(map(json.dumps, rows)), "utf-8")
    else:
        with path.open("w", encoding="utf-8", newline="") as file:
            table = csv.writer(file)
            table.writerow(rows[0])
            cells = [c if isinstance(c, str) else json.dumps(c) for c in words]
            table.writerows(zip(CHINESE, cells))
    ran = call(path, "--words-column=parts", "--format=jsonl", model=of_bytes)
    assert ran.warnings == []
    written = [json.loads(line) for line in ran.out.splitlines()]
    assert [row["word"] for row in written] == ["我", "喜欢", "读书", "猫", "睡了"]
    given = [["我", "喜欢", "读书"], ["猫", "睡了"]]
    result = metric.compute(predictions=CHINESE, model_id=of_bytes, words=given)
    expected = [value for scores in result["word_scores"] for value in scores["surprisal"]]
    assert [row["surprisal_nats"] for row in written] == pytest.approx(expected, rel=1e-5)
    (warning,) = call(path, "--words", "--text-column=text", model=of_bytes).warnings
    assert "whole sentences count as words" in warning and "--words-column" in warning


BAD_WORDS = {
    "other words": ("猫 跑了", "got '跑了'"),
    "a word too few": ("猫", "after the last one comes '睡了'"),
    "nothing": ("", "--words-column must be words"),
    "broken JSON": ("[1,", "--words-column must be valid JSON in"),
    "past the end": ("[[0, 9]]", "within the 3 of the text"),
    "overlapping": ("[[0, 2], [1, 3]]", r"got \[1, 3\]"),
}


@pytest.mark.parametrize(("cell", "message"), BAD_WORDS.values(), ids=BAD_WORDS)
def test_words_that_are_not_the_texts(call, tmp_path, of_bytes, cell, message):
    path = tmp_path / "t.jsonl"
    path.write_text(json.dumps({"text": CHINESE[1], "parts": cell}), "utf-8")
    ran = call(path, "--words-column=parts", model=of_bytes)
    assert ran.code == 2
    assert re.search(message, ran.err), ran.err


def test_a_text_has_no_column_of_words(call, tmp_path):
    (tmp_path / "a.txt").write_text("w3 w4", "utf-8")
    (tmp_path / "b.jsonl").write_text(json.dumps({"text": "w3", "parts": "w3"}), "utf-8")
    assert "--words-column requires a table" in call(tmp_path / "a.txt", "--words-column=parts").err
    ran = call(tmp_path / "a.txt", tmp_path / "b.jsonl", "--words-column=parts")
    assert ran.code == 2 and "--words-column requires a table" in ran.err and '"w3"' in ran.out


def test_a_row_for_every_token(call, items):
    ran = call(
        *(items, "--tokens", "--text-column", "sentence", "--id-column", "item"),
        *("--format", "csv"),
    )
    rows = rows_of(ran.out)
    assert [(row["name"], row["condition"], row["token"].strip()) for row in rows] == [
        ("7", "x", "w5"),
        ("7", "x", "w6"),
        ("8", "y", "w8"),
    ]


def test_the_table_for_people(call, items):
    out = call(items, "--words", "--text-column", "sentence", "--quiet").out
    assert '"w5"' in out and '"w8"' in out and "entropy" in out


def test_a_word_without_a_score(call, tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("w3 w4", encoding="utf-8")
    ran = call(path, "--words", "--add-start-token", "false", "--format", "csv")
    first, second = rows_of(ran.out)
    assert first["surprisal_bits"] == "" and float(second["surprisal_bits"]) > 0
    assert "–" in call(path, "--words", "--add-start-token", "false").out


def test_plain_sums(call, items):
    """All that a server's words have, whose vocabulary nobody sums over."""
    arguments = ("--text-column", "sentence", "--format", "csv")
    of_spaces = {"model": options.BUNDLED_MODEL}  # whose tokens begin with a space
    plain = rows_of(call(items, *arguments, "--word-correction", "none", **of_spaces).out)
    corrected = rows_of(call(items, *arguments, "--words", **of_spaces).out)
    assert [row["surprisal_nats"] for row in plain] == [row["nll_nats"] for row in plain]
    assert [row["nll_nats"] for row in plain] == [row["nll_nats"] for row in corrected]
    assert plain[0]["surprisal_nats"] != corrected[0]["surprisal_nats"]


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--words", "--num-alternatives", "2"], "--words and --num-alternatives cannot"),
        (["--words", "--tokens"], "--words and --tokens cannot be combined"),
        (["--words", "--stride", "4,8"], "--words and several protocols, windows or strides"),
        (["--boundary", "healed"], "--boundary must be left out without --context-column"),
        (["--word-correction", "all"], "invalid choice: 'all'"),
    ],
)
def test_what_does_not_go_together(call, items, arguments, message):
    ran = call(items, "--text-column", "sentence", *arguments)
    assert ran.code == 2
    assert message in ran.err


def test_words_carry_their_length_and_the_surprisal_before(call, items):
    """The first word of a text has none before it, whatever ended the text before."""
    ran = call(items, "--text-column", "sentence", "--words", "--format", "jsonl")
    rows = [json.loads(line) for line in ran.out.splitlines()]
    for before, row in zip([None, *rows], rows):
        expected = None if row["number"] == 0 else before["surprisal_bits"]
        assert row["previous_surprisal_bits"] == expected
        assert row["word_length"] == len(row["word"])
        assert "previous_2_surprisal_bits" not in row
    assert sum(row["number"] == 0 for row in rows) > 1 and any(row["number"] > 0 for row in rows)


def test_several_lags(call, items):
    """Each row has the surprisals of the words one and two places before it in its text."""
    items.write_text("sentence\nw5 w6 w7 w8 w9\nw3 w4 w5\n", "utf-8")
    argv = (items, "--text-column", "sentence", "--words", "--lags", "2", "--format", "jsonl")
    rows = [json.loads(line) for line in call(*argv).out.splitlines()]
    assert max(row["number"] for row in rows) > 2
    for place, row in enumerate(rows):
        for lag, name in ((1, "previous"), (2, "previous_2")):
            before = rows[place - lag] if row["number"] >= lag else {}
            for unit in ("bits", "nats"):
                assert row[f"{name}_surprisal_{unit}"] == before.get(f"surprisal_{unit}")


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (["--lags", "2"], "texts"),
        (["--lags", "2", "--tokens", "--format", "csv"], "tokens"),
        (["--lags", "2", "--words", "--format", "latex"], "words"),
        (["--lags", "0", "--words", "--format", "csv"], "at least 1"),
    ],
)
def test_lags_are_of_rows_of_words(call, items, argv, named):
    ran = call(items, "--text-column", "sentence", *argv)
    assert ran.code == 2 and "--lags" in ran.err and named in ran.err


@pytest.mark.parametrize(
    ("word", "letters"),
    [
        ("kind.", "kind"),
        ("“well-known,”", "well-known"),
        ("don't", "don't"),
        ("—", ""),
        ("$5", "$5"),
        ("¿qué?", "qué"),
    ],
)
def test_the_length_of_a_word_is_without_punctuation(word, letters):
    assert without_punctuation(word) == letters
    (row,) = of_parts(
        ReadText("t", None), {"words": [word], "nll": [1.0], "surprisal": [2.0]}, "word"
    )
    assert row["word"] == word and row["word_length"] == len(letters)


@pytest.mark.parametrize("unit", ["--words", "--tokens"])
def test_rows_carry_their_sentence_and_context_on_request(call, items, unit):
    """Under the names that the table gives them."""
    argv = [items, "--text-column", "sentence", "--context-column", "context", unit]
    rows = rows_of(call(*argv, "--keep-text", "--format", "csv").out)
    kept = {row["name"][-1]: (row["context"], row["sentence"]) for row in rows}
    assert kept == {"0": ("w3 w4 ", "w5 w6"), "1": ("w7 ", "w8")}
    without = rows_of(call(*argv, "--format", "csv").out)
    assert {*rows[0]} - {*without[0]} == {"context", "sentence"}


def test_a_file_is_kept_as_text(call, tmp_path):
    (tmp_path / "a.txt").write_text("w3 w4", encoding="utf-8")
    rows = rows_of(call(tmp_path / "a.txt", "--words", "--keep-text", "--format", "csv").out)
    assert [row["text"] for row in rows] == ["w3 w4", "w3 w4"]


def test_text_is_kept_in_rows_alone(call, items):
    ran = call(items, "--text-column", "sentence", "--keep-text")
    assert ran.code == 2
    assert "--keep-text requires --format jsonl, csv, tsv, parquet, got text" in ran.err
