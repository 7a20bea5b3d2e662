"""Write a report: its rows and its format."""

import argparse
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import chain

from . import citing, comparison_report, formats, grids, papers, rows, tables
from .measuring import Report
from .messages import harmless, named
from .options import DATA_FORMATS, stored_options
from .reading import ReadText
from .spooling import Rows

# A text with this many times the bits per byte of most texts is of another kind.
FAR_ABOVE = 1.75
LOWER = "Lower is better."
BUNDLED = "Model: the bundled demo; choose another with --model NAME."
# Tables after that of the texts, by the key of the result.
CURVES = {"by_context_length": tables.of_contexts, "by_position": tables.of_positions}


def write(report: Report, args: argparse.Namespace, metric) -> str | None:
    """Write the report to --output; return a message about it.

    Raises:
        OSError: it cannot be written; an existing file is unchanged.
    """
    if report.kept is not None:
        formats.write(report.kept, args.output)
        return None
    if args.format == "parquet":
        formats.write_parquet(tidy_rows(report, args), args.output)
    else:
        formats.write(render(report, args, metric), args.output)
    return what_was_written(report, args)


def printed(report: Report, args: argparse.Namespace, metric) -> Iterator[str]:
    """Return the report for standard output, with colours and escaped controls on a terminal."""
    if not sys.stdout.isatty():
        return render(report, args, metric)
    if args.format != "text" or args.cite:
        return map(harmless, render(report, args, metric))
    from .terminal import Terminal

    return as_text(report, args, Terminal())


def what_was_written(report: Report, args: argparse.Namespace) -> str:
    """Return a message with the file, its number of rows, and the omitted texts."""
    said = [f"wrote {args.output}"]
    if args.format in DATA_FORMATS and args.format != "json":
        said.append(plural(count_rows(report, args), "row"))
    if report.num_empty:
        said.append(f"{plural(report.num_empty, 'empty text')} skipped")
    if report.num_refused:
        said.append(f"{plural(report.num_refused, 'text')} could not be scored")
    return ": ".join([said[0], ", ".join(said[1:])]) if said[1:] else said[0]


