"""A picture of a result to share: title, number, coloured text or chart, and settings.

One SVG file without any script, font or address in it.
"""

import html
import math
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby
from operator import itemgetter

import regex

from perplexity_sliding.views.assets import STYLE
from perplexity_sliding.views.comparison import change_colour, measure_changes, text_of
from perplexity_sliding.views.markup import count, interval_words, number
from perplexity_sliding.views.numbers import surprise_words
from perplexity_sliding.views.segments import Segment
from perplexity_sliding.views.surprise import bits_colour
from perplexity_sliding.views.tokens import text_segments

from .calls import space
from .service import Compared, Scored

WIDTH = 1000
MARGIN = 40
LETTER = 9.6  # pixels across, at 16 pixels of a monospaced font
COLUMNS = int((WIDTH - 2 * MARGIN) / LETTER)
LINE = 28
LINES = 12
ROWS = 16  # of a chart
HEAD = 206
FOOT = 96
NAMES = 300  # pixels across, of a chart's rows
GROUND, INK, SOFT, LINES_INK, ACCENT = "#ffffff", "#1b2330", "#566074", "#d9dee7", "#3b4fc4"
MONOSPACED = "ui-monospace, SFMono-Regular, Menlo, Consolas, monospace"
PROPORTIONAL = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"

Piece = tuple[str, str | None]  # of text, with the class of its colour
Word = list[Piece]


@dataclass(frozen=True)
class Head:
    """Heading above the text or the chart: a title, a number, and two lines about it."""

    title: str
    large: str
    lines: Sequence[str]


def card(scored: Scored) -> str:
    """Draw a score: the number and the text, coloured by surprise."""
    rows, is_whole = _lay_out(_surprises(scored))
    within = "" if scored.interval is None else f", {interval_words(scored.interval)}"
    name = scored.loaded.name
    head = Head(
        f"How surprised is {name} by these words?",
        number(scored.result["perplexity"]),
        [f"Perplexity for {name}{within}", surprise_words(scored)],
    )
    colours = "stronger colours, bigger surprises"
    return _draw(head, _text_rows(rows), len(rows), _foot(scored, is_whole, colours))


def comparison_card(compared: Compared) -> str:
    """Draw a comparison of two models: the verdict and the text, coloured by change."""
    scored, comparison, reference = compared.scored, compared.comparison, compared.reference.name
    rows, is_whole = _lay_out(_changes(compared))
    kind = "perplexity" if compared.by_tokens else "bits_per_byte"
    before, after = (
        number(one[name])
        for one, name in ((comparison, f"reference_{kind}"), (scored.result, kind))
    )
    head = Head(
        f"What does {scored.loaded.name} change?",
        f"{before} → {after}",
        [f"{kind.replace('_', ' ').capitalize()} for {reference} and for {scored.loaded.name}", ""],
    )
    colours = "orange: worse than the reference, blue: better"
    return _draw(head, _text_rows(rows), len(rows), _foot(scored, is_whole, colours))


def chart_card(head: Head, values: Sequence[tuple[str, float]], scored: Scored) -> str:
    """Draw perplexities of one text under several settings, each with its name, on one axis."""
    shown = values[:ROWS]
    finite = [math.log(value) for _, value in shown if math.isfinite(value)]
    low, span = (min(finite), max(finite) - min(finite)) if finite else (0.0, 0.0)
    left, wide = MARGIN + NAMES, WIDTH - 2 * MARGIN - NAMES - 130
    body = ""
    for row, (name, value) in enumerate(shown):
        y = HEAD + LINE * row
        share = (
            (math.log(value) - low) / span
            if span and math.isfinite(value)
            else float(value == math.inf)
        )
        x = left + wide * share
        body += (
            f'<rect x="{left}" y="{y - 6.5}" width="{wide}" height="1" fill="{LINES_INK}"/>'
            f'<rect x="{x - 7:.1f}" y="{y - 13}" width="14" height="14" rx="7" fill="{ACCENT}"/>'
            + _text(name, MARGIN, y, INK, f'font-family="{PROPORTIONAL}"')
            + _text(
                number(value),
                left + wide + 30,
                y,
                INK,
                f'font-family="{PROPORTIONAL}" font-weight="700"',
            )
        )
    more = "" if len(values) <= ROWS else f", {len(values) - ROWS} more not shown"
    return _draw(
        head, body, len(shown), _foot(scored, True, f"lower is less surprised{more}", of_all=True)
    )


