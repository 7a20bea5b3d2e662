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

from .sources import STANDARD_INPUT, TABLES, Source, builder_of, list_sources, suffix
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
    check_output(args.output, sources)
    if not any(source.builder for source in sources):
        check_no_columns(args, sources[0].shown)
    return watched(read_sources(sources, args), args)


def check_output(output: str | None, sources: list[Source]) -> None:
    """Refuse to write over what is read."""
    names = [source.name for source in sources if source.name != STANDARD_INPUT]
    if output and Path(output).exists() and any(Path(output).samefile(name) for name in names):
        raise ValueError(
            f"--output must not be one of the texts, got {output!r}. Name a file that lies elsewhere."
        )


def check_no_columns(args: argparse.Namespace, name: str) -> None:
    """Refuse the names of columns where no table is read."""
    for option in ("text_column", "context_column", "id_column"):
        if getattr(args, option):
            raise ValueError(
                f"--{option.replace('_', '-')} must go with a table, but {name} is read as a text: "
                f"its name must end in {', '.join(TABLES)}."
            )


def watched(texts: Iterator[Text], args: argparse.Namespace) -> Iterator[Text]:
    """Look out for mistakes in the texts that go by."""
    suspicions = Suspicions(bool(args.detokenize), args.context_separator)
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
    encoding = encoding or encoding_of(data)
    try:
        text = data.decode(encoding).removeprefix("\ufeff")
    except UnicodeError as error:
        place = f" at byte {error.start}" if isinstance(error, UnicodeDecodeError) else ""
        raise ValueError(wrong_encoding(source, encoding, error, place)) from None
    if not text:
        raise ValueError(f"{source.shown} is empty.")
    return text


def wrong_encoding(source: Source, encoding: str, error: UnicodeError, place: str = "") -> str:
    reason = getattr(error, "reason", str(error))
    hint = "" if encoding != "utf-8" else " Name its --encoding, such as latin-1."
    return f"{source.shown} is not {encoding.upper()} text: {reason}{place}.{hint}"


def encoding_of(data: bytes) -> str:
    """The encoding that a byte order mark at the head of a file names; without one, UTF-8."""
    marks = (name for mark, name in BYTE_ORDER_MARKS.items() if data.startswith(mark))
    return next(marks, "utf-8")


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
    if not read_head(source):
        raise ValueError(f"{source.name} is empty.")
    options = table_options(source, args.encoding)
    if "column_names" in options:  # known before the imports
        choose_columns(source.name, options["column_names"], args)
    rows = load_table(source, options)
    column = choose_columns(source.name, rows.column_names, args)
    if not len(rows):
        raise ValueError(f"{source.name} has no rows.")
    yield from read_rows(rows, column, source.name, args, share)


def table_options(source: Source, encoding: str | None) -> dict:
    """What `datasets` must be told to read a table."""
    if source.builder == "csv":
        return csv_options(source, encoding)
    if source.builder == "json":
        return {"encoding": encoding or encoding_of(read_head(source))}
    return {}


def load_table(source: Source, options: dict, split: str = "train"):
    """Load a table with `datasets`, which keeps it on the disk; CSV holds strings and no others."""
    import datasets

    datasets.disable_progress_bars()
    if "column_names" in options:
        strings = {name: datasets.Value("string") for name in options["column_names"]}
        options = options | {"features": datasets.Features(strings)}
    try:
        return datasets.load_dataset(
            source.builder, data_files=glob.escape(source.name), split=split, **options
        )
    except (datasets.exceptions.DatasetsError, ValueError, OSError) as error:
        reason = error.__cause__ or error
        raise ValueError(f"{source.name} could not be read as a table: {reason}") from error


