"""Warnings about probable mistakes in the texts, each given once."""

import codecs
import csv
import itertools
import json
import re

from ..layouts import runs_together
from .messages import say

# Characters examined of each text.
EXAMINED = 100_000
# A missing space stops the run only in this many first texts, not after hours.
CHECKED_JOINS = 1000
WIKITEXT = re.compile(r" @[-,.]@ | <unk> [,.] ")
# In a line without a space at both ends.
LOST_SPACES = re.compile(rf"^(?! .* $).*(?:{WIKITEXT.pattern})", re.MULTILINE)
# Controls of ISO 8859, where Windows-1252 has quotation marks and dashes.
CONTROLS = re.compile("[\x80-\x9f]")
COLUMN_NAME = re.compile(r"[\w.-]+")


class Suspicions:
    """Warns about each kind of mistake once, naming the first text that has it.

    Args:
        detokenizes: whether --detokenize is given.
        separator: the separator of contexts and texts, or None.
        encoding: the given encoding, or None.
    """

    def __init__(
        self, detokenizes: bool, separator: str | None = None, encoding: str | None = None
    ):
        self.encoding = encoding
        self.separator, self.num_joins = separator, 0
        self.detokenizes = detokenizes
        self.warned_of: set[str] = set()

    def look_at(self, name: str, text: str, is_file: bool) -> None:
        """Warn about mistakes in a text; only a whole file can be a table."""
        head = text[:EXAMINED]
        if "\r\n" in head:
            self._warn(
                "line ends",
                f"{name} has Windows line ends (\\r\\n), which raise the perplexity. Convert them to "
                "\\n, for example with dos2unix.",
            )
        if is_file and is_json_lines(head):
            self._warn(
                "JSON lines",
                f"{name} looks like JSON lines, but is read as prose. To score the texts in it, give "
                "it a name that ends in .jsonl.",
            )
        elif is_file and is_csv(head):
            self._warn(
                "CSV",
                f"{name} looks like CSV, but is read as prose. To score the texts in it, give it a "
                "name that ends in .csv or .tsv.",
            )
        if not self.detokenizes and WIKITEXT.search(head):
            self._warn(
                "WikiText",
                f"{name} looks like WikiText's tokenised form, which raises the perplexity. Pass "
                "--detokenize wikitext to score it as prose, unless you compare with a figure for "
                "this form.",
            )
        if self.detokenizes and is_prose(head):
            self._warn(
                "prose",
                f"{name} looks like prose, not like WikiText's tokenised form: --detokenize has no "
                "effect on prose.",
            )
        if self.detokenizes and LOST_SPACES.search(whole_lines(text)):
            self._warn(
                "lost spaces",
                f"{name} has lines that --detokenize cannot convert, because they lack WikiText's space "
                "at both ends. Use the original file, or add a space at both ends of each line.",
            )

    def look_at_encoding(self, name: str, text: str) -> None:
        """Warn about characters that result from a wrong encoding."""
        if text.isascii():
            return
        control = CONTROLS.search(text)
        if self.encoding is not None and is_utf8(text[:EXAMINED], self.encoding):
            self._warn(
                "encoding",
                f"{name} is UTF-8, but read as {self.encoding.upper()}, which changes its characters. "
                "Leave --encoding out.",
            )
        elif control is not None:
            is_unicode = codecs.lookup(self.encoding or "utf-8").name.startswith("utf")
            advice = (
                "Repair the text, which was decoded as latin-1 before it was written."
                if is_unicode
                else "Pass --encoding cp1252."
            )
            self._warn(
                "encoding",
                f"{name} has control characters such as U+{ord(control[0]):04X}, which are quotation "
                f"marks and dashes in Windows files. {advice}",
            )

    def look_at_join(self, name: str, context: str, text: str) -> None:
        """Refuse a context and a text that run together, unless a separator is given.

        Raises:
            ValueError: one of the first texts continues the last word of its context; for later
                texts, the metric warns.
        """
        self.num_joins += 1
        if (
            self.separator is None
            and self.num_joins <= CHECKED_JOINS
            and runs_together(context, text)
        ):
            raise ValueError(
                f"{name} runs together with its context: {context[-10:] + text[:10]!r}. Pass "
                "--context-separator ' ' to insert a space, or --context-separator '' to leave them "
                "unchanged."
            )

    def _warn(self, kind: str, message: str) -> None:
        if kind not in self.warned_of:
            self.warned_of.add(kind)
            say(f"warning: {message}")


def is_utf8(text: str, encoding: str) -> bool:
    """Return whether the beginning of a text decoded with another encoding is UTF-8."""
    try:
        data = text.encode(encoding)
        decoded = codecs.getincrementaldecoder("utf-8")().decode(data)
    except UnicodeError:
        return False
    return len(decoded) < len(text) == len(data)


def is_json_lines(text: str) -> bool:
    """Return whether the first two lines (or the only one) are JSON objects."""
    lines = [line for line in itertools.islice(text.split("\n"), 2) if line.strip()]
    return bool(lines) and all(_is_json_object(line) for line in lines)


def _is_json_object(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except json.JSONDecodeError:
        return False


def is_csv(text: str) -> bool:
    """Return whether the first line is a header, and the next rows have as many fields."""
    lines = text.split("\n")[:50]
    for delimiter in ",\t;":
        names = lines[0].rstrip("\r").split(delimiter)
        if len(names) < 2 or not all(COLUMN_NAME.fullmatch(name.strip('"')) for name in names):
            continue
        try:
            rows = list(csv.reader(lines[1:-1] or lines[1:], delimiter=delimiter))
        except csv.Error:
            continue
        rows = [row for row in rows if row]
        if rows and sum(len(row) == len(names) for row in rows) >= 0.8 * len(rows):
            return True
    return False


def whole_lines(text: str) -> str:
    """Return the examined beginning of a text without a line that it cuts."""
    head = text[:EXAMINED]
    return head if len(head) == len(text) else head[: head.rfind("\n") + 1]


def is_prose(text: str) -> bool:
    """Return whether a text has sentences, and no punctuation separated as in WikiText."""
    return re.search(r"\w[.,] ", text) is not None and re.search(r" [.,] ", text) is None
