"""The number in words, and the most surprising words."""

import math
import re
from dataclasses import dataclass

from .markup import escape, number, percent
from .piece_list import around, in_word, shown
from .reading import Reading
from .segments import Segment
from .surprise import bits_colour
from .tokens import text_segments, token_texts

FEWEST = 20  # tokens; a perplexity of fewer says more of chance than of the text
LONGEST_WORD = 40  # characters before a piece that are searched for the start of its word
TOO_SHORT = (
    f"Too short for a perplexity: over fewer than {FEWEST} tokens it says more about chance than about "
    "the text. This is how surprising each token was."
)


@dataclass(frozen=True)
class Surprise:
    """A word, or a piece of one, that the model did not expect.

    Attributes:
        piece: its number among the segments of the text.
        segment: where it is.
        nll: in nats.
        expected: the most likely token and its nll; None without alternatives.
    """

    piece: int
    segment: Segment
    nll: float
    expected: tuple[str, float] | None


def meaning(perplexity: float, vocabulary: int | None) -> str:
    """Explain a perplexity, as HTML.

    Args:
        vocabulary: how many tokens the model knows, if that is known.
    """
    if perplexity == math.inf:
        return "The model gave part of this text zero probability."
    if vocabulary and perplexity > vocabulary:
        return (
            f"Worse than guessing blindly among the {vocabulary:,} tokens that it knows: it was trained on "
            "nothing like this text."
        )
    return (
        f"The model was as unsure as if it had to pick each next token from <b>{number(perplexity)}</b> "
        "equally likely ones."
    )


def most_surprising(reading: Reading, most: int) -> list[Surprise]:
    """List the words that surprised most, each once, by the piece of it that did; the first first.

    A piece is a token, or the tokens that together encode one character.
    """
    segments, text = text_segments(reading)
    nll, words = reading.tokens["nll"], set()
    found: list[Surprise] = []
    by_nll = sorted(
        (-sum(nll[segment.first : segment.last + 1]), piece)
        for piece, segment in enumerate(segments)
        if segment.first is not None
        and None not in nll[segment.first : segment.last + 1]
        and any(map(str.isalpha, text[segment.start : segment.end]))
    )
    for own, piece in by_nll:
        segment = segments[piece]
        word = _begin_of_word(text, segment)
        if word not in words:
            words.add(word)
            found.append(Surprise(piece, segment, -own, _expected(reading.tokens, segment)))
        if len(found) == most:
            break
    return found


def _begin_of_word(text: str, segment: Segment) -> int:
    """Find the start of a piece's word; the piece itself in scripts without spaces, such as Chinese."""
    if not text[segment.start].isalnum():
        return segment.start
    before = _letters_before(text, segment)
    # The space at the start of a token precedes its word.
    return segment.start - (len(before) + 1 if len(before) < LONGEST_WORD else 0)


def _letters_before(text: str, segment: Segment) -> str:
    """Return the part of a word before one of its pieces."""
    return re.search(r"\w*$", text[max(0, segment.start - LONGEST_WORD) : segment.start])[0]


def _expected(tokens: dict, segment: Segment) -> tuple[str, float] | None:
    """Return the most likely token instead of a segment; None if it is part of a character."""
    tops = tokens["alternatives"][segment.first] if tokens.get("alternatives") else None
    return tuple(tops[0]) if tops and segment.first == segment.last else None


def story(reading: Reading) -> str:
    """Write the most surprising word, its probability and the expected token."""
    worst = next(iter(most_surprising(reading, 1)), None)
    if worst is None:
        return ""
    _, text = text_segments(reading)
    expected = ""
    if worst.expected:
        word = _as_it_went_on(text, worst.segment, worst.expected[0])
        expected = f" The model expected “<em>{escape(shown(word))}</em>”."
    return (
        '<p class="ps-story">Most surprising word: <button type="button" class="ps-word" '
        f'data-piece="{worst.piece}"><span class="{bits_colour(worst.nll / math.log(2))}">'
        f"{in_word(text, worst.segment)}</span></button>, {odds(worst.nll)}.{expected}</p>"
    )


def surprise_words(reading: Reading) -> str:
    """Return the most surprising word as plain text; "" if there is none."""
    worst = next(iter(most_surprising(reading, 1)), None)
    if worst is None:
        return ""
    _, text = text_segments(reading)
    return f"Most surprising word: “{''.join(around(text, worst.segment))}”, {odds(worst.nll)}"


def _as_it_went_on(text: str, segment: Segment, expected: str) -> str:
    """Write the expected token instead of a piece; within a word, after the start of the word."""
    if not (text[segment.start].isalnum() and expected[:1].isalnum()):
        return expected
    begun = _letters_before(text, segment)
    return f"{begun}{expected}…" if begun else expected


def odds(nll: float) -> str:
    """Write a probability for people: `1 in 53,300`."""
    if math.isinf(nll):
        return "to which it gave no chance at all"
    if nll > math.log(1e9):
        return "less likely than 1 in a billion"
    one_in = math.exp(nll)
    digits = max(0, int(math.log10(max(1, one_in))) - 2)
    return f"1 in {round(one_in, -digits):,.0f}"


def few_tokens(reading: Reading) -> str:
    """Tabulate the surprise and the expected token for each token of a short text."""
    tokens, rows = reading.tokens, []
    names, parts = token_texts(reading), _parts_of_characters(reading)
    for place, nll in enumerate(tokens["nll"]):
        if nll is None:
            continue
        tops = tokens["alternatives"][place] if tokens.get("alternatives") else None
        expected = tops[0] if tops else None
        said = ""
        if expected:
            hit = tokens["rank"][place] == 1
            top = escape(shown(expected[0]))
            said = "what it expected" if hit else f"it expected <code>{top}</code>"
            said += f" ({percent(math.exp(-expected[1]))})"
        rows.append(
            f'<tr><th scope="row"><code>{escape(shown(names[place]))}</code>{parts.get(place, "")}</th>'
            f'<td><span class="ps-box {bits_colour(nll / math.log(2))}">'
            f"{bits_words(nll / math.log(2))}</span></td><td>{said}</td></tr>"
        )
    return f'<table class="ps-table ps-few"><tbody>{"".join(rows)}</tbody></table>'


def _parts_of_characters(reading: Reading) -> dict[int, str]:
    """Describe the part of a character that each of several tokens encodes."""
    segments, _ = text_segments(reading)
    return {
        place: f" <small>part {place - segment.first + 1} of {segment.last - segment.first + 1}</small>"
        for segment in segments
        if segment.first is not None and segment.last > segment.first
        for place in range(segment.first, segment.last + 1)
    }


def bits_words(bits: float) -> str:
    """Write surprise for people: `2.1 bits`."""
    return "infinite" if math.isinf(bits) else f"{bits:.1f} bits"
