"""Tables: their cells, their layout in the width of a terminal, and for papers.

A row is a result of the metric with a name, or an `error`.  To show a new number, add a column in
comparing.py; a table that is too wide hides the columns of the highest rank first.
"""

import json
import math
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from wcwidth import wcswidth, wrap

from .stored import fields_of

NOTHING = "–"
MINUS = "−"
WIDTH = 80
LEAST_NAME = 26


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        value: the key of its values in the rows, or a function of a row without an error.
        digits: decimal places of numbers.
        left: whether it is text.
        rank: columns with higher ranks are hidden first if a terminal is too narrow; 0 for never.
        legend: a sentence below a table that shows the column.
    """

    title: str
    value: str | Callable[[dict], object]
    digits: int = 2
    left: bool = False
    rank: int = 0
    legend: str = ""

    def cell(self, row: dict) -> str:
        if isinstance(self.value, str):
            return format_value(row.get(self.value, ""), self.digits)
        return "" if "error" in row else format_value(self.value(row), self.digits)


@dataclass
class Table:
    """Cells, with sentences below them, and comments in the source of a table for a paper."""

    columns: list[Column]
    lines: list[list[str]]
    notes: list[str]
    comments: Sequence[str] = ()


def tabulate(rows: Sequence[dict], columns: Sequence[Column], notes: Sequence[str] = ()) -> Table:
    """Fill the cells of rows, without the columns that are empty in all of them."""
    lines = [[column.cell(row) for column in columns] for row in rows]
    kept = [
        n for n, _ in enumerate(columns) if not n or {line[n] for line in lines} - {"", NOTHING}
    ]
    for row, line in zip(rows, lines):
        line[:] = [line[n] or (NOTHING if "error" in row else "") for n in kept]
    legends = (columns[n].legend for n in kept)
    return Table([columns[n] for n in kept], lines, list(filter(None, [*legends, *notes])))


# --- cells ----------------------------------------------------------------------------------------


def format_value(value: object, digits: int = 2) -> str:
    """Format a number, the bounds of an interval, or a text; a dash for None."""
    if value is None:
        return NOTHING
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, list | tuple):
        return " – ".join(format_value(bound, digits) for bound in value)
    if isinstance(value, int):
        return f"{value:,}"
    is_large = math.isfinite(value) and abs(value) >= 1e7
    return f"{value:.{digits}{'e' if is_large else 'f'}}"


def signature_fields(row: dict) -> dict[str, str]:
    return fields_of(row["signature"])


def quoted(text: str) -> str:
    """Quote a piece of text, so that spaces, newlines and zero-width characters are visible."""
    return printable(json.dumps(text, ensure_ascii=False))


def printable(name: str) -> str:
    """Escape characters that would move the cursor."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in name)


# --- terminals ------------------------------------------------------------------------------------


def lay_out(what: Table, width: int | None = None) -> str:
    width = width or terminal_width()
    cells = [[column.title for column in what.columns], *what.lines]
    sizes = [max(map(columns_of, column)) for column in zip(*cells)]
    longest, sizes[0] = sizes[0], min(sizes[0], LEAST_NAME)
    kept, hidden = list(range(len(sizes))), []
    while (room := width + 2 - sum(sizes[n] + 2 for n in kept)) < 0:
        worst = max(kept, key=lambda n: what.columns[n].rank)
        if not what.columns[worst].rank:
            break
        kept.remove(worst)
        hidden.append(what.columns[worst].title)
    sizes[0] += max(0, min(room, longest - sizes[0]))  # the names take what is left
    lines = []
    for line in cells:
        parts = []
        for n in kept:
            piece = line[n] if n else shorten(line[n], sizes[n])
            column, gap = what.columns[n], " " * (sizes[n] - columns_of(piece))
            parts.append(piece + gap if column.left else gap + piece)
        lines.append("  ".join(parts).rstrip())
    notes = [f"Hidden columns: {', '.join(hidden)} (--format csv shows all)."] if hidden else []
    for note in [*what.notes, *notes]:
        lines += wrapped(note, width)
    return "\n".join(lines)


