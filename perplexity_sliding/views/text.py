"""A scored text for people: what was read, numbers in words, and pieces with colours and details.

Texts and names are put into HTML by `escape` and `payload` alone.
"""

import bisect
import html
import itertools
import json
import math
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import regex

from ..results.words import UNSPACED
from . import Reading

# Signs that a template engine might act on, beyond those that html.escape knows.
TEMPLATE_SIGNS = {ord(sign): f"&#{ord(sign)};" for sign in "{}$`"}
HUGE = 1e9  # from here on, digits are hard to count
RAISED = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
LARGE = {1e12: "trillion", 1e9: "billion", 1e6: "million"}
# Lower edges of the colours, in bits.
EDGES = (0, 1, 3, 6, 10, 15)
LABELS = ("under 1 bit", "1–3 bits", "3–6 bits", "6–10 bits", "10–15 bits", "over 15 bits")
ENDLESS = 1e9  # JSON has no infinity
SCRIPT_DIGITS = 6  # the script shows two: rounded twice, 9.4955 bits would be 9.49
LONGEST_WORD = 40  # characters from the first piece of a word to its last
WORD = re.compile(r"\w+(?:[’']\w+)*")
TOLD = regex.compile(r"\p{Alphabetic}|\p{Extended_Pictographic}")  # of punctuation, nothing is told
PLAIN = "plain"  # the class of a piece without a colour
GAP = "-"  # class of text that is shown but cannot be selected


# --- HTML and numbers -----------------------------------------------------------------------------


def escape(text: object) -> str:
    return html.escape(str(text), quote=True).translate(TEMPLATE_SIGNS)


def payload(data: object) -> str:
    """Write JSON as the value of a data-attribute.

    In single quotes, because JSON is full of double ones: escaped, they were a third of a long text's.
    """
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return f"""'{escape(text).replace("&quot;", '"')}'"""


def number(value: float, digits: int = 4) -> str:
    """Write `digits` significant digits, zeros included; from a thousand million on, a power of ten."""
    if not math.isfinite(value):
        return "∞" if value == math.inf else str(value)
    if abs(value) >= HUGE:
        mantissa, exponent = f"{value:.{digits - 1}e}".split("e+")
        return f"{mantissa} × 10{str(int(exponent)).translate(RAISED)}"
    if abs(value) >= 10 ** (digits - 1):
        return f"{value:,.0f}"
    return f"{value:#.{digits}g}".rstrip(".")


def count(value: int, noun: str) -> str:
    return f"{value:,} {noun}" + ("" if value == 1 else "s")


def signed(value: float, digits: int) -> str:
    return f"{value:+.{digits}f}".replace("-", "−")


def per_cent(ratio: float) -> str:
    """Write a ratio as a change in per cent: 1.02 as "+2.0"."""
    return signed(100 * (ratio - 1), 1)


def change(ratio: dict) -> str:
    said = f"{per_cent(ratio['ratio'])} %"
    if ratio["interval"] is None:
        return said
    low, high = map(per_cent, ratio["interval"])
    return f"{said} (95 % interval {low} to {high} %)"


def odds(nll: float) -> str:
    """Write a probability for people: `1 in 53,300`, `1 in 4.4 trillion`."""
    if math.isinf(nll):
        return "to which it gave no chance at all"
    if nll > math.log(1e15):
        return "less likely than 1 in 1,000 trillion"
    one_in = math.exp(nll)
    for size, name in LARGE.items():
        if one_in >= size:
            return f"1 in {one_in / size:,.{int(one_in < 10 * size)}f} {name}"
    digits = max(0, int(math.log10(max(1, one_in))) - 2)
    return f"1 in {round(one_in, -digits):,.0f}"


def in_bits(nll: float) -> float:
    return round(nll / math.log(2), SCRIPT_DIGITS) if math.isfinite(nll) else ENDLESS


# --- pieces ---------------------------------------------------------------------------------------


