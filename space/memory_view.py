"""How much memory helps: the same tokens with windows of several lengths, and with smaller strides."""

import math

from perplexity_sliding.views.charts import Point, context_curve, line_chart, setting_curve
from perplexity_sliding.views.text import count, escape, number, per_cent, signed

from .service import Compared, Memory

FEWEST = 30  # tokens of a group; a mean over fewer would be noise
CONTEXT_AXIS = "tokens of context, at least, in windows without overlap"


def memory_view(memory: Memory) -> str:
    """Say what the longest memory is worth, and draw both curves."""
    if not memory.by_context:
        return (
            '<div class="ps-view"><p>So few words leave nothing to forget. Write on, or try a longer text.</p>'
            '<button type="button" data-sample="story.txt">A long story</button></div>'
        )
    remark = f'<p class="ps-note">{escape(memory.remark)}</p>' if memory.remark else ""
    strides = setting_curve(memory.strides) if len(memory.strides) > 1 else ""
    overlap = (
        '<p class="ps-note">It is not the number above: only tokens with so much before them are counted, in '
        "windows that overlap more.</p>"
    )
    more = (
        "<h3>And windows that overlap more?</h3><p>Where one window ends, the next begins with little "
        "memory. A smaller stride gives every token more of it, and reads the text more often.</p>"
    )
    return (
        f'<div class="ps-view">{_headline(memory)}{overlap}{context_curve(memory.by_context)}'
        f"{more + strides if strides else ''}{remark}</div>"
    )


def _headline(memory: Memory) -> str:
    short, long = memory.by_context[0], memory.by_context[-1]
    change = per_cent(long["perplexity"] / short["perplexity"])
    interval = short.get("ratio_to_longest", {}).get("interval")
    chance = ""
    if interval is None:
        chance = " The text is too short for an interval."
    elif interval[0] <= 1 <= interval[1]:
        chance = " That may be chance."
    return (
        f'<p class="ps-verdict">With a memory of {long["context_length"]:,} tokens instead of '
        f"{short['context_length']:,}, the perplexity of the same tokens goes from "
        f"{number(short['perplexity'])} to <b>{number(long['perplexity'])}</b>, {change} %.{chance}</p>"
    )


def change_by_context(compared: Compared) -> str:
    """Chart what a model changes against its reference, in per cent, by the length of the context."""
    points = []
    for group in compared.by_context:
        low, high, interval = group["low"], group["high"], group["log_ratio_interval"]
        if not (low and group["num_tokens"] >= FEWEST and interval):
            continue
        change, *bounds = (100 * math.expm1(nats) for nats in (group["log_ratio"], *interval))
        span = count(low, "token") if low == high else f"{low:,}–{high:,} tokens"
        said, *ends = (signed(value, 2) for value in (change, *bounds))
        words = f"{span} of context: {said} % (95 % interval {' to '.join(ends)} %)"
        points.append(Point(low, change, f"{low:,}", words, bounds))
    if compared.scored.result["comparison"]["compared"] != "tokens" or len(points) < 2:
        return ""
    title = f"Perplexity of {compared.scored.loaded.name}, change in %"
    chart = line_chart(points, CONTEXT_AXIS, title, base=0)
    return f'<div class="ps-view">{chart}<p class="ps-note">Bars are 95 % intervals.</p></div>'
