"""Perplexity by length of context, and by position in the text.

By context, the same tokens are scored with windows of several lengths and the same stride.  A shorter
window is a prefix of a longer one that begins at the same token, so all lengths together cost as much
as the longest::

    begin              c0      c1          longest
    |------------------##------##----------##          # the new tokens of a window of each length

Nlls are in nats.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from ..arguments import LongContext, Setting
from ..errors import ArgumentError
from ..plan.measurement import contexts_by_token, nlls_by_token
from ..plan.settings import Corpus, plan_measurement
from ..plan.windows import UNLIMITED_WINDOW, ContextLimit
from .report import Report
from .totals import Totals, nll_interval, perplexity_interval
from .uncertainty import Blocks, Estimate, as_ratio, estimate_ratio, exp

# Maximum number of halvings of "doubling", unless the stride stops it earlier.
MOST_HALVINGS = 3
# The in-context learning score of Olsson et al. (In-context Learning and Induction Heads, 2022):
# the loss of the 500th token minus that of the 50th.
EARLY_TOKEN, LATE_TOKEN = 50, 500

# --- planning -------------------------------------------------------------------------------------


def expand_settings(
    corpus: Corpus, limit: ContextLimit, settings: list[Setting], long_context: LongContext
) -> list[Setting]:
    """List the settings to measure: one for each length of context, the longest first, one stride.

    Raises:
        ValueError: as when the longest is measured.
    """
    setting, context_lengths = settings[0], long_context.context_lengths
    if long_context.carry and setting.max_length is None and limit.length is None:
        return [replace(setting, max_length=UNLIMITED_WINDOW)]  # a carried state has no limit
    if context_lengths is None:
        return settings
    argument = "context_lengths"
    if isinstance(context_lengths, str):  # "doubling"
        argument = "max_length"
        planned = plan_measurement(corpus, limit, setting)
        longest_text = max(len(stream) for stream in planned.streams)
        longest = max(2, min(planned.plan.max_length, longest_text))
        context_lengths = doubling_lengths(longest, setting.stride)
    stride = setting.stride or max(1, min(context_lengths) // 2)
    lengths = sorted(set(context_lengths), reverse=True)
    setting = replace(setting, stride=stride, window_argument=argument)
    return [replace(setting, max_length=length) for length in lengths]


def doubling_lengths(longest: int, stride: int | None) -> list[int]:
    """List a length and its halves, ascending: down to an eighth, or as long as two strides fit.

    Args:
        longest: the window, at least 2.
    """
    lengths = [longest]
    while lengths[-1] // 2 >= 2 * (stride or 1) and (stride or len(lengths) <= MOST_HALVINGS):
        lengths.append(lengths[-1] // 2)
    return lengths[::-1]


def doubling_edges(longest: int) -> list[int]:
    """List edges 0, 1, 2, 4, … of bins of places, the last at or past the longest text's end."""
    edges = [0, 1]
    while edges[-1] < longest:
        edges.append(2 * edges[-1])
    return edges


# --- sums -----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class ContextTotals:
    """Sums over the same tokens by length of context.

    The tokens are scored, and see between `longest - stride` and `longest - 1` tokens under the
    longest context, and fewer under a shorter one, by the difference of the lengths.

    Attributes:
        context_lengths: window lengths, ascending.
        blocks: number of these tokens, and their nll under each length.
        longest_text: length of the longest text in tokens.
        num_forward_tokens: number of tokens read for all lengths.
    """

    context_lengths: Sequence[int]
    blocks: Blocks
    longest_text: int
    num_forward_tokens: int

    @classmethod
    def of(
        cls,
        context_lengths: Sequence[int],
        nlls: Sequence[Sequence[np.ndarray]],
        contexts: Sequence[np.ndarray],
        stride: int,
        num_forward_tokens: int,
    ) -> "ContextTotals":
        """Sum up the tokens of texts.

        Args:
            nlls: for each length and each text the nlls of its tokens in nats (N,), NaN where
                unscored.
            contexts: for each text how many tokens each of its tokens sees under the longest (N,).
            stride: tokens from one window to the next.
        """
        longest = context_lengths[-1]
        served = [
            np.flatnonzero((seen >= longest - stride) & ~np.isnan(nll))
            for seen, nll in zip(contexts, nlls[-1])
        ]
        texts = np.repeat(np.arange(len(served)), [len(places) for places in served])
        places = np.concatenate(served)
        columns = [
            np.concatenate([nll[tokens] for nll, tokens in zip(of_texts, served)])
            for of_texts in nlls
        ]
        lengths = [len(seen) for seen in contexts]
        blocks = Blocks.of(lengths, texts, places, [np.ones(len(places)), *columns])
        return cls(context_lengths, blocks.uncut(longest), max(lengths), num_forward_tokens)

    @property
    def are_enough(self) -> bool:
        """Whether a text is as long as the longest context."""
        return bool(self.blocks.sums[:, 0].any())

    def __add__(self, other: "ContextTotals") -> "ContextTotals":
        return ContextTotals(
            self.context_lengths,
            self.blocks + other.blocks,
            max(self.longest_text, other.longest_text),
            self.num_forward_tokens + other.num_forward_tokens,
        )

    def result(self) -> dict:
        """Estimate the perplexity at each length.

        Returns:
            `by_context_length`: for each length a dict; all but the longest with the ratio of its
            perplexity to the longest's, paired token by token.

        Raises:
            ValueError: no text is as long as the longest context.
        """
        longest = self.context_lengths[-1]
        if not self.are_enough:
            raise ArgumentError(
                "context_lengths",
                "be at most the length of the longest text",
                got=f"{longest} for texts of at most {self.longest_text} tokens",
                advice="Pass shorter lengths, or longer texts.",
            )
        clusters = self.blocks.clusters(longest)
        tokens, *sums = clusters.sums.T
        summaries = []
        for length, nll in zip(self.context_lengths, sums):
            estimate = estimate_ratio(nll, tokens)
            summary = {"context_length": length, **as_perplexity(estimate, int(tokens.sum()))}
            if length != longest:
                difference = estimate_ratio(nll - sums[-1], tokens)
                summary["ratio_to_longest"] = as_ratio(difference, clusters.sample)
            summaries.append(summary)
        return {"by_context_length": summaries, "num_forward_tokens": self.num_forward_tokens}


