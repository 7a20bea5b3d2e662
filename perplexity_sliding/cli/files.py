"""Files with texts: found, opened, and read as a text or as a table with one text per row.

Nothing slow is imported but for Parquet, so that a missing or broken file is reported at once.
"""

import csv
import glob
import gzip
import io
import json
import os
import re
import sys
import zlib
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE, BOM_UTF32_BE, BOM_UTF32_LE
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path

from .messages import command_name, list_some, say

# Formats of tables by the ending of the file.
TABLES = {
    ".csv": "csv",
    ".tsv": "csv",
    ".jsonl": "json",
    ".ndjson": "json",
    ".json": "json",
    ".parquet": "parquet",
}
TEXTS = (".txt", ".text")
SPREADSHEETS = (".xlsx", ".xls", ".xlsm", ".ods")
STANDARD_INPUT = "-"
# Files of a folder written by `save_to_disk` of the library datasets.
SAVED = ("dataset_dict.json", "dataset_info.json")
# Longer marks first: that of UTF-32 begins with that of UTF-16.
BYTE_ORDER_MARKS = {
    BOM_UTF8: "utf-8-sig",
    BOM_UTF32_LE: "utf-32",
    BOM_UTF32_BE: "utf-32",
    BOM_UTF16_LE: "utf-16",
    BOM_UTF16_BE: "utf-16",
}
GZIP_MAGIC = b"\x1f\x8b"
HEAD_BYTES = 4096
# Beginnings of files that are taken for texts by mistake.
KINDS = {
    rb"\s*%PDF-": "a PDF: extract its text first, with pdftotext for example",
    rb"PK\x03\x04": "a zip archive, such as a Word or Excel file: save a document as .txt, a table as "
    "CSV UTF-8, or unpack it",
    rb"\xd0\xcf\x11\xe0": "an old Office file: save a document as .txt, a table as CSV UTF-8",
    rb"\{\\rtf": "an RTF document: save it as .txt",
    rb"PAR1": "a Parquet table: give it a name that ends in .parquet",
}
DELIMITERS = ",;\t"
# Excel's first line, which names the delimiter.
SEP = re.compile(r"sep=(.)[\r\n]*", re.IGNORECASE)
BATCH_ROWS = 1000


# --- finding --------------------------------------------------------------------------------------


def list_files(names: list[str]) -> list[str]:
    """List the files of the names on the command line, in their order; "-" is standard input.

    Raises:
        ValueError: there is nothing to score.
        OSError: a file is missing or cannot be opened.
    """
    is_closed = sys.stdin is None or sys.stdin.closed
    if (is_closed and STANDARD_INPUT in names) or (not names and (is_closed or sys.stdin.isatty())):
        raise ValueError(
            f"There is nothing to score: pass a FILE, as in `{command_name()} samples/story.txt`, pipe "
            "text in, or pass --dataset. See --help."
        )
    files = [file for name in names or [STANDARD_INPUT] for file in find_files(name)]
    for file in files:
        table_format(file)  # refuses spreadsheets
    return files


def find_files(name: str) -> list[str]:
    if name == STANDARD_INPUT:
        return [name]
    if re.match(r"\w+://", name):
        raise ValueError(
            f"FILE must be a local file, got the address {name}. Download it first: curl -LO {name}."
        )
    if os.path.isdir(name):
        return list_folder(Path(name))
    if not os.path.exists(name) and glob.has_magic(name):
        found = sorted(glob.glob(name, recursive=True))
        files = [file for file in found if not os.path.isdir(file)]
        if not files:
            raise ValueError(f"No file matches {name}.")
        return files
    if not Path(name).is_fifo():  # a pipe can be opened only once
        open(name, "rb").close()
    return [name]