def _draw(head: Head, body: str, rows: int, foot: Sequence[str]) -> str:
    """Combine head, body and foot into one picture."""
    height = HEAD + LINE * rows + FOOT
    label = _quote(f"{head.title} {head.large}. {' '.join(filter(None, head.lines))}")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{label}">'
        f'<rect width="{WIDTH}" height="{height}" rx="24" fill="{GROUND}"/>'
        f"{_head(head)}{body}{_foot_lines(foot, height)}</svg>"
    )


def _text_rows(rows: Sequence[Sequence[tuple[str, int, str | None]]]) -> str:
    colours = page_colours()
    return "".join(
        _piece(text, column, HEAD + LINE * row, colours.get(colour))
        for row, pieces in enumerate(rows)
        for text, column, colour in pieces
    )


def page_colours() -> dict[str, tuple[str, str]]:
    """Read the colours of each class of surprise and of change from the page's light style."""
    style = STYLE.read_text(encoding="utf-8")
    inks = dict(re.findall(r"--ps-on-(b\d): (#\w+)", style)[::-1])
    grounds = dict(re.findall(r"--ps-([bvw]\d): (#\w+)", style)[::-1])  # the first ones are light
    return {name: (colour, inks.get(name, INK)) for name, colour in grounds.items()}


def _lay_out(pieces: Iterable[Piece]) -> tuple[list[list[tuple[str, int, str | None]]], bool]:
    """Lay out lines of (text, column, class of its colour or None); say whether all the text fits."""
    rows, directions, column = [[]], [None], 0
    for word in _words(pieces):
        wide = sum(columns(text) for text, _ in word)
        is_space = not word[0][0].strip()
        if word[0][0] == "\n" or (column and column + wide > COLUMNS):
            rows.append([])
            directions.append(None if word[0][0] == "\n" else directions[-1])
            column = 0
        if len(rows) > LINES:
            break
        if is_space and not column:
            continue  # a line that was broken begins with its word
        rows[-1].append(word)
        directions[-1] = directions[-1] or _direction(word)
        column += wide
    shown = zip(rows[:LINES], directions)
    return [_place(row, direction or "L") for row, direction in shown], len(rows) <= LINES


def _direction(word: Word) -> str | None:
    """Return the direction of the first letter that has one: "L" (to the right) or "R"."""
    kinds = (unicodedata.bidirectional(character) for text, _ in word for character in text)
    return next(({"AL": "R"}.get(kind, kind) for kind in kinds if kind in ("L", "R", "AL")), None)


def _place(row: list[Word], base: str) -> list[tuple[str, int, str | None]]:
    """Place the pieces of a line in columns, in a paragraph that runs in the direction `base`."""
    ordered = [piece for word in _visual_order(row, base) for piece in word]
    wide = [columns(text) for text, _ in ordered]
    begin = COLUMNS - sum(wide) if base == "R" else 0
    starts = accumulate(wide, initial=begin)
    return [(text, column, colour) for (text, colour), column in zip(ordered, starts)]


def _visual_order(row: list[Word], base: str) -> list[Word]:
    """Order words from left to right; one without a direction joins neighbours that agree.

    A number goes with what stands before it.
    """
    directions, last = [], base
    for word in row:
        is_number = word[0][0].isdigit()
        directions.append(_direction(word) or (last if is_number else None))
        last = directions[-1] or last
    before = list(accumulate(directions, lambda seen, new: new or seen, initial=base))[1:]
    after = list(accumulate(directions[::-1], lambda seen, new: new or seen, initial=base))[:0:-1]
    resolved = [left if left == right else base for left, right in zip(before, after)]
    turned = [word[::-1] if _direction(word) == "R" else word for word in row]
    runs = [
        [word for _, word in run][:: -1 if direction == "R" else 1]
        for direction, run in groupby(zip(resolved, turned), key=itemgetter(0))
    ]
    return [word for run in runs[:: -1 if base == "R" else 1] for word in run]


def _words(pieces: Iterable[Piece]) -> Iterator[Word]:
    """Yield words in pieces that each fit a line; white space separately."""
    word = []
    for text, colour in pieces:
        wide = sum(columns(piece) for piece, _ in word)
        if word and (not text.strip() or wide + columns(text) > COLUMNS):
            yield word
            word = []
        if text.strip():
            word.append((text, colour))
        else:
            yield [(text, None)]
    if word:
        yield word


def _surprises(scored: Scored) -> Iterator[Piece]:
    """Yield the pieces of the text with their colours of surprise."""
    segments, text = text_segments(scored)
    for segment in segments:
        if segment.end > len(scored.settings.context):
            yield from _cut(text, segment, _surprise_colour(scored.tokens["nll"], segment))