def plural(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def render(report: Report, args: argparse.Namespace, metric) -> Iterator[str]:
    """Return the report in the requested format, piece by piece, without colours."""
    writers = {
        "json": lambda: chain(formats.json_pieces(as_json(report, args)), "\n"),
        "jsonl": lambda: (f"{formats.to_json(row)}\n" for row in tidy_rows(report, args)),
        "csv": lambda: formats.to_csv(tidy_rows(report, args)),
        "tsv": lambda: formats.to_csv(tidy_rows(report, args), "\t"),
        "markdown": lambda: paragraphs(all_tables(report, args, papers.to_markdown)),
        "latex": lambda: paragraphs(all_tables(report, args, papers.to_latex)),
        "text": lambda: as_text(report, args, Plain()),
    }
    if args.cite:
        return map(harmless, [citing.of_results(report.results, args, metric, report.axes) + "\n"])
    pieces = writers[args.format]()
    return pieces if args.format in DATA_FORMATS else map(harmless, pieces)


def paragraphs(texts: Iterable[str]) -> Iterator[str]:
    """Separate texts by empty lines."""
    between = ""
    for text in texts:
        yield between + text
        between = "\n\n"
    yield "\n"


def without_tokens(row: dict, args: argparse.Namespace) -> dict:
    """Remove token scores that were needed only for a plot."""
    return {key: value for key, value in row.items() if args.tokens or key != "token_scores"}


def as_json(report: Report, args: argparse.Namespace) -> dict:
    """Collect the metric's unchanged results and their cost."""
    files = [row for row in report.texts if "row" not in row]
    refused = [row for row in report.texts if is_refused_row(row)]
    parts = {key: texts for key, texts in (("files", files), ("refused_rows", refused)) if texts}
    if report.compared:
        key = "models" if report.compared == "models" else "measurements"
        parts[key] = [without_tokens(row, args) for row in report.measurements]
    else:
        scores = {f"{args.unit}_scores": Rows(lambda: (columns for _, columns in report.parts))}
        parts["corpus"] = report.corpus | (scores if args.unit else {})
    options = report.options or stored_options(args)
    return parts | {"num_empty_texts": report.num_empty} | report.cost | {"options": options}


def is_refused_row(row: dict) -> bool:
    return "row" in row and "error" in row


def tidy_rows(report: Report, args: argparse.Namespace) -> Iterable[dict]:
    """Return one row per measurement, token or text, and one more for joined texts."""
    if args.unit:
        return Rows(
            lambda: chain.from_iterable(
                rows_of_text(text, columns, args) for text, columns in report.parts
            )
        )
    if report.compared:
        return rows.of_measurements(report.measurements, args.label is not None)
    more = [rows.flat({"name": "all together"} | report.corpus)] if has_row(report) else []
    return rows.of_texts(Rows(lambda: chain(report.texts, more)))


def has_row(report: Report) -> bool:
    """Return whether all texts together have a row, in addition to those of single texts."""
    return report.joined or not report.texts


def count_rows(report: Report, args: argparse.Namespace) -> int:
    """Count the tidy rows; do not regenerate those of texts."""
    if args.unit or report.compared:
        return sum(1 for _ in tidy_rows(report, args))
    return len(report.texts) + has_row(report)


def rows_of_text(text: ReadText, columns: dict, args: argparse.Namespace) -> Iterator[dict]:
    """Make one row of a token or word, with the other columns of its text's row."""
    made = rows.of_parts(text, columns, args.unit, args.lags or 1)
    return (rows.of_part(row, text.carried, row) for row in made)


def all_tables(
    report: Report, args: argparse.Namespace, write: Callable[..., str]
) -> Iterator[str]:
    """Yield the tables: tokens or words of each text, texts or measurements, curves.

    Args:
        write: formats a table and its title, if any.
    """
    if args.unit:
        table_of_parts = {"token": tables.of_tokens, "word": tables.of_words}[args.unit]
        for text, columns in report.parts:
            of_text = list(rows_of_text(text, columns, args))
            if of_text:
                yield write(table_of_parts(of_text), tables.printable(text.name))
    if args.format == "text" and report.compared == "models" and len(report.measurements) == 1:
        texts = [text.wording for text in report.scored]
        yield from map(write, comparison_report.of_comparison(report.results[0], texts))
    else:
        table = table_of(report, args)
        if args.format in ("markdown", "latex"):
            of_all = report.measurements or [report.corpus]
            table = papers.with_measurement(table, of_all, report.axes)
        yield write(table)
    if args.format != "text":  # which has notes of its own
        yield from map(write, notes_on_key_tokens(report))
    corpus = report.corpus or {}
    for key, of_curve in CURVES.items():
        if corpus.get(key):
            yield write(of_curve(corpus[key]))


def table_of(report: Report, args: argparse.Namespace) -> tables.Table:
    """Tabulate the texts or the measurements."""
    if report.compared == "grid" or args.columns:
        return grids.of_grid(
            report.measurements or [report.corpus], report.axes, args.columns or ()
        )
    if report.compared == "models":
        return comparison_report.of_models(report.measurements, report.reference)
    if report.compared:
        return tables.of_measurements(report.measurements)
    return tables.of_texts([row for row in report.texts if "row" not in row], report.corpus)


class Plain:
    """Formats the pieces of a report for pipes and files."""

    explains = False
    table = staticmethod(tables.with_title)
    signature = staticmethod(str)

    @staticmethod
    def note(text: str) -> str:
        return "\n".join(tables.lines_of(text))


def as_text(report: Report, args: argparse.Namespace, look) -> Iterator[str]:
    """Yield tables, notes and the signature.

    Args:
        look: formats tables, notes and signatures: `Plain` or `Terminal`.
    """
    yield from paragraphs(all_tables(report, args, look.table))
    for note in [*notes_on(report), *guide(report, args, look.explains)]:
        yield f"{look.note(note)}\n"
    yield f"\n{look.signature(signature(report, args.verbose))}\n"


def guide(report: Report, args: argparse.Namespace, explains: bool) -> list[str]:
    """Return notes for first-time readers of the table.

    Args:
        explains: also explain perplexity, if the bundled demo model is used.
    """
    if report.corpus is None or args.unit:
        return []
    if not args.takes_bundled_model:
        return [LOWER]
    what = [explanation(report.corpus)] if explains else []
    return [*what, f"{LOWER} {BUNDLED}"]


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
    said = notes_on_key_tokens(report)
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
    failed = [row for row in report.texts if is_refused_row(row)]
    said += [f"{row['name']}: {row['error']}" for row in failed[:5]]
    if len(failed) > 5:
        said.append(f"{len(failed) - 5:,} more rows could not be scored.")
    return said


def notes_on_key_tokens(report: Report) -> list[str]:
    """Return the LongPPL of each model."""
    said = {result.get("name"): tables.of_key_tokens(result) for result in report.results}
    return [
        f"{name}: {note}" if len(said) > 1 else note
        for name, note in said.items()
        if note is not None
    ]


def far_above(files: list[dict]) -> list[str]:
    """Return a note on texts whose bits per byte show that the model does not know their kind."""
    if len(files) < 2:
        return []
    usual = statistics.median_low(map(tables.bits_per_byte, files))
    strange = [row for row in files if tables.bits_per_byte(row) > FAR_ABOVE * usual]
    if not strange:
        return []
    these = named(
        [f"{tables.printable(row['name'])} ({tables.bits_per_byte(row):.2f})" for row in strange]
    )
    return [
        f"{these}: bits per byte far above the others' {usual:.2f}. The model does not know this kind "
        "of text (another language, a list, code?), so the total means little."
    ]


def signature(report: Report, long: bool) -> str:
    """Return the signature; for a comparison, the short ones or the shared part of the long ones."""
    if report.corpus is not None:
        return report.corpus["signature" if long else "signature_short"]
    if long:
        return tables.common_signature(report.measurements)
    return "\n".join(dict.fromkeys(row["signature_short"] for row in report.results))
