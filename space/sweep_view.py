"""Several settings side by side: what the stride costs and gives, what each tool would report."""

import itertools
import math
from collections.abc import Iterator, Sequence

from views.charts import Point, bar, line_chart
from views.markup import change, count, escape, number

from .protocols import guide
from .service import STRIDES_SET, TOOLS_SET, Scored, Sweep, TradeOff, gain_share

LANES = 3  # windows are drawn in turns below each other, so that overlaps can be seen
PICTURED = 10  # windows' lengths of text, from its beginning, over which windows are drawn
MARGIN = 0.04  # of the axis, left free at either end


def trade_off_view(trade_off: TradeOff) -> str:
    """Perplexity against stride with its cost, and of the same tokens with less and less context."""
    if trade_off.fits_one_window:
        return ""
    wide = trade_off.wide
    mark = escape(wide.settings.mark(wide.text, but=STRIDES_SET))
    chart = _stride_chart(trade_off) if len(trade_off.strides) > 1 else ""
    remark = f'<p class="ps-note">{escape(trade_off.remark)}</p>' if trade_off.remark else ""
    return (
        f'<div class="ps-view" data-of="{mark}"><h3>What each stride gains, and costs</h3>'
        f"{chart}{_stride_table(trade_off)}{remark}{_contexts(trade_off)}</div>"
    )


def protocol_view(sweep: Sweep) -> str:
    """Show what each tool would report, on one axis; how it cuts this very text, where it is opened."""
    if not sweep.scored:
        return _no_protocol(sweep)
    first = sweep.scored[0]
    groups = group_equal(sweep.scored)
    axis = _axis([group[0].result["perplexity"] for group in groups])
    rows = "".join(_group(group, first, axis) for group in groups)
    mark = escape(first.settings.mark(first.text, but=TOOLS_SET))
    low, high = (number(group[0].result["perplexity"]) for group in (groups[0], groups[-1]))
    return (
        f'<div class="ps-view" data-of="{mark}"><h3>Same model, same text: {low} to {high}</h3>'
        "<p>All of them are “the perplexity”. Tools split the text differently, drop different parts, or "
        "average in another way. So say which one you used. Open a row to see how, and to score your text "
        f'that way.</p><div class="ps-groups">{rows}</div>'
        '<ul class="ps-key"><li><i class="ps-context"></i>read as context</li><li><i class="ps-new"></i>'
        'scored</li><li><i class="ps-lost"></i>not scored at all</li></ul>'
        f"{_no_protocol(sweep)}</div>"
    )


def group_equal(scored: Sequence[Scored]) -> list[list[Scored]]:
    """Put results together that are shown as the same number, the lowest first."""
    ordered = sorted(scored, key=lambda one: one.result["perplexity"])
    groups = itertools.groupby(ordered, key=lambda one: number(one.result["perplexity"]))
    return [list(group) for _, group in groups]


def _group(group: Sequence[Scored], first: Scored, axis) -> str:
    """Write one row of the dot plot, and folded in it what makes up the number."""
    names = ", ".join(escape(scored.settings.protocol) for scored in group)
    is_own = " ps-own" if first in group else ""
    tools = "".join(_tool_part(scored, first) for scored in group)
    return (
        f'<details class="ps-group{is_own}"><summary><span class="ps-names">{names}</span>'
        f"<b>{number(group[0].result['perplexity'])}</b>{_dots(group[0], first, axis)}</summary>"
        f"<small>{_picture_title(first)}</small>{tools}</details>"
    )


def _tool_part(scored: Scored, first: Scored) -> str:
    settings, name = scored.settings, escape(scored.settings.protocol)
    error = scored.result.get("tool_stderr")
    plus_minus = f" ±&nbsp;{number(error, 3)} as the tool has it;" if error is not None else ""
    return (
        f'<div class="ps-tool" data-protocol="{name}" data-window="{settings.window}" '
        f'data-stride="{settings.stride or ""}"><div>{_tool(settings)}</div>'
        f"<div>{window_picture(scored)}<small>{plus_minus} {_difference(scored.result)}</small></div>"
        f'<button type="button" class="ps-button">Score like {name}</button></div>'
    )


def _picture_title(first: Scored) -> str:
    reach, length = pictured_tokens(first), len(first.tokens["tokens"])
    if reach >= length:
        return "How the text is split; below, what is scored"
    return f"How the first {reach:,} tokens are split; below, what is scored of all"


