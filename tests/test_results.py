"""From nlls to numbers: aggregation and uncertainty; and the shape of a result."""

import itertools
import json
import math

import evaluate
import numpy as np
import pytest
from core.results import TextScores, exp, ratio_uncertainty, student_t_quantile, summarize
from hypothesis import given, settings
from hypothesis import strategies as st
from models import make_byte_tokenizer, make_model, make_tokenizer, make_uniform_model, random_text


def text(*windows, weights=None, **units) -> TextScores:
    """Scores of a text given window by window; the units are one a token unless given."""
    windows = [np.array(window, dtype=np.float32) for window in windows]
    size = sum(map(len, windows))
    units = dict.fromkeys(("num_tokens", "num_bytes", "num_characters", "num_words"), size) | units
    weights = weights or [max(1, len(window) - 1) for window in windows]
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


def test_capped_at_20_nats():
    assert summarize([text([30, 40])], "capped")["perplexity"] == pytest.approx(math.exp(20))


def test_stock_takes_the_mean_of_the_texts():
    result = summarize([text([1, 1, 1]), text([3])], "texts")
    assert result["perplexity"] == result["mean_perplexity"]


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
    assert result["byte_perplexity"] == pytest.approx(math.exp(nll / 13))
    assert result["bits_per_character"] == pytest.approx(nll / 9 / math.log(2))
    assert result["word_perplexity"] == pytest.approx(math.exp(nll / 4))


def test_tokens_that_were_not_scored_count_as_average_ones():
    result = summarize([text([2, 4], num_tokens=3, num_bytes=6)])
    assert result["byte_perplexity"] == pytest.approx(math.exp(3 * 3 / 6))


def test_exp_does_not_overflow():
    assert exp(709.0) == math.exp(709)
    assert exp(710.0) == exp(math.inf) == math.inf
    assert exp(-800.0) == 0.0


# ---- uncertainty


@pytest.mark.parametrize(
    ("degrees", "expected"),
    # from any printed table of Student's t, two-sided 95 %
    [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (5, 2.571), (10, 2.228), (30, 2.042), (120, 1.980), (10**6, 1.960)],
)  # fmt: skip
def test_quantiles_of_students_t(degrees, expected):
    assert student_t_quantile(0.975, degrees) == pytest.approx(expected, rel=1.5e-3)


def test_the_standard_error_is_the_jackknifes():
    """By hand: ratio 2, and without each cluster (7+3)/4, (2+3)/3 and (2+7)/5; 36/14 clusters."""
    terms, weights = np.array([2.0, 7.0, 3.0]), np.array([2.0, 3.0, 1.0])
    moved = [10 / 4 - 2, 5 / 3 - 2, 9 / 5 - 2]
    log_error = math.sqrt(2 / 3 * sum(step**2 for step in moved))
    stderr, (low, high) = ratio_uncertainty(terms, weights)
    assert stderr == pytest.approx(math.exp(2) * log_error)
    assert math.log(low) == pytest.approx(2 - 4.303 * log_error, abs=1e-3)
    assert math.log(high) == pytest.approx(2 + 4.303 * log_error, abs=1e-3)


def test_texts_that_are_all_alike_leave_no_uncertainty():
    result = summarize([text([1, 2]), text([1, 2]), text([2, 1])])
    assert result["perplexity_stderr"] == pytest.approx(0, abs=1e-9)
    assert result["perplexity_interval"] == pytest.approx([math.exp(1.5)] * 2)


def test_one_window_has_none():
    result = summarize([text([1, 2, 3])])
    assert result["perplexity_stderr"] is None
    assert result["perplexity_interval"] is None


def test_a_single_text_is_its_own_sample_part_by_part():
    windows = [[1.0, 2.0], [3.0], [4.0, 1.0], [2.0, 2.0, 2.0], [5.0]]
    result = summarize([text(*windows)], block_tokens=3)
    # blocks of at least 3 tokens: the windows 0-1, 2-3 and what is left joins the last
    parts = [text(*windows[:2]), text(*windows[2:])]
    assert result["perplexity_stderr"] == summarize(parts)["perplexity_stderr"]


@pytest.mark.parametrize("as_one_text", [False, True])
def test_the_interval_covers_the_truth_as_often_as_it_says(as_one_text):
    """Texts share a level of difficulty, so their tokens are no independent sample.

    Of 400 intervals 95 % should hold the true value; one that takes tokens as independent holds it
    far less often.
    """
    generator = np.random.default_rng(1)
    num_texts, runs, mean = 30, 400, 3.0
    hits = naive_hits = 0
    for _ in range(runs):
        sizes = generator.integers(20, 60, num_texts)
        levels = generator.normal(mean, 0.5, num_texts)
        nlls = [generator.normal(level, 1.0, size).clip(0) for level, size in zip(levels, sizes)]
        texts = [text(*nlls)] if as_one_text else [text(own) for own in nlls]
        result = summarize(texts, block_tokens=1)
        low, high = result["perplexity_interval"]
        hits += low <= math.exp(mean) <= high
        every = np.concatenate(nlls)
        margin = 1.96 * every.std(ddof=1) / math.sqrt(len(every))
        naive_hits += abs(every.mean() - mean) <= margin
    assert 0.925 <= hits / runs <= 0.975
    assert naive_hits / runs < 0.75


