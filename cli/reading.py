"""The texts of the sources, read one after the other as they are asked for."""

import argparse
import csv
import glob
import gzip
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from .sources import STANDARD_INPUT, Source, builder_of, list_sources
from .suspicions import Suspicions

DATASET = re.compile(r"(.+?):([^:]*):([^:\[]+(?:\[[^\]]*\])?):([^:]+)")
GZIP_MAGIC = b"\x1f\x8b"
# The longer ones first: that of UTF-32 begins with that of UTF-16.
BYTE_ORDER_MARKS = {
    b"\xef\xbb\xbf": "utf-8-sig",
    b"\xff\xfe\x00\x00": "utf-32",
    b"\x00\x00\xfe\xff": "utf-32",
    b"\xff\xfe": "utf-16",
    b"\xfe\xff": "utf-16",
}


@dataclass(frozen=True)
class Text:
    """A text to score, or a file that could not be read.

    Attributes:
        name: what the output calls it: its file, or its row.
        text: what is scored.
        row: its number in a table or dataset, from 0; None for a file of its own.
        share: of all that is read in this run, as far as sizes of files and numbers of rows tell.
        context: what is read before it without being scored.
        carried: the other columns of its row.
        error: why it could not be read; None where it could.
    """

    name: str
    text: str
    row: int | None = None
    share: float = 0.0
    context: str | None = None
    carried: dict = field(default_factory=dict)
    error: str | None = None


def open_texts(args: argparse.Namespace) -> Iterator[Text]:
    """List the sources, which refuses what isn't there; return their texts, not read yet."""
    if args.dataset:
        match = DATASET.fullmatch(args.dataset)
        if match is None:
            raise ValueError(f"--dataset must be NAME:CONFIG:SPLIT:COLUMN, got {args.dataset!r}.")
        return watched(read_dataset(*match.groups(), args), args)
    sources = list_sources(args.files)
    return watched(read_sources(sources, args), args)


def watched(texts: Iterator[Text], args: argparse.Namespace) -> Iterator[Text]:
    """Look out for mistakes in the texts that go by."""
    suspicions = Suspicions(detokenizes=bool(args.detokenize))
    for text in texts:
        if text.error is None:
            suspicions.look_at(text.name, text.text, is_file=text.row is None)
            suspicions.look_at_join(text.name, text.context or "", text.text)
        yield text


def read_sources(sources: list[Source], args: argparse.Namespace) -> Iterator[Text]:
    """Read files; one of several that cannot be read becomes a text with an error."""
    total = sum(source.size for source in sources)
    for source in sources:
        share = source.size / total
        try:
            if source.builder:
                yield from read_table(source, args, share)
            else:
                yield Text(source.name, read_file(source, args.encoding), share=share)
        except (ValueError, OSError) as error:
            if len(sources) == 1:
                raise
            reason = error.strerror if isinstance(error, OSError) else str(error)
            yield Text(source.name, "", error=reason)


def read_file(source: Source, encoding: str | None) -> str:
    """Read a file as it is, line ends included; only a byte order mark is dropped."""
    data = read_bytes(source)
    mark = next((mark for mark in BYTE_ORDER_MARKS if data.startswith(mark)), None)
    if encoding is None:
        encoding = BYTE_ORDER_MARKS[mark] if mark else "utf-8"
    try:
        text = data.decode(encoding).removeprefix("\ufeff")
    except UnicodeError as error:
        place = f" at byte {error.start}" if isinstance(error, UnicodeDecodeError) else ""
        reason = getattr(error, "reason", str(error))
        hint = "" if encoding != "utf-8" else " Name its --encoding, such as latin-1."
        raise ValueError(
            f"{source.shown} is not {encoding.upper()} text: {reason}{place}.{hint}"
        ) from None
    if not text:
        raise ValueError(f"{source.shown} is empty.")
    return text


def read_bytes(source: Source) -> bytes:
    """Read a file or standard input, unpacked if it is gzipped."""
    if source.name == STANDARD_INPUT:
        data = sys.stdin.buffer.read()
    else:
        data = Path(source.name).read_bytes()
    if not data.startswith(GZIP_MAGIC):
        return data
    try:
        return gzip.decompress(data)
    except (EOFError, OSError) as error:
        raise ValueError(f"{source.shown} is gzipped, but broken: {error}.") from None


def read_table(source: Source, args: argparse.Namespace, share: float) -> Iterator[Text]:
    """Read a CSV, TSV, JSON lines or Parquet file, one text a row."""
    rows = load_table(source, args.encoding)
    column = choose_column(source.name, rows.column_names, args.text_column)
    return read_rows(rows, column, source.name, args, share)


