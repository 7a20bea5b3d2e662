"""Show a report: which rows there are, and in which format they are written."""

import argparse
import sys
from collections.abc import Callable

from . import citing, comparison_report, formats, rows, tables
from .measuring import Report
from .messages import harmless
from .options import TIDY

# Formats that other programs read: text in them is kept as it is.
DATA = ("json", *TIDY)
# Tables below that of the texts, by the key of the result.
CURVES = {"by_context_length": tables.of_contexts, "by_position": tables.of_positions}


def show(report: Report, args: argparse.Namespace, metric) -> None:
    """Print the report, or write it to --output."""
    if args.format == "parquet":
        formats.write_parquet(tidy_rows(report, args), args.output)
        return
    text = render(report, args, metric)
    if args.format not in DATA:
        text = harmless(text)
    if args.output is not None:
        formats.write(text, args.output)
    elif sys.stdout is not None:
        sys.stdout.write(harmless(text) if sys.stdout.isatty() else text)
        sys.stdout.flush()


def render(report: Report, args: argparse.Namespace, metric) -> str:
    """The report in the format that was asked for."""
    writers = {
        "json": lambda: formats.to_json(as_json(report, args)) + "\n",
        "jsonl": lambda: formats.to_jsonl(tidy_rows(report, args)),
        "csv": lambda: formats.to_csv(tidy_rows(report, args)),
        "tsv": lambda: formats.to_csv(tidy_rows(report, args), "\t"),
        "markdown": lambda: "\n\n".join(all_tables(report, args, tables.to_markdown)) + "\n",
        "latex": lambda: "\n\n".join(all_tables(report, args, tables.to_latex)) + "\n",
        "text": lambda: as_text(report, args, metric),
    }
    return writers[args.format]()


def without_tokens(row: dict, args: argparse.Namespace) -> dict:
    """A result without the token scores that only a plot needed."""
    return {key: value for key, value in row.items() if args.tokens or key != "token_scores"}


def as_json(report: Report, args: argparse.Namespace) -> dict:
    """The metric's results as they are, and what they cost."""
    files = [row for row in report.texts if "row" not in row]
    refused = [row for row in report.texts if "row" in row and "error" in row]
    parts = {key: texts for key, texts in (("files", files), ("refused_rows", refused)) if texts}
    if report.compared:
        key = "models" if report.compared == "models" else "measurements"
        parts[key] = [without_tokens(row, args) for row in report.measurements]
    else:
        parts["corpus"] = report.corpus
    return parts | {"num_empty_texts": report.num_empty} | report.cost


def tidy_rows(report: Report, args: argparse.Namespace) -> list[dict]:
    """One row a measurement, a token, or a text; texts that were joined are one more."""
    if args.unit:
        return part_rows(report, args.unit)
    if report.compared:
        return rows.of_measurements(report.measurements)
    joined = [{"name": "all together"} | report.corpus]
    return rows.of_texts(report.texts + (joined if report.joined or not report.texts else []))


def part_rows(report: Report, unit: str) -> list[dict]:
    """One row a token or word, with the other columns of its text's row."""
    parts = zip(report.scored, report.results[0][f"{unit}_scores"])
    return [
        rows.of_part(row, text.carried, row)
        for text, columns in parts
        for row in rows.of_parts(text, columns, unit)
    ]


def all_tables(report: Report, args: argparse.Namespace, write: Callable[..., str]) -> list[str]:
    """The tokens or words of each text; the texts or what is compared; curves.

    Args:
        write: makes text of a table and, where it has one, its title.
    """
    parts = []
    if args.unit:
        table_of_parts = {"token": tables.of_tokens, "word": tables.of_words}[args.unit]
        parts = [
            write(table_of_parts(of_text), tables.printable(name))
            for name, of_text in tables.by_text(part_rows(report, args.unit))
        ]
    corpus = report.corpus or {}
    curves = [write(of_curve(corpus[key])) for key, of_curve in CURVES.items() if corpus.get(key)]
    return [*parts, write(table_of(report)), *curves]


def table_of(report: Report) -> tables.Table:
    if report.compared == "models":
        return comparison_report.of_models(report.measurements, report.reference)
    if report.compared:
        return tables.of_measurements(report.measurements)
    return tables.of_texts([row for row in report.texts if "row" not in row], report.corpus)


def as_text(report: Report, args: argparse.Namespace, metric) -> str:
    """Tables, what was left out, and the signature; with --cite the sentence instead."""
    if args.cite:
        return citing.of_results(report.results, args, metric) + "\n"
    parts = all_tables(report, args, tables.with_title)
    if report.compared == "models" and len(report.measurements) == 1:
        texts = [text.wording for text in report.scored]
        parts[-1] = comparison_report.of_comparison(report.results[0], texts)
    notes = "".join(f"{note}\n" for note in notes_on(report))
    return "\n\n".join(parts) + f"\n{notes}\n{signature(report, args.verbose)}\n"


def notes_on(report: Report) -> list[str]:
    """What a reader of the numbers must know beside them."""
    said = []
    if (report.corpus or {}).get("longppl") is not None:
        value, number = report.corpus["longppl"], report.corpus["num_key_tokens"]
        said.append(f"LongPPL: {value:.4f} over {number:,} key tokens.")
    files = [row for row in report.texts if "row" not in row and "error" not in row]
    num_rows = (
        0 if report.joined else len((report.corpus or {}).get("perplexities", ())) - len(files)
    )
    if num_rows > 0:
        said.append(f"{num_rows:,} of the texts are rows of tables (--format csv has each).")
    if report.num_empty:
        rows_are = "row was" if report.num_empty == 1 else "rows were"
        said.append(f"{report.num_empty:,} empty {rows_are} left out.")
    failed = [row for row in report.texts if "error" in row and "row" in row]
    said += [f"{row['name']}: {row['error']}" for row in failed[:5]]
    if len(failed) > 5:
        said.append(f"{len(failed) - 5:,} more rows could not be scored.")
    return said


def signature(report: Report, long: bool) -> str:
    """The signature; of a comparison the short ones, or the part of the long ones that is shared."""
    if report.corpus is not None:
        return report.corpus["signature" if long else "signature_short"]
    if long:
        return tables.common_signature(report.measurements)
    return "\n".join(row["signature_short"] for row in report.results)
