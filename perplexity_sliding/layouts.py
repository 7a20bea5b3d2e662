"""Layouts of a corpus: ways to arrange its texts and lines."""

import re
from collections.abc import Callable
from typing import NamedTuple

from .protocols import detokenize_wikitext

# Lines of WikiText: titles, and marks that join two characters.
TITLE = re.compile(r"^ = [^=\n]+ = $", re.MULTILINE)
MARKED = re.compile(r" @[-,.]@ | <unk> [,.] ")


class Layout(NamedTuple):
    """A way to arrange the texts of a corpus.

    Attributes:
        usual, usual_for_wikitext: weights of other texts and of WikiText relative to "as-is", 0 for
            never; judgements, not measurements.
    """

    arrange: Callable[[list[str]], list[str]]
    usual: float
    usual_for_wikitext: float


def is_wikitext(texts: list[str]) -> bool:
    """Return whether texts are in WikiText's form: with its titles, or @ around joining marks."""
    return any(TITLE.search(text) or MARKED.search(text) for text in texts)


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
    return LAYOUTS[layout].arrange(texts)
