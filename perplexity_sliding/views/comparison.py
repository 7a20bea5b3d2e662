"""Comparison of a model with a reference on one text: verdict, numbers, the text by change, one chart."""

import bisect
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from .charts import Point, line_chart
from .markup import count, escape, number, payload
from .reading import Reading
from .segments import Segment, cut
from .surprise import ENDLESS
from .text_box import detail_box, text_box
from .tokens import text_segments

CHANGE_EDGES = (0.1, 0.5, 2.0)  # bits that a piece of text costs more or less: edges of the colours
FEWEST = 30  # tokens of a group; a mean over fewer would be noise
CONTEXT_AXIS = "tokens of context, at least, in windows without overlap"


@dataclass(frozen=True)
class Pair:
    """A text under a model and its reference.

    Attributes:
        reading: of the model; its result contains the metric's `comparison`.
        names: of the model and of the reference.
        scores: units that both scored: tokens, or pieces between common token boundaries.
        by_context: of the metric's comparison in windows without overlap; empty where that is unknown.
        longer_windows: the models that accept longer windows, each with its limit.
        remark: how the request was changed, or None.
        own: what the text costs by itself under the reference and under the model, where the
            comparison is of several texts: perplexities, or bits per byte; None where unknown.
    """

    reading: Reading
    names: tuple[str, str]
    scores: dict
    by_context: Sequence[dict] = ()
    longer_windows: Sequence[tuple[str, int]] = ()
    remark: str | None = None
    own: tuple[float, float] | None = None

    @property
    def comparison(self) -> dict:
        return self.reading.result["comparison"]

    @property
    def by_tokens(self) -> bool:
        """Whether both models read the same tokens, which can be compared."""
        return self.comparison["compared"] == "tokens"

    @property
    def has_divergence(self) -> bool:
        """Whether the divergence of the predictions was measured; it is not with a server."""
        return "kl" in self.comparison

    @property
    def is_one_of_several(self) -> bool:
        """Whether the comparison includes other texts."""
        return self.reading.result["num_texts"] > 1


def pair_of(reading: Reading, place: int, names: tuple[str, str]) -> Pair:
    """Create a pair from one of the texts of a result.

    Args:
        place: of the text among them, from 0.
        names: of the model and of the reference.
    """
    result, comparison = reading.result, reading.result["comparison"]
    own_windows = comparison["own_window"], comparison["reference_own_window"]
    longer = [
        (name, length)
        for name, length in zip(names, own_windows)
        if length is not None and length > result["max_length"]
    ]
    if comparison["compared"] == "tokens":
        of_texts = comparison["reference_perplexities"]
        has_own = reading.perplexity is not None and place < len(of_texts)
        own = (of_texts[place], reading.perplexity) if has_own else None
        return Pair(reading, names, reading.tokens, longer_windows=longer, own=own)
    scores = result["piece_scores"][place]
    own = _bits_per_byte(reading.whole, scores)
    return Pair(reading, names, scores, longer_windows=longer, own=own)


def _bits_per_byte(text: str, scores: dict) -> tuple[float, float] | None:
    """Return the bits per byte of pieces of a text, under the reference and under the model."""
    spans = scores["offsets"]
    if not spans or spans[-1][1] > len(text):  # only its beginning is shown
        return None
    num_bytes = sum(len(text[first:end].encode()) for first, end in spans)
    sums = (sum(scores[name]) for name in ("reference_nll", "nll"))
    reference, model = (nats / num_bytes / math.log(2) for nats in sums)
    return reference, model


@dataclass(frozen=True)
class Change:
    """One piece of the text under both models.

    Attributes:
        piece: its number among the segments.
        bits: surprisal under the model.
        reference_bits: under the reference.
        kl: largest divergence of its tokens, in nats; None where there is none.
        tops: likeliest token for the model and for the reference there, or None.
    """

    piece: int
    bits: float
    reference_bits: float
    kl: float | None = None
    tops: tuple[str, str] | None = None

    @property
    def change(self) -> float:
        """Additional bits under the model; 0 if it is impossible under both."""
        return 0.0 if self.bits == self.reference_bits else self.bits - self.reference_bits


