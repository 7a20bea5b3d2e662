"""The uncertainty of a perplexity: its formulas, how often its interval holds the truth, how wide it is.

Simulated nlls are correlated as those of real text are: texts differ in difficulty, and tokens near
each other are alike.  Each simulation draws 1,000 corpora, so a coverage of 95 % is measured with a
standard deviation of 0.7 %; 93 % to 97 % are three of these.
"""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from perplexity_sliding.results.totals import Aggregation, TextScores, Totals
from perplexity_sliding.results.uncertainty import (
    Blocks,
    degrees_of_freedom,
    estimate_ratio,
    jackknife,
    share_interval,
    sign_flip_pvalue,
    student_t,
)

CORPORA = 1000
MEAN_NLL = 3.0
NORMAL_QUANTILE = 1.959964


def summarize(texts, *average, **others) -> dict:
    """Return the result of texts; see `Aggregation`."""
    return Totals.of(texts, Aggregation(*average, **others)).result()


def text(nlls, ends=(), length=None, first=0, **units):
    """Scores of one text, cut into windows at `ends`; the units are one a token unless given."""
    windows = np.split(np.asarray(nlls, dtype=np.float64), ends)
    sizes = [len(window) for window in windows]
    units = dict.fromkeys(("num_tokens", "num_bytes", "num_characters", "num_words"), 1) | units
    firsts = [first + size for size in itertools.accumulate([0, *sizes[:-1]])]
    return TextScores(windows, firsts, sizes, length or first + len(nlls), **units)


def autoregressive(generator, rows, length, correlation):
    """Stationary AR(1) noise of variance 1 (rows, length): neighbours correlate."""
    noise = generator.standard_normal((length, rows))
    noise[1:] *= math.sqrt(1 - correlation**2)
    for before, now in itertools.pairwise(noise):
        now += correlation * before
    return noise.T


# ---- coverage and width

# lengths of the texts, tokens of a window, correlation of neighbours, spread of difficulty of the
# texts, what is taken as the sample, and how much wider than with a known variance an interval is
SCENARIOS = {
    "30 texts": (range(50, 350, 10), 1024, 0.6, 0.4, "30 texts", 1.1),
    "10 texts": ([300] * 10, 64, 0.6, 0.4, "10 texts", 1.25),
    "12 texts of log-normal lengths": (
        [1500, 1000, 750, 600, 500, 400, 330, 270, 220, 170, 120, 80],
        256,
        0.6,
        0.4,
        "12 texts",
        1.3,
    ),
    "5 texts shorter than a window": (range(150, 250, 20), 1024, 0.6, 0.4, "5 texts", 1.5),
    "2 long texts": ([2000, 2000], 256, 0.8, 0, "16 parts of 2 texts", 1.15),
    "very different lengths": (
        [100, 200, 3000, 500, 700, 900, 50, 20, 10],
        128,
        0.8,
        0,
        "24 parts of 9 texts",
        1.15,
    ),
    "a long text": ([4096], 128, 0.8, 0, "20 parts of 1 text", 1.15),
    "alike over more than a window": ([8192], 64, 0.98, 0, "20 parts of 1 text", 1.15),
    "a text of four windows": ([1024], 256, 0.8, 0, "4 parts of 1 text", 1.6),
}


def draw(lengths, correlation, difference, corpora=CORPORA, seed=0):
    """Corpora of nlls (corpora, Σ lengths) with the mean MEAN_NLL, clusters alike."""
    generator = np.random.default_rng(seed)
    noise = autoregressive(generator, corpora * len(lengths), max(lengths), correlation)
    noise = noise.reshape(corpora, len(lengths), -1)
    noise += MEAN_NLL + difference * generator.standard_normal((corpora, len(lengths), 1))
    return np.concatenate([noise[:, n, :length] for n, length in enumerate(lengths)], axis=1)


def places(lengths):
    """Text and position of each token."""
    return np.repeat(np.arange(len(lengths)), lengths), np.concatenate([*map(np.arange, lengths)])


