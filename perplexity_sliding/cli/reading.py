"""The texts of the sources, read one after the other as they are asked for."""

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
from .table_files import Table, open_table
from .unpacking import read_text

DATASET = re.compile(r"(.+?):([^:]*):([^:\[]+(?:\[[^\]]*\])?):([^:]+)")


@dataclass(frozen=True)
class Text:
    """A text to score, or a file that could not be read.

    Attributes:
        name: what the output calls it: its file, or its row.
        text: what is scored.
        row: its number in a table or dataset, from 0; None for a file of its own.
        share: of all that is read in this run, as far as sizes of files and numbers of rows tell.
        context: what is read before it without being scored.
        chat: the messages that stand in the place of the text; the text is what its assistants say.
        words: its words, or (first, one past the last) characters of each; None where nobody says.
        carried: the other columns of its row.
        error: why it could not be read; None where it could.
        place: its number among all texts, where a part of them is scored.
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
        wording: what the model read: its context, then the text; None where that is not at hand.
        begin: where the text begins in it, in characters.
        carried: the other columns of its row.
    """

    name: str
    wording: str | None
    begin: int = 0
    carried: dict = field(default_factory=dict)


def open_texts(args: argparse.Namespace) -> Iterator[Text]:
    """List the sources, which refuses what isn't there; return their texts, not read yet."""
    if args.dataset:
        match = DATASET.fullmatch(args.dataset)
        if match is None:
            raise ValueError(f"--dataset must be NAME:CONFIG:SPLIT:COLUMN, got {args.dataset!r}.")
        place = Path(match[1])  # of the dataset, where it does not lie on the Hub
        check_outputs(args, [str(file) for file in (place, *place.rglob("*")) if file.is_file()])
        return watched(read_dataset(*match.groups(), args), args)
    sources = list_sources(args.files)
    check_outputs(args, [source.name for source in sources if source.name != STANDARD_INPUT])
    if not any(source.builder for source in sources):
        check_no_columns(args, sources[0].shown)
    return watched(read_sources(sources, args), args)


def open_each(args: argparse.Namespace) -> list[Iterator[Text]]:
    """List the texts of each FILE by itself."""
    opened = [open_texts(argparse.Namespace(**vars(args) | {"files": [f]})) for f in args.files]
    return [guarded(texts, name) for texts, name in zip(opened, args.files)]


def guarded(texts: Iterator[Text], name: str) -> Iterator[Text]:
    """Read one of several files; what cannot be read becomes a text with an error."""
    try:
        yield from texts
    except (ValueError, OSError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        yield Text(name, "", error=reason)


def check_outputs(args: argparse.Namespace, names: list[str]) -> None:
    """Refuse to write anything over the files that are read."""
    for option, path in written_files(args).items():
        check_output(option, path, names)


def check_output(option: str, output: str, names: list[str], what: str = "texts") -> None:
    """Refuse to write over what is read.

    Args:
        names: of the files that are read.
        what: what an error calls them.
    """
    if Path(output).exists() and any(Path(output).samefile(name) for name in names):
        raise ValueError(
            f"{option} must not be one of the {what}, got {output!r}. Name a file that lies elsewhere."
        )


def check_no_columns(args: argparse.Namespace, name: str) -> None:
    """Refuse the names of columns where no table is read."""
    for option in ("text_column", "context_column", "words_column", "id_column"):
        if getattr(args, option):
            raise ValueError(
                f"--{option.replace('_', '-')} must go with a table, but {name} is read as a text: "
                f"its name must end in {', '.join(TABLES)}."
            )


def watched(texts: Iterator[Text], args: argparse.Namespace) -> Iterator[Text]:
    """Look out for mistakes in the texts that go by."""
    suspicions = Suspicions(bool(args.detokenize), args.context_separator, args.encoding)
    for text in texts:
        if text.error is None:
            suspicions.look_at_encoding(text.name, (text.context or "") + text.text)
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
                if args.words_column:
                    raise ValueError(f"--words-column needs tables, but {source.shown} is a text.")
                text = read_text(source, args.encoding)
                kept = {"text": text} if args.keep_text else {}
                yield Text(source.name, text, share=share, carried=kept)
        except (ValueError, OSError) as error:
            if len(sources) == 1:
                raise
            reason = error.strerror if isinstance(error, OSError) else str(error)
            yield Text(source.name, "", error=reason)


def read_table(source: Source, args: argparse.Namespace, share: float) -> Iterator[Text]:
    """Read a table, one text a row."""
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
            f"--context-column must be another column than that of the texts, got {column!r}."
        )


