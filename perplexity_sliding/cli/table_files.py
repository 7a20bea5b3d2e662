"""Tables in files: CSV, TSV, JSON lines and Parquet, read row by row as often as one likes.

A table is looked through once before anything is scored, so that a bad row is told at once.
"""

import csv
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain

from .sources import Source, suffix
from .unpacking import opened_lines
from .values import KeyTwice, without_twins

# Brackets in JSON, and strings, in which brackets are none.
JSON_PARTS = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[\[{]|[\]}]', re.DOTALL)
MOST_NESTED = 50  # lists and objects in each other
BATCH_ROWS = 1000


@dataclass(frozen=True)
class Table:
    """A table with one text a row.

    Attributes:
        columns: their names.
        num_rows: rows that are not blank.
        rows: reads these columns of them, from the first on; None where a row has no value.
        others: of columns that hold something else than text, what it is.
    """

    name: str
    columns: list[str]
    num_rows: int
    rows: Callable[[Sequence[str]], Iterator[dict]]
    others: dict[str, str] = field(default_factory=dict)


def open_table(source: Source, encoding: str | None) -> Table:
    """Look through a table.

    Raises:
        ValueError: it is empty or broken, in another encoding, or something else.
    """
    open_one = {"csv": open_csv, "json": open_json, "parquet": open_parquet}[source.builder]
    try:
        table = open_one(source, encoding)
    except (csv.Error, json.JSONDecodeError, EOFError) as error:
        raise ValueError(f"{source.name} could not be read as a table: {error}.") from None
    if not table.num_rows:
        raise ValueError(f"{source.name} has no rows.")
    return table


def check_no_twins(name: str, columns: Sequence[str]) -> None:
    """Refuse two columns with the same name: the texts of one of them would be lost."""
    twice = [column for column, times in Counter(columns).items() if times > 1]
    if twice:
        raise ValueError(f"{name} has two columns {twice[0]!r}: give one of them another name.")


# ---- CSV and TSV


def open_csv(source: Source, encoding: str | None) -> Table:
    """Look through a CSV or TSV file, whose cells are strings and nothing else.

    Raises:
        ValueError: it names no columns, or two alike; or a row has more fields than there are
            columns, as where a text with a comma in it lacks its quotes, or a stray quote.
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
    """Return what stands between cells, and a reader of the rows."""
    csv.field_size_limit(2**31 - 1)  # a cell may be a book
    first = next(lines, "").removeprefix("\ufeff")
    # semicolons or tabs where the header has no comma
    delimiter = next((mark for mark in (",", ";", "\t") if mark in first), ",")
    delimiter = "\t" if suffix(source.name) == ".tsv" else delimiter
    return delimiter, csv.reader(chain([first], lines), delimiter=delimiter, strict=True)


def csv_header(name: str, records: Iterator[list[str]]) -> list[str]:
    header = next(records, [])
    if not header:
        raise ValueError(f"{name} must name its columns in the first line.")
    check_no_twins(name, header)
    return header


def count_rows(name: str, records, num_columns: int, delimiter: str) -> int:
    """Count the rows; refuse one that has more fields than there are columns, or a stray quote.

    A quote that is never closed takes all that follows for one text.

    Args:
        records: a strict `csv.reader`, which knows the line that it has come to.
    """
    number, last_line = 0, records.line_num
    try:
        for record in records:
            number, last_line = number + bool(record), records.line_num
            if len(record) > num_columns:
                raise ValueError(
                    f"{name} has {len(record)} fields in line {last_line}, but {num_columns} "
                    f"columns. Put texts with {delimiter!r} in them in quotes."
                )
    except csv.Error as error:
        raise ValueError(
            f"{name} could not be read as a table from line {last_line + 1} on: {error}. A text with "
            "quotes in it must be in quotes, and its own doubled."
        ) from None
    return number


# ---- JSON


def open_json(source: Source, encoding: str | None) -> Table:
    """Look through a file with a JSON object a line, or with one list of objects.

    Raises:
        ValueError: a line holds something else, or lists and objects too deep in each other.
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
    """Read the objects of a file line by line, or all at once where a line is none by itself."""
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
    """List the rows that a JSON value stands for: an object is one, a list of them several."""
    rows = value if isinstance(value, list) else [value]
    if not all(isinstance(row, dict) for row in rows):
        raise ValueError(
            f'{what} must be a JSON object such as {{"text": "…"}}, got a {type(value).__name__}.'
        )
    return rows


def parse_json(what: str, text: str) -> object:
    """Parse JSON.

    Args:
        what: the name of it in errors.

    Raises:
        ValueError: it nests so deep that a reader could run out of its stack, or an object has a
            key twice.
    """
    if text.count("[") + text.count("{") > MOST_NESTED and nesting(text) > MOST_NESTED:
        raise ValueError(
            f"{what} nests lists and objects more than {MOST_NESTED} deep, which no table does."
        )
    try:
        return json.loads(text, object_pairs_hook=without_twins)
    except KeyTwice as error:
        raise ValueError(
            f"{what} has the key {error.key!r} twice: give one of them another name."
        ) from None


def nesting(text: str) -> int:
    """Measure how deep lists and objects stand in each other."""
    depth = deepest = 0
    for match in JSON_PARTS.finditer(text):
        mark = text[match.start()]
        depth += (mark in "[{") - (mark in "]}")
        deepest = max(deepest, depth)
    return deepest


# ---- Parquet


def open_parquet(source: Source, encoding: str | None) -> Table:
    """Look at the schema of a Parquet file.

    Raises:
        ValueError: it is none, or two of its columns have the same name.
    """
    import pyarrow
    import pyarrow.parquet

    try:
        file = pyarrow.parquet.ParquetFile(source.name)
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(f"{source.name} could not be read as a table: {error}.") from None
    check_no_twins(source.name, file.schema_arrow.names)
    texts = {"string", "large_string", "string_view", "null"}

    def is_text(kind: pyarrow.DataType) -> bool:
        return str(kind.value_type if pyarrow.types.is_dictionary(kind) else kind) in texts

    others = {
        column.name: str(column.type) for column in file.schema_arrow if not is_text(column.type)
    }

    def rows(columns: Sequence[str]) -> Iterator[dict]:
        for batch in file.iter_batches(BATCH_ROWS, columns=list(columns)):
            yield from batch.to_pylist()

    return Table(source.name, file.schema_arrow.names, file.metadata.num_rows, rows, others)
