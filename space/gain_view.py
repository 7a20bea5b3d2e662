"""Why context helps: the same text under two strides, and the tokens that needed context most."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from perplexity_sliding.views.markup import change, count, escape, number, payload
from perplexity_sliding.views.piece_list import piece_list
from perplexity_sliding.views.segments import Segment
from perplexity_sliding.views.text_box import detail_box, text_box
from perplexity_sliding.views.tokens import text_segments

from .service import STRIDES_SET, Scored, TradeOff, gain_share

SLIGHT, CLEAR = 1.0, 3.0  # bits; a smaller difference is left plain
MOST = 10  # tokens in the list


@dataclass(frozen=True)
class Gain:
    """One piece of the text under a large and a small stride.

    Attributes:
        piece: its number among the segments.
        bits: surprisal under either.
        context: tokens before it under either.
    """

    piece: int
    bits: tuple[float, float]
    context: tuple[int, int]

    @property
    def saved(self) -> float:
        return self.bits[0] - self.bits[1]


def gain_view(trade_off: TradeOff) -> str:
    """Show the gain of the smallest stride over the largest: overall, by token and by position."""
    if len(trade_off.strides) < 2:
        return ""
    if trade_off.fits_one_window:
        return (
            '<div class="ps-view"><p>The text fits in one window, so the stride changes nothing: every '
            "token has all that stands before it as context. Try a longer text, or a shorter "
            "window.</p></div>"
        )
    wide, narrow = trade_off.wide, trade_off.best
    if narrow is wide:
        narrow = trade_off.strides[-1]
    segments, text = text_segments(wide)
    gains = measure_gains(wide, narrow, segments)
    by_piece: dict[int, Gain] = {gain.piece: gain for gain in gains}
    pieces = [text[segment.start : segment.end] for segment in segments]
    compared = [by_piece.get(number) for number in range(len(segments))]
    colours = [_colour(gain) for gain in compared]
    data = {"pieces": [_columns(gain) for gain in compared]}
    # A character that is made of several tokens is one piece.
    unit = "token" if all(segment.first == segment.last for segment in segments) else "piece"
    mark = wide.settings.mark(wide.text, but=STRIDES_SET)
    return (
        f'<div class="ps-view" data-view="gain" data-of="{escape(mark)}" data-payload={payload(data)}>'
        f"{headline(trade_off)}{_counts(gains, unit)}<h3>The {unit}s that needed context most</h3>"
        f"{_list(gains, wide, segments, text)}{_legend()}"
        f'<div class="ps-pair">{text_box(pieces, colours, unit)}'
        f"{detail_box('what the added context was worth')}</div></div>"
    )


def headline(trade_off: TradeOff) -> str:
    """Describe the effect of the best stride, its significance and its cost."""
    wide, best, ratio = trade_off.wide, trade_off.best, trade_off.ratio
    before, after = (scored.result["perplexity"] for scored in (wide, best))
    if not math.isfinite(before) or not math.isfinite(after):
        return '<p class="ps-verdict">The model gave part of this text zero probability.</p>'
    if ratio is None:
        return (
            '<p class="ps-verdict">No smaller stride lowers the perplexity of this text, '
            f"<b>{number(before)}</b> without overlap.</p>"
        )
    return (
        f'<p class="ps-verdict">Stride {best.settings.stride:,} instead of '
        f"{wide.settings.stride:,}: perplexity <b>{number(before)} → {number(after)}</b>, "
        f"{change(ratio)}, for {_work(best, wide):.1f} × the work.</p><p>{_judged(trade_off)}</p>"
    )


def _judged(trade_off: TradeOff) -> str:
    """Interpret the interval, and recommend a stride."""
    best, knee = trade_off.best, trade_off.knee
    if trade_off.ratio["interval"] is None:
        return "The text is too short to tell whether that is chance."
    if knee is None:
        return "<b>That may be chance:</b> the interval includes no change at all."
    if knee is best:
        said = [
            "No larger stride gets 90 % of this gain." * (best is not trade_off.strides[1]),
            "Smaller strides don't help further." * (best is not trade_off.strides[-1]),
        ]
        return " ".join(filter(None, said))
    share = gain_share(
        knee.result["perplexity"], [scored.result["perplexity"] for scored in trade_off.strides]
    )
    return (
        f"<b>Stride {knee.settings.stride:,}</b> gets {100 * share:.0f} % of this gain at "
        f"{_work(knee, trade_off.wide):.1f} × the work."
    )


def _work(scored: Scored, wide: Scored) -> float:
    return scored.result["num_forward_tokens"] / max(1, wide.result["num_forward_tokens"])


def measure_gains(wide: Scored, narrow: Scored, segments: Sequence[Segment]) -> list[Gain]:
    """Compare the pieces that both strides scored."""
    gains = []
    for piece, segment in enumerate(segments):
        if segment.first is None:
            continue
        tokens = slice(segment.first, segment.last + 1)
        nll = [scored.tokens["nll"][tokens] for scored in (wide, narrow)]
        if None in (*nll[0], *nll[1]) or not math.isfinite(sum(nll[0]) + sum(nll[1])):
            continue
        context = tuple(scored.tokens["context_length"][segment.first] for scored in (wide, narrow))
        gains.append(Gain(piece, tuple(sum(side) / math.log(2) for side in nll), context))
    return gains


def repeated_before(words: Sequence[str], token: int, context: tuple[int, int]) -> int | None:
    """Count the tokens back to the same word in the context that only the small stride provides.

    Args:
        words: the text of each token; spaces, case, signs and single letters don't count.
        context: tokens before this one under the wide stride and the narrow one.
    """
    word = words[token].strip().lower()
    if not word.isalpha() or len(word) < 2:
        return None
    for back in range(context[0] + 1, min(context[1], token) + 1):
        if words[token - back].strip().lower() == word:
            return back
    return None


def _counts(gains: Sequence[Gain], unit: str) -> str:
    helped = sum(gain.saved >= SLIGHT for gain in gains)
    harmed = sum(gain.saved <= -SLIGHT for gain in gains)
    return (
        f"<p>With more context, {count(helped, unit)} became at least 1 bit more predictable, and "
        f"{harmed:,} at least 1 bit less.</p>"
    )


def _list(gains: Sequence[Gain], wide: Scored, segments: Sequence[Segment], text: str) -> str:
    words = [""] * len(wide.tokens["tokens"])
    for segment in segments:
        if segment.first is not None:
            words[segment.first] = text[segment.start : segment.end]
    best = sorted((gain for gain in gains if gain.saved > 0), key=lambda gain: -gain.saved)[:MOST]
    entries = []
    for gain in best:
        far = repeated_before(words, segments[gain.piece].first, gain.context)
        seen = "" if far is None else f"; now it sees the same word {count(far, 'token')} before"
        told = (
            f"with {count(gain.context[1], 'token')} before it instead of {gain.context[0]:,}{seen}"
        )
        entries.append((gain.piece, f"+{gain.saved:.1f} bits", told))
    return piece_list(entries, segments, text)


def _legend() -> str:
    return (
        '<div class="ps-legend"><ul>'
        f"<li><span class='ps-box g2'>more predictable</span><small>by {CLEAR:g} bits or more</small></li>"
        f"<li><span class='ps-box g1'>more predictable</span><small>by {SLIGHT:g} to {CLEAR:g}</small></li>"
        "<li><span class='ps-box'>about the same</span><small>or not scored</small></li>"
        f"<li><span class='ps-box v1'>less predictable</span><small>by {SLIGHT:g} or more</small></li>"
        "</ul></div>"
    )


def _colour(gain: Gain | None) -> str:
    if gain is None or abs(gain.saved) < SLIGHT:
        return ""
    if gain.saved < 0:
        return "v1"
    return "g2" if gain.saved >= CLEAR else "g1"


def _columns(gain: Gain | None) -> list | None:
    """Return the data of the script: bits and context under both strides."""
    return gain and [*(round(bits, 2) for bits in gain.bits), *gain.context]
