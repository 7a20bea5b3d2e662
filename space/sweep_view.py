"""Several settings side by side: what the stride costs and gives, what each tool would report."""

import math
from collections.abc import Iterator, Sequence

from .charts import Point, bar, line_chart
from .markup import count, escape, number
from .protocols import guide
from .service import ContextBin, Scored, Sweep, worth_of_context

ENOUGH = 0.9  # of what the smallest stride gains: the stride that reaches it is the knee
LANES = 3  # windows are drawn in turns below each other, so that overlaps can be seen
MOST_WINDOWS = 80  # more of them would be thinner than a pixel
MARGIN = 0.04  # of the axis, left free at either end


def trade_off_view(sweep: Sweep) -> str:
    """Perplexity against stride with its cost, and what context is worth to the same tokens."""
    if not sweep.scored or len(sweep.scored[0].tokens["windows"]) < 2:
        return f'<div class="ps-view">{_remarks(sweep)}</div>' if sweep.remark else ""
    wide, narrow = sweep.scored[0], sweep.scored[-1]
    knee = find_knee(sweep)
    mark = escape(wide.settings.mark(wide.text, but=("stride", "protocol")))
    chart = _stride_chart(sweep, knee) if len(sweep.scored) > 1 else ""
    return (
        f'<div class="ps-view" data-of="{mark}"><h3>{_stride_headline(sweep, knee)}</h3>'
        f"{chart}{_stride_table(sweep, knee)}{_remarks(sweep)}"
        f"<h3>What context is worth</h3>{_context_chart(wide, narrow)}</div>"
    )


def find_knee(sweep: Sweep) -> Scored | None:
    """The cheapest setting that gains most of what the smallest stride gains.

    None where the gain cannot be told from chance.
    """
    first, last = sweep.scored[0], sweep.scored[-1]
    interval = last.result.get("ratio_to_first", {}).get("interval")
    if interval is None or interval[1] >= 1:
        return None
    return next(one for one in sweep.scored if gain_share(one, first, last) >= ENOUGH)


def gain_share(one: Scored, first: Scored, last: Scored) -> float:
    """How much of the last's gain on the first a setting reaches, in bits per token."""
    start, end = math.log(first.result["perplexity"]), math.log(last.result["perplexity"])
    return (start - math.log(one.result["perplexity"])) / (start - end)


def protocol_view(sweep: Sweep) -> str:
    """How each tool cuts this very text, and what comes of it, on one axis."""
    if not sweep.scored:
        return _no_protocol(sweep)
    first = sweep.scored[0]
    ordered = sorted(sweep.scored, key=lambda one: one.result["perplexity"])
    axis = _axis([one.result["perplexity"] for one in ordered])
    rows = "".join(_protocol_row(one, first, axis) for one in ordered)
    mark = escape(first.settings.mark(first.text, but=("stride", "start", "protocol")))
    low, high = ordered[0].result["perplexity"], ordered[-1].result["perplexity"]
    return (
        f'<div class="ps-view" data-of="{mark}"><h3>Same model, same text: {number(low)} to '
        f"{number(high)}</h3><p>All of them are “the perplexity”. Each tool cuts the text into other "
        "windows, throws other parts away, or averages in another way. So say which one you used.</p>"
        '<ul class="ps-key"><li><i class="ps-context"></i>read as context</li><li><i class="ps-new"></i>'
        'scored</li><li><i class="ps-lost"></i>not scored at all</li></ul>'
        '<table class="ps-table ps-tools"><thead><tr><th scope="col">Tool</th>'
        '<th scope="col">How it cuts this text</th><th scope="col">Perplexity, and the difference to '
        f"{escape(first.settings.protocol)}</th></tr></thead><tbody>{rows}{_failed_rows(sweep)}</tbody>"
        f"</table>{_remarks(sweep)}</div>"
    )


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


def _protocol_row(one: Scored, first: Scored, axis) -> str:
    return (
        f"<tr><th scope='row'>{_tool(one.settings)}</th><td>{window_picture(one)}</td>"
        f"<td>{_dot(one, first, axis)}</td></tr>"
    )


def _tool(settings) -> str:
    known = guide(settings.protocol)
    return f"{escape(settings.protocol)}<small><b>{escape(known.tool)}.</b> {escape(known.idea)}</small>"


def _axis(values: Sequence[float]):
    """Map perplexities to 0…1, on a logarithmic scale with a margin."""
    finite = [math.log(value) for value in values if math.isfinite(value)]
    low, span = (min(finite), (max(finite) - min(finite)) or 1.0) if finite else (0.0, 1.0)
    return lambda value: MARGIN + (1 - 2 * MARGIN) * min(1.0, (math.log(value) - low) / span)


def _dot(one: Scored, first: Scored, axis) -> str:
    """The number, its place on the axis of all, and the difference to the first protocol."""
    result = one.result
    error = result.get("tool_stderr")
    plus_minus = f" <small>±&nbsp;{number(error, 3)}</small>" if error is not None else ""
    return (
        f"<b>{number(result['perplexity'])}</b>{plus_minus}"
        f'<span class="ps-dots"><i style="left:{axis(first.result["perplexity"]):.1%}"></i>'
        f'<b style="left:{axis(result["perplexity"]):.1%}"></b></span>'
        f"<small>{_difference(result)}</small>"
    )


def _difference(result: dict) -> str:
    """The paired difference in per cent, in words."""
    ratio = result.get("ratio_to_first")
    if ratio is None:
        return "what the others are compared with"
    if ratio["perplexity_ratio"] is None or not math.isfinite(ratio["perplexity_ratio"]):
        return "no difference can be given"
    said = f"{_per_cent(ratio['perplexity_ratio'])} %"
    if ratio["interval"] is None:
        return said
    low, high = map(_per_cent, ratio["interval"])
    return f"{said} (95 % interval {low} to {high} %)"


