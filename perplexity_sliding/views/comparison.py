"""Comparison of a model with a reference on one text: the change, its significance and its places."""

import bisect
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from .charts import Point, density_chart, distribution_chart, line_chart
from .markup import count, escape, number, payload
from .numbers import odds
from .piece_list import piece_list, shown
from .reading import Reading
from .segments import Segment, cut
from .surprise import ENDLESS
from .text_box import detail_box, text_box
from .tokens import colour_choice, text_segments

# Lower edges of the colours: bits that a piece of text costs more or less, and nats of divergence.
CHANGE_EDGES = (0.1, 0.5, 2.0)
KL_EDGES = (0.001, 0.01, 0.1, 0.5, 2.0)
WORST_SHOWN = 10
FEWEST = 30  # tokens of a group; a mean over fewer would be noise
SMALLEST_KL = 1e-9  # start of the axis of divergences
CONTEXT_AXIS = "tokens of context, at least, in windows without overlap"
MARKED_PERCENTILES = {"50": "half are below", "99": "99 %", "100": "largest"}


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


def comparison_view(pair: Pair, mark: str = "", place: int = 1) -> str:
    """Show the verdict, the numbers, the text coloured by change, and the largest changes.

    For one of several texts compared together, show only its own numbers.

    Args:
        mark: identifies the settings, so that the page can dim outdated results.
        place: number of the view on its page.
    """
    names = pair.names
    segments, text = text_of(pair)
    changes = measure_changes(pair, segments)
    by_piece = {change.piece: change for change in changes}
    pieces = [text[segment.start : segment.end] for segment in segments]
    by_segment = [by_piece.get(number) for number in range(len(segments))]
    colours = [
        None if change is None and not piece.strip() else change_colour(change)
        for change, piece in zip(by_segment, pieces)
    ]
    choices = ("change", "divergence") if pair.has_divergence else ("change",)
    data = {"models": names, "pieces": [_columns(change) for change in by_segment]}
    if pair.has_divergence:
        data["kl_colours"] = [kl_colour(change) for change in by_segment]
    of = f' data-of="{escape(mark)}"' if mark else ""
    return (
        f'<div class="ps-view" data-view="compare"{of} '
        f"data-payload={payload(data)}>{_opening(pair)}"
        f"{colour_choice(choices, f'ps-compared-{place}')}{_legends(names[0])}"
        f'<div class="ps-pair">{text_box(pieces, colours, "piece")}'
        f"{detail_box('what either model made of it')}</div>"
        f"{'' if pair.is_one_of_several else _folded('numbers of both', 'All numbers', _table(pair))}"
        f"{_folded('most changed', 'Where it changed most', _worst(changes, segments, text))}"
        f"{_folded('charts', 'Charts', _charts(pair, changes))}</div>"
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


def _folded(name: str, title: str, content: str) -> str:
    """Show secondary details, collapsed."""
    return (
        f'<details class="ps-more" data-keep="{name}"><summary>{title}</summary>{content}</details>'
        if content
        else ""
    )


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


def kl_colour(change: Change | None) -> str:
    """Return the class of a divergence, from the colours of surprise."""
    return "out" if change is None else f"b{bisect.bisect_right(KL_EDGES, change.kl)}"


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


def _legends(model: str) -> str:
    low, middle, high = (f"{edge:g}" for edge in CHANGE_EDGES)
    spans = (f"by over {high} bits", f"{middle}–{high} bits", f"{low}–{middle}")
    by_change = [
        *zip(("w3", "w2", "w1"), (f"better with {model}", "better", "better"), spans),
        ("", "about the same", f"under {low} bits"),
        *zip(("v1", "v2", "v3"), ("worse", "worse", f"worse with {model}"), spans[::-1]),
    ]
    ends = [f"{edge:g}" for edge in KL_EDGES]
    by_kl = [
        ("b0", f"under {ends[0]} nats", ""),
        *((f"b{n + 1}", f"{from_}–{to}", "") for n, (from_, to) in enumerate(pairwise(ends))),
        ("b5", f"over {ends[-1]}", ""),
    ]
    return (
        f'<div class="ps-legend"><ul data-legend="change">{_boxes(by_change)}</ul>'
        f'<ul data-legend="divergence" hidden>{_boxes(by_kl)}</ul></div>'
    )


def _boxes(entries: Sequence[tuple[str, str, str]]) -> str:
    return "".join(
        f'<li><span class="ps-box {colour}">{escape(name)}</span><small>{span}</small></li>'
        for colour, name, span in entries
    )


def _worst(changes: Sequence[Change], segments: Sequence[Segment], text: str) -> str:
    """List the pieces that lost most and those whose predictions changed most, with links."""
    lost = sorted(
        (change for change in changes if change.change > 0), key=lambda change: -change.change
    )
    lists = [("change", "What got worse most", lost, _lost)]
    if changes and changes[0].kl is not None:
        moved = sorted(
            (change for change in changes if change.kl > 0), key=lambda change: -change.kl
        )
        lists.append(("divergence", "Where predictions changed most", moved, _moved))
    return "".join(
        f'<div class="ps-worst" data-legend="{name}"{" hidden" if name != "change" else ""}><h3>{title}</h3>'
        + piece_list(
            [(change.piece, *describe(change)) for change in worst[:WORST_SHOWN]], segments, text
        )
        + "</div>"
        for name, title, worst, describe in lists
    )


def _lost(change: Change) -> tuple[str, str]:
    bits = "infinite" if math.isinf(change.change) else f"+{change.change:.1f} bits"
    return bits, f"{_chance(change.reference_bits)} → {_chance(change.bits)}"


def _moved(change: Change) -> tuple[str, str]:
    model, reference = (escape(shown(top)) for top in change.tops)
    return (
        f"{number(change.kl, 3)} nats",
        f"likeliest: <code>{reference}</code>"
        + (f" → <code>{model}</code>" if change.tops[0] != change.tops[1] else " for both"),
    )


def _charts(pair: Pair, changes: Sequence[Change]) -> str:
    """Chart changed predictions: by length of context, over all tokens, token against token."""
    finite = [c for c in changes if math.isfinite(c.bits) and math.isfinite(c.reference_bits)]
    if len(finite) < 2:
        return ""
    of_tokens = "".join(_token_charts(pair, finite))
    bars = "Bars are 95 % intervals. " if "ps-error" in of_tokens else ""
    where = "In the last picture, " if of_tokens else ""
    return (
        f'<div class="ps-charts">{of_tokens}{_pair_chart(pair, finite)}</div>'
        f'<p class="ps-note">{bars}{where}{escape(pair.names[0])} does worse above the line.</p>'
    )


def _token_charts(pair: Pair, changes: Sequence[Change]) -> Iterator[str]:
    if not pair.by_tokens:
        return
    model = pair.names[0]
    groups = [
        group
        for group in pair.by_context
        if group["low"] and group["num_tokens"] >= FEWEST and group["log_ratio_interval"]
    ]
    if len(groups) > 1:
        yield line_chart(
            [_change_point(group) for group in groups],
            CONTEXT_AXIS,
            f"Perplexity of {model}, change in %",
            base=0,
        )
    if pair.has_divergence:
        yield from _divergence_charts(pair, changes, groups)


def _divergence_charts(
    pair: Pair, changes: Sequence[Change], groups: Sequence[dict]
) -> Iterator[str]:
    comparison = pair.comparison
    if len(groups) > 1:
        yield line_chart(
            [_kl_point(group) for group in groups], CONTEXT_AXIS, "KL divergence, nats", base=0
        )
    points = comparison["kl_percentiles"]
    marks = [(points[name], words) for name, words in MARKED_PERCENTILES.items()]
    marks = [] if pair.is_one_of_several else marks
    yield distribution_chart(
        [max(change.kl, SMALLEST_KL) for change in changes if math.isfinite(change.kl)],
        [(value, words) for value, words in marks if SMALLEST_KL < value < math.inf],
        "KL divergence of a token, nats",
        "Tokens",
    )


def _change_point(group: dict) -> Point:
    change, interval = _per_cent(group["log_ratio"]), group["log_ratio_interval"]
    bounds = interval and [_per_cent(bound) for bound in interval]
    words = f"{_span(group)}: {_sign(change)} %{_bounds(bounds, _sign, ' %')}"
    return Point(group["low"], change, f"{group['low']:,}", words, bounds)


def _kl_point(group: dict) -> Point:
    words = (
        f"{_span(group)}: {number(group['kl'], 3)} nats{_bounds(group['kl_interval'], number, '')}"
    )
    return Point(group["low"], group["kl"], f"{group['low']:,}", words, group["kl_interval"])


def _pair_chart(pair: Pair, changes: Sequence[Change]) -> str:
    unit = "token" if pair.by_tokens else "piece of text"
    model, reference = pair.names[0], pair.names[1]
    worse = sum(change.change > 0 for change in changes) / len(changes)
    return density_chart(
        [change.reference_bits for change in changes],
        [change.bits for change in changes],
        f"bits under {reference}",
        f"Bits of each {unit} under {model}",
        f"{100 * worse:.0f} % of them lie above the line, where {model} does worse.",
    )


def _per_cent(log_ratio: float) -> float:
    """Convert a mean change in nats to a change of perplexity in per cent."""
    return 100 * math.expm1(log_ratio)


def _sign(per_cent: float) -> str:
    return f"{per_cent:+.2f}".replace("-", "−")


def _span(group: dict) -> str:
    low, high = group["low"], group["high"]
    span = count(low, "token") if low == high else f"{low:,}–{high:,} tokens"
    return f"{span} of context"


def _bounds(interval: Sequence[float] | None, write, unit: str) -> str:
    if interval is None:
        return ""
    low, high = map(write, interval)
    return f" (95 % interval {low} to {high}{unit})"


def _chance(bits: float) -> str:
    """Write a surprisal in bits as a probability."""
    if math.isinf(bits):
        return "none"
    share = 100 * 2.0**-bits
    if share >= 0.1:
        return f"{number(share, 2)} %"
    return f"1 in {2.0**bits:,.0f}" if bits < 50 else odds(bits * math.log(2))
