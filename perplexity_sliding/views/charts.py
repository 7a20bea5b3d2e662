"""A chart as HTML: shapes in a stretched SVG, with unscaled text around it.

It fits phones and desktops, follows the page's colours, and fetches nothing.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from .markup import escape

LEAST_SPAN = 0.1  # of the largest value, shown by the y-axis at least
MARGIN = 0.06  # of the axis, left free at either end
SIZE = 100  # the SVG's own units; it is stretched to the figure
CAP = 0.012  # of the chart's width, to either side of an error bar's ends
LETTER = 0.028  # of the chart's width on a phone, at most


class Point(NamedTuple):
    """One measurement.

    Attributes:
        x, y: where it is.
        tick: its name on the x-axis.
        words: all about it, shown on pointing at it and read out.
        interval: around y, or None; drawn as an error bar.
    """

    x: float
    y: float
    tick: str
    words: str
    interval: Sequence[float] | None


def line_chart(
    points: Sequence[Point], x_title: str, y_title: str, base: float | None = None
) -> str:
    """Draw measurements over a logarithmic x-axis, joined by a line, with error bars.

    Args:
        base: a value to be seen on the y-axis and drawn as a line of its own: what the measurements, and
            the ends of their intervals, are to be compared with.
    """
    ends = [end for p in points for end in (p.y, *(p.interval or ()))]
    ends += [] if base is None else [base]
    across = _scale(*_widened([math.log2(point.x) for point in points]))
    # Differences of a few per cent shall look like that, and names of levels stand apart.
    low, high = _widened(ends, LEAST_SPAN)
    up = _scale(low, high)
    places = [(across(math.log2(point.x)), 1 - up(point.y)) for point in points]
    line = " ".join(f"{x * SIZE:.2f},{y * SIZE:.2f}" for x, y in places)
    errors = "".join(
        _error_bar(x, [1 - up(end) for end in point.interval])
        for point, (x, _) in zip(points, places)
        if point.interval is not None
    )
    levels = "".join(
        f'<span class="ps-level" style="top:{1 - up(level):.2%}"><b>{level:,.6g}</b></span>'
        for level in round_levels(low, high)
    )
    marks = "".join(_mark(point, x, y) for point, (x, y) in zip(points, places))
    ticks = "".join(
        f'<span class="ps-tick" style="left:{x:.2%}">{escape(name)}</span>'
        for x, name in apart([(x, point.tick) for point, (x, _) in zip(points, places)])
    )
    at = "" if base is None else f"M0 {(1 - up(base)) * SIZE:.2f}h{SIZE}"
    return (
        f'<figure class="ps-chart"><figcaption>{escape(y_title)}</figcaption>'
        f'<div class="ps-plot">{levels}<svg viewBox="0 0 {SIZE} {SIZE}" '
        f'preserveAspectRatio="none" aria-hidden="true"><path class="ps-base" d="{at}"/>'
        f'<polyline points="{line}"/>{errors}</svg>{marks}{ticks}</div>'
        f'<p class="ps-axis">{escape(x_title)}</p></figure>'
    )


def round_levels(low: float, high: float) -> list[float]:
    """Return a few round values between `low` and `high`, for a grid."""
    rough = (high - low) / 3 or 1.0
    power = 10.0 ** math.floor(math.log10(rough))
    step = max(factor * power for factor in (1, 2, 5) if factor * power <= rough)
    first = math.ceil(low / step)
    return [round(k * step, 10) for k in range(first, math.floor(high / step) + 1)]


def apart(ticks: Sequence[tuple[float, str]]) -> list[tuple[float, str]]:
    """Drop names on the x-axis that would overlap a longer one, or a later one, on a phone."""
    kept: list[tuple[float, str]] = []
    for x, name in sorted(ticks, key=lambda tick: (-len(tick[1]), -tick[0])):
        if all(abs(x - at) > (len(name) + len(other) + 1) / 2 * LETTER for at, other in kept):
            kept.append((x, name))
    return sorted(kept)


def _error_bar(x: float, ends: Sequence[float]) -> str:
    """Draw a vertical error bar between two ends, 0 to 1 from the top."""
    left, width = (x - CAP) * SIZE, 2 * CAP * SIZE
    across = "".join(f"M{left:.2f} {end * SIZE:.2f}h{width:.2f}" for end in ends)
    low, high = (f"{end * SIZE:.2f}" for end in ends)
    return f'<path class="ps-error" d="{across}M{x * SIZE:.2f} {low}V{high}"/>'


def _mark(point: Point, x: float, y: float) -> str:
    return (
        f'<span class="ps-mark" tabindex="0" role="img" aria-label="{escape(point.words)}" '
        f'style="left:{x:.2%};top:{y:.2%};--x:{x:.3f}"><b>{escape(point.words)}</b></span>'
    )


def _widened(values: Sequence[float], least: float = 0.0) -> tuple[float, float]:
    """Return the range of an axis, at least `least` times the largest value."""
    low, high = min(values), max(values)
    widen = max(0.0, least * abs(high) - (high - low)) / 2
    return low - widen, high + widen


def _scale(low: float, high: float):
    """Map a range to 0…1 with a margin."""
    span = (high - low) or 1.0
    return lambda value: MARGIN + (1 - 2 * MARGIN) * (value - low) / span
