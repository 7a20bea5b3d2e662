"""Tables with one text per row: CSV, TSV, JSON lines and Parquet, read row by row any number of times.

A file is read once before anything is scored, so that an invalid row is reported at once.
"""

import csv
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain

from .sources import Source, opened_lines, suffix

BATCH_ROWS = 1000
DELIMITERS = ",;\t"
# Excel's first line, which names the delimiter.
SEP = re.compile(r"sep=(.)[\r\n]*", re.IGNORECASE)


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
    table = open_one(source, encoding)
    if not table.num_rows:
        raise ValueError(f"{source.name} has no rows.")
    twice = [name for name in table.columns if table.columns.count(name) > 1]
    if twice:
        raise ValueError(f"{source.name} has two columns {twice[0]!r}: rename one of them.")
    return table


def open_csv(source: Source, encoding: str | None) -> Table:
    """Validate a CSV or TSV file, whose cells are all strings.

    Raises:
        ValueError: it has no header, a row with more fields than columns (such as an unquoted text
            with a comma), or a stray quote.
    """

    def records() -> Iterator[list[str]]:
        with opened_lines(source, encoding) as lines:
            yield from read_csv(source, lines)

    columns, *_ = records()
    num_rows = sum(1 for _ in records()) - 1

    def rows(wanted: Sequence[str]) -> Iterator[dict]:
        places = [(name, columns.index(name)) for name in wanted]
        body = records()
        next(body)
        for record in body:
            record += [None] * (len(columns) - len(record))
            yield {name: record[place] for name, place in places}

    return Table(source.name, columns, num_rows, rows)


def read_csv(source: Source, lines: Iterator[str]) -> Iterator[list[str]]:
    """Yield the header and the rows that are not blank.

    The delimiter is the one that Excel's first line names, or the one that cuts the header into most
    fields.
    """
    csv.field_size_limit(2**31 - 1)  # a cell may be a book
    first = next(lines, "").removeprefix("\ufeff")
    if named := SEP.fullmatch(first):
        delimiter, first = named[1], next(lines, "")
    elif suffix(source.name) == ".tsv":
        delimiter = "\t"
    else:
        delimiter = max(DELIMITERS, key=lambda mark: len(next(csv.reader([first], delimiter=mark))))
    reader = csv.reader(chain([first], lines), delimiter=delimiter, strict=True)
    header, line = None, 0
    try:
        for record in reader:
            if header is None:
                if not record:
                    raise ValueError(
                        f"{source.name} must have the names of its columns in the first line."
                    )
                header = record
            if len(record) > len(header):
                raise ValueError(
                    f"{source.name} has {len(record)} fields in line {reader.line_num}, but "
                    f"{len(header)} columns. Quote texts that contain {delimiter!r}."
                )
            line = reader.line_num
            if record:
                yield record
    except csv.Error as error:
        raise ValueError(
            f"{source.name} could not be read as a table from line {line + 1} on: {error}. Quote texts "
            "that contain quotes, and double these."
        ) from None


def open_json(source: Source, encoding: str | None) -> Table:
    """Validate a file with one JSON object per line, or with one list of objects.

    Raises:
        ValueError: a line is not an object.
    """

    def objects() -> Iterator[dict]:
        with opened_lines(source, encoding) as lines:
            yield from read_json(source.name, lines)

    kinds: dict[str, set[str]] = {}
    num_rows = 0
    for row in objects():
        num_rows += 1
        for name, value in row.items():
            kinds.setdefault(name, set()).add(type(value).__name__)

    def rows(wanted: Sequence[str]) -> Iterator[dict]:
        return ({name: row.get(name) for name in wanted} for row in objects())

    others = {name: ", ".join(sorted(of - {"str", "NoneType"})) for name, of in kinds.items()}
    others = {name: of for name, of in others.items() if of}
    return Table(source.name, list(kinds), num_rows, rows, others)


def read_json(name: str, lines: Iterator[str]) -> Iterator[dict]:
    """Yield the objects of a file line by line, or all at once if the first line is not an object."""
    lines = filter(str.strip, lines)
    first = next(lines, "").removeprefix("\ufeff")
    try:
        json.loads(first)
    except (json.JSONDecodeError, RecursionError):
        first, lines = first + "".join(lines), iter(())
    for number, line in enumerate(chain([first], lines), 1):
        try:
            value = json.loads(line)
        except (json.JSONDecodeError, RecursionError) as error:
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


def open_parquet(source: Source, encoding: str | None) -> Table:
    """Read the schema of a Parquet file.

    Raises:
        ValueError: it is not a Parquet file.
    """
    import pyarrow
    import pyarrow.parquet

    try:
        file = pyarrow.parquet.ParquetFile(source.name)
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(f"{source.name} could not be read as a table: {error}.") from None
    texts = {"string", "large_string", "string_view", "null"}

    def is_text(kind: pyarrow.DataType) -> bool:
        return str(kind.value_type if pyarrow.types.is_dictionary(kind) else kind) in texts

    def rows(wanted: Sequence[str]) -> Iterator[dict]:
        for batch in file.iter_batches(BATCH_ROWS, columns=list(wanted)):
            yield from batch.to_pylist()

    schema = file.schema_arrow
    others = {column.name: str(column.type) for column in schema if not is_text(column.type)}
    return Table(source.name, schema.names, file.metadata.num_rows, rows, others)