@given(
    st.lists(st.lists(st.floats(0, 50, width=32), min_size=1, max_size=20), min_size=2, max_size=20)
)
@settings(max_examples=50)
def test_the_interval_holds_the_estimate(nlls):
    result = summarize([text(own) for own in nlls])
    low, high = result["perplexity_interval"]
    assert low <= result["perplexity"] * (1 + 1e-9)
    assert result["perplexity"] <= high * (1 + 1e-9)
    assert result["perplexity_stderr"] >= 0


def test_no_uncertainty_where_perplexity_overflows():
    result = summarize([text([800, 800]), text([800, 800])])
    assert result["perplexity"] == math.inf
    assert not math.isnan(result["perplexity_stderr"] or 0)


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
    "perplexities",
    "mean_perplexity",
    "perplexity",
    "perplexity_stderr",
    "perplexity_interval",
    "total_nll",
    "num_tokens",
    "num_windows",
    "num_forward_tokens",
    "tokens_per_text",
    "bits_per_byte",
    "byte_perplexity",
    "bits_per_character",
    "word_perplexity",
    "signature",
    "signature_short",
}


@pytest.mark.parametrize("texts", [[random_text(60)], [random_text(40), random_text(9)]])
@pytest.mark.parametrize(
    ("arguments", "more"),
    [
        ({}, set()),
        ({"return_token_scores": True}, {"token_scores"}),
        ({"num_alternatives": 2}, {"token_scores"}),
        ({"protocol": "llama.cpp"}, {"tool_stderr"}),
        ({"protocol": "mlx-lm"}, {"tool_stderr"}),
        ({"protocol": "transformers-docs-weighted", "stride": 3}, set()),
        ({"word_counts": "one a text"}, {"adjusted_perplexity"}),
    ],
)
def test_a_result_is_made_of_plain_python_values(
    metric, gpt2, tokenizer, tmp_path, texts, arguments, more
):
    if "word_counts" in arguments:
        arguments = {"word_counts": [7] * len(texts)}
    result = metric.compute(predictions=texts, model=gpt2, tokenizer=tokenizer, **arguments)
    assert set(result) == ALWAYS | more
    assert_plain(result)
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    path = evaluate.save(tmp_path / "results", **result)
    assert json.loads(path.read_text())["perplexity"] == result["perplexity"]


def test_numpys_whole_numbers_do_not_get_into_the_result(metric, gpt2, tokenizer):
    result = metric.compute(
        predictions=[random_text(30)],
        model=gpt2,
        tokenizer=tokenizer,
        max_length=np.int64(8),
        stride=np.int64(3),
        batch_size=np.int32(2),
        word_counts=[np.int64(30)],
        return_token_scores=True,
    )
    assert_plain(result)


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


@pytest.mark.parametrize("start", [True, False, "every"])
def test_token_scores_are_lists_of_one_length(metric, start):
    texts = [random_text(40), random_text(3)]
    for given_text, scores in zip(texts, scores_of(metric, texts, add_start_token=start)):
        columns = {name: column for name, column in scores.items() if name != "windows"}
        assert set(columns) == {"tokens", "offsets", "nll", "context_length"}
        assert {len(column) for column in columns.values()} == {len(given_text.split())}
        assert scores["tokens"] == given_text.split()
        unscored = [place for place, value in enumerate(scores["nll"]) if value is None]
        assert unscored == ([0] if start is False else [])
        assert [c == 0 for c in scores["context_length"]] == [v is None for v in scores["nll"]]


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


def test_offsets_in_joined_texts_count_through_all_of_it(metric):
    texts = ["w5 w6", "w7 w8"]
    (scores,) = scores_of(metric, texts, separator=" w9 ")
    joined = " w9 ".join(texts)
    assert [joined[a:b] for a, b in scores["offsets"]] == joined.split()
    texts = [random_text(20, 1), random_text(20, 2)]
    (scores,) = scores_of(metric, texts, protocol="mlx-lm")
    joined = "".join(texts)
    expected = [*texts[0].split(), *texts[1].split()]
    assert [joined[a:b] for a, b in scores["offsets"]] == expected


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
    for own, perplexity in zip(values, result["perplexities"]):
        assert math.exp(math.fsum(own) / len(own)) == pytest.approx(perplexity, rel=1e-9)


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
