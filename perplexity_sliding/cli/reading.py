"""The texts of files or of a dataset, one after the other, each with what its row says about it.

Nothing slow is imported but for Parquet and datasets, so that a missing or broken file is reported at
once.
"""

import argparse
import csv
import glob
import gzip
import io
import json
import os
import re
import sys
import zlib
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import chain, groupby, islice, zip_longest
from pathlib import Path

from ..arguments import runs_together
from .messages import list_some, say
from .options import spelled

# Formats of tables by the ending of the file.
TABLES = {".csv": "csv", ".tsv": "csv", ".parquet": "parquet"}
TABLES |= dict.fromkeys((".jsonl", ".ndjson", ".json"), "json")
TEXTS = (".txt", ".text")
STANDARD_INPUT = "-"
# Files of a folder written by `save_to_disk` of the library datasets.
SAVED = ("dataset_dict.json", "dataset_info.json")
# Beginnings of files that are taken for texts by mistake.
KINDS = {
    b"%PDF-": "a PDF: extract its text first, with pdftotext for example",
    b"PK\x03\x04": "a zip archive, or a Word or Excel file: save it as .txt or CSV UTF-8",
    b"PAR1": "a Parquet table: give it a name that ends in .parquet",
}
DATASET = re.compile(r"(.+?):([^:]*):([^:\[]+(?:\[[^\]]*\])?):([^:]+)")
# A table with this many first rows of one word each is warned of.
FEWEST_ROWS = 5
COLUMNS = ("text_column", "context_column", "words_column", "id_column")


@dataclass
class Text:
    """A text to score, or a file or row that could not be read.

    Attributes:
        row: its number in a table or dataset, from 0; None for a file.
        share: its estimated share of the run, from sizes of files and numbers of rows.
        chat: messages to score instead; `text` then contains the assistant's.
        words: its words, or their (start, end) characters; None for an empty row among rows of words.
        carried: the other columns of its row; a list of them where each word had a row.
        place: its number among all texts, if a part of them is scored.
    """

    name: str
    text: str
    row: int | None = None
    share: float = 0.0
    context: str | None = None
    chat: list[dict] | None = None
    words: list | None = None
    carried: dict | list[dict] = field(default_factory=dict)
    error: str | None = None
    place: int | None = None


@dataclass(frozen=True)
class ReadText:
    """A text whose tokens or words are shown.

    Attributes:
        wording: the context followed by the text, as the model read them; None if unknown.
        begin: offset of the text in `wording`, in characters.
        carried: as in `Text`.
    """

    name: str
    wording: str | None
    begin: int = 0
    carried: dict | list[dict] = field(default_factory=dict)


@dataclass(frozen=True)
class Table:
    """A table with one text per row; `rows` reads columns of it any number of times."""

    name: str
    columns: list[str]
    num_rows: int
    rows: Callable[[Sequence[str]], Iterator[dict]]


# --- files ----------------------------------------------------------------------------------------


def open_texts(args: argparse.Namespace, names: list[str]) -> Iterator[Text]:
    """Return an iterator over the texts of FILEs, or of --dataset; refuse missing files at once."""
    files = [] if args.dataset else list_files(names)
    check_outputs(args, files)
    if args.dataset:
        return read_dataset(args)
    asked = [name for name in COLUMNS if getattr(args, name)]
    texts = [file for file in files if table_format(file) is None]
    if texts and asked and (len(texts) == len(files) or args.words_column):
        ending = f"a name that ends in {', '.join(TABLES)}"
        raise ValueError(f"{spelled(asked[0])} requires a table, {ending}, got {spoken(texts[0])}.")
    return read_files(files, args)


def list_files(names: list[str]) -> list[str]:
    """List the files of the names on the command line, in their order; "-" is standard input."""
    if not names and sys.stdin.isatty():
        raise ValueError("Nothing to score: pass a FILE or --dataset, or pipe text in. See --help.")
    files = []
    for name in names or [STANDARD_INPUT]:
        if os.path.isdir(name):
            files += list_folder(Path(name))
        elif glob.has_magic(name) and not os.path.exists(name):
            found = sorted(filter(os.path.isfile, glob.glob(name, recursive=True)))
            if not found:
                raise ValueError(f"No file matches {name}.")
            files += found
        else:
            if name != STANDARD_INPUT and not Path(name).is_fifo():  # which opens only once
                open(name, "rb").close()
            files.append(name)
    return files