@pytest.mark.parametrize("scenario", SCENARIOS.values(), ids=SCENARIOS)
def test_coverage_and_width(scenario):
    lengths, window, correlation, difference, sample, widest = scenario
    lengths = list(lengths)
    corpora = draw(lengths, correlation, difference)
    intervals = []
    for nlls in corpora:
        clusters = Blocks.of(lengths, *places(lengths), [np.ones_like(nlls), nlls]).clusters(window)
        assert clusters.sample == sample
        tokens, sums = clusters.sums.T
        intervals.append(estimate_ratio(sums, tokens).interval)
    low, high = np.array(intervals).T
    assert 0.93 <= ((low <= MEAN_NLL) & (high >= MEAN_NLL)).mean() <= 0.97
    ideal = 2 * NORMAL_QUANTILE * corpora.mean(axis=1).std()
    assert 0.9 <= (high - low).mean() / ideal <= widest
    # tokens are not independent
    margins = NORMAL_QUANTILE * corpora.std(axis=1, ddof=1) / math.sqrt(corpora.shape[1])
    assert (abs(corpora.mean(axis=1) - MEAN_NLL) <= margins).mean() < 0.75


@pytest.mark.parametrize(
    ("lengths", "sample"),
    [
        ([400] * 12, "12 texts"),
        ([400] * 10, "10 texts"),
        ([2000, 2000, 2000, *[300] * 9], "12 texts"),  # 4.5 degrees of freedom
        ([4000, 4000, *[100] * 10], "28 parts of 12 texts"),  # 1.4
        ([400] * 9, "18 parts of 9 texts"),
        ([400] * 5, "20 parts of 5 texts"),
        ([4000, *[20] * 50], "66 parts of 51 texts"),  # short texts stay whole
        ([400] * 3 + [40] * 2, "20 parts of 5 texts"),
        ([1000], "20 parts of 1 text"),
        ([500], "10 parts of 1 text"),  # of no less than 50 tokens
        ([40], None),
    ],
)
def test_texts_are_the_sample_while_they_are_about_ten(lengths, sample):
    texts = [text(np.arange(length) % 7) for length in lengths]
    result = summarize(texts, block_tokens=50)
    assert result["interval_sample"] == sample
    few = "within this text" if len(lengths) == 1 else "within these texts"
    scope = "over texts" if sample == f"{len(lengths)} texts" else few
    assert result["interval_scope"] == (sample and scope)


@pytest.mark.parametrize(
    ("texts", "block_tokens"),
    [
        ([text([1.0, 2.0, 3.0]), text([2.0, 4.0])], 16),
        ([text(np.arange(30.0) % 7), text(np.arange(20.0) % 5)], 1024),
        ([text(np.arange(700.0) % 7, [256, 512])], 256),  # three parts
        ([text([1.0, 2.0, 3.0])], 1),
    ],
    ids=["two texts of few tokens", "two texts", "three windows", "one window"],
)
@pytest.mark.parametrize("aggregate", ["tokens", "texts", "window means"])
def test_too_little_to_tell(texts, block_tokens, aggregate):
    result = summarize(texts, aggregate, block_tokens=block_tokens)
    assert result["perplexity"] > 1
    assert result["perplexity_stderr"] is None
    assert result["perplexity_interval"] is None
    assert result["interval_sample"] is None


@pytest.mark.parametrize("aggregate", ["tokens", "texts", "capped"])
def test_an_interval_does_not_go_below_one(aggregate):
    texts = [text([mean] * 50) for mean in (0.01, 0.02, 0.5, 4.0)]
    low, high = summarize(texts, aggregate, block_tokens=1024)["perplexity_interval"]
    assert low == 1
    assert high > 2


# ---- formulas


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
    assert result["interval_sample"] == "12 texts"


def test_the_standard_error_is_the_jackknifes():
    """By hand: the ratio 16 / 8, and without each cluster 14/6, 9/5, 13/7, 14/7, 14/7."""
    estimate = estimate_ratio([2.0, 7.0, 3.0, 2.0, 2.0], [2.0, 3.0, 1.0, 1.0, 1.0])
    moved = [2 - 14 / 6, 2 - 9 / 5, 2 - 13 / 7, 0, 0]
    assert estimate.value == 2
    assert estimate.stderr == pytest.approx(math.sqrt(4 / 5 * sum(step**2 for step in moved)))
    assert estimate.degrees == degrees_of_freedom(np.array([2, 3, 1, 1, 1]) / 8)
    reach = student_t(estimate.degrees) * estimate.stderr
    assert estimate.interval == pytest.approx([2 - reach, 2 + reach])


def test_parts_of_one_text_are_like_texts_of_that_length():
    nlls = np.random.default_rng(2).gamma(2.0, 1.5, (16, 32))
    one_text = summarize([text(nlls.ravel(), range(8, 512, 8))], block_tokens=32)
    texts = summarize([text(row) for row in nlls])
    assert one_text["interval_sample"] == "16 parts of 1 text"
    assert one_text["perplexity_stderr"] == pytest.approx(texts["perplexity_stderr"])
    assert one_text["perplexity_interval"] == pytest.approx(texts["perplexity_interval"])