def load_table(source: Source, encoding: str | None, split: str = "train"):
    """Load a table with `datasets`, which keeps it on the disk; CSV holds strings and no others."""
    import datasets

    datasets.disable_progress_bars()
    options: dict = {}
    if encoding and source.builder in ("csv", "json"):
        options["encoding"] = encoding
    if source.builder == "csv":
        header = read_header(source, encoding)
        strings = datasets.Features({name: datasets.Value("string") for name in header})
        # "None" and "nan" are words, not missing values.
        options |= {"delimiter": source.separated_by, "na_filter": False, "features": strings}
    try:
        return datasets.load_dataset(
            source.builder, data_files=glob.escape(source.name), split=split, **options
        )
    except (datasets.exceptions.DatasetsError, ValueError, OSError) as error:
        reason = error.__cause__ or error
        raise ValueError(f"{source.name} could not be read as a table: {reason}") from error


def read_header(source: Source, encoding: str | None) -> list[str]:
    """The names of the columns of a CSV or TSV file."""
    with open(source.name, "rb") as file:
        zipped = file.read(len(GZIP_MAGIC)) == GZIP_MAGIC
    opened = gzip.open if zipped else open
    try:
        with opened(source.name, "rt", encoding=encoding or "utf-8-sig", newline="") as lines:
            header = next(csv.reader(lines, delimiter=source.separated_by), [])
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{source.name} is not {(encoding or 'utf-8').upper()} text: {error.reason}. Name its "
            "--encoding, such as latin-1."
        ) from None
    if not header:
        raise ValueError(f"{source.name} is empty.")
    return header


def choose_column(name: str, columns: list[str], wanted: str | None) -> str:
    """The column with the texts: the one asked for, `text`, or the only one."""
    if wanted is not None:
        check_column("--text-column", name, columns, wanted)
        return wanted
    if "text" in columns:
        return "text"
    if len(columns) == 1:
        return columns[0]
    raise ValueError(
        f"{name} has no column 'text': name one of {', '.join(columns)} with --text-column."
    )


def check_column(option: str, name: str, columns: list[str], wanted: str | None) -> None:
    if wanted is not None and wanted not in columns:
        raise ValueError(
            f"{option} must name one of the columns {', '.join(columns)} of {name}, got {wanted!r}."
        )


def read_dataset(
    name: str, config: str, split: str, column: str, args: argparse.Namespace
) -> Iterator[Text]:
    """Read a column of a dataset row by row from the disk."""
    import datasets

    if args.hides_progress or not sys.stderr.isatty():
        datasets.disable_progress_bars()
    if Path(name).is_file():
        if builder_of(name) is None:
            raise ValueError(f"--dataset={name} must be a CSV, TSV, JSON lines or Parquet file.")
        rows = load_table(Source(name, builder_of(name)), args.encoding, split)
    else:
        try:
            rows = datasets.load_dataset(name, config or None, split=split)
        except (datasets.exceptions.DatasetsError, ValueError, OSError) as error:
            raise ValueError(f"--dataset={args.dataset} could not be loaded: {error}") from error
    check_column("--dataset", name, rows.column_names, column)
    if not len(rows):
        raise ValueError(f"--dataset={args.dataset} has no rows.")
    yield from read_rows(rows, column, None, args)


def read_rows(
    rows, column: str, name: str | None, args: argparse.Namespace, share: float = 1.0
) -> Iterator[Text]:
    """Yield the texts of a table, with its other columns where the output has room for them."""
    shown = name or args.dataset
    for option, wanted in (
        ("--id-column", args.id_column),
        ("--context-column", args.context_column),
    ):
        check_column(option, shown, rows.column_names, wanted)
    for needed in filter(None, (column, args.context_column)):
        if rows.features[needed].dtype not in ("string", "large_string"):
            raise ValueError(
                f"{shown} must have texts in the column {needed!r}, but it holds others "
                f"({rows.features[needed].dtype})."
            )
    wanted = {column, args.id_column, args.context_column} - {None}
    if not args.carries_columns:
        rows = rows.select_columns([name for name in rows.column_names if name in wanted])
    for number, row in enumerate(rows):
        row_name = f"row {number}" if name is None else f"{name} row {number}"
        yield Text(
            name=str(row[args.id_column]) if args.id_column else row_name,
            text=row.pop(column) or "",
            row=number,
            share=share / len(rows),
            context=row.pop(args.context_column) if args.context_column else None,
            carried=row,
        )
