"""From nlls to numbers: aggregation and uncertainty; and the shape of a result."""

import dataclasses
import itertools
import json
import math
import re
from pathlib import Path

import evaluate
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from models import make_byte_tokenizer, make_model, make_tokenizer, make_uniform_model, random_text

from perplexity_sliding.results.totals import (
    Aggregation,
    TextScores,
    Totals,
    ratio_of_perplexities,
)


def summarize(texts, *average, **others) -> dict:
    """Return the result of texts; see `Aggregation`."""
    return Totals.of(texts, Aggregation(*average, **others)).result()


def text(*windows, weights=None, **units) -> TextScores:
    """Scores of a text given window by window; the units are one a token unless given."""
    windows = [np.array(window, dtype=np.float32) for window in windows]
    size = sum(map(len, windows))
    units = dict.fromkeys(("num_tokens", "num_bytes", "num_characters", "num_words"), size) | units
    weights = weights or [max(1, len(window) - 1) for window in windows]
    sizes = [len(window) for window in windows]
    units = {"first_targets": [0, *itertools.accumulate(sizes[:-1])], "stream_length": size} | units
    return TextScores(window_nlls=windows, guide_weights=weights, **units)


# ---- sums and means


def test_the_corpus_weighs_tokens_and_the_mean_weighs_texts():
    result = summarize([text([1.0, 1.0, 1.0]), text([3.0])])
    assert result["perplexities"] == pytest.approx([math.e, math.e**3])
    assert result["mean_perplexity"] == pytest.approx((math.e + math.e**3) / 2)
    assert result["perplexity"] == pytest.approx(math.exp(6 / 4))
    assert result["total_nll"] == 6
    assert (result["num_tokens"], result["num_windows"]) == (4, 2)


@pytest.mark.parametrize(
    ("aggregate", "expected"),
    [
        ("tokens", math.exp((1 + 1 + 1 + 5) / 4)),
        ("window means", math.exp((1 + 5) / 2)),
        # weights 4 and 1, as given below
        ("guide weights", math.exp((4 * 1 + 1 * 5) / 5)),
        ("capped", math.exp(2)),
    ],
)
def test_ways_to_aggregate(aggregate, expected):
    texts = [text([1, 1, 1], [5], weights=[4, 1])]
    assert summarize(texts, aggregate)["perplexity"] == pytest.approx(expected)


def test_an_impossible_token_without_weight_does_not_count():
    """At stride 1 the guide's present form gives nothing but the first window any weight."""
    result = summarize([text([1, 2, 3], [math.inf], weights=[2, 0])], "guide weights")
    assert result["perplexity"] == pytest.approx(math.exp(2))
    assert result["total_nll"] == math.inf


def test_sums_are_taken_in_double_precision():
    """In float32, 2**24 + 1 is 2**24: every small nll after the large one would be lost."""
    result = summarize([text([2.0**24] + [1.0] * 1000, [0.5] * 10)])
    assert result["total_nll"] == 2**24 + 1000 + 5


def test_units():
    result = summarize(
        [text([2, 2], num_tokens=2, num_bytes=10, num_characters=8, num_words=1), text([4], num_bytes=3, num_characters=1, num_words=3)]
    )  # fmt: skip
    nll = 8.0
    assert result["bits_per_byte"] == pytest.approx(nll / 13 / math.log(2))
    assert result["bits_per_character"] == pytest.approx(nll / 9 / math.log(2))
    assert result["word_perplexity"] == pytest.approx(math.exp(nll / 4))


def test_tokens_that_were_not_scored_count_as_average_ones():
    result = summarize([text([2, 4], num_tokens=3, num_bytes=6)])
    assert result["bits_per_byte"] == pytest.approx(3 * 3 / 6 / math.log(2))


# ---- uncertainty


@given(
    st.lists(st.lists(st.floats(0, 50, width=32), min_size=1, max_size=20), min_size=4, max_size=20)
)
@settings(max_examples=50)
def test_the_interval_holds_the_estimate(nlls):
    result = summarize([text(of_text) for of_text in nlls])
    if result["perplexity_interval"] is None:
        return
    low, high = result["perplexity_interval"]
    assert low <= result["perplexity"] * (1 + 1e-9)
    assert result["perplexity"] <= high * (1 + 1e-9)
    assert result["perplexity_stderr"] >= 0


