"""Perplexity by length of context, on scores made up here."""

import math

import numpy as np
import pytest
import reference

from perplexity_sliding.plan.windows import PlannedWindow, count_inputs, merge_windows, plan_windows
from perplexity_sliding.results.contexts import ContextTotals, doubling_lengths


def summarize_contexts(lengths, nlls, contexts, stride):
    return ContextTotals.of(lengths, nlls, contexts, stride, 0, 0).result()["by_context_length"]


def contexts_of(num_tokens, length, stride):
    """What each token of a text sees, 0 where it is not scored."""
    seen = reference.with_context(num_tokens, length, stride)
    return np.array([seen.get(target, 0) for target in range(num_tokens)])


def copy_model_nlls(contexts, reach, low=0.5, high=4.0):
    """Losses of a model that copies what stood `reach` tokens before, where it sees that far."""
    return [np.where(seen >= reach, low, high) for seen in contexts]


@pytest.mark.parametrize("reach", [1, 5, 12, 13, 28, 29, 40])
def test_a_copying_model_falls_where_its_context_reaches(reach):
    """A token sees between length - stride and length - 1 tokens: enough, too few, or in between."""
    lengths, stride, num_tokens = [8, 16, 32], 4, 200
    contexts = {length: [contexts_of(num_tokens, length, stride)] for length in lengths}
    nlls = [copy_model_nlls(contexts[length], reach) for length in lengths]
    summaries = summarize_contexts(lengths, nlls, contexts[32], stride)
    for summary in summaries:
        length = summary["context_length"]
        seen = np.arange(length - stride, length)  # each as often
        expected = np.where(seen >= reach, 0.5, 4.0).mean()
        assert summary["nll"] == pytest.approx(expected)
        assert summary["perplexity"] == pytest.approx(math.exp(expected))


def test_every_length_is_asked_for_the_same_tokens():
    """The longest serves tokens from its end less a stride on; nothing else may count."""
    contexts = [contexts_of(50, 16, 4), contexts_of(13, 16, 4), contexts_of(12, 16, 4)]
    short, long = [np.full(n, 9.0) for n in (50, 13, 12)], [np.full(n, 9.0) for n in (50, 13, 12)]
    short[0][12:], long[0][12:] = 2.0, 1.0
    short[1][12:], long[1][12:] = 2.0, 1.0
    summaries = summarize_contexts([8, 16], [short, long], contexts, 4)
    assert [summary["num_tokens"] for summary in summaries] == [39, 39]
    assert [summary["nll"] for summary in summaries] == [2.0, 1.0]
    ratio = summaries[0]["ratio_to_longest"]
    assert ratio["ratio"] == pytest.approx(math.e)
    assert "ratio_to_longest" not in summaries[1]


def test_the_ratio_to_the_longest_is_paired():
    """Texts differ by far more than lengths do; token by token the difference is certain."""
    generator = np.random.default_rng(0)
    contexts = [contexts_of(60, 16, 8) for _ in range(30)]
    long = [generator.normal(level, 0.1, 60) for level in generator.normal(4, 1, 30)]
    short = [nll + generator.normal(0.2, 0.1, 60) for nll in long]
    shorter, longest = summarize_contexts([8, 16], [short, long], contexts, 8)
    low, high = shorter["interval"]
    assert low < longest["perplexity"] < high
    low, high = shorter["ratio_to_longest"]["interval"]
    assert 1.15 < low < math.exp(0.2) < high < 1.3
    assert shorter["ratio_to_longest"]["pvalue"] < 1e-6


@pytest.mark.parametrize(
    "lengths, times",
    [
        ([8 * (k + 1) for k in range(7)], 4),  # Σ k / 7
        ([64, 128, 256, 512], 1.875),
        ([4 * (k + 1) for k in range(64)], 32.5),  # as many as YaRN's
    ],
)
def test_all_lengths_cost_what_the_longest_costs(lengths, times):
    """Windows from every stride on are merged into the longest of each beginning."""
    stride, longest = lengths[0], lengths[-1]
    num_tokens = 40 * longest
    windows = {length: list(plan_windows(num_tokens, length, stride)) for length in lengths}
    apart = sum(window.num_inputs for of_length in windows.values() for window in of_length)
    passes, _ = merge_windows(
        [PlannedWindow(0, window, None) for of_length in windows.values() for window in of_length]
    )
    alone = sum(window.num_inputs for window in windows[longest])
    # Only at the text's end do shorter windows go on where the longest has ended.
    assert alone <= count_inputs(passes) <= alone + longest * longest / stride
    begins = math.ceil((num_tokens - longest) / stride) + 1
    assert alone == (begins - 1) * (longest - 1) + num_tokens - 1 - (begins - 1) * stride
    assert apart / count_inputs(passes) == pytest.approx(times, rel=0.05)


@pytest.mark.parametrize(
    "longest, stride, lengths",
    [
        (64, None, [8, 16, 32, 64]),
        (64, 8, [16, 32, 64]),
        (64, 1, [2, 4, 8, 16, 32, 64]),
        (64, 33, [64]),
        (100, 10, [25, 50, 100]),
        (2, None, [2]),
        (5, None, [2, 5]),
    ],
)
def test_doubling_lengths(longest, stride, lengths):
    assert doubling_lengths(longest, stride) == lengths


# --- what adds up ---------------------------------------------------------------------------------


def totals_of(texts, lengths=(8, 16)):
    contexts = [contexts_of(len(nll), lengths[-1], 4) for nll in texts]
    nlls = [[nll + n for nll in texts] for n in range(len(lengths))]
    return ContextTotals.of(list(lengths), nlls, contexts, 4, len(texts), totals=0)


@pytest.mark.parametrize("sizes", [(60,) * 3, (300, 20, 7, 55, 90), (12, 30) * 8], ids=str)
def test_totals_of_texts_add_up_to_those_of_all(sizes):
    """Few long texts, whose parts are independent, and many, which are so as a whole."""
    generator = np.random.default_rng(0)
    texts = [generator.gamma(2, 1, size) for size in sizes]
    whole, each = totals_of(texts), [totals_of([text]) for text in texts]
    added, expected = (reference.flat(totals.result()) for totals in (sum(each), whole))
    assert added.keys() == expected.keys()
    for name, value in expected.items():
        same = value if isinstance(value, str | None) else pytest.approx(value, rel=1e-9)
        assert added[name] == same, name
    assert added[".num_forward_tokens"] == len(texts)


def test_a_text_that_is_too_short_has_totals_and_no_result():
    texts = [np.ones(5), np.ones(60)]
    short, long = (totals_of([text]) for text in texts)
    assert not short.are_enough and long.are_enough
    with pytest.raises(ValueError, match="got 16 for texts of at most 5 tokens"):
        short.result()
    assert (short + long).result() == totals_of(texts).result()


def test_totals_of_other_lengths_are_not_added():
    texts = [np.ones(60)]
    with pytest.raises(ValueError, match="be added only if context_lengths are the same"):
        totals_of(texts) + totals_of(texts, lengths=(4, 16))
