"""Warnings about probable mistakes in the texts, each given once."""

import argparse
import csv
import json
import re
from collections.abc import Iterator

from ..layouts import runs_together
from .messages import say

EXAMINED = 100_000  # characters of each text
# A missing space stops the run only in this many first texts, not after hours.
CHECKED_JOINS = 1000
WIKITEXT = re.compile(r" @[-,.]@ | <unk> [,.] ")
# Controls of ISO 8859, where Windows-1252 has quotation marks and dashes.
CONTROLS = re.compile("[\x80-\x9f]")
COLUMN_NAME = re.compile(r'"?[\w.-]+"?')


def warned(texts: Iterator, args: argparse.Namespace) -> Iterator:
    """Yield the texts, of `reading.Text`, and warn about mistakes in them.

    Raises:
        ValueError: one of the first texts continues the last word of its context; for later texts,
            the metric warns.
    """
    said = set()
    for number, text in enumerate(texts):
        if text.error is None:
            for kind, message in list_mistakes(text, args):
                if kind not in said:
                    said.add(kind)
                    say(f"warning: {text.name} {message}")
            is_checked = args.context_separator is None and number < CHECKED_JOINS
            if is_checked and runs_together(text.context or "", text.text):
                raise ValueError(
                    f"{text.name} runs together with its context: "
                    f"{text.context[-10:] + text.text[:10]!r}. Pass --context-separator ' ' to insert "
                    "a space, or --context-separator '' to leave them unchanged."
                )
        yield text


def list_mistakes(text, args: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """Yield kinds of mistakes, and what to do about them."""
    head = text.text[:EXAMINED]
    kind = None if text.row is not None else kind_of_table(head)
    if kind is not None:
        yield (
            "table",
            f"looks like {kind}, but is read as prose. To score the texts in it, give it a name that "
            f"ends in {'.jsonl' if kind == 'JSON lines' else '.csv or .tsv'}.",
        )
    control = CONTROLS.search((text.context or "")[:EXAMINED] + head)
    if control is not None:
        yield (
            "encoding",
            f"has control characters such as U+{ord(control[0]):04X}, which are quotation marks and "
            "dashes in Windows files. Pass --encoding cp1252; if that is refused, the text was decoded "
            "as latin-1 before it was written: repair it.",
        )
    if "\r\n" in head:
        yield (
            "line ends",
            "has Windows line ends (\\r\\n), which raise the perplexity. Convert them to \\n, for "
            "example with dos2unix.",
        )
    if not args.detokenize and WIKITEXT.search(head):
        yield (
            "WikiText",
            "looks like WikiText's tokenised form, which raises the perplexity. Pass --detokenize "
            "wikitext to score it as prose, unless you compare with a figure for this form.",
        )
    for number, line in enumerate(head.split("\n")[:-1] if args.detokenize else (), 1):
        if WIKITEXT.search(line) and not (line[0] == line[-1] == " "):
            yield (
                "lost spaces",
                f"has lines that --detokenize cannot convert, such as line {number}, {line!r:.60}: it "
                "lacks WikiText's space at both ends. Use the original file, or add these spaces.",
            )
            break


def kind_of_table(text: str) -> str | None:
    """Return the format of a table that is read as a text: JSON lines, CSV, or None."""
    lines = text.split("\n")[:50]
    try:
        if all(isinstance(json.loads(line), dict) for line in lines[:2] if line.strip()):
            return "JSON lines"
    except ValueError:
        pass
    for delimiter in ",\t;":
        names = lines[0].rstrip("\r").split(delimiter)
        if len(names) > 1 and all(map(COLUMN_NAME.fullmatch, names)):
            rows = [row for row in csv.reader(lines[1:-1], delimiter=delimiter) if row]
            if rows and sum(len(row) == len(names) for row in rows) >= 0.8 * len(rows):
                return "CSV"
    return None
