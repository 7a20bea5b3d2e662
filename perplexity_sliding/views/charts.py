"""Pictures as HTML: a line chart, curves of settings, and the windows over a text.

Shapes in a stretched SVG, with unscaled text around it: a picture fits phones and desktops, follows
the page's colours, and fetches nothing.
"""

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

from . import Reading
from .text import change, count, escape, number

LEAST_SPAN = 0.1  # of the largest value, shown by the y-axis at least
MARGIN = 0.06  # of the axis, left free at either end
SIZE = 100  # the SVG's own units; it is stretched to the figure
CAP = 0.012  # of the chart's width, to either side of an error bar's ends
LETTER = 0.028  # of the chart's width on a phone, at most
LANES = 3  # windows are drawn in turns below each other, so that overlaps can be seen
PICTURED = 10  # number of window lengths, from the start of the text, over which windows are drawn
KEY = (
    '<ul class="ps-key"><li><i class="ps-context"></i>read as context</li><li><i class="ps-new"></i>'
    'scored</li><li><i class="ps-lost"></i>not scored at all</li></ul>'
)


class Point(NamedTuple):
    """One measurement, with its name on the x-axis, and all about it, shown on pointing at it.

    The interval around y, if any, is drawn as an error bar.
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
        base: a value to be drawn as a line: what the measurements and their intervals are compared with.
    """
    logs = [math.log2(point.x) for point in points]
    across = _scale(min(logs), max(logs))
    ends = [end for p in points for end in (p.y, *(p.interval or ()))]
    ends += [] if base is None else [base]
    # Differences of a few per cent shall look like that, and names of levels stand apart.
    low, high = min(ends), max(ends)
    widen = max(0.0, LEAST_SPAN * abs(high) - (high - low)) / 2
    low, high = low - widen, high + widen
    up = _scale(low, high)
    places = [(across(log), 1 - up(point.y)) for log, point in zip(logs, points)]
    line = " ".join(f"{x * SIZE:.2f},{y * SIZE:.2f}" for x, y in places)
    errors = marks = ""
    for point, (x, y) in zip(points, places):
        if point.interval is not None:
            bottom, top = (f"{(1 - up(end)) * SIZE:.2f}" for end in point.interval)
            left, width = (x - CAP) * SIZE, 2 * CAP * SIZE
            caps = "".join(f"M{left:.2f} {end}h{width:.2f}" for end in (bottom, top))
            errors += f'<path class="ps-error" d="{caps}M{x * SIZE:.2f} {bottom}V{top}"/>'
        words = escape(point.words)
        marks += (
            f'<span class="ps-mark" tabindex="0" role="img" aria-label="{words}" '
            f'style="left:{x:.2%};top:{y:.2%};--x:{x:.3f}"><b>{words}</b></span>'
        )
    levels = "".join(
        f'<span class="ps-level" style="top:{1 - up(level):.2%}"><b>{level:,.6g}</b></span>'
        for level in round_levels(low, high)
    )
    ticks = "".join(
        f'<span class="ps-tick" style="left:{x:.2%}">{escape(name)}</span>'
        for x, name in _apart([(x, point.tick) for point, (x, _) in zip(points, places)])
    )
    at = "" if base is None or not errors else f"M0 {(1 - up(base)) * SIZE:.2f}h{SIZE}"
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


def _apart(ticks: Sequence[tuple[float, str]]) -> list[tuple[float, str]]:
    """Drop names on the x-axis that would overlap a longer one, or a later one, on a phone."""
    kept: list[tuple[float, str]] = []
    for x, name in sorted(ticks, key=lambda tick: (-len(tick[1]), -tick[0])):
        if all(abs(x - at) > (len(name) + len(other) + 1) / 2 * LETTER for at, other in kept):
            kept.append((x, name))
    return sorted(kept)


def _scale(low: float, high: float):
    span = (high - low) or 1.0
    return lambda value: MARGIN + (1 - 2 * MARGIN) * (value - low) / span


# --- curves ---------------------------------------------------------------------------------------