def test_texts_of_different_lengths_against_the_bootstrap():
    """Drawing texts with replacement spreads the log perplexity as the standard error says."""
    generator = np.random.default_rng(3)
    lengths = generator.integers(50, 400, 200)
    (nlls,) = draw(lengths, 0.6, 0.4, corpora=1)
    texts = [text(of_text) for of_text in np.split(nlls, np.cumsum(lengths)[:-1])]
    result = summarize(texts)
    sums = np.array([scored.window_nlls[0].sum() for scored in texts])
    draws = generator.integers(0, 200, (4000, 200))
    log_perplexities = sums[draws].sum(axis=1) / lengths[draws].sum(axis=1)
    # 4000 draws measure a standard deviation to about 1 %, and 200 texts leave out a part in 200.
    assert result["perplexity_stderr"] / result["perplexity"] == pytest.approx(
        log_perplexities.std(), rel=0.05
    )


@pytest.mark.parametrize("lengths", [[2, 3, 1, 1, 1], [40, 1, 1, 1], [1] * 4], ids=str)
def test_degrees_of_freedom_match_the_variances_moments(lengths):
    """The variance is a quadratic form z'Bz of normal z: mean tr B, variance 2 tr B²."""
    shares = np.array(lengths) / sum(lengths)
    centred = np.eye(len(shares)) - shares  # a cluster's mean less the whole's: centred @ means
    factors = np.diag(shares / (1 - shares)) @ centred @ np.diag(shares**-0.5)
    form = factors @ factors.T
    expected = np.trace(form) ** 2 / np.trace(form @ form)
    assert degrees_of_freedom(shares) == pytest.approx(expected)


# ---- p-values


def test_pvalue_of_many_clusters_is_students():
    """scipy's one-sample t-test is the same where clusters weigh the same."""
    stats = pytest.importorskip("scipy.stats")
    differences = np.random.default_rng(4).normal(0.3, 1, 25)
    estimate = estimate_ratio(differences, np.ones(25))
    assert estimate.pvalue == pytest.approx(stats.ttest_1samp(differences, 0).pvalue)


def test_pvalue_of_few_clusters_changes_signs():
    """By hand: of the 16 ways to sign 1, 2, 3, 4 both ends are 10, and -1 + 2 + 3 + 4 is 8."""
    assert sign_flip_pvalue(np.array([1.0, 2.0, 3.0, 4.0])) == 2 / 16
    assert sign_flip_pvalue(np.array([-1.0, 2.0, 3.0, 4.0])) == 4 / 16
    assert estimate_ratio([-1.0, 2.0, 3.0, 4.0], np.ones(4)).pvalue == 4 / 16
    assert estimate_ratio([2.0, 4.0, 6.0, 8.0], np.full(4, 2.0)).pvalue == 2 / 16


@pytest.mark.parametrize("number", [6, 30])
def test_pvalues_of_no_difference_are_uniform(number):
    """5 % of them are below 5 %; of 6 clusters, whose p-values are 2/64 apart, 2/64."""
    generator = np.random.default_rng(5)
    weights = generator.integers(50, 150, number)
    draws = generator.normal(0, np.sqrt(weights), (3000, number))
    pvalues = np.array([estimate_ratio(terms, weights).pvalue for terms in draws])
    assert (pvalues <= 0.05).mean() == pytest.approx(2 / 64 if number == 6 else 0.05, abs=0.012)
    assert (pvalues <= 0.5).mean() == pytest.approx(0.5, abs=0.03)


@pytest.mark.parametrize("number", [5, 20])
def test_rounding_is_not_significant(number):
    """The same weights under other code: a p-value of 0.06 that changed with the batch."""
    terms = np.random.default_rng(6).uniform(1e-8, 1e-6, number)
    assert estimate_ratio(terms, np.ones(number)).pvalue == 1.0
    assert estimate_ratio(100 * terms, np.ones(number)).pvalue < 0.1
    estimate = estimate_ratio(0 * terms, np.ones(number))
    assert (estimate.value, estimate.stderr, estimate.pvalue) == (0, 0, 1)
    assert estimate.interval == [0, 0]


# ---- other numbers than ratios


