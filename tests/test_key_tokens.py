"""LongPPL's key tokens, against the package that its authors publish."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from models import SlowTokenizer, make_byte_tokenizer, make_model, make_tokenizer, random_text

from perplexity_sliding.arguments import KeyTokenRule
from perplexity_sliding.plan.tokenization import TokenizedText
from perplexity_sliding.plan.windows import Window
from perplexity_sliding.results.key_tokens import merge_spans, tokens_inside, total_key_tokens


def test_key_tokens_by_hand():
    rule = KeyTokenRule(short_context=2, stride=1)
    full = np.array([0.1, 0.1, 0.1, 1.9, 2.0, 0.5, np.nan])
    short = np.array([9.0, 9.0, 2.1, 4.0, 9.0, 2.5, 9.0])
    # too early, too early, gains exactly 2, key, left with 2, gains 2 exactly, unscored
    assert rule.key_tokens(short, full).tolist() == [3]
    assert rule.window == 3


def test_spans_that_touch_are_one():
    offsets = np.array([[2, 4], [4, 7], [8, 9], [9, 9], [9, 12], [20, 21]])
    assert merge_spans(offsets).tolist() == [[2, 7], [8, 12], [20, 21]]
    assert merge_spans(offsets[:0]).shape == (0, 2)


def test_merging_and_overlap_are_the_packages():
    longppl = pytest.importorskip("longppl.longppl")
    generator = np.random.default_rng(0)
    for _ in range(50):
        keys, tokens = (spans(generator) for _ in range(2))
        keys = keys[generator.random(len(keys)) < 0.5]
        merged = merge_spans(keys)
        assert merged.tolist() == longppl.merge_intervals(torch.tensor(keys)).tolist()
        # Theirs are places in losses, one less than places of tokens; the first has none.
        theirs = [place + 1 for place in longppl.cal_overlap(tokens.tolist(), merged.tolist())]
        assert np.flatnonzero(tokens_inside(tokens, merged)).tolist() == theirs


def test_the_interval_is_not_below_one():
    """Of one hard text among easy ones."""
    offsets = np.stack([np.arange(60), np.arange(1, 61)], axis=1)
    streams = [TokenizedText(np.arange(60), offsets, np.zeros(60, bool))] * 12
    measurement = SimpleNamespace(streams=streams, windows=[[Window(0, 0, 60, True)]] * 12)
    scores = [[{"nll": np.full(60, mean)}] for mean in [0.01] * 11 + [2.0]]
    report = SimpleNamespace(measurement=measurement, scores=scores)
    result = total_key_tokens(report, [np.array([[0, 60]])] * 12, "rule").result()
    low, high = result["longppl_interval"]
    assert low == 1 < result["longppl"] < high


def test_only_tokens_of_the_text_that_have_a_loss_are_key():
    """Not the first, which nothing predicts, nor what the tokenizer has added."""
    offsets = np.array([[0, 1], [1, 2], [2, 3], [0, 0], [3, 4]])
    added = np.array([False, False, False, True, False])
    streams = [TokenizedText(np.arange(5), offsets, added)]
    measurement = SimpleNamespace(streams=streams, windows=[[Window(0, 1, 5)]])
    report = SimpleNamespace(
        measurement=measurement, scores=[[{"nll": np.array([1.0, 2.0, 100.0, 4.0])}]]
    )
    result = total_key_tokens(report, [np.array([[0, 2], [3, 4]])], "rule").result()
    assert result["num_key_tokens"] == 2  # the second and the last
    assert result["longppls"] == [pytest.approx(np.exp((1.0 + 4.0) / 2))]
    assert result["longppl"] == pytest.approx(np.exp((1.0 + 4.0) / 2))


def spans(generator):
    """Ascending spans of characters, some of which touch."""
    widths, gaps = generator.integers(1, 6, 40), generator.integers(0, 2, 40)
    ends = np.cumsum(widths + gaps)
    return np.stack([ends - widths, ends], axis=1)


# --- the metric against the package ---------------------------------------------------------------

RULE = {"short_context": 8, "stride": 3, "gain": 0.5, "largest_nll": 4.0}


def package_longppl(text, model, tokenizer, evaluator, evaluator_tokenizer):
    longppl = pytest.importorskip("longppl.longppl")
    return longppl.compute_longppl(
        text, model, evaluator, tokenizer, evaluator_tokenizer, trunc_len=RULE["short_context"],
        sliding_window=RULE["stride"], alpha=RULE["gain"], beta=-RULE["largest_nll"],
    )  # fmt: skip


def with_a_last_stride(text, tokenizer):
    """Shorten a text until its last stride has two tokens or three: the package fails at one."""
    while (len(tokenizer(text)["input_ids"]) - RULE["short_context"]) % RULE["stride"] == 1:
        text = text[:-1]
    return text


@pytest.mark.parametrize("other_evaluator", [False, True])
@pytest.mark.parametrize("num_tokens", [40, 41, 42, 60])
def test_longppl_is_the_packages(metric, other_evaluator, num_tokens):
    """Key tokens come from another model with another tokenizer; all digits agree."""
    model = make_model("llama", max_position_embeddings=64)
    tokenizer = make_tokenizer()
    evaluator, evaluator_tokenizer = model, tokenizer
    if other_evaluator:
        evaluator = make_model("gpt2", seed=1, n_positions=64)
        evaluator_tokenizer = make_tokenizer(adds_bos=True)
        model = make_model("llama", max_position_embeddings=512, vocab_size=259)
        tokenizer = make_byte_tokenizer()
    texts = [
        with_a_last_stride(random_text(num_tokens, seed=seed), evaluator_tokenizer)
        for seed in (0, 1)
    ]
    theirs = [
        package_longppl(text, model, tokenizer, evaluator, evaluator_tokenizer) for text in texts
    ]
    result = metric.compute(
        predictions=texts,
        model=model,
        tokenizer=tokenizer,
        add_start_token=False,
        key_tokens=RULE
        | ({"evaluator": (evaluator, evaluator_tokenizer)} if other_evaluator else {}),
    )
    assert result["longppls"] == [pytest.approx(one["longppl"], rel=1e-5) for one in theirs]
    counts = [one["n_key_token"] for one in theirs]
    assert min(counts) > 0
    assert result["num_key_tokens"] == sum(counts)
    assert result["perplexities"] == [pytest.approx(one["ppl"], rel=1e-5) for one in theirs]
    pooled = sum(count * np.log(one["longppl"]) for count, one in zip(counts, theirs))
    assert result["longppl"] == pytest.approx(np.exp(pooled / sum(counts)), rel=1e-5)


def test_a_token_that_the_evaluators_tokenizer_appends_is_none_of_the_text(metric):
    """It has no characters, and may be the easier for a long context."""
    model, evaluator = (make_model("gpt2", seed=seed) for seed in (0, 1))
    texts = [random_text(30, seed=seed) for seed in range(4)]
    rule = {"short_context": 2, "stride": 1, "gain": -99.0, "largest_nll": 99.0}

    def key_tokens(**kwargs):
        found = metric.compute(
            predictions=texts,
            model=model,
            tokenizer=make_tokenizer(),
            add_start_token=False,
            key_tokens=rule | {"evaluator": (evaluator, make_tokenizer(**kwargs))},
        )
        return found["num_key_tokens"], found["longppls"]

    assert key_tokens(adds_eos=True) == key_tokens()
    assert key_tokens()[0] > 100


def test_the_signature_says_which_tokens_are_key(metric, gpt2, tokenizer):
    """Other rules and other evaluators find others, under one and the same `signature`."""
    arguments = {"predictions": [random_text(60)], "model": gpt2, "tokenizer": tokenizer}
    arguments |= {"max_length": 16, "stride": 4, "identify": True}
    rule = {"short_context": 4, "stride": 2, "gain": 0.1, "largest_nll": 9.0}
    one, other_rule, other_evaluator, again = (
        metric.compute(key_tokens=rule | change, **arguments)
        for change in (
            {},
            {"gain": 1.0},
            {"evaluator": (make_model("gpt2", seed=1), tokenizer)},
            {"evaluator": (make_model("gpt2"), tokenizer)},
        )
    )
    assert one["longppl_signature"].startswith("key_tokens:longppl(4,2,0.1,9.0)|tokenizer:")
    for other in (other_rule, other_evaluator):
        assert other["longppl"] != pytest.approx(one["longppl"], rel=1e-4)
        assert other["signature"] == one["signature"]
        assert other["longppl_signature"] != one["longppl_signature"]
    assert again["longppl_signature"] == one["longppl_signature"]


def test_longppl_without_a_key_token(metric, gpt2, tokenizer):
    """The default asks for 4096 tokens of context and more: in a short text nothing is key."""
    result = metric.compute(
        predictions=[random_text(30)], model=gpt2, tokenizer=tokenizer, key_tokens="longppl"
    )
    assert result["num_key_tokens"] == 0
    assert result["longppl"] is None and result["longppls"] == [None]


@pytest.mark.parametrize(
    "arguments, kind, message",
    [
        ({"key_tokens": "long"}, ValueError, "`key_tokens` must be 'longppl', or a dict with"),
        ({"key_tokens": {"alpha": 2}}, ValueError, "short_context, stride, gain, largest_nll"),
        ({"key_tokens": {"stride": 0}}, ValueError, r"`key_tokens\['stride'\]` must be at least 1"),
        (
            {"key_tokens": {"gain": "2"}},
            TypeError,
            r"`key_tokens\['gain'\]` must be a number of nats",
        ),
        (
            {"key_tokens": {"evaluator": 3}},
            TypeError,
            r"`key_tokens\['evaluator'\]` must be the name of",
        ),
        ({"key_tokens": "longppl", "stride": [1, 2]}, ValueError, "`key_tokens` must be left out"),
    ],
)
def test_refusals(metric, gpt2, tokenizer, arguments, kind, message):
    with pytest.raises(kind, match=message):
        metric.compute(predictions=["w3 w4"], model=gpt2, tokenizer=tokenizer, **arguments)


def test_slow_tokenizers_are_refused(metric, gpt2, tokenizer):
    slow = SlowTokenizer()
    with pytest.raises(ValueError, match="`tokenizer` must have a fast tokenizer"):
        metric.compute(predictions=["w3 w4"], model=gpt2, tokenizer=slow, key_tokens="longppl")
    with pytest.raises(ValueError, match=r"`key_tokens\['evaluator'\]` must have a fast tokenizer"):
        metric.compute(
            predictions=["w3 w4"], model=gpt2, tokenizer=tokenizer,
            key_tokens={"evaluator": (gpt2, slow)},
        )  # fmt: skip


def test_the_limit_of_the_evaluator_is_in_the_signature(metric):
    """It is the tokenizer's where the model states none, and decides which tokens are key."""
    signatures = []
    for limit in (40, 64):
        tokenizer = make_tokenizer()
        tokenizer.model_max_length = limit
        results = metric.compute(
            predictions=[random_text(60)],
            model=make_model("bloom"),
            tokenizer=tokenizer,
            max_length=16,
            key_tokens=RULE,
        )
        signatures.append(results["longppl_signature"])
    assert f"|limit:{40}|" in signatures[0] and f"|limit:{64}|" in signatures[1]