def comparison_of_all(pair: Pair) -> str:
    """Show the verdict on several texts together, and the numbers."""
    return (
        f"<section><h2>All {count(pair.reading.result['num_texts'], 'text')} together</h2>"
        f'<p class="ps-verdict">{verdict(pair)}</p>{_remarks(pair)}{_table(pair)}</section>'
    )


def comparison_view(pair: Pair) -> str:
    """Show the verdict, the text coloured by change, the numbers, and a chart.

    For one of several texts compared together, show only its own numbers.
    """
    segments, text = text_of(pair)
    changes = measure_changes(pair, segments)
    by_piece = {change.piece: change for change in changes}
    pieces = [text[segment.start : segment.end] for segment in segments]
    by_segment = [by_piece.get(number) for number in range(len(segments))]
    colours = [
        None if change is None and not piece.strip() else change_colour(change)
        for change, piece in zip(by_segment, pieces)
    ]
    data = {"models": pair.names, "pieces": [_columns(change) for change in by_segment]}
    return (
        f'<div class="ps-view" data-view="compare" data-payload={payload(data)}>{_opening(pair)}'
        f"{_legend(pair.names[0])}"
        f'<div class="ps-pair">{text_box(pieces, colours, "piece")}'
        f"{detail_box('what either model made of it')}</div>"
        f"{'' if pair.is_one_of_several else _table(pair)}{_chart(pair)}</div>"
    )


def _opening(pair: Pair) -> str:
    """Write the heading of a text: its verdict, or its own numbers if the verdict is for several texts."""
    if not pair.is_one_of_several:
        return f'<p class="ps-verdict">{verdict(pair)}</p>{_remarks(pair)}'
    if pair.own is None:
        return ""
    before, after = pair.own
    model, reference = pair.names
    what = "perplexity" if pair.by_tokens else "bits per byte"
    changed = _percent_of(before, after)
    return (
        f'<p class="ps-own">This text: {what} {number(after)} with <b>{escape(model)}</b>, '
        f"{number(before)} with <b>{escape(reference)}</b>{escape(changed)}.</p>"
    )


def _percent_of(before: float, after: float) -> str:
    """Write a change as ", 2.9 % lower"; return "" if it is undefined."""
    if not (math.isfinite(before) and math.isfinite(after) and before > 0):
        return ""
    share = 100 * (after / before - 1)
    return f", {abs(share):.3g} % {'higher' if share >= 0 else 'lower'}"


def verdict(pair: Pair) -> str:
    """Write the metric's sentence with the models' names."""
    names = {"model": pair.names[0], "reference": pair.names[1]}
    words = re.split(r"\b[Tt]he (model|reference)\b", pair.comparison["summary"])
    return "".join(
        f"<b>{escape(names[word])}</b>" if place % 2 else escape(word)
        for place, word in enumerate(words)
    )


def measure_changes(pair: Pair, segments: Sequence[Segment]) -> list[Change]:
    """Compare the pieces of text that both models scored."""
    scores, changes = pair.scores, []
    for piece, segment in enumerate(segments):
        if segment.first is None:
            continue
        tokens = slice(segment.first, segment.last + 1)
        nll, reference_nll = scores["nll"][tokens], scores["reference_nll"][tokens]
        if None in (*nll, *reference_nll):
            continue
        bits = [sum(side) / math.log(2) for side in (nll, reference_nll)]
        if not pair.has_divergence:
            changes.append(Change(piece, *bits))
            continue
        kl = scores["kl"][tokens]
        most = segment.first + kl.index(max(kl))
        tops = scores["top"][most], scores["reference_top"][most]
        changes.append(Change(piece, *bits, max(kl), tops))
    return changes


def change_colour(change: Change | None) -> str:
    """Return the class of a change: "w" where the model does better, "v" worse, and 1 to 3."""
    if change is None:
        return "out"
    step = bisect.bisect_right(CHANGE_EDGES, abs(change.change))
    return f"{'v' if change.change > 0 else 'w'}{step}" if step else ""