class Segment(NamedTuple):
    """A piece of text, text[start:end], and the numbers of its first and last token, if any covers it."""

    start: int
    end: int
    first: int | None = None
    last: int | None = None


def cut(text: str, offsets: Sequence[Sequence[int]]) -> list[Segment]:
    """Split a text into segments, in order and without gaps, that never divide a character.

    Byte-level tokenizers split accents, Chinese characters and emoji into several tokens: those that
    share a user-perceived character, such as a letter with its accents, are one segment.

    Args:
        offsets: first and one-past-last character of each token; empty for a start token.
    """
    starts = {match.start() for match in regex.finditer(r"\X", text)} | {len(text)}
    segments: list[Segment] = []
    reached = 0
    for place, (start, end) in enumerate(offsets):
        if end <= start:
            continue
        if segments and (start < reached or (start == reached and start not in starts)):
            reached = max(reached, end)
            segments[-1] = segments[-1]._replace(end=reached, last=place)
            continue
        if start > reached:
            segments.append(Segment(reached, start))
        segments.append(Segment(start, end, place, place))
        reached = end
    return segments + ([Segment(reached, len(text))] if reached < len(text) else [])


def text_segments(reading: Reading) -> tuple[list[Segment], str]:
    """Return segments and their text; without offsets, the tokens' names in a row."""
    offsets = reading.tokens["offsets"]
    if None not in offsets:
        return cut(reading.whole, offsets), reading.whole
    names = [name.replace("▁", " ").replace("Ġ", " ") for name in reading.tokens["tokens"]]
    ends = itertools.accumulate(map(len, names), initial=0)
    return cut("".join(names), list(itertools.pairwise(ends))), "".join(names)


def token_data(reading: Reading, segments: list[Segment]) -> dict:
    """Return the data of each token for the script, as columns.

    Windows are [first token read, first scored, one past the last, whether it has a start token].
    """
    tokens = reading.tokens
    return {
        "names": [
            name if offset is None else reading.whole[slice(*offset)]
            for name, offset in zip(tokens["tokens"], tokens["offsets"])
        ],
        "num_context_tokens": reading.num_context_tokens,
        "bits": [None if nll is None else in_bits(nll) for nll in tokens["nll"]],
        "rank": tokens.get("rank"),
        "context": tokens["context_length"],
        "alternatives": tokens.get("alternatives") and list(map(_shares, tokens["alternatives"])),
        "segments": [None if s.first is None else [s.first, s.last] for s in segments],
        "windows": [
            [w["begin"], w["first"], w["end"], int(w["start_token"])] for w in tokens["windows"]
        ],
    }


def _shares(top: list | None) -> list | None:
    """Return the names of alternatives with their probabilities, to three significant digits."""
    return top and [[name, float(f"{math.exp(-nll):.3g}")] for name, nll in top]


def bits_colour(bits: float) -> str:
    return f"b{max(0, bisect.bisect_right(EDGES, bits) - 1)}"


def piece_colour(nll: list[float | None], segment: Segment, piece: str) -> str | None:
    """Return the colour class of a segment; None for spaces that no token covers."""
    if segment.first is None:
        return "" if piece.strip() else None
    own = nll[segment.first : segment.last + 1]
    return "out" if None in own else bits_colour(sum(own) / math.log(2))


def piece_columns(pieces: Sequence[str], colours: Sequence[str | None]) -> dict:
    return {
        "lengths": [utf16_length(piece) for piece in pieces],
        "classes": " ".join(GAP if colour is None else colour or PLAIN for colour in colours),
    }


def utf16_length(text: str) -> int:
    return len(text.encode("utf-16-le")) // 2


