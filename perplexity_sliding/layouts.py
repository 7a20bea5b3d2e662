"""Layouts: how people arrange the lines of a corpus before they score it.

    python -m perplexity_sliding.layouts each-line wiki.test.raw > laid-out.jsonl

prints the texts of a layout as JSON lines with a column `text`.
"""

import json
import re
import sys
from collections.abc import Callable

from .protocols import detokenize_wikitext

TITLE = re.compile(r"^ = [^=\n]+ = $", re.MULTILINE)


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


def joined(by: str) -> Callable[[str], list[str]]:
    return lambda text: [by.join(text.splitlines())]


# By name: how a text becomes texts, and how usual that is beside "as-is" (a judgement, no measurement).
LAYOUTS: dict[str, tuple[Callable[[str], list[str]], float]] = {
    "as-is": (lambda text: [text], 1.0),
    "hub-rows-by-blank-line": (lambda text: ["\n\n".join(hub_rows(text))], 0.6),
    "each-article": (articles, 0.4),
    "each-line": (filled_lines, 0.3),
    "lines-by-blank-line": (joined("\n\n"), 0.3),
    "stripped": (lambda text: [text.strip()], 0.2),
    "without-blank-lines": (lambda text: ["\n".join(filled_lines(text))], 0.2),
    "detokenized": (lambda text: [detokenize_wikitext(text)], 0.2),
    "lines-by-line-end": (joined("\n"), 0.1),
    "lines-by-space": (joined(" "), 0.1),
    "lines-by-nothing": (joined(""), 0.05),
}


def arrange(texts: list[str], layout: str) -> list[str]:
    """Return the texts of a layout."""
    return [one for text in texts for one in LAYOUTS[layout][0](text)]


def main(argv: list[str]) -> int:
    """Print the texts of a layout, one JSON object a line; return the exit code."""
    if len(argv) < 2 or argv[0] not in LAYOUTS:
        print(f"usage: layouts NAME FILE ...; NAME is one of {', '.join(LAYOUTS)}", file=sys.stderr)
        return 2
    texts = []
    for name in argv[1:]:
        with open(name, encoding="utf-8", newline="") as file:
            texts.append(file.read())
    for text in arrange(texts, argv[0]):
        print(json.dumps({"text": text}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
