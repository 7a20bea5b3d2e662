"""Two models on the same text: whose predictions are better, and is it chance?

The models may cut the text differently, so they are compared over the pieces of text that both cut
out, and in bits, which add up.
"""

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from .segments import Segment, cut

# Surprises of neighbouring tokens are alike; over a few sentences that fades.
BLOCK_TOKENS = 64
# With fewer blocks an interval would say nothing.
FEWEST_BLOCKS = 5


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
        blocks: parts of the text that were taken as independent.
    """

    mean: float
    interval: tuple[float, float] | None
    blocks: int


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


def compare(text: str, pieces: Sequence[Piece]) -> Difference:
    """The paired difference in bits per byte, with the interval of a ratio estimator.

    Blocks of neighbouring pieces are the sample: with C blocks, differences d and bytes b, the
    variance of R = Σd / Σb is C / (C - 1) · Σ(d - R·b)² / (Σb)² (Cochran, Sampling Techniques,
    1977, section 6.4), and the interval is Student's with C - 1 degrees of freedom.
    """
    blocks = np.array(_blocks(text, pieces), dtype=np.float64).reshape(-1, 2)
    gains, sizes = blocks.T
    if sizes.sum() == 0 or not np.isfinite(gains).all():
        return Difference(math.nan, None, len(blocks))
    mean = float(gains.sum() / sizes.sum())
    if len(blocks) < FEWEST_BLOCKS:
        return Difference(mean, None, len(blocks))
    spread = ((gains - mean * sizes) ** 2).sum() * len(blocks) / (len(blocks) - 1)
    margin = student_t(0.975, len(blocks) - 1) * math.sqrt(spread) / float(sizes.sum())
    return Difference(mean, (mean - margin, mean + margin), len(blocks))


def student_t(probability: float, degrees: int) -> float:
    """Quantile of Student's t: with t = √ν·tan θ its density is that of cos(θ)^(ν - 1)."""
    angles = np.linspace(-np.pi / 2, np.pi / 2, 200_001)[1:-1]
    cumulative = np.cumsum(np.cos(angles) ** (degrees - 1))
    middles = (cumulative - np.diff(cumulative, prepend=0) / 2) / cumulative[-1]
    return math.sqrt(degrees) * math.tan(np.interp(probability, middles, angles))


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


def _blocks(text: str, pieces: Sequence[Piece]) -> list[list[float]]:
    """Sum (bits gained, bytes) over runs of pieces with enough tokens; a remainder joins the last."""
    blocks, tokens = [], BLOCK_TOKENS
    for piece in pieces:
        if piece.bits is None:
            continue
        if tokens >= BLOCK_TOKENS:
            blocks.append([0.0, 0.0])
            tokens = 0
        blocks[-1][0] += piece.bits[0] - piece.bits[1]
        blocks[-1][1] += len(text[piece.start : piece.end].encode())
        tokens += piece.tokens
    if len(blocks) > 1 and tokens < BLOCK_TOKENS:
        rest = blocks.pop()
        blocks[-1] = [blocks[-1][0] + rest[0], blocks[-1][1] + rest[1]]
    return blocks