def text_of(pair: Pair) -> tuple[list[Segment], str]:
    """Return the segments on which both models are compared, and their text."""
    if pair.by_tokens:
        return text_segments(pair.reading)
    return cut(pair.reading.whole, pair.scores["offsets"]), pair.reading.whole


def _columns(change: Change | None) -> list | None:
    """Return the data of the script: bits under both models, divergence, most likely tokens."""
    if change is None:
        return None
    bits = [round(min(bits, ENDLESS), 2) for bits in (change.bits, change.reference_bits)]
    if change.kl is None:
        return bits
    return [*bits, float(f"{min(change.kl, ENDLESS):.3g}"), *change.tops]


def _table(pair: Pair) -> str:
    model, reference = map(escape, pair.names)
    rows = _token_rows(pair) if pair.by_tokens else _byte_rows(pair)
    body = "".join(f"<tr><th scope='row'>{name}</th>{_cells(cells)}</tr>" for name, *cells in rows)
    return (
        '<table class="ps-table ps-compared"><thead><tr><th scope="col"></th>'
        f'<th scope="col">{reference}<small>the reference</small></th><th scope="col">{model}</th>'
        '<th scope="col">Change<small>95 % interval</small></th></tr></thead>'
        f"<tbody>{body}</tbody></table>"
    )


def _cells(cells: Sequence[str]) -> str:
    """Write the cells of a row; a value of both models spans all of them."""
    *of_models, change = cells
    span = "" if of_models else ' colspan="3"'
    return "".join(f"<td>{cell}</td>" for cell in of_models) + f"<td{span}>{change}</td>"


def _token_rows(pair: Pair) -> list[tuple[str, ...]]:
    comparison = pair.comparison
    return [
        (
            "Perplexity<small>lower is better</small>",
            number(comparison["reference_perplexity"]),
            number(pair.reading.result["perplexity"]),
            _ratio(comparison["perplexity_ratio"]),
        ),
        (
            "Right next token<small>the likeliest one is the text's</small>",
            f"{100 * comparison['reference_accuracy']:.1f} %",
            f"{100 * comparison['accuracy']:.1f} %",
            _points(comparison["accuracy_change"], comparison["accuracy_change_interval"])
            + f"<small>{100 * comparison['right_to_wrong']:.1f} % lost, "
            f"{100 * comparison['wrong_to_right']:.1f} % won</small>",
        ),
        *(_divergence_rows(comparison) if pair.has_divergence else ()),
        (
            "Same next token",
            (
                f"up to {100 * comparison['token_agreement']:.1f} % if sampled, "
                if pair.has_divergence
                else ""
            )
            + f"{100 * comparison['same_top']:.1f} % if the likeliest is taken",
        ),
    ]


def _divergence_rows(comparison: dict) -> list[tuple[str, ...]]:
    points = comparison["kl_percentiles"]
    return [
        (
            "KL divergence<small>how much predictions change, for better or worse</small>",
            f"{number(comparison['kl'])} nats a token{_within(comparison['kl_interval'], number)}"
            f"<small>half of all tokens below {number(points['50'], 3)}, the largest "
            f"{number(points['100'], 3)}</small>",
        )
    ]


def _byte_rows(pair: Pair) -> list[tuple[str, ...]]:
    comparison = pair.comparison
    change, interval = (
        comparison["bits_per_byte_change"],
        comparison["bits_per_byte_change_interval"],
    )
    return [
        (
            "Bits per byte<small>lower is better</small>",
            number(comparison["reference_bits_per_byte"]),
            number(comparison["bits_per_byte"]),
            f"{_signed(change)}{_within(interval, _signed)}",
        )
    ]


def _ratio(ratio: dict) -> str:
    if ratio["ratio"] is None:
        return "none can be given"
    return f"× {ratio['ratio']:.4f}{_within(ratio['interval'], lambda bound: f'× {bound:.4f}')}"