def text_pair(pieces: Sequence[str], colours: Sequence[str | None], unit: str, told: str) -> str:
    """Show a text with selectable pieces, and the box for the details of the selected one.

    The script makes elements of those in sight only: tens of thousands would stop a browser that
    serves a screen reader for many seconds.

    Args:
        colours: class of each piece; "" for none, None for text that cannot be selected.
        unit: name of a piece, such as "token".
        told: what the details are.
    """
    data = {"text": "".join(pieces), **piece_columns(pieces, colours)}
    label = f"The text, {unit} by {unit}. Arrow keys move from {unit} to {unit}."
    return (
        f'<div class="ps-pair"><div class="ps-text" dir="auto" role="listbox" tabindex="0" '
        f'aria-label="{label}" data-pieces={payload(data)}></div>'
        '<div class="ps-detail" role="status"><p class="ps-hint">Point at a piece of the text, or move '
        f"with the arrow keys, to see {told}.</p></div></div>"
    )


# --- surprising words -----------------------------------------------------------------------------


class Surprise(NamedTuple):
    """A word that the model did not expect.

    Attributes:
        piece: the number of its most surprising piece among the segments of the text.
        begin: the number of its first piece.
        nll: of the whole word, in nats.
        nll_per_piece: by which words are ordered; by their sums, long words would always come first, and
            by tokens, an emoji never would, whose later bytes follow from its first.
        expected: how the word was expected to go on at that piece and the nll of that token; None where
            alternatives weren't asked for.
    """

    word: str
    piece: int
    begin: int
    nll: float
    nll_per_piece: float
    expected: tuple[str, float] | None


def most_surprising(readings: Iterable[Reading], most: int) -> list[Surprise]:
    """List the words and emoji of all texts that surprised most per piece, the first first.

    In scripts without spaces, such as Chinese, a word is the tokens that together encode one character.
    """
    found = []
    for reading in readings:
        nlls, (segments, text) = reading.tokens["nll"], text_segments(reading)
        for pieces in word_pieces(segments, text):
            own = [nlls[segments[piece].first : segments[piece].last + 1] for piece in pieces]
            first, last = segments[pieces[0]], segments[pieces[-1]]
            word = text[first.start : last.end]
            if any(None in of_piece for of_piece in own) or not TOLD.search(word):
                continue
            losses = list(map(sum, own))
            worst, nll = pieces[losses.index(max(losses))], sum(losses)
            begun = text[first.start : segments[worst].start].lstrip()
            expected = _expected(reading.tokens, segments[worst], begun)
            per_piece = nll / len(pieces)
            found.append(Surprise(_visible(word), worst, pieces[0], nll, per_piece, expected))
    return sorted(found, key=lambda surprise: -surprise.nll_per_piece)[:most]


def word_pieces(segments: Sequence[Segment], text: str) -> list[list[int]]:
    """Group the numbers of segments with tokens: spaces begin a word, letters after letters go on."""
    words: list[list[int]] = []
    inside = {at for word in WORD.finditer(text) for at in range(word.start() + 1, word.end())}
    for number, segment in enumerate(segments):
        if segment.first is None:
            continue
        begun = text[segments[words[-1][0]].start : segment.start] if words else ""
        around = text[max(0, segment.start - 1) : segment.start + 1]
        goes_on = segment.start in inside and len(begun) <= LONGEST_WORD
        goes_on = goes_on and not any(script.search(around) for script in UNSPACED)
        if words and (goes_on or not begun.strip()):
            words[-1].append(number)
        else:
            words.append([number])
    return words


def _expected(tokens: dict, segment: Segment, begun: str) -> tuple[str, float] | None:
    """Return the most likely token, within a word after its start; None if it is part of a character."""
    tops = tokens["alternatives"][segment.first] if tokens.get("alternatives") else None
    if not tops or segment.first != segment.last:
        return None
    token, nll = tops[0]
    if begun and token[:1].isalnum():
        token = f"{begun}{token}…"
    return _visible(token), nll


def _visible(piece: str) -> str:
    return piece.strip() or piece.replace("\n", "↵").replace(" ", "·").replace("\t", "⇥")
