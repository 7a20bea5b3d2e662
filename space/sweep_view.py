"""Several settings side by side: what the stride costs and gives, what each tool would report."""

from .charts import Point, bar, line_chart
from .markup import count, escape, number
from .protocols import guide
from .service import ContextBin, Scored, Sweep, surprise_by_context


def trade_off_view(sweep: Sweep) -> str:
    """Perplexity against stride with its cost, and surprisal against context."""
    if not sweep.scored:
        return f'<div class="ps-view">{_remarks(sweep)}</div>'
    scored = sorted(sweep.scored, key=lambda one: one.settings.stride)
    mark = escape(scored[0].settings.mark(scored[0].text, but=("stride", "protocol")))
    return (
        f'<div class="ps-view" data-of="{mark}"><h3>A smaller stride gives more context, and costs more</h3>'
        f"{_stride_chart(scored)}{_stride_table(scored)}"
        f"<h3>What context is worth</h3>{_context_chart(sweep.scored[0])}{_remarks(sweep)}</div>"
    )


def protocol_view(sweep: Sweep) -> str:
    """The table of all protocols, with bars."""
    if not sweep.scored and not sweep.failed:
        return ""
    largest = max((_finite(one) for one in sweep.scored), default=1.0)
    rows = "".join(_protocol_row(one, largest) for one in sweep.scored)
    failed = "".join(
        f"<tr><th scope='row'>{_tool(settings.protocol)}</th>"
        f"<td colspan='3' class='ps-none'>{escape(reason)}</td></tr>"
        for settings, reason in sweep.failed
    )
    marks = [one.settings.mark(one.text, but=("protocol",)) for one in sweep.scored[:1]]
    of = "".join(f' data-of="{escape(mark)}"' for mark in marks)
    return (
        f'<div class="ps-view"{of}><h3>The same text, the same model, and what each tool would report</h3>'
        "<p>All of them are “the perplexity”. They differ because each tool cuts the text into "
        "other windows, scores other tokens of them, or averages in another way. So say which one "
        "you used.</p>"
        '<table class="ps-table ps-tools"><thead><tr><th scope="col">Tool</th><th scope="col">Perplexity</th>'
        '<th scope="col">Tokens scored</th><th scope="col">Tokens read</th></tr></thead>'
        f"<tbody>{rows}{failed}</tbody></table>{_remarks(sweep)}</div>"
    )


def _stride_chart(scored: list[Scored]) -> str:
    points = [
        Point(
            one.settings.stride,
            one.result["perplexity"],
            f"{one.settings.stride:,}",
            f"stride {one.settings.stride:,}: perplexity {number(one.result['perplexity'])}, "
            f"{count(one.result['num_forward_tokens'], 'token')} read",
            one.result["perplexity"],
            one.result["perplexity"],
        )
        for one in scored
    ]
    return line_chart(points, "stride, in tokens", "Perplexity")


def _stride_table(scored: list[Scored]) -> str:
    length = max(1, len(scored[0].tokens["tokens"]))
    most = max(one.result["num_forward_tokens"] for one in scored)
    rows = "".join(
        f"<tr><th scope='row'>{one.settings.stride:,}</th>"
        f"<td>{number(one.result['perplexity'])}</td>"
        f"<td>{max(1, one.settings.window - one.settings.stride):,}</td>"
        f"<td>{bar(one.result['num_forward_tokens'] / most)}"
        f"{one.result['num_forward_tokens']:,} "
        f"<small>({one.result['num_forward_tokens'] / length:.1f} × the text)</small></td></tr>"
        for one in scored
    )
    return (
        '<table class="ps-table"><thead><tr><th scope="col">Stride</th><th scope="col">Perplexity'
        '</th><th scope="col">Least context</th><th scope="col">Cost: tokens read</th></tr></thead>'
        f"<tbody>{rows}</tbody></table>"
    )


def _context_chart(widest: Scored) -> str:
    bins = surprise_by_context(widest)
    if len(bins) < 2:
        return '<p class="ps-note">The text is too short to tell.</p>'
    return (
        "<p>The tokens at the widest stride, by how many tokens each of them had before it. Where the "
        "curve is flat, a longer window would hardly help. The shaded band is two standard errors "
        "wide on either side.</p>"
        + line_chart(
            [_context_point(own) for own in bins],
            "tokens of context before the token, at least",
            "Mean surprisal, in bits",
        )
    )


def _context_point(own: ContextBin) -> Point:
    words = (
        f"{own.shortest:,} to {own.longest:,} tokens of context: {own.bits:.2f} bits, over "
        f"{count(own.tokens, 'token')}"
    )
    margin = 2 * own.stderr
    return Point(
        own.shortest, own.bits, f"{own.shortest:,}", words, own.bits - margin, own.bits + margin
    )


def _protocol_row(one: Scored, largest: float) -> str:
    result = one.result
    error = result.get("tool_stderr")
    plus_minus = f" <small>±&nbsp;{number(error, 3)}</small>" if error is not None else ""
    return (
        f"<tr><th scope='row'>{_tool(one.settings.protocol)}</th>"
        f"<td>{bar(_finite(one) / largest)}{number(result['perplexity'])}{plus_minus}</td>"
        f"<td>{result['num_tokens']:,}</td><td>{result['num_forward_tokens']:,}</td></tr>"
    )


def _tool(protocol: str) -> str:
    known = guide(protocol)
    return f"{escape(protocol)}<small><b>{escape(known.tool)}.</b> {escape(known.idea)}</small>"


def _finite(one: Scored) -> float:
    perplexity = one.result["perplexity"]
    return perplexity if perplexity < float("inf") else 0.0


def _remarks(sweep: Sweep) -> str:
    return f'<p class="ps-note">{escape(sweep.remark)}</p>' if sweep.remark else ""
