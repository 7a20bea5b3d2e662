"""A line chart as HTML: lines in a stretched SVG, words around it at their own size.

So it fits a phone as well as a desk, follows the page's colours, and needs nothing from elsewhere.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from .markup import escape

LEAST_SPAN = 0.1  # of the largest value, shown by the y-axis at least
MARGIN = 0.06  # of the axis, left free at either end
SIZE = 100  # the SVG's own units; it is stretched to the figure


class Point(NamedTuple):
    """One measurement.

    Attributes:
        x, y: where it is.
        tick: its name on the x-axis.
        words: all about it, shown on pointing at it and read out.
        low, high: an interval around y, or y itself.
    """

    x: float
    y: float
    tick: str
    words: str
    low: float
    high: float


def line_chart(points: Sequence[Point], x_title: str, y_title: str) -> str:
    """Draw measurements over a logarithmic x-axis, joined by a line."""
    across = _scale([math.log2(point.x) for point in points])
    # Differences of a few per cent shall look like that.
    up = _scale([end for point in points for end in (point.low, point.high)], least=LEAST_SPAN)
    places = [(across(math.log2(p.x)), 1 - up(p.y), 1 - up(p.low), 1 - up(p.high)) for p in points]
    line = " ".join(f"{x * SIZE:.2f},{y * SIZE:.2f}" for x, y, *_ in places)
    edge = [(x, high) for x, _, _, high in places] + [(x, low) for x, _, low, _ in places][::-1]
    band = " ".join(f"{x * SIZE:.2f},{y * SIZE:.2f}" for x, y in edge)
    marks = "".join(_mark(point, x, y) for point, (x, y, *_) in zip(points, places))
    levels = round_levels(min(p.low for p in points), max(p.high for p in points))
    grid = "".join(
        f'<span class="ps-level" style="top:{1 - up(y):.2%}"><b>{y:,.6g}</b></span>' for y in levels
    )
    return (
        f'<figure class="ps-chart"><figcaption>{escape(y_title)}</figcaption>'
        f'<div class="ps-plot">{grid}'
        f'<svg viewBox="0 0 {SIZE} {SIZE}" preserveAspectRatio="none" aria-hidden="true">'
        f'<polygon points="{band}"/><polyline points="{line}"/></svg>{marks}</div>'
        f'<p class="ps-axis">{escape(x_title)}</p></figure>'
    )


def bar(share: float) -> str:
    """A bar in a table's cell."""
    return f'<i class="ps-bar" style="width:{max(0.0, min(1.0, share)):.1%}"></i>'


def round_levels(low: float, high: float) -> list[float]:
    """Round values between `low` and `high`, a handful of them, for a grid."""
    rough = (high - low) / 3 or 1.0
    power = 10.0 ** math.floor(math.log10(rough))
    step = max(factor * power for factor in (1, 2, 5) if factor * power <= rough)
    first = math.ceil(low / step)
    return [round(k * step, 10) for k in range(first, math.floor(high / step) + 1)]


def _mark(point: Point, x: float, y: float) -> str:
    return (
        f'<span class="ps-mark" tabindex="0" role="img" aria-label="{escape(point.words)}" '
        f'style="left:{x:.2%};top:{y:.2%};--x:{x:.3f}"><b>{escape(point.words)}</b></span>'
        f'<span class="ps-tick" style="left:{x:.2%}">{escape(point.tick)}</span>'
    )


def _scale(values: Sequence[float], least: float = 0.0):
    """Map values to 0…1 with a margin; the range is at least `least` times the largest value."""
    low, high = min(values), max(values)
    widen = max(0.0, least * abs(high) - (high - low)) / 2
    low, high = low - widen, high + widen
    span = (high - low) or 1.0
    return lambda value: MARGIN + (1 - 2 * MARGIN) * (value - low) / span
