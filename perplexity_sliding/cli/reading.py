"""The texts of all sources, one after the other, each with what its row says about it."""

import argparse
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import groupby, islice
from pathlib import Path

from ..layouts import runs_together
from .messages import say
from .options import written_files
from .sources import SAVED, STANDARD_INPUT, TABLES, Source, builder_of, list_sources, read_text
from .suspicions import warned
from .table_files import Table, open_table

DATASET = re.compile(r"(.+?):([^:]*):([^:\[]+(?:\[[^\]]*\])?):([^:]+)")
COLUMNS = ("text_column", "context_column", "words_column", "id_column")
# A table with this many first rows of one word each is warned of.
FEWEST_ROWS = 5


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
        words: its words, or their (start, end) characters, end exclusive; None if not given.
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


def open_texts(args: argparse.Namespace) -> Iterator[Text]:
    """List the sources, and return an iterator over their texts; refuse missing files."""
    if args.dataset:
        match = DATASET.fullmatch(args.dataset)
        if match is None:
            raise ValueError(f"--dataset must be NAME:CONFIG:SPLIT:COLUMN, got {args.dataset!r}.")
        place = Path(match[1])  # if the dataset is local
        check_outputs(args, [str(file) for file in (place, *place.rglob("*")) if file.is_file()])
        return warned(read_dataset(*match.groups(), args), args)
    sources = list_sources(args.files)
    check_outputs(args, [source.name for source in sources if source.name != STANDARD_INPUT])
    asked = [name for name in COLUMNS if getattr(args, name)]
    if asked and not any(source.builder for source in sources):
        raise ValueError(
            f"--{asked[0].replace('_', '-')} requires a table, but {sources[0].shown} is read as a "
            f"text. Use a file whose name ends in {', '.join(TABLES)}."
        )
    return warned(read_sources(sources, args), args)


def open_each(args: argparse.Namespace) -> list[Iterator[Text]]:
    """Return one iterator of texts per FILE; a text with an error stands for one that fails."""
    opened = [open_texts(argparse.Namespace(**vars(args) | {"files": [f]})) for f in args.files]

    def guarded(texts: Iterator[Text], name: str) -> Iterator[Text]:
        try:
            yield from texts
        except (ValueError, OSError) as error:
            yield Text(name, "", error=reason_of(error))

    return [guarded(texts, name) for texts, name in zip(opened, args.files)]


def reason_of(error: ValueError | OSError) -> str:
    return error.strerror if isinstance(error, OSError) else str(error)


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


def read_sources(sources: list[Source], args: argparse.Namespace) -> Iterator[Text]:
    """Read files; yield a text with an error for each of several that cannot be read."""
    total = sum(source.size for source in sources)
    for source in sources:
        share = source.size / total
        try:
            if source.builder:
                yield from read_rows(open_table(source, args.encoding), args, share, source.name)
                continue
            if args.words_column:
                raise ValueError(f"--words-column requires a table, but {source.shown} is a text.")
            text = read_text(source, args.encoding)
            yield Text(
                source.name, text, share=share, carried={"text": text} if args.keep_text else {}
            )
        except (ValueError, OSError) as error:
            if len(sources) == 1:
                raise
            yield Text(source.name, "", error=reason_of(error))


# --- datasets -------------------------------------------------------------------------------------


def read_dataset(
    name: str, config: str, split: str, column: str, args: argparse.Namespace
) -> Iterator[Text]:
    """Read a column of a dataset row by row from the disk."""
    table = load_split(name, config, split, args)
    check_column("--dataset", table, column)
    if not table.num_rows:
        raise ValueError(f"--dataset={args.dataset} has no rows.")
    yield from read_rows(table, args, column=column)


def load_split(name: str, config: str, split: str, args: argparse.Namespace) -> Table:
    """Load a split of a dataset of the Hub, a folder, or a file; a file has only a split "train"."""
    import datasets

    if args.hides_progress or not sys.stderr.isatty():
        datasets.disable_progress_bars()
    if Path(name).is_file() and builder_of(name) is None:
        raise ValueError(f"--dataset={name} must be a CSV, TSV, JSON lines or Parquet file.")
    try:
        if Path(name).is_file():
            return slice_of(open_table(Source(name, builder_of(name)), args.encoding), split)
        if any(Path(name, saved).is_file() for saved in SAVED):
            return load_saved(name, split)
        rows = datasets.load_dataset(name, config or None, split=split)
    except (datasets.exceptions.DatasetsError, ValueError, OSError) as error:
        raise ValueError(f"--dataset={args.dataset} could not be loaded: {error}") from error
    return table_of(name, rows)


def load_saved(name: str, split: str) -> Table:
    """Load a split of a dataset that was written by `save_to_disk`."""
    import datasets

    saved, wanted = datasets.load_from_disk(name), split.partition("[")[0]
    if isinstance(saved, datasets.DatasetDict):
        if wanted not in saved:
            raise ValueError(f"the split must be one of {', '.join(saved)}, got {wanted!r}.")
        saved = saved[wanted]
    return slice_of(table_of(name, saved), split, wanted)


def table_of(name: str, rows) -> Table:
    """Make a table of a `datasets.Dataset`."""
    kinds = {column: getattr(of, "dtype", "lists") for column, of in rows.features.items()}
    others = {column: of for column, of in kinds.items() if of not in ("string", "large_string")}
    return Table(name, rows.column_names, len(rows), rows_of(rows), others)


def rows_of(rows):
    return lambda wanted: iter(rows.select_columns(list(wanted)))