@dataclass(frozen=True, eq=False)
class Bin:
    """Sums over the tokens between two places of all texts.

    Attributes:
        last: the last place with a token.
        blocks: of the texts with a token there: the number of these, and their nll.
    """

    last: int
    blocks: Blocks

    def __add__(self, other: "Bin") -> "Bin":
        return Bin(max(self.last, other.last), self.blocks + other.blocks)


@dataclass(frozen=True, eq=False)
class PositionTotals:
    """Sums over the tokens of texts by their place.

    Attributes:
        bins: those with a scored token, by first place and one past the last; 0 is a text's first
            token.  The tokens before the first edge have one too, see `first`.
        first: the first edge; bins before it are not listed.
        gains: nll of the 500th token less that of the 50th, in nats, of each text that has both
            scored with all tokens before them in sight.
        block_tokens: fewest tokens in a cluster.
    """

    bins: dict[tuple[int, int], Bin]
    first: int
    gains: np.ndarray
    block_tokens: int
    are_enough = True

    @classmethod
    def of(
        cls,
        edges: Sequence[int],
        nlls: Sequence[np.ndarray],
        contexts: Sequence[np.ndarray],
        block_tokens: int,
    ) -> "PositionTotals":
        """Sum up the tokens of texts.

        Args:
            edges: first places of the bins, ascending, and one past the last.
            nlls: for each text the nlls of its tokens in nats (N,), NaN where unscored.
            contexts: for each text how many tokens each of its tokens sees (N,).
        """
        scored = [np.flatnonzero(~np.isnan(nll)) for nll in nlls]
        texts = np.repeat(np.arange(len(scored)), [len(places) for places in scored])
        places = np.concatenate(scored)
        values = np.concatenate([nll[tokens] for nll, tokens in zip(nlls, scored)])
        lengths = np.array([len(nll) for nll in nlls])
        bins = {}
        for first, end in itertools.pairwise([0, *edges] if edges[0] else edges):
            inside = (places >= first) & (places < end)
            if not inside.any():
                continue
            present, number = np.unique(texts[inside], return_inverse=True)
            columns = [np.ones(len(number)), values[inside]]
            blocks = Blocks.of(lengths[present], number, places[inside], columns)
            last = int(places[inside].max())
            bins[int(first), int(end)] = Bin(last, blocks.uncut(block_tokens))
        return cls(bins, edges[0], in_context_gains(nlls, contexts), block_tokens)

    def __add__(self, other: "PositionTotals") -> "PositionTotals":
        bins = dict(self.bins)
        for edges, of_other in other.bins.items():
            bins[edges] = bins[edges] + of_other if edges in bins else of_other
        gains = np.concatenate([self.gains, other.gains])
        return PositionTotals(dict(sorted(bins.items())), self.first, gains, self.block_tokens)

    def result(self) -> dict:
        """Estimate the mean nll by place in the text, and of all tokens up to there.

        Returns:
            `by_position`: for each bin a dict: `first` and `last` place, `nll` and its `interval`,
            `cumulative_nll` of all tokens up to `last`, `num_tokens`, `num_texts`;
            and `in_context_score`.
        """
        summaries, total, count = [], 0.0, 0
        for (first, _), of_bin in self.bins.items():
            tokens, nll = of_bin.blocks.clusters(self.block_tokens).sums.T
            estimate = estimate_ratio(nll, tokens)
            num_tokens = int(tokens.sum())
            total, count = total + float(nll.sum()), count + num_tokens
            if first < self.first:
                continue
            summaries.append(
                {
                    "first": first,
                    "last": of_bin.last,
                    "nll": estimate.value,
                    "interval": nll_interval(estimate),
                    "cumulative_nll": total / count,
                    "num_tokens": num_tokens,
                    "num_texts": len(of_bin.blocks.lengths),
                }
            )
        return {"by_position": summaries, "in_context_score": in_context_score(self.gains)}


