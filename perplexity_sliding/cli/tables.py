"""Printed tables, and their layout in the width of the terminal.

A row is a result of the metric with a name, or an `error`.  To show a new number, add a column here;
if a table is too wide, columns are hidden in the order of `EXPENDABLE`.
"""

import json
import math
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from wcwidth import wcswidth, wrap

from .messages import one_line

Cell = Callable[[dict], str]
NOTHING = "–"
WIDTH = 80
# The title of p-values, which appear only in papers; a terminal shows intervals.
P = "p"
# Settings in which measurements differ, with the titles of their columns.
SETTINGS = {"protocol": "protocol", "max_length": "window", "stride": "stride"}
# The key that distinguishes measurements, for each axis.
AXES = {"model": "name", "text": "text"} | {title: key for key, title in SETTINGS.items()}
# The share of scored tokens is shown below this value.
NEARLY_ALL = 0.99
# Titles of the columns to hide in a narrow terminal, in this order.
EXPENDABLE = (
    "windows", "word perplexity", "forward tokens", "start", "adjusted", "characters", "context",
    "tokens", "bits/byte", "bits/original byte", "KL 99 %", "same top", "KL interval", "KL, nats",
    "tool ±", "stride", "window", "95 % interval", "perplexity",
)  # fmt: skip
# Minimum widths of the first column, and of a last column of text, before other columns are hidden.
LEAST_NAME = 26
LEAST_TEXT = 30


@dataclass(frozen=True)
class Table:
    """A table without the columns that are empty in all rows.

    Attributes:
        left: titles of left-aligned columns.
        lines: cells of each row; a row with an error has only its name.
        notes: sentences below the table.
        errors: index, name and error of each row without numbers.
        comments: comments in the source of a table for a paper.
    """

    titles: list[str]
    lines: list[list[str]]
    left: tuple[str, ...]
    notes: tuple[str, ...] = ()
    errors: tuple[tuple[int, str, str], ...] = ()
    comments: tuple[str, ...] = ()


def number(key: str, digits: int = 2) -> Cell:
    """Return a cell with a number of the result."""
    return lambda row: format_number(row[key], digits) if key in row else ""


def count(key: str) -> Cell:
    return lambda row: f"{row[key]:,}" if key in row else ""


def bits(digits: int) -> dict[str, Cell]:
    """Return the columns of bits per byte, of the original for detokenized texts."""

    def of_prose(row: dict) -> str:
        return "" if "bits_per_original_byte" in row else number("bits_per_byte", digits)(row)

    original = number("bits_per_original_byte", digits)
    return {"bits/byte": of_prose, "bits/original byte": original}


def bits_per_byte(row: dict) -> float:
    """Return the bits per byte that a table shows."""
    return row.get("bits_per_original_byte", row["bits_per_byte"])


def interval(row: dict) -> str:
    bounds = row.get("perplexity_interval")
    if bounds is None:
        return NOTHING if "perplexity_interval" in row else ""
    return " – ".join(format_number(bound) for bound in bounds)


def signed(key: str) -> Cell:
    """Return a cell with a field of the signature."""
    return lambda row: signature_fields(row)[key].partition("(")[0]


def format_number(value: float | None, digits: int = 2) -> str:
    if value is None:
        return NOTHING
    if math.isfinite(value) and abs(value) >= 1e7:
        return f"{value:.{digits}e}"
    return f"{value:.{digits}f}"


def signature_fields(row: dict) -> dict[str, str]:
    pairs = (field.partition(":") for field in row["signature"].split("|"))
    return {name: value for name, _, value in pairs}


def common_signature(rows: list[dict]) -> str:
    """Return the fields of the signature that all rows share; columns show the others."""
    fields = [signature_fields(row) for row in rows if "error" not in row]
    shared = (
        name for name in fields[0] if all(of_row.get(name) == fields[0][name] for of_row in fields)
    )
    return "|".join(f"{name}:{fields[0][name]}" for name in shared)


def of_texts(rows: list[dict], corpus: dict) -> Table:
    """Tabulate texts and corpus: sizes, perplexity with interval, tokenizer-independent numbers."""
    rows, several = list(rows), corpus["num_texts"] > 1
    if several or len(rows) != 1:
        rows.append({"name": "all together"} | corpus)
    if several:
        rows.append({"name": "mean of them", "perplexity": corpus["mean_perplexity"]})
    has_intervals = any(row.get("perplexity_interval") for row in rows)
    return table(
        rows,
        {
            "text": lambda row: printable(row["name"]),
            "tokens": count("num_tokens"),
            "scored": scored_share,
            "perplexity": number("perplexity"),
            **({"95 % interval": interval} if has_intervals else {}),
            "tool ±": number("tool_stderr", 4),
            **bits(3),
            "word perplexity": number("word_perplexity"),
            "adjusted": number("adjusted_perplexity"),
        },
        notes=scope_of_intervals(rows) if has_intervals else reason_for_no_interval(corpus),
    )