def _no_protocol(sweep: Sweep) -> str:
    if not sweep.failed:
        return ""
    return f'<div class="ps-view"><table class="ps-table">{_failed_rows(sweep)}</table></div>'


def _failed_rows(sweep: Sweep) -> str:
    return "".join(
        f"<tr><th scope='row'>{_tool(settings)}</th>"
        f"<td colspan='2' class='ps-none'>{escape(reason)}</td></tr>"
        for settings, reason in sweep.failed
    )


def _tool(settings) -> str:
    known = guide(settings.protocol)
    return f"<b>{escape(settings.protocol)}</b><small><b>{escape(known.tool)}.</b> {escape(known.idea)}</small>"


def _axis(values: Sequence[float]):
    """Map perplexities to 0…1, on a logarithmic scale with a margin."""
    finite = [math.log(value) for value in values if math.isfinite(value)]
    low, span = (min(finite), (max(finite) - min(finite)) or 1.0) if finite else (0.0, 1.0)
    return lambda value: MARGIN + (1 - 2 * MARGIN) * min(1.0, (math.log(value) - low) / span)


def _dots(scored: Scored, first: Scored, axis) -> str:
    """Draw the place of a number on the axis of all, with a line at that of the first protocol."""
    return (
        f'<span class="ps-dots"><i style="left:{axis(first.result["perplexity"]):.1%}"></i>'
        f'<b style="left:{axis(scored.result["perplexity"]):.1%}"></b></span>'
    )


def _difference(result: dict) -> str:
    """The paired difference in per cent, in words."""
    ratio = result.get("ratio_to_first")
    if ratio is None:
        return "what the others are compared with"
    if ratio["ratio"] is None or not math.isfinite(ratio["ratio"]):
        return "no difference can be given"
    return change(ratio)


def window_picture(scored: Scored) -> str:
    """How the windows lie over this text: what they read, what they score, what nobody scores.

    The windows are drawn over the beginning of a long text; below, what is scored over all of it.
    """
    tokens, windows = scored.tokens, scored.tokens["windows"]
    length = max(1, len(tokens["tokens"]))
    lost = tokens["nll"].count(None)
    reach = pictured_tokens(scored)
    longest = max(window["end"] - window["begin"] for window in windows)
    step = (windows[-1]["begin"] - windows[0]["begin"]) / max(1, len(windows) - 1) or longest
    skip = max(1, math.ceil(longest / step / LANES))
    words = (
        f"{count(len(windows), 'window')}{f', 1 in {skip} drawn' if skip > 1 else ''}; "
        f"{count(scored.result['num_forward_tokens'], 'token')} read; "
        f"{lost:,} of {count(length, 'token')} not scored"
    )
    drawn = [window for window in windows[::skip] if window["begin"] < reach]
    coverage = "".join(
        f'<rect class="{kind}" x="{begin}" y="0" width="{end - begin}" height="1"/>'
        for kind, begin, end in _runs(tokens["nll"])
    )
    return (
        f'<div class="ps-cut" role="img" aria-label="{words}">'
        f'<svg viewBox="0 0 {reach} {LANES}" preserveAspectRatio="none">{"".join(_window_bars(drawn))}'
        f'</svg><svg viewBox="0 0 {length} 1" preserveAspectRatio="none">{coverage}</svg></div>'
        f"<small>{words}</small>"
    )


def pictured_tokens(scored: Scored) -> int:
    """Tokens of the text over which windows are drawn: all of a short one."""
    return max(1, min(len(scored.tokens["tokens"]), PICTURED * scored.settings.window))


def _window_bars(windows: Sequence[dict]) -> Iterator[str]:
    for index, window in enumerate(windows):
        lane = index % LANES
        for kind, begin, end in (
            ("ps-context", window["begin"], window["first"]),
            ("ps-new", window["first"], window["end"]),
        ):
            if end > begin:
                yield (
                    f'<rect class="{kind}" x="{begin}" y="{lane}" width="{end - begin}" height="0.8"/>'
                )


def _runs(nll: Sequence[float | None]) -> Iterator[tuple[str, int, int]]:
    """Stretches of tokens that are scored, or lost, as (class, begin, end)."""
    begin = 0
    for place in range(1, len(nll) + 1):
        if place == len(nll) or (nll[place] is None) != (nll[begin] is None):
            yield "ps-lost" if nll[begin] is None else "ps-new", begin, place
            begin = place


