"""Curves of one text under several settings, with intervals of paired differences."""

from collections.abc import Sequence

from .charts import Point, line_chart
from .markup import change, count, number

WINDOW, STRIDE = "max_length", "stride"
NAMES = {WINDOW: "window", STRIDE: "stride"}


def setting_curve(results: Sequence[dict], key: str = STRIDE, knee: dict | None = None) -> str:
    """Draw perplexity against a setting; intervals are of the difference to the first.

    Args:
        results: of the metric, the one that the others are compared with first.
        knee: the cheapest one with most of the possible gain.
    """
    first = results[0]
    points = [_setting_point(result, first, key, result is knee) for result in reversed(results)]
    points.sort(key=lambda point: point.x)
    chart = line_chart(points, f"{NAMES[key]}, in tokens", "Perplexity", first["perplexity"])
    reference = f"{NAMES[key]} {first[key]:,}"
    return chart + bars_note(points, reference, "the difference is significant")


def _setting_point(result: dict, first: dict, key: str, is_knee: bool) -> Point:
    interval = result.get("ratio_to_first", {"interval": None})["interval"]
    value = f"{result[key]:,}"
    words = (
        f"{NAMES[key]} {value}: perplexity {number(result['perplexity'])}, "
        f"{count(result['num_forward_tokens'], 'token')} read"
        f"{f'; the knee: smaller {NAMES[key]}s gain little more' if is_knee else ''}"
    )
    return Point(
        result[key],
        result["perplexity"],
        f"{value} (knee)" if is_knee else value,
        words,
        interval and [first["perplexity"] * end for end in interval],
    )


def context_curve(rows: Sequence[dict], knee: dict | None = None) -> str:
    """Draw the perplexity of the same tokens in windows of several lengths.

    Args:
        rows: the metric's `by_context_length`.
        knee: the shortest one with most of the possible gain.
    """
    longest = rows[-1]
    points = [_context_point(row, longest, row is knee) for row in rows]
    return (
        f"<p>The same {count(longest['num_tokens'], 'token')}, scored with shorter and shorter windows.</p>"
        + line_chart(
            points,
            "length of the window, in tokens",
            "Perplexity of the same tokens",
            longest["perplexity"],
        )
        + bars_note(
            points,
            f"a window of {longest['context_length']:,}",
            "the model uses more context than fits into that window",
        )
    )


def _context_point(row: dict, longest: dict, is_knee: bool) -> Point:
    ratio = row.get("ratio_to_longest")
    interval = None if ratio is None else ratio["interval"]
    length = f"{row['context_length']:,}"
    words = f"a window of {length}: perplexity {number(row['perplexity'])}"
    if ratio is not None:
        words += f", {change(ratio)} against {longest['context_length']:,}"
    if is_knee:
        words += "; the knee: longer ones gain little more"
    return Point(
        row["context_length"],
        row["perplexity"],
        f"{length} (knee)" if is_knee else length,
        words,
        interval and [longest["perplexity"] * end for end in interval],
    )


def bars_note(points: Sequence[Point], reference: str, clear: str) -> str:
    """Explain the error bars, which show differences from one of the points.

    Args:
        clear: what a bar says that does not reach the line of that point.
    """
    if all(point.interval is None for point in points):
        return ""
    return (
        f'<p class="ps-note">Bars: the 95 % interval of the difference to {reference}, over the same '
        f"tokens. If a bar does not cross the horizontal line, {clear}.</p>"
    )
