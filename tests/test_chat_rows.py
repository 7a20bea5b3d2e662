"""Chats from JSON lines on the command line."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from models import make_model, make_tokenizer, save
from test_parts import CHAT, PLAIN_TEMPLATE

CHATS = [CHAT, CHAT[:2], [{"role": "system", "content": "w40"}, *CHAT[2:]]]


@pytest.fixture(scope="module")
def chatty(tmp_path_factory):
    """Two models whose tokenizer has a template."""
    folder, tokenizer = (
        tmp_path_factory.mktemp("models"),
        make_tokenizer(chat_template=PLAIN_TEMPLATE),
    )
    spreads = {"tuned": 0.3, "base": 0.33}
    return {
        name: save(folder / name, make_model("gpt2", spread=spread), tokenizer)
        for name, spread in spreads.items()
    }


@pytest.fixture
def rows(tmp_path):
    """Messages, one of which has a key more, as tables fill up for all."""
    path = tmp_path / "chats.jsonl"
    chats = [list(map(dict, chat)) for chat in CHATS]
    chats[0][0]["name"] = "Ann"
    lines = [{"id": f"c{n}", "messages": chat} for n, chat in enumerate(chats)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return [path, "--text-column=messages", "--id-column=id"]


def test_the_assistant_s_turns_are_scored_as_in_python(call, rows, chatty, metric):
    ran = call(*rows, "--format=json", model=chatty["tuned"])
    assert ran.code == 0, ran.err
    got = ran.json["corpus"]
    expected = metric.compute(predictions=CHATS, model_id=chatty["tuned"])
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


def test_a_citation_says_that_the_rest_of_a_chat_is_not_scored(call, rows, chatty):
    """It said only "in 3 texts (scored separately)"."""
    cited = call(*rows, "--cite", model=chatty["tuned"]).out
    layout = "(scored separately; of each chat the assistant's turns, boundary joint)"
    assert f"in 3 texts {layout}, " in cited


def test_tokens_are_those_of_the_text_as_written(call, rows, chatty):
    printed = call(*rows, "--tokens", "--format=jsonl", model=chatty["tuned"]).out.splitlines()
    tokens = [row for row in map(json.loads, printed) if row["nll_nats"] is not None]
    of_second = [row["token"] for row in tokens if row["name"] == "c1"]
    assert of_second == ["w7", "w8", "w9", "<eos>"]
    words = call(*rows, "--words", "--format=csv", model=chatty["tuned"]).out.splitlines()[1:]
    assert [row.split(",")[3] for row in words if row.startswith("c1,")] == ["w7", "w8", "w9"]


def test_a_fine_tune_against_its_base(call, rows, chatty, metric):
    ran = call(*rows, "--reference", chatty["base"], "--format=json", model=chatty["tuned"])
    [got] = ran.json["models"]
    expected = metric.compute(
        predictions=CHATS, model_id=chatty["tuned"], reference=chatty["base"], identify=True
    )
    assert got["comparison"] == expected["comparison"]
    shown = call(*rows, "--reference", chatty["base"], model=chatty["tuned"])
    assert shown.code == 0 and "perplexity is" in shown.out


def test_prompts_and_answers_against_the_base(call, tmp_path, chatty, metric):
    path = tmp_path / "pairs.csv"
    path.write_text("context,text\nw3 w4,w5 w6\nw7,w8\n")
    ran = call(
        *(path, "--context-column=context", "--context-separator", " ", "--format=json"),
        *("--reference", chatty["base"]),
        model=chatty["tuned"],
    )
    expected = metric.compute(
        predictions=[" w5 w6", " w8"],
        contexts=["w3 w4", "w7"],
        model_id=chatty["tuned"],
        reference=chatty["base"],
        identify=True,
    )
    shown = ran.json["models"][0]["comparison"]
    assert shown == expected["comparison"]


def test_chats_are_no_tokenised_prose(call, rows, chatty):
    ran = call(*rows, "--detokenize=wikitext", model=chatty["tuned"])
    assert ran.code == 2 and "--detokenize must be left out with chats" in ran.err
