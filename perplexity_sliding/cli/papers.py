"""Tables for papers: Markdown, and LaTeX with booktabs.

Window, signature and notes are below a table or in its caption.  Empty cells have a dash, and a note
gives the reason.  Minus signs are not hyphens.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain, combinations

from ..about import VERSION
from .tables import AXES, NOTHING, P, Table, label, signature_fields

MINUS = "−"
# Reasons for empty cells, by the beginning of the column's title.
REASONS = {
    "against ": "the row that the others are compared with, or a row with other tokens",
    "× reference": "the reference itself",
    P: "no change, or too little text",
    "same top": "the reference itself",
    "KL": "the reference itself",
    "verdict": "the reference itself",
    "scored": "above 99 %",
    "tool ±": "not printed by the tool",
    "95 % interval": "too little text",
    "interval": "too little text, or nothing to compare",
    "characters": "not in the text",
    "nll": "not scored",
    "": "does not apply",
}
MEAN = "mean of them"
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
    rows = [[in_markdown(cell) for cell in line] for line in (what.titles, *what.lines)]
    widths = [max(3, *(len(cell) for cell in column)) for column in zip(*rows)]
    sides = [name in what.left for name in what.titles]
    lines = [
        " | ".join(
            cell.ljust(width) if left else cell.rjust(width)
            for cell, width, left in zip(row, widths, sides)
        )
        for row in rows
    ]
    rule = "|".join(
        f":{'-' * (width + 1)}" if left else f"{'-' * (width + 1)}:"
        for width, left in zip(widths, sides)
    )
    head, *body = [f"| {line} |" for line in lines]
    rows = "\n".join([head, f"|{rule}|", *body])
    comments = "\n".join(f"<!-- {line.replace('--', '- -')} -->" for line in what.comments)
    notes = map(in_markdown, what.notes)
    return "\n\n".join(filter(None, [in_markdown(title), rows, *notes, comments]))


def in_markdown(text: str) -> str:
    """Escape text for Markdown."""
    return re.sub(r"([\\`*_<>\[\]|~&$])", r"\\\1", text)


def to_latex(what: Table | str, title: str = "") -> str:
    """Format a table as LaTeX with the package booktabs, with its notes in the caption."""
    if isinstance(what, str):
        return in_latex(" ".join(filter(None, [f"{title}." if title else "", what])))
    what = for_paper(what)
    head, *body = [" & ".join(map(in_latex, line)) for line in (what.titles, *what.lines)]
    notes = [*([f"{title}."] if title else []), *what.notes]
    return "\n".join(
        [
            *(f"% {line}" for line in what.comments),
            r"\begin{table}",
            r"  \centering",
            *([rf"  \caption{{{' '.join(map(in_latex, notes))}}}"] if notes else []),
            rf"  \begin{{tabular}}{{{''.join('l' if t in what.left else 'r' for t in what.titles)}}}",
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
    """Escape text for LaTeX, without mathematics between dollars."""
    return "".join(LATEX.get(sign, sign) for sign in text)


def for_paper(what: Table) -> Table:
    """Fill empty cells with dashes, add their reasons as notes, and use true minus signs."""
    errors = {number: error for number, _, error in what.errors}
    lines, of_column = [], {}
    for number, line in enumerate(what.lines):
        if number in errors:
            lines.append([line[0], *[NOTHING] * (len(what.titles) - 1)])
            continue
        lines.append([cell or NOTHING for cell in line])
        if line[0] != MEAN:
            empty = [title for title, cell in zip(what.titles, line) if cell in ("", NOTHING)]
            of_column |= {title: why_empty(title) for title in empty}
    reasons = [f"{NOTHING} under {title or 'no title'}: {why}." for title, why in of_column.items()]
    if any(line[0] == MEAN and "" in line for line in what.lines):
        reasons.append(f"{NOTHING} in {MEAN}: only perplexities are averaged over texts.")
    reasons += [f"{NOTHING} in {name}: {error}" for _, name, error in what.errors]
    numbers = [title not in what.left for title in what.titles]
    return replace(
        what,
        lines=[
            [with_minus(c) if is_one else c for c, is_one in zip(line, numbers)] for line in lines
        ],
        notes=(*map(with_minus, what.notes), *reasons),
        errors=(),
    )


def with_minus(text: str) -> str:
    """Replace hyphens before numbers by minus signs."""
    return BARE_MINUS.sub(MINUS, text)


def why_empty(title: str) -> str:
    return next(why for beginning, why in REASONS.items() if title.startswith(beginning))


def with_measurement(what: Table, rows: Sequence[dict], axes: Sequence[str]) -> Table:
    """Add model, window, stride and signature to the notes; several signatures become comments.

    Args:
        rows: results, or an `error`.
        axes: settings in which they differ, which are already in the table.
    """
    results = [row for row in rows if "error" not in row]
    keys = [AXES[axis] for axis in axes]
    settings = named_by_few(results, keys, lambda row: described(row, axes))
    signatures = named_by_few(results, keys, lambda row: row["signature_short"])
    measured = f"Measured with perplexity-sliding {VERSION}: {distinguished(settings)}."
    if len(signatures) == 1:
        return replace(what, notes=(*what.notes, measured, f"Signature: {next(iter(signatures))}."))
    lines = [f"{', '.join(names)}: {signature}" for signature, names in signatures.items()]
    return replace(what, notes=(*what.notes, measured), comments=tuple(lines))


def named_by_few(
    rows: Sequence[dict], keys: Sequence[str], of_row: Callable[[dict], str]
) -> dict[str, list[str]]:
    """Group rows by a value; name each group by the smallest set of keys that determines it."""
    for chosen in chain.from_iterable(combinations(keys, n) for n in range(len(keys) + 1)):
        decided = {(tuple(row.get(key) for key in chosen), of_row(row)) for row in rows}
        if len(decided) == len({values for values, _ in decided}):
            break
    named: dict[str, dict[str, None]] = {}
    for row in rows:
        named.setdefault(of_row(row), {})[label(row, chosen)] = None
    return {what: list(names) for what, names in named.items()}


def described(row: dict, axes: Sequence[str]) -> str:
    """Describe model, window, stride, protocol and start token, except for those that are axes."""
    fields = signature_fields(row)
    parts = {
        "model": f"model {fields['model']}",
        "window": f"windows of {fields['window']} tokens",
        "stride": f"stride {fields['stride']}",
        "protocol": f"protocol {fields['protocol']}",
        "start": f"start token {fields['start'].partition('(')[0]}",
    }
    return ", ".join(part for name, part in parts.items() if name not in axes)


def distinguished(named: dict[str, list[str]]) -> str:
    """Return a single description, or each with the rows that it applies to."""
    if len(named) == 1:
        return next(iter(named))
    return "; ".join(f"{what} ({', '.join(names)})" for what, names in named.items())
