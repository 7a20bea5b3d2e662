"""Lazy reading of the texts of all sources."""

import argparse
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

from .messages import say
from .options import written_files
from .sources import STANDARD_INPUT, TABLES, Source, builder_of, list_sources
from .suspicions import Suspicions
from .table_files import Table, of_arrow, open_table
from .unpacking import read_text

DATASET = re.compile(r"(.+?):([^:]*):([^:\[]+(?:\[[^\]]*\])?):([^:]+)")


@dataclass(frozen=True)
class Text:
    """A text to score, or a file that could not be read.

    Attributes:
        name: its name in the output: that of its file or row.
        text: the text to score.
        row: its number in a table or dataset, from 0; None for a file.
        share: its estimated share of the run, from sizes of files and numbers of rows.
        context: text that is read before it without being scored.
        chat: messages to score instead; `text` then contains the assistant's.
        words: its words, or their (start, end) characters, end exclusive; None if not given.
        carried: the other columns of its row.
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
    carried: dict = field(default_factory=dict)
    error: str | None = None
    place: int | None = None


@dataclass(frozen=True)
class ReadText:
    """A text whose tokens or words are shown.

    Attributes:
        wording: the context followed by the text, as the model read them; None if unknown.
        begin: offset of the text in `wording`, in characters.
        carried: the other columns of its row.
    """

    name: str
    wording: str | None
    begin: int = 0
    carried: dict = field(default_factory=dict)


def open_texts(args: argparse.Namespace) -> Iterator[Text]:
    """List the sources, and return an iterator over their texts; refuse missing files."""
    if args.dataset:
        match = DATASET.fullmatch(args.dataset)
        if match is None:
            raise ValueError(f"--dataset must be NAME:CONFIG:SPLIT:COLUMN, got {args.dataset!r}.")
        place = Path(match[1])  # if the dataset is local
        check_outputs(args, [str(file) for file in (place, *place.rglob("*")) if file.is_file()])
        return watched(read_dataset(*match.groups(), args), args)
    sources = list_sources(args.files)
    check_outputs(args, [source.name for source in sources if source.name != STANDARD_INPUT])
    if not any(source.builder for source in sources):
        check_no_columns(args, sources[0].shown)
    return watched(read_sources(sources, args), args)


def open_each(args: argparse.Namespace) -> list[Iterator[Text]]:
    """Return one iterator of texts per FILE."""
    opened = [open_texts(argparse.Namespace(**vars(args) | {"files": [f]})) for f in args.files]
    return [guarded(texts, name) for texts, name in zip(opened, args.files)]


def guarded(texts: Iterator[Text], name: str) -> Iterator[Text]:
    """Read one of several files; yield a text with an error if it cannot be read."""
    try:
        yield from texts
    except (ValueError, OSError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        yield Text(name, "", error=reason)


def check_outputs(args: argparse.Namespace, names: list[str]) -> None:
    """Refuse to overwrite input files."""
    for option, path in written_files(args).items():
        check_output(option, path, names)


def check_output(option: str, output: str, names: list[str], what: str = "texts") -> None:
    """Refuse to overwrite an input file.

    Args:
        names: names of the input files.
        what: what the files are, for an error.
    """
    if Path(output).exists() and any(Path(output).samefile(name) for name in names):
        raise ValueError(
            f"{option} must not be one of the {what}, got {output!r}. Use another file."
        )


def check_no_columns(args: argparse.Namespace, name: str) -> None:
    """Refuse options of columns if no table is read."""
    for option in ("text_column", "context_column", "words_column", "id_column"):
        if getattr(args, option):
            raise ValueError(
                f"--{option.replace('_', '-')} requires a table, but {name} is read as a text. Use a "
                f"file whose name ends in {', '.join(TABLES)}."
            )


def watched(texts: Iterator[Text], args: argparse.Namespace) -> Iterator[Text]:
    """Yield the texts, and warn about mistakes in them."""
    suspicions = Suspicions(bool(args.detokenize), args.context_separator, args.encoding)
    for text in texts:
        if text.error is None:
            suspicions.look_at_encoding(text.name, (text.context or "") + text.text)
            suspicions.look_at(text.name, text.text, is_file=text.row is None)
            suspicions.look_at_join(text.name, text.context or "", text.text)
        yield text


def read_sources(sources: list[Source], args: argparse.Namespace) -> Iterator[Text]:
    """Read files; yield a text with an error for each of several that cannot be read."""
    total = sum(source.size for source in sources)
    for source in sources:
        share = source.size / total
        try:
            if source.builder:
                yield from read_table(source, args, share)
            else:
                if args.words_column:
                    raise ValueError(
                        f"--words-column requires a table, but {source.shown} is a text."
                    )
                text = read_text(source, args.encoding)
                kept = {"text": text} if args.keep_text else {}
                yield Text(source.name, text, share=share, carried=kept)
        except (ValueError, OSError) as error:
            if len(sources) == 1:
                raise
            reason = error.strerror if isinstance(error, OSError) else str(error)
            yield Text(source.name, "", error=reason)


def read_table(source: Source, args: argparse.Namespace, share: float) -> Iterator[Text]:
    """Read a table, one text per row."""
    table = open_table(source, args.encoding)
    column = choose_column(source.name, table.columns, args.text_column)
    check_other_columns(source.name, table.columns, column, args)
    yield from read_rows(table, column, source.name, args, share)


def check_other_columns(
    name: str, columns: list[str], column: str, args: argparse.Namespace
) -> None:
    check_column("--id-column", name, columns, args.id_column)
    check_column("--context-column", name, columns, args.context_column)
    check_column("--words-column", name, columns, args.words_column)
    if column == args.context_column:
        raise ValueError(
            f"--context-column must differ from the column of the texts, got {column!r}."
        )


def choose_column(name: str, columns: list[str], wanted: str | None) -> str:
    """Return the column of the texts: the given one, `text`, or the only one."""
    if wanted is not None:
        check_column("--text-column", name, columns, wanted)
        return wanted
    if "text" in columns:
        return "text"
    if len(columns) == 1:
        if builder_of(name) == "csv" and len(columns[0].split()) > 1:
            say(
                f"warning: the first line of {name}, {columns[0]!r:.80}, is used as a header and not "
                "scored. If it is a text, insert a line 'text' before it."
            )
        return columns[0]
    raise ValueError(
        f"{name} has no column 'text': pass one of {', '.join(columns)} as --text-column."
    )


def check_column(option: str, name: str, columns: list[str], wanted: str | None) -> None:
    if wanted is not None and wanted not in columns:
        raise ValueError(
            f"{option} must be one of the columns {', '.join(columns)} of {name}, got {wanted!r}."
        )


def read_dataset(
    name: str, config: str, split: str, column: str, args: argparse.Namespace
) -> Iterator[Text]:
    """Read a column of a dataset row by row from the disk."""
    table = load_split(name, config, split, args)
    check_column("--dataset", name, table.columns, column)
    check_other_columns(name, table.columns, column, args)
    if not table.num_rows:
        raise ValueError(f"--dataset={args.dataset} has no rows.")
    yield from read_rows(table, column, None, args)


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
        rows = datasets.load_dataset(name, config or None, split=split)
    except (datasets.exceptions.DatasetsError, ValueError, OSError) as error:
        raise ValueError(f"--dataset={args.dataset} could not be loaded: {error}") from error
    kinds = {name: getattr(of, "dtype", "lists") for name, of in rows.features.items()}
    others = {name: kind for name, kind in kinds.items() if kind not in ("string", "large_string")}
    return Table(
        name,
        rows.column_names,
        len(rows),
        lambda names: of_arrow(rows.select_columns(names)),
        others,
    )


def slice_of(table: Table, split: str) -> Table:
    """Select the rows of a split such as train[:100]."""
    from datasets import ReadInstruction

    (part,) = ReadInstruction.from_spec(split).to_absolute({"train": table.num_rows})
    first, end, _ = slice(part.from_, part.to).indices(table.num_rows)
    return replace(
        table,
        num_rows=max(0, end - first),
        rows=lambda names: islice(table.rows(names), first, end),
    )


def read_rows(
    table: Table, column: str, name: str | None, args: argparse.Namespace, share: float = 1.0
) -> Iterator[Text]:
    """Yield the texts of a table, with its other columns if the output can have them."""
    needed = list(filter(None, dict.fromkeys((column, args.context_column, args.words_column))))
    has_chats = is_chat(next(table.rows([column]))[column])
    for of_texts in needed:
        may_be_lists = of_texts == args.words_column or (of_texts == column and has_chats)
        if of_texts in table.others and not may_be_lists:
            raise ValueError(
                f"{name or args.dataset} must have texts in the column {of_texts!r}, got other "
                f"values ({table.others[of_texts]})."
            )
    wanted = [*needed, *([args.id_column] if args.id_column else [])]
    rows = table.rows(table.columns if args.carries_columns else list(dict.fromkeys(wanted)))
    for number, row in enumerate(rows):
        row_name = f"row {number}" if name is None else f"{name} row {number}"
        carried = {
            key: of_key for key, of_key in row.items() if args.keep_text or key not in needed
        }
        text = row[column] or ""
        chat = None
        if is_chat(text):  # without the keys that only others of the table have
            chat = [{key: v for key, v in m.items() if v is not None} for m in text]
        if chat is None and not isinstance(text, str):
            raise ValueError(
                f"{table.name} must have chats in all rows of {column!r}, got {text!r:.80} in row "
                f"{number}."
            )
        yield Text(
            name=str(row[args.id_column]) if args.id_column else row_name,
            text=text if chat is None else replies(chat),
            row=number,
            share=share / table.num_rows,
            # An empty cell is an empty context: in which shard it stands does not matter.
            context=row[args.context_column] or "" if args.context_column else None,
            chat=chat,
            words=read_words(row[args.words_column], text, row_name) if args.words_column else None,
            carried=carried,
        )


def read_words(cell: object, text: str, name: str) -> list:
    """Read the words of a text: a list, a JSON list, or words separated by spaces.

    Raises:
        ValueError: the cell is none of these.
    """
    if isinstance(cell, str) and cell.lstrip().startswith("["):
        try:
            cell = json.loads(cell)
        except json.JSONDecodeError as error:
            raise ValueError(f"--words-column must be valid JSON in {name}: {error}.") from None
    words = cell.split() if isinstance(cell, str) else cell
    if not isinstance(words, list) or not words:
        raise ValueError(
            "--words-column must be words separated by spaces, or a list of words or of "
            f"[start, end] pairs, got {cell!r:.80} in {name}."
        )
    if all(isinstance(word, str) for word in words):
        return words
    place = 0
    for pair in words:
        is_pair = isinstance(pair, list) and len(pair) == 2 and all(type(n) is int for n in pair)
        if not is_pair or not place <= pair[0] < pair[1] <= len(text):
            raise ValueError(
                "--words-column must be words, or ascending [start, end] pairs of characters, end "
                f"exclusive, within the {len(text)} of the text, got {pair!r} in {name}."
            )
        place = pair[1]
    return words


def is_chat(value) -> bool:
    """Return whether a cell is a list of messages, each with a role and a content."""
    return (
        isinstance(value, list)
        and len(value) > 0
        and all(isinstance(m, dict) and {"role", "content"} <= m.keys() for m in value)
    )


def replies(chat: list[dict]) -> str:
    """Return the assistant's messages, which determine the size of a chat and whether it is empty."""
    return "\n".join(str(m.get("content", "")) for m in chat if m.get("role") == "assistant")
