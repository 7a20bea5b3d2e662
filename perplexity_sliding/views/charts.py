"""Charts as HTML: shapes in a stretched SVG, with unscaled text around it.

They fit phones and desktops, follow the page's colours, and fetch nothing.
"""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from .markup import count, escape

LEAST_SPAN = 0.1  # of the largest value, shown by the y-axis at least
MARGIN = 0.06  # of the axis, left free at either end
SIZE = 100  # the SVG's own units; it is stretched to the figure
CAP = 0.012  # of the chart's width, to either side of an error bar's ends
LETTER = 0.028  # of the chart's width on a phone, at most
BARS = 32
EXPONENTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
CELLS = 28  # of a density, along either axis


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
    across = _scale([math.log2(point.x) for point in points])
    # Differences of a few per cent shall look like that.
    up = _scale(ends, least=LEAST_SPAN)
    places = [(across(math.log2(point.x)), 1 - up(point.y)) for point in points]
    line = " ".join(f"{x * SIZE:.2f},{y * SIZE:.2f}" for x, y in places)
    errors = "".join(
        _error_bar(x, [1 - up(end) for end in point.interval])
        for point, (x, _) in zip(points, places)
        if point.interval is not None
    )
    marks = "".join(_mark(point, x, y) for point, (x, y) in zip(points, places))
    ticks = apart([(x, point.tick) for point, (x, _) in zip(points, places)])
    zero = (
        "" if base is None else f'<path class="ps-base" d="M0 {(1 - up(base)) * SIZE:.2f}h{SIZE}"/>'
    )
    return _figure(
        y_title,
        x_title,
        f'{zero}<polyline points="{line}"/>{errors}',
        _grid(ends, up),
        ticks,
        marks,
    )


def distribution_chart(
    values: Sequence[float], marks: Sequence[tuple[float, str]], x_title: str, y_title: str
) -> str:
    """Draw a histogram of values, on a logarithmic x-axis.

    Args:
        values: above 0.
        marks: values to be marked with a line, and their names.
    """
    logs = np.log10(values)
    counts, edges = np.histogram(logs, bins=BARS)
    across = _scale(edges.tolist())
    most = max(1, int(counts.max()))
    bars = "".join(
        f'<rect x="{across(low) * SIZE:.2f}" y="{SIZE * (1 - height / most * (1 - MARGIN)):.2f}" '
        f'width="{(across(high) - across(low)) * SIZE:.2f}" height="{SIZE * height / most:.2f}"/>'
        for height, low, high in zip(counts.tolist(), edges.tolist(), edges.tolist()[1:])
    )
    lines = "".join(
        f'<span class="ps-line-mark" style="left:{x:.2%};--x:{x:.3f}"><b style="top:{1.4 * place:.1f}em">'
        f"{escape(name)}</b></span>"
        for place, (x, name) in enumerate((across(math.log10(v)), name) for v, name in marks)
    )
    first, last = math.ceil(edges[0]), math.floor(edges[-1])
    ticks = [(across(power), _power(power)) for power in range(first, last + 1)]
    every = max(1, len(ticks) // 4)
    said = "; ".join(f"{name} {value:.3g}" for value, name in marks)
    words = f"{count(len(values), 'value')} on a logarithmic axis. {said}."
    levels = _grid([0, most], lambda value: value / most * (1 - MARGIN))
    return _figure(y_title, x_title, bars, levels, ticks[::every], lines, words)


def density_chart(
    xs: Sequence[float], ys: Sequence[float], x_title: str, y_title: str, words: str
) -> str:
    """Draw a density plot of pairs of nonnegative values, with the diagonal.

    Args:
        words: description of the chart for screen readers.
    """
    end = max(1.0, *xs, *ys)
    counts, *_ = np.histogram2d(xs, ys, bins=CELLS, range=[[0, end], [0, end]])
    most, cell = math.log1p(counts.max()), SIZE / CELLS
    cells = "".join(
        f'<rect x="{x * cell:.2f}" y="{SIZE - (y + 1) * cell:.2f}" width="{cell:.2f}" '
        f'height="{cell:.2f}" fill-opacity="{0.15 + 0.85 * math.log1p(counts[x, y]) / most:.2f}"/>'
        for x, y in zip(*(axis.tolist() for axis in np.nonzero(counts)))
    )
    diagonal = f'<path class="ps-base" d="M0 {SIZE}L{SIZE} 0"/>'
    levels = round_levels(0, end)
    ticks = [(level / end, f"{level:,.6g}") for level in levels]
    grid = _grid([0, end], lambda value: value / end)
    return _figure(y_title, x_title, cells + diagonal, grid, ticks, "", words)


def bar(share: float) -> str:
    """Draw a bar in a table's cell; `share` is its length, from 0 to 1."""
    return f'<i class="ps-bar" style="width:{max(0.0, min(1.0, share)):.1%}"></i>'


def round_levels(low: float, high: float) -> list[float]:
    """Return a few round values between `low` and `high`, for a grid."""
    rough = (high - low) / 3 or 1.0
    power = 10.0 ** math.floor(math.log10(rough))
    step = max(factor * power for factor in (1, 2, 5) if factor * power <= rough)
    first = math.ceil(low / step)
    return [round(k * step, 10) for k in range(first, math.floor(high / step) + 1)]


def _figure(
    y_title: str,
    x_title: str,
    shapes: str,
    grid: str,
    ticks: Iterable[tuple[float, str]],
    over: str,
    words: str | None = None,
) -> str:
    """Draw the frame of a chart.

    Args:
        shapes: SVG in units of `SIZE`; hidden from screen readers, which are told `words`, or what
            the marks that lie `over` it say.
        ticks: places on the x-axis, 0 to 1, and their names.
    """
    names = "".join(
        f'<span class="ps-tick" style="left:{x:.2%}">{escape(name)}</span>' for x, name in ticks
    )
    role = "" if words is None else f' role="img" aria-label="{escape(words)}"'
    return (
        f'<figure class="ps-chart"><figcaption>{escape(y_title)}</figcaption>'
        f'<div class="ps-plot"{role}>{grid}<svg viewBox="0 0 {SIZE} {SIZE}" '
        f'preserveAspectRatio="none" aria-hidden="true">{shapes}</svg>{over}{names}</div>'
        f'<p class="ps-axis">{escape(x_title)}</p></figure>'
    )


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


def _grid(values: Sequence[float], up) -> str:
    return "".join(
        f'<span class="ps-level" style="top:{1 - up(level):.2%}"><b>{level:,.6g}</b></span>'
        for level in round_levels(min(values), max(values))
    )


def _power(power: int) -> str:
    """Write a power of ten, small and large ones with an exponent."""
    if -4 < power < 5:
        return f"{10.0**power:,.4g}"
    return f"10{str(power).translate(EXPONENTS)}"


def _mark(point: Point, x: float, y: float) -> str:
    return (
        f'<span class="ps-mark" tabindex="0" role="img" aria-label="{escape(point.words)}" '
        f'style="left:{x:.2%};top:{y:.2%};--x:{x:.3f}"><b>{escape(point.words)}</b></span>'
    )


def _scale(values: Sequence[float], least: float = 0.0):
    """Map values to 0…1 with a margin; the range is at least `least` times the largest value."""
    low, high = min(values), max(values)
    widen = max(0.0, least * abs(high) - (high - low)) / 2
    low, high = low - widen, high + widen
    span = (high - low) or 1.0
    return lambda value: MARGIN + (1 - 2 * MARGIN) * (value - low) / span