def in_context_gains(nlls: Sequence[np.ndarray], contexts: Sequence[np.ndarray]) -> np.ndarray:
    """Subtract the nll of the 50th token from that of the 500th, in nats, of each text (T,).

    Of the texts in which both are scored with all tokens before them in sight.

    Args:
        nlls: for each text the nlls of its tokens in nats (N,), NaN where unscored.
        contexts: for each text how many tokens each of its tokens sees (N,).
    """
    early, late = EARLY_TOKEN - 1, LATE_TOKEN - 1
    return np.array(
        [
            nll[late] - nll[early]
            for nll, seen in zip(nlls, contexts)
            if len(nll) > late and seen[late] >= late and not np.isnan(nll[[early, late]]).any()
        ]
    )


def in_context_score(gains: np.ndarray) -> dict | None:
    """Estimate the nll of a text's 500th token less that of its 50th, in nats.

    Negative where the model learns from the context; None without a long enough text.

    Args:
        gains: of each text (T,).
    """
    if not len(gains):
        return None
    estimate = estimate_ratio(gains, np.ones(len(gains)))
    return {
        "nll_difference": estimate.value,
        "interval": None if estimate.interval is None else list(estimate.interval),
        "num_texts": len(gains),
    }


def as_perplexity(estimate: Estimate, num_tokens: int) -> dict:
    """Describe a mean nll, with its perplexity."""
    return {
        "perplexity": exp(estimate.value),
        "interval": perplexity_interval(estimate),
        "nll": estimate.value,
        "num_tokens": num_tokens,
    }


def total_contexts(reports: Sequence[Report], num_forward_tokens: int) -> ContextTotals:
    """Sum up the same tokens by length of context, shortest first."""
    ascending = reports[::-1]
    return ContextTotals.of(
        [report.measurement.plan.max_length for report in ascending],
        [nlls_by_token(report.measurement, report.scores) for report in ascending],
        contexts_by_token(ascending[-1].measurement),
        ascending[-1].measurement.plan.stride,
        num_forward_tokens,
    )


def total_positions(report: Report, positions: list[int] | str) -> PositionTotals:
    """Sum up tokens by place in the text."""
    nlls = nlls_by_token(report.measurement, report.scores)
    if isinstance(positions, str):  # "doubling"
        positions = doubling_edges(max(len(nll) for nll in nlls))
    contexts = contexts_by_token(report.measurement)
    return PositionTotals.of(positions, nlls, contexts, report.measurement.plan.max_length)


class PartTotals(Protocol):
    """Sums from which the keys of one kind are computed; they add up over shards.

    Attributes:
        are_enough: whether there is a result.
    """

    @property
    def are_enough(self) -> bool: ...

    def __add__(self, other: Any) -> "PartTotals": ...

    def result(self) -> dict: ...


@dataclass(frozen=True, eq=False)
class LongContextTotals:
    """Sums from which the keys about long contexts are computed; like `Totals` they add up over shards.

    Attributes:
        parts: sums for each kind of keys.
        settings: what was asked for, which all shards must share.
        totals: sums of the same texts, which add up only if these do.
    """

    parts: Sequence[PartTotals]
    settings: dict[str, object]
    totals: Totals

    @property
    def are_enough(self) -> bool:
        """Whether there is a result: of a shard of short texts, only other shards may have one."""
        return all(part.are_enough for part in self.parts)

    def __add__(self, other: "LongContextTotals") -> "LongContextTotals":
        """Return the totals of both corpora, one after the other.

        Raises:
            ValueError: they were measured in different ways, or their texts are joined.
        """
        if not isinstance(other, LongContextTotals):
            return NotImplemented
        if self.settings != other.settings:
            raise ValueError(
                "Totals can be added only if model, protocol and settings are the same, got "
                f"{self.settings} and {other.settings}."
            )
        totals = self.totals + other.totals
        parts = [one + another for one, another in zip(self.parts, other.parts, strict=True)]
        return LongContextTotals(parts, self.settings, totals)

    def __radd__(self, other: object) -> "LongContextTotals":
        """Begin a `sum`, which adds the first to 0."""
        return self if other == 0 else NotImplemented

    def result(self) -> dict:
        """Compute the keys of the result.

        Raises:
            ValueError: no text is as long as the longest context.
        """
        result: dict[str, object] = {}
        for part in self.parts:
            result |= part.result()
        return result
