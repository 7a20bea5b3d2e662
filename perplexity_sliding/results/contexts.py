"""Perplexity by length of context.

The same tokens are scored with windows of several lengths and the same stride.  A shorter
window is a prefix of a longer one that begins at the same token, so all lengths together cost as much
as the longest::

    begin              c0      c1          longest
    |------------------##------##----------##          # the new tokens of a window of each length

Nlls are in nats.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..arguments import Setting
from ..errors import ArgumentError
from ..plan.measurement import Corpus, contexts_by_token, nlls_by_token, plan_measurement
from ..plan.windows import UNLIMITED_WINDOW, ContextLimit
from .report import ScoredMeasurement
from .totals import Totals, perplexity_interval
from .uncertainty import Blocks, as_ratio, estimate_ratio, exp

# Maximum number of halvings of "doubling", unless the stride stops it earlier.
MOST_HALVINGS = 3


def expand_settings(
    corpus: Corpus, limit: ContextLimit, settings: list[Setting], given: Mapping[str, Any]
) -> list[Setting]:
    """List the settings to measure: one for each length of context, the longest first, one stride.

    Args:
        given: the arguments of the call.
    """
    setting, context_lengths = settings[0], given["context_lengths"]
    if given["carry"] and setting.max_length is None and limit.length is None:
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
    lengths = sorted({int(length) for length in context_lengths}, reverse=True)
    stride = setting.stride or max(1, lengths[-1] // 2)
    setting = replace(setting, stride=stride, window_argument=argument)
    return [replace(setting, max_length=length) for length in lengths]


def doubling_lengths(longest: int, stride: int | None) -> list[int]:
    """List a length and its halves, ascending: down to an eighth, or as long as two strides fit."""
    lengths = [longest]
    while lengths[-1] // 2 >= 2 * (stride or 1) and (stride or len(lengths) <= MOST_HALVINGS):
        lengths.append(lengths[-1] // 2)
    return lengths[::-1]


def total_contexts(
    reports: Sequence[ScoredMeasurement], num_forward_tokens: int
) -> "ContextTotals":
    """Sum up the same tokens by length of context, given longest first."""
    ascending = reports[::-1]
    longest = ascending[-1]
    return ContextTotals.of(
        [report.measurement.plan.max_length for report in ascending],
        [nlls_by_token(report.measurement, report.scores) for report in ascending],
        contexts_by_token(longest.measurement),
        longest.measurement.plan.stride,
        num_forward_tokens,
        longest.totals,
    )


@dataclass(frozen=True, eq=False)
class ContextTotals:
    """Sums over the same tokens by length of context; like `Totals` they add up over shards.

    The tokens are scored, and see between `longest - stride` and `longest - 1` tokens under the
    longest context, and fewer under a shorter one, by the difference of the lengths.

    Attributes:
        context_lengths: window lengths, ascending.
        blocks: number of these tokens, and their nll under each length.
        num_forward_tokens: number of tokens read for all lengths.
        totals: sums of the same texts, which add up only if these do.
    """

    context_lengths: Sequence[int]
    blocks: Blocks
    num_forward_tokens: int
    totals: Totals

    @classmethod
    def of(
        cls,
        context_lengths: Sequence[int],
        nlls: Sequence[Sequence[np.ndarray]],
        contexts: Sequence[np.ndarray],
        stride: int,
        num_forward_tokens: int,
        totals: Totals,
    ) -> "ContextTotals":
        """Sum up the tokens of texts.

        Args:
            nlls: for each length and each text the nlls of its tokens (N,), NaN where unscored.
            contexts: for each text how many tokens each of its tokens sees under the longest (N,).
            stride: tokens from one window to the next.
        """
        least = context_lengths[-1] - stride
        served = [
            np.flatnonzero((seen >= least) & ~np.isnan(nll))
            for seen, nll in zip(contexts, nlls[-1])
        ]
        texts = np.repeat(np.arange(len(served)), [len(places) for places in served])
        columns = [
            np.concatenate([nll[places] for nll, places in zip(of_texts, served)])
            for of_texts in nlls
        ]
        lengths = [len(seen) for seen in contexts]
        blocks = Blocks.of(lengths, texts, np.concatenate(served), [np.ones(len(texts)), *columns])
        return cls(context_lengths, blocks, num_forward_tokens, totals)

    @property
    def are_enough(self) -> bool:
        """Whether a text is as long as the longest context."""
        return bool(self.blocks.sums[:, 0].any())

    def __add__(self, other: "ContextTotals") -> "ContextTotals":
        """Return the totals of both corpora, one after the other; see `Totals`."""
        if self.context_lengths != other.context_lengths:
            raise ValueError(
                "Totals can be added only if context_lengths are the same, got "
                f"{self.context_lengths} and {other.context_lengths}."
            )
        return replace(
            self,
            blocks=self.blocks + other.blocks,
            num_forward_tokens=self.num_forward_tokens + other.num_forward_tokens,
            totals=self.totals + other.totals,
        )

    def __radd__(self, other: object) -> "ContextTotals":
        return self if other == 0 else NotImplemented  # `sum` adds the first to 0

    def result(self) -> dict:
        """Estimate the perplexity at each length, and its ratio to the longest's, paired by token."""
        longest = self.context_lengths[-1]
        if not self.are_enough:
            raise ArgumentError(
                "context_lengths",
                "be at most the length of the longest text",
                got=f"{longest} for texts of at most {self.blocks.lengths.max()} tokens",
                advice="Pass shorter lengths, or longer texts.",
            )
        clusters = self.blocks.clusters(longest)
        tokens, *sums = clusters.sums.T
        summaries = []
        for length, nll in zip(self.context_lengths, sums):
            estimate = estimate_ratio(nll, tokens)
            summary: dict[str, object] = {
                "context_length": length,
                "perplexity": exp(estimate.value),
                "interval": perplexity_interval(estimate),
                "nll": estimate.value,
                "num_tokens": int(tokens.sum()),
            }
            if length != longest:
                difference = estimate_ratio(nll - sums[-1], tokens)
                summary["ratio_to_longest"] = as_ratio(difference, clusters.sample)
            summaries.append(summary)
        return {"by_context_length": summaries, "num_forward_tokens": self.num_forward_tokens}