def _points(change: float, interval: Sequence[float] | None) -> str:
    def said(share: float) -> str:
        return f"{100 * share:+.2f}".replace("-", "−")

    return f"{said(change)} points{_within(interval, said)}"


def _signed(bits: float) -> str:
    return f"{bits:+.4f}".replace("-", "−")


def _within(interval: Sequence[float] | None, write) -> str:
    """Write an interval in small type, or that there is none."""
    if interval is None:
        return "<small>not enough text for an interval</small>"
    low, high = map(write, interval)
    return f"<small>{low} to {high}</small>"


def _remarks(pair: Pair) -> str:
    """Write the notes that a reader needs to interpret the numbers."""
    comparison, window = pair.comparison, pair.reading.window
    said = [f"Both read {count(window, 'token')} at a time."]
    said += [f"{name} could read up to {longest:,}." for name, longest in pair.longer_windows]
    if not pair.by_tokens:
        said.append(
            "They cut the text into different tokens, so they are compared over the pieces of text that "
            "both cut out, and by bits per byte: perplexities per token are not on one scale, and their "
            "predictions cannot be compared token by token."
        )
    if comparison["interval_sample"]:
        scope, sample = comparison["interval_scope"], comparison["interval_sample"]
        is_over_texts = scope == "over texts"
        beyond = "" if is_over_texts else ": other texts may differ by more"
        said.append(f"Intervals are {scope}, from {sample}{beyond}.")
    if pair.has_divergence and comparison["num_infinite_kl"]:
        said.append(
            f"{count(comparison['num_infinite_kl'], 'token')} have an infinite divergence: the model rules out "
            "what the reference does not."
        )
    said += [pair.remark] if pair.remark else []
    return f'<p class="ps-note">{escape(" ".join(said))}</p>'


def _legend(model: str) -> str:
    low, middle, high = (f"{edge:g}" for edge in CHANGE_EDGES)
    spans = (f"by over {high} bits", f"{middle}–{high} bits", f"{low}–{middle}")
    entries = [
        *zip(("w3", "w2", "w1"), (f"better with {model}", "better", "better"), spans),
        ("", "about the same", f"under {low} bits"),
        *zip(("v1", "v2", "v3"), ("worse", "worse", f"worse with {model}"), spans[::-1]),
    ]
    boxes = "".join(
        f'<li><span class="ps-box {colour}">{escape(name)}</span><small>{span}</small></li>'
        for colour, name, span in entries
    )
    return f'<div class="ps-legend"><ul>{boxes}</ul></div>'


def _chart(pair: Pair) -> str:
    """Chart the change of the perplexity by the length of the context, where that is known."""
    groups = [
        group
        for group in pair.by_context
        if group["low"] and group["num_tokens"] >= FEWEST and group["log_ratio_interval"]
    ]
    if not pair.by_tokens or len(groups) < 2:
        return ""
    title = f"Perplexity of {pair.names[0]}, change in %"
    chart = line_chart([_change_point(group) for group in groups], CONTEXT_AXIS, title, base=0)
    return f'{chart}<p class="ps-note">Bars are 95 % intervals.</p>'


def _change_point(group: dict) -> Point:
    change, interval = _per_cent(group["log_ratio"]), group["log_ratio_interval"]
    low, high = bounds = [_per_cent(bound) for bound in interval]
    words = f"{_span(group)}: {_sign(change)} % (95 % interval {_sign(low)} to {_sign(high)} %)"
    return Point(group["low"], change, f"{group['low']:,}", words, bounds)


def _per_cent(log_ratio: float) -> float:
    """Convert a mean change in nats to a change of perplexity in per cent."""
    return 100 * math.expm1(log_ratio)


def _sign(per_cent: float) -> str:
    return f"{per_cent:+.2f}".replace("-", "−")


def _span(group: dict) -> str:
    low, high = group["low"], group["high"]
    span = count(low, "token") if low == high else f"{low:,}–{high:,} tokens"
    return f"{span} of context"