def list_folder(folder: Path) -> list[str]:
    if any((folder / name).is_file() for name in SAVED):
        raise ValueError(
            f"{folder} is a dataset on disk: pass it as --dataset {folder}::train:text."
        )
    inside = [
        path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not any(p.startswith(".") for p in path.relative_to(folder).parts)
    ]
    taken = [str(path) for path in inside if suffix(path.name) in (*TEXTS, *TABLES)]
    others = sorted({*map(str, inside)} - {*taken})
    if not taken:
        endings = ", ".join((*TEXTS, *TABLES))
        raise ValueError(f"{folder} has no {endings} files. Pass others by a glob: '{folder}/*'.")
    if others:
        say(f"warning: skipped, as neither texts nor tables by their endings: {list_some(others)}.")
    return taken


def check_outputs(args: argparse.Namespace, names: list[str]) -> None:
    """Refuse output files that cannot be written, before hours of work, or that would replace a text."""
    for name in ("output", "html", "checkpoint"):
        path, option = getattr(args, name), spelled(name)
        if path is None:
            continue
        place = path if os.path.exists(path) else Path(path).resolve().parent
        if os.path.isdir(path) or not os.access(place, os.W_OK):
            raise ValueError(f"{option} must be a file in a writable folder, got {path!r}.")
        if os.path.exists(path) and any(map(Path(path).samefile, filter(os.path.exists, names))):
            raise ValueError(f"{option} must not be one of the files to read, got {path!r}.")


def table_format(name: str) -> str | None:
    return TABLES.get(suffix(name))


def suffix(name: str) -> str:
    """Return the ending of a file's name in lower case, without that of gzip."""
    return Path(name.lower().removesuffix(".gz")).suffix


def spoken(name: str) -> str:
    return "Standard input" if name == STANDARD_INPUT else name


def read_files(files: list[str], args: argparse.Namespace) -> Iterator[Text]:
    """Read files; yield a text with an error for one that cannot be read, unless it is the only one."""
    sizes = [os.path.getsize(file) if os.path.isfile(file) else 0 for file in files]
    for file, size in zip(files, sizes):
        share = max(1, size) / max(1, sum(sizes))
        try:
            if table_format(file):
                yield from read_rows(open_table(file, args.encoding), args, share, file)
            else:
                with opened_text(file, args.encoding) as opened:
                    text = opened.read()
                if "\0" in text:
                    advice = "If it is a text, pass its --encoding, such as utf-16-le."
                    raise ValueError(f"{spoken(file)} contains NUL characters. {advice}")
                if is_csv(text):
                    say(f"warning: {spoken(file)} looks like CSV: name it .csv to read its rows.")
                carried = {"text": text} if args.keep_text else {}
                yield Text(file, text, share=share, carried=carried)
        except (ValueError, OSError) as error:
            if len(files) == 1 and not args.takes_each_file:
                raise
            yield Text(file, "", error=error.strerror if isinstance(error, OSError) else str(error))


@contextmanager
def opened_text(name: str, encoding: str | None) -> Iterator[io.TextIOWrapper]:
    """Open a file or standard input: decompressed and decoded, with unchanged line ends."""
    is_pipe = name == STANDARD_INPUT
    with io.BytesIO(sys.stdin.buffer.read()) if is_pipe else open(name, "rb", 0) as raw:
        file = io.BufferedReader(raw)
        if file.peek(2).startswith(b"\x1f\x8b"):
            file = io.BufferedReader(gzip.GzipFile(fileobj=file))
        try:
            head = file.peek(8)
            if not head:
                raise ValueError(f"{spoken(name)} is empty.")
            for beginning, kind in KINDS.items():
                if head.startswith(beginning):
                    raise ValueError(f"{spoken(name)} is {kind}.")
            is_utf16 = head.startswith((BOM_UTF16_LE, BOM_UTF16_BE))
            yield io.TextIOWrapper(
                file, encoding or ("utf-16" if is_utf16 else "utf-8-sig"), newline=""
            )
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise ValueError(f"{spoken(name)} is gzipped, but broken: {error}.") from None
        except (UnicodeError, LookupError) as error:
            advice = "" if encoding else " Pass its --encoding, such as cp1252."
            reason = f"{getattr(error, 'reason', error)}.{advice}"
            raise ValueError(
                f"{spoken(name)} is not {encoding or 'UTF-8'} text: {reason}"
            ) from None


def is_csv(text: str) -> bool:
    """Return whether a text begins with names of columns and rows of as many cells."""
    names, *rows = [*csv.reader(text[:100_000].splitlines()[:20])] or [[]]
    named = len(names) > 1 and all(re.fullmatch(r"[\w.-]+", name) for name in names)
    return named and len(rows) > 0 and all(len(row) == len(names) for row in rows)


# --- tables ---------------------------------------------------------------------------------------


def open_table(name: str, encoding: str | None) -> Table:
    """Read a table once, so that a broken row is reported before anything is scored."""
    if table_format(name) == "parquet":
        return open_parquet(name)
    read = read_csv if table_format(name) == "csv" else read_json
    columns, num_rows = {}, 0
    for row in read(name, encoding):
        columns |= row
        num_rows += 1

    def rows(wanted: Sequence[str]) -> Iterator[dict]:
        return ({column: row.get(column) for column in wanted} for row in read(name, encoding))

    return Table(name, list(columns), num_rows, rows)


