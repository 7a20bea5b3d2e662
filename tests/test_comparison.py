"""What separates two models, from made-up scores: closed forms, intervals that hold, verdicts."""

import math

import numpy as np
import pytest

from perplexity_sliding.results.comparison import (
    PairedScores,
    common_pieces,
    compare,
    judge,
    positive_interval,
    worst_tokens,
)

TEXTS = 30
INF = math.inf


def scores_of(lengths, contexts=None, targets=None, **columns) -> PairedScores:
    """Scores of texts all of whose tokens are scored; columns that are not given say nothing."""
    size = sum(lengths)
    texts = np.repeat(np.arange(len(lengths)), lengths)
    positions = np.concatenate([np.arange(length) for length in lengths])
    given = {
        "nll": 2.0,
        "reference_nll": 2.0,
        "kl": 0.1,
        "kl_reverse": 0.1,
        "total_variation": 0.1,
        "top": 1,
        "reference_top": 1,
        "reference_top_probability": 0.6,
        "reference_entropy": 1.0,
        "outside": 0.0,
        "reference_outside": 0.0,
    } | columns
    filled = {name: np.broadcast_to(np.asarray(value), size) for name, value in given.items()}
    contexts = positions + 1 if contexts is None else np.asarray(contexts)
    targets = np.ones(size, int) if targets is None else np.asarray(targets)
    filled["change"] = filled["nll"] - filled["reference_nll"]
    return PairedScores(lengths, texts, positions, contexts, targets, filled, block_tokens=1)


def ratio_of(scores) -> dict:
    """As the results of two measurements have it."""
    estimate = scores.mean(scores.differences)
    interval = estimate.interval and [math.exp(bound) for bound in estimate.interval]
    return {
        "ratio": math.exp(estimate.value),
        "interval": interval,
        "pvalue": estimate.pvalue,
        "sample": scores.clusters.sample,
    }


def compared(scores, margin=None) -> dict:
    return compare(scores, ratio_of(scores), margin=margin)


# ---- pieces of text

NO_TOKENS = np.empty((0, 2), dtype=np.int64), np.empty(0)


def test_pieces_by_hand():
    """The last token reaches to the end of the text, whatever its tokenizer drops there."""
    model = np.array([[0, 2], [2, 3], [3, 5]]), np.array([1.0, 2.0, 4.0])
    reference = np.array([[1, 2], [2, 4]]), np.array([8.0, np.nan])
    pieces = common_pieces("añb  ", model, reference)
    assert (pieces.begins.tolist(), pieces.ends.tolist()) == ([0], [2])
    assert (pieces.tokens.tolist(), pieces.num_bytes.tolist()) == ([1], [3])
    assert (pieces.nll.tolist(), pieces.reference_nll.tolist()) == ([1.0], [8.0])
    reference[1][1] = 16.0
    pieces = common_pieces("añb  ", model, reference)
    assert pieces.ends.tolist() == [2, 5]
    assert pieces.tokens.tolist() == [1, 2]
    assert pieces.nll.tolist() == [1.0, 6.0] and pieces.reference_nll.tolist() == [8.0, 16.0]


def test_tokens_that_share_a_character_are_in_one_piece():
    """The three bytes of a letter; a dummy space and the letter after it."""
    model = np.array([[0, 1], [0, 1], [0, 1], [1, 2]]), np.array([1.0, 2.0, 4.0, 8.0])
    reference = np.array([[0, 1], [0, 2]]), np.array([16.0, 32.0])
    pieces = common_pieces("中x", model, reference)
    assert pieces.ends.tolist() == [2]
    assert pieces.nll.tolist() == [15.0] and pieces.reference_nll.tolist() == [48.0]


@pytest.mark.parametrize("empty_first", [True, False])
def test_a_text_that_one_model_has_no_token_of_has_no_piece(empty_first):
    sides = [NO_TOKENS, (np.array([[0, 1], [1, 2]]), np.array([1.0, 2.0]))]
    pieces = common_pieces("  ", *sides[:: 1 if empty_first else -1])
    assert all(len(column) == 0 for column in pieces[1:])


# ---- by hand