def list_folder(folder: Path) -> list[str]:
    """List the texts and tables in a folder and its subfolders, except for hidden ones.

    Raises:
        ValueError: the folder has no texts or tables.
    """
    if any((folder / name).is_file() for name in SAVED):
        raise ValueError(
            f"{folder} is a dataset written by save_to_disk: pass --dataset {folder}::train:text, with "
            "its own split and column."
        )

    inside = [
        path
        for path in folder.rglob("*")
        if not any(part.startswith(".") for part in path.relative_to(folder).parts)
    ]
    taken = sorted(str(p) for p in inside if p.is_file() and suffix(p.name) in (*TEXTS, *TABLES))
    # links to folders are not followed, because they could form a cycle
    others = {str(path) for path in inside if path.is_file() or path.is_symlink()} - {*taken}
    if not taken:
        raise ValueError(
            f"{folder} is a folder without {', '.join((*TEXTS, *TABLES))} files. Select other files "
            f"with a glob: '{folder}/*'."
        )
    if others:
        say(
            f"warning: skipped in {folder}, as neither texts nor tables by their endings, or links to "
            f"folders: {list_some(sorted(others))}."
        )
    return taken


def table_format(name: str) -> str | None:
    """Return the format of a table, csv, json or parquet, by its ending; None for a text.

    Raises:
        ValueError: it is a spreadsheet.
    """
    if suffix(name) in SPREADSHEETS:
        raise ValueError(f"{name} is a spreadsheet: save it as CSV UTF-8, and pass the .csv file.")
    return TABLES.get(suffix(name))


def suffix(name: str) -> str:
    """Return the ending of a file's name in lower case, without that of gzip."""
    return Path(name.lower().removesuffix(".gz")).suffix


# --- texts ----------------------------------------------------------------------------------------


def spoken(name: str) -> str:
    return "Standard input" if name == STANDARD_INPUT else name


@contextmanager
def opened_text(name: str, encoding: str | None) -> Iterator[io.TextIOWrapper]:
    """Open a file or standard input: decompressed and decoded, with unchanged line ends.

    Raises:
        ValueError: it is empty, broken, in another encoding, or known not to be a text.
    """
    is_pipe = name == STANDARD_INPUT
    with io.BytesIO(sys.stdin.buffer.read()) if is_pipe else open(name, "rb", 0) as raw:
        file = io.BufferedReader(raw)
        if file.peek(len(GZIP_MAGIC)).startswith(GZIP_MAGIC):
            file = io.BufferedReader(gzip.GzipFile(fileobj=file))
        try:
            head = file.peek(HEAD_BYTES)
            if not head:
                raise ValueError(f"{spoken(name)} is empty.")
            for beginning, kind in KINDS.items():
                if re.match(beginning, head):
                    raise ValueError(f"{spoken(name)} is {kind}.")
            marked = (of for mark, of in BYTE_ORDER_MARKS.items() if head.startswith(mark))
            encoding = encoding or next(marked, "utf-8")
            yield io.TextIOWrapper(file, encoding, newline="")
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise ValueError(f"{spoken(name)} is gzipped, but broken: {error}.") from None
        except (UnicodeError, LookupError) as error:
            reason = getattr(error, "reason", str(error))
            advice = ""
            if reason == "unexpected end of data":
                advice = " It may be truncated: download or write it again."
            elif encoding in ("utf-8", "utf-8-sig"):
                advice = " Pass its --encoding, such as cp1252."
            raise ValueError(
                f"{spoken(name)} is not {encoding.upper()} text: {reason}.{advice}"
            ) from None


def read_text(name: str, encoding: str | None) -> str:
    """Read a text with unchanged line ends; drop only a byte order mark."""
    with opened_text(name, encoding) as file:
        text = file.read().removeprefix("\ufeff")
    if "\0" in text:
        raise ValueError(
            f"{spoken(name)} contains NUL characters, like a binary file. If it is a text, pass its "
            "--encoding, such as utf-16-le."
        )
    return text


# --- tables ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Table:
    """A table with one text per row, read row by row any number of times.

    Attributes:
        columns: names of the columns.
        num_rows: number of rows that are not blank.
        rows: reads the given columns of all rows; missing values are None.
    """

    name: str
    columns: list[str]
    num_rows: int
    rows: Callable[[Sequence[str]], Iterator[dict]]


