"""Write a report: text, Markdown and LaTeX; JSON; and tidy rows as JSON lines, CSV, TSV and Parquet."""

import argparse
import csv
import json
import math
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from types import SimpleNamespace

from ..views import replaced
from . import citing, comparing, rows, tables
from .measuring import Report
from .messages import harmless, list_some
from .options import DATA_FORMATS, stored_options
from .spooling import Spool

# A text with this many times the bits per byte of most texts is of another kind.
FAR_ABOVE = 1.75
LOWER = "Lower is better."
BUNDLED = "Model: the bundled demo; choose another with --model NAME."
# Styles of the roles of text on a terminal.
STYLES = {"title": "bold", "number": "bold cyan", "error": "red", "better": "green", "worse": "red"}
STYLES["signature"] = "green"


def write(report: Report, args: argparse.Namespace) -> str | None:
    """Write the report to --output; return a message about it.

    Raises:
        OSError: it cannot be written; an existing file is unchanged.
    """
    if report.kept is not None:
        write_pieces(report.kept, args.output)
        return None
    if args.format == "parquet":
        write_parquet(tidy_rows(report, args), args.output)
    else:
        write_pieces(render(report, args), args.output)
    said = []
    if args.format in DATA_FORMATS and args.format != "json":
        said.append(plural(count_rows(report, args), "row"))
    if report.num_empty:
        said.append(f"{plural(report.num_empty, 'empty text')} skipped")
    if report.num_refused:
        said.append(f"{plural(report.num_refused, 'text')} could not be scored")
    return f"wrote {args.output}" + (f": {', '.join(said)}" if said else "")


def write_pieces(pieces: Iterable[str], path: str) -> None:
    with replaced(path) as place, open(place, "w", encoding="utf-8", newline="") as file:
        file.writelines(pieces)


