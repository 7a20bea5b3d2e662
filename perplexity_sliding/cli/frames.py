"""Results as pandas tables, with the columns of --format csv."""

from collections.abc import Callable, Iterator, Sequence

import pandas

from ..views.show import texts_as_read
from . import rows
from .reading import ReadText

UNITS = {"tokens": "token_scores", "words": "word_scores"}


def to_frame(
    results: dict,
    of: str | None = None,
    texts: str | Sequence[str] | None = None,
    contexts: str | Sequence[str] | None = None,
    context_separator: str = "",
) -> pandas.DataFrame:
    """Convert a result to a table with one row per token, word or measurement.

    Args:
        results: the result of `compute`.
        of: "tokens", "words" or "measurements" (one row for a single result); by default the first
            of these that the result has.
        texts: the scored texts, in their order. With them, `token` is the token as the text writes it
            and offsets count from the text; otherwise `token` is the vocabulary's, such as "Ġdoor".
        contexts, context_separator: as in `compute`.

    Raises:
        ValueError: `of` has another value, the result does not have these rows, or it is of other
            texts.
    """
    before = contexts, context_separator
    makers: dict[str, Callable[[], Iterator[dict]]] = {
        "tokens": lambda: _parts(results, "token", texts, *before),
        "words": lambda: _parts(results, "word", texts, *before),
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


def _parts(
    results: dict,
    unit: str,
    texts: str | Sequence[str] | None,
    contexts: str | Sequence[str] | None,
    context_separator: str,
) -> Iterator[dict]:
    """Yield rows of the tokens or words of each text, with the index of the text."""
    scores = results[UNITS[f"{unit}s"]]
    wholes: Sequence[str | None] = [None] * len(scores)
    begins = [0] * len(scores)
    if texts is not None:
        wholes, begins = texts_as_read(results, scores, texts, contexts, context_separator)
    for number, (columns, whole, begin) in enumerate(zip(scores, wholes, begins)):
        for row in rows.of_parts(ReadText(str(number), whole, begin), columns, unit):
            yield {"text": number} | {key: row[key] for key in row if key != "name"}