def open_table(name: str, encoding: str | None) -> Table:
    """Read a table once, so that a broken row is reported before anything is scored.

    Raises:
        ValueError: it is empty, broken, in another encoding, or not a table.
    """
    if table_format(name) == "parquet":
        table = open_parquet(name)
    else:
        read = read_csv if table_format(name) == "csv" else read_json
        columns, num_rows = {}, 0
        for row in read(name, encoding):
            columns |= row
            num_rows += 1

        def rows(wanted: Sequence[str]) -> Iterator[dict]:
            return ({column: row.get(column) for column in wanted} for row in read(name, encoding))

        table = Table(name, list(columns), num_rows, rows)
    if not table.num_rows:
        raise ValueError(f"{name} has no rows.")
    return table


def read_csv(name: str, encoding: str | None) -> Iterator[dict]:
    """Yield the rows of a CSV or TSV file that are not blank; all cells are strings.

    The delimiter is the one that Excel's first line names, or the one that cuts the header into most
    fields.
    """
    csv.field_size_limit(2**31 - 1)  # a cell may be a book
    with opened_text(name, encoding) as lines:
        first = next(lines).removeprefix("\ufeff")
        if named := SEP.fullmatch(first):
            delimiter, first = named[1], next(lines, "")
        elif suffix(name) == ".tsv":
            delimiter = "\t"
        else:
            cut = {mark: next(csv.reader([first], delimiter=mark)) for mark in DELIMITERS}
            delimiter = max(cut, key=lambda mark: len(cut[mark]))
        reader = csv.reader(chain([first], lines), delimiter=delimiter, strict=True)
        line = 0
        try:
            header = next(reader)
            if not header:
                raise ValueError(f"{name} must have the names of its columns in the first line.")
            if twice := [column for column in header if header.count(column) > 1]:
                raise ValueError(f"{name} has two columns {twice[0]!r}: rename one of them.")
            for record in reader:
                if len(record) > len(header):
                    raise ValueError(
                        f"{name} has {len(record)} fields in line {reader.line_num}, but "
                        f"{len(header)} columns. Quote texts that contain {delimiter!r}."
                    )
                line = reader.line_num
                if record:
                    yield dict(zip_longest(header, record))
        except csv.Error as error:
            raise ValueError(
                f"{name} could not be read as a table from line {line + 1} on: {error}. Quote texts "
                "that contain quotes, and double these."
            ) from None


def read_json(name: str, encoding: str | None) -> Iterator[dict]:
    """Yield the objects of a file line by line, or all at once if the first line is not JSON."""
    with opened_text(name, encoding) as file:
        lines = filter(str.strip, file)
        first = next(lines, "").removeprefix("\ufeff")
        try:
            json.loads(first)
        except json.JSONDecodeError:
            first, lines = first + "".join(lines), iter(())
        for number, line in enumerate(chain([first], lines), 1):
            try:
                value = json.loads(line)
            except json.JSONDecodeError as error:
                raise ValueError(
                    f"{name} could not be read as a table: object {number}: {error}."
                ) from None
            for row in value if isinstance(value, list) else [value]:
                if not isinstance(row, dict):
                    raise ValueError(
                        f'{name}: object {number} must be a JSON object such as {{"text": "…"}}, got a '
                        f"{type(row).__name__}."
                    )
                yield row


def open_parquet(name: str) -> Table:
    import pyarrow
    import pyarrow.parquet

    try:
        file = pyarrow.parquet.ParquetFile(name)
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(f"{name} could not be read as a table: {error}.") from None

    def rows(wanted: Sequence[str]) -> Iterator[dict]:
        for batch in file.iter_batches(BATCH_ROWS, columns=list(wanted)):
            yield from batch.to_pylist()

    return Table(name, file.schema_arrow.names, file.metadata.num_rows, rows)