def _per_cent(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.1f}".replace("-", "−")


def window_picture(one: Scored) -> str:
    """How the windows lie over this text: what they read, what they score, what nobody scores."""
    tokens, windows = one.tokens, one.tokens["windows"]
    length = max(1, len(tokens["tokens"]))
    lost = tokens["nll"].count(None)
    words = (
        f"{count(len(windows), 'window')}; {count(one.result['num_forward_tokens'], 'token')} read; "
        f"{lost:,} of {count(length, 'token')} not scored"
    )
    bars = "".join(_window_bars(windows)) if len(windows) <= MOST_WINDOWS else ""
    height = LANES + 1 if bars else 1
    coverage = "".join(
        f'<rect class="{kind}" x="{begin}" y="{height - 1}" width="{end - begin}" height="0.8"/>'
        for kind, begin, end in _runs(tokens["nll"])
    )
    return (
        f'<svg class="ps-cut" viewBox="0 0 {length} {height}" preserveAspectRatio="none" role="img" '
        f'aria-label="{words}">{bars}{coverage}</svg><small>{words}</small>'
    )


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


def _stride_headline(sweep: Sweep, knee: Scored | None) -> str:
    first, last = sweep.scored[0], sweep.scored[-1]
    if len(sweep.scored) == 1:
        return "Only one stride was measured"
    if knee is None:
        return "On this text, a smaller stride gains nothing that can be told from chance"
    cost = knee.result["num_forward_tokens"] / first.result["num_forward_tokens"]
    share = gain_share(knee, first, last)
    return (
        f"Stride {knee.settings.stride:,} brings {100 * share:.0f} % of the gain at {cost:.1f} × the "
        "cost of no overlap"
    )


def _stride_chart(sweep: Sweep, knee: Scored | None) -> str:
    first = sweep.scored[0]
    points = [_stride_point(one, first, one is knee) for one in reversed(sweep.scored)]
    return line_chart(points, "stride, in tokens", "Perplexity") + (
        '<p class="ps-note">The shaded band is the 95 % interval of the difference to the widest '
        "stride, over the same tokens.</p>"
    )


def _stride_point(one: Scored, first: Scored, is_knee: bool) -> Point:
    perplexity, start = one.result["perplexity"], first.result["perplexity"]
    interval = one.result.get("ratio_to_first", {}).get("interval")
    low, high = (perplexity, perplexity) if interval is None else (start * end for end in interval)
    stride = f"{one.settings.stride:,}"
    words = (
        f"stride {stride}: perplexity {number(perplexity)}, "
        f"{count(one.result['num_forward_tokens'], 'token')} read"
        f"{'; the knee: smaller strides gain little more' if is_knee else ''}"
    )
    tick = f"{stride} (knee)" if is_knee else stride
    return Point(one.settings.stride, perplexity, tick, words, low, high)


def _stride_table(sweep: Sweep, knee: Scored | None) -> str:
    length = max(1, len(sweep.scored[0].tokens["tokens"]))
    most = max(one.result["num_forward_tokens"] for one in sweep.scored)
    rows = "".join(
        f"<tr><th scope='row'>{one.settings.stride:,}{' <small>the knee</small>' if one is knee else ''}"
        f"</th><td>{number(one.result['perplexity'])}<small> {_change(one)}</small></td>"
        f"<td>{_least_context(one)}</td>"
        f"<td>{bar(one.result['num_forward_tokens'] / most)}"
        f"{one.result['num_forward_tokens']:,} "
        f"<small>({one.result['num_forward_tokens'] / length:.1f} × the text)</small></td></tr>"
        for one in reversed(sweep.scored)
    )
    return (
        '<table class="ps-table"><thead><tr><th scope="col">Stride</th><th scope="col">Perplexity'
        '</th><th scope="col">Least context after the first window</th><th scope="col">Cost: tokens '
        f"read</th></tr></thead><tbody>{rows}</tbody></table>"
    )


def _change(one: Scored) -> str:
    return _difference(one.result) if "ratio_to_first" in one.result else ""


def _least_context(one: Scored) -> str:
    """The fewest tokens that a token scored after the first window sees."""
    contexts = one.tokens["context_length"]
    later = [contexts[window["first"]] for window in one.tokens["windows"][1:]]
    return f"{min(later):,}" if later else "–"


def _context_chart(wide: Scored, narrow: Scored) -> str:
    bins = worth_of_context(wide, narrow)
    if len(bins) < 2:
        return '<p class="ps-note">The text is too short to tell.</p>'
    return (
        f"<p>Every token twice: with the context that stride {wide.settings.stride:,} leaves it, and "
        f"with that of stride {narrow.settings.stride:,}. The curve says what the shorter one costs. "
        "Where it meets zero, more context no longer helps. The shaded band is the 95 % interval.</p>"
        + line_chart(
            [_context_point(own) for own in bins],
            "tokens of context before the token, at least",
            "What the same token costs more, in bits",
        )
    )


def _context_point(own: ContextBin) -> Point:
    span = (
        count(own.shortest, "token")
        if own.shortest == own.longest
        else f"{own.shortest:,}–{own.longest:,} tokens"
    )
    low, high = own.interval
    words = f"{span} of context: {own.bits:+.2f} bits, over {count(own.tokens, 'token')}"
    return Point(own.shortest, own.bits, f"{own.shortest:,}", words, low, high)


def _remarks(sweep: Sweep) -> str:
    return f'<p class="ps-note">{escape(sweep.remark)}</p>' if sweep.remark else ""
