"""Layouts of a corpus: arrangements of its texts and lines, and joins of contexts and texts."""

import re
import unicodedata
from collections.abc import Callable
from typing import NamedTuple

from .protocols import detokenize_wikitext

TITLE = re.compile(r"^ = [^=\n]+ = $", re.MULTILINE)
JOINT = re.compile(r" @[-,.]@ ")
# Beginnings of the Unicode names of characters in scripts without spaces between words.
UNSPACED_SCRIPTS = (
    *("CJK", "HIRAGANA", "KATAKANA", "HALFWIDTH", "FULLWIDTH", "IDEOGRAPHIC", "BOPOMOFO"),
    *("THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN", "YI", "JAVANESE", "BALINESE"),
)
# A context may end in these, and a text begin with them, without a space in between.
JOINING = frozenset("'’/\\@#&*-‐‑–—_")
OPENING_QUOTES = frozenset("\"'")
CLITIC = re.compile(r"['’](?:d|ll|m|re|s|t|ve)\b", re.IGNORECASE)


class Layout(NamedTuple):
    """A way to arrange a corpus.

    Attributes:
        arrange: returns the rearranged texts of a corpus.
        usual: weight relative to "as-is", 0 for never; a judgement, not a measurement.
        usual_for_wikitext: weight for WikiText.
    """

    arrange: Callable[[list[str]], list[str]]
    usual: float
    usual_for_wikitext: float


def is_wikitext(texts: list[str]) -> bool:
    """Return whether texts are in WikiText's form: with its titles, or @ around joining marks."""
    return any(TITLE.search(text) or JOINT.search(text) for text in texts)


def hub_rows(text: str) -> list[str]:
    """Return the rows of a text in the Hub's wikitext: lines with their ends, blank ones empty."""
    return [line if line.strip() else "" for line in text.splitlines(keepends=True)] or [""]


def filled_lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip()]


def articles(texts: list[str]) -> list[str]:
    """Split WikiText, whose texts may be its rows, at the titles of its articles."""
    text = "".join(texts)
    begins = [title.start() for title in TITLE.finditer(text)]
    if not begins or text[: begins[0]].strip():
        begins = [0, *begins]
    return [text[begin:end] for begin, end in zip(begins, [*begins[1:], len(text)])]


def each(change: Callable[[str], str]) -> Callable[[list[str]], list[str]]:
    return lambda texts: [change(text) for text in texts]


def parts(split: Callable[[str], list[str]]) -> Callable[[list[str]], list[str]]:
    return lambda texts: [part for text in texts for part in split(text)]


LAYOUTS = {
    "as-is": Layout(lambda texts: texts, 1.0, 1.0),
    "joined": Layout(lambda texts: ["".join(texts)], 0.4, 0.8),
    "joined-by-line-end": Layout(lambda texts: ["\n".join(texts)], 0.4, 0.4),
    "joined-by-blank-line": Layout(lambda texts: ["\n\n".join(texts)], 0.3, 0.6),
    "without-blank-texts": Layout(lambda texts: [t for t in texts if t.strip()], 0.6, 0.6),
    "each-line": Layout(parts(filled_lines), 0.4, 0.3),
    "each-article": Layout(articles, 0.0, 0.5),
    "hub-rows-by-blank-line": Layout(each(lambda text: "\n\n".join(hub_rows(text))), 0.0, 0.9),
    "hub-rows": Layout(parts(hub_rows), 0.0, 0.6),
    "hub-rows-without-blank": Layout(
        parts(lambda text: [row for row in hub_rows(text) if row]), 0.0, 0.5
    ),
    "lines-by-blank-line": Layout(each(lambda text: "\n\n".join(text.splitlines())), 0.3, 0.2),
    "without-last-line-end": Layout(each(lambda text: text.removesuffix("\n")), 0.3, 0.1),
    "stripped": Layout(each(str.strip), 0.3, 0.2),
    "without-blank-lines": Layout(each(lambda text: "\n".join(filled_lines(text))), 0.2, 0.2),
    "detokenized": Layout(each(detokenize_wikitext), 0.0, 0.2),
    "lines-by-line-end": Layout(each(lambda text: "\n".join(text.splitlines())), 0.1, 0.1),
    "lines-by-space": Layout(each(lambda text: " ".join(text.splitlines())), 0.1, 0.1),
    "lines-by-nothing": Layout(each(lambda text: "".join(text.splitlines())), 0.05, 0.05),
}


def arrange(texts: list[str], layout: str) -> list[str]:
    """Return the texts of a layout."""
    return LAYOUTS[layout].arrange(texts)


# --- joins of contexts and texts ------------------------------------------------------------------


def runs_together(context: str, text: str) -> bool:
    """Return whether a context and a text lack the white space that their script requires."""
    before, after = context[-1:], text[:1]
    if not before or not after or _is_unspaced(before) or _is_unspaced(after):
        return False
    return _ends_word(before) and _begins_word(after) and not CLITIC.match(text)


def _is_unspaced(character: str) -> bool:
    return unicodedata.name(character, "").split(" ")[0].split("-")[0] in UNSPACED_SCRIPTS


def _ends_word(character: str) -> bool:
    """Return whether a space follows a character: a letter, a digit, or a closing mark."""
    kind = unicodedata.category(character)
    return character not in JOINING and (kind[0] in "LMN" or kind in ("Pe", "Pf", "Po"))


def _begins_word(character: str) -> bool:
    """Return whether a space precedes a character: a letter, a digit, or an opening mark."""
    kind = unicodedata.category(character)
    return kind[0] in "LN" or kind in ("Ps", "Pi", "Sc") or character in (*OPENING_QUOTES, "¿", "¡")
