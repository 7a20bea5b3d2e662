"""Uncertainty estimates: clusters of tokens, the jackknife over them, intervals and p-values.

Tokens of one text are alike, and so are tokens near each other; the sample is therefore never the
tokens but clusters of them.  One rule serves the perplexity of a corpus, the ratio of two
measurements and the comparison of two models::

    blocks = Blocks.of(lengths, texts, positions, [ones, nlls])    # bounded size, add with +
    clusters = blocks.clusters(block_tokens=max_length)             # texts, or parts of texts
    tokens, nll = clusters.sums.T
    estimate = estimate_ratio(nll, tokens)                          # mean nll: .value, .interval, …

Floats only: no model, no text.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.special import stdtr, stdtrit

from ..digests import ROUNDING

# Minimum number of texts to use texts as the sample.
ENOUGH_TEXTS = 10
# Number of parts with fewer texts: more parts would be shorter than the range over which tokens
# are correlated (Schmeiser, Batch size effects in the analysis of
# simulation output, 1982, finds 10 to 30 enough).
NUM_PARTS = 20
# With fewer degrees of freedom, those of four equal clusters less rounding, an interval would be too
# wide to be useful.
FEWEST_DEGREES = 2.5
# With at least this many clusters, the p-value is from Student's t; with fewer, from all sign flips.
MANY_CLUSTERS = 10
# Number of blocks stored per text; a power of two, so that blocks of two measurements nest.
MAX_BLOCKS = 32
# Minimum number of tokens in a block, so that short texts need little memory.
FEWEST_BLOCK_TOKENS = 8


@dataclass(frozen=True)
class Estimate:
    """A number with its uncertainty; of too few clusters, or infinite ones, only the number.

    Attributes:
        degrees: of freedom of Student's t, see `degrees_of_freedom`.
        interval: [low, high] of 95 % confidence.
        pvalue: two-sided, for the hypothesis that the value is 0.
    """

    value: float
    stderr: float | None = None
    degrees: float | None = None
    interval: list[float] | None = None
    pvalue: float | None = None

    def logarithm(self) -> "Estimate":
        """Return the estimate of the logarithm, whose distribution is less skewed."""
        value = math.log(self.value) if self.value > 0 else -math.inf
        if self.stderr is None or self.degrees is None or not math.isfinite(value):
            return Estimate(value)
        stderr = self.stderr / self.value
        margin = student_t(self.degrees) * stderr
        return Estimate(value, stderr, self.degrees, [value - margin, value + margin])


@dataclass(frozen=True, eq=False)
class Clusters:
    """The units that are assumed to be independent: texts, or parts of texts.

    Those without a scored token do not count: a context may fill whole clusters.

    Attributes:
        sums: sums of the columns over each cluster (C, columns); the first is the number of scored
            tokens.
        num_parts: clusters of each text (T,).
    """

    sums: np.ndarray
    num_parts: np.ndarray

    @cached_property
    def _num_texts_and_clusters(self) -> tuple[int, int]:
        scored = self.sums[:, 0] > 0
        text_of = np.repeat(np.arange(len(self.num_parts)), self.num_parts)
        return len(np.unique(text_of[scored])), int(scored.sum())

    @property
    def sample(self) -> str:
        """The sample in words: "30 texts" or "20 parts of 3 texts"."""
        num_texts, num_clusters = self._num_texts_and_clusters
        texts = f"{num_texts} text{'s' * (num_texts > 1)}"
        return texts if num_texts == num_clusters else f"{num_clusters} parts of {texts}"

    @property
    def scope(self) -> str:
        """The population of an interval: other texts, or other passages of these."""
        num_texts, num_clusters = self._num_texts_and_clusters
        if num_texts == num_clusters:
            return "over texts"
        return "within this text" if num_texts == 1 else "within these texts"


@dataclass(frozen=True, eq=False)
class Blocks:
    """Sums over blocks of neighbouring tokens, from which uncertainties are estimated.

    A text is divided into 1, 2, 4, … or 32 blocks of equal length, by position, whatever is scored, so
    that two measurements of a text have the same blocks.

    Attributes:
        sums: sums of the columns over each block (B, columns); the first is the number of scored
            tokens, which determines the clusters.
        per_text: blocks of each text (T,).
        lengths: length of each text in the unit of positions (T,).
    """

    sums: np.ndarray
    per_text: np.ndarray
    lengths: np.ndarray

    @classmethod
    def of(
        cls,
        lengths: Sequence[int] | np.ndarray,
        texts: np.ndarray,
        positions: np.ndarray,
        columns: Sequence[np.ndarray],
    ) -> "Blocks":
        """Sum columns over the blocks of texts.

        Args:
            texts, positions: the text that each row belongs to, and the row's place there (R,).
            columns: arrays (R,), the first of them the number of tokens in each row.
        """
        of_texts = np.asarray(lengths, dtype=np.int64)
        per_text = num_blocks(of_texts)
        first = np.cumsum(per_text) - per_text
        block = first[texts] + positions * per_text[texts] // of_texts[texts]
        sums = [np.bincount(block, column, minlength=per_text.sum()) for column in columns]
        return cls(np.stack(sums, axis=1), per_text, of_texts)

    @cached_property
    def _firsts(self) -> np.ndarray:
        return np.cumsum(self.per_text) - self.per_text

    def __add__(self, other: "Blocks") -> "Blocks":
        return Blocks(
            np.concatenate([self.sums, other.sums]),
            np.concatenate([self.per_text, other.per_text]),
            np.concatenate([self.lengths, other.lengths]),
        )

    def take(self, texts: np.ndarray) -> "Blocks":
        counts = self.per_text[texts]
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        chosen = np.repeat(self._firsts[texts], counts) + within
        return Blocks(self.sums[chosen], counts, self.lengths[texts])

    def by_text(self) -> np.ndarray:
        return self._merged(np.ones_like(self.per_text))

    def clusters(self, block_tokens: float) -> Clusters:
        return self.cut(self.num_parts(block_tokens))

    def num_parts(self, block_tokens: float) -> np.ndarray:
        """Choose the number of clusters of each text (T,).

        The texts, where there are ten or more, none of which is nearly all, or where all are too short
        to be cut.  Else texts longer than a twentieth of the whole are cut into parts of about that
        length, but of no less than `block_tokens` scored tokens: what these texts differ in from others
        is then not seen.
        """
        if len(self.sums) == len(self.per_text):  # a block each, which nothing cuts
            return self.per_text
        tokens = self.by_text()[:, 0]
        shares = tokens[tokens > 0] / tokens.sum()
        if len(shares) >= ENOUGH_TEXTS and degrees_of_freedom(shares) >= FEWEST_DEGREES:
            return np.ones_like(self.per_text)
        parts = np.minimum(NUM_PARTS * tokens / tokens.sum(), tokens / block_tokens)
        return np.clip(np.round(parts).astype(np.int64), 1, self.per_text)

    def cut(self, num_parts: np.ndarray) -> Clusters:
        return Clusters(self._merged(num_parts), num_parts)

    def aligned(self, other: "Blocks") -> tuple["Blocks", "Blocks"]:
        """Return both with the same blocks, by position in the corpus.

        Text by text, or, where one of them had the texts joined, over the whole corpus.
        """
        if len(self.lengths) != len(other.lengths):
            self, other = self._joined(), other._joined()
        per_text = np.minimum(self.per_text, other.per_text)
        return (
            Blocks(self._merged(per_text), per_text, self.lengths),
            Blocks(other._merged(per_text), per_text, other.lengths),
        )

    def _merged(self, per_text: np.ndarray) -> np.ndarray:
        """Sum over fewer blocks a text, at least one (per_text.sum(), columns)."""
        if per_text.sum() == len(self.sums):  # as many as there are
            return self.sums
        first = np.repeat(self._firsts, per_text)
        blocks, parts = np.repeat(self.per_text, per_text), np.repeat(per_text, per_text)
        number = np.arange(len(first)) - np.repeat(np.cumsum(per_text) - per_text, per_text)
        begins = first - (-number * blocks // parts)  # rounded up
        return np.add.reduceat(self.sums, begins)

    def _joined(self) -> "Blocks":
        """Join the texts; divide a block across a boundary by length."""
        widths = np.repeat(self.lengths / self.per_text, self.per_text)
        ends = np.concatenate([[0.0], np.cumsum(widths)])
        length = self.lengths.sum(keepdims=True)
        per_text = num_blocks(length)
        cuts = np.linspace(0, ends[-1], per_text[0] + 1)
        running = np.concatenate([np.zeros((1, self.sums.shape[1])), np.cumsum(self.sums, axis=0)])
        sums = np.stack([np.diff(np.interp(cuts, ends, column)) for column in running.T], axis=1)
        return Blocks(sums, per_text, length)


def num_blocks(lengths: np.ndarray) -> np.ndarray:
    most = np.minimum(np.maximum(lengths // FEWEST_BLOCK_TOKENS, 1), MAX_BLOCKS)
    return 2 ** np.log2(most).astype(np.int64)


def degrees_of_freedom(shares: np.ndarray) -> float:
    """Compute the degrees of freedom of the jackknife's variance of a mean of clusters.

    Those of the scaled χ² with the same mean and variance, where tokens are alike (Bell and
    McCaffrey, Bias reduction in standard errors for linear regression with multi-stage samples,
    2002).  With r = share / (1 - share) they are (Σ r)² / (Σ r² + (Σ r²)² - Σ r⁴): C - 1 for C
    equal clusters, and fewer the more their lengths differ.

    Args:
        shares: each cluster's share in the whole (C,), adding up to 1.
    """
    if len(shares) < 2 or shares.max() >= 1:
        return 0.0
    odds = shares / (1 - shares)
    squares, fourth = (odds**2).sum(), (odds**4).sum()
    return float(odds.sum() ** 2 / (squares + squares**2 - fourth))


def estimate_ratio(terms: np.ndarray, weights: np.ndarray) -> Estimate:
    """Estimate Σ terms / Σ weights over independent clusters (C,).

    Leaving out one cluster moves the ratio R by (term - R · weight) / (Σ weight - weight).  With
    terms in nats and weights in tokens, R is a log perplexity; with differences of nats, a log
    ratio of perplexities.
    """
    terms, weights = np.asarray(terms, np.float64), np.asarray(weights, np.float64)
    counted = weights > 0
    terms, weights = terms[counted], weights[counted]
    total = float(weights.sum())
    value = float(terms.sum()) / total if total else math.nan
    if len(terms) < 2 or not np.isfinite(terms).all():
        return Estimate(value)
    return jackknife(value, (terms - value * weights) / (total - weights), weights / total)


def jackknife(value: float, moved: np.ndarray, shares: np.ndarray) -> Estimate:
    """Estimate the uncertainty of a number from what leaving out each cluster changes it by.

    var = (C - 1) / C · Σ moved² (Efron, The Jackknife, the Bootstrap and Other Resampling Plans,
    1982), with Student's t for the degrees of freedom of that variance.

    Args:
        moved: the number less its value without the cluster (C,).
        shares: each cluster's share in the whole (C,), adding up to 1; those without any do not count.
    """
    moved, shares = moved[shares > 0], shares[shares > 0]
    count, degrees = len(moved), degrees_of_freedom(shares)
    if degrees < FEWEST_DEGREES or not (np.isfinite(value) and np.isfinite(moved).all()):
        return Estimate(value)
    stderr = math.sqrt((count - 1) / count * float((moved**2).sum()))
    margin = student_t(degrees) * stderr
    if abs(value) <= ROUNDING:
        pvalue = 1.0
    elif count < MANY_CLUSTERS:
        pvalue = sign_flip_pvalue(shares * value + (1 - shares) * moved)
    else:
        pvalue = 2 * float(stdtr(degrees, -abs(value) / stderr)) if stderr else 0.0
    return Estimate(value, stderr, degrees, [value - margin, value + margin], pvalue)


def student_t(degrees: float) -> float:
    """Return the half-width of a 95 % interval, in standard errors."""
    return float(stdtrit(degrees, 0.975))


def sign_flip_pvalue(contributions: np.ndarray) -> float:
    """Count how often random signs would take the sum as far from 0: exactly, over all 2^C.

    Clusters whose contributions are as likely positive as negative are the null hypothesis.  With
    C clusters no p-value is below 2 / 2^C.
    """
    signs = np.array(list(itertools.product([1.0, -1.0], repeat=len(contributions))))
    sums = np.abs(signs @ contributions)
    return float((sums >= sums[0] * (1 - 1e-12)).mean())


def share_interval(hits: np.ndarray, counts: np.ndarray) -> list[float] | None:
    """Compute the 95 % interval of the share Σ hits / Σ counts, between 0 and 1 (Wilson, 1927).

    Clustered tokens carry the information of `size` independent ones, with share · (1 - share) / size the
    jackknife's variance.  None if the clusters are too few, or if all or none hit.
    """
    estimate = estimate_ratio(hits, counts)
    share = estimate.value
    if not estimate.stderr or estimate.degrees is None or not 0 < share < 1:
        return None
    size = share * (1 - share) / estimate.stderr**2
    squared = student_t(estimate.degrees) ** 2
    middle = (share + squared / (2 * size)) / (1 + squared / size)
    reach = math.sqrt(squared * (share * (1 - share) / size + squared / (4 * size**2)))
    reach /= 1 + squared / size
    return [middle - reach, middle + reach]


def exp(value: float) -> float:
    try:
        return math.exp(value)
    except OverflowError:
        return math.inf


def as_ratio(log_ratio: Estimate, sample: str) -> dict:
    """Describe the estimate of a difference of mean nlls as the ratio of two perplexities."""
    interval = log_ratio.interval
    return {
        "ratio": exp(log_ratio.value),
        "interval": None if interval is None else [exp(bound) for bound in interval],
        "pvalue": log_ratio.pvalue,
        "sample": None if interval is None else sample,
    }