def test_four_tokens_by_hand():
    got = compared(
        scores_of(
            [4],
            targets=[1, 1, 2, 3],
            nll=-np.log([0.5, 0.2, 0.1, 0.4]),
            reference_nll=-np.log([0.4, 0.4, 0.1, 0.2]),
            kl=[0.0, 0.1, 0.2, 0.5],
            kl_reverse=[0.0, 0.2, 0.4, 0.6],
            total_variation=[0.0, 0.1, 0.2, 0.3],
            top=[1, 2, 2, 3],
            reference_top=[1, 1, 9, 1],
        )
    )
    assert got["kl"] == pytest.approx(0.2)
    assert got["kl_reverse"] == pytest.approx(0.3)
    assert got["kl_percentiles"]["50"] == pytest.approx(0.15)
    assert got["kl_percentiles"]["90"] == pytest.approx(0.2 + 0.7 * 0.3)
    assert got["kl_percentiles"]["100"] == 0.5
    assert got["token_agreement"] == pytest.approx(0.85)
    assert got["same_top"] == 0.25
    assert (got["accuracy"], got["reference_accuracy"]) == (0.75, 0.5)
    assert (got["right_to_wrong"], got["wrong_to_right"]) == (0.25, 0.5)
    assert got["accuracy_change"] == 0.25
    assert got["delta_p"] == pytest.approx((0.1 - 0.2 + 0.0 + 0.2) / 4)
    assert got["rms_delta_p"] == pytest.approx(math.sqrt((0.01 + 0.04 + 0.04) / 4))
    assert got["delta_p_percentiles"]["0"] == pytest.approx(-0.2)
    assert got["perplexity_ratio"]["ratio"] == pytest.approx(
        (0.4 * 0.4 * 0.2 / (0.5 * 0.2 * 0.4)) ** 0.25
    )
    assert got["verdict"] == "too little text to tell"
    for name in ("kl", "same_top", "delta_p", "accuracy_change"):
        assert got[f"{name}_interval"] is None


def test_by_confidence():
    sure = [0.1, 0.25, 0.5, 0.9, 0.94, 0.96, 1.0, 1.0]
    kl = np.arange(8.0)
    scores = scores_of([8], reference_top_probability=sure, kl=kl, nll=2.0 + kl)
    groups = compared(scores)["by_confidence"]
    assert [group["low"] for group in groups] == [0.0, 0.25, 0.5, 0.75, 0.95]
    assert [group["high"] for group in groups] == [0.25, 0.5, 0.75, 0.95, 1.0]
    assert [group["num_tokens"] for group in groups] == [1, 1, 1, 2, 3]
    assert [group["kl"] for group in groups] == [0, 1, 2, 3.5, 6]
    assert [group["log_ratio"] for group in groups] == [0, 1, 2, 3.5, 6]
    assert sum(group["share"] for group in groups) == 1


def test_by_context():
    scores = scores_of([7], contexts=[1, 2, 3, 8, 9, 15, 16], kl=np.arange(7.0))
    groups = compared(scores)["by_tokens_seen"]
    ranges = [(group["low"], group["high"], group["num_tokens"]) for group in groups]
    assert ranges == [(1, 1, 1), (2, 3, 2), (8, 15, 3), (16, 31, 1)], "none saw 4 to 7"
    assert [group["kl"] for group in groups] == [0, 1.5, 4, 6]


def test_worst_tokens():
    scores = scores_of([5], kl=[0.1, INF, 0.3, 0.3, 0.0])
    assert worst_tokens(scores, 3).tolist() == [1, 2, 3]
    assert worst_tokens(scores, 10).tolist() == [1, 2, 3, 0], "not the one that is the same"


def test_the_same_model():
    lengths = [50] * TEXTS
    nll = np.random.default_rng(0).exponential(2.0, sum(lengths))
    got = compared(
        scores_of(lengths, nll=nll, reference_nll=nll, kl=0.0, kl_reverse=0.0, total_variation=0.0)
    )
    assert got["perplexity_ratio"]["ratio"] == 1 and got["perplexity_ratio"]["interval"] == [1, 1]
    assert got["kl"] == 0 and got["kl_interval"] == [0, 0]
    assert got["token_agreement"] == got["same_top"] == 1
    assert got["rms_delta_p"] == 0 and got["rms_delta_p_interval"] == [0, 0]
    assert got["perplexity_ratio"]["pvalue"] == 1
    assert got["verdict"] == "no clear difference"


def test_infinite_divergences_are_counted():
    kl = np.full(300, 0.1)
    kl[[3, 200]] = INF
    got = compared(scores_of([10] * TEXTS, kl=kl))
    assert got["num_infinite_kl"] == 2
    assert got["kl"] == INF and got["kl_interval"] is None
    assert got["kl_percentiles"]["50"] == pytest.approx(0.1)
    assert got["kl_percentiles"]["100"] == INF


def test_vocabularies_with_too_little_in_common():
    assert compared(scores_of([20], outside=9e-4))["kl"] == pytest.approx(0.1)
    with pytest.raises(ValueError, match=r"the reference gives ids that the other lacks .* 0\.002"):
        compared(scores_of([20], reference_outside=0.002))


