"""The uncertainty of a perplexity: its formulas, and how often its interval holds the truth.

Simulated nlls are correlated as those of real text are: texts differ in difficulty, and tokens near
each other are alike.  Each simulation draws 500 corpora, so a coverage of 95 % is measured with a
standard deviation of 1 %; 92 % to 98 % are three of these.
"""

import itertools
import math

import numpy as np
import pytest
from core.results import TextScores, student_t_quantile, summarize
from models import random_text

CORPORA = 500
MEAN_NLL = 3.0
NORMAL_QUANTILE = 1.959964


def text(nlls, ends=()):
    """Scores of one text, cut into windows at `ends`."""
    windows = np.split(np.asarray(nlls, dtype=np.float64), ends)
    return TextScores(windows, [len(window) for window in windows], len(nlls), 1, 1, 1)


def autoregressive(generator, rows, length, correlation):
    """Stationary AR(1) noise of variance 1 (rows, length): neighbours correlate."""
    noise = generator.standard_normal((length, rows))
    noise[1:] *= math.sqrt(1 - correlation**2)
    for before, now in itertools.pairwise(noise):
        now += correlation * before
    return noise.T


def different_texts(generator, lengths):
    """Corpora of texts of `lengths` (corpora, texts), some easier than others."""
    difficulty = 0.4 * generator.standard_normal(lengths.shape)
    noise = autoregressive(generator, lengths.size, lengths.max(), 0.6)
    rows = iter(MEAN_NLL + difficulty.ravel()[:, None] + noise)
    for own in lengths:
        yield [text(next(rows)[:length]) for length in own]


def texts_of(shortest, longest, number):
    def corpora(generator):
        return different_texts(generator, generator.integers(shortest, longest, (CORPORA, number)))

    return corpora


def texts_of_very_different_lengths(generator):
    lengths = 100 * np.exp(generator.standard_normal((CORPORA, 10)))
    return different_texts(generator, lengths.astype(int) + 2)


def one_long_text(length, window, stride, correlation):
    ends = range(window, length, stride)

    def corpora(generator):
        for nlls in MEAN_NLL + autoregressive(generator, CORPORA, length, correlation):
            yield [text(nlls, ends)]

    return corpora


def coverage(corpora, aggregate="tokens", block_tokens=1):
    """How often the interval, and how often a naive token-wise one, holds the true perplexity."""
    truth = math.exp(MEAN_NLL)
    held, naive_held = 0, 0
    for texts in corpora(np.random.default_rng(0)):
        low, high = summarize(texts, aggregate, block_tokens=block_tokens)["perplexity_interval"]
        held += low <= truth <= high
        nlls = np.concatenate([own.nlls for own in texts])
        margin = NORMAL_QUANTILE * nlls.std(ddof=1) / math.sqrt(len(nlls))
        naive_held += abs(nlls.mean() - MEAN_NLL) <= margin
    return held / CORPORA, naive_held / CORPORA


SCENARIOS = {
    "30 texts": (texts_of(50, 400, 30), {}),
    "5 texts": (texts_of(150, 250, 5), {}),
    "half-overlapping windows": (one_long_text(4096, 128, 64, 0.8), {"block_tokens": 128}),
    "windows of 16 new tokens": (one_long_text(4096, 128, 16, 0.8), {"block_tokens": 128}),
    "windows side by side": (one_long_text(4096, 128, 128, 0.8), {"block_tokens": 128}),
    "the mean of window means": (
        one_long_text(4096, 128, 64, 0.8),
        {"block_tokens": 128, "aggregate": "window means"},
    ),
    "a text of four windows": (one_long_text(1024, 256, 256, 0.8), {"block_tokens": 256}),
    "texts of very different lengths": pytest.param(texts_of_very_different_lengths, {}),
    "tokens alike over more than a window": pytest.param(
        one_long_text(8192, 64, 32, 0.98), {"block_tokens": 64}
    ),
}


@pytest.mark.parametrize("corpora, settings", SCENARIOS.values(), ids=SCENARIOS)
def test_coverage(corpora, settings):
    held, naive_held = coverage(corpora, **settings)
    assert 0.92 <= held <= 0.98
    assert naive_held < 0.55  # tokens are not independent