def test_the_interval_of_a_skewed_mean_is_symmetric_in_its_logarithm():
    estimate = estimate_ratio([1.0, 2.0, 4.0, 30.0, 5.0], np.ones(5))
    logarithm = estimate.logarithm()
    assert logarithm.value == math.log(8.4)
    assert logarithm.stderr == pytest.approx(estimate.stderr / 8.4)
    low, high = logarithm.interval
    assert (low + high) / 2 == pytest.approx(logarithm.value)
    assert (high - low) / 2 == pytest.approx(2.7764 * estimate.stderr / 8.4, rel=1e-4)
    assert estimate_ratio([0.0, 0.0, 0.0, 0.0], np.ones(4)).logarithm().interval is None


@pytest.mark.parametrize("unscored", [[], [0, 0, 2]], ids=["all scored", "some unscored"])
def test_jackknife_of_a_ratio_is_that_of_estimate_ratio(unscored):
    """Contexts fill clusters of their own: p was 0.0003 over four texts, for which 0.125 is the least."""
    terms, weights = np.random.default_rng(6).gamma(20.0, 1.0, (2, 4))
    expected = estimate_ratio(terms, weights)
    terms, weights = (np.insert(column, unscored, 0.0) for column in (terms, weights))
    ratio = terms.sum() / weights.sum()
    moved = ratio - (terms.sum() - terms) / (weights.sum() - weights)
    estimate = jackknife(ratio, moved, weights / weights.sum())
    assert (estimate.value, estimate.stderr) == pytest.approx((expected.value, expected.stderr))
    assert estimate.interval == pytest.approx(expected.interval)
    assert estimate.pvalue == expected.pvalue == 0.125


def test_the_sample_is_what_has_scored_tokens():
    lengths, per_text = [160, 160, 160], 16
    positions = np.concatenate([np.arange(80, 160), np.arange(160)])
    texts = np.repeat([0, 1], [80, 160])
    clusters = Blocks.of(lengths, texts, positions, [np.ones(240)]).cut(np.full(3, per_text))
    assert clusters.sample == "24 parts of 2 texts"
    whole = Blocks.of(lengths, texts, positions, [np.ones(240)]).cut(np.ones(3, dtype=int))
    assert whole.sample == "2 texts"


@pytest.mark.parametrize("share", [0.3, 0.02])
def test_coverage_of_a_share(share):
    """Tokens of a cluster are alike: each cluster has its own share."""
    generator = np.random.default_rng(7)
    counts = generator.integers(150, 250, 25)
    shares = generator.beta(20 * share, 20 * (1 - share), (1000, 25))
    intervals = [share_interval(hits, counts) for hits in generator.binomial(counts, shares)]
    low, high = np.array(intervals).T
    assert 0.92 <= ((low <= share) & (share <= high)).mean() <= 0.975
    assert low.min() > 0


def test_share_interval_of_independent_tokens_is_wilsons():
    """With each token a cluster, and t in place of the normal quantile."""
    hits = np.repeat([1, 0], [30, 170])
    squared = student_t(199) ** 2
    share, size = 0.15, 199  # the jackknife's variance is share · (1 - share) / (n - 1)
    roots = np.roots([1 + squared / size, -(2 * share + squared / size), share**2])
    assert share_interval(hits, np.ones(200)) == pytest.approx(sorted(roots))
    assert (
        share_interval(0 * hits, np.ones(200)) is share_interval(1 + 0 * hits, np.ones(200)) is None
    )


# ---- in results


def test_no_uncertainty_where_only_one_cluster_counts():
    """At stride 1 the guide's present weights leave nothing but the first window."""
    nlls = np.random.default_rng(4).gamma(2.0, 1.5, 60)
    windows = [nlls[:8], *np.split(nlls[8:], 52)]
    scored = TextScores(windows, [0, *range(8, 60)], [7] + [0] * 52, 60, 60, 60, 60, 60)
    result = summarize([scored], "guide weights", block_tokens=8)
    assert result["perplexity"] == pytest.approx(math.exp(nlls[:8].mean()))
    assert result["perplexity_stderr"] is None
    assert result["perplexity_interval"] is None


def test_mean_of_perplexities():
    """Of the stock metric, whose perplexity is a mean over texts: the error of that mean."""
    values = [20.0, 30.0, 25.0, 41.0]
    result = summarize([text([math.log(value)] * 3) for value in values], "texts")
    stderr = np.std(values, ddof=1) / 2
    assert result["perplexity"] == pytest.approx(29)
    assert result["perplexity_stderr"] == pytest.approx(stderr)
    # on a log scale, with Student's t of 3 degrees of freedom
    factor = math.exp(3.1824 * stderr / 29)
    assert result["perplexity_interval"] == pytest.approx([29 / factor, 29 * factor], rel=1e-4)
    assert result["interval_sample"] == "4 texts"