def setting_curve(results: Sequence[dict], key: str = "stride") -> str:
    """Draw perplexity against `max_length` or `stride`; intervals are of the difference to the first."""
    first, name = results[0], {"max_length": "window"}.get(key, key)
    points = [
        Point(
            result[key],
            result["perplexity"],
            f"{result[key]:,}",
            f"{name} {result[key]:,}: perplexity {number(result['perplexity'])}, "
            f"{count(result['num_forward_tokens'], 'token')} read",
            _interval_of(result.get("ratio_to_first"), first),
        )
        for result in sorted(results, key=lambda result: result[key])
    ]
    chart = line_chart(points, f"{name}, in tokens", "Perplexity", first["perplexity"])
    return chart + _bars_note(points, f"{name} {first[key]:,}", "the difference is significant")


def context_curve(rows: Sequence[dict]) -> str:
    """Draw the perplexity of the same tokens in windows of several lengths, `by_context_length`."""
    longest, points = rows[-1], []
    for row in rows:
        length, ratio = f"{row['context_length']:,}", row.get("ratio_to_longest")
        words = f"a window of {length}: perplexity {number(row['perplexity'])}"
        if ratio is not None:
            words += f", {change(ratio)} against {longest['context_length']:,}"
        interval = _interval_of(ratio, longest)
        points.append(Point(row["context_length"], row["perplexity"], length, words, interval))
    base = f"a window of {longest['context_length']:,}"
    x_title, y_title = "length of the window, in tokens", "Perplexity of the same tokens"
    clear = "the model uses more context than fits into that window"
    return (
        f"<p>The same {count(longest['num_tokens'], 'token')}, scored with shorter and shorter windows.</p>"
        + line_chart(points, x_title, y_title, longest["perplexity"])
        + _bars_note(points, base, clear)
    )


def _interval_of(ratio: dict | None, base: dict) -> list[float] | None:
    """Return the interval of a paired difference as perplexities."""
    if ratio is None or ratio["interval"] is None:
        return None
    return [base["perplexity"] * end for end in ratio["interval"]]


def _bars_note(points: Sequence[Point], reference: str, clear: str) -> str:
    if all(point.interval is None for point in points):
        return ""
    return (
        f'<p class="ps-note">Bars: the 95 % interval of the difference to {reference}, over the same '
        f"tokens. If a bar does not cross the horizontal line, {clear}.</p>"
    )


# --- windows over a text --------------------------------------------------------------------------


def window_picture(reading: Reading) -> str:
    """Draw the windows over this text, of a long one the first; what is scored is shown for all of it."""
    tokens, windows = reading.tokens, reading.tokens["windows"]
    length = max(1, len(tokens["tokens"]))
    reach = pictured_tokens(reading)
    longest = max(window["end"] - window["begin"] for window in windows)
    step = (windows[-1]["begin"] - windows[0]["begin"]) / max(1, len(windows) - 1) or longest
    skip = max(1, math.ceil(longest / step / LANES))
    words = (
        f"{count(len(windows), 'window')}{f', 1 in {skip} drawn' if skip > 1 else ''}; "
        f"{tokens['nll'].count(None):,} of {count(length, 'token')} not scored"
    )
    bars = coverage = ""
    drawn = [window for window in windows[::skip] if window["begin"] < reach]
    for index, window in enumerate(drawn):
        begin, first, end = window["begin"], window["first"], window["end"]
        for kind, left, right in (("ps-context", begin, first), ("ps-new", first, end)):
            if right > left:
                bars += (
                    f'<rect class="{kind}" x="{left}" y="{index % LANES}" width="{right - left}" '
                    'height="0.8"/>'
                )
    begin = 0
    for is_lost, run in itertools.groupby(tokens["nll"], key=lambda nll: nll is None):
        kind, width = "ps-lost" if is_lost else "ps-new", len(list(run))
        coverage += f'<rect class="{kind}" x="{begin}" y="0" width="{width}" height="1"/>'
        begin += width
    return (
        f'<div class="ps-cut" role="img" aria-label="{words}">'
        f'<svg viewBox="0 0 {reach} {LANES}" preserveAspectRatio="none">{bars}'
        f'</svg><svg viewBox="0 0 {length} 1" preserveAspectRatio="none">{coverage}</svg></div>'
        f"<small>{words}</small>"
    )


def pictured_tokens(reading: Reading) -> int:
    return max(1, min(len(reading.tokens["tokens"]), PICTURED * reading.window))
