"""Results as data: JSON; and tidy rows per text, token or word, as JSON lines, CSV, Parquet and pandas.

Every plain number of a result becomes a column, so a new one needs no change here.
"""

import csv
import json
import math
import pickle
import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import chain
from tempfile import SpooledTemporaryFile
from types import SimpleNamespace

from ..views import replaced
from .reading import ReadText

# Keys that are written by themselves, or are not numbers of one text.
NOT_COLUMNS = {
    "name", "row", "carried", "perplexities", "num_texts", "num_tokens_per_text", "mean_perplexity",
    "probe", "reference_probe",
}  # fmt: skip
# Results in nats, whose columns end in the unit; sums over a text or token are also in bits.
NATS = {
    *("nll", "total_nll", "surprisal", "space_nll", "entropy", "alternatives", "nll_difference"),
    *("reference_nll", "kl", "kl_reverse", "kl_percentiles"),
}
IN_BOTH_UNITS = {"nll", "total_nll"}
UNITS = {"tokens": "token_scores", "words": "word_scores"}
# Makes the rows, any number of times.
Rows = Callable[[], Iterable[dict]]


# --- rows -----------------------------------------------------------------------------------------


class Spool:
    """An append-only list of rows, on disk once it has 16 MB; deleted with the process."""

    def __init__(self) -> None:
        self._file = SpooledTemporaryFile(2**24)  # noqa: SIM115
        self._num_items = 0

    def append(self, item: object) -> None:
        self._file.seek(0, 2)
        pickle.dump(item, self._file, pickle.HIGHEST_PROTOCOL)
        self._num_items += 1

    def __len__(self) -> int:
        return self._num_items

    def __iter__(self) -> Iterator:
        place = 0
        for _ in range(self._num_items):
            self._file.seek(place)
            item = pickle.load(self._file)
            place = self._file.tell()
            yield item


def flat(result: dict) -> dict:
    row: dict = {}
    for key, value in result.items():
        unit = "_nats" if key.removesuffix("_interval") in NATS else ""
        if key in NOT_COLUMNS:
            continue
        if key.endswith("interval"):
            low, high = value or (None, None)
            name = key.removesuffix("interval")
            row |= {f"{name}low{unit}": low, f"{name}high{unit}": high}
        elif isinstance(value, dict):
            row |= {f"{key}_{name}{unit}": of_key for name, of_key in flat(value).items()}
        elif value is None or isinstance(value, bool | int | float | str):
            row |= with_unit(key, value)
    return row


def with_unit(key: str, value: object, in_bits: bool = False) -> dict:
    """Return the columns of a value in nats, a sum also in bits; or in bits alone."""
    if key not in NATS:
        return {key: value}
    bits = value / math.log(2) if isinstance(value, int | float) else value
    if in_bits:
        return {f"{key}_bits": bits}
    return {f"{key}_nats": value} | ({f"{key}_bits": bits} if key in IN_BOTH_UNITS else {})


def renamed(carried: dict, taken: Collection[str]) -> dict:
    return {f"{name}_given" if name in taken else name: cell for name, cell in carried.items()}


def rows_of_texts(texts: Iterable[dict], corpus: dict, label: str | None) -> Iterator[dict]:
    """Make one row of a text, with the columns that its table has besides."""
    named = {} if label is None else {"label": label}
    taken = {"name", "error", *named, *flat(corpus)}
    for of_text in texts:
        carried = renamed(of_text.get("carried", {}), taken)
        yield {"name": of_text["name"]} | named | carried | flat(of_text)


def rows_of_measurements(results: Sequence[dict], has_labels: bool = False) -> list[dict]:
    return [({"label": row["name"]} if has_labels else {}) | flat(row) for row in results]


def rows_of_parts(text: ReadText, parts: dict[str, list], unit: str) -> Iterator[dict]:
    """Make one row of a token, in nats, or word, in bits, with its place: that of a context is negative."""
    columns = {key: values for key, values in parts.items() if key != "windows"}
    in_bits, before = unit == "word", None
    for number in range(len(columns[f"{unit}s"])):
        values = {key: column[number] for key, column in columns.items()}
        first, last = values.pop("offsets", None) or (None, None)
        raw = values.pop(f"{unit}s")
        row = {
            "name": text.name,
            "number": number,
            unit: raw if first is None or text.wording is None else text.wording[first:last],
            "first": None if first is None else first - text.begin,
            "last": None if last is None else last - text.begin,
            **with_unit("nll", values.pop("nll"), in_bits),
        }
        if in_bits:
            row |= with_unit("surprisal", values.pop("surprisal"), in_bits)
            row["previous_surprisal_bits"], before = before, row["surprisal_bits"]
            row["word_length"] = len(without_punctuation(row["word"]))
        for key, value in values.items():
            row |= with_unit(key, value, in_bits)
        carried = text.carried[number] if isinstance(text.carried, list) else text.carried
        row |= {} if in_bits else {"piece": raw}
        yield {"name": text.name} | renamed(carried, row) | row


