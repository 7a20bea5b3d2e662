"""Write a report: text, Markdown and LaTeX; JSON; tidy rows; and the texts, coloured by surprisal."""

import argparse
import itertools
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain

from ..views import SHOWN, Reading, replaced
from . import citing, comparing, rows, tables
from .measuring import Report, short_names
from .messages import harmless, to_stdout
from .options import stored_options

LOWER = "Lower is better."
BUNDLED = "Model: the bundled demo; choose another with --model NAME."
MOST_ERRORS = 5
MOST_SURPRISING = 5
# Styles by level of surprisal.  All colours have a contrast of at least 4.5 to black and to white.
LEVELS = {
    "b0": "",
    "b1": "#8f7120",
    "b2": "bold #ae630e",
    "b3": "#ffffff on #9c6210",
    "b4": "bold #ffffff on #b5480b",
    "b5": "bold #ffffff on #c0203a",
    "out": "dim",
}
# Marks for output without colours.
MARKS = {"b4": ("[", "]"), "b5": ("[[", "]]")}
MARKED = "[10 to 15 bits of surprise], [[15 bits or more]]"


def write(report: Report, args: argparse.Namespace) -> str | None:
    """Write the report to --output; return a message about it."""
    if report.kept is not None:
        write_pieces(report.kept, args.output)
        return None
    if args.format == "parquet":
        rows.write_parquet(tidy_rows(report, args), args.output)
    else:
        write_pieces(render(report, args), args.output)
    return f"wrote {args.output}"


def write_pieces(pieces: Iterable[str], path: str) -> None:
    with replaced(path) as place, open(place, "w", encoding="utf-8", newline="") as file:
        file.writelines(pieces)


def render(report: Report, args: argparse.Namespace) -> Iterator[str]:
    if args.cite:
        return map(harmless, [citing.cite(report.results, args) + "\n"])
    if args.format == "json":
        return iter([rows.to_json(as_json(report, args)), "\n"])
    if args.format == "jsonl":
        return (f"{rows.to_json(row)}\n" for row in tidy_rows(report, args)())
    if args.format in ("csv", "tsv"):
        return rows.to_csv(tidy_rows(report, args), {"csv": ",", "tsv": "\t"}[args.format])
    writers = {"text": to_text, "markdown": tables.to_markdown, "latex": tables.to_latex}
    pieces = paragraphs(all_tables(report, args, writers[args.format]))
    notes = text_notes(report, args) if args.format == "text" else ()
    return map(harmless, chain(pieces, notes))


def paragraphs(texts: Iterable[str]) -> Iterator[str]:
    between = ""
    for text in texts:
        yield between + text
        between = "\n\n"
    yield "\n"


# --- data -----------------------------------------------------------------------------------------


def as_json(report: Report, args: argparse.Namespace) -> dict:
    """Collect the metric's unchanged results and their cost."""
    parts: dict = {
        "files": [row for row in report.texts if "row" not in row],
        "refused_rows": [row for row in report.texts if "row" in row and "error" in row],
    }
    parts = {name: found for name, found in parts.items() if found}
    if report.measurements:
        is_of_models = (args.reference or args.models[1:]) and not args.is_grid
        # token scores may have been needed only for --html
        parts["models" if is_of_models else "measurements"] = [
            {key: value for key, value in row.items() if args.tokens or key != "token_scores"}
            for row in report.measurements
        ]
    else:
        parts["corpus"] = dict(report.corpus)
        if args.unit:
            parts["corpus"][f"{args.unit}_scores"] = [columns for _, columns in report.parts]
    options = report.options or stored_options(args)
    return parts | {"num_empty_texts": report.num_empty} | report.cost | {"options": options}


def tidy_rows(report: Report, args: argparse.Namespace) -> rows.Rows:
    if args.unit:
        return lambda: chain.from_iterable(
            rows.rows_of_parts(text, columns, args.unit) for text, columns in report.parts
        )
    if report.measurements:
        return lambda: rows.rows_of_measurements(report.measurements, args.label is not None)
    has_row = report.joined or not report.texts
    more = [report.corpus | {"name": "all together"}] if has_row else []
    label = args.label[0] if args.label else None
    return lambda: rows.rows_of_texts(chain(report.texts, more), report.corpus, label)


# --- text -----------------------------------------------------------------------------------------


def to_text(what: tables.Table, title: str = "") -> str:
    return "\n".join(filter(None, [title, tables.lay_out(what)]))


def text_notes(report: Report, args: argparse.Namespace) -> Iterator[str]:
    notes = notes_on(report)
    if report.corpus is not None and not args.unit:
        notes.append(f"{LOWER} {BUNDLED}" if args.takes_bundled_model else LOWER)
    for note in notes:
        for line in tables.wrapped(note, tables.terminal_width()):
            yield f"{line}\n"
    key = "signature" if args.verbose else "signature_short"
    yield "\n{}\n".format("\n".join(dict.fromkeys(result[key] for result in report.results)))