def _changes(compared: Compared) -> Iterator[Piece]:
    """Yield the pieces of the text with their colours of change."""
    segments, text = text_of(compared.pair)
    changes = {change.piece: change for change in measure_changes(compared.pair, segments)}
    for place, segment in enumerate(segments):
        if segment.end > len(compared.scored.settings.context):
            yield from _cut(text, segment, change_colour(changes.get(place)))


def _cut(text: str, segment: Segment, colour: str | None) -> Iterator[Piece]:
    """Split a segment at its spaces, and where it does not fit a line."""
    for part in re.findall(r"\n|[^\S\n]+|\S+", text[segment.start : segment.end]):
        for piece in _chunks(part):
            yield piece, colour


def _chunks(part: str) -> Iterator[str]:
    """Split a long word into pieces that each fit a line."""
    piece = ""
    for character in regex.findall(r"\X", part):
        if columns(piece + character) > COLUMNS:
            yield piece
            piece = ""
        piece += character
    yield piece


def columns(text: str) -> int:
    """Count the columns of a text in a monospaced font."""
    return sum(
        2 if unicodedata.east_asian_width(character[0]) in "WF" else 1
        for character in regex.findall(r"\X", text)
    )


def _surprise_colour(nll: list[float | None], segment: Segment) -> str | None:
    values = [] if segment.first is None else nll[segment.first : segment.last + 1]
    return None if not values or None in values else bits_colour(sum(values) / math.log(2))


def _piece(text: str, column: int, y: float, colour: tuple[str, str] | None) -> str:
    if not text.strip():
        return ""
    ground, ink = colour or (None, INK)
    x, wide = MARGIN + column * LETTER, columns(text) * LETTER
    runs_left = _direction([(text, None)]) == "R"
    box = (
        f'<rect x="{x:.1f}" y="{y - 19:.1f}" width="{wide:.1f}" height="25" rx="4" fill="{ground}"/>'
        if ground
        else ""
    )
    begin, direction = (x + wide, ' direction="rtl"') if runs_left else (x, "")
    looks = f'font-family="{MONOSPACED}" textLength="{wide:.1f}"{direction}'
    return box + _text(text, begin, y, ink, looks)


def _head(head: Head) -> str:
    bold, plain = f'font-family="{PROPORTIONAL}" font-weight="700"', f'font-family="{PROPORTIONAL}"'
    return (
        _text(head.title, MARGIN, 50, INK, f'{bold} font-size="24"')
        + _text(head.large, MARGIN, 118, INK, f'{bold} font-size="64"')
        + "".join(
            _text(line, MARGIN, 146 + 24 * place, SOFT, plain)
            for place, line in enumerate(head.lines)
        )
    )


def _foot(scored: Scored, is_whole: bool, colours: str, of_all: bool = False) -> tuple[str, str]:
    """Write the settings of the numbers.

    Args:
        of_all: whether they are of several settings, so that only what they share is said.
    """
    settings, result = scored.settings, scored.result
    where = f"huggingface.co/spaces/{space()}" if space() else "perplexity_sliding"
    if of_all:
        return f"{scored.loaded.name}, window {settings.window:,}; {colours}.", where
    stride = "" if settings.stride is None else f", stride {settings.stride:,}"
    part = "" if is_whole else ", of which the beginning is shown"
    after = (
        f" after {count(scored.num_context_tokens, 'token')} of context" if settings.context else ""
    )
    said = (
        f"{settings.protocol}, window {settings.window:,}{stride}: {result['num_tokens']:,} tokens "
        f"scored{after}{part}."
    )
    return said, f"{where}  {result['signature_short']}  {colours}"


def _foot_lines(lines: Sequence[str], height: int) -> str:
    said, small = lines
    return _text(
        said, MARGIN, height - 58, SOFT, f'font-family="{PROPORTIONAL}" font-size="15"'
    ) + _text(small, MARGIN, height - 32, SOFT, f'font-family="{MONOSPACED}" font-size="13"')


def _text(text: str, x: float, y: float, ink: str, looks: str) -> str:
    size = "" if "font-size" in looks else 'font-size="16" '
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" fill="{ink}" {size}{looks} xml:space="preserve">'
        f"{_quote(text)}</text>"
    )


def _quote(text: str) -> str:
    """Escape a text for XML, which allows no control characters even as entities."""
    return html.escape(re.sub(r"[\x00-\x08\x0b-\x1f\x7f\ufffe\uffff]", "\ufffd", text))
