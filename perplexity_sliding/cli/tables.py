"""Tables: their cells, their layout in the width of a terminal, and for papers.

A row is a result of the metric with a name, or an `error`.  To show a new number, add a column in
comparing.py; a table that is too wide hides the columns of the highest rank first.
"""

import json
import math
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

from wcwidth import wcswidth, wrap

from .messages import one_line

Cell = Callable[[dict], str]
NOTHING = "–"
MINUS = "−"
WIDTH = 80
# Minimum widths of columns of text before other columns are hidden.
LEAST_NAME, LEAST_WRAPPED, LEAST_TEXT = 26, 18, 30


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        cell: formats the cell of a row; empty if the row has no such number.
        left: whether it is text.
        wraps: whether long cells go on in the next line; otherwise their middle is left out.
        rank: columns with higher ranks are hidden first if a terminal is too narrow; 0 for never.
        why_empty: the reason for an empty cell, in a paper.
        legend: a sentence below a table that shows the column.
        only_in_papers: whether a terminal does not show it.
    """

    title: str
    cell: Cell
    left: bool = False
    wraps: bool = False
    rank: int = 0
    why_empty: str = "does not apply"
    legend: str = ""
    only_in_papers: bool = False


@dataclass(frozen=True)
class Table:
    """A table without the columns that are empty in all rows.

    Attributes:
        lines: cells of each row; a row with an error has only its name.
        errors: the error of each row without numbers, by its index.
        notes: sentences below the table.
        advice: sentences for the reader of a terminal.
        comments: comments in the source of a table for a paper.
    """

    columns: list[Column]
    lines: list[list[str]]
    errors: dict[int, str]
    notes: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()
    comments: tuple[str, ...] = ()

    @property
    def below(self) -> list[str]:
        """The legends of the columns and the notes, each once."""
        legends = (column.legend for column in self.columns)
        return [note for note in dict.fromkeys([*legends, *self.notes]) if note]

    def of(self, kept: Sequence[int]) -> "Table":
        """Return the table of some of the columns."""
        lines = [[line[n] for n in kept] if len(line) > 1 else line for line in self.lines]
        return replace(self, columns=[self.columns[n] for n in kept], lines=lines)


def tabulate(
    rows: Sequence[dict],
    columns: Sequence[Column],
    notes: Sequence[str] = (),
    advice: Sequence[str] = (),
) -> Table:
    """Fill the cells of rows, without the columns that are empty in all of them."""
    first = columns[0]
    lines = [
        [first.cell(row)] if "error" in row else [column.cell(row) for column in columns]
        for row in rows
    ]
    errors = {
        number: printable(one_line(row["error"]))
        for number, row in enumerate(rows)
        if "error" in row
    }
    made = Table(list(columns), lines, errors, tuple(notes), tuple(advice))
    full = [line for line in lines if len(line) > 1]
    return made.of([n for n in range(len(columns)) if n == 0 or any(line[n] for line in full)])


# --- cells ----------------------------------------------------------------------------------------


def number(key: str, digits: int = 2) -> Cell:
    """Return a cell with a number of the result."""
    return lambda row: format_number(row[key], digits) if key in row else ""


def count(key: str) -> Cell:
    return lambda row: f"{row[key]:,}" if key in row else ""


def interval(key: str, digits: int = 2) -> Cell:
    """Return a cell with an interval of the result."""
    return lambda row: format_interval(row[key], digits) if key in row else ""


def format_number(value: float | None, digits: int = 2) -> str:
    if value is None:
        return NOTHING
    if math.isfinite(value) and abs(value) >= 1e7:
        return f"{value:.{digits}e}"
    return f"{value:.{digits}f}"


def format_interval(bounds: Sequence[float] | None, digits: int = 2, sign: str = "") -> str:
    if bounds is None:
        return NOTHING
    return " – ".join(
        f"{bound:{sign}.{digits}f}" if sign else format_number(bound, digits) for bound in bounds
    )


def signature_fields(row: dict) -> dict[str, str]:
    pairs = (field.partition(":") for field in row["signature"].split("|"))
    return {name: value for name, _, value in pairs}


def quoted(text: str) -> str:
    """Quote a piece of text, so that spaces, newlines and zero-width characters are visible."""
    return printable(json.dumps(text, ensure_ascii=False))


def printable(name: str) -> str:
    """Escape characters that would move the cursor."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in name)