# ---- totals that add up

AGGREGATIONS = {
    "tokens": Aggregation(block_tokens=20),
    "the guide's first form": Aggregation("window means", block_tokens=20),
    "the guide's present form": Aggregation("guide weights", block_tokens=20),
    "Megatron's": Aggregation("capped", block_tokens=20, word_counts_given=True),
    "the stock metric's": Aggregation("texts", block_tokens=20),
    "llama.cpp's": Aggregation(error="population", block_tokens=20),
    "mlx-lm's": Aggregation(error="sample", block_tokens=20, word_counts_given=True),
}


def corpus(lengths, seed=0):
    """Texts of windows of up to 25 tokens, as a window and stride would cut them."""
    generator = np.random.default_rng(seed)
    texts = []
    for length in lengths:
        nlls = generator.gamma(2.0, generator.uniform(0.5, 2.5), length)
        windows = np.split(nlls, range(25, length, 25))
        words = int(generator.integers(1, length + 1))
        texts.append(
            text(*windows, num_bytes=4 * length, num_characters=3 * length, num_words=words)
        )
    return texts


LENGTHS = {"many short": [40, 60, 70] * 8, "few long": [300, 20, 9], "one": [500]}


@pytest.mark.parametrize("aggregation", AGGREGATIONS.values(), ids=AGGREGATIONS)
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
def test_shards_add_up_to_the_corpus(aggregation, lengths):
    texts = corpus(lengths)
    whole = Totals.of(
        texts, aggregation, num_forward_tokens=len(texts), identity={"signature": "s"}
    )
    shards = [
        Totals.of([scored], aggregation, num_forward_tokens=1, identity={"signature": "s"})
        for scored in texts
    ]
    added = sum(shards[1:], start=shards[0]).result()
    expected = whole.result()
    assert list(added) == list(expected)
    assert added["signature"] == "s"
    for name, value in expected.items():
        same = value if isinstance(value, str | None) else pytest.approx(value, rel=1e-12)
        assert added[name] == same, name
    if aggregation.error:
        nlls = np.concatenate([window for scored in texts for window in scored.window_nlls])
        stderr = nlls.std(ddof=1) / math.sqrt(len(nlls)) * math.exp(nlls.mean(dtype=np.float64))
        assert added["tool_stderr"] == pytest.approx(stderr, rel=1e-5)


# ---- the numbers per byte, character and word


def test_only_scored_tokens_count_where_their_characters_are_known():
    """As nanochat's evaluate_bpb; words cost what their bytes do."""
    half = text(
        [2.0, 4.0], stream_length=4, num_bytes=20, num_characters=10, num_words=5,
        scored_nll=5.0, scored_bytes=8, scored_characters=4,
    )  # fmt: skip
    result = summarize([half])
    assert result["bits_per_byte"] == pytest.approx(5 / 8 / math.log(2))
    assert result["bits_per_character"] == pytest.approx(5 / 4 / math.log(2))
    assert result["word_perplexity"] == pytest.approx(math.exp(5 * 20 / 8 / 5))
    assert result["scored_share"] == 0.5


def test_unscored_tokens_count_as_average_ones_of_their_own_text():
    """A long text of which little was scored does not take the other's rate."""
    result = summarize([text([1, 1], num_tokens=10, num_bytes=50), text([3, 3], num_bytes=8)])
    assert result["bits_per_byte"] == pytest.approx((1 * 10 + 3 * 2) / 58 / math.log(2))


# ---- pairs


def test_the_ratio_of_a_measurement_to_itself_is_one():
    for aggregation in AGGREGATIONS.values():
        totals = Totals.of(corpus([30] * 12), aggregation)
        assert ratio_of_perplexities(totals, totals) == {
            "ratio": 1.0,
            "interval": [1.0, 1.0],
            "pvalue": 1.0,
            "sample": "12 texts",
        }


def shifted(texts, difference, noise, seed=1):
    """The same texts, each token harder by `difference` and noise of this size."""
    generator = np.random.default_rng(seed)
    return [
        dataclasses.replace(
            scored,
            window_nlls=[
                window + difference + noise * generator.standard_normal(len(window))
                for window in scored.window_nlls
            ],
        )
        for scored in texts
    ]


