"""The results of each tool, side by side on one axis."""

import itertools
import json
import math
from collections.abc import Sequence

from perplexity_sliding.views.charts import KEY, pictured_tokens, window_picture
from perplexity_sliding.views.text import change, count, escape, number

from .protocols import guide
from .service import Scored, Sweep
from .settings import Settings

AVERAGES = (
    "perplexity",
    "mean_perplexity",
    "word_perplexity",
    "bits_per_byte",
)  # that papers print
TOO_SHORT = "The text must have at least"  # begins the metric's refusal
MARGIN = 0.04  # of the axis, left free at either end
READ_FIELD = (
    '<p><label class="ps-read">A number you have read: <input type="text" inputmode="decimal" autocomplete="off" '
    'placeholder="such as {example:.2f}"></label> <span class="ps-reading" role="status"></span></p>'
)


def tools_view(sweep: Sweep) -> str:
    """Show each tool's result on one axis, with its windows over the text when opened."""
    if not sweep.scored:
        return _no_protocol(sweep)
    first = sweep.scored[0]
    groups = group_equal(sweep.scored)
    axis = _axis([group[0].result["perplexity"] for group in groups])
    rows = "".join(_group(group, first, axis) for group in groups)
    return (
        f'<div class="ps-view"><p class="ps-verdict">Same model, same text: {_range(groups)}</p>'
        "<p>All of them are “the perplexity”. Tools split the text differently, drop different parts, or "
        "average in another way. So say which one you used. Open a row to see how, and to score your text "
        f'that way.</p><p class="ps-note">{_whose_settings(first.settings)}</p>'
        f'{READ_FIELD.format(example=first.result["perplexity"])}<div class="ps-groups">{rows}</div>'
        f"{KEY}{_no_protocol(sweep)}</div>"
    )


def headline(sweep: Sweep) -> str:
    """Return the lowest and the highest number, as `34.27 to 48.34`."""
    return _range(group_equal(sweep.scored))


def _range(groups: Sequence[Sequence[Scored]]) -> str:
    low, high = (number(group[0].result["perplexity"]) for group in (groups[0], groups[-1]))
    return f"{low} to {high}"


def _whose_settings(first: Settings) -> str:
    """Describe the window and the stride of the numbers."""
    window, name = count(first.window, "token"), escape(first.protocol)
    own = name if first.stride is None else f"{name} with a stride of {first.stride:,}"
    return f"The bold row is {own}. The others have its window of {window} and their own stride."


def group_equal(scored: Sequence[Scored]) -> list[list[Scored]]:
    """Group results with the same displayed number, the lowest first."""
    ordered = sorted(scored, key=lambda one: one.result["perplexity"])
    groups = itertools.groupby(ordered, key=lambda one: number(one.result["perplexity"]))
    return [list(group) for _, group in groups]


def _group(group: Sequence[Scored], first: Scored, axis) -> str:
    """Write one row of the dot plot, with collapsed details."""
    names = ", ".join(escape(scored.settings.protocol) for scored in group)
    is_own = " ps-own" if first in group else ""
    whose = "; ".join(escape(guide(scored.settings.protocol).tool) for scored in group)
    tools = "".join(_tool_part(scored, first) for scored in group)
    return (
        f'<details class="ps-group{is_own}"><summary><span class="ps-names">{names}<small>{whose}</small></span>'
        f"<b>{number(group[0].result['perplexity'])}</b>{_dots(group[0], first, axis)}</summary>"
        f"<small>{_picture_title(first)}</small>{tools}</details>"
    )


def _tool_part(scored: Scored, first: Scored) -> str:
    settings, name = scored.settings, escape(scored.settings.protocol)
    error = scored.result.get("tool_stderr")
    plus_minus = f" ±&nbsp;{number(error, 3)} as the tool has it;" if error is not None else ""
    return (
        f'<div class="ps-tool" data-protocol="{name}" data-window="{settings.window}" '
        f'data-stride="{settings.stride or ""}" data-values="{_values(scored.result)}">'
        f"<div>{_tool(settings)}{_sizes(settings)}</div>"
        f"<div>{window_picture(scored)}<small>{plus_minus} {_difference(scored.result)}</small></div>"
        f'<button type="button" class="ps-button">Score like {name}</button></div>'
    )


def _values(result: dict) -> str:
    """Write every average of a result that a paper may print, by name."""
    values = {name: result[name] for name in AVERAGES if result.get(name) is not None}
    values["nats_per_token"] = math.log(values["perplexity"])
    values["bits_per_token"] = values["nats_per_token"] / math.log(2)
    finite = {name: value for name, value in values.items() if math.isfinite(value)}
    return escape(json.dumps(finite))


def _sizes(settings: Settings) -> str:
    stride = "" if settings.stride is None else f", stride {settings.stride:,}"
    return f"<small>Window {settings.window:,}{stride}.</small>"


def _picture_title(first: Scored) -> str:
    reach, length = pictured_tokens(first), len(first.tokens["tokens"])
    if reach >= length:
        return "How the text is split; below, what is scored"
    return f"How the first {reach:,} tokens are split; below, what is scored of all"


def _no_protocol(sweep: Sweep) -> str:
    if not sweep.failed:
        return ""
    short = [escape(one.protocol) for one, reason in sweep.failed if reason.startswith(TOO_SHORT)]
    said = (
        f"<p>The text is too short for {', '.join(short)}: write more, or choose a shorter window.</p>"
        '<button type="button" data-sample="story.txt">A long story</button>'
    )
    rows = "".join(
        f"<tr><th scope='row'>{_tool(settings)}</th>"
        f"<td colspan='2' class='ps-none'>{escape(reason)}</td></tr>"
        for settings, reason in sweep.failed
        if not reason.startswith(TOO_SHORT)
    )
    table = f'<table class="ps-table">{rows}</table>' if rows else ""
    return f'<div class="ps-view">{said if short else ""}{table}</div>'


def _tool(settings) -> str:
    known = guide(settings.protocol)
    return f"<b>{escape(settings.protocol)}</b><small><b>{escape(known.tool)}.</b> {escape(known.idea)}</small>"


def _axis(values: Sequence[float]):
    """Map perplexities to 0…1, on a logarithmic scale with a margin."""
    finite = [math.log(value) for value in values if math.isfinite(value)]
    low, span = (min(finite), (max(finite) - min(finite)) or 1.0) if finite else (0.0, 1.0)
    return lambda value: MARGIN + (1 - 2 * MARGIN) * min(1.0, (math.log(value) - low) / span)


def _dots(scored: Scored, first: Scored, axis) -> str:
    """Draw a number on the common axis, with a line at the first protocol's."""
    return (
        f'<span class="ps-dots"><i style="left:{axis(first.result["perplexity"]):.1%}"></i>'
        f'<b style="left:{axis(scored.result["perplexity"]):.1%}"></b></span>'
    )


def _difference(result: dict) -> str:
    """Write the paired difference in per cent."""
    ratio = result.get("ratio_to_first")
    if ratio is None:
        return "what the others are compared with"
    if ratio["ratio"] is None or not math.isfinite(ratio["ratio"]):
        return "no difference can be given"
    return change(ratio)
