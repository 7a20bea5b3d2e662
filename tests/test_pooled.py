"""Pooled totals: the same result, in room that does not grow with the texts."""

import pickle

import numpy as np
import pytest

from perplexity_sliding.digests import TextsDigest
from perplexity_sliding.results.totals import Aggregation, TextScores, Totals, ratio_of_perplexities

LISTS = {"perplexities", "num_tokens_per_text"}
AGGREGATIONS = {
    "tokens": Aggregation(block_tokens=16),
    "llama.cpp's ±": Aggregation(error="population", word_counts_given=True),
    "window means": Aggregation("window means", error="sample", block_tokens=16),
    "guide weights": Aggregation("guide weights", block_tokens=16),
    "capped": Aggregation("capped", block_tokens=16, word_counts_given=True),
    "texts": Aggregation("texts"),
}
# Lengths of the texts, in the order in which they come.
CORPORA = {
    "short": [*range(2, 30)] * 3,
    "one text": [700],
    "few": [9, 800, 12],
    "a long one at last": [20] * 50 + [5_000],
    "a long one at first": [5_000] + [20, 30] * 30,
    "long while few": [64, 300, 90, 31] + [250, 64] * 40,
    "as long as each other": [64] * 40,
    "two long ones among many alike": [20] * 200 + [900] * 2,
    "of one token": [1, 9, 1, 12] * 9,
    "all but one short": [9] * 30 + [3_000, 12, 9, 2_500, 7, 3_000],
}


def corpus(lengths, largest=8.0) -> list[TextScores]:
    """Texts in windows of up to 25 scored tokens each, every third of them in smaller ones."""
    generator = np.random.default_rng(len(lengths))
    texts = []
    for number, length in enumerate(lengths):
        most = 25 if number % 3 else 4
        nlls = generator.gamma(2, generator.uniform(0.5, largest / 4), length)
        windows = np.split(nlls, range(most, length, most))
        firsts = [most * number for number in range(len(windows))]
        weights = [len(window) - 1 for window in windows]  # 0 for the last of 26 tokens, say
        texts.append(
            TextScores(
                windows, firsts, weights, length, length, 4 * length, 4 * length, length // 2
            )
        )
    return texts


def assert_same(pooled: Totals, whole: Totals) -> None:
    result, expected = pooled.result(), whole.result()
    assert result.keys() == expected.keys() - LISTS
    for name, value in result.items():
        if isinstance(value, (float, list)):
            assert value == pytest.approx(expected[name], rel=1e-12, nan_ok=True), name
        else:
            assert value == expected[name], name


@pytest.mark.parametrize("aggregation", AGGREGATIONS.values(), ids=AGGREGATIONS)
@pytest.mark.parametrize("lengths", CORPORA.values(), ids=CORPORA)
@pytest.mark.parametrize("shard", [1, 7, 1000])
def test_the_result_is_that_of_all_texts(aggregation, lengths, shard):
    texts = corpus(lengths)
    shards = [texts[first : first + shard] for first in range(0, len(texts), shard)]
    totals = [Totals.of(texts, aggregation) for texts in shards]
    assert_same(sum(of_shard.pooled() for of_shard in totals), sum(totals))


def test_a_pooled_corpus_takes_totals_and_is_taken():
    first, second = (Totals.of(corpus(lengths), Aggregation()) for lengths in ([5, 6, 7], [5, 5]))
    assert_same(first.pooled() + second, first + second)
    assert_same(first + second.pooled(), first + second)
    assert first.pooled().pooled().result() == first.pooled().result()


@pytest.mark.parametrize("number", [1_000, 10_000])
def test_its_room_is_that_of_the_different_lengths(number):
    totals = Totals.of(corpus([*range(2, 22), 500] * (number // 21)), Aggregation(block_tokens=16))
    pooled = totals.pooled()
    assert len(pooled.groups.num_texts) == 21 and pooled.groups.num_texts.sum() == len(
        totals.squares
    )
    assert len(pooled.blocks.sums) <= 21 and len(pooled.units) == 1


def test_only_texts_that_may_be_cut_keep_their_blocks():
    pooled = Totals.of(corpus([900] * 9 + [80] * 40), Aggregation(block_tokens=16)).pooled()
    assert sorted(pooled.blocks.per_text) == [1, *[32] * 9]  # 900 tokens are a thirteenth
    assert pooled.groups.num_texts[pooled.blocks.per_text > 1].tolist() == [1] * 9


@pytest.mark.parametrize("aggregation", AGGREGATIONS.values(), ids=AGGREGATIONS)
def test_an_impossible_token_and_an_overflow(aggregation):
    for largest in (np.inf, 3_000.0):
        texts = corpus([12] * 20)
        texts[4].window_nlls[0][5] = largest
        totals = Totals.of(texts, aggregation)
        assert_same(totals.pooled(), totals)


def test_equal_texts_leave_no_doubt():
    texts = [TextScores([np.full(9, 0.1)], [0], [9], 9, 9, 9, 9, 9)] * 1_000
    pooled = Totals.of(texts, Aggregation()).pooled()
    assert (pooled + pooled).result()["perplexity_stderr"] == pytest.approx(0, abs=1e-12)


def test_what_was_measured_otherwise_is_refused():
    texts = corpus([5, 6])
    pooled = Totals.of(texts, Aggregation()).pooled()
    with pytest.raises(ValueError, match="only if model, protocol and settings are the same"):
        pooled + Totals.of(texts, Aggregation("texts"))


def test_what_needs_single_texts_is_refused():
    pooled = Totals.of(corpus([5, 6]), Aggregation()).pooled()
    for needing in (
        pooled.to_json,
        pooled.perplexities,
        lambda: pickle.dumps(pooled),
        lambda: pooled.take([1, 0], [1, 2]),
        lambda: pooled.split([{}, {}], [TextsDigest()] * 2),
        lambda: ratio_of_perplexities(pooled, pooled),
    ):
        with pytest.raises(ValueError, match="Pooled totals"):
            needing()
