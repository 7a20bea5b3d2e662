"""Arithmetic that does not overflow."""

import math


def exp(value: float) -> float:
    """Return e^value, or inf where that is too large for a float."""
    try:
        return math.exp(value)
    except OverflowError:
        return math.inf
