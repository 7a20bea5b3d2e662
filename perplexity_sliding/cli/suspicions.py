"""Mistakes that give a number all the same, found in the texts and told once."""

import codecs
import csv
import itertools
import json
import re

from ..layouts import runs_together
from .messages import say

# Enough to see what kind of text it is.
LOOKED_AT = 100_000
# The run stops for a missing space in one of so many texts, not after hours for a rare one.
ASKED = 1000
WIKITEXT = re.compile(r" @[-,.]@ | <unk> [,.] ")
# Of ISO 8859; Windows-1252 has quotation marks and dashes there.
CONTROLS = re.compile("[\x80-\x9f]")
COLUMN_NAME = re.compile(r"[\w.-]+")


class Suspicions:
    """Warns of each kind of mistake once, naming the first text that has it.

    Args:
        detokenizes: whether texts are said to be in WikiText's form.
        separator: what is put between contexts and texts, or None.
        encoding: the one that files are said to have, or None.
    """

    def __init__(
        self, detokenizes: bool, separator: str | None = None, encoding: str | None = None
    ):
        self.encoding = encoding
        self.separator, self.num_joins = separator, 0
        self.detokenizes = detokenizes
        self.warned_of: set[str] = set()

    def look_at(self, name: str, text: str, is_file: bool) -> None:
        """Warn of what is surely wrong with a text; only a whole file may be a table."""
        head = text[:LOOKED_AT]
        if "\r\n" in head:
            self._warn(
                "line ends",
                f"{name} has Windows line ends (\\r\\n), which the model reads as they are and is "
                "surprised by. Turn them into \\n, with dos2unix for example.",
            )
        if is_file and is_json_lines(head):
            self._warn(
                "JSON lines",
                f"{name} looks like JSON lines, but is read as prose. Let its name end in .jsonl to "
                "score the texts in it.",
            )
        elif is_file and is_csv(head):
            self._warn(
                "CSV",
                f"{name} looks like CSV, but is read as prose. Let its name end in .csv or .tsv to "
                "score the texts in it.",
            )
        if not self.detokenizes and WIKITEXT.search(head):
            self._warn(
                "WikiText",
                f"{name} looks like WikiText's tokenised form, which models find strange. Pass "
                "--detokenize wikitext to score it as prose, unless you compare with a figure of this "
                "form.",
            )
        if self.detokenizes and is_prose(head):
            self._warn(
                "prose",
                f"{name} looks like prose, not like WikiText's tokenised form: --detokenize has "
                "nothing to do there.",
            )

    def look_at_encoding(self, name: str, text: str) -> None:
        """Warn of characters that a wrong encoding has made."""
        if text.isascii():
            return
        control = CONTROLS.search(text)
        if self.encoding is not None and is_utf8(text[:LOOKED_AT], self.encoding):
            self._warn(
                "encoding",
                f"{name} is UTF-8, but read as {self.encoding.upper()}, which makes other characters "
                "of its own. Leave --encoding out.",
            )
        elif control is not None:
            is_unicode = codecs.lookup(self.encoding or "utf-8").name.startswith("utf")
            advice = (
                "Repair the text, which was read as latin-1 before it was written."
                if is_unicode
                else "Pass --encoding cp1252."
            )
            self._warn(
                "encoding",
                f"{name} has control characters such as U+{ord(control[0]):04X}, which stand for "
                f"quotation marks and dashes in files of Windows. {advice}",
            )

    def look_at_join(self, name: str, context: str, text: str) -> None:
        """Stop where a context and its text run together, unless somebody says what is meant.

        Raises:
            ValueError: they do, in one of the first texts; of later ones the metric warns.
        """
        self.num_joins += 1
        if self.separator is None and self.num_joins <= ASKED and runs_together(context, text):
            raise ValueError(
                f"{name} runs together with its context: {context[-10:] + text[:10]!r}. Pass "
                "--context-separator ' ' to put a space between them, or --context-separator '' to "
                "keep them so."
            )

    def _warn(self, kind: str, message: str) -> None:
        if kind not in self.warned_of:
            self.warned_of.add(kind)
            say(f"warning: {message}")


def is_utf8(text: str, encoding: str) -> bool:
    """Tell whether the beginning of a text that was read as bytes of another encoding is UTF-8."""
    try:
        data = text.encode(encoding)
        decoded = codecs.getincrementaldecoder("utf-8")().decode(data)
    except UnicodeError:
        return False
    return len(decoded) < len(text) == len(data)


def is_json_lines(text: str) -> bool:
    """Tell whether the first two lines (or the only one) are JSON objects."""
    lines = [line for line in itertools.islice(text.split("\n"), 2) if line.strip()]
    return bool(lines) and all(_is_json_object(line) for line in lines)


def _is_json_object(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except json.JSONDecodeError:
        return False


def is_csv(text: str) -> bool:
    """Tell whether the first line names columns, and the rows below have as many fields as it."""
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


def is_prose(text: str) -> bool:
    """Tell whether a text has sentences, and no mark set apart as WikiText has them."""
    return re.search(r"\w[.,] ", text) is not None and re.search(r" [.,] ", text) is None