def csv_options(source: Source, encoding: str | None) -> dict:
    """How a CSV or TSV file is written.

    Raises:
        ValueError: it is empty, in another encoding, or names two columns alike; or a row has more
            fields than there are columns, which pandas may shift by one without a word.
    """
    encoding = encoding or encoding_of(read_head(source))
    csv.field_size_limit(2**31 - 1)  # a cell may be a book
    try:
        with open_unpacked(source, "rt", encoding=encoding, newline="") as lines:
            delimiter = "\t" if suffix(source.name) == ".tsv" else delimiter_of(lines.readline())
            lines.seek(0)
            rows = csv.reader(lines, delimiter=delimiter)
            header = [name.removeprefix("\ufeff") for name in next(rows, [])]
            check_header(source.name, header)
            if not check_rows(source.name, rows, len(header), delimiter):
                raise ValueError(f"{source.name} has no rows.")
    except UnicodeError as error:
        raise ValueError(wrong_encoding(source, encoding, error)) from None
    except (EOFError, csv.Error) as error:
        raise ValueError(f"{source.name} could not be read as a table: {error}.") from None
    return {
        "encoding": encoding,
        "delimiter": delimiter,
        "column_names": header,
        "header": 0,  # the names stand in the first row
        "na_filter": False,  # "None" and "nan" are words, not missing values
    }


def delimiter_of(header: str) -> str:
    """What stands between the names of columns; semicolons where the comma is the decimal sign."""
    return next((mark for mark in (",", ";", "\t") if mark in header), ",")


def check_header(name: str, header: list[str]) -> None:
    if not header:
        raise ValueError(f"{name} must name its columns in the first line.")
    twice = [column for column in header if header.count(column) > 1]
    if twice:
        raise ValueError(f"{name} has two columns {twice[0]!r}: give one of them another name.")


def check_rows(name: str, rows, num_columns: int, delimiter: str) -> int:
    """Count the rows; refuse one that has more fields than there are columns.

    Args:
        rows: a `csv.reader`, which knows the line that it has come to.
    """
    number = 0
    for row in rows:
        number += bool(row)
        if len(row) > num_columns:
            raise ValueError(
                f"{name} has {len(row)} fields in line {rows.line_num}, but {num_columns} columns. "
                f"Put texts with {delimiter!r} in them in quotes."
            )
    return number


def open_unpacked(source: Source, mode: str, **settings):
    """Open a file, unpacked if it is gzipped."""
    with open(source.name, "rb") as file:
        zipped = file.read(len(GZIP_MAGIC)) == GZIP_MAGIC
    return (gzip.open if zipped else open)(source.name, mode, **settings)


def read_head(source: Source) -> bytes:
    """The first bytes of a file, which may hold a byte order mark."""
    with open_unpacked(source, "rb") as file:
        return file.read(4)


def choose_columns(name: str, columns: list[str], args: argparse.Namespace) -> str:
    """The column with the texts; those of names and contexts are there too."""
    column = choose_column(name, columns, args.text_column)
    check_other_columns(name, columns, column, args)
    return column


def check_other_columns(
    name: str, columns: list[str], column: str, args: argparse.Namespace
) -> None:
    check_column("--id-column", name, columns, args.id_column)
    check_column("--context-column", name, columns, args.context_column)
    if column == args.context_column:
        raise ValueError(
            f"--context-column must be another column than that of the texts, got {column!r}."
        )


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
        source = Source(name, builder_of(name))
        rows = load_table(source, table_options(source, args.encoding), split)
    else:
        try:
            rows = datasets.load_dataset(name, config or None, split=split)
        except (datasets.exceptions.DatasetsError, ValueError, OSError) as error:
            raise ValueError(f"--dataset={args.dataset} could not be loaded: {error}") from error
    check_column("--dataset", name, rows.column_names, column)
    check_other_columns(name, rows.column_names, column, args)
    if not len(rows):
        raise ValueError(f"--dataset={args.dataset} has no rows.")
    yield from read_rows(rows, column, None, args)


def read_rows(
    rows, column: str, name: str | None, args: argparse.Namespace, share: float = 1.0
) -> Iterator[Text]:
    """Yield the texts of a table, with its other columns where the output has room for them."""
    shown = name or args.dataset
    for needed in filter(None, (column, args.context_column)):
        kind = getattr(rows.features[needed], "dtype", "lists")
        if kind not in ("string", "large_string"):
            raise ValueError(
                f"{shown} must have texts in the column {needed!r}, but it holds others ({kind})."
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
