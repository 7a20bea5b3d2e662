"""Comparison of a model with a reference on one text: verdict, numbers, the text by change."""

import bisect
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from . import Reading
from .text import (
    ENDLESS,
    Segment,
    count,
    cut,
    escape,
    number,
    payload,
    signed,
    text_pair,
    text_segments,
)

CHANGE_EDGES = (0.1, 0.5, 2.0)  # bits that a piece of text costs more or less: edges of the colours


@dataclass(frozen=True)
class Pair:
    """A text under a model and its reference.

    Attributes:
        reading: of the model; its result contains the metric's `comparison`.
        names: of the model and of the reference.
        scores: units that both scored: tokens, or pieces between common token boundaries.
        longer_windows: the models that accept longer windows, each with its limit.
        remark: how the request was changed, or None.
    """

    reading: Reading
    names: tuple[str, str]
    scores: dict
    longer_windows: Sequence[tuple[str, int]] = ()
    remark: str | None = None

    @property
    def comparison(self) -> dict:
        return self.reading.result["comparison"]

    @property
    def by_tokens(self) -> bool:
        return self.comparison["compared"] == "tokens"

    @property
    def has_divergence(self) -> bool:
        return "kl" in self.comparison  # not with a server

    @property
    def is_one_of_several(self) -> bool:
        return self.reading.result["num_texts"] > 1


def pair_of(reading: Reading, place: int, names: tuple[str, str]) -> Pair:
    """Create a pair from the text at a place of a result, from 0, and the names of both models."""
    result, comparison = reading.result, reading.result["comparison"]
    own_windows = comparison["own_window"], comparison["reference_own_window"]
    longer = [
        (name, length)
        for name, length in zip(names, own_windows)
        if length is not None and length > result["max_length"]
    ]
    by_tokens = comparison["compared"] == "tokens"
    scores = reading.tokens if by_tokens else result["piece_scores"][place]
    return Pair(reading, names, scores, longer)


