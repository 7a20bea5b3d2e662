"""The tables of docs/python.md name every key that comes out of a call, and no others."""

import re
from pathlib import Path

import pytest
from models import make_byte_tokenizer, make_model, make_tokenizer, random_text

DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "python.md"
CHAT = [{"role": "user", "content": "w5 w6"}, {"role": "assistant", "content": " w7 w8"}]
TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% if m['role'] == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"
TEXTS = [random_text(40, seed) for seed in range(2)]


@pytest.fixture(scope="module")
def results() -> list[dict]:
    """Results that have all keys among them."""
    from perplexity_sliding import PerplexitySliding

    metric = PerplexitySliding()
    model, tokenizer = make_model("gpt2"), make_tokenizer()
    of_chats = make_tokenizer()
    of_chats.chat_template = TEMPLATE
    other = {"model": make_model("gpt2", seed=1), "tokenizer": tokenizer}
    bytewise = {"model": make_model("gpt2", vocab_size=300), "tokenizer": make_byte_tokenizer()}
    calls = [
        {"protocol": "llama.cpp", "max_length": 8, "detokenizer": "wikitext", "return_totals": "texts", "return_token_scores": ["entropy", "top1"]},
        {"words": True, "contexts": "w3 w4 "},
        {"predictions": [CHAT], "tokenizer": of_chats, "return_token_scores": True},
        {"context_lengths": [4, 8], "return_totals": True},
        {"stride": [4, 8]},
        {"reference": other, "margin": 0.01, "return_token_scores": True},
        {"reference": other, "protocol": "llama.cpp", "max_length": 8},
        {"reference": bytewise, "return_token_scores": True, "margin": 0.01},
    ]  # fmt: skip
    good = {"predictions": TEXTS, "model": model, "tokenizer": tokenizer, "identify": True}
    return [metric.compute(**(good | call)) for call in calls]


def keys_in(section: str) -> set[str]:
    """Keys in the first column of the table below a heading."""
    text = DOCUMENT.read_text("utf-8").partition(f"{section}\n")[2]
    rows = re.search(r"^\| key .*?\n(\n|\Z)", text, re.M | re.S)[0].splitlines()[2:]
    return {key for row in rows for key in re.findall(r"`(\w+)`", row.split(" | ")[0])}


def test_the_table_names_what_a_result_holds(results):
    assert set().union(*results) == keys_in("## Keys of a result")


def test_a_result_begins_with_what_is_reported(results):
    first = ["perplexity", "perplexity_interval", "interval_sample", "interval_scope"]
    assert list(results[1])[:5] == [*first, "bits_per_byte"]


def test_the_table_names_what_a_comparison_holds(results):
    came_out = [result["comparison"] for result in results if "comparison" in result]
    assert set().union(*came_out) == keys_in("### Keys of `comparison`")