def all_tables(
    report: Report, args: argparse.Namespace, write: Callable[..., str]
) -> Iterator[str]:
    """Yield the tables, formatted by `write` with their titles, if any."""
    for text, columns in report.parts if args.unit else ():
        if of_text := list(rows.rows_of_parts(text, columns, args.unit)):
            yield write(comparing.tabulate_parts(of_text, args.unit), tables.printable(text.name))
    measurements = report.measurements or [report.corpus]
    [reference] = short_names([args.reference or ""])
    if args.reference:
        if args.format == "text" and not (args.models[1:] or args.is_grid):
            yield report.results[0]["comparison"]["summary"]
        table = comparing.tabulate_models(measurements, reference)
    elif report.measurements or args.columns:
        table = comparing.tabulate_measurements(measurements, args.axes, args.columns or ())
    else:
        files = [row for row in report.texts if "row" not in row]
        table = comparing.tabulate_texts(files, report.corpus)
    if args.format in ("markdown", "latex"):
        table = comparing.with_measurement(table, measurements, args.axes)
    yield write(table)
    if (report.corpus or {}).get("by_context_length"):
        yield write(comparing.tabulate_contexts(report.corpus["by_context_length"]))


def notes_on(report: Report) -> list[str]:
    said = []
    num_files = sum("row" not in row and "error" not in row for row in report.texts)
    num_rows = 0 if report.joined else (report.corpus or {}).get("num_texts", 0) - num_files
    if num_rows > 0:
        said.append(f"Texts in rows of tables: {num_rows:,} (--format csv lists each).")
    if report.num_empty:
        said.append(f"Empty rows skipped: {report.num_empty:,}.")
    failed = [row for row in report.texts if "row" in row and "error" in row]
    said += [f"{row['name']}: {row['error']}" for row in failed[:MOST_ERRORS]]
    if len(failed) > MOST_ERRORS:
        said.append(f"{len(failed) - MOST_ERRORS:,} more rows could not be scored.")
    return said


# --- the texts themselves -------------------------------------------------------------------------


def print_texts(readings: Sequence[Reading]) -> None:
    from rich.console import Console
    from rich.text import Text

    from ..views.text import LABELS, most_surprising, odds

    console = Console(file=sys.stdout, width=tables.terminal_width(), highlight=False)
    in_colour = console.color_system is not None and not console.no_color
    with console.capture() as written:  # rich would exit on a closed pipe
        for reading in readings:
            if len(readings) > 1:
                console.print(Text(tables.printable(reading.name), "bold"))
            for line in coloured_lines(reading, in_colour):
                console.print(line, soft_wrap=not console.is_terminal)
            console.print()
        legend = (Text(f" {label} ", LEVELS[f"b{level}"]) for level, label in enumerate(LABELS))
        console.print(Text(" ").join(legend) if in_colour else Text(MARKED))
        console.print()
        words = most_surprising(readings, MOST_SURPRISING)
        if words:
            console.print(Text("Most surprising words", "bold"))
        for word in words:
            bits = "infinite" if math.isinf(word.nll) else f"{word.nll / math.log(2):.1f} bits"
            said = f"  {word.word}: {bits}, {odds(word.nll)}."
            if word.expected is not None:
                expected, nll = word.expected
                said += f" The model expected “{expected}” ({100 * math.exp(-nll):.0f} %)."
            console.print(Text(harmless(said)))
        console.print()
    to_stdout([written.get()])


def coloured_lines(reading: Reading, in_colour: bool) -> Iterator:
    """Yield the lines of a text for rich; a space before a word has no colour."""
    from rich.text import Text

    from ..views.text import piece_colour, text_segments

    segments, text = text_segments(reading)
    line = Text()
    for segment in segments:
        piece = text[segment.start : segment.end]
        level = piece_colour(reading.tokens["nll"], segment, piece) or "b0"
        word = piece.lstrip(" ") or piece
        line.append(piece[: len(piece) - len(word)])
        before, after = ("", "") if in_colour or not word.strip() else MARKS.get(level, ("", ""))
        for number, part in enumerate(word.split("\n")):
            if number:
                yield line
                line = Text()
            if part:
                marked = f"{before}{part}{after}" if part.strip() else part
                line.append(harmless(marked), LEVELS[level] if in_colour else "")
    yield line


def write_html(report: Report, args: argparse.Namespace) -> str:
    """Write the page with the coloured texts to --html; return a message about it."""
    from ..views import report as views_report
    from ..views.comparison import pair_of

    result, pairs = report.results[0], []
    readings = [replace(reading, result=result) for reading in report.shown]
    notes = notes_on(report)
    if report.has_more_texts:
        notes.append(f"The numbers cover all texts; the first {SHOWN:,} characters are shown.")
    if args.reference:
        [reference] = short_names([args.reference])
        names = [(reading.model, reference) for reading in readings]
        pairs = [pair_of(*of_text) for of_text in zip(readings, itertools.count(), names)]
    if args.compares:
        result = result | {"measurements": report.measurements}
    written = views_report.report(
        result=result,
        readings=[] if pairs else readings,
        pairs=pairs,
        citation=citing.cite(report.results, args),
        command=citing.command(args.argv),
        notes=notes,
    )
    write_pieces([written], args.html)
    return f"wrote {args.html}"