def plural(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def printed(report: Report, args: argparse.Namespace) -> Iterator[str]:
    """Return the report for standard output, with colours and escaped controls on a terminal."""
    if not sys.stdout.isatty():
        return render(report, args)
    if args.format != "text" or args.cite:
        return map(harmless, render(report, args))
    return as_text(report, args, colours(), explains=True)


def render(report: Report, args: argparse.Namespace) -> Iterator[str]:
    """Return the report in the requested format, piece by piece, without colours."""
    if args.cite:
        return map(harmless, [citing.of_results(report.results, args, report.axes) + "\n"])
    if args.format == "json":
        return chain(json_pieces(as_json(report, args)), "\n")
    if args.format == "jsonl":
        return (f"{to_json(row)}\n" for row in tidy_rows(report, args)())
    if args.format in ("csv", "tsv"):
        return to_csv(tidy_rows(report, args), {"csv": ",", "tsv": "\t"}[args.format])
    if args.format == "text":
        return map(harmless, as_text(report, args))
    writer = {"markdown": tables.to_markdown, "latex": tables.to_latex}[args.format]
    return map(harmless, paragraphs(all_tables(report, args, writer)))


def paragraphs(texts: Iterable[str]) -> Iterator[str]:
    """Separate texts by empty lines."""
    between = ""
    for text in texts:
        yield between + text
        between = "\n\n"
    yield "\n"


# --- JSON and rows --------------------------------------------------------------------------------


def to_json(value) -> str:
    """Format JSON, with null for infinite and undefined numbers."""
    return json.dumps(finite(value), ensure_ascii=False, default=str)


def finite(value):
    """Replace infinite and undefined numbers by None."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


def json_pieces(value: object) -> Iterator[str]:
    """Yield JSON piece by piece, one row at a time if rows may exceed memory."""
    if isinstance(value, dict):
        items = ((f"{to_json(str(key))}: ", item) for key, item in value.items())
    elif isinstance(value, Spool):
        items = (("", item) for item in value)
    else:
        yield to_json(value)
        return
    begin, end = "{}" if isinstance(value, dict) else "[]"
    between = begin
    for key, item in items:
        yield between + key
        yield from json_pieces(item)
        between = ", "
    yield end if between != begin else begin + end


def as_json(report: Report, args: argparse.Namespace) -> dict:
    """Collect the metric's unchanged results and their cost."""
    files = [row for row in report.texts if "row" not in row]
    refused = [row for row in report.texts if "row" in row and "error" in row]
    parts: dict = {k: found for k, found in (("files", files), ("refused_rows", refused)) if found}
    if report.compared:
        # token scores may have been needed only for a plot
        parts["models" if report.compared == "models" else "measurements"] = [
            {key: value for key, value in row.items() if args.tokens or key != "token_scores"}
            for row in report.measurements
        ]
    else:
        parts["corpus"] = dict(report.corpus)
        if args.unit:
            scores = Spool()
            for _, columns in report.parts:
                scores.append(columns)
            parts["corpus"][f"{args.unit}_scores"] = scores
    options = report.options or stored_options(args)
    return parts | {"num_empty_texts": report.num_empty} | report.cost | {"options": options}


def tidy_rows(report: Report, args: argparse.Namespace) -> Callable[[], Iterator[dict]]:
    """Return a generator of one row per measurement, token or text, and one more for joined texts."""
    if args.unit:
        return lambda: chain.from_iterable(
            rows.of_parts(text, columns, args.unit) for text, columns in report.parts
        )
    if report.compared:
        return lambda: iter(rows.of_measurements(report.measurements, args.label is not None))
    named = {"label": args.label[0]} if args.label else {}
    more = [rows.flat({"name": "all together"} | report.corpus)] if has_row(report) else []
    taken: set[str] = set(named)  # in a row without an error too
    for row in chain(report.texts, more):
        taken |= row.keys()
    taken -= {"carried"}

    def texts() -> Iterator[dict]:
        for row in chain(report.texts, more):
            own = {key: value for key, value in row.items() if key != "carried"}
            yield rows.with_carried(
                {"name": row["name"]} | named | own, row.get("carried", {}), taken
            )

    return texts


def has_row(report: Report) -> bool:
    """Return whether all texts together have a row, in addition to those of single texts."""
    return report.joined or not report.texts


def count_rows(report: Report, args: argparse.Namespace) -> int:
    """Count the tidy rows; do not regenerate those of texts."""
    if args.unit or report.compared:
        return sum(1 for _ in tidy_rows(report, args)())
    return len(report.texts) + has_row(report)


def column_names(made: Callable[[], Iterator[dict]]) -> list[str]:
    """List the columns of all rows, in the order of their first appearance."""
    names: dict[str, None] = {}
    for row in made():
        names |= dict.fromkeys(row)
    return list(names)


def to_csv(made: Callable[[], Iterator[dict]], delimiter: str = ",") -> Iterator[str]:
    """Yield CSV or TSV with a header; lists become JSON, and None becomes empty."""
    names = column_names(made)
    # `writerow` returns what the `write` of its file does, and quotes the characters of its line end: a
    # token may be a carriage return, which readers take for the end of a row.
    writer = csv.writer(SimpleNamespace(write=str), delimiter=delimiter, lineterminator="\r\n")
    for cells in chain([names], ([row.get(name) for name in names] for row in made())):
        plain = [to_json(c) if isinstance(c, dict | list | tuple) else c for c in cells]
        yield writer.writerow(plain).removesuffix("\r\n") + "\n"


def write_parquet(made: Callable[[], Iterator[dict]], path: str) -> None:
    """Write Parquet; columns with values of different types become strings."""
    import pyarrow
    import pyarrow.parquet

    found, columns = list(made()), {}
    for name in column_names(made):
        values = [row.get(name) for row in found]
        try:
            columns[name] = pyarrow.array(values)
        # lists of words and numbers, integers beyond 64 bits
        except (pyarrow.ArrowException, OverflowError):
            texts = (v if v is None or isinstance(v, str) else to_json(v) for v in values)
            columns[name] = pyarrow.array(texts, pyarrow.string())
    with replaced(path) as place:
        pyarrow.parquet.write_table(pyarrow.table(columns), place)


# --- text -----------------------------------------------------------------------------------------


def colours() -> Callable[[str, str], str]:
    """Return a function that colours a text by its role, with the terminal's capabilities."""
    from rich.console import Console
    from rich.text import Text

    console = Console(file=sys.stdout, highlight=False)

    def paint(role: str, text: str) -> str:
        with console.capture() as written:
            styled = Text(harmless(text), "" if console.no_color else STYLES.get(role, ""))
            console.print(styled, end="", soft_wrap=True)
        return written.get()

    return paint


def as_text(
    report: Report,
    args: argparse.Namespace,
    paint: Callable[[str, str], str] = lambda _, text: text,
    explains: bool = False,
) -> Iterator[str]:
    """Yield tables, notes and the signature.

    Args:
        paint: colours a text by its role.
        explains: also explain perplexity, if the bundled demo model is used.
    """

    def write(what: tables.Table | str, title: str = "") -> str:
        body = paint("", what) if isinstance(what, str) else tables.lay_out(what, paint=paint)
        return f"{paint('title', title)}\n{body}" if title else body

    yield from paragraphs(all_tables(report, args, write))
    notes = notes_on(report)
    if report.corpus is not None and not args.unit:
        if args.takes_bundled_model and explains:
            notes.append(explanation(report.corpus))
        notes.append(f"{LOWER} {BUNDLED}" if args.takes_bundled_model else LOWER)
    for note in notes:
        for line in tables.wrapped(note, tables.terminal_width()):
            yield f"{paint('', line)}\n"
    yield f"\n{paint('signature', signature(report, args.verbose))}\n"


def all_tables(
    report: Report, args: argparse.Namespace, write: Callable[..., str]
) -> Iterator[str]:
    """Yield the tables: tokens or words of each text, texts or measurements, the curve of contexts.

    Args:
        write: formats a table and its title, if any.
    """
    for text, columns in report.parts if args.unit else ():
        of_text = list(rows.of_parts(text, columns, args.unit))
        if of_text:
            yield write(comparing.of_parts(of_text, args.unit), tables.printable(text.name))
    if (
        args.format == "text"
        and report.compared == "models"
        and args.reference
        and not args.models[1:]
    ):
        texts = [text.wording for text in report.scored]
        yield from map(write, comparing.of_comparison(report.results[0], texts))
    else:
        table = table_of(report, args)
        if args.format in ("markdown", "latex"):
            of_all = report.measurements or [report.corpus]
            table = comparing.with_measurement(table, of_all, report.axes)
        yield write(table)
    if (report.corpus or {}).get("by_context_length"):
        yield write(comparing.of_contexts(report.corpus["by_context_length"]))


def table_of(report: Report, args: argparse.Namespace) -> tables.Table:
    """Tabulate the texts or the measurements."""
    if args.reference:
        return comparing.of_models(report.measurements, report.reference)
    if report.compared or args.columns:
        found = report.measurements or [report.corpus]
        return comparing.of_measurements(found, report.axes, args.columns or ())
    return comparing.of_texts([row for row in report.texts if "row" not in row], report.corpus)


def explanation(corpus: dict) -> str:
    """Explain perplexity, window and stride, with the values of the run."""
    fields = tables.signature_fields(corpus)
    return (
        "Perplexity: the number of equally likely tokens that would leave the model as uncertain, on "
        f"average. The model reads windows of {fields['window']} tokens that move by a stride of "
        f"{fields['stride']}; each token is scored once."
    )


def notes_on(report: Report) -> list[str]:
    """Return the notes below the numbers."""
    said = []
    files = [row for row in report.texts if "row" not in row and "error" not in row]
    num_rows = 0 if report.joined else (report.corpus or {}).get("num_texts", 0) - len(files)
    if num_rows > 0:
        are = "is a row of a table" if num_rows == 1 else "are rows of tables"
        said.append(f"{num_rows:,} of the texts {are} (--format csv lists each).")
    said += far_above(files)
    if report.num_empty:
        rows_are = "row was" if report.num_empty == 1 else "rows were"
        where = " by protocols that score each text" if report.keeps_empty else ""
        said.append(f"{report.num_empty:,} empty {rows_are} skipped{where}.")
    failed = [row for row in report.texts if "row" in row and "error" in row]
    said += [f"{row['name']}: {row['error']}" for row in failed[:5]]
    if len(failed) > 5:
        said.append(f"{len(failed) - 5:,} more rows could not be scored.")
    return said


def far_above(files: list[dict]) -> list[str]:
    """Return a note on texts whose bits per byte show that the model does not know their kind."""
    if len(files) < 2:
        return []
    usual = statistics.median_low(map(comparing.bits_per_byte, files))
    strange = list_some(
        [
            f"{tables.printable(row['name'])} ({comparing.bits_per_byte(row):.2f})"
            for row in files
            if comparing.bits_per_byte(row) > FAR_ABOVE * usual
        ]
    )
    if not strange:
        return []
    return [
        f"{strange}: bits per byte far above the others' {usual:.2f}. The model does not know this kind "
        "of text (another language, a list, code?), so the total means little."
    ]


def signature(report: Report, long: bool) -> str:
    """Return the signature; for a comparison, the short ones or the shared part of the long ones."""
    if report.corpus is not None:
        return report.corpus["signature" if long else "signature_short"]
    if not long:
        return "\n".join(dict.fromkeys(row["signature_short"] for row in report.results))
    fields = [tables.signature_fields(row) for row in report.results]
    shared = (name for name in fields[0] if len({of_row.get(name) for of_row in fields}) == 1)
    return "|".join(f"{name}:{fields[0][name]}" for name in shared)
