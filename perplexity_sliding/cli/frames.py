"""Results as pandas tables, with the columns of --format csv."""

from collections.abc import Callable, Iterator

import pandas

from . import rows
from .reading import ReadText

UNITS = {"tokens": "token_scores", "words": "word_scores"}


def to_frame(results: dict, of: str | None = None) -> pandas.DataFrame:
    """Convert a result to a table with one row per token, word or measurement.

    Args:
        results: the result of `compute`.
        of: "tokens", "words" or "measurements" (one row for a single result); by default the first
            of these that the result has.

    Raises:
        ValueError: `of` has another value, or the result does not have these rows.
    """
    makers: dict[str, Callable[[], Iterator[dict]]] = {
        "tokens": lambda: _parts(results, "token"),
        "words": lambda: _parts(results, "word"),
        "measurements": lambda: rows.of_measurements(results.get("measurements", [results])),
    }
    there = [name for name in makers if UNITS.get(name, "perplexity") in results]
    if of is None:
        of = there[0]
    if of not in makers:
        raise ValueError(f"`of` must be one of {', '.join(map(repr, makers))}, got {of!r}.")
    if of not in there:
        asked = {"tokens": "return_token_scores=True", "words": "words=True"}[of]
        raise ValueError(
            f"`results` must have {UNITS[of]} for a table of {of}. Compute them with {asked}."
        )
    return pandas.DataFrame(list(makers[of]()))


def _parts(results: dict, unit: str) -> Iterator[dict]:
    """Yield rows of the tokens or words of each text, with the index of the text."""
    for number, columns in enumerate(results[UNITS[f"{unit}s"]]):
        for row in rows.of_parts(ReadText(str(number), None), columns, unit):
            yield {"text": number} | {key: row[key] for key in row if key not in ("name", "piece")}