def read_csv(name: str, encoding: str | None) -> Iterator[dict]:
    """Yield the rows of a CSV or TSV file that are not blank; all cells are strings."""
    csv.field_size_limit(2**31 - 1)  # a cell may be a book
    with opened_text(name, encoding) as lines:
        first = next(lines, "")
        cut = {mark: next(csv.reader([first], delimiter=mark)) for mark in ",;\t"}
        delimiter = "\t" if suffix(name) == ".tsv" else max(cut, key=lambda mark: len(cut[mark]))
        reader = csv.reader(chain([first], lines), delimiter=delimiter, strict=True)
        line = 0
        try:
            header = next(reader)
            for record in reader:
                if len(record) > len(header):
                    raise csv.Error(f"{len(record)} fields for {len(header)} columns")
                line = reader.line_num
                if record:
                    yield dict(zip_longest(header, record))
        except csv.Error as error:
            advice = f"Quote texts that contain {delimiter!r} or quotes, and double these."
            raise ValueError(
                f"{name} is no table from line {line + 1} on: {error}. {advice}"
            ) from None


def read_json(name: str, encoding: str | None) -> Iterator[dict]:
    """Yield the objects of a file: one a line, or all in a list."""
    with opened_text(name, encoding) as file:
        lines = filter(str.strip, file)
        first = next(lines, "")
        if first.lstrip().startswith("["):
            first, lines = first + "".join(lines), ()
        for number, line in enumerate(chain([first], lines), 1):
            try:
                value = json.loads(line)
                yield from map(dict, value if isinstance(value, list) else [value])
            except (ValueError, TypeError) as error:
                needed = 'must be a JSON object such as {"text": "…"}'
                raise ValueError(f"{name}: object {number} {needed}: {error}.") from None


def open_parquet(name: str) -> Table:
    import pyarrow
    import pyarrow.parquet

    try:
        file = pyarrow.parquet.ParquetFile(name)
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(f"{name} is no table: {error}.") from None

    def rows(wanted: Sequence[str]) -> Iterator[dict]:
        for batch in file.iter_batches(1000, columns=list(wanted)):
            yield from batch.to_pylist()

    return Table(name, file.schema_arrow.names, file.metadata.num_rows, rows)


def read_dataset(args: argparse.Namespace) -> Iterator[Text]:
    """Read a column of a dataset of the Hub, a folder, or what `save_to_disk` wrote, row by row."""
    match = DATASET.fullmatch(args.dataset)
    if match is None:
        raise ValueError(f"--dataset must be NAME:CONFIG:SPLIT:COLUMN, got {args.dataset!r}.")
    name, config, split, column = match.groups()
    import datasets

    if args.hides_progress or not sys.stderr.isatty():
        datasets.disable_progress_bars()
    try:
        if any(Path(name, saved).is_file() for saved in SAVED):
            saved = datasets.load_from_disk(name)
            if not isinstance(saved, datasets.DatasetDict):
                saved = {split.partition("[")[0]: saved}
            sizes = {key: len(rows) for key, rows in saved.items()}
            (part,) = datasets.ReadInstruction.from_spec(split).to_absolute(sizes)
            rows = saved[part.splitname].select(range(part.from_, part.to))
        else:
            rows = datasets.load_dataset(name, config or None, split=split)
    except (datasets.exceptions.DatasetsError, ValueError, OSError) as error:
        raise ValueError(f"--dataset={args.dataset} could not be loaded: {error}") from error
    select = rows.select_columns
    table = Table(name, rows.column_names, len(rows), lambda wanted: iter(select(wanted)))
    yield from read_rows(table, args, column=column)


# --- rows -----------------------------------------------------------------------------------------


