"""The request of a call: its checked arguments."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from .argument_table import ARGUMENTS
from .arguments import (
    LongContext,
    Setting,
    check_kinds,
    check_long_context,
    check_word_counts,
    list_settings,
)
from .digests import TextsDigest
from .engines.sources import ModelSource, check_model_source, check_reference
from .errors import ArgumentError, ArgumentTypeError, Wording
from .plan.measurement import Measurement
from .plan.parts import Parts, check_parts
from .plan.tokenization import Chat
from .results.report import Extras
from .results.words import check_words
from .scoring.measures import TOKEN_MEASURES, TOP, Measure, token_measures


@dataclass(frozen=True)
class Request:
    """Texts, models, measurements and resources of a call.

    Attributes:
        source: the model.
        reference: the model to compare with, if any.
        settings: the measurements; exactly one unless `gives_list`.
        long_context: the arguments for long contexts.
        parts: the scored parts of each text; None for whole texts.
        words: whether to score words.
        word_spans: the words of each text; None to split at white space.
        margin: largest acceptable relative increase of the perplexity over the reference's.
        detokenizer: name of the detokenizer applied to the texts, for the signature.
        identify: whether to digest live models and measure the probe, which a checkpoint needs.
        batch_size, callback, checkpoint: as in `compute`.
    """

    texts: list[str]
    source: ModelSource
    reference: ModelSource | None
    settings: list[Setting]
    gives_list: bool
    long_context: LongContext
    parts: Parts | None
    words: bool
    word_spans: list[list[tuple[int, int]]] | None
    word_correction: str | None
    word_counts: list[int] | None
    token_columns: Sequence[str]
    margin: float | None
    detokenizer: str | None
    extras: Extras
    batch_size: int
    callback: Callable | None
    checkpoint: str | Path | None
    identify: bool

    @property
    def needs_characters(self) -> bool:
        """Whether the characters of each token are needed.

        A comparison finds the text pieces that two tokenizers share by their characters.
        """
        given = self.extras.with_tokens or self.words
        return given or self.reference is not None

    def measures(self) -> list[Measure]:
        """Return the measures of each token."""
        return token_measures(self.token_columns)

    @cached_property
    def text_digests(self) -> list[TextsDigest]:
        """Digests of the texts and their scored parts."""
        lines = self.texts if self.parts is None else self.parts.describe_texts(self.texts)
        return [TextsDigest.of([line]) for line in lines]

    def digests_as_read(self, measurement: Measurement) -> list[TextsDigest]:
        """Return digests of the texts; of chats, as the tokenizer's template formats them."""
        if self.parts is None or self.parts.chats is None:
            return self.text_digests
        written = zip(measurement.texts, measurement.streams)
        parts = ((text, stream.scored_part) for text, stream in written)
        lines = (json.dumps([text, part.longer or part.spans]) for text, part in parts)
        return [TextsDigest.of([line]) for line in lines]

    @property
    def digest(self) -> str:
        """Digest of the arguments, beyond model and settings, that all processes must share."""
        of_texts = sum(self.text_digests, TextsDigest())
        return str(TextsDigest.of(map(str, (of_texts, self.word_spans, self.word_counts))))


# Arguments that select the model and control its loading.
OF_SOURCE = (
    *("model_id", "model", "tokenizer", "device", "dtype"),
    "model_kwargs",
)


def check_request(texts: list[str], chats: Sequence[Chat] | None, given: Mapping) -> Request:
    """Check the arguments of a call and their combinations.

    Args:
        texts: checked texts; for chats, see `separate_chats`.
        given: all arguments of `compute` by name.

    Raises:
        TypeError, ValueError: an argument or a combination is invalid.
    """
    check_kinds(given)
    settings, gives_list = list_settings(
        given["protocol"],
        given["max_length"],
        given["stride"],
        given["add_start_token"],
    )
    long_context = check_long_context(
        given["context_lengths"], given["carry"], settings, gives_list
    )
    word_counts = check_word_counts(given["word_counts"], texts)
    parts = check_parts(
        given["contexts"],
        given["score_spans"],
        given["boundary"],
        texts,
        chats,
    )
    word_spans = check_word_arguments(given["words"], given["word_correction"], texts)
    check_combinations(given, parts)
    token_columns = check_token_columns(given["return_token_scores"])
    return_totals = given["return_totals"]
    with_tokens = given["return_token_scores"] is not False
    source = check_model_source(ModelSource(**{name: given[name] for name in OF_SOURCE}))
    reference = check_reference(given["reference"], source)
    if given["margin"] is not None and reference is None:
        raise ValueError(
            Wording(
                f"`margin` requires a model to compare with, got {given['margin']!r}. Pass "
                "`reference`."
            )
        )
    return Request(
        texts=texts,
        source=source,
        reference=reference,
        settings=settings,
        gives_list=gives_list,
        long_context=long_context,
        parts=parts,
        words=given["words"] is not False,
        word_spans=word_spans,
        word_correction=given["word_correction"],
        word_counts=word_counts,
        token_columns=token_columns,
        margin=given["margin"],
        detokenizer=given["detokenizer"],
        extras=Extras(with_tokens, bool(return_totals), return_totals == "texts"),
        batch_size=int(given["batch_size"]),
        callback=given["callback"],
        checkpoint=given["checkpoint"],
        identify=given["identify"] or given["checkpoint"] is not None,
    )


def check_word_arguments(
    words: object, word_correction: object, texts: Sequence[str]
) -> list[list[tuple[int, int]]] | None:
    """Return the spans of the given words of each text; None if none are given."""
    if words is not False:
        return check_words(words, texts)
    if word_correction != ARGUMENTS["word_correction"].default:
        raise ArgumentError(
            "word_correction",
            "be left out without `words`",
            got=repr(word_correction),
            advice="Pass `words=True`.",
        )
    return None


def check_combinations(given: Mapping, parts: Parts | None) -> None:
    """Refuse arguments that exclude each other."""
    for name, is_given in (("carry", given["carry"]), ("words", given["words"] is not False)):
        if is_given and given["reference"] is not None:
            advice = "Make a separate call for each model."
            raise ArgumentError(name, "be left out with a reference", advice=advice)
    if parts is not None or given["words"] is not False:
        beside = "`words`" if parts is None else parts.describe()
        for name in ("context_lengths", "carry"):
            if given[name]:
                raise ArgumentError(
                    name,
                    f"be left out with {beside}: it requires whole texts",
                    advice="Make a separate call for each.",
                )


def check_token_columns(return_token_scores: object) -> Sequence[str]:
    """Return the additional columns of token scores."""
    if isinstance(return_token_scores, bool):
        return ()
    known = f"{', '.join(TOKEN_MEASURES)}, and top5 or another number"
    if isinstance(return_token_scores, str) or not isinstance(return_token_scores, Sequence):
        raise ArgumentTypeError(
            "return_token_scores",
            f"be True, False, or a list of additional columns ({known})",
            got=repr(return_token_scores),
        )
    for name in return_token_scores:
        if name not in TOKEN_MEASURES and not TOP.fullmatch(str(name)):
            raise ArgumentError("return_token_scores", f"contain only {known}", got=repr(name))
    return return_token_scores