def without_punctuation(word: str) -> str:
    kept = [n for n, sign in enumerate(word) if not unicodedata.category(sign).startswith("P")]
    return word[kept[0] : kept[-1] + 1] if kept else ""


# --- formats --------------------------------------------------------------------------------------


def to_json(value) -> str:
    return json.dumps(finite(value), ensure_ascii=False, default=str)


def finite(value):
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


def to_csv(made: Rows, delimiter: str = ",") -> Iterator[str]:
    """Yield CSV or TSV with a header; lists become JSON, and None becomes empty."""
    names = list(dict.fromkeys(chain.from_iterable(made())))
    # `writerow` returns what the `write` of its file does, and quotes the characters of its line end: a
    # token may be a carriage return, which readers take for the end of a row.
    writer = csv.writer(SimpleNamespace(write=str), delimiter=delimiter, lineterminator="\r\n")
    for cells in chain([names], ([row.get(name) for name in names] for row in made())):
        plain = [to_json(c) if isinstance(c, dict | list | tuple) else c for c in cells]
        yield writer.writerow(plain).removesuffix("\r\n") + "\n"


def write_parquet(made: Rows, path: str) -> None:
    """Write Parquet; columns with values of different types become strings."""
    import pyarrow
    import pyarrow.parquet

    found, columns = list(made()), {}
    for name in dict.fromkeys(chain.from_iterable(found)):
        values = [row.get(name) for row in found]
        try:
            columns[name] = pyarrow.array(values)
        # lists of words and numbers, integers beyond 64 bits
        except (pyarrow.ArrowException, OverflowError):
            texts = (v if v is None or isinstance(v, str) else to_json(v) for v in values)
            columns[name] = pyarrow.array(texts, pyarrow.string())
    with replaced(path) as place:
        pyarrow.parquet.write_table(pyarrow.table(columns), place)


def to_frame(
    results: dict,
    of: str | None = None,
    texts: str | Sequence[str] | None = None,
    contexts: str | Sequence[str] | None = None,
):
    """Convert a result to a pandas table with one row per token, word or measurement.

    Args:
        results: the result of `compute`.
        of: "tokens", "words" or "measurements" (one row for a single result); by default the first
            of these that the result has.
        texts: the scored texts, in their order. With them, `token` is the token as the text writes it
            and offsets count from the text; otherwise `token` is the vocabulary's, such as "Ġdoor".
        contexts: as in `compute`.

    Returns:
        a `pandas.DataFrame` with the columns of `--format csv`.

    Raises:
        ValueError: `of` has another value, the result does not have these rows, or it is of other
            texts.
    """
    import pandas

    from ..views.report import texts_as_read

    there = [name for name in (*UNITS, "measurements") if UNITS.get(name, "perplexity") in results]
    of = there[0] if of is None else of
    if of not in (*UNITS, "measurements"):
        raise ValueError(f"`of` must be one of 'tokens', 'words', 'measurements', got {of!r}.")
    if of not in there:
        asked = {"tokens": "return_token_scores=True", "words": "words=True"}[of]
        raise ValueError(
            f"`results` must have {UNITS[of]} for a table of {of}. Compute them with {asked}."
        )
    if of == "measurements":
        return pandas.DataFrame(rows_of_measurements(results.get("measurements", [results])))
    scores = results[UNITS[of]]
    wholes, begins = [None] * len(scores), [0] * len(scores)
    if texts is not None:
        wholes, begins = texts_as_read(results, scores, texts, contexts)
    rows = []
    for number, (columns, whole, begin) in enumerate(zip(scores, wholes, begins)):
        for row in rows_of_parts(ReadText(str(number), whole, begin), columns, of[:-1]):
            del row["name"]
            rows.append({"text": number} | row)
    return pandas.DataFrame(rows)
