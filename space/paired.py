"""Two models on the same text: whose predictions are better, and is it chance?

The models may cut the text differently, so they are compared over the pieces of text that both cut
out, and in bits, which add up.
"""

import bisect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from .segments import Segment, cut


class Piece(NamedTuple):
    """A piece of text that begins and ends where both models have a token begin and end.

    Attributes:
        start, end: characters of the text.
        tokens: tokens of the first model in it.
        bits: surprisal under either model; None if one of them leaves part of it unscored.
    """

    start: int
    end: int
    tokens: int
    bits: tuple[float, float] | None


@dataclass(frozen=True)
class Difference:
    """How much better the second model predicts a text, in bits per byte.

    Attributes:
        mean: first model's bits per byte less the second's: positive where the second is better.
        interval: 95 % confidence interval, None for a text that is too short for one.
        sample: what was taken as independent, in words; None without interval.
    """

    mean: float
    interval: tuple[float, float] | None
    sample: str | None


def align(text: str, first: dict, second: dict) -> list[Piece]:
    """Cut a text where both models cut it.

    Args:
        first, second: the metric's `token_scores` of the text under either model.
    """
    sides = [_segments(text, scores) for scores in (first, second)]
    ends = sorted({end for end, *_ in sides[0]} & {end for end, *_ in sides[1]})
    (bits_a, tokens), (bits_b, _) = (_gather(side, ends) for side in sides)
    return [
        Piece(start, end, own, None if a is None or b is None else (a, b))
        for start, end, own, a, b in zip([0, *ends], ends, tokens, bits_a, bits_b)
    ]


def compare(
    text: str, pieces: Sequence[Piece], estimate_ratio: Callable, block_tokens: int
) -> Difference:
    """The paired difference in bits per byte, with the metric's rule for its interval.

    Args:
        estimate_ratio: the metric's.
        block_tokens: fewest tokens in a part of the text that is taken as independent.
    """
    scored = [piece for piece in pieces if piece.bits is not None]
    gains = np.array([piece.bits[0] - piece.bits[1] for piece in scored])
    if not len(gains) or not np.isfinite(gains).all():
        return Difference(math.nan, None, None)
    estimate, sample = estimate_ratio(
        terms=gains,
        weights=np.array([len(text[piece.start : piece.end].encode()) for piece in scored]),
        tokens=np.array([piece.tokens for piece in scored]),
        positions=np.array([piece.start for piece in scored]),
        length=len(text),
        block_tokens=block_tokens,
    )
    return Difference(estimate.value, estimate.interval, estimate.interval and sample)


def _segments(text: str, scores: dict) -> list[tuple[int, float | None, int]]:
    """Segments of a text as (end, bits or None, number of tokens)."""
    return [
        (segment.end, *_bits(scores["nll"], segment)) for segment in cut(text, scores["offsets"])
    ]


def _bits(nll: Sequence[float | None], segment: Segment) -> tuple[float | None, int]:
    if segment.first is None:
        return 0.0, 0  # text that no token stands for costs nothing
    own = nll[segment.first : segment.last + 1]
    return (None if None in own else sum(own) / math.log(2)), len(own)


def _gather(segments, ends: Sequence[int]) -> tuple[list[float | None], list[int]]:
    """Sum the bits and tokens of segments between common ends; None spoils a sum."""
    bits: list[float | None] = [0.0] * len(ends)
    tokens = [0] * len(ends)
    for end, own_bits, own_tokens in segments:
        place = bisect.bisect_left(ends, end)
        bits[place] = None if None in (bits[place], own_bits) else bits[place] + own_bits
        tokens[place] += own_tokens
    return bits, tokens
