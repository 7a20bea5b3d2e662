"""Writing: JSON, tidy rows as JSON lines, CSV, TSV and Parquet."""

import csv
import io
import json
import math
from collections.abc import Sequence
from pathlib import Path


def to_json(value) -> str:
    """JSON, with null for the numbers that it doesn't have."""
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


def to_jsonl(rows: Sequence[dict]) -> str:
    return "".join(f"{to_json(row)}\n" for row in rows)


def to_csv(rows: Sequence[dict], delimiter: str = ",") -> str:
    """CSV or TSV with a header; lists as JSON, nothing for None."""
    file = io.StringIO()
    writer = csv.DictWriter(
        file, column_names(rows), restval="", delimiter=delimiter, lineterminator="\n"
    )
    writer.writeheader()
    for row in rows:
        writer.writerow({key: to_cell(value) for key, value in row.items()})
    return file.getvalue()


def to_cell(value):
    return to_json(value) if isinstance(value, dict | list | tuple) else value


def to_text(value) -> str:
    return value if isinstance(value, str) else to_json(value)


def write_parquet(rows: Sequence[dict], path: str) -> None:
    import pyarrow
    import pyarrow.parquet

    columns = {}
    for name in column_names(rows):
        values = [row.get(name) for row in rows]
        try:
            columns[name] = pyarrow.array(values)
        except pyarrow.ArrowException:  # lists of words and numbers; or two tables disagree
            columns[name] = pyarrow.array([None if v is None else to_text(v) for v in values])
    pyarrow.parquet.write_table(pyarrow.table(columns), path)


def column_names(rows: Sequence[dict]) -> list[str]:
    """The columns of all rows, in the order in which they come up."""
    return list(dict.fromkeys(name for row in rows for name in row))


def write(text: str, path: str) -> None:
    Path(path).write_text(text, "utf-8", newline="")
