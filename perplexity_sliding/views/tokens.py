"""The tokens of a text for the scripts: pieces with a colour and details."""

import itertools
import math

import numpy as np

from .reading import Reading
from .segments import Segment, cut, segment_data
from .surprise import LABELS, ODDS, bits_colour, in_bits

# Probabilities below it are shown as 0: 10 to the 22nd is the largest power that a float has exactly.
SMALLEST = 1e-20


def text_segments(reading: Reading) -> tuple[list[Segment], str]:
    """Return segments and their text; without offsets, the tokens' names in a row."""
    offsets = reading.tokens["offsets"]
    if None not in offsets:
        return cut(reading.whole, offsets), reading.whole
    names = [name.replace("▁", " ").replace("Ġ", " ") for name in reading.tokens["tokens"]]
    ends = [0]
    for name in names:
        ends.append(ends[-1] + len(name))
    return cut("".join(names), list(itertools.pairwise(ends))), "".join(names)


def token_data(reading: Reading, segments: list[Segment]) -> dict:
    """Return the data of each token for the script, as columns."""
    tokens = reading.tokens
    return {
        "names": token_texts(reading),
        "num_context_tokens": reading.num_context_tokens,
        "bits": [None if nll is None else in_bits(nll) for nll in tokens["nll"]],
        "rank": tokens.get("rank"),
        "context": tokens["context_length"],
        "alternatives": tokens.get("alternatives") and _with_probabilities(tokens["alternatives"]),
        "segments": segment_data(segments),
        "windows": window_data(reading),
    }


def _with_probabilities(alternatives: list[list | None]) -> list[list | None]:
    """Return the names of alternatives with their probabilities, to three significant digits.

    Digits of all are rounded at once: to write out and read each takes a third of drawing a report.
    """
    nlls = np.array([nll for top in alternatives for _, nll in top or ()], dtype=float)
    shown = iter(three_digits(np.exp(-nlls)).tolist())
    return [top and [[name, next(shown)] for name, _ in top] for top in alternatives]


def three_digits(values: np.ndarray) -> np.ndarray:
    """Round probabilities (N,) to three significant digits, as `f"{value:.3g}"` writes them."""
    digits = 2 - np.floor(np.log10(np.maximum(values, SMALLEST)))
    scales = 10.0**digits  # a whole number is divided by it, which gives the nearest float
    rounded = np.rint(values * scales) / scales
    return np.where(values < SMALLEST, 0.0, rounded)


def token_texts(reading: Reading) -> list[str]:
    """Return the text of each token; its name without offsets."""
    tokens = reading.tokens
    return [
        name if offset is None else reading.whole[slice(*offset)]
        for name, offset in zip(tokens["tokens"], tokens["offsets"])
    ]


def window_data(reading: Reading) -> list[list[int]]:
    """Return windows as [first token read, first scored, one past the last, start token]."""
    return [
        [w["begin"], w["first"], w["end"], int(w["start_token"])] for w in reading.tokens["windows"]
    ]


def piece_colour(nll: list[float | None], segment: Segment, piece: str) -> str | None:
    """Return the colour class of a segment, by the sum of its tokens' surprisal."""
    if segment.first is None:
        return "" if piece.strip() else None
    own = nll[segment.first : segment.last + 1]
    return "out" if None in own else bits_colour(sum(own) / math.log(2))


def surprise_legend() -> str:
    """Explain the colours of surprise, as entries of a list."""
    return "".join(
        f'<li><span class="ps-box b{n}">{label}</span><small>{odds}</small></li>'
        for n, (label, odds) in enumerate(zip(LABELS, ODDS))
    )