def choose_column(name: str, columns: list[str], wanted: str | None) -> str:
    """Choose the column with the texts: the one asked for, `text`, or the only one."""
    if wanted is not None:
        check_column("--text-column", name, columns, wanted)
        return wanted
    if "text" in columns:
        return "text"
    if len(columns) == 1:
        if builder_of(name) == "csv" and len(columns[0].split()) > 1:
            say(
                f"warning: the first line of {name}, {columns[0]!r:.80}, names its column, and is not "
                "scored. Begin the file with a line 'text' if it is a text."
            )
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
    table = load_split(name, config, split, args)
    check_column("--dataset", name, table.columns, column)
    check_other_columns(name, table.columns, column, args)
    if not table.num_rows:
        raise ValueError(f"--dataset={args.dataset} has no rows.")
    yield from read_rows(table, column, None, args)


def load_split(name: str, config: str, split: str, args: argparse.Namespace) -> Table:
    """Load a split of a dataset of the Hub or a folder, or of a file, whose rows are "train"."""
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
        name, rows.column_names, len(rows), lambda names: iter(rows.select_columns(names)), others
    )


def slice_of(table: Table, split: str) -> Table:
    """Cut the rows out that a split such as train[:100] names."""
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
    """Yield the texts of a table, with its other columns where the output has room for them."""
    needed = list(filter(None, dict.fromkeys((column, args.context_column, args.words_column))))
    holds_chats = is_chat(next(table.rows([column]))[column])
    for of_texts in needed:
        may_be_lists = of_texts == args.words_column or (of_texts == column and holds_chats)
        if of_texts in table.others and not may_be_lists:
            raise ValueError(
                f"{name or args.dataset} must have texts in the column {of_texts!r}, but it holds "
                f"others ({table.others[of_texts]})."
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
                f"{table.name} must hold chats in all rows of {column!r}, got {text!r:.80} in row "
                f"{number}."
            )
        yield Text(
            name=str(row[args.id_column]) if args.id_column else row_name,
            text=text if chat is None else replies(chat),
            row=number,
            share=share / table.num_rows,
            context=row[args.context_column] if args.context_column else None,
            chat=chat,
            words=read_words(row[args.words_column], text, row_name) if args.words_column else None,
            carried=carried,
        )


def read_words(cell: object, text: str, name: str) -> list:
    """Read the words of a text: a list, one in JSON, or words with spaces between.

    Raises:
        ValueError: the cell has none of them.
    """
    if isinstance(cell, str) and cell.lstrip().startswith("["):
        try:
            cell = json.loads(cell)
        except json.JSONDecodeError as error:
            raise ValueError(f"--words-column must hold JSON in {name}: {error}.") from None
    words = cell.split() if isinstance(cell, str) else cell
    if not isinstance(words, list) or not words:
        raise ValueError(
            "--words-column must hold words with spaces between, or a list of words or of "
            f"[first, end] pairs, got {cell!r:.80} in {name}."
        )
    if all(isinstance(word, str) for word in words):
        return words
    place = 0
    for pair in words:
        is_pair = isinstance(pair, list) and len(pair) == 2 and all(type(n) is int for n in pair)
        if not is_pair or not place <= pair[0] < pair[1] <= len(text):
            raise ValueError(
                "--words-column must hold words, or pairs [first, one past the last] of characters, "
                f"ascending and within the {len(text)} of the text, got {pair!r} in {name}."
            )
        place = pair[1]
    return words


def is_chat(value) -> bool:
    """Tell whether a cell holds a list of messages, each with a role and a content."""
    return (
        isinstance(value, list)
        and len(value) > 0
        and all(isinstance(m, dict) and {"role", "content"} <= m.keys() for m in value)
    )


def replies(chat: list[dict]) -> str:
    """Return what the assistants say, by which a text is seen to be empty, and measured beforehand."""
    return "\n".join(str(m.get("content", "")) for m in chat if m.get("role") == "assistant")
