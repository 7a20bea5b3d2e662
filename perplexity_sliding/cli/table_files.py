"""Tables in files: CSV, TSV, JSON lines and Parquet, read row by row any number of times.

A table is validated before anything is scored, so that an invalid row is reported at once.
"""

import csv
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain

from .sources import Source, suffix
from .unpacking import opened_lines
from .values import KeyTwice, refuse_duplicates

# Brackets in JSON, and strings, whose brackets do not count.
JSON_PARTS = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[\[{]|[\]}]', re.DOTALL)
MOST_NESTED = 50  # depth of lists and objects
BATCH_ROWS = 1000


@dataclass(frozen=True)
class Table:
    """A table with one text per row.

    Attributes:
        columns: names of the columns.
        num_rows: number of rows that are not blank.
        rows: reads the given columns of all rows; missing values are None.
        others: types of the columns that are not text.
    """

    name: str
    columns: list[str]
    num_rows: int
    rows: Callable[[Sequence[str]], Iterator[dict]]
    others: dict[str, str] = field(default_factory=dict)


def open_table(source: Source, encoding: str | None) -> Table:
    """Validate a table.

    Raises:
        ValueError: it is empty, broken, in another encoding, or not a table.
    """
    open_one = {"csv": open_csv, "json": open_json, "parquet": open_parquet}[source.builder]
    try:
        table = open_one(source, encoding)
    except (csv.Error, json.JSONDecodeError, EOFError) as error:
        raise ValueError(f"{source.name} could not be read as a table: {error}.") from None
    if not table.num_rows:
        raise ValueError(f"{source.name} has no rows.")
    return table


def check_unique(name: str, columns: Sequence[str]) -> None:
    """Refuse two columns with the same name: the texts of one would be lost."""
    twice = [column for column, times in Counter(columns).items() if times > 1]
    if twice:
        raise ValueError(f"{name} has two columns {twice[0]!r}: rename one of them.")


# ---- CSV and TSV


def open_csv(source: Source, encoding: str | None) -> Table:
    """Validate a CSV or TSV file, whose cells are all strings.

    Raises:
        ValueError: it has no header, two equal columns, a row with more fields than columns (such
            as an unquoted text with a comma), or a stray quote.
    """
    with opened_lines(source, encoding) as lines:
        delimiter, records = csv_records(source, lines)
        header = csv_header(source.name, records)
        num_rows = count_rows(source.name, records, len(header), delimiter)

    places_of = {name: place for place, name in enumerate(header)}

    def rows(columns: Sequence[str]) -> Iterator[dict]:
        places = [(name, places_of[name]) for name in columns]
        with opened_lines(source, encoding) as lines:
            _, records = csv_records(source, lines)
            next(records)
            for record in filter(None, records):
                record += [None] * (len(header) - len(record))
                yield {name: record[place] for name, place in places}

    return Table(source.name, header, num_rows, rows)


def csv_records(source: Source, lines: Iterator[str]) -> tuple[str, Iterator[list[str]]]:
    """Return the delimiter and a reader of the rows."""
    csv.field_size_limit(2**31 - 1)  # a cell may be a book
    first = next(lines, "").removeprefix("\ufeff")
    # semicolons or tabs where the header has no comma
    delimiter = next((mark for mark in (",", ";", "\t") if mark in first), ",")
    delimiter = "\t" if suffix(source.name) == ".tsv" else delimiter
    return delimiter, csv.reader(chain([first], lines), delimiter=delimiter, strict=True)


def csv_header(name: str, records: Iterator[list[str]]) -> list[str]:
    header = next(records, [])
    if not header:
        raise ValueError(f"{name} must have the names of its columns in the first line.")
    check_unique(name, header)
    return header


def count_rows(name: str, records, num_columns: int, delimiter: str) -> int:
    """Count the rows; refuse a row with more fields than columns, or a stray quote.

    A quote that is never closed would make the rest of the file one text.

    Args:
        records: a strict `csv.reader`.
    """
    number, last_line = 0, records.line_num
    try:
        for record in records:
            number, last_line = number + bool(record), records.line_num
            if len(record) > num_columns:
                raise ValueError(
                    f"{name} has {len(record)} fields in line {last_line}, but {num_columns} "
                    f"columns. Quote texts that contain {delimiter!r}."
                )
    except csv.Error as error:
        raise ValueError(
            f"{name} could not be read as a table from line {last_line + 1} on: {error}. Quote texts "
            "that contain quotes, and double these."
        ) from None
    return number


# ---- JSON


