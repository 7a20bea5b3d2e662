"""Where texts come from: files, folders, globs and standard input, opened as text.

This module imports nothing slow, so that a missing file is reported at once.
"""

import codecs
import glob
import gzip
import io
import os
import re
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

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
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
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


@dataclass(frozen=True)
class Source:
    """A file with a text, or with one text per row.

    Attributes:
        name: the path as given, or as found in a given folder.
        builder: format of a table: csv, json or parquet; None for a text.
    """

    name: str
    builder: str | None = None

    @property
    def shown(self) -> str:
        return "Standard input" if self.name == STANDARD_INPUT else self.name

    @property
    def size(self) -> int:
        """The size in bytes, at least 1; 1 if unknown, as for a pipe."""
        return max(1, os.stat(self.name).st_size) if os.path.isfile(self.name) else 1


def list_sources(names: list[str]) -> list[Source]:
    """List the files of the names on the command line, in their order.

    Raises:
        ValueError: there is nothing to score.
        OSError: a file is missing or cannot be opened.
    """
    if not names:
        if sys.stdin is None or sys.stdin.closed or sys.stdin.isatty():
            raise ValueError(
                f"There is nothing to score: pass a FILE, as in `{command_name()} "
                "samples/story.txt`, pipe text in, or pass --dataset. See --help."
            )
        names = [STANDARD_INPUT]
    return [source for name in names for source in find_files(name)]


def find_files(name: str) -> list[Source]:
    if name == STANDARD_INPUT:
        if sys.stdin is None or sys.stdin.closed:
            raise ValueError("Standard input is closed: pass a FILE.")
        return [Source(name)]
    if re.match(r"\w+://", name):
        raise ValueError(
            f"FILE must be a local file, got the address {name}. Download it first: curl -LO {name}."
        )
    path = Path(name)
    if path.is_dir():
        return list_folder(path)
    if not path.exists() and glob.has_magic(name):
        found = sorted(glob.glob(name, recursive=True))
        files = [file for file in found if not os.path.isdir(file)]
        if not files:
            raise ValueError(f"No file matches {name}.")
        return [Source(file, builder_of(file)) for file in files]
    if not path.is_fifo():  # a pipe can be opened only once
        open(name, "rb").close()
    return [Source(name, builder_of(name))]


def list_folder(folder: Path) -> list[Source]:
    """List the texts and tables in a folder and its subfolders, except for hidden ones.

    Raises:
        ValueError: the folder has no texts or tables.
        OSError: a folder cannot be read.
    """
    if any((folder / name).is_file() for name in SAVED):
        raise ValueError(
            f"{folder} is a dataset written by save_to_disk: pass --dataset {folder}::train:text, with "
            "its own split and column."
        )

    def refuse(error: OSError) -> None:
        raise error

    files, linked = [], []
    for place, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = [name for name in folders if not name.startswith(".")]
        # not followed, because they could form a cycle
        linked += [os.path.join(place, name) for name in folders if Path(place, name).is_symlink()]
        files += [os.path.join(place, name) for name in names if not name.startswith(".")]
    taken = sorted(file for file in files if suffix(file) in (*TEXTS, *TABLES))
    if linked:
        say(
            f"warning: skipped in {folder}, as links to folders: {list_some(sorted(linked))}. Pass the "
            "folders themselves."
        )
    if not taken:
        raise ValueError(
            f"{folder} is a folder without {', '.join((*TEXTS, *TABLES))} files. Select other files "
            f"with a glob: '{folder}/*'."
        )
    if left := sorted(set(files) - set(taken)):
        say(
            f"warning: skipped in {folder}, as their endings are neither of texts nor of tables: "
            f"{list_some(left)}."
        )
    return [Source(file, builder_of(file)) for file in taken]


def builder_of(name: str) -> str | None:
    """Return the format of a table by its ending; None for a text.

    Raises:
        ValueError: it is a spreadsheet.
    """
    ending = suffix(name)
    if ending in SPREADSHEETS:
        raise ValueError(f"{name} is a spreadsheet: save it as CSV UTF-8, and pass the .csv file.")
    return TABLES.get(ending)


def suffix(name: str) -> str:
    """Return the ending of a file's name in lower case, without that of gzip."""
    return Path(name.lower().removesuffix(".gz")).suffix


# --- contents -------------------------------------------------------------------------------------


@contextmanager
def opened(source: Source) -> Iterator[BinaryIO]:
    """Open a file or standard input, and decompress gzip.

    Raises:
        ValueError: the gzip data is broken, or the file is known not to be a text.
    """
    is_pipe = source.name == STANDARD_INPUT
    with nullcontext(sys.stdin.buffer) if is_pipe else open(source.name, "rb") as file:
        if file.peek(len(GZIP_MAGIC)).startswith(GZIP_MAGIC):
            file = io.BufferedReader(gzip.GzipFile(fileobj=file))
        try:
            head = file.peek(HEAD_BYTES)
            for beginning, kind in KINDS.items():
                if re.match(beginning, head):
                    raise ValueError(f"{source.shown} is {kind}.")
            yield file
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise ValueError(f"{source.shown} is gzipped, but broken: {error}.") from None


def read_text(source: Source, encoding: str | None) -> str:
    """Read a text with unchanged line ends; drop only a byte order mark.

    Raises:
        ValueError: it is empty, in another encoding, or not a text.
    """
    with opened(source) as file:
        data = file.read()
    encoding = encoding or encoding_of(data)
    try:
        text = data.decode(encoding).removeprefix("\ufeff")
    except UnicodeError as error:
        raise ValueError(wrong_encoding(source, encoding, error)) from None
    if not text:
        raise ValueError(f"{source.shown} is empty.")
    if "\0" in text:
        raise ValueError(
            f"{source.shown} contains NUL characters, like a binary file. If it is a text, pass its "
            "--encoding, such as utf-16-le."
        )
    return text


@contextmanager
def opened_lines(source: Source, encoding: str | None) -> Iterator[io.TextIOWrapper]:
    """Open a table in a text format, with unchanged line ends.

    Raises:
        ValueError: as for `read_text`.
    """
    with opened(source) as file:
        head = file.peek(HEAD_BYTES)
        if not head:
            raise ValueError(f"{source.shown} is empty.")
        encoding = encoding or encoding_of(head)
        try:
            yield io.TextIOWrapper(file, encoding, newline="")
        except UnicodeError as error:
            raise ValueError(wrong_encoding(source, encoding, error)) from None


def wrong_encoding(source: Source, encoding: str, error: UnicodeError) -> str:
    said = f"{source.shown} is not {encoding.upper()} text: {getattr(error, 'reason', error)}."
    if codecs.lookup(encoding).name != "utf-8":
        return said
    if getattr(error, "reason", "") == "unexpected end of data":
        return f"{said} It may be truncated: download or write it again."
    return f"{said} Pass its --encoding, such as cp1252."


def encoding_of(head: bytes) -> str:
    """Return the encoding of the byte order mark; UTF-8 without one."""
    marks = (name for mark, name in BYTE_ORDER_MARKS.items() if head.startswith(mark))
    return next(marks, "utf-8")