def test_texts_of_equal_length():
    """The log perplexity is then a plain mean of text means, with the textbook's error."""
    nlls = np.random.default_rng(1).gamma(2.0, 1.5, (12, 40)) + np.arange(12)[:, None] / 5
    result = summarize([text(row) for row in nlls])
    stderr = nlls.mean(axis=1).std(ddof=1) / math.sqrt(12)
    perplexity = math.exp(nlls.mean())
    assert result["perplexity"] == pytest.approx(perplexity)
    assert result["perplexity_stderr"] == pytest.approx(perplexity * stderr)
    factor = math.exp(2.2010 * stderr)  # Student's t, 11 degrees of freedom
    assert result["perplexity_interval"] == pytest.approx(
        [perplexity / factor, perplexity * factor], rel=1e-4
    )


def test_blocks_of_equal_length_of_one_text():
    """Four windows to a block, and blocks taken as texts of their own."""
    nlls = np.random.default_rng(2).gamma(2.0, 1.5, (10, 32))
    one_text = summarize([text(nlls.ravel(), range(8, 320, 8))], block_tokens=32)
    ten_texts = summarize([text(row) for row in nlls])
    assert one_text["perplexity_stderr"] == pytest.approx(ten_texts["perplexity_stderr"])
    assert one_text["perplexity_interval"] == pytest.approx(ten_texts["perplexity_interval"])


def test_texts_of_different_lengths_against_the_bootstrap():
    """Drawing texts with replacement spreads the log perplexity as the standard error says."""
    generator = np.random.default_rng(3)
    (texts,) = different_texts(generator, generator.integers(50, 400, (1, 200)))
    result = summarize(texts)
    sums = np.array([own.nlls.sum() for own in texts])
    counts = np.array([len(own.nlls) for own in texts])
    draws = generator.integers(0, 200, (4000, 200))
    log_perplexities = sums[draws].sum(axis=1) / counts[draws].sum(axis=1)
    # 4000 draws measure a standard deviation to about 1 %, and 200 texts leave out a part in 200.
    assert result["perplexity_stderr"] / result["perplexity"] == pytest.approx(
        log_perplexities.std(), rel=0.05
    )


def test_metric_reports_it(metric, gpt2, tokenizer):
    texts = [random_text(40, seed) for seed in range(5)]
    result = metric.compute(
        predictions=texts, model=gpt2, tokenizer=tokenizer, return_token_scores=True
    )
    means = [np.mean(own["nll"]) for own in result["token_scores"]]
    stderr = np.std(means, ddof=1) / math.sqrt(5)
    assert result["perplexity_stderr"] == pytest.approx(result["perplexity"] * stderr)
    low, high = result["perplexity_interval"]
    # Student's t, 4 degrees of freedom, by an expansion good to 0.03 %
    assert math.log(high / low) == pytest.approx(2 * 2.7764 * stderr, rel=1e-3)


def test_metric_cuts_a_single_text_into_parts(metric, gpt2, tokenizer):
    result = metric.compute(predictions=[random_text(400)], model=gpt2, tokenizer=tokenizer)
    low, high = result["perplexity_interval"]
    assert low < result["perplexity"] < high
    assert 0 < result["perplexity_stderr"] < result["perplexity"]


@pytest.mark.parametrize(
    "texts",
    [
        [text([1.0, 2.0, 3.0])],  # one window
        [text(np.arange(15.0), [4, 8, 12])],  # less than two blocks
    ],
    ids=["one window", "one block"],
)
def test_no_uncertainty_from_a_single_cluster(texts):
    result = summarize(texts, block_tokens=8)
    assert result["perplexity"] > 1
    assert result["perplexity_stderr"] is None
    assert result["perplexity_interval"] is None


def test_two_clusters_give_an_interval():
    result = summarize([text([1.0, 2.0, 3.0]), text([2.0, 4.0])])
    assert result["perplexity_interval"][0] < result["perplexity"]


def test_no_uncertainty_where_only_one_cluster_counts():
    """At stride 1 the guide's present weights leave nothing but the first window."""
    nlls = np.random.default_rng(4).gamma(2.0, 1.5, 60)
    windows = [nlls[:8], *np.split(nlls[8:], 52)]
    own = TextScores(windows, [7] + [0] * 52, 60, 1, 1, 1)
    result = summarize([own], "guide weights", block_tokens=8)
    assert result["perplexity"] == pytest.approx(math.exp(nlls[:8].mean()))
    assert result["perplexity_stderr"] is None
    assert result["perplexity_interval"] is None


