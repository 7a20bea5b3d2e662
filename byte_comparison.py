"""Two models with different tokenizers, compared by the byte, over pieces that both cut."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from .comparison import judge, plain_interval
from .identity import describe_measurement
from .language_model import LanguageModel
from .measurement import Measurement, nlls_by_token
from .scoring import Columns
from .uncertainty import Blocks, estimate_ratio


@dataclass(frozen=True)
class ByteComparison:
    """Compares what two models with different tokenizers make of the pieces that both cut.

    Attributes:
        measurement: the reference's own plan, over its own tokens.
        scores: of its windows.
    """

    reference: LanguageModel
    margin: float | None
    measurement: Measurement
    scores: list[list[Columns]]

    def compare(self, report) -> dict:
        """Build what stands under `comparison`; see the metric's documentation."""
        pieces = self._pieces(report)
        return {
            "compared": "bytes",
            **compare_bytes(pieces, report.measurement.plan.max_length, self.margin),
            "reference_signature": describe_measurement(
                self.reference, self.measurement, report.word_counts is not None
            )["signature"],
        }

    def piece_scores(self, report) -> list[dict]:
        """The pieces of each text, with what either model made of them."""
        return [
            {
                "offsets": np.stack([pieces.begins, pieces.ends], axis=1).tolist(),
                "nll": pieces.nll.tolist(),
                "reference_nll": pieces.reference_nll.tolist(),
            }
            for pieces in self._pieces(report)
        ]

    def _pieces(self, report) -> list["Pieces"]:
        """The pieces of each text.

        Raises:
            ValueError: a tokenizer does not tell where its tokens stand.
        """
        sides = (report.measurement, report.scores), (self.measurement, self.scores)
        if any(stream.offsets is None for side, _ in sides for stream in side.streams):
            raise ValueError(
                "`reference_model` reads other tokens than the model; to compare them by characters "
                "both need a tokenizer that tells where its tokens stand, a fast one."
            )
        return [
            common_pieces(text, *of_models)
            for text, *of_models in zip(
                report.measurement.texts, *(scored_characters(*side) for side in sides)
            )
        ]


def scored_characters(
    measurement: Measurement, scores: list[list[Columns]]
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield characters (N, 2) of each token of a text, and its nll (N,), NaN where unscored."""
    for stream, nll in zip(measurement.streams, nlls_by_token(measurement, scores)):
        yield stream.offsets, nll


class Pieces(NamedTuple):
    """Pieces of a text that begin and end between two tokens of either model, and are fully scored.

    Attributes:
        length: characters of the text.
        begins, ends: where each piece begins and ends, in characters (P,).
        tokens: tokens of the model in it (P,).
        num_bytes: its length in UTF-8 (P,).
        nll, reference_nll: its nll under either model, in nats (P,).
    """

    length: int
    begins: np.ndarray
    ends: np.ndarray
    tokens: np.ndarray
    num_bytes: np.ndarray
    nll: np.ndarray
    reference_nll: np.ndarray


def common_pieces(
    text: str,
    model: tuple[np.ndarray, np.ndarray],
    reference: tuple[np.ndarray, np.ndarray],
) -> Pieces:
    """Cut a text where both models have a token end and the next one begin no sooner.

    Args:
        model, reference: characters (N, 2) of each token and its nll (N,), NaN where unscored.  A
            token without characters, as a start token, counts for nothing.
    """
    model, reference = (drop_empty(*side) for side in (model, reference))
    ends = np.intersect1d(clean_ends(model[0]), clean_ends(reference[0]))
    begins = np.concatenate([[0], ends[:-1]]).astype(int)
    sides = [sum_pieces(ends, *side) for side in (model, reference)]
    num_bytes = [len(text[begin:end].encode()) for begin, end in zip(begins, ends)]
    scored = ~np.isnan(sides[0][1]) & ~np.isnan(sides[1][1])
    return Pieces(
        len(text),
        begins[scored],
        ends[scored],
        sides[0][0][scored],
        np.array(num_bytes, dtype=int)[scored],
        sides[0][1][scored],
        sides[1][1][scored],
    )


def drop_empty(offsets: np.ndarray, nll: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Keep the tokens that stand for characters."""
    filled = offsets[:, 1] > offsets[:, 0]
    return offsets[filled], nll[filled]


def clean_ends(offsets: np.ndarray) -> np.ndarray:
    """Find where tokens end that share no character with a later one, ascending."""
    begins, ends = offsets.T
    reached = np.maximum.accumulate(ends)
    next_begin = np.append(np.minimum.accumulate(begins[::-1])[::-1][1:], np.iinfo(np.int64).max)
    return np.unique(reached[reached <= next_begin])


def sum_pieces(
    ends: np.ndarray, offsets: np.ndarray, nll: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Count tokens (P,) and sum nll (P,) of each piece; NaN where a token of it is unscored."""
    piece = np.searchsorted(ends, offsets[:, 1])
    inside = piece < len(ends)  # behind the last common cut there may be more
    tokens = np.bincount(piece[inside], minlength=len(ends))
    return tokens, np.bincount(piece[inside], nll[inside], minlength=len(ends))


def compare_bytes(
    texts: Sequence[Pieces], block_tokens: float, margin: float | None = None
) -> dict:
    """Compute how two models with different tokenizers differ over the pieces that both cut.

    Args:
        texts: the pieces of each text.
        block_tokens: fewest tokens of the model in a part of a text that is taken as independent.
        margin: how much worse the model may be, as a share of its perplexity per byte.

    Returns:
        plain Python numbers and intervals of 95 % confidence, None where the text is too little.

    Raises:
        ValueError: no piece of any text is scored by both.
    """
    number = np.repeat(np.arange(len(texts)), [len(text.ends) for text in texts])
    if not len(number):
        raise ValueError(
            "`predictions` must hold text that both models score, got none: their tokenizers cut "
            "it nowhere at the same place."
        )
    names = ("tokens", "num_bytes", "nll", "reference_nll")
    columns = [np.concatenate([getattr(text, name) for text in texts]) for name in names]
    ends = np.concatenate([text.ends for text in texts])
    blocks = Blocks.of([text.length for text in texts], number, ends - 1, columns)
    clusters = blocks.clusters(block_tokens)
    _, sizes, nll, reference_nll = clusters.sums.T
    estimate = estimate_ratio(nll - reference_nll, sizes)
    bits, reference_bits = (nats.sum() / sizes.sum() / math.log(2) for nats in (nll, reference_nll))
    interval = plain_interval(estimate)
    ratio_interval = interval and [math.exp(bound) for bound in interval]
    return {
        **judge(math.exp(estimate.value), ratio_interval, margin, "perplexity per byte"),
        "bits_per_byte": float(bits),
        "reference_bits_per_byte": float(reference_bits),
        "bits_per_byte_change": estimate.value / math.log(2),
        "bits_per_byte_change_interval": interval and [bound / math.log(2) for bound in interval],
        "byte_perplexity_ratio": math.exp(estimate.value),
        "byte_perplexity_ratio_interval": ratio_interval,
        "byte_perplexity_ratio_pvalue": estimate.pvalue,
        "interval_sample": clusters.sample,
        "compared_bytes": int(sizes.sum()),
    }
