"""A table of sentences, or of words, becomes a table of word surprisals by one command."""

import csv
import io
import json
import math
import re

import pytest
from models import make_byte_tokenizer, make_model, save

from perplexity_sliding.cli.rows import without_punctuation

TABLE = "item,condition,context,sentence\n7,x,w3 w4 ,w5 w6\n8,y,w7 ,w8\n"


@pytest.fixture
def items(tmp_path):
    path = tmp_path / "items.csv"
    path.write_text(TABLE, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def of_bytes(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("models") / "bytes"
    return save(folder, make_model("gpt2", vocab_size=300), make_byte_tokenizer())


def rows_of(outcome) -> list[dict]:
    assert outcome.code == 0, outcome.err
    return list(csv.DictReader(io.StringIO(outcome.out)))


def write(tmp_path, rows: list[dict], name: str = "t.csv"):
    path = tmp_path / name
    with path.open("w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, list(rows[0]))
        table.writeheader()
        table.writerows(rows)
    return path


OF_ITEMS = ("--text-column=sentence", "--context-column=context", "--id-column=item")


def test_a_row_for_every_word_in_bits(call, items, metric, gpt2, tokenizer):
    rows = rows_of(call(items, "--words", *OF_ITEMS, "--format=csv", "--keep-text"))
    result = metric.compute(
        predictions=["w5 w6", "w8"],
        contexts=["w3 w4 ", "w7 "],
        words=True,
        model=gpt2,
        tokenizer=tokenizer,
    )
    nats = [value for of_text in result["word_scores"] for value in of_text["surprisal"]]
    bits = [value / math.log(2) for value in nats]
    assert [row["word"] for row in rows] == ["w5", "w6", "w8"]
    assert [(row["name"], row["condition"]) for row in rows] == [("7", "x"), ("7", "x"), ("8", "y")]
    assert [float(row["surprisal_bits"]) for row in rows] == pytest.approx(bits, rel=1e-5)
    assert not [name for name in rows[0] if name.endswith("_nats")], "one unit, not two"
    places = [slice(int(row["first"]), int(row["last"])) for row in rows]
    assert ["w5 w6"[places[0]], "w5 w6"[places[1]], "w8"[places[2]]] == ["w5", "w6", "w8"]
    assert [row["number"] for row in rows] == ["0", "1", "0"]
    before = [row["previous_surprisal_bits"] for row in rows]
    assert (before[0], before[2]) == ("", "") and float(before[1]) == pytest.approx(bits[0])
    assert rows[2]["sentence"] == "w8" and rows[2]["word_length"] == "2"
    plain = rows_of(call(items, "--word-correction=none", *OF_ITEMS, "--format=csv"))
    assert [row["surprisal_bits"] for row in plain] == [row["nll_bits"] for row in plain]


def test_the_table_for_people(call, items):
    out = call(items, "--words", *OF_ITEMS).out
    assert "surprisal, bits" in out and "nats" not in out and '"w5"' in out


# ---- words that are given

CHINESE = ["我喜欢读书", "猫睡了"]
WORDS = {
    "words with spaces between": ["我 喜欢 读书", "猫 睡了"],
    "lists": [["我", "喜欢", "读书"], ["猫", "睡了"]],
    "spans": [[[0, 1], [1, 3], [3, 5]], [[0, 1], [1, 3]]],
    "regions": ["我|喜欢|读书", " 猫 | 睡了 |"],
}


@pytest.mark.parametrize("words", WORDS.values(), ids=WORDS)
def test_words_come_from_a_column(call, metric, tmp_path, of_bytes, words):
    """Of texts that are written without spaces, which are warned of otherwise."""
    cells = [cell if isinstance(cell, str) else json.dumps(cell) for cell in words]
    path = write(tmp_path, [{"text": t, "parts": cell} for t, cell in zip(CHINESE, cells)])
    outcome = call(path, "--words-column=parts", "--format=csv", model=of_bytes)
    assert outcome.warnings == []
    rows = rows_of(outcome)
    assert [row["word"] for row in rows] == ["我", "喜欢", "读书", "猫", "睡了"]
    assert "parts" not in rows[0], "regions are not repeated in each row"
    given = [["我", "喜欢", "读书"], ["猫", "睡了"]]
    result = metric.compute(predictions=CHINESE, model_id=of_bytes, words=given)
    nats = [value for scores in result["word_scores"] for value in scores["surprisal"]]
    shown = [float(row["surprisal_bits"]) * math.log(2) for row in rows]
    assert shown == pytest.approx(nats, rel=1e-5)
    (warning,) = call(path, "--words", "--text-column=text", model=of_bytes).warnings
    assert "whole sentences count as words" in warning and "--words-column" in warning


def test_regions_of_several_words_are_one_word_each(call, tmp_path):
    path = write(tmp_path, [{"text": "w3 w4 w5 w6", "parts": "w3 w4|w5|w6"}])
    rows = rows_of(call(path, "--words-column=parts", "--format=csv"))
    assert [row["word"] for row in rows] == ["w3 w4", "w5", "w6"]


BAD_WORDS = {
    "other words": ("猫 跑了", "got '跑了'"),
    "a word too few": ("猫", "after the last one comes '睡了'"),
    "nothing": ("", "--words-column must be words"),
    "broken JSON": ("[1,", "got '[1,'"),
    "past the end": ("[[0, 9]]", "within the 3 of the text"),
    "overlapping": ("[[0, 2], [1, 3]]", "got [[0, 2], [1, 3]]"),
}


@pytest.mark.parametrize(("cell", "message"), BAD_WORDS.values(), ids=BAD_WORDS)
def test_words_that_are_not_the_texts_stop_only_their_row(call, tmp_path, of_bytes, cell, message):
    """An empty cell ended the whole run, though a typo in it did not."""
    rows = [{"text": CHINESE[1], "parts": cell}, {"text": CHINESE[0], "parts": "我 喜欢 读书"}]
    path = write(tmp_path, rows)
    outcome = call(path, "--words-column=parts", "--format=jsonl", model=of_bytes)
    assert outcome.code == 2 and message in outcome.err
    assert [json.loads(line)["word"] for line in outcome.out.splitlines()] == ["我", "喜欢", "读书"]


def test_regions_in_the_sentence_are_refused(call, tmp_path):
    path = write(tmp_path, [{"text": "w3 w4|w5|w6."}, {"text": "w3 | w4"}])
    outcome = call(path, "--words", "--format=csv")
    assert outcome.code == 2 and "name it by --words-column" in outcome.err
    assert "t.csv row 1" in outcome.out and "row 0" not in outcome.out


def test_a_text_has_no_column_of_words(call, tmp_path):
    (tmp_path / "a.txt").write_text("w3 w4", "utf-8")
    (tmp_path / "b.jsonl").write_text(json.dumps({"text": "w3", "parts": "w3"}), "utf-8")
    assert "--words-column requires a table" in call(tmp_path / "a.txt", "--words-column=parts").err
    outcome = call(tmp_path / "a.txt", tmp_path / "b.jsonl", "--words-column=parts")
    assert outcome.code == 2 and '"w3"' in outcome.out


# ---- one word a row

READ = [
    *({"item": "a", "pos": n, "word": w, "rt": 300 + n} for n, w in enumerate(["w3", "w4", "w5"])),
    *({"item": "b", "pos": n, "word": w, "rt": 400 + n} for n, w in enumerate(["w6", "w7.", "w8"])),
]


def test_rows_of_one_word_are_joined_by_their_id(call, metric, tiny, tmp_path):
    """As reading times are published; each row gets the surprisal of its word in its sentence."""
    path = write(tmp_path, READ)
    argv = (path, "--text-column=word", "--id-column=item", "--words", "--format=csv")
    outcome = call(*argv)
    rows = rows_of(outcome)
    assert outcome.warnings == []
    assert [(row["item"], row["pos"], row["rt"]) for row in rows] == [
        (row["item"], str(row["pos"]), str(row["rt"])) for row in READ
    ]
    assert [row["word"] for row in rows] == [row["word"] for row in READ]
    texts = ["w3 w4 w5", "w6 w7. w8"]
    result = metric.compute(predictions=texts, model_id=tiny, words=True)
    nats = [value for scores in result["word_scores"] for value in scores["surprisal"]]
    shown = [float(row["surprisal_bits"]) * math.log(2) for row in rows]
    assert shown == pytest.approx(nats, rel=1e-5)


def test_without_that_a_table_of_words_is_warned_of(call, tmp_path):
    """It was scored word by word, in silence."""
    path = write(tmp_path, READ)
    for argv in (["--words"], ["--id-column=item"]):
        (warning,) = call(path, "--text-column=word", *argv).warnings
        assert "hold one word each" in warning and "--id-column" in warning
    sentences = [{"text": "w3 w4"} for _ in range(6)]
    assert call(write(tmp_path, sentences)).warnings == []
    chinese = [{"text": CHINESE[0]} for _ in range(6)]
    assert not re.search("one word", call(write(tmp_path, chinese)).err)


def test_sentences_that_share_an_id_stay_texts_of_their_own(call, tmp_path):
    rows = [{"item": "a", "text": "w3 w4"}, {"item": "a", "text": "w5 w6"}]
    outcome = call(write(tmp_path, rows), "--id-column=item", "--words", "--format=csv")
    assert [row["number"] for row in rows_of(outcome)] == ["0", "1", "0", "1"]


@pytest.mark.parametrize(
    ("word", "letters"), [("dog.", "dog"), ("“well-known”", "well-known"), ("…", "")]
)
def test_the_length_of_a_word_is_without_punctuation(word, letters):
    assert without_punctuation(word) == letters
