"""Find the settings that give a published figure."""

from collections.abc import Callable, Sequence

import torch
from transformers import PreTrainedTokenizerBase

from ..argument_table import check_whole_number
from ..errors import ArgumentError, ArgumentTypeError
from ..scoring.runner import Progress
from .conclusion import conclude
from .figures import Figure
from .scorer import Case, Scorer
from .search import Search


def find(
    figure: float | str | Sequence[float | str],
    texts: Sequence[str | Sequence[str]],
    model_id: str | Sequence[str] | None = None,
    model: torch.nn.Module | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    max_tokens: int | None = None,
    files: Sequence[Sequence[str]] | None = None,
    callback: Callable[[Progress], None] | None = None,
    **arguments: object,
) -> dict:
    """Find the settings under which a model has a published figure on texts.

    Score the texts under every protocol, with the usual windows, strides, start tokens, layouts and
    averages, likeliest and cheapest first, and return the settings whose value rounds to the figure.
    In a long corpus, a sample decides which settings are worth a complete pass.  A match is not
    proof: see `expected_by_chance`.

    Args:
        figure: the figure as printed; a string keeps trailing zeros ("37.50").  One setting must
            explain all figures of a list: one per text, or one per model.
        texts: the corpus; with several figures of one model, a text or a list of texts per figure.
        model_id: the model; with several figures of the same texts, a model per figure.
        max_tokens: number of tokens that the model may read.  By default 40 per token of the texts,
            at least 200,000; the search then also ends with a match if fewer than 0.01 are expected
            by chance.
        files: for each figure, the arguments that select its texts in the returned commands.
        callback: called with the progress after every batch; its perplexity is NaN.
        arguments: `dtype`, `device`, `batch_size` and other arguments of `compute` for loading and
            running the model.

    Returns:
        figure: as given.
        matches: settings whose value rounds to the figure, most likely first, each with protocol,
            max_length, stride, add_start_token, layout, average, value, likelihood (its share of
            the weights of all matches) and the command that repeats it.  With several figures,
            value and command are lists.
        nearest: settings that do not match, each with its difference from the likeliest match.
        published: known published figures equal to this one, each with model, corpus, protocol and
            source; figures of other models only if the model is unknown.
        num_tried: number of values compared with the figure.
        expected_by_chance: expected number of matches by chance, from the density of values.
        num_forward_tokens: number of tokens read by the model.
        not_tried: omitted passes, each with its cost in tokens and, if a sample was read, the
            difference between its nearest estimate and the figure.
        conclusion: an assessment of the matches, in one sentence.

    Raises:
        TypeError, ValueError: a figure is not positive, the numbers of figures and texts or models
            differ, or as for `compute`.
    """
    given = figure if isinstance(figure, list | tuple) else [figure]
    figures = [Figure.read(one) for one in given]
    if max_tokens is not None:
        check_whole_number("max_tokens", max_tokens, 1)
    unknown = set(arguments) - {"dtype", "device", "batch_size", "logits_memory", "model_kwargs"}
    if unknown:
        raise TypeError(
            f"find() got an unexpected keyword argument {sorted(unknown)[0]!r}: it tries all "
            "protocols, windows, strides and start tokens itself."
        )
    models = list(model_id) if isinstance(model_id, list | tuple) else [model_id]
    corpora = pair_texts(figures, texts, models)
    named = list(files) if files is not None else [["FILE"]] * len(figures)
    loaded = {"model": model, "tokenizer": tokenizer, **arguments}
    scorers = [Scorer({"model_id": name, **loaded}) for name in dict.fromkeys(models)]
    scorers = scorers if len(models) > 1 else scorers * len(figures)
    cases = [
        Case(one, scorer, own, list(names))
        for one, scorer, own, names in zip(figures, scorers, corpora, named, strict=True)
    ]
    search = Search(cases, max_tokens, callback)
    search.run()
    return conclude(figure, search)


def pair_texts(figures: list[Figure], texts: object, models: list) -> list[list[str]]:
    """Return the texts of each figure.

    Raises:
        TypeError, ValueError: there are no texts, or the numbers of figures and texts or models
            differ.
    """
    if isinstance(texts, str) or not isinstance(texts, Sequence):
        raise ArgumentTypeError("texts", "be a list of strings", got=type(texts).__name__)
    if not figures:
        raise ArgumentError("figure", "have at least one number", got="an empty list")
    if len(models) > 1 and len(models) != len(figures):
        raise ArgumentError(
            "figure",
            "have one number per model",
            got=f"{len(figures)} figures and {len(models)} models",
        )
    if len(models) > 1 or len(figures) == 1:
        corpora = [list(texts)] * len(figures)
    elif len(figures) == len(texts):
        corpora = [[text] if isinstance(text, str) else list(text) for text in texts]
    else:
        raise ArgumentError(
            "figure",
            "have one number per text, or a single one for all",
            got=f"{len(figures)} figures and {len(texts)} texts",
        )
    for corpus in corpora:
        if not all(isinstance(text, str) for text in corpus):
            raise ArgumentTypeError("texts", "be a list of strings", got="other items")
        if not any(text.strip() for text in corpus):
            raise ArgumentError("texts", "have at least one text that is not blank", got="none")
    return corpora