def reason_for_no_interval(corpus: dict) -> tuple[str, ...]:
    """Return the reason why a finite number has no interval."""
    is_finite = math.isfinite(corpus["perplexity"])
    return ("No 95 % interval: too little text.",) if is_finite else ()


def scope_of_intervals(rows: list[dict]) -> tuple[str, ...]:
    """Return a note if intervals are within texts, and do not cover other texts."""
    scopes = {row.get("interval_scope") for row in rows} - {None}
    if scopes <= {"over texts"}:
        return ()
    if "over texts" in scopes:
        return ("95 % intervals: within each text; for all together, over texts.",)
    scope = "within this text" if scopes == {"within this text"} else "within these texts"
    return (f"95 % interval {scope}: other texts may differ by more.",)


def of_measurements(rows: list[dict]) -> Table:
    """Tabulate protocols, windows or strides, with as many digits as the tools print."""
    varying = varying_settings(rows)
    of_tools = "protocol" in varying
    first = next(row for row in rows if "error" not in row)
    against = f"against {label(first, varying)}"
    columns = {
        SETTINGS[varying[0]]: lambda row: label(row, varying if "error" in row else varying[:1]),
        **({"window": signed("window")} if varying[0] != "max_length" and of_tools else {}),
        **({"stride": signed("stride")} if varying[0] != "stride" else {}),
        **({"start": signed("start")} if of_tools else {}),
        "tokens": count("num_tokens"),
        "scored": scored_share,
        "windows": count("num_windows"),
        "forward tokens": count("num_forward_tokens"),
        "perplexity": number("perplexity", 4),
        "95 % interval": interval,
        against: change,
        P: pvalue_of,
        "tool ±": number("tool_stderr", 4),
        **bits(4),
        "word perplexity": number("word_perplexity", 4),
        "adjusted": number("adjusted_perplexity", 4),
    }
    return table(rows, columns, notes=(explained_change(against), *scope_of_intervals(rows)))


def different_windows(rows: Sequence[dict]) -> list[str]:
    """Note that models read different windows, which change their numbers as much as the models do.

    Args:
        rows: results of models by `name`.
    """
    of_protocols: dict[str, dict[str, int]] = {}
    for row in rows:
        of_protocols.setdefault(row["protocol"], {})[row["name"]] = row["max_length"]
    for windows in of_protocols.values():
        smallest = min(windows.values())
        if smallest < max(windows.values()):
            listed = ", ".join(f"{name} {length:,}" for name, length in windows.items())
            return [
                f"The windows differ, in tokens: {listed}. "
                f"--max-length {smallest} compares the models in the same window."
            ]
    return []


def explained_change(against: str) -> str:
    return f"{against}: change in perplexity with its 95 % interval; - is lower, which is better."


def varying_settings(rows: list[dict]) -> list[str]:
    """List the settings in which measurements differ; the protocol if there are none."""
    return [key for key in SETTINGS if len({row.get(key) for row in rows}) > 1] or ["protocol"]


def of_key_tokens(result: dict) -> str | None:
    """Describe LongPPL; None if it was not measured."""
    number = result.get("num_key_tokens")
    if number is None:
        return None
    if not number:
        return (
            "LongPPL: none, because there are no key tokens: the evaluator predicts no token much "
            "better with the long context than with the short one."
        )
    value = f"LongPPL: {result['longppl']:.4f} over {number:,} key tokens."
    if result["longppl_interval"] is None:
        return value
    low, high = map(format_number, result["longppl_interval"])
    return f"{value} 95 % interval of LongPPL: {low} – {high}."


def label(row: dict, keys: Sequence[str]) -> str:
    """Return the settings that distinguish a measurement."""
    return ", ".join(str(row[key]) for key in keys if row.get(key) is not None)


def scored_share(row: dict) -> str:
    """Format the share of scored tokens, unless it is nearly all."""
    share = row.get("scored_share", 1.0)
    return f"{100 * share:.2g} %" if share < NEARLY_ALL else ""


def change(row: dict, key: str = "ratio_to_first") -> str:
    """Format the paired change from the first row in per cent.

    Args:
        key: key of the ratio, "ratio_to_first" (setting) or "ratio_to_first_model".
    """
    ratio = row.get(key)
    if ratio is None or ratio["ratio"] is None:
        return ""
    bounds = ratio["interval"]
    within = "" if bounds is None else " (" + " to ".join(percent(bound) for bound in bounds) + ")"
    return f"{percent(ratio['ratio'])} %{within}"