def test_a_paired_ratio_is_much_surer_than_either_perplexity():
    texts = corpus([90] * 15)
    first = Totals.of(texts, Aggregation(block_tokens=20))
    second = Totals.of(shifted(texts, 0.02, 0.05), Aggregation(block_tokens=20))
    ratio = ratio_of_perplexities(second, first)
    low, high = ratio["interval"]
    assert 1 < low < ratio["ratio"] < high
    assert ratio["pvalue"] < 0.001
    perplexities = [totals.result()["perplexity"] for totals in (first, second)]
    assert ratio["ratio"] == pytest.approx(perplexities[1] / perplexities[0])
    own_low, own_high = first.result()["perplexity_interval"]
    assert math.log(high / low) < math.log(own_high / own_low) / 20
    # of texts of equal length it is the textbook's paired t
    means = [
        np.concatenate(b.window_nlls).mean() - np.concatenate(a.window_nlls).mean()
        for a, b in zip(texts, shifted(texts, 0.02, 0.05))
    ]
    margin = 2.1448 * np.std(means, ddof=1) / math.sqrt(15)  # Student's t, 14 degrees of freedom
    assert math.log(high / low) == pytest.approx(2 * margin, rel=1e-3)


@pytest.mark.parametrize("seed", range(3))
def test_joined_and_separate_texts_are_paired_by_position(seed):
    """The joined stream has separators, which are scored as well, and a start token."""
    texts = corpus([400, 700, 600, 300], seed)
    harder = shifted(texts, 0.01, 0.05)
    nlls = [np.concatenate(scored.window_nlls) for scored in harder]
    joined = np.concatenate([np.append(of_text, [2.0, 0.5]) for of_text in nlls])
    joined = text(joined, first_targets=[1], stream_length=len(joined) + 1)
    first = Totals.of(texts, Aggregation(block_tokens=50))
    apart = ratio_of_perplexities(Totals.of(harder, Aggregation(block_tokens=50)), first)
    together = ratio_of_perplexities(Totals.of([joined], Aggregation(block_tokens=50)), first)
    assert together["sample"] == "20 parts of 1 text"
    spread = [math.log(r["interval"][1] / r["interval"][0]) for r in (apart, together)]
    interval = first.result()["perplexity_interval"]
    assert spread[1] < math.log(interval[1] / interval[0]) / 5  # paired, though not to the token
    assert together["ratio"] == pytest.approx(apart["ratio"], rel=0.01)


def test_the_ratio_the_other_way_round_is_the_reciprocal():
    """Also where the two weigh the texts differently."""
    texts = corpus(range(20, 320, 20))
    tokens = Totals.of(texts, Aggregation(block_tokens=1000))
    means = Totals.of(shifted(texts, 0.3, 0.05), Aggregation("texts"))
    ratio, other = ratio_of_perplexities(means, tokens), ratio_of_perplexities(tokens, means)
    assert ratio["ratio"] * other["ratio"] == pytest.approx(1)
    low, high = ratio["interval"]
    assert other["interval"] == pytest.approx([1 / high, 1 / low])
    assert other["pvalue"] == pytest.approx(ratio["pvalue"])


def test_an_added_start_token_may_change_the_number_of_blocks():
    """255 tokens are cut into 16 blocks, and 256 into 32."""
    (nlls,) = (np.concatenate(scored.window_nlls) for scored in corpus([255]))
    added = text(nlls + 0.01, first_targets=[1], stream_length=256)
    first, second = (
        Totals.of([scored], Aggregation(block_tokens=16)) for scored in (text(nlls), added)
    )
    assert len(first.blocks.sums) != len(second.blocks.sums)
    for one, other in ((first, second), (second, first)):
        assert [len(blocks.sums) for blocks in one.blocks.aligned(other.blocks)] == [16, 16]
    for ratio in (ratio_of_perplexities(second, first), ratio_of_perplexities(first, second)):
        assert ratio["sample"] == "16 parts of 1 text"
        low, high = ratio["interval"]
        own_low, own_high = first.result()["perplexity_interval"]
        assert math.log(high / low) < math.log(own_high / own_low) / 3


