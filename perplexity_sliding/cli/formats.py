"""Write JSON, and tidy rows as JSON lines, CSV, TSV and Parquet."""

import csv
import json
import math
from collections.abc import Iterable, Iterator
from itertools import islice
from types import SimpleNamespace

from ..views.replacing import replaced
from .spooling import Rows, Spool

BATCH_ROWS = 10_000  # rows of Parquet written at a time
NESTED = (dict, list, tuple)


def to_json(value) -> str:
    """Format JSON, with null for infinite and undefined numbers."""
    return json.dumps(finite(value), ensure_ascii=False, default=str)


def finite(value):
    """Replace infinite and undefined numbers by None."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


def json_pieces(value: object) -> Iterator[str]:
    """Yield JSON piece by piece, one row at a time if rows may exceed memory."""
    if isinstance(value, dict):
        yield from surrounded("{}", ((to_json(str(key)), of_key) for key, of_key in value.items()))
    elif isinstance(value, Rows | Spool):
        yield from surrounded("[]", ((None, row) for row in value))
    else:
        yield to_json(value)


def surrounded(brackets: str, items: Iterable[tuple[str | None, object]]) -> Iterator[str]:
    """Yield the items of a list, or of an object with its keys."""
    between = brackets[0]
    for key, value in items:
        yield between if key is None else f"{between}{key}: "
        yield from json_pieces(value)
        between = ", "
    yield brackets[1] if between != brackets[0] else brackets


def to_csv(rows: Iterable[dict], delimiter: str = ",") -> Iterator[str]:
    """Yield CSV or TSV with a header; lists become JSON, and None becomes empty."""
    names = column_names(rows)
    # `writerow` returns what the `write` of its file does, and quotes the characters of its line end: a
    # token may be a carriage return, which readers take for the end of a row.
    writer = csv.writer(SimpleNamespace(write=str), delimiter=delimiter, lineterminator="\r\n")
    yield writer.writerow(names).removesuffix("\r\n") + "\n"
    for row in rows:
        cells = [to_json(v) if isinstance(v, NESTED) else v for v in map(row.get, names)]
        yield writer.writerow(cells).removesuffix("\r\n") + "\n"


def to_text(value) -> str:
    return value if isinstance(value, str) else to_json(value)


def write_parquet(rows: Iterable[dict], path: str) -> None:
    """Write Parquet; columns with values of different types, or of none that it has, become strings."""
    import pyarrow
    import pyarrow.parquet

    kinds = dict.fromkeys(column_names(rows), pyarrow.null())
    for batch in batched(rows):
        for name, kind in kinds.items():
            kinds[name] = common_kind(kind, [row.get(name) for row in batch])
    kinds = {n: kind if is_storable(kind) else pyarrow.string() for n, kind in kinds.items()}
    schema = pyarrow.schema(kinds)
    with replaced(path) as place, pyarrow.parquet.ParquetWriter(place, schema) as writer:
        for batch in batched(rows):
            columns = [
                of_kind(kind, [row.get(name) for row in batch]) for name, kind in kinds.items()
            ]
            writer.write_table(pyarrow.Table.from_arrays(columns, schema=schema))


def common_kind(kind, values: list):
    """Return the common Arrow type of a type and values; string if there is none."""
    import pyarrow

    try:
        both = [pyarrow.schema({"": one}) for one in (kind, pyarrow.array(values).type)]
        return pyarrow.unify_schemas(both, promote_options="permissive").types[0]
    # Lists of words and numbers, tables that disagree, integers beyond 64 bits.
    except (pyarrow.ArrowException, OverflowError):
        return pyarrow.string()


def is_storable(kind) -> bool:
    """Return whether Parquet stores values of an Arrow type: objects without any key it does not."""
    import pyarrow

    if pyarrow.types.is_struct(kind):
        return kind.num_fields > 0 and all(is_storable(field.type) for field in kind)
    return is_storable(kind.value_type) if pyarrow.types.is_list(kind) else True


def of_kind(kind, values: list):
    """Return an Arrow array of a type."""
    import pyarrow

    if kind == pyarrow.string():
        values = [None if value is None else to_text(value) for value in values]
    return pyarrow.array(values, kind)


def batched(rows: Iterable[dict]) -> Iterator[list[dict]]:
    rows = iter(rows)
    while batch := list(islice(rows, BATCH_ROWS)):
        yield batch


def column_names(rows: Iterable[dict]) -> list[str]:
    """List the columns of all rows, in the order of their first appearance."""
    if isinstance(rows, Rows) and rows.columns is not None:
        return rows.columns
    names: dict[str, None] = {}
    for row in rows:
        names |= dict.fromkeys(row)
    return list(names)


def write(pieces: Iterable[str], path: str) -> None:
    with replaced(path) as place, open(place, "w", encoding="utf-8", newline="") as file:
        file.writelines(pieces)
