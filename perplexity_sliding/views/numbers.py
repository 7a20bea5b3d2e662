"""The number in words, and the most surprising words."""

import math
import re
from dataclasses import dataclass

from ..results.words import UNSPACED
from .markup import escape, number, shown
from .reading import Reading
from .segments import Segment
from .surprise import bits_colour
from .tokens import text_segments

FEWEST = 20  # tokens; a perplexity of fewer says more of chance than of the text
LARGE = {1e12: "trillion", 1e9: "billion"}
LONGEST_WORD = 40  # characters before a piece that are searched for the start of its word
TOO_SHORT = (
    f"Too short for a perplexity: over fewer than {FEWEST} tokens it says more about chance than about "
    "the text."
)


@dataclass(frozen=True)
class Surprise:
    """A word that the model did not expect.

    Attributes:
        word: as it stands in the text.
        piece: the number of its most surprising piece among the segments of the text.
        nll: of the whole word, in nats.
        nll_per_token: by which words are ordered; by their sums, long words would always come first.
        expected: how the word was expected to go on at that piece and the nll of that token; None where
            alternatives weren't asked for.
    """

    word: str
    piece: int
    nll: float
    nll_per_token: float
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
    """List the words that surprised most per token, the first first.

    In scripts without spaces, such as Chinese, a word is the tokens that together encode one character.
    """
    segments, text = text_segments(reading)
    words: dict[int, list[int]] = {}
    for piece, segment in enumerate(segments):
        if segment.first is not None:
            words.setdefault(_begin_of_word(text, segment), []).append(piece)
    found = []
    for pieces in words.values():
        losses = [_nll(reading, segments[piece]) for piece in pieces]
        word = text[segments[pieces[0]].start : segments[pieces[-1]].end]
        if None not in losses and any(map(str.isalpha, word)):
            worst = pieces[losses.index(max(losses))]
            expected = _expected(reading.tokens, segments[worst], text)
            num_tokens = segments[pieces[-1]].last - segments[pieces[0]].first + 1
            nll = sum(losses)
            found.append(Surprise(shown(word), worst, nll, nll / num_tokens, expected))
    return sorted(found, key=lambda surprise: -surprise.nll_per_token)[:most]


def _nll(reading: Reading, segment: Segment) -> float | None:
    """Sum the nll of a segment's tokens; None where one was not scored."""
    own = reading.tokens["nll"][segment.first : segment.last + 1]
    return None if None in own else sum(own)


def _begin_of_word(text: str, segment: Segment) -> int:
    """Find the start of a piece's word; the piece itself in scripts without spaces, such as Chinese."""
    piece = text[segment.start : segment.end]
    begin = segment.start + len(piece) - len(piece.lstrip())
    if not text[begin : segment.end][:1].isalnum() or _is_unspaced(text[begin]):
        return begin
    before = _letters_before(text, begin)
    return begin - (len(before) if len(before) < LONGEST_WORD else 0)


def _is_unspaced(character: str) -> bool:
    return any(script.match(character) for script in UNSPACED)


def _letters_before(text: str, at: int) -> str:
    """Return the part of a word before a place in it."""
    letters = re.search(r"\w*$", text[max(0, at - LONGEST_WORD) : at])[0]
    unspaced = [place for place, letter in enumerate(letters) if _is_unspaced(letter)]
    return letters[unspaced[-1] + 1 :] if unspaced else letters


def _expected(tokens: dict, segment: Segment, text: str) -> tuple[str, float] | None:
    """Return the most likely token instead of a segment; None if it is part of a character."""
    tops = tokens["alternatives"][segment.first] if tokens.get("alternatives") else None
    if not tops or segment.first != segment.last:
        return None
    token, nll = tops[0]
    return shown(_as_it_went_on(text, segment, token)), nll


def story(reading: Reading) -> str:
    """Write the most surprising word, its probability and the expected token."""
    worst = next(iter(most_surprising(reading, 1)), None)
    if worst is None:
        return ""
    expected = ""
    if worst.expected:
        expected = f" The model expected “<em>{escape(worst.expected[0])}</em>”."
    return (
        '<p class="ps-story">Most surprising word: <button type="button" class="ps-word" '
        f'data-piece="{worst.piece}"><span class="{bits_colour(worst.nll / math.log(2))}">'
        f"{escape(worst.word)}</span></button>, {odds(worst.nll)}.{expected}</p>"
    )


def _as_it_went_on(text: str, segment: Segment, expected: str) -> str:
    """Write the expected token instead of a piece; within a word, after the start of the word."""
    if not (text[segment.start].isalnum() and expected[:1].isalnum()):
        return expected
    begun = _letters_before(text, segment.start)
    return f"{begun}{expected}…" if begun else expected


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
