"""Write a report: text, Markdown and LaTeX; JSON; and tidy rows as JSON lines, CSV, TSV and Parquet."""

import argparse
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import chain

from ..views import replaced
from . import citing, comparing, rows, tables
from .measuring import Report
from .messages import harmless, list_some
from .options import TIDY, stored_options

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
        rows.write_parquet(tidy_rows(report, args), args.output)
    else:
        write_pieces(render(report, args), args.output)
    said = []
    if args.format in TIDY:
        said.append(plural(sum(1 for _ in tidy_rows(report, args)()), "row"))
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
        return chain(rows.json_pieces(as_json(report, args)), "\n")
    if args.format == "jsonl":
        return (f"{rows.to_json(row)}\n" for row in tidy_rows(report, args)())
    if args.format in ("csv", "tsv"):
        return rows.to_csv(tidy_rows(report, args), {"csv": ",", "tsv": "\t"}[args.format])
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


# --- data -----------------------------------------------------------------------------------------


def as_json(report: Report, args: argparse.Namespace) -> dict:
    """Collect the metric's unchanged results and their cost."""
    parts: dict = {
        "files": [row for row in report.texts if "row" not in row],
        "refused_rows": [row for row in report.texts if "row" in row and "error" in row],
    }
    parts = {name: found for name, found in parts.items() if found}
    if report.compared:
        # token scores may have been needed only for a plot
        parts["models" if report.compared == "models" else "measurements"] = [
            {key: value for key, value in row.items() if args.tokens or key != "token_scores"}
            for row in report.measurements
        ]
    else:
        parts["corpus"] = dict(report.corpus)
        if args.unit:
            parts["corpus"][f"{args.unit}_scores"] = scores = rows.Spool()
            for _, columns in report.parts:
                scores.append(columns)
    options = report.options or stored_options(args)
    return parts | {"num_empty_texts": report.num_empty} | report.cost | {"options": options}


def tidy_rows(report: Report, args: argparse.Namespace) -> Callable[[], Iterator[dict]]:
    """Return a generator of one row per measurement, token or text, and one more for joined texts."""
    if args.unit:
        return lambda: chain.from_iterable(
            rows.rows_of_parts(text, columns, args.unit) for text, columns in report.parts
        )
    if report.compared:
        found = rows.rows_of_measurements(report.measurements, args.label is not None)
        return lambda: iter(found)
    has_row = report.joined or not report.texts
    more = [rows.flat({"name": "all together"} | report.corpus)] if has_row else []
    return rows.rows_of_texts(
        lambda: chain(report.texts, more), args.label[0] if args.label else None
    )


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
            fields = tables.signature_fields(report.corpus)
            notes.append(
                "Perplexity: the number of equally likely tokens that would leave the model as "
                f"uncertain, on average. The model reads windows of {fields['window']} tokens that "
                f"move by a stride of {fields['stride']}; each token is scored once."
            )
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
        of_text = list(rows.rows_of_parts(text, columns, args.unit))
        if of_text:
            yield write(comparing.tabulate_parts(of_text, args.unit), tables.printable(text.name))
    is_one_model = report.compared == "models" and args.reference and not args.models[1:]
    measurements = report.measurements or [report.corpus]
    if args.format == "text" and is_one_model:
        texts = [text.wording for text in report.scored]
        yield from map(write, comparing.report_comparison(report.results[0], texts))
    else:
        if args.reference:
            table = comparing.tabulate_models(measurements, report.reference)
        elif report.compared or args.columns:
            table = comparing.tabulate_measurements(measurements, report.axes, args.columns or ())
        else:
            files = [row for row in report.texts if "row" not in row]
            table = comparing.tabulate_texts(files, report.corpus)
        if args.format in ("markdown", "latex"):
            table = comparing.with_measurement(table, measurements, report.axes)
        yield write(table)
    if (report.corpus or {}).get("by_context_length"):
        yield write(comparing.tabulate_contexts(report.corpus["by_context_length"]))


def notes_on(report: Report) -> list[str]:
    """Return the notes below the numbers."""
    said = []
    files = [row for row in report.texts if "row" not in row and "error" not in row]
    num_rows = 0 if report.joined else (report.corpus or {}).get("num_texts", 0) - len(files)
    if num_rows > 0:
        are = "is a row of a table" if num_rows == 1 else "are rows of tables"
        said.append(f"{num_rows:,} of the texts {are} (--format csv lists each).")
    if len(files) > 1:
        usual = statistics.median_low(map(comparing.bits_per_byte, files))
        far_above = [
            f"{tables.printable(row['name'])} ({comparing.bits_per_byte(row):.2f})"
            for row in files
            if comparing.bits_per_byte(row) > FAR_ABOVE * usual
        ]
        if far_above:
            said.append(
                f"{list_some(far_above)}: bits per byte far above the others' {usual:.2f}. The model "
                "does not know this kind of text (another language, a list, code?), so the total means "
                "little."
            )
    if report.num_empty:
        rows_are = "row was" if report.num_empty == 1 else "rows were"
        where = " by protocols that score each text" if report.keeps_empty else ""
        said.append(f"{report.num_empty:,} empty {rows_are} skipped{where}.")
    failed = [row for row in report.texts if "row" in row and "error" in row]
    said += [f"{row['name']}: {row['error']}" for row in failed[:5]]
    if len(failed) > 5:
        said.append(f"{len(failed) - 5:,} more rows could not be scored.")
    return said


def signature(report: Report, long: bool) -> str:
    """Return the signature; for a comparison, the short ones or the shared part of the long ones."""
    if report.corpus is not None:
        return report.corpus["signature" if long else "signature_short"]
    if not long:
        return "\n".join(dict.fromkeys(row["signature_short"] for row in report.results))
    fields = [tables.signature_fields(row) for row in report.results]
    shared = (name for name in fields[0] if len({of_row.get(name) for of_row in fields}) == 1)
    return "|".join(f"{name}:{fields[0][name]}" for name in shared)