# --- terminals ------------------------------------------------------------------------------------


def lay_out(
    what: Table, width: int | None = None, paint: Callable[[str, str], str] = lambda _, text: text
) -> str:
    """Format a table for a number of columns, by default the terminal's, or 80.

    Args:
        paint: colours a piece of the table by its role: "title", "number", "error" or a verdict.
    """
    width = width or terminal_width()
    what, sizes, hidden = fit(what, width)
    lines = [line_of(what, [c.title for c in what.columns], sizes, paint, is_title=True)]
    for place, line in enumerate(what.lines):
        if place in what.errors:
            indent = max(sizes[0], columns_of(line[0])) + 2
            said = wrapped(what.errors[place], max(width - indent, LEAST_TEXT))
            text = line[0] + " " * (indent - columns_of(line[0])) + ("\n" + " " * indent).join(said)
            lines.append(paint("error", text))
        else:
            lines.append(line_of(what, line, sizes, paint))
    if hidden:
        hidden = [f"Hidden columns: {', '.join(hidden)} (--format csv shows all)."]
    below = [*what.below, *what.advice, *hidden]
    return "\n".join(
        [*lines, *(paint("", part) for note in below for part in wrapped(note, width))]
    )


def line_of(what: Table, cells: list[str], sizes: list[int], paint, is_title: bool = False) -> str:
    """Pad and paint the cells of a row; the long ones take several lines."""
    parts = [
        wrapped(cell, size) or [""]
        if column.wraps and not is_title
        else [shorten(cell, size) if n == 0 else cell]
        for n, (column, cell, size) in enumerate(zip(what.columns, cells, sizes))
    ]
    lines = []
    for pieces in zip_longest(*parts, fillvalue=""):
        padded = []
        for column, piece, size in zip(what.columns, pieces, sizes):
            gap = " " * (size - columns_of(piece))
            role = "title" if is_title else "number" if column.title == "perplexity" else piece
            painted = paint(role, piece) if piece else ""
            padded.append(painted + gap if column.left else gap + painted)
        lines.append("  ".join(padded).rstrip())
    return "\n".join(lines)


def fit(what: Table, width: int) -> tuple[Table, list[int], list[str]]:
    """Hide columns until a table fits; return it with the widths of its columns, and hidden titles."""
    kept = [n for n, column in enumerate(what.columns) if not column.only_in_papers]
    full = [[c.title for c in what.columns], *(line for line in what.lines if len(line) > 1)]
    sizes = [max(columns_of(line[n]) for line in full) for n in range(len(what.columns))]
    sizes[0] = max([sizes[0], *(columns_of(line[0]) for line in what.lines)])
    least = list(sizes)
    least[0] = min(sizes[0], LEAST_WRAPPED if what.columns[0].wraps else LEAST_NAME)
    for n, column in enumerate(what.columns[1:], 1):
        least[n] = min(sizes[n], LEAST_TEXT) if column.wraps else sizes[n]
    hidden = []
    while sum(least[n] + 2 for n in kept) - 2 > width:
        worst = max(kept, key=lambda n: what.columns[n].rank)
        if not what.columns[worst].rank:
            break
        kept.remove(worst)
        hidden.append(what.columns[worst].title)
    room = width - sum(least[n] + 2 for n in kept) + 2
    for n in kept:  # the columns of text take what is left
        more = max(0, min(room, sizes[n] - least[n]))
        least[n] += more
        room -= more
    return what.of(kept), [least[n] for n in kept], hidden


def wrapped(text: str, width: int) -> list[str]:
    """Wrap a text to a width, without breaking the names of options."""
    return wrap(text, width, break_on_hyphens=False)