def _stride_chart(trade_off: TradeOff) -> str:
    points = [_stride_point(scored, trade_off) for scored in reversed(trade_off.strides)]
    wide = trade_off.wide
    chart = line_chart(points, "stride, in tokens", "Perplexity", wide.result["perplexity"])
    reference = f"stride {wide.settings.stride:,}"
    return chart + _bars_note(points, reference, "the difference is significant")


def _bars_note(points: Sequence[Point], reference: str, clear: str) -> str:
    """How to read error bars that are of differences to one of the points.

    Args:
        clear: what a bar says that does not reach the line of that point.
    """
    if all(point.interval is None for point in points):
        return ""
    return (
        f'<p class="ps-note">Bars: the 95 % interval of the difference to {reference}, over the same '
        f"tokens. If a bar does not cross the horizontal line, {clear}.</p>"
    )


def _stride_point(scored: Scored, trade_off: TradeOff) -> Point:
    result, is_knee = scored.result, scored is trade_off.knee
    interval = result.get("ratio_to_first", {"interval": None})["interval"]
    start = trade_off.wide.result["perplexity"]
    stride = f"{scored.settings.stride:,}"
    words = (
        f"stride {stride}: perplexity {number(result['perplexity'])}, "
        f"{count(result['num_forward_tokens'], 'token')} read"
        f"{'; the knee: smaller strides gain little more' if is_knee else ''}"
    )
    return Point(
        scored.settings.stride,
        result["perplexity"],
        f"{stride} (knee)" if is_knee else stride,
        words,
        interval and [start * end for end in interval],
    )


def _stride_table(trade_off: TradeOff) -> str:
    length = max(1, len(trade_off.wide.tokens["tokens"]))
    most = max(scored.result["num_forward_tokens"] for scored in trade_off.strides)
    rows = "".join(
        f"<tr><th scope='row'>{scored.settings.stride:,}"
        f"{' <small>the knee</small>' if scored is trade_off.knee else ''}"
        f"</th><td>{number(scored.result['perplexity'])}<small> {_change(scored)}</small></td>"
        f"<td>{_least_context(scored)}</td>"
        f"<td>{bar(scored.result['num_forward_tokens'] / most)}"
        f"{scored.result['num_forward_tokens']:,} "
        f"<small>({scored.result['num_forward_tokens'] / length:.1f} × the text)</small></td></tr>"
        for scored in reversed(trade_off.strides)
    )
    return (
        '<table class="ps-table"><thead><tr><th scope="col">Stride</th><th scope="col">Perplexity'
        '</th><th scope="col">Least context after the first window</th><th scope="col">Cost: tokens '
        f"read</th></tr></thead><tbody>{rows}</tbody></table>"
    )


def _change(scored: Scored) -> str:
    return _difference(scored.result) if "ratio_to_first" in scored.result else ""


def _least_context(scored: Scored) -> str:
    """The fewest tokens that a token scored after the first window sees."""
    contexts = scored.tokens["context_length"]
    later = [contexts[window["first"]] for window in scored.tokens["windows"][1:]]
    return f"{min(later):,}" if later else "–"


def _contexts(trade_off: TradeOff) -> str:
    """How far back the model looks: the same tokens with windows of several lengths."""
    rows = trade_off.by_context
    if not rows:
        return ""
    longest, knee = rows[-1], trade_off.context_knee
    points = [_context_point(row, longest, row is knee) for row in rows]
    return (
        f"<h3>{_context_headline(trade_off)}</h3>"
        f"<p>The same {count(longest['num_tokens'], 'token')}, scored with shorter and shorter windows.</p>"
        + line_chart(
            points,
            "length of the window, in tokens",
            "Perplexity of the same tokens",
            longest["perplexity"],
        )
        + _bars_note(
            points,
            f"a window of {longest['context_length']:,}",
            "the model uses more context than that window holds",
        )
    )


def _context_headline(trade_off: TradeOff) -> str:
    rows, knee = trade_off.by_context, trade_off.context_knee
    longest = rows[-1]["context_length"]
    if knee is None:
        return f"Up to {longest:,} tokens, more context makes no difference that is clear"
    if knee is rows[-1]:
        return f"The model uses all {longest:,} tokens of its window"
    share = gain_share(knee["perplexity"], [row["perplexity"] for row in rows])
    length = knee["context_length"]
    if share == 1:
        return f"A {length:,}-token window is enough for this text"
    return f"A {length:,}-token window gets {100 * share:.0f} % of what more context gains here"


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
