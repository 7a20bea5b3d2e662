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
from itertools import zip_longest

from wcwidth import wcswidth, wrap

from .messages import one_line
from .stored import fields_of

NOTHING = "–"
MINUS = "−"
WIDTH = 80
# Minimum widths of names, of cells that go on in the next line, and of errors.
LEAST_NAME, LEAST_WRAPPED, LEAST_ERROR = 26, 18, 30


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        value: the key of its values in the rows, or a function of a row.
        digits: decimal places of numbers.
        sign: "+" to write the sign of positive numbers too.
        left: whether it is text.
        wraps: whether long cells go on in the next line; otherwise their middle is left out.
        rank: columns with higher ranks are hidden first if a terminal is too narrow; 0 for never.
        legend: a sentence below a table that shows the column.
        only_in_papers: whether a terminal does not show it.
    """

    title: str
    value: str | Callable[[dict], object]
    digits: int = 2
    sign: str = ""
    left: bool = False
    wraps: bool = False
    rank: int = 0
    legend: str = ""
    only_in_papers: bool = False

    def cell(self, row: dict) -> str:
        """Format the value of a row; empty if the row has none."""
        value = row.get(self.value, "") if isinstance(self.value, str) else self.value(row)
        return format_value(value, self.digits, self.sign)


@dataclass
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
    notes: list[str]
    advice: Sequence[str] = ()
    comments: Sequence[str] = ()


def tabulate(
    rows: Sequence[dict],
    columns: Sequence[Column],
    notes: Sequence[str] = (),
    advice: Sequence[str] = (),
) -> Table:
    """Fill the cells of rows, without the columns that are empty in all of them."""
    lines = [[column.cell(row) for column in columns] for row in rows if "error" not in row]
    kept = [
        column
        for n, column in enumerate(columns)
        if n == 0 or any(line[n] not in ("", NOTHING) for line in lines)
    ]
    return Table(
        kept,
        [[column.cell(row) for column in (kept[:1] if "error" in row else kept)] for row in rows],
        {n: printable(one_line(row["error"])) for n, row in enumerate(rows) if "error" in row},
        list(filter(None, dict.fromkeys([*(column.legend for column in kept), *notes]))),
        advice,
    )


# --- cells ----------------------------------------------------------------------------------------


def format_value(value: object, digits: int = 2, sign: str = "") -> str:
    """Format a number, the bounds of an interval, or a text; a dash for None."""
    if value is None:
        return NOTHING
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, list | tuple):
        return " – ".join(format_value(bound, digits, sign) for bound in value)
    if isinstance(value, int):
        return f"{value:,}"
    is_large = math.isfinite(value) and abs(value) >= 1e7
    return f"{value:{sign}.{digits}{'e' if is_large else 'f'}}"


def signature_fields(row: dict) -> dict[str, str]:
    return fields_of(row["signature"])


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
    kept, sizes, hidden = fit(what, width)

    def line_of(cells: Sequence[str], is_title: bool = False) -> str:
        parts = []
        for n, column in kept.items():
            if column.wraps and not is_title:
                parts.append(wrapped(cells[n], sizes[n]) or [""])
            else:
                parts.append([shorten(cells[n], sizes[n]) if n == 0 else cells[n]])
        lines = []
        for pieces in zip_longest(*parts, fillvalue=""):
            padded = []
            for (n, column), piece in zip(kept.items(), pieces):
                role = "title" if is_title else "number" if column.title == "perplexity" else piece
                painted = paint(role, piece) if piece else ""
                gap = " " * (sizes[n] - columns_of(piece))
                padded.append(painted + gap if column.left else gap + painted)
            lines.append("  ".join(padded).rstrip())
        return "\n".join(lines)

    lines = [line_of([column.title for column in what.columns], is_title=True)]
    for place, line in enumerate(what.lines):
        if place in what.errors:
            indent = max(sizes[0], columns_of(line[0])) + 2
            said = wrapped(what.errors[place], max(width - indent, LEAST_ERROR))
            text = line[0] + " " * (indent - columns_of(line[0])) + ("\n" + " " * indent).join(said)
            lines.append(paint("error", text))
        else:
            lines.append(line_of(line))
    if hidden:
        hidden = [f"Hidden columns: {', '.join(hidden)} (--format csv shows all)."]
    for note in [*what.notes, *what.advice, *hidden]:
        lines += [paint("", part) for part in wrapped(note, width)]
    return "\n".join(lines)


def fit(what: Table, width: int) -> tuple[dict[int, Column], list[int], list[str]]:
    """Hide columns until a table fits; return the others, all widths, and the hidden titles."""
    full = [[column.title for column in what.columns]]
    full += [line for place, line in enumerate(what.lines) if place not in what.errors]
    wanted = [max(columns_of(line[n]) for line in full) for n in range(len(what.columns))]
    wanted[0] = max([wanted[0], *(columns_of(line[0]) for line in what.lines)])
    sizes = [min(size, LEAST_WRAPPED) if c.wraps else size for c, size in zip(what.columns, wanted)]
    sizes[0] = min(sizes[0], LEAST_NAME)
    kept = {n: column for n, column in enumerate(what.columns) if not column.only_in_papers}
    hidden = []
    while (room := width + 2 - sum(sizes[n] + 2 for n in kept)) < 0:
        worst = max(kept, key=lambda n: kept[n].rank)
        if not kept[worst].rank:
            break
        hidden.append(kept.pop(worst).title)
    for n in kept:  # the columns of text take what is left
        more = max(0, min(room, wanted[n] - sizes[n]))
        sizes[n] += more
        room -= more
    return kept, sizes, hidden


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


def to_markdown(what: Table, title: str = "") -> str:
    """Format a table as Markdown, with its title above and its notes below."""
    lines, notes = for_paper(what)
    rows = [[in_markdown(cell) for cell in line] for line in lines]
    sizes = [max(3, *map(len, column)) for column in zip(*rows)]
    written = []
    for row in rows:
        cells = (
            cell.ljust(size) if column.left else cell.rjust(size)
            for column, cell, size in zip(what.columns, row, sizes)
        )
        written.append(f"| {' | '.join(cells)} |")
    rules = [f":{'-' * n}-" if c.left else f"-{'-' * n}:" for c, n in zip(what.columns, sizes)]
    body = "\n".join([written[0], f"|{'|'.join(rules)}|", *written[1:]])
    comments = "\n".join(f"<!-- {line.replace('--', '- -')} -->" for line in what.comments)
    return "\n\n".join(filter(None, [in_markdown(title), body, *map(in_markdown, notes), comments]))


def in_markdown(text: str) -> str:
    """Escape text for Markdown."""
    return re.sub(r"([\\`*_<>\[\]|~&$])", r"\\\1", text)


def to_latex(what: Table, title: str = "") -> str:
    """Format a table as LaTeX with the package booktabs, with its notes in the caption."""
    lines, notes = for_paper(what)
    head, *body = [" & ".join(map(in_latex, line)) for line in lines]
    caption = " ".join(map(in_latex, [f"{title}.", *notes] if title else notes))
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


def for_paper(what: Table) -> tuple[list[list[str]], list[str]]:
    """Return titles and cells, with dashes in the empty ones and true minus signs, and the notes."""
    lines, of_error = [[column.title for column in what.columns]], {}
    for place, line in enumerate(what.lines):
        if place in what.errors:
            of_error.setdefault(what.errors[place], []).append(line[0])
            line = [line[0]] + [""] * (len(what.columns) - 1)
        lines.append(
            [
                cell if column.left and cell else with_minus(cell or NOTHING)
                for column, cell in zip(what.columns, line)
            ]
        )
    notes = [*what.notes, *(f"{NOTHING} in {'; '.join(of)}: {why}" for why, of in of_error.items())]
    if any(NOTHING in line for line in lines) and not any(note[0] == NOTHING for note in notes):
        notes.append(f"{NOTHING}: does not apply, or too little text.")
    return lines, list(map(with_minus, notes))


def with_minus(text: str) -> str:
    """Replace hyphens before numbers by minus signs."""
    return BARE_MINUS.sub(MINUS, text)