# ---- verdicts


@pytest.mark.parametrize(
    "interval, margin, expected",
    [
        (None, 0.01, "too little text to tell"),
        ([0.98, 0.99], None, "better"),
        ([0.98, 0.99], 0.01, "better"),
        ([0.99, 1.02], None, "no clear difference"),
        ([0.99, 1.02], 0.01, "no clear difference"),
        ([0.99, 1.009], 0.01, "within 1 %"),
        ([1.002, 1.004], None, "worse"),
        ([1.002, 1.004], 0.005, "within 0.5 %"),
        ([1.002, 1.02], 0.01, "worse"),
        ([1 - 2e-7, 1 - 1e-7], None, "no clear difference"),  # the same weights, other code
        ([1 + 1e-7, 1 + 2e-7], None, "no clear difference"),
    ],
)
def test_verdict(interval, margin, expected):
    judged = judge({"ratio": 1.0, "interval": interval}, margin, "perplexity", 1)
    assert judged["verdict"] == expected
    within = None if margin is None else bool(interval and interval[1] < 1 + margin)
    assert (judged.get("margin"), judged.get("within_margin")) == (margin, within)


@pytest.mark.parametrize(
    "ratio, interval, margin, expected",
    [
        (
            *(1.029, [1.025, 1.0332], None),
            "The model predicts these texts worse than the reference: its perplexity is 2.9 % higher "
            "(95 % interval: 2.5 % higher to 3.32 % higher).",
        ),
        (
            *(1.001, [0.999, 1.003], 0.01),
            "The model is within 1 % of the reference: its perplexity is 0.1 % higher "
            "(95 % interval: 0.1 % lower to 0.3 % higher).",
        ),
        (
            *(0.999, [0.997, 1.003], None),
            "No clear difference between the model and the reference: its perplexity is 0.1 % lower "
            "(95 % interval: 0.3 % lower to 0.3 % higher).",
        ),
        (
            *(1.5, None, 0.01),
            "The model against the reference: its perplexity is 50 % higher. There is not "
            "enough text for an interval.",
        ),
        (
            *(INF, None, None),
            "There is no ratio, because the perplexity of the model or the reference is infinite.",
        ),
    ],
)
def test_summary(ratio, interval, margin, expected):
    of_models = {"ratio": ratio, "interval": interval}
    assert judge(of_models, margin, "perplexity", 2)["summary"] == expected


# ---- how sure it is

CORPORA = 400


def clustered(generator, spread_of_texts, spread_of_tokens, texts=TEXTS, length=60):
    """Noise that tokens of a text share, and noise of their own (N,)."""
    shared = spread_of_texts * generator.standard_normal(texts)
    return np.repeat(shared, length) + spread_of_tokens * generator.standard_normal(texts * length)


def log_ratio(generator):
    """Paired, what texts share is small beside the spread of nlls, but not nothing."""
    difficulty = clustered(generator, 1.0, 1.0)
    nll = 3.02 + difficulty + clustered(generator, 0.05, 0.2)
    scores = scores_of([60] * TEXTS, reference_nll=3 + difficulty, nll=nll)
    return scores.differences, scores.mean(scores.differences).interval


def divergence(generator):
    """Skewed values whose true mean is known."""
    values = np.exp(clustered(generator, 0.4, 1.0)) / math.exp((0.4**2 + 1) / 2)
    scores = scores_of([60] * TEXTS, kl=0.03 * values)
    return scores["kl"], positive_interval(scores.mean(scores["kl"]))


def same_top(generator):
    """Hits whose probability differs between texts."""
    probability = np.repeat(generator.beta(9, 1, TEXTS), 60)
    hits = generator.random(TEXTS * 60) < probability
    scores = scores_of([60] * TEXTS, reference_top=hits.astype(int))
    return hits, compared(scores)["same_top_interval"]


@pytest.mark.parametrize("draw, truth", [(log_ratio, 0.02), (divergence, 0.03), (same_top, 0.9)])
def test_coverage(draw, truth):
    """Intervals hold what they claim; those from tokens as the sample, as others print, do not."""
    generator = np.random.default_rng(0)
    hits = naive_hits = 0
    for _ in range(CORPORA):
        column, interval = draw(generator)
        hits += interval[0] <= truth <= interval[1]
        reach = 1.96 * column.std(ddof=1) / math.sqrt(len(column))
        naive_hits += abs(column.mean() - truth) <= reach
    assert 0.92 <= hits / CORPORA <= 0.98
    assert naive_hits / CORPORA < 0.75