def test_the_mean_of_texts_is_paired_by_text():
    texts = corpus([50] * 14)
    first = Totals.of(texts, Aggregation())
    stock = Totals.of(shifted(texts, 0.1, 0.02), Aggregation("texts"))
    ratio = ratio_of_perplexities(stock, first)
    assert ratio["sample"] == "14 texts"

    # leaving out each text by hand
    def both(kept):
        return math.log(
            summarize(
                [scored for scored, keep in zip(shifted(texts, 0.1, 0.02), kept) if keep], "texts"
            )["perplexity"]
            / summarize([scored for scored, keep in zip(texts, kept) if keep])["perplexity"]
        )

    whole = both([True] * 14)
    moved = [whole - both([n != out for n in range(14)]) for out in range(14)]
    margin = 2.1604 * math.sqrt(13 / 14 * sum(step**2 for step in moved))  # 13 degrees of freedom
    expected = [math.exp(whole - margin), math.exp(whole + margin)]
    assert ratio["interval"] == pytest.approx(expected, rel=1e-4)
    one = Totals.of(corpus([700]), Aggregation())
    assert ratio_of_perplexities(stock, one)["interval"] is None


def test_megatron_leaves_the_first_token_and_word_out():
    """exp(min(20, mean nll × (tokens - 1) / (words - 1)))."""
    aggregation = Aggregation("capped", word_counts_given=True)
    scored = text([1, 3, 2], num_tokens=4, num_words=3)
    adjusted = Totals.of([scored], aggregation).result()["adjusted_perplexity"]
    assert adjusted == pytest.approx(math.exp(2 * 3 / 2))


def test_ratios_of_infinite_perplexities():
    finite = Totals.of(corpus([50] * 5), Aggregation())
    infinite = Totals.of([text([1.0, math.inf])] * 5, Aggregation())
    nothing = {"interval": None, "pvalue": None, "sample": None}
    assert ratio_of_perplexities(infinite, finite) == {"ratio": math.inf} | nothing
    assert ratio_of_perplexities(finite, infinite) == {"ratio": 0.0} | nothing
    assert ratio_of_perplexities(infinite, infinite) == {"ratio": None} | nothing


# ---- the result as a whole


def assert_plain(value) -> None:
    """Fail on anything but Python's own numbers, strings, lists and dicts."""
    if type(value) is dict:
        assert all(type(key) is str for key in value)
        value = list(value.values())
    if type(value) is list:
        for item in value:
            assert_plain(item)
    else:
        assert type(value) in (int, float, str, bool, type(None)), f"{value!r} is {type(value)}"


ALWAYS = {
    "protocol", "max_length", "stride", "add_start_token", "model_name", "perplexities",
    "mean_perplexity", "num_texts", "perplexity", "perplexity_stderr", "perplexity_interval",
    "interval_sample", "interval_scope", "scored_share", "total_nll",
    "num_tokens", "num_windows", "num_forward_tokens", "num_tokens_per_text", "bits_per_byte", "bits_per_byte_interval",
    "bits_per_character", "word_perplexity", "texts_digest", "signature",
    "signature_short",
}  # fmt: skip


@pytest.mark.parametrize("texts", [[random_text(60)], [random_text(40), random_text(9)]])
@pytest.mark.parametrize(
    ("arguments", "more"),
    [
        ({}, set()),
        ({"return_token_scores": True}, {"token_scores"}),
        ({"return_token_scores": ["top2"]}, {"token_scores"}),
        ({"protocol": "llama.cpp"}, {"tool_stderr"}),
        ({"protocol": "mlx-lm"}, {"tool_stderr"}),
        ({"protocol": "transformers-docs-weighted", "stride": 3}, set()),
        ({"detokenizer": "wikitext"}, {"adjusted_perplexity", "texts_as_read"}),
    ],
)
def test_a_result_is_made_of_plain_python_values(
    metric, gpt2, tokenizer, tmp_path, texts, arguments, more
):
    result = metric.compute(predictions=texts, model=gpt2, tokenizer=tokenizer, **arguments)
    assert set(result) == ALWAYS | more
    assert_plain(result)
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    path = evaluate.save(tmp_path / "results", **result)
    assert json.loads(path.read_text())["perplexity"] == result["perplexity"]


