"""A picture of a result to pass on: the coloured text, the number, and how it was made.

One SVG file without any script, font or address in it.
"""

import html
import math
import re
import unicodedata
from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate, groupby
from operator import itemgetter

import regex

from perplexity_sliding.views.assets import STYLE
from perplexity_sliding.views.markup import count, interval_words, number
from perplexity_sliding.views.surprise import EDGES
from perplexity_sliding.views.tokens import text_segments

from .service import Scored

WIDTH = 1000
MARGIN = 40
LETTER = 9.6  # pixels across, at 16 pixels of a monospaced font
COLUMNS = int((WIDTH - 2 * MARGIN) / LETTER)
LINE = 28
LINES = 12
HEAD = 164
FOOT = 96
GROUND, INK, SOFT = "#ffffff", "#1b2330", "#566074"
MONOSPACED = "ui-monospace, SFMono-Regular, Menlo, Consolas, monospace"
PROPORTIONAL = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"

Word = list[tuple[str, int | None]]  # pieces of text, each with its level of surprise


def card(scored: Scored) -> str:
    """Draw the card."""
    rows, is_whole = _lay_out(scored)
    height = HEAD + LINE * len(rows) + FOOT
    colours = page_colours()
    body = "".join(
        _piece(text, column, HEAD + LINE * row, colours.get(level))
        for row, pieces in enumerate(rows)
        for text, column, level in pieces
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{_quote(_headline(scored))}">'
        f'<rect width="{WIDTH}" height="{height}" rx="24" fill="{GROUND}"/>'
        f"{_head(scored)}{body}{_foot(scored, height, is_whole)}</svg>"
    )


def page_colours() -> dict[int, tuple[str, str]]:
    """Read background and ink of each level of surprise from the page's light style."""
    style = STYLE.read_text(encoding="utf-8")
    inks = dict(re.findall(r"--ps-on-b(\d): (#\w+)", style)[::-1])
    grounds = dict(re.findall(r"--ps-b(\d): (#\w+)", style)[::-1])  # the first ones are light
    return {int(level): (colour, inks.get(level, INK)) for level, colour in grounds.items()}


def _lay_out(scored: Scored) -> tuple[list[list[tuple[str, int, int | None]]], bool]:
    """Lay out lines of (text, column, level of surprise or None); say whether all the text fits."""
    rows, directions, column = [[]], [None], 0
    for word in _words(scored):
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


def _place(row: list[Word], base: str) -> list[tuple[str, int, int | None]]:
    """Place the pieces of a line in columns, in a paragraph that runs in the direction `base`."""
    ordered = [piece for word in _visual_order(row, base) for piece in word]
    wide = [columns(text) for text, _ in ordered]
    begin = COLUMNS - sum(wide) if base == "R" else 0
    starts = accumulate(wide, initial=begin)
    return [(text, column, level) for (text, level), column in zip(ordered, starts)]


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


def _words(scored: Scored) -> Iterator[Word]:
    """Yield words as pieces (text, level of surprise) that each fit a line; white space alone."""
    word = []
    for text, level in _pieces(scored):
        wide = sum(columns(piece) for piece, _ in word)
        if word and (not text.strip() or wide + columns(text) > COLUMNS):
            yield word
            word = []
        if text.strip():
            word.append((text, level))
        else:
            yield [(text, None)]
    if word:
        yield word


def _pieces(scored: Scored) -> Iterator[tuple[str, int | None]]:
    """Cut the text at tokens and spaces; yield each piece with its level of surprise."""
    segments, text = text_segments(scored)
    for segment in segments:
        if segment.end <= len(scored.settings.context):
            continue
        level = _level(scored.tokens["nll"], segment)
        for part in re.findall(r"\n|[^\S\n]+|\S+", text[segment.start : segment.end]):
            for piece in _chunks(part):
                yield piece, level


def _chunks(part: str) -> Iterator[str]:
    """Cut a long word into pieces that each fit a line."""
    piece = ""
    for character in regex.findall(r"\X", part):
        if columns(piece + character) > COLUMNS:
            yield piece
            piece = ""
        piece += character
    yield piece


def columns(text: str) -> int:
    """Count the columns that a text takes in a monospaced font."""
    return sum(
        2 if unicodedata.east_asian_width(character[0]) in "WF" else 1
        for character in regex.findall(r"\X", text)
    )


def _level(nll: list[float | None], segment) -> int | None:
    values = [] if segment.first is None else nll[segment.first : segment.last + 1]
    if not values or None in values:
        return None
    return max(0, bisect_right(EDGES, sum(values) / math.log(2)) - 1)


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


def _head(scored: Scored) -> str:
    result = scored.result
    large = f'font-family="{PROPORTIONAL}" font-weight="700" font-size="64"'
    return _text(number(result["perplexity"]), MARGIN, 84, INK, large) + _text(
        _headline(scored), MARGIN, 118, SOFT, f'font-family="{PROPORTIONAL}"'
    )


def _headline(scored: Scored) -> str:
    within = "" if scored.interval is None else f", {interval_words(scored.interval)}"
    return f"Perplexity for {scored.loaded.name}{within}"


def _foot(scored: Scored, height: int, is_whole: bool) -> str:
    settings, result = scored.settings, scored.result
    stride = "" if settings.stride is None else f", stride {settings.stride:,}"
    part = "" if is_whole else ", of which the beginning is shown"
    after = (
        f" after {count(scored.num_context_tokens, 'token')} of context" if settings.context else ""
    )
    said = (
        f"{settings.protocol}, window {settings.window:,}{stride}: {result['num_tokens']:,} tokens "
        f"scored{after}{part}."
    )
    small = f'font-family="{PROPORTIONAL}" font-size="15"'
    signature = f'font-family="{MONOSPACED}" font-size="13"'
    return _text(said, MARGIN, height - 58, SOFT, small) + _text(
        f"{result['signature_short']}  stronger colours, bigger surprises",
        MARGIN,
        height - 32,
        SOFT,
        signature,
    )


def _text(text: str, x: float, y: float, ink: str, looks: str) -> str:
    size = "" if "font-size" in looks else 'font-size="16" '
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" fill="{ink}" {size}{looks} xml:space="preserve">'
        f"{_quote(text)}</text>"
    )


def _quote(text: str) -> str:
    """Escape a text for XML, which allows no control characters even as entities."""
    return html.escape(re.sub(r"[\x00-\x08\x0b-\x1f\x7f\ufffe\uffff]", "\ufffd", text))
