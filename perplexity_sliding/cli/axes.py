"""Axes, colours and markers shared by all plots."""

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

INK, GREY, GRID = "#1f4e79", "#9db4c8", "#e6e6e6"
DOTS = {"fmt": "o", "color": INK, "ecolor": GREY, "elinewidth": 1.5, "capsize": 3, "markersize": 5}


def new_axes(figure: Figure, grid: str) -> Axes:
    return tidied(figure.add_subplot(), grid)


def tidied(axes: Axes, grid: str) -> Axes:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis=grid, color=GRID)
    axes.set_axisbelow(True)
    return axes


def reach(values: Sequence[tuple[float, Sequence[float] | None]]) -> list[list[float]]:
    """Compute the lengths of error bars below and above values; 0 without an interval."""
    spans = [
        (value, *(interval if interval and all(map(math.isfinite, interval)) else (value, value)))
        for value, interval in values
    ]
    # A perplexity that a protocol averages in its own way may lie outside of its interval.
    return [
        [max(0.0, value - low) for value, low, _ in spans],
        [max(0.0, high - value) for value, _, high in spans],
    ]