def test_the_cost_is_what_the_model_reads(metric, tokenizer):
    model = make_model("llama")
    read = []
    layer = model.model.layers[0]
    layer.register_forward_pre_hook(lambda _, args: read.append(args[0].shape[:2].numel()))
    result = metric.compute(
        predictions=[random_text(40)], model=model, tokenizer=tokenizer, batch_size=1
    )
    windows = result["num_windows"]
    assert sum(read[-windows:]) == result["num_forward_tokens"]
    plan = metric.compute(
        predictions=[random_text(40)], model=model, tokenizer=tokenizer, return_token_scores=True
    )["token_scores"][0]["windows"]
    assert len(plan) == windows
    assert result["num_forward_tokens"] == sum(
        w["end"] - 1 - w["begin"] + w["start_token"] for w in plan
    )


# ---- token scores

MANY_BYTES = "né 漢字 🙂👩‍👩‍👧 ﬁn\r\n\té\u0301 ß"


def scores_of(metric, texts, **arguments):
    arguments = {"model": make_model("gpt2"), "tokenizer": make_tokenizer()} | arguments
    return metric.compute(predictions=texts, return_token_scores=True, **arguments)["token_scores"]


def test_offsets_point_into_the_text(metric):
    given_text = "  w5 w6\n\nw77   w8 "
    (scores,) = scores_of(metric, [given_text])
    assert [given_text[a:b] for a, b in scores["offsets"]] == ["w5", "w6", "w77", "w8"]


def test_offsets_count_characters_not_bytes(metric):
    tokenizer = make_byte_tokenizer()
    model = make_uniform_model(vocab_size=len(tokenizer), n_positions=32)
    (scores,) = scores_of(metric, [MANY_BYTES], model=model, tokenizer=tokenizer)
    assert len(scores["tokens"]) == len(MANY_BYTES.encode())
    expected = [
        [place, place + 1] for place, character in enumerate(MANY_BYTES) for _ in character.encode()
    ]
    assert scores["offsets"] == expected


def test_offsets_are_those_of_the_original_where_the_tokenizer_rewrites_it(metric):
    given_text = "W5 ſ W6"
    (scores,) = scores_of(metric, [given_text], tokenizer=make_tokenizer(lowercase=True))
    assert [given_text[a:b] for a, b in scores["offsets"]] == ["W5", "ſ", "W6"]


def test_a_tokenizer_without_offsets_has_none(metric):
    from models import SlowTokenizer

    (scores,) = scores_of(metric, ["w5 w6"], tokenizer=SlowTokenizer())
    assert scores["tokens"] == ["w5", "w6"]
    assert scores["offsets"] == [None, None]


def test_token_scores_add_up(metric, gpt2, tokenizer):
    texts = [random_text(50), random_text(20)]
    result = metric.compute(
        predictions=texts, model=gpt2, tokenizer=tokenizer, stride=5, return_token_scores=True
    )
    values = [[v for v in s["nll"] if v is not None] for s in result["token_scores"]]
    assert math.fsum(itertools.chain(*values)) == pytest.approx(result["total_nll"], rel=1e-9)
    for of_text, perplexity in zip(values, result["perplexities"]):
        assert math.exp(math.fsum(of_text) / len(of_text)) == pytest.approx(perplexity, rel=1e-9)


def test_the_plan_is_part_of_the_token_scores(metric):
    (scores,) = scores_of(metric, [random_text(30)], stride=8, add_start_token="once")
    assert scores["windows"] == [
        {"begin": 0, "first": 0, "end": 15, "start_token": True},
        {"begin": 7, "first": 15, "end": 23, "start_token": False},
        {"begin": 15, "first": 23, "end": 30, "start_token": False},
    ]
    for window in scores["windows"]:
        for place in range(window["first"], window["end"]):
            seen = place - window["begin"] + window["start_token"]
            assert scores["context_length"][place] == seen


def test_what_a_protocol_leaves_out_has_no_score(metric):
    (scores,) = scores_of(metric, [random_text(35)], protocol="llama.cpp")
    scored = [place for place, value in enumerate(scores["nll"]) if value is not None]
    assert scored == [*range(9, 16), *range(25, 32)]
    assert all(scores["context_length"][place] == 0 for place in (0, 8, 16, 34))


# ---- keys: the tables of docs/python.md name all of them


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


def test_the_table_names_what_a_comparison_holds(results):
    came_out = [result["comparison"] for result in results if "comparison" in result]
    assert set().union(*came_out) == keys_in("### Keys of `comparison`")