def slice_of(table: Table, split: str, whole: str = "train") -> Table:
    """Select the rows of a split such as train[:100]."""
    from datasets import ReadInstruction

    (part,) = ReadInstruction.from_spec(split).to_absolute({whole: table.num_rows})
    first, end, _ = slice(part.from_, part.to).indices(table.num_rows)
    return replace(
        table,
        num_rows=max(0, end - first),
        rows=lambda names: islice(table.rows(names), first, end),
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
    needed = [c for c in dict.fromkeys((column, args.context_column, args.words_column)) if c]
    has_chats = is_chat(next(table.rows([column]))[column])
    for of_texts in needed:
        may_be_lists = of_texts == args.words_column or (of_texts == column and has_chats)
        if of_texts in table.others and not may_be_lists:
            raise ValueError(
                f"{table.name} must have texts in the column {of_texts!r}, got other values "
                f"({table.others[of_texts]})."
            )
    wanted = [*needed, *([args.id_column] if args.id_column else [])]
    rows = table.rows(table.columns if args.carries_columns else list(dict.fromkeys(wanted)))
    texts = (
        read_row(row, number, column, needed, name, args, share / table.num_rows)
        for number, row in enumerate(rows)
    )
    yield from texts if args.words_column else join_words(texts, args)


def read_row(
    row: dict,
    number: int,
    column: str,
    needed: list[str],
    name: str | None,
    args: argparse.Namespace,
    share: float,
) -> Text:
    place = f"row {number}" if name is None else f"{name} row {number}"
    text = row[column] or ""
    chat = [without_none(message) for message in text] if is_chat(text) else None
    if chat is None and not isinstance(text, str):
        raise ValueError(
            f"{name or args.dataset} must have chats in all rows of {column!r}, got {text!r:.80} in "
            f"row {number}."
        )
    read = Text(
        name=str(row[args.id_column]) if args.id_column else place,
        # the assistant's messages determine the size of a chat and whether it is empty
        text=text
        if chat is None
        else "\n".join(str(m["content"]) for m in chat if m["role"] == "assistant"),
        row=number,
        share=share,
        # An empty cell is an empty context: in which shard it stands does not matter.
        context=row[args.context_column] or "" if args.context_column else None,
        chat=chat,
        carried={k: of_key for k, of_key in row.items() if args.keep_text or k not in needed},
    )
    try:
        if args.words_column:
            return replace(read, words=read_words(row[args.words_column], text, place))
        if args.words and re.search(r"\w\|\w", read.text):
            raise ValueError(
                f"{place} has | between its words. Put the regions into a column of their own, without "
                "| in the text, and name it by --words-column."
            )
    except ValueError as error:
        return replace(read, error=str(error))
    return read


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
    if len(columns[0].split()) > 1 and builder_of(table.name) == "csv":
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


def join_words(texts: Iterator[Text], args: argparse.Namespace) -> Iterator[Text]:
    """Join rows that share an id and hold one word each, as reading times are given, to one text.

    Each word keeps the other columns of its row.  Without --words or an id, such a table is scored
    word by word, and a warning says so.
    """
    if not (args.words and args.id_column):
        first = list(islice(texts, FEWEST_ROWS))
        if len(first) == FEWEST_ROWS and all(is_one_word(text.text) for text in first):
            say(
                f"warning: {first[0].name} and the next rows hold one word each, which is scored "
                "without the words before it. Pass --words, and the column that the words of a "
                "sentence share as --id-column, to join them."
            )
        yield from first
        yield from texts
        return
    for name, group in groupby(texts, key=lambda text: text.name):
        words = list(group)
        if len(words) == 1 or not all(is_one_word(text.text) and not text.error for text in words):
            yield from words
            continue
        joined, spans = "", []
        for word in (text.text.strip() for text in words):
            joined += " " if runs_together(joined, word) else ""
            spans.append([len(joined), len(joined) + len(word)])
            joined += word
        yield replace(
            words[0],
            name=name,
            text=joined,
            words=spans,
            share=sum(text.share for text in words),
            carried=[text.carried for text in words],
        )


def is_one_word(text: str) -> bool:
    """Return whether a text is a single word of a script with spaces between words."""
    word = text.strip()
    return len(word.split()) == 1 and (runs_together("a", word) or not re.search(r"\w", word))


def read_words(cell: object, text: str, name: str) -> list:
    """Read the words of a text: a list, a JSON list, regions between |, or words between spaces.

    Raises:
        ValueError: the cell is none of these.
    """
    if isinstance(cell, str) and cell.lstrip().startswith("["):
        try:
            cell = json.loads(cell)
        except json.JSONDecodeError as error:
            raise ValueError(f"--words-column must be valid JSON in {name}: {error}.") from None
    if isinstance(cell, str):
        regions = cell.split("|") if "|" in cell and "|" not in text else cell.split()
        cell = [region.strip() for region in regions if region.strip()]
    if not isinstance(cell, list) or not cell:
        raise ValueError(
            "--words-column must be words separated by spaces or |, or a list of words or of [start, "
            f"end] pairs, got {cell!r:.80} in {name}."
        )
    if all(isinstance(word, str) for word in cell):
        return cell
    place = 0
    for pair in cell:
        is_pair = isinstance(pair, list) and len(pair) == 2 and all(type(n) is int for n in pair)
        if not is_pair or not place <= pair[0] < pair[1] <= len(text):
            raise ValueError(
                "--words-column must be words, or ascending [start, end] pairs of characters, end "
                f"exclusive, within the {len(text)} of the text, got {pair!r} in {name}."
            )
        place = pair[1]
    return cell


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