def open_json(source: Source, encoding: str | None) -> Table:
    """Validate a file with one JSON object per line, or with one list of objects.

    Raises:
        ValueError: a line is not an object, or lists and objects are nested too deep.
    """

    def objects() -> Iterator[dict]:
        with opened_lines(source, encoding) as lines:
            yield from json_objects(source.name, lines)

    columns: dict[str, set[type]] = {}
    num_rows = 0
    for row in objects():
        num_rows += 1
        for name, value in row.items():
            columns.setdefault(name, set()).add(type(value))

    def rows(wanted: Sequence[str]) -> Iterator[dict]:
        return ({name: row.get(name) for name in wanted} for row in objects())

    others = {name: kinds - {str, type(None)} for name, kinds in columns.items()}
    named = {
        name: ", ".join(sorted(k.__name__ for k in kinds))
        for name, kinds in others.items()
        if kinds
    }
    return Table(source.name, list(columns), num_rows, rows, named)


def json_objects(name: str, lines: Iterator[str]) -> Iterator[dict]:
    """Read the objects of a file line by line, or all at once if the first line is not an object."""
    lines = filter(str.strip, lines)
    first = next(lines, "").removeprefix("\ufeff")
    if is_json(f"{name}: object 1", first):
        for number, line in enumerate(chain([first], lines), 1):
            what = f"{name}: object {number}"
            try:
                yield from as_objects(parse_json(what, line), what)
            except json.JSONDecodeError as error:
                raise ValueError(
                    f"{name} could not be read as a table: object {number}: {error}."
                ) from None
    else:
        yield from as_objects(parse_json(name, first + "".join(lines)), name)


def is_json(what: str, line: str) -> bool:
    try:
        parse_json(what, line)
    except json.JSONDecodeError:
        return False
    return True


def as_objects(value: object, what: str) -> list[dict]:
    """Return the rows in a JSON value: an object, or a list of objects."""
    rows = value if isinstance(value, list) else [value]
    if not all(isinstance(row, dict) for row in rows):
        raise ValueError(
            f'{what} must be a JSON object such as {{"text": "…"}}, got a {type(value).__name__}.'
        )
    return rows


def parse_json(what: str, text: str) -> object:
    """Parse JSON.

    Args:
        what: its name in errors.

    Raises:
        ValueError: it is nested so deep that a parser could exhaust its stack, or an object has a
            duplicate key.
    """
    if text.count("[") + text.count("{") > MOST_NESTED and nesting(text) > MOST_NESTED:
        raise ValueError(
            f"{what} must not nest lists and objects more than {MOST_NESTED} levels deep."
        )
    try:
        return json.loads(text, object_pairs_hook=refuse_duplicates)
    except KeyTwice as error:
        raise ValueError(f"{what} has the key {error.key!r} twice: rename one of them.") from None


def nesting(text: str) -> int:
    """Return the depth of nested lists and objects."""
    depth = deepest = 0
    for match in JSON_PARTS.finditer(text):
        mark = text[match.start()]
        depth += (mark in "[{") - (mark in "]}")
        deepest = max(deepest, depth)
    return deepest


# ---- Parquet


def open_parquet(source: Source, encoding: str | None) -> Table:
    """Read the schema of a Parquet file.

    Raises:
        ValueError: it is not a Parquet file, or two columns have the same name.
    """
    import pyarrow
    import pyarrow.parquet

    try:
        file = pyarrow.parquet.ParquetFile(source.name)
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(f"{source.name} could not be read as a table: {error}.") from None
    check_unique(source.name, file.schema_arrow.names)
    texts = {"string", "large_string", "string_view", "null"}

    def is_text(kind: pyarrow.DataType) -> bool:
        return str(kind.value_type if pyarrow.types.is_dictionary(kind) else kind) in texts

    others = {
        column.name: str(column.type) for column in file.schema_arrow if not is_text(column.type)
    }

    def rows(columns: Sequence[str]) -> Iterator[dict]:
        for batch in file.iter_batches(BATCH_ROWS, columns=list(columns)):
            yield from of_arrow(batch.to_pylist())

    return Table(source.name, file.schema_arrow.names, file.metadata.num_rows, rows, others)


def of_arrow(rows: Iterable[dict]) -> Iterator[dict]:
    """Drop the keys without a value from objects in lists, such as the messages of a chat.

    Arrow gives each object the keys of all.
    """
    return ({name: _without_empty(cell) for name, cell in row.items()} for row in rows)


def _without_empty(cell: object) -> object:
    if not isinstance(cell, list):
        return cell
    return [_with_values(item) for item in cell]


def _with_values(item: object) -> object:
    if isinstance(item, dict):
        return {key: _with_values(value) for key, value in item.items() if value is not None}
    return _without_empty(item)
