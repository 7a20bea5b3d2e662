"""The texts of all files or of a dataset, one after the other, each with what its row says about it."""

import argparse
import csv
import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import groupby, islice
from pathlib import Path

from ..arguments import runs_together
from .files import (
    SAVED,
    STANDARD_INPUT,
    TABLES,
    Table,
    list_files,
    open_table,
    read_text,
    spoken,
    table_format,
)
from .messages import say
from .options import written_files

DATASET = re.compile(r"(.+?):([^:]*):([^:\[]+(?:\[[^\]]*\])?):([^:]+)")
COLUMNS = ("text_column", "context_column", "words_column", "id_column")
# A table with this many first rows of one word each is warned of.
FEWEST_ROWS = 5
EXAMINED = 100_000  # characters of each text
# Controls of ISO 8859, where Windows-1252 has quotation marks and dashes.
CONTROLS = re.compile("[\x80-\x9f]")
COLUMN_NAME = re.compile(r'"?[\w.-]+"?')


@dataclass(frozen=True)
class Text:
    """A text to score, or a file or row that could not be read.

    Attributes:
        name: its name in the output: that of its file or row.
        text: the text to score.
        row: its number in a table or dataset, from 0; None for a file.
        share: its estimated share of the run, from sizes of files and numbers of rows.
        context: text that is read before it without being scored.
        chat: messages to score instead; `text` then contains the assistant's.
        words: its words, or their (start, end) characters, end exclusive; None if not given, and for
            an empty row among rows of words.
        carried: the other columns of its row; a list of them where each word had a row.
        error: the reason why it could not be read; None if it could.
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


# --- files ----------------------------------------------------------------------------------------


def open_texts(args: argparse.Namespace) -> Iterator[Text]:
    """List the files, and return an iterator over their texts; refuse missing files."""
    if args.dataset:
        match = DATASET.fullmatch(args.dataset)
        if match is None:
            raise ValueError(f"--dataset must be NAME:CONFIG:SPLIT:COLUMN, got {args.dataset!r}.")
        place = Path(match[1])  # if the dataset is local
        check_outputs(args, [str(file) for file in (place, *place.rglob("*")) if file.is_file()])
        return warned(read_dataset(*match.groups(), args))
    files = list_files(args.files)
    check_outputs(args, [file for file in files if file != STANDARD_INPUT])
    asked = [name for name in COLUMNS if getattr(args, name)]
    if asked and not any(map(table_format, files)):
        raise ValueError(
            f"--{asked[0].replace('_', '-')} requires a table, but {spoken(files[0])} is read as a "
            f"text. Use a file whose name ends in {', '.join(TABLES)}."
        )
    return warned(read_files(files, args))


def open_each(args: argparse.Namespace) -> list[Iterator[Text]]:
    """Return one iterator of texts per FILE."""
    return [open_texts(argparse.Namespace(**vars(args) | {"files": [f]})) for f in args.files]


def check_outputs(args: argparse.Namespace, names: list[str], what: str = "texts") -> None:
    """Refuse to overwrite input files.

    Args:
        what: what the files are, for an error.
    """
    for option, path in written_files(args).items():
        if Path(path).exists() and any(Path(path).samefile(name) for name in names):
            raise ValueError(
                f"{option} must not be one of the {what}, got {path!r}. Use another file."
            )


def read_files(files: list[str], args: argparse.Namespace) -> Iterator[Text]:
    """Read files; yield a text with an error for one that cannot be read, unless it is the only one."""
    sizes = [os.path.getsize(file) if os.path.isfile(file) else 0 for file in files]
    for file, size in zip(files, sizes):
        share = max(1, size) / max(1, sum(sizes))
        try:
            if table_format(file):
                yield from read_rows(open_table(file, args.encoding), args, share, file)
                continue
            if args.words_column:
                raise ValueError(f"--words-column requires a table, but {spoken(file)} is a text.")
            text = read_text(file, args.encoding)
            yield Text(file, text, share=share, carried={"text": text} if args.keep_text else {})
        except (ValueError, OSError) as error:
            if len(files) == 1 and not args.takes_each_file:
                raise
            yield Text(file, "", error=error.strerror if isinstance(error, OSError) else str(error))


def read_dataset(
    name: str, config: str, split: str, column: str, args: argparse.Namespace
) -> Iterator[Text]:
    """Read a column of a dataset row by row from the disk.

    Args:
        name: a dataset of the Hub, a folder, one written by `save_to_disk`, or a file, which has only
            a split "train".
    """
    import datasets

    def table_of(rows: datasets.Dataset) -> Table:
        return Table(
            name, rows.column_names, len(rows), lambda wanted: iter(rows.select_columns(wanted))
        )

    if args.hides_progress or not sys.stderr.isatty():
        datasets.disable_progress_bars()
    splits, table = {}, None
    try:
        if Path(name).is_file():
            if table_format(name) is None:
                raise ValueError("it must be a CSV, TSV, JSON lines or Parquet file.")
            splits = {"train": open_table(name, args.encoding)}
        elif any(Path(name, saved).is_file() for saved in SAVED):
            saved = datasets.load_from_disk(name)
            if not isinstance(saved, datasets.DatasetDict):
                saved = {split.partition("[")[0]: saved}
            splits = {key: table_of(rows) for key, rows in saved.items()}
        else:
            table = table_of(datasets.load_dataset(name, config or None, split=split))
        if table is None:
            sizes = {key: of_split.num_rows for key, of_split in splits.items()}
            (part,) = datasets.ReadInstruction.from_spec(split).to_absolute(sizes)
            table = rows_between(splits[part.splitname], part.from_, part.to)
    except (datasets.exceptions.DatasetsError, ValueError, OSError) as error:
        raise ValueError(f"--dataset={args.dataset} could not be loaded: {error}") from error
    check_column("--dataset", table, column)
    if not table.num_rows:
        raise ValueError(f"--dataset={args.dataset} has no rows.")
    yield from read_rows(table, args, column=column)


def rows_between(table: Table, first: int | None, end: int | None) -> Table:
    first, end, _ = slice(first, end).indices(table.num_rows)
    return replace(
        table,
        num_rows=max(0, end - first),
        rows=lambda wanted: islice(table.rows(wanted), first, end),
    )


# --- rows -----------------------------------------------------------------------------------------


def read_rows(
    table: Table,
    args: argparse.Namespace,
    share: float = 1.0,
    name: str | None = None,
    column: str | None = None,
) -> Iterator[Text]:
    """Yield the texts of a table, with its other columns if the output can have them.

    Args:
        name: the file in the names of rows; None for a dataset.
        column: that of the texts; by default the given one, `text`, or the only one.
    """
    column = column or choose_column(table, args.text_column)
    for option in COLUMNS[1:]:
        check_column(f"--{option.replace('_', '-')}", table, getattr(args, option))
    if column == args.context_column:
        raise ValueError(
            f"--context-column must differ from the column of the texts, got {column!r}."
        )
    needed = [of for of in (column, args.context_column, args.words_column) if of]
    wanted = list(dict.fromkeys([*needed, args.id_column] if args.id_column else needed))

    def texts() -> Iterator[Text]:
        for number, row in enumerate(table.rows(table.columns if args.carries_columns else wanted)):
            place = f"row {number}" if name is None else f"{name} row {number}"
            # An empty cell is an empty text or context: in which shard it stands does not matter.
            cells = {of: "" if row[of] is None else row[of] for of in needed}
            chat = words = error = None
            if is_chat(cells[column]):
                chat = [without_none(message) for message in cells[column]]
                # the assistant's messages determine the size of a chat and whether it is empty
                told = (str(m["content"]) for m in chat if m["role"] == "assistant")
                cells[column] = "\n".join(told)
            text, context = cells[column], cells.get(args.context_column)
            try:
                if not (isinstance(text, str) and isinstance(context, str | None)):
                    got, of = (
                        (context, args.context_column) if isinstance(text, str) else (text, column)
                    )
                    text = ""
                    raise ValueError(
                        f"{place} must have a text or a chat in the column {of!r}, got {got!r:.80}."
                    )
                if args.words_column:
                    words = read_words(cells[args.words_column], text, place)
                elif args.words and re.search(r"\w\|\w", text):
                    raise ValueError(
                        f"{place} has | between its words. Put the regions into a column of their own, "
                        "without | in the text, and name it by --words-column."
                    )
            except ValueError as reason:
                error = str(reason)
            yield Text(
                name=str(row[args.id_column]) if args.id_column else place,
                text=text,
                row=number,
                share=share / table.num_rows,
                context=context,
                chat=chat,
                words=words,
                carried={
                    of: cell for of, cell in row.items() if args.keep_text or of not in needed
                },
                error=error,
            )

    yield from texts() if args.words_column else join_words(texts(), args)


def choose_column(table: Table, wanted: str | None) -> str:
    """Return the column of the texts: the given one, `text`, or the only one."""
    columns = table.columns
    if wanted is not None:
        check_column("--text-column", table, wanted)
        return wanted
    if "text" in columns:
        return "text"
    if len(columns) > 1:
        raise ValueError(
            f"{table.name} has no column 'text': pass one of {', '.join(columns)} as --text-column."
        )
    if len(columns[0].split()) > 1 and table_format(table.name) == "csv":
        say(
            f"warning: the first line of {table.name}, {columns[0]!r:.80}, is used as a header and not "
            "scored. If it is a text, insert a line 'text' before it."
        )
    return columns[0]


def check_column(option: str, table: Table, wanted: str | None) -> None:
    if wanted is not None and wanted not in table.columns:
        raise ValueError(
            f"{option} must be one of the columns {', '.join(table.columns)} of {table.name}, got "
            f"{wanted!r}."
        )


def is_chat(value) -> bool:
    """Return whether a cell is a list of messages, each with a role and a content."""
    return (
        isinstance(value, list)
        and len(value) > 0
        and all(isinstance(m, dict) and {"role", "content"} <= m.keys() for m in value)
    )


def without_none(value):
    """Drop the keys without a value, which Arrow gives every message if one has them."""
    if isinstance(value, dict):
        return {key: without_none(item) for key, item in value.items() if item is not None}
    return [without_none(item) for item in value] if isinstance(value, list) else value


# --- words ----------------------------------------------------------------------------------------


def join_words(texts: Iterator[Text], args: argparse.Namespace) -> Iterator[Text]:
    """Join adjacent rows that share an id to one text if one of them is a single word.

    Each row keeps its other columns.  Without --words or an id, such a table is scored word by word,
    and a warning says so.
    """
    if not (args.words and args.id_column):
        first = list(islice(texts, FEWEST_ROWS))
        if len(first) == FEWEST_ROWS and all(map(is_one_word, first)):
            say(
                f"warning: {first[0].name} and the next rows hold one word each, which is scored "
                "without the words before it. Pass --words, and the column that the words of a "
                "sentence share as --id-column, to join them."
            )
        yield from first
        yield from texts
        return
    seen, warns = set(), True
    for name, group in groupby(texts, key=lambda text: text.name):
        rows = list(group)
        has_word = any(map(is_one_word, rows))
        if has_word and len(rows) == 1 and name in seen:
            raise ValueError(
                f"rows of an item are not adjacent, such as row {rows[0].row} of {name!r}: sort the "
                f"table by {args.id_column}, and by the position in it."
            )
        seen.add(name)
        if warns and not has_word and len(rows) > 1:
            warns = False
            say(
                f"warning: the rows of {name!r} share an id, but none is a single word: each is scored "
                "as a text of its own. Put regions of one text into one row, with --words-column."
            )
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
    """Return whether a row is a single word of a script with spaces between words."""
    word = row.text.strip()
    is_spaced = runs_together("a", word) or not re.search(r"\w", word)
    return not row.chat and len(word.split()) == 1 and is_spaced


def read_words(cell: object, text: str, name: str) -> list:
    """Read the words of a text: a list, a JSON list, regions between |, or words between spaces."""
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
    raise ValueError(
        "--words-column must be words separated by spaces or |, or a list of words or of ascending "
        f"[start, end] pairs of characters, end exclusive, within the {len(text)} of the text, got "
        f"{cell!r:.80} in {name}."
    )


# --- mistakes -------------------------------------------------------------------------------------


def warned(texts: Iterator[Text]) -> Iterator[Text]:
    """Yield the texts; warn once of a wrong encoding, and once of a CSV that is read as a text."""
    said = set()
    for text in texts:
        head = text.text[:EXAMINED]
        control = CONTROLS.search((text.context or "")[:EXAMINED] + head)
        if control is not None and "encoding" not in said:
            said.add("encoding")
            say(
                f"warning: {text.name} has control characters such as U+{ord(control[0]):04X}, which are "
                "quotation marks and dashes in Windows files. Pass --encoding cp1252; if that is "
                "refused, the text was decoded as latin-1 before it was written: repair it."
            )
        if text.row is None and "table" not in said and is_csv(head):
            said.add("table")
            say(
                f"warning: {text.name} looks like CSV, but is read as prose. To score the texts in it, "
                "give it a name that ends in .csv or .tsv."
            )
        yield text


def is_csv(text: str) -> bool:
    """Return whether a text begins with names of columns and rows of as many cells."""
    first, *lines = text.split("\n")[:50]
    for delimiter in ",\t;":
        names = first.rstrip("\r").split(delimiter)
        if len(names) > 1 and all(map(COLUMN_NAME.fullmatch, names)):
            rows = [row for row in csv.reader(lines[:-1], delimiter=delimiter) if row]
            return bool(rows) and sum(len(row) == len(names) for row in rows) >= 0.8 * len(rows)
    return False