def test_equally_hard_texts_leave_no_doubt():
    result = summarize([text([2.0] * 5), text([2.0] * 9)])
    assert result["perplexity_stderr"] == pytest.approx(0, abs=1e-12)
    assert result["perplexity_interval"] == pytest.approx([math.exp(2)] * 2)


def test_mean_of_perplexities():
    """Of the stock metric, whose perplexity is a mean over texts: the error of that mean."""
    values = [20.0, 30.0, 25.0, 41.0]
    result = summarize([text([math.log(value)] * 3) for value in values], "texts")
    stderr = np.std(values, ddof=1) / 2
    assert result["perplexity"] == pytest.approx(29)
    assert result["perplexity_stderr"] == pytest.approx(stderr)
    margin = 3.1824 * stderr  # Student's t, 3 degrees of freedom, good to 0.2 %
    assert result["perplexity_interval"] == pytest.approx([29 - margin, 29 + margin], rel=5e-3)


def test_mean_of_perplexities_stays_possible():
    """The stock metric's own example, with three very different texts: none can be below 1."""
    values = [32.25, 1499.69, 408.27]
    result = summarize([text([math.log(value)] * 3) for value in values], "texts")
    assert result["perplexity_interval"][0] >= 1


def test_llama_cpp_and_mlx_lm():
    """What the tools print behind ±, tokens taken as independent."""
    nlls = np.random.default_rng(5).gamma(2.0, 1.5, 300)
    own = text(nlls, [100, 200])
    perplexity = math.exp(nlls.mean())
    variance = ((nlls**2).mean() - nlls.mean() ** 2) / (300 - 1)
    llama_cpp = summarize([own], error="population")["tool_stderr"]
    assert llama_cpp == pytest.approx(math.sqrt(variance) * perplexity)
    mlx_lm = summarize([own], error="sample")["tool_stderr"]
    assert mlx_lm == pytest.approx(nlls.std(ddof=1) / math.sqrt(300) * perplexity)
    assert "tool_stderr" not in summarize([own])


def numbers(value):
    """All numbers in a result."""
    if isinstance(value, list):
        return [number for part in value for number in numbers(part)]
    return [] if value is None else [value]


@pytest.mark.parametrize(
    "error",
    [
        None,
        pytest.param("population"),
        pytest.param("sample"),
    ],
)
@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
def test_an_infinite_nll(error):
    """A token the model finds impossible: perplexity is infinite, and how sure we are is unknown."""
    result = summarize([text([1.0, math.inf, 2.0]), text([1.0, 2.0])], error=error)
    assert result["perplexity"] == result["total_nll"] == math.inf
    assert result["perplexities"] == [math.inf, pytest.approx(math.exp(1.5))]
    assert result["perplexity_stderr"] is None
    assert result["perplexity_interval"] is None
    assert not any(math.isnan(number) for value in result.values() for number in numbers(value))


@pytest.mark.parametrize(
    "nlls",
    [
        [[800.0, 900.0], [850.0, 1000.0]],
        [[800.0, 900.0], [900.0, 800.0]],
    ],
    ids=["different", "equally hard"],
)
def test_an_overflowing_perplexity(nlls):
    """exp of a finite mean can be too large for a float: inf is the answer, never NaN."""
    result = summarize([text(own) for own in nlls])
    assert result["perplexity"] == math.inf
    assert not any(math.isnan(number) for value in result.values() for number in numbers(value))


# 97.5 % quantiles, as in any table of Student's t.
QUANTILES = {1: 12.7062, 2: 4.3027, 3: 3.1824, 4: 2.7764, 5: 2.5706, 10: 2.2281, 30: 2.0423}


@pytest.mark.parametrize("degrees", QUANTILES)
def test_students_t(degrees):
    assert student_t_quantile(0.975, degrees) == pytest.approx(QUANTILES[degrees], rel=2e-3)


def test_students_t_against_scipy():
    stats = pytest.importorskip("scipy.stats")
    for degrees in [1, 2, *range(3, 40), 100, 1000, 10**6]:
        expected = stats.t.ppf(0.975, degrees)
        assert student_t_quantile(0.975, degrees) == pytest.approx(expected, rel=2e-3)
        if degrees >= 10:
            assert student_t_quantile(0.975, degrees) == pytest.approx(expected, rel=1e-5)
