"""Results of the metric in a notebook: the coloured text as the output of a cell."""

import os
from collections.abc import Sequence

from ..digests import TextsDigest
from ..protocols import PROTOCOLS
from . import SHOWN, Reading, own_perplexities, replaced, within
from .comparison import pair_of
from .report import report
from .text import escape

HEIGHT = 720  # pixels that a notebook gives to it


class Shown:
    """A view of results: the last value of a cell, or a file.

    A notebook shows it in a frame of its own, so that its style and the notebook's are apart.
    """

    def __init__(self, html: str):
        self.html = html

    def _repr_html_(self) -> str:
        return (
            f'<iframe srcdoc="{escape(self.html)}" sandbox="allow-scripts" title="Coloured text" '
            f'style="width: 100%; height: {HEIGHT}px; border: 0"></iframe>'
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it as a self-contained HTML file; if that fails, a former one is unchanged."""
        with (
            replaced(os.fspath(path)) as place,
            open(place, "w", encoding="utf-8", newline="") as file,
        ):
            file.write(self.html)


def show(
    results: dict,
    texts: str | Sequence[str],
    contexts: str | Sequence[str] | None = None,
) -> Shown:
    """Colour texts by a result of `compute`, with a panel for each token.

    Args:
        results: of `compute` with `return_token_scores=True`; with `["top5"]` the panel says what the
            model expected too.
        texts: the ones that were scored, in their order.
        contexts: as in `compute`.

    Raises:
        ValueError: the results have no token scores, or are of other texts.
    """
    scores = results.get("token_scores")
    if scores is None:
        raise ValueError(
            "`results` must have token scores to be shown. Compute them with "
            "return_token_scores=['top5']."
        )
    wholes, begins = texts_as_read(results, scores, texts, contexts)
    names = [f"Text {number}" for number in range(1, len(wholes) + 1)] if len(wholes) > 1 else [""]
    model, own = results["model_name"], own_perplexities(results, len(wholes))
    readings = [
        Reading(whole, tokens, results, model, begin, name, perplexity)
        for whole, tokens, begin, name, perplexity in zip(wholes, scores, begins, names, own)
    ]
    readings, pairs, notes = list(within(readings)), [], []
    if sum(map(len, wholes)) > SHOWN:
        notes.append(f"The numbers are of all texts; the first {SHOWN:,} characters are shown.")
    if "comparison" in results:
        models = (model, results["comparison"].get("reference") or "the reference")
        pairs = [pair_of(reading, place, models) for place, reading in enumerate(readings)]
        readings = []
    return Shown(report(results, readings, pairs, notes=notes))


def texts_as_read(
    results: dict,
    scores: list[dict],
    texts: str | Sequence[str],
    contexts: str | Sequence[str] | None,
) -> tuple[list[str], list[int]]:
    """Return the scored texts as the model read them, and the offset at which each begins.

    Those are chats as they were written, detokenized texts, texts after their contexts, or joined texts.

    Args:
        scores: `token_scores` or `word_scores` of the results.
    """
    texts = [texts] if isinstance(texts, str) else list(texts)
    wholes = texts
    if "texts_as_read" in results:
        wholes = results["texts_as_read"]
    elif contexts is not None:
        before = [contexts] * len(texts) if isinstance(contexts, str) else contexts
        wholes = [context + text for context, text in zip(before, texts)]
    elif (join := PROTOCOLS[results["protocol"]].join) is not None:
        wholes = ["".join(texts) if join == "tokens" else join.join(texts)]
    if len(scores) != len(wholes):
        raise ValueError(
            f"`texts` must be as many as `results` has scores of, {len(scores)}, got {len(wholes)}."
        )
    # The digest of texts that are scored in part is one of their parts too, or of texts that were converted.
    is_as_given = not {"num_context_tokens", "texts_as_read"} & results.keys()
    if is_as_given and str(TextsDigest.of(texts)) != results["texts_digest"]:
        raise ValueError(
            "`texts` must be the ones that `results` are of, in their order: these have another digest."
        )
    for whole, tokens in zip(wholes, scores):
        ends = [offset[1] for offset in tokens["offsets"] if offset is not None]
        if max(ends, default=0) > len(whole):
            raise ValueError(
                "`texts` must be the ones that `results` are of, with the `contexts` that were read before "
                f"them: tokens reach to character {max(ends)}, but there are {len(whole)}."
            )
    begins = [0] * len(wholes)
    if contexts is not None:
        begins = [len(whole) - len(text) for whole, text in zip(wholes, texts)]
    return wholes, begins
