"""Layouts: how people arrange the texts of a corpus, and their lines, before they score them."""

import re
from collections.abc import Callable
from typing import NamedTuple

from .protocols import detokenize_wikitext

TITLE = re.compile(r"^ = [^=\n]+ = $", re.MULTILINE)


class Layout(NamedTuple):
    """A way to arrange a corpus.

    Attributes:
        arrange: returns the texts of a corpus anew.
        usual: how usual that is beside "as-is"; a judgement, not a measurement.
        usual_for_wikitext: the same for WikiText.
    """

    arrange: Callable[[list[str]], list[str]]
    usual: float
    usual_for_wikitext: float


def is_wikitext(texts: list[str]) -> bool:
    """Return whether texts are in WikiText's form: titles between single equals signs."""
    return any(TITLE.search(text) for text in texts)


def hub_rows(text: str) -> list[str]:
    """Return the rows that the Hub's wikitext has of a text: lines with their ends, blank ones empty."""
    return [line if line.strip() else "" for line in text.splitlines(keepends=True)]


def filled_lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip()]


def articles(text: str) -> list[str]:
    """Split WikiText at the titles of its articles."""
    begins = [title.start() for title in TITLE.finditer(text)]
    ends = [*begins[1:], len(text)]
    return [text[begin:end] for begin, end in zip(begins, ends)] or [text]


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
    "each-article": Layout(parts(articles), 0.4, 0.5),
    "hub-rows-by-blank-line": Layout(each(lambda text: "\n\n".join(hub_rows(text))), 0.05, 0.9),
    "lines-by-blank-line": Layout(each(lambda text: "\n\n".join(text.splitlines())), 0.3, 0.2),
    "without-last-line-end": Layout(each(lambda text: text.removesuffix("\n")), 0.3, 0.1),
    "stripped": Layout(each(str.strip), 0.3, 0.2),
    "without-blank-lines": Layout(each(lambda text: "\n".join(filled_lines(text))), 0.2, 0.2),
    "detokenized": Layout(each(detokenize_wikitext), 0.05, 0.2),
    "lines-by-line-end": Layout(each(lambda text: "\n".join(text.splitlines())), 0.1, 0.1),
    "lines-by-space": Layout(each(lambda text: " ".join(text.splitlines())), 0.1, 0.1),
    "lines-by-nothing": Layout(each(lambda text: "".join(text.splitlines())), 0.05, 0.05),
}


def arrange(texts: list[str], layout: str) -> list[str]:
    """Return the texts of a layout."""
    return LAYOUTS[layout].arrange(texts)