def terminal_width() -> int:
    return shutil.get_terminal_size((WIDTH, 24)).columns


def columns_of(text: str) -> int:
    """Return the width of a text in a terminal; wide characters take two columns."""
    return max(wcswidth(text), 0)


def shorten(name: str, size: int) -> str:
    """Remove the middle of a name that is too long, because its end is the most informative."""
    if columns_of(name) <= size:
        return name
    head, tail = "", name
    while columns_of(f"{head}{name[len(head)]}") <= size // 3:
        head += name[len(head)]
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


def to_markdown(what: Table | str, title: str = "") -> str:
    """Format a table as Markdown, with its title above and its notes below."""
    if isinstance(what, str):
        return "\n\n".join(map(in_markdown, filter(None, [title, what])))
    what = for_paper(what)
    rows = [
        [in_markdown(c) for c in line] for line in ([c.title for c in what.columns], *what.lines)
    ]
    sizes = [max(3, *(len(cell) for cell in column)) for column in zip(*rows)]
    sides = [column.left for column in what.columns]
    lines = [
        "| "
        + " | ".join(c.ljust(n) if left else c.rjust(n) for c, n, left in zip(row, sizes, sides))
        + " |"
        for row in rows
    ]
    rules = (f":{'-' * (n + 1)}" if left else f"{'-' * (n + 1)}:" for n, left in zip(sizes, sides))
    body = "\n".join([lines[0], f"|{'|'.join(rules)}|", *lines[1:]])
    comments = "\n".join(f"<!-- {line.replace('--', '- -')} -->" for line in what.comments)
    notes = map(in_markdown, what.below)
    return "\n\n".join(filter(None, [in_markdown(title), body, *notes, comments]))


def in_markdown(text: str) -> str:
    """Escape text for Markdown."""
    return re.sub(r"([\\`*_<>\[\]|~&$])", r"\\\1", text)


def to_latex(what: Table | str, title: str = "") -> str:
    """Format a table as LaTeX with the package booktabs, with its notes in the caption."""
    title = f"{title}." if title else ""
    if isinstance(what, str):
        return in_latex(" ".join(filter(None, [title, what])))
    what = for_paper(what)
    head, *body = [
        " & ".join(map(in_latex, line)) for line in ([c.title for c in what.columns], *what.lines)
    ]
    caption = " ".join(map(in_latex, filter(None, [title, *what.below])))
    return "\n".join(
        [
            *(f"% {line}" for line in what.comments),
            r"\begin{table}",
            r"  \centering",
            *([rf"  \caption{{{caption}}}"] if caption else []),
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


def for_paper(what: Table) -> Table:
    """Fill empty cells with dashes, add their reasons as notes, and use true minus signs."""
    lines, empty = [], {}
    for place, line in enumerate(what.lines):
        if place in what.errors:
            lines.append([line[0], *[NOTHING] * (len(what.columns) - 1)])
            continue
        for column, cell in zip(what.columns, line):
            if cell in ("", NOTHING) and column.why_empty:
                empty[column.title] = column.why_empty
        lines.append(
            [c if col.left else with_minus(c or NOTHING) for col, c in zip(what.columns, line)]
        )
    reasons = [f"{NOTHING} under {title or 'no title'}: {why}." for title, why in empty.items()]
    of_error: dict[str, list[str]] = {}
    for place, error in what.errors.items():
        of_error.setdefault(error, []).append(what.lines[place][0])
    reasons += [f"{NOTHING} in {'; '.join(names)}: {error}" for error, names in of_error.items()]
    notes = dict.fromkeys(map(with_minus, [*what.below, *reasons]))
    columns = [replace(column, legend="") for column in what.columns]
    return replace(what, columns=columns, lines=lines, errors={}, notes=tuple(notes))


def with_minus(text: str) -> str:
    """Replace hyphens before numbers by minus signs."""
    return BARE_MINUS.sub(MINUS, text)