def test_coverage_of_the_mean_of_perplexities():
    """Perplexities are skewed: an interval of plain ± would lie too low as a whole."""
    logs = np.random.default_rng(8).normal(3, 0.8, (1000, 12))
    truth = math.exp(3 + 0.8**2 / 2)
    below = {"log": 0, "plain": 0}
    for row in logs:
        result = summarize([text([value]) for value in row], "texts")
        low, high = result["perplexity_interval"]
        assert low * high == pytest.approx(result["perplexity"] ** 2)
        below["log"] += high < truth
        reach = student_t(11) * result["perplexity_stderr"]
        below["plain"] += result["perplexity"] + reach < truth
    assert below["log"] < 0.7 * below["plain"]


def test_a_cap_holds_for_the_interval():
    """Megatron's cap of 20 nats, with a mean just below it."""
    nlls = 19.9 + np.random.default_rng(9).normal(0, 3, 600)
    result = summarize([text(nlls)], "capped", block_tokens=30)
    low, high = result["perplexity_interval"]
    assert math.log(low) < nlls.mean() < 20
    assert high == math.exp(20)
    assert summarize([text(nlls + 30)], "capped", block_tokens=30)["perplexity_stderr"] is None


def numbers(value):
    """All numbers in a result."""
    if isinstance(value, list):
        return [number for part in value for number in numbers(part)]
    return [value] if isinstance(value, int | float) else []


INFINITE = {
    "an impossible token": [[1.0, math.inf, 2.0], [1.0, 2.0]],
    "a mean too large for exp": [[800.0, 900.0], [850.0, 1000.0]],
    "all equally hard": [[800.0, 900.0], [900.0, 800.0]],
}


@pytest.mark.parametrize("error", [None, "population"])
@pytest.mark.parametrize("nlls", INFINITE.values(), ids=INFINITE)
def test_an_infinite_perplexity(nlls, error):
    """How sure we are of it is unknown; nothing is NaN."""
    result = summarize([text(of_text) for of_text in nlls], error=error)
    assert result["perplexity"] == math.inf
    assert result["total_nll"] == sum(map(sum, nlls))
    assert result["perplexity_stderr"] is None
    assert not any(math.isnan(number) for value in result.values() for number in numbers(value))


def test_bits_per_byte_have_the_interval_of_a_mean_over_texts_of_equal_size():
    """Student's interval of the texts' nlls, however many tokens each has."""
    rng = np.random.default_rng(5)
    counts = rng.integers(8, 30, 12)
    texts = [
        text(rng.exponential(2.0, n), num_tokens=n, num_bytes=120, token_bytes=np.full(n, 120 / n))
        for n in counts
    ]
    result = summarize(texts)
    totals = np.array([sum(map(np.sum, of.window_nlls)) for of in texts])
    margin = 2.2010 * totals.std(ddof=1) / math.sqrt(12)  # t with 11 degrees of freedom
    expected = np.array([totals.mean() - margin, totals.mean() + margin]) / 120 / math.log(2)
    assert result["bits_per_byte"] == pytest.approx(expected.mean())
    assert result["bits_per_byte_interval"] == pytest.approx(expected, rel=1e-4)
    own = np.log(result["perplexity_interval"]) * counts.sum() / 1440 / math.log(2)
    assert result["bits_per_byte_interval"] != pytest.approx(own, rel=0.05)


def test_within_a_text_bits_have_the_interval_of_its_parts():
    """Of one byte a token it is that of the mean nll; of an unknown number there is none."""
    nlls = np.random.default_rng(6).exponential(2.0, 2000)
    whole = text(nlls, num_tokens=2000, num_bytes=2000)
    result = summarize([replace(whole, token_bytes=np.ones(2000))], block_tokens=10)
    expected = np.log(result["perplexity_interval"]) / math.log(2)
    assert result["bits_per_byte_interval"] == pytest.approx(expected)
    few = [text([2.0] * 2), text([3.0], num_bytes=2), text([1.0, 4.0, 2.0], num_bytes=2)]
    assert summarize(few)["bits_per_byte_interval"] is None is summarize(few)["perplexity_interval"]
    unknown = replace(whole, token_bytes=np.full(2000, np.nan))
    assert summarize([unknown], block_tokens=10)["bits_per_byte_interval"] is None