def pvalue_of(row: dict, key: str = "ratio_to_first") -> str:
    """Format the p-value of a change."""
    value = (row.get(key) or {}).get("pvalue")
    return "" if value is None else pvalue(value)


def pvalue(value: float) -> str:
    return "< 0.0001" if value < 1e-4 else f"{value:.4f}"


def percent(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.2f}"


def of_contexts(by_context_length: list[dict]) -> Table:
    """Tabulate context lengths: perplexity of the same tokens, and its ratio with an interval."""

    def ratio(row: dict) -> str:
        paired = row.get("ratio_to_longest")
        return "" if paired is None else f"× {paired['ratio']:.4f}"

    def ratio_interval(row: dict) -> str:
        bounds = row.get("ratio_to_longest", {}).get("interval")
        return "" if bounds is None else " – ".join(format_number(bound, 4) for bound in bounds)

    longest = by_context_length[-1]["context_length"]
    return table(
        by_context_length,
        {
            "context": count("context_length"),
            "tokens": count("num_tokens"),
            "perplexity": number("perplexity", 4),
            "95 % interval": lambda row: interval({"perplexity_interval": row["interval"]}),
            f"against {longest:,}": ratio,
            "interval of the ratio": ratio_interval,
        },
    )


def of_positions(by_position: list[dict]) -> Table:
    """Tabulate positions in the text: the loss there, and of all tokens up to there."""
    return table(
        by_position,
        {
            "tokens from": count("first"),
            "to": count("last"),
            "tokens": count("num_tokens"),
            "texts": count("num_texts"),
            "nll, nats": number("nll", 4),
            "95 % interval": lambda row: interval({"perplexity_interval": row["interval"]}),
            "up to there, nats": number("cumulative_nll", 4),
        },
    )


def of_tokens(rows: list[dict]) -> Table:
    """Tabulate tokens: their characters, context, and negative log-likelihood in nats and in bits."""
    return table(
        rows,
        {
            "characters": lambda row: (
                "" if row["first"] is None else f"{row['first']}-{row['last']}"
            ),
            "context": number("context_length", 0),
            "nll, nats": number("nll_nats", 4),
            "nll, bits": number("nll_bits", 4),
            "reference, nats": number("reference_nll_nats", 4),
            "KL, nats": number("kl_nats", 5),
            "rank": lambda row: str(row["rank"] or NOTHING) if "rank" in row else "",
            "token": lambda row: quoted(row["token"]),
            "likeliest, nats": lambda row: ", ".join(
                f"{quoted(piece)} {nll:.2f}" for piece, nll in row.get("alternatives_nats") or ()
            ),
        },
        left=("token", "likeliest, nats"),
    )


def of_words(rows: list[dict]) -> Table:
    """Tabulate words: their characters, context, and surprisal; entropy is that before the word."""
    return table(
        rows,
        {
            "characters": lambda row: f"{row['first']}-{row['last']}",
            "context": number("context_length", 0),
            "tokens": number("num_tokens", 0),
            "surprisal, nats": number("surprisal_nats", 4),
            "surprisal, bits": number("surprisal_bits", 4),
            "entropy, nats": number("entropy_nats", 4),
            "word": lambda row: quoted(row["word"]),
        },
        left=("word",),
    )


def quoted(text: str) -> str:
    """Quote a piece of text, so that spaces, newlines and zero-width characters are visible."""
    return printable(json.dumps(text, ensure_ascii=False))


def printable(name: str) -> str:
    """Escape characters that would move the cursor."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in name)


def table(
    rows: list[dict],
    columns: dict[str, Cell],
    left: tuple[str, ...] | None = None,
    notes: tuple[str, ...] = (),
) -> Table:
    """Fill the cells of rows, without the columns that are empty in all of them.

    Args:
        left: titles of left-aligned columns; the first one by default.
    """
    titles = list(columns)
    first = columns[titles[0]]
    cells = [
        [first(row)] if "error" in row else [cell(row) for cell in columns.values()] for row in rows
    ]
    full = [line for line in cells if len(line) > 1]
    used = [n for n in range(len(titles)) if n == 0 or any(line[n] for line in full)]
    errors = tuple(
        (number, first(row), printable(one_line(row["error"])))
        for number, row in enumerate(rows)
        if "error" in row
    )
    return Table(
        [titles[n] for n in used],
        [line if len(line) == 1 else [line[n] for n in used] for line in cells],
        left or (titles[0],),
        notes,
        errors,
    )


def lay_out(what: Table, width: int | None = None) -> str:
    """Format a table for a number of columns, by default the terminal's, or 80."""
    width = width or terminal_width()
    fits = fitted(what, width)
    widths = widths_of(fits)
    errors = {number: error for number, _, error in fits.errors}

    def pad(line: list[str]) -> str:
        padded = (
            cell + gap if title in fits.left else gap + cell
            for title, cell, gap in (
                (title, cell, " " * (size - columns(cell)))
                for title, cell, size in zip(fits.titles, line, widths)
            )
        )
        return wrap_last("  ".join(padded).rstrip(), line[-1], width)

    body = [
        excuse(line[0], widths[0], errors[number], width) if number in errors else pad(line)
        for number, line in enumerate(fits.lines)
    ]
    below = [line for note in fits.notes for line in wrapped(note, width)]
    return "\n".join([pad(fits.titles), *body, *below])


