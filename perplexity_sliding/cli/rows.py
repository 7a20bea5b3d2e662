"""Tidy rows per text, token or word, with flat columns for other programs.

Every plain number of a result becomes a column, so a new one needs no change here.
"""

import math
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Sequence

from .reading import ReadText
from .spooling import Rows

# Keys with other names, or that are not numbers of one text.
NOT_COLUMNS = {
    "name", "row", "carried", "perplexities", "num_texts", "num_tokens_per_text", "mean_perplexity",
}  # fmt: skip
PLAIN = (bool, int, float, str)
# Results in nats, whose columns end in the unit; sums over a text, token or word are also in bits.
NATS = {
    *("nll", "total_nll", "surprisal", "space_nll", "entropy", "alternatives", "nll_difference"),
    *("reference_nll", "kl", "kl_reverse", "kl_percentiles", "probe", "reference_probe"),
}
IN_BOTH_UNITS = {"nll", "total_nll", "surprisal"}
# Lists of a text's parts that are not columns of them.
NOT_OF_PARTS = {"windows"}


def of_texts(results: Iterable[dict]) -> Rows[dict]:
    """Return one row per result: its name, the table's other columns, then its numbers."""
    kinds: dict[tuple, dict] = {}  # one result of those that have the same keys
    for result in results:
        kinds.setdefault((*result, *result.get("carried", ())), result)
    taken = set().union(*kinds.values()) - {"carried"}  # in a row without an error too
    columns = dict.fromkeys(key for result in kinds.values() for key in with_carried(result, taken))
    return Rows(lambda: (with_carried(row, taken) for row in results), list(columns))


def with_carried(row: dict, taken: Collection[str]) -> dict:
    """Insert the table's other columns into a row."""
    own = dict(row)
    return of_part(own, own.pop("carried", {}), taken)


def of_part(row: dict, carried: dict, taken: Collection[str]) -> dict:
    """Insert a table's other columns after the name; rename those whose name is taken."""
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


def of_measurements(results: Sequence[dict], has_labels: bool = False) -> list[dict]:
    """Make one row of a measurement; models that have labels keep them, as `label`."""
    rows = [flat(result) for result in results]
    labels = [{"label": row.pop("name", None)} if has_labels else {} for row in rows]
    return [
        {k: v for k, v in (of_row | row).items() if k != "name"}
        for of_row, row in zip(labels, rows)
    ]


def flat(result: dict) -> dict:
    """Keep the plain values of a result; intervals as two columns, nlls in nats and in bits."""
    row: dict = {key: result[key] for key in ("name", "carried") if key in result}
    for key, value in result.items():
        if key not in NOT_COLUMNS:
            row |= columns_of(key, value)
    return row


def columns_of(key: str, value: object) -> dict:
    """Return the columns of one value of a result; none for a list."""
    if key.endswith("interval"):
        low, high = value or (None, None)
        name = key.removesuffix("interval")
        unit = "_nats" if name.removesuffix("_") in NATS else ""
        return {f"{name}low{unit}": low, f"{name}high{unit}": high}
    if isinstance(value, dict):
        unit = "_nats" if key in NATS else ""
        return {f"{key}_{name}{unit}": of_key for name, of_key in flat(value).items()}
    if value is None or isinstance(value, PLAIN):
        return with_unit(key, value)
    return {}


def with_unit(key: str, value: object) -> dict:
    """Return the columns of a value: in nats, and also in bits if it is a sum."""
    if key in IN_BOTH_UNITS:
        return {f"{key}_nats": value, f"{key}_bits": None if value is None else value / math.log(2)}
    return {f"{key}_nats" if key in NATS else key: value}


def without_punctuation(word: str) -> str:
    """Return a word without the punctuation before and after it."""
    kept = [n for n, sign in enumerate(word) if not unicodedata.category(sign).startswith("P")]
    return word[kept[0] : kept[-1] + 1] if kept else ""


def of_parts(text: ReadText, parts: dict[str, list], unit: str, lags: int = 1) -> Iterator[dict]:
    """Make one row of a token or word of a text, with its place in it: that of a context is negative.

    Args:
        parts: equally long columns of a text, such as its `token_scores` or `word_scores`.
        unit: "token" or "word": the name of the column with the piece as the text writes it.
        lags: number of previous words whose surprisals are added to a row.
    """
    columns = {key: values for key, values in parts.items() if key not in NOT_OF_PARTS}
    own_name = f"{unit}s"
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
            **with_unit("nll", values.pop("nll")),
        }
        if "surprisal" in values:
            row |= with_unit("surprisal", values.pop("surprisal"))
            for lag in range(1, lags + 1):
                before = columns["surprisal"][number - lag] if number >= lag else None
                name = "previous" if lag == 1 else f"previous_{lag}"
                row |= {f"{name}_{k}": v for k, v in with_unit("surprisal", before).items()}
            row["word_length"] = len(without_punctuation(row[unit]))
        for key, value in values.items():
            row |= with_unit(key, value)
        yield row | ({"piece": raw} if unit == "token" else {})
