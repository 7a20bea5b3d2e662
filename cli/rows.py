"""Tidy rows: one a text, one a token, one a word, with flat columns for other programs.

Every plain number of a result is a column by itself, so that a new one needs no edit here.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Sequence

from .reading import ReadText
from .spooling import Rows

# What stands under other names, or is no number of one text.
NOT_COLUMNS = {
    "name",
    "row",
    "carried",
    "perplexities",
    "num_texts",
    "num_tokens_per_text",
    "mean_perplexity",
    "total_nll",
}
PLAIN = (bool, int, float, str)
# Lists of a text's parts that are not columns of them.
NOT_OF_PARTS = {"windows"}


def of_texts(results: Iterable[dict]) -> Rows[dict]:
    """Make one row of a flat result: its name, what was carried along, then its numbers."""
    kinds: dict[tuple, dict] = {}  # one result of those that have the same keys
    for result in results:
        kinds.setdefault((*result, *result.get("carried", ())), result)
    taken = set().union(*kinds.values()) - {"carried"}  # in a row without an error too
    columns = dict.fromkeys(key for result in kinds.values() for key in with_carried(result, taken))
    return Rows(lambda: (with_carried(row, taken) for row in results), list(columns))


def with_carried(row: dict, taken: Collection[str]) -> dict:
    """Put what was carried along into its columns."""
    own = dict(row)
    return of_part(own, own.pop("carried", {}), taken)


def of_part(row: dict, carried: dict, taken: Collection[str]) -> dict:
    """Put a table's other columns behind the name; one whose name is taken gets another."""
    renamed = {free_name(name, taken, carried): value for name, value in carried.items()}
    return {"name": row["name"]} | renamed | row


def free_name(name: str, taken: Collection[str], carried: Collection[str]) -> str:
    """Return a name for a column of a table that no other column has."""
    if name not in taken:
        return name
    given = f"{name}_given"
    while given in taken or given in carried:
        given += "_given"
    return given


def of_measurements(results: Sequence[dict]) -> list[dict]:
    rows = [flat(result) for result in results]
    return [{key: value for key, value in row.items() if key != "name"} for row in rows]


def flat(result: dict) -> dict:
    """Keep the plain values of a result; intervals as two columns, nlls in nats and in bits."""
    row: dict = {key: result[key] for key in ("name", "carried") if key in result}
    for key, value in result.items():
        if key in NOT_COLUMNS:
            continue
        if isinstance(value, PLAIN):  # most are
            row[key] = value
        elif key.endswith("interval"):
            low, high = value or (None, None)
            stem = key.removesuffix("interval")
            row |= {f"{stem}low": low, f"{stem}high": high}
        elif isinstance(value, dict):
            row |= {f"{key}_{name}": of_key for name, of_key in flat(value).items()}
        elif value is None:
            row[key] = value
    if "total_nll" in result:
        row |= in_both_units(result["total_nll"])
    return row


def of_parts(text: ReadText, parts: dict[str, list], unit: str) -> Iterator[dict]:
    """Make one row of a token or word of a text, with its place in it: that of a context is negative.

    Args:
        parts: equally long columns of a text, such as its `token_scores` or `word_scores`.
        unit: "token" or "word": the name of the column with the piece as the text writes it.
    """
    columns = {key: values for key, values in parts.items() if key not in NOT_OF_PARTS}
    own_name = f"{unit}s"
    previous: dict[str, float | None] = in_both_units(None)
    for number in range(len(columns[own_name])):
        values = {key: column[number] for key, column in columns.items()}
        first, last = values.pop("offsets", None) or (None, None)
        raw = values.pop(own_name)
        row = {
            "name": text.name,
            "number": number,
            unit: raw if first is None or text.wording is None else text.wording[first:last],
            "first": None if first is None else first - text.begin,
            "last": None if last is None else last - text.begin,
            **in_both_units(values.pop("nll")),
        }
        if "surprisal" in values:
            corrected = in_both_units(values.pop("surprisal"))
            row |= {f"surprisal_{name}": value for name, value in corrected.items()}
            row |= {f"previous_surprisal_{name}": value for name, value in previous.items()}
            row["word_length"] = len(row[unit])
            previous = corrected
        row |= values
        yield row | ({"piece": raw} if unit == "token" else {})


def in_both_units(nll: float | None) -> dict[str, float | None]:
    return {"nats": nll, "bits": None if nll is None else nll / math.log(2)}