def fitted(what: Table, width: int) -> Table:
    """Hide columns and shorten names until a table fits into a width; note the hidden columns."""
    what = without_column(what, P)
    kept, dropped = fit(what, width)
    notes = what.notes
    if dropped:
        notes += (f"Hidden columns: {', '.join(dropped)} (--format csv shows all).",)
    titles = [what.titles[n] for n in kept]
    lines = [[line[n] for n in kept] if len(line) > 1 else line for line in what.lines]
    fits = replace(what, titles=titles, lines=lines, notes=notes)
    widths = widths_of(fits)
    most = max(LEAST_NAME, width - sum(widths[1:]) - 2 * (len(widths) - 1))
    return replace(
        fits,
        titles=[shorten(titles[0], most), *titles[1:]],
        lines=[[shorten(line[0], most), *line[1:]] for line in lines],
        errors=tuple((number, shorten(name, most), why) for number, name, why in what.errors),
    )


def without_column(what: Table, title: str) -> Table:
    """Remove a column, if the table has it."""
    kept = [n for n, name in enumerate(what.titles) if name != title]
    lines = [[line[n] for n in kept] if len(line) > 1 else line for line in what.lines]
    return replace(what, titles=[what.titles[n] for n in kept], lines=lines)


def widths_of(what: Table) -> list[int]:
    """Return the widths of the columns; the first includes the names of rows with errors."""
    full = [what.titles, *(line for line in what.lines if len(line) > 1)]
    widths = [max(columns(line[n]) for line in full) for n in range(len(what.titles))]
    return [max([widths[0], *(columns(line[0]) for line in what.lines)]), *widths[1:]]


def wrap_last(line: str, last: str, width: int) -> str:
    """Wrap the text of the last column if it is too long for a line."""
    begin = columns(line) - columns(last)
    if columns(line) <= width or width - begin < LEAST_TEXT:
        return line
    parts = wrapped(last, width - begin)
    return line.removesuffix(last) + ("\n" + " " * begin).join(parts)


def fit(what: Table, width: int) -> tuple[list[int], list[str]]:
    """Return the indices of the columns that fit into a width, and the titles of the others."""
    full = [what.titles, *(line for line in what.lines if len(line) > 1)]
    widths = [max(columns(line[n]) for line in full) for n in range(len(what.titles))]
    widths[0] = min(widths[0], LEAST_NAME)
    if len(widths) > 1 and what.titles[-1] in what.left:
        widths[-1] = min(widths[-1], LEAST_TEXT)
    kept, dropped = list(range(len(widths))), []
    for title in EXPENDABLE:
        if sum(widths[n] + 2 for n in kept) - 2 <= width:
            break
        if title in what.titles and what.titles.index(title) > 0:
            kept.remove(what.titles.index(title))
            dropped.append(title)
    return kept, dropped


def wrapped(text: str, width: int) -> list[str]:
    """Wrap a text to a width, without breaking the names of options."""
    return wrap(text, width, break_on_hyphens=False)


def lines_of(note: str) -> list[str]:
    """Wrap a note into lines of the terminal's width."""
    return wrapped(note, terminal_width())


def terminal_width() -> int:
    return shutil.get_terminal_size((WIDTH, 24)).columns


def excuse(name: str, size: int, error: str, width: int) -> str:
    """Format a row with an error, wrapped to the width."""
    indent = name + " " * (size - columns(name) + 2)
    lines = wrapped(error, max(width - columns(indent), LEAST_TEXT))
    return indent + ("\n" + " " * columns(indent)).join(lines)


def columns(text: str) -> int:
    """Return the width of a text in a terminal; wide characters take two columns."""
    return max(wcswidth(text), 0)


def shorten(name: str, size: int) -> str:
    """Remove the middle of a name that is too long, because its end is the most informative."""
    if columns(name) <= size:
        return name
    head, tail = "", name
    while columns(f"{head}{name[len(head)]}") <= size // 3:
        head += name[len(head)]
    while columns(f"{head}…{tail}") > size:
        tail = tail[1:]
    return f"{head}…{tail}"


def with_title(what: Table | str, title: str = "") -> str:
    """Format a table with its title; a paragraph is unchanged."""
    text = what if isinstance(what, str) else lay_out(what)
    return f"{title}\n{text}" if title else text