def wrapped(text: str, width: int) -> list[str]:
    return wrap(text, width, break_on_hyphens=False)  # of the names of options


def terminal_width() -> int:
    return shutil.get_terminal_size((WIDTH, 24)).columns


def columns_of(text: str) -> int:
    """Return the width of a text in a terminal; wide characters take two columns."""
    return max(wcswidth(text), 0)


def shorten(name: str, size: int) -> str:
    if columns_of(name) <= size:
        return name
    head, tail = name[: size // 4], name
    while columns_of(f"{head}…{tail}") > size:
        tail = tail[1:]
    return f"{head}…{tail}"


# --- papers ---------------------------------------------------------------------------------------

LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{sign: rf"\{sign}" for sign in "&%$#_{}"},
    **{sign: rf"\ensuremath{{{sign}}}" for sign in "<>|"},
    "–": "--",
    MINUS: r"\(-\)",
    "×": r"\(\times\)",
    "±": r"\(\pm\)",
}
BARE_MINUS = re.compile(r"(?<![\w.-])-(?=\.?\d| is lower)")


def to_markdown(what: Table, title: str = "") -> str:
    rows = [[in_markdown(cell) for cell in line] for line in cells_for_paper(what)]
    sizes = [max(3, *map(len, column)) for column in zip(*rows)]
    rules = [f":{'-' * n}-" if c.left else f"-{'-' * n}:" for c, n in zip(what.columns, sizes)]
    head, *body = (
        " | ".join(
            cell.ljust(size) if column.left else cell.rjust(size)
            for column, cell, size in zip(what.columns, row, sizes)
        )
        for row in rows
    )
    table = "\n".join([f"| {head} |", f"|{'|'.join(rules)}|", *(f"| {line} |" for line in body)])
    notes = [in_markdown(with_minus(note)) for note in what.notes]
    comments = "\n".join(f"<!-- {line.replace('--', '- -')} -->" for line in what.comments)
    return "\n\n".join(filter(None, [in_markdown(title), table, *notes, comments]))


def in_markdown(text: str) -> str:
    return re.sub(r"([\\`*_<>\[\]|~&$])", r"\\\1", text)


def to_latex(what: Table, title: str = "") -> str:
    """Format a table as LaTeX with the package booktabs, with its notes in the caption."""
    head, *body = [" & ".join(map(in_latex, line)) for line in cells_for_paper(what)]
    caption = [f"{title}."] * bool(title) + list(map(with_minus, what.notes))
    return "\n".join(
        [
            *(f"% {line}" for line in what.comments),
            r"\begin{table}",
            r"  \centering",
            rf"  \caption{{{' '.join(map(in_latex, caption))}}}",
            rf"  \begin{{tabular}}{{{''.join('l' if c.left else 'r' for c in what.columns)}}}",
            r"    \toprule",
            rf"    {head} \\",
            r"    \midrule",
            *(rf"    {line} \\" for line in body),
            r"    \bottomrule",
            r"  \end{tabular}",
            r"\end{table}",
        ]
    )


def in_latex(text: str) -> str:
    """Escape text for LaTeX, without mathematics between dollars, and dashes as they are."""
    return "".join(LATEX.get(sign, sign) for sign in text.replace("--", "-\0-")).replace("\0", "{}")


def cells_for_paper(what: Table) -> list[list[str]]:
    """Return titles and cells, with dashes in the empty ones and true minus signs."""
    return [
        [
            cell if column.left and cell else with_minus(cell or NOTHING)
            for column, cell in zip(what.columns, line)
        ]
        for line in [[column.title for column in what.columns], *what.lines]
    ]


def with_minus(text: str) -> str:
    return BARE_MINUS.sub(MINUS, text)
