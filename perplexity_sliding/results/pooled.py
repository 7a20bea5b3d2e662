"""The result of a run of any number of texts, in bounded room.

What an interval never cuts counts there by its weight and its term alone.  Texts of the same weight
are therefore one row, with the squared deviations from the row's mean; only texts of a fourteenth of
the whole and more keep their blocks.
"""

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from .totals import Totals
from .uncertainty import NUM_PARTS, Blocks, Clusters, Estimate, estimate_ratio_of_groups


@dataclass(frozen=True, eq=False)
class PooledTotals(Totals):
    """Totals whose rows are sums over groups of texts: for `+` and `result` alone.

    Attributes:
        num_texts: texts in each row (T,).
        perplexity_sums: their perplexities, summed (T,).
        spreads: squared deviations of their terms from the row's mean, summed (T,).
    """

    num_texts: np.ndarray
    perplexity_sums: np.ndarray
    spreads: np.ndarray

    # Texts that are no longer told apart have none of these.
    take = split = to_json = perplexities = leave_out_each = None  # type: ignore[assignment]

    @classmethod
    def of(cls, totals: Totals) -> "PooledTotals":  # type: ignore[override]
        """Group the texts of totals."""
        if isinstance(totals, cls):
            return totals
        given = {field.name: getattr(totals, field.name) for field in fields(Totals)}
        perplexities = np.array(totals.perplexities())
        ones, zeros = np.ones_like(perplexities), np.zeros_like(perplexities)
        return cls(num_texts=ones, perplexity_sums=perplexities, spreads=zeros, **given)._grouped()

    def __add__(self, other: Totals) -> "PooledTotals":
        """Return the totals of both corpora together; errors are those of `Totals`."""
        other = self.of(other)
        joined = {
            name: np.concatenate([getattr(self, name), getattr(other, name)])
            for name in ("num_texts", "perplexity_sums", "spreads")
        }
        both: Any = super().__add__(other)
        return replace(both, **joined)._grouped()

    def _grouped(self) -> "PooledTotals":
        """Make one row of those that are alike."""
        tokens, nlls, weights, terms = self.of_texts.T
        if self.aggregation.average == "texts":
            terms = self.perplexity_sums
        blocks = self.blocks.uncut(tokens.sum() / NUM_PARTS)
        own = np.where(blocks.per_text > 1, np.arange(len(tokens)), -1)
        alike = np.stack([weights / self.num_texts, own])
        order = np.lexsort(alike)
        is_first = np.append(True, np.diff(alike[:, order]).any(axis=0))
        first, group = np.flatnonzero(is_first), np.cumsum(is_first) - 1
        blocks = blocks.take(order)
        first_blocks = np.flatnonzero(np.repeat(is_first, blocks.per_text))

        def add_up(values: np.ndarray) -> np.ndarray:
            return np.add.reduceat(values[order], first)

        def spread(values: np.ndarray, sizes: np.ndarray) -> np.ndarray:
            """Sum the squared deviations of the rows' means from that of their group."""
            means = add_up(values) / add_up(sizes)
            with np.errstate(invalid="ignore"):  # what is infinite has none
                squares = (values[order] - means[group] * sizes[order]) ** 2 / sizes[order]
            return np.add.reduceat(squares, first)

        return replace(
            self,
            blocks=Blocks(
                np.add.reduceat(blocks.sums, first_blocks),
                blocks.per_text[first],
                np.add.reduceat(blocks.lengths, first),
            ),
            squares=add_up(self.squares) + spread(nlls, tokens),
            units=self.units.sum(axis=0, keepdims=True),
            num_texts=add_up(self.num_texts),
            perplexity_sums=add_up(self.perplexity_sums),
            spreads=add_up(self.spreads) + spread(terms, self.num_texts),
        )

    def _of_each_text(self) -> dict:
        number = int(self.num_texts.sum())
        mean = float(self.perplexity_sums.sum()) / number
        return {"num_texts": number, "mean_perplexity": mean}

    def _num_parts(self) -> np.ndarray:
        if self.aggregation.average == "texts":
            return super()._num_parts()
        return self.blocks.num_parts(self.aggregation.block_tokens, self.num_texts)

    def _clusters(self) -> Clusters:
        num_parts, num_texts = self._num_parts(), int(self.num_texts.sum())
        more = int((num_parts - 1).sum())
        return Clusters(self.blocks.cut(num_parts).sums, num_texts, num_texts + more)

    def _terms_and_weights(self, clusters: Clusters) -> tuple[np.ndarray, np.ndarray]:
        if self.aggregation.average == "texts":
            return self.perplexity_sums, self.num_texts
        return super()._terms_and_weights(clusters)

    def _estimate_ratio(self, clusters: Clusters) -> Estimate:
        num_parts = self._num_parts()
        return estimate_ratio_of_groups(
            *self._terms_and_weights(clusters),
            np.repeat(self.num_texts, num_parts),
            np.repeat(self.spreads, num_parts),
        )
