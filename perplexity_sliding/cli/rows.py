"""Tidy rows per text, token or word, with flat columns for other programs, and as pandas tables.

Every plain number of a result becomes a column, so a new one needs no change here.
"""

import math
import unicodedata
from collections.abc import Callable, Collection, Iterator, Sequence

from .reading import ReadText

# Keys with other names, or that are not numbers of one text.
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


def flat(result: dict) -> dict:
    """Keep the plain values of a result; intervals as two columns."""
    row: dict = {key: result[key] for key in ("name", "carried") if key in result}
    for key, value in result.items():
        if key in NOT_COLUMNS:
            continue
        if key.endswith("interval"):
            low, high = value or (None, None)
            name = key.removesuffix("interval")
            unit = "_nats" if name.removesuffix("_") in NATS else ""
            row |= {f"{name}low{unit}": low, f"{name}high{unit}": high}
        elif isinstance(value, dict):
            unit = "_nats" if key in NATS else ""
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


def with_carried(row: dict, carried: dict, taken: Collection[str]) -> dict:
    """Insert a table's other columns after the name; rename those whose name is taken."""
    renamed = {}
    for name, value in carried.items():
        own = name
        while own in taken or (own != name and own in carried):
            own += "_given"
        renamed[own] = value
    return {"name": row["name"]} | renamed | row


def of_measurements(results: Sequence[dict], has_labels: bool = False) -> list[dict]:
    """Make one row of a measurement; models that have labels keep them, as `label`."""
    rows = []
    for result in results:
        row = flat(result)
        name = row.pop("name", None)
        rows.append(({"label": name} if has_labels else {}) | row)
    return rows


def of_parts(text: ReadText, parts: dict[str, list], unit: str) -> Iterator[dict]:
    """Make one row of a token, in nats, or word, in bits, with its place: that of a context is negative.

    Args:
        parts: equally long columns of a text, such as its `token_scores` or `word_scores`.
        unit: "token" or "word": the name of the column with the piece as the text writes it.
    """
    columns = {key: values for key, values in parts.items() if key != "windows"}
    in_bits = unit == "word"
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
            before = columns["surprisal"][number - 1] if number else None
            row |= with_unit("surprisal", values.pop("surprisal"), in_bits)
            row["previous_surprisal_bits"] = with_unit("surprisal", before, True)["surprisal_bits"]
            row["word_length"] = len(without_punctuation(row["word"]))
        for key, value in values.items():
            row |= with_unit(key, value, in_bits)
        carried = text.carried[number] if isinstance(text.carried, list) else text.carried
        yield with_carried(row | ({} if in_bits else {"piece": raw}), carried, row)


def without_punctuation(word: str) -> str:
    """Return a word without the punctuation before and after it."""
    kept = [n for n, sign in enumerate(word) if not unicodedata.category(sign).startswith("P")]
    return word[kept[0] : kept[-1] + 1] if kept else ""


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

    from ..views.show import texts_as_read

    def parts(kind: str) -> Iterator[dict]:
        scores = results[UNITS[kind]]
        wholes, begins = [None] * len(scores), [0] * len(scores)
        if texts is not None:
            wholes, begins = texts_as_read(results, scores, texts, contexts)
        for number, (columns, whole, begin) in enumerate(zip(scores, wholes, begins)):
            for row in of_parts(ReadText(str(number), whole, begin), columns, kind[:-1]):
                yield {"text": number} | {key: row[key] for key in row if key != "name"}

    makers: dict[str, Callable] = {
        "tokens": lambda: parts("tokens"),
        "words": lambda: parts("words"),
        "measurements": lambda: of_measurements(results.get("measurements", [results])),
    }
    there = [name for name in makers if UNITS.get(name, "perplexity") in results]
    of = there[0] if of is None else of
    if of not in makers:
        raise ValueError(f"`of` must be one of {', '.join(map(repr, makers))}, got {of!r}.")
    if of not in there:
        asked = {"tokens": "return_token_scores=True", "words": "words=True"}[of]
        raise ValueError(
            f"`results` must have {UNITS[of]} for a table of {of}. Compute them with {asked}."
        )
    return pandas.DataFrame(list(makers[of]()))