def read_rows(
    table: Table,
    args: argparse.Namespace,
    share: float = 1.0,
    name: str | None = None,
    column: str | None = None,
) -> Iterator[Text]:
    if not table.num_rows:
        raise ValueError(f"{table.name} has no rows.")
    columns = f"the columns {', '.join(table.columns)} of {table.name}"
    for option, wanted in [("dataset", column), *((name, getattr(args, name)) for name in COLUMNS)]:
        if wanted is not None and wanted not in table.columns:
            raise ValueError(f"{spelled(option)} must be one of {columns}, got {wanted!r}.")
    column = column or args.text_column or ("text" if "text" in table.columns else None)
    if column is None and len(table.columns) > 1:
        raise ValueError(f"There is no 'text' among {columns}: pass one of them as --text-column.")
    column = column or table.columns[0]
    if column == args.context_column:
        raise ValueError(f"--context-column must not be that of the texts, got {column!r}.")
    needed = [of for of in (column, args.context_column, args.words_column) if of]
    wanted = list(dict.fromkeys([*needed, args.id_column] if args.id_column else needed))

    def texts() -> Iterator[Text]:
        for number, row in enumerate(table.rows(table.columns if args.carries_columns else wanted)):
            place = f"row {number}" if name is None else f"{name} row {number}"
            # An empty cell is an empty text or context: in which shard it stands does not matter.
            cells = {of: "" if row[of] is None else row[of] for of in needed}
            text, chat, words, error = cells[column], None, None, None
            if is_chat(text):
                chat = [without_none(message) for message in text]
                # the assistant's messages determine the size of a chat and whether it is empty
                text = "\n".join(str(m["content"]) for m in chat if m["role"] == "assistant")
            if not isinstance(text, str):
                error = f"{place} must have a text or a chat in {column!r}, got {text!r:.80}."
                text = ""
            elif args.words_column:
                words = read_words(cells[args.words_column], text)
                if words is None:
                    error = (
                        "--words-column must be words, or ascending [start, end] pairs within the "
                        f"{len(text)} of the text, got {cells[args.words_column]!r:.80} in {place}."
                    )
            elif args.words and re.search(r"\w\|\w", text):
                error = (
                    f"{place} has | between words: put regions into a --words-column of their own."
                )
            others = {of: cell for of, cell in row.items() if args.keep_text or of not in needed}
            yield Text(
                name=str(row[args.id_column]) if args.id_column else place,
                text=text,
                row=number,
                share=share / table.num_rows,
                context=cells.get(args.context_column),
                chat=chat,
                words=words,
                carried=others,
                error=error,
            )

    yield from texts() if args.words_column else join_words(texts(), args)


def is_chat(value) -> bool:
    """Return whether a cell is a list of messages, each with a role and a content."""
    messages = value if isinstance(value, list) else []
    each = [isinstance(one, dict) and {"role", "content"} <= one.keys() for one in messages]
    return any(each) and all(each)


def without_none(value):
    """Drop the keys without a value, which Arrow gives every message if one has them."""
    if isinstance(value, dict):
        return {key: without_none(item) for key, item in value.items() if item is not None}
    return [without_none(item) for item in value] if isinstance(value, list) else value


# --- words ----------------------------------------------------------------------------------------


def join_words(texts: Iterator[Text], args: argparse.Namespace) -> Iterator[Text]:
    """For --words, join adjacent rows that share an id to one text if one of them is a single word."""
    if not (args.words and args.id_column):
        first = list(islice(texts, FEWEST_ROWS))
        if len(first) == FEWEST_ROWS and all(map(is_one_word, first)):
            say(
                f"warning: {first[0].name} and the next rows hold one word each, scored without those "
                "before it. To join them, pass --words, and the column that they share as --id-column."
            )
        yield from chain(first, texts)
        return
    seen = set()
    for name, group in groupby(texts, key=lambda text: text.name):
        rows = list(group)
        has_word = any(map(is_one_word, rows))
        if has_word and name in seen:
            order = f"{args.id_column}, and by the position in it"
            raise ValueError(f"Rows are apart from others of {name!r}: sort the table by {order}.")
        seen.add(name)
        if not has_word or len(rows) == 1:
            yield from rows
            continue
        joined, spans = "", []
        for word in (text.text.strip() for text in rows):
            joined += " " if runs_together(joined, word) else ""
            spans.append([len(joined), len(joined) + len(word)] if word else None)
            joined += word
        yield replace(
            rows[0],
            text=joined,
            words=spans,
            share=sum(text.share for text in rows),
            carried=[text.carried for text in rows],
            error=next((text.error for text in rows if text.error), None),
        )


def is_one_word(row: Text) -> bool:
    word = row.text.strip()
    is_spaced = runs_together("a", word) or not re.search(r"\w", word)
    return not row.chat and len(word.split()) == 1 and is_spaced


def read_words(cell: object, text: str) -> list | None:
    """Read words, regions between |, or ascending (start, end) characters; None if it is neither."""
    if isinstance(cell, str) and cell.lstrip().startswith("["):
        with suppress(json.JSONDecodeError):
            cell = json.loads(cell)
    if isinstance(cell, str):
        regions = cell.split("|") if "|" in cell and "|" not in text else cell.split()
        cell = [region.strip() for region in regions if region.strip()]
    if isinstance(cell, list) and cell:
        if all(isinstance(word, str) for word in cell):
            return cell
        if all(isinstance(pair, list) and [*map(type, pair)] == [int, int] for pair in cell):
            ends = [0, *(end for _, end in cell)]
            if ends[-1] <= len(text) and all(a <= b < c for a, (b, c) in zip(ends, cell)):
                return cell
    return None