class Change(NamedTuple):
    """One piece of the text under both models.

    Attributes:
        piece: its number among the segments.
        bits, reference_bits: surprisal under the model and under the reference.
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

    @property
    def columns(self) -> list:
        """What the script shows: bits under both models, divergence, most likely tokens."""
        bits = [round(min(bits, ENDLESS), 2) for bits in (self.bits, self.reference_bits)]
        if self.kl is None:
            return bits
        return [*bits, float(f"{min(self.kl, ENDLESS):.3g}"), *self.tops]


def comparison_of_all(pair: Pair) -> str:
    num_texts = count(pair.reading.result["num_texts"], "text")
    return f"<section><h2>All {num_texts} together</h2>{_verdict(pair)}{_table(pair)}</section>"


def comparison_view(pair: Pair) -> str:
    """Show the verdict, the text coloured by change, and the numbers; of one of several texts that alone."""
    segments, text = text_segments(pair.reading)
    if not pair.by_tokens:
        segments, text = cut(pair.reading.whole, pair.scores["offsets"]), pair.reading.whole
    pieces = [text[segment.start : segment.end] for segment in segments]
    changes: list[Change | None] = [None] * len(pieces)
    for own in measure_changes(pair, segments):
        changes[own.piece] = own
    colours = [
        None if change is None and not piece.strip() else change_colour(change)
        for change, piece in zip(changes, pieces)
    ]
    data = {"models": pair.names, "pieces": [change and change.columns for change in changes]}
    is_alone = not pair.is_one_of_several
    head, table = (_verdict(pair), _table(pair)) if is_alone else ("", "")
    return (
        f'<div class="ps-view" data-view="compare" data-payload={payload(data)}>{head}'
        f"{_legend(pair.names[0])}{text_pair(pieces, colours, 'piece', 'what either model made of it')}"
        f"{table}</div>"
    )


def measure_changes(pair: Pair, segments: Sequence[Segment]) -> list[Change]:
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


def _verdict(pair: Pair) -> str:
    """Write the metric's sentence with the models' names, and what is needed to interpret the numbers."""
    comparison = pair.comparison
    names = {"model": pair.names[0], "reference": pair.names[1]}
    words = re.split(r"\b[Tt]he (model|reference)\b", comparison["summary"])
    sentence = "".join(
        f"<b>{escape(names[word])}</b>" if place % 2 else escape(word)
        for place, word in enumerate(words)
    )
    said = [f"Both read {count(pair.reading.window, 'token')} at a time."]
    said += [f"{name} could read up to {longest:,}." for name, longest in pair.longer_windows]
    if not pair.by_tokens:
        said.append(
            "They cut the text into different tokens, so they are compared over the pieces of text that "
            "both cut out, and by bits per byte: perplexities per token are not on one scale, and their "
            "predictions cannot be compared token by token."
        )
    if comparison["interval_sample"]:
        scope = comparison["interval_scope"]
        beyond = "" if scope == "over texts" else ": other texts may differ by more"
        said.append(f"Intervals are {scope}, from {comparison['interval_sample']}{beyond}.")
    if pair.has_divergence and comparison["num_infinite_kl"]:
        said.append(
            f"{count(comparison['num_infinite_kl'], 'token')} have an infinite divergence: the model rules out "
            "what the reference does not."
        )
    said += [pair.remark] if pair.remark else []
    return f'<p class="ps-verdict">{sentence}</p><p class="ps-note">{escape(" ".join(said))}</p>'


def _table(pair: Pair) -> str:
    model, reference = map(escape, pair.names)
    body = ""
    for name, *of_models, change in _rows(pair):
        cells = "".join(f"<td>{cell}</td>" for cell in of_models)
        span = "" if of_models else ' colspan="3"'  # a value of both models
        body += f"<tr><th scope='row'>{name}</th>{cells}<td{span}>{change}</td></tr>"
    return (
        '<table class="ps-table ps-compared"><thead><tr><td></td>'
        f'<th scope="col">{reference}<small>the reference</small></th><th scope="col">{model}</th>'
        '<th scope="col">Change<small>95 % interval</small></th></tr></thead>'
        f"<tbody>{body}</tbody></table>"
    )


def _rows(pair: Pair) -> list[tuple[str, ...]]:
    """Return rows of a name, the values of reference and model if each has one, and the change."""
    own, lower = pair.comparison, "<small>lower is better</small>"

    def share(name: str) -> str:
        return f"{100 * own[name]:.1f} %"

    def points(value: float) -> str:
        return signed(100 * value, 2)

    if not pair.by_tokens:
        bits = [number(own[name]) for name in ("reference_bits_per_byte", "bits_per_byte")]
        interval = _within(own["bits_per_byte_change_interval"], lambda bits: signed(bits, 4))
        change = signed(own["bits_per_byte_change"], 4) + interval
        return [(f"Bits per byte{lower}", *bits, change)]
    ratio, change = own["perplexity_ratio"], "none can be given"
    if ratio["ratio"] is not None:
        interval = _within(ratio["interval"], lambda bound: f"× {bound:.4f}")
        change = f"× {ratio['ratio']:.4f}{interval}"
    before, after = own["reference_perplexity"], pair.reading.result["perplexity"]
    right = "Right next token<small>the likeliest one is the text's</small>"
    lost_and_won = (
        f"{points(own['accuracy_change'])} points{_within(own['accuracy_change_interval'], points)}"
        f"<small>{share('right_to_wrong')} lost, {share('wrong_to_right')} won</small>"
    )
    rows = [
        (f"Perplexity{lower}", number(before), number(after), change),
        (right, share("reference_accuracy"), share("accuracy"), lost_and_won),
    ]
    sampled = ""
    if pair.has_divergence:
        half, largest = (number(own["kl_percentiles"][name], 3) for name in ("50", "100"))
        divergence = (
            f"{number(own['kl'])} nats a token{_within(own['kl_interval'], number)}"
            f"<small>half of all tokens below {half}, the largest {largest}</small>"
        )
        better_or_worse = "<small>how much predictions change, for better or worse</small>"
        rows.append((f"KL divergence{better_or_worse}", divergence))
        sampled = f"up to {share('token_agreement')} if sampled, "
    return [*rows, ("Same next token", f"{sampled}{share('same_top')} if the likeliest is taken")]


def _within(interval: Sequence[float] | None, write: Callable[[float], str]) -> str:
    if interval is None:
        return "<small>not enough text for an interval</small>"
    low, high = map(write, interval)
    return f"<small>{low} to {high}</small>"


def _legend(model: str) -> str:
    low, middle, high = (f"{edge:g}" for edge in CHANGE_EDGES)
    spans = (f"by over {high} bits", f"{middle}–{high} bits", f"{low}–{middle}")
    entries = [
        *zip(("w3", "w2", "w1"), ("much better", "better", "slightly better"), spans),
        ("", "about the same", f"under {low} bits"),
        *zip(("v1", "v2", "v3"), ("slightly worse", "worse", "much worse"), spans[::-1]),
    ]
    boxes = "".join(
        f'<li><span class="ps-box {colour}">{escape(name)}</span><small>{span}</small></li>'
        for colour, name, span in entries
    )
    return f'<div class="ps-legend"><p class="ps-note">What {escape(model)} makes of each piece:</p><ul>{boxes}</ul></div>'
