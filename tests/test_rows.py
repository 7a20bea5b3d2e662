"""Rows that are more than a text: sentences and words with surprisals for each word, and chats."""

import csv
import io
import json
import math

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from models import make_byte_tokenizer, make_model, make_tokenizer, save
from test_parts import CHAT, PLAIN_TEMPLATE

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
    assert rows[2]["sentence"] == "w8"
    plain = rows_of(call(items, "--word-correction=none", *OF_ITEMS, "--format=csv"))
    assert [row["surprisal_bits"] for row in plain] == [row["nll_bits"] for row in plain]


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


BAD_WORDS = {
    "other words": ("猫 跑了", "got '跑了'"),
    "a word too few": ("猫", "got their end: at character 1 stands '睡了'"),
    "nothing": ("", "--words-column must be words"),
    "broken JSON": ("[1,", "got '[1,'"),
    "past the end": ("[[0, 9]]", "within the 3 of the text"),
    "overlapping": ("[[0, 2], [1, 3]]", "got '[[0, 2], [1, 3]]'"),
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
    assert outcome.code == 2 and "a --words-column of their own" in outcome.err
    assert "t.csv row 1" in outcome.out and "row 0" not in outcome.out


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
    assert {row["word_length"] for row in rows} == {"2"}, "without punctuation"
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


JOINED = {
    "an empty cell": (["w3", "", "w5"], "w3 w5", [(0, 2), None, (3, 5)]),
    "two words in a cell": (["w3", "w4  w5", "w6."], "w3 w4  w5 w6.", [(0, 2), (3, 9), (10, 13)]),
    "regions": (["w3 w4", "w5", "w6 w7"], "w3 w4 w5 w6 w7", [(0, 5), (6, 8), (9, 14)]),
    "parts of words": (["w3", "n't", "'s", "."], "w3 n't's.", [(0, 2), (3, 6), (6, 8), (8, 9)]),
}


@pytest.mark.parametrize(("cells", "text", "spans"), JOINED.values(), ids=JOINED)
def test_rows_of_one_id_are_one_text(call, metric, tmp_path, of_bytes, cells, text, spans):
    """They were scored word by word; each given row has a row, an empty one without a score."""
    read = [{"item": "a", "pos": n, "word": cell} for n, cell in enumerate(cells)]
    path = write(tmp_path, [*read, {"item": "b", "pos": 0, "word": "w9"}])
    argv = ("--text-column=word", "--id-column=item", "--words", "--format=csv")
    rows = rows_of(call(path, *argv, model=of_bytes))
    assert [row["word"] for row in rows] == [*cells, "w9"]
    assert [row["pos"] for row in rows] == [*map(str, range(len(cells))), "0"]
    given = [[span for span in spans if span], [(0, 2)]]
    result = metric.compute(predictions=[text, "w9"], model_id=of_bytes, words=given)
    nats = [value for scores in result["word_scores"] for value in scores["surprisal"]]
    bits = [row["surprisal_bits"] for row in rows]
    assert [cell == "" for cell in bits[:-1]] == [span is None for span in spans]
    shown = [float(cell) * math.log(2) for cell in bits if cell]
    assert shown == pytest.approx(nats, rel=1e-5)


def test_items_whose_rows_are_apart_are_refused(call, tmp_path):
    """Each word was scored without the words before it, in silence."""
    path = write(tmp_path, sorted(READ, key=lambda row: row["pos"]))
    outcome = call(path, "--text-column=word", "--id-column=item", "--words")
    assert outcome.code == 2 and "'a': sort the table by item" in outcome.err


# ---- chats

CHATS = [CHAT, CHAT[:2], [{"role": "system", "content": "w40"}, *CHAT[2:]]]


@pytest.fixture(scope="module")
def chatty(tmp_path_factory) -> str:
    """A model whose tokenizer has a template."""
    tokenizer = make_tokenizer(chat_template=PLAIN_TEMPLATE)
    return save(tmp_path_factory.mktemp("models") / "chatty", make_model("gpt2"), tokenizer)


@pytest.fixture
def chats(tmp_path):
    """Messages, one of which has a key more, as tables fill up for all."""
    path = tmp_path / "chats.jsonl"
    messages = [list(map(dict, chat)) for chat in CHATS]
    messages[0][0]["name"] = "Ann"
    lines = [{"id": f"c{n}", "messages": chat} for n, chat in enumerate(messages)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return [path, "--text-column=messages", "--id-column=id"]


def test_the_assistant_s_turns_are_scored_as_in_python(call, chats, chatty, metric):
    ran = call(*chats, "--format=json", model=chatty)
    assert ran.code == 0, ran.err
    got = ran.json["corpus"]
    expected = metric.compute(predictions=CHATS, model_id=chatty)
    assert got["perplexity"] == expected["perplexity"]
    assert got["texts_digest"] == expected["texts_digest"]


@pytest.mark.parametrize("as_dataset", [False, True])
def test_keys_that_arrow_adds_are_no_part_of_a_chat(call, tmp_path, as_dataset):
    """Its objects have the keys of all: arguments with two more of None were scored."""
    counted = "m['content'] + ' w20' * (m.tool_calls[0].arguments | length if m.tool_calls else 0)"
    template = PLAIN_TEMPLATE.replace("m['content']", counted)
    tokenizer = make_tokenizer(chat_template=template)
    model = save(tmp_path / "model", make_model("gpt2"), tokenizer)
    chats = [list(map(dict, CHAT)) for _ in range(2)]
    for chat, arguments in zip(chats, ({"a": "w5"}, {"b": "w6", "c": "w7"})):
        chat[1]["tool_calls"] = [{"arguments": arguments}]
    (tmp_path / "tables").mkdir()
    path = tmp_path / "tables" / "chats.parquet"
    pq.write_table(pa.Table.from_pylist([{"messages": chat} for chat in chats]), path)
    given = [path, "--text-column=messages"]
    if as_dataset:
        given = [f"--dataset={path.parent}::train:messages"]
    ran = call(*given, "--format=json", model=model)
    assert ran.code == 0, ran.err
    lines = tmp_path / "chats.jsonl"
    lines.write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in chats))
    expected = call(lines, "--text-column=messages", "--format=json", model=model)
    assert ran.json["corpus"]["texts_digest"] == expected.json["corpus"]["texts_digest"]


def test_a_citation_says_that_the_rest_of_a_chat_is_not_scored(call, chats, chatty):
    """It said only "in 3 texts (scored separately)"."""
    cited = call(*chats, "--cite", model=chatty).out
    layout = "(scored separately; of each chat the assistant's turns, boundary joint)"
    assert f"in 3 texts {layout}, " in cited


def test_tokens_are_those_of_the_text_as_written(call, chats, chatty):
    printed = call(*chats, "--tokens", "--format=jsonl", model=chatty).out.splitlines()
    tokens = [row for row in map(json.loads, printed) if row["nll_nats"] is not None]
    of_second = [row["token"] for row in tokens if row["name"] == "c1"]
    assert of_second == ["w7", "w8", "w9", "<eos>"]
    words = call(*chats, "--words", "--format=csv", model=chatty).out.splitlines()[1:]
    assert [row.split(",")[3] for row in words if row.startswith("c1,")] == ["w7", "w8", "w9"]
