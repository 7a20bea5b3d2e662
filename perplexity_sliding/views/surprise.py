"""Surprise in bits, and its colours."""

import bisect
import math

# Lower edges of the colours, in bits, and how likely a token at the edge is.
EDGES = (0, 1, 3, 6, 10, 15)
LABELS = ("under 1 bit", "1–3 bits", "3–6 bits", "6–10 bits", "10–15 bits", "over 15 bits")
ODDS = (
    "likelier than 1 in 2",
    "to 1 in 8",
    "to 1 in 64",
    "to 1 in 1,000",
    "to 1 in 33,000",
    "rarer",
)
ENDLESS = 1e9  # JSON has no infinity
SCRIPT_DIGITS = 6  # the script shows two: rounded twice, 9.4955 bits would be 9.49


def in_bits(nll: float) -> float:
    """Convert nats to bits for the page's script."""
    return round(nll / math.log(2), SCRIPT_DIGITS) if math.isfinite(nll) else ENDLESS


def bits_colour(bits: float) -> str:
    """Return the colour class of a surprisal in bits."""
    return f"b{max(0, bisect.bisect_right(EDGES, bits) - 1)}"
