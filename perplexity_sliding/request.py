"""The request of a call: its checked arguments, and what is made of them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from .arguments import ARGUMENTS, Setting, check_long_context, list_settings
from .digests import TextsDigest
from .engines.sources import ModelSource, check_model_source, check_reference
from .errors import ArgumentError, ArgumentTypeError
from .plan.measurement import Measurement
from .plan.parts import Parts, check_parts
from .plan.tokenization import Chat
from .results.words import check_words
from .scoring.measures import TOKEN_MEASURES, TOP, Measure, token_measures

# Arguments that select the model and control its loading.
OF_SOURCE = ("model_id", "model", "tokenizer", "device", "dtype", "model_kwargs")


@dataclass(frozen=True)
class Request:
    """A call of `compute`.

    Attributes:
        given: all arguments, by name.
        texts: the texts; for chats, see `separate_chats`.
        source: the model.
        reference: the model to compare with, if any.
        settings: the measurements; exactly one unless `gives_list`.
        parts: the scored parts of each text; None for whole texts.
        word_spans: the given words of each text; None if none are given.
    """

    given: Mapping[str, Any]
    texts: list[str]
    source: ModelSource
    reference: ModelSource | None
    settings: list[Setting]
    gives_list: bool
    parts: Parts | None
    word_spans: list[list[tuple[int, int]]] | None

    @property
    def has_words(self) -> bool:
        """Whether words are scored."""
        return self.given["words"] is not False

    @property
    def needs_characters(self) -> bool:
        """Whether the characters of each token are needed.

        A comparison finds the text pieces that two tokenizers share by their characters.
        """
        has_tokens = self.given["return_token_scores"] is not False
        return has_tokens or self.has_words or self.reference is not None

    def measures(self) -> list[Measure]:
        """Return the measures of each token."""
        columns = self.given["return_token_scores"]
        return token_measures(() if isinstance(columns, bool) else columns)

    def digest_texts(self, texts: list[str]) -> list[TextsDigest]:
        """Digest each text with its scored part.

        Args:
            texts: those of the request, or what they are converted to.
        """
        lines = texts if self.parts is None else self.parts.describe_texts(texts)
        return [TextsDigest.of([line]) for line in lines]

    def digests_as_read(self, measurement: Measurement, texts: list[str]) -> list[TextsDigest]:
        """Return digests of the texts; of chats, as the tokenizer's template formats them."""
        if self.parts is None or self.parts.chats is None:
            return self.digest_texts(texts) if texts is not self.texts else self.text_digests
        written = zip(measurement.texts, measurement.streams)
        parts = ((text, stream.scored_part) for text, stream in written)
        lines = (json.dumps([text, part.longer or part.spans]) for text, part in parts)
        return [TextsDigest.of([line]) for line in lines]

    @cached_property
    def text_digests(self) -> list[TextsDigest]:
        """Digests of the texts as given."""
        return self.digest_texts(self.texts)

    @property
    def digest(self) -> str:
        """Digest of the arguments, beyond model and settings, that all processes must share."""
        of_texts = sum(self.text_digests, TextsDigest())
        return str(TextsDigest.of(map(str, (of_texts, self.word_spans))))


def check_request(
    texts: list[str], chats: Sequence[Chat] | None, given: Mapping[str, Any]
) -> Request:
    """Check the arguments of a call and their combinations.

    Args:
        texts: checked texts; for chats, see `separate_chats`.
        given: all arguments of `compute` by name.

    Raises:
        TypeError, ValueError: an argument or a combination is invalid.
    """
    for name, value in given.items():
        ARGUMENTS[name].check(name, value)
    settings, gives_list = list_settings(given)
    check_long_context(given, settings, gives_list)
    parts = check_parts(given["contexts"], given["score_spans"], given["boundary"], texts, chats)
    source = check_model_source(ModelSource(**{name: given[name] for name in OF_SOURCE}))
    reference, words = check_reference(given["reference"], source), given["words"]
    word_spans = None if words is False else check_words(words, texts)
    check_token_columns(given["return_token_scores"])

    def refuse(name: str, is_refused: bool, reason: str, advice: str = "") -> None:
        if is_refused:
            raise ArgumentError(name, f"be left out {reason}", advice=advice)

    apart = "Make a separate call for each model."
    correction = given["word_correction"] != ARGUMENTS["word_correction"].default
    refuse(
        "word_correction", correction and words is False, "without `words`", "Pass `words=True`."
    )
    refuse("margin", given["margin"] is not None and reference is None, "without `reference`")
    refuse("carry", given["carry"] and reference is not None, "with a reference", apart)
    refuse("words", words is not False and reference is not None, "with a reference", apart)
    located = chats is not None or given["score_spans"] is not None or word_spans is not None
    refuse(
        "detokenizer",
        given["detokenizer"] is not None and located,
        "with chats, `score_spans` or a list of `words`, whose places are those of the texts",
    )
    beside = "with `words`" if parts is None else f"with {parts.describe()}"
    is_partial = parts is not None or words is not False
    of_whole_texts = {
        "context_lengths": given["context_lengths"] is not None,
        "carry": given["carry"],
    }
    for name, is_given in of_whole_texts.items():
        reason = f"{beside}: it requires whole texts"
        refuse(name, is_given and is_partial, reason, "Make a separate call for each.")
    return Request(given, texts, source, reference, settings, gives_list, parts, word_spans)


def check_token_columns(columns: object) -> None:
    """Refuse what `return_token_scores` does not take."""
    if isinstance(columns, bool):
        return
    known = f"{', '.join(TOKEN_MEASURES)}, and top5 or another number"
    if isinstance(columns, str) or not isinstance(columns, Sequence):
        raise ArgumentTypeError(
            "return_token_scores",
            f"be True, False, or a list of additional columns ({known})",
            got=repr(columns),
        )
    for name in columns:
        if name not in TOKEN_MEASURES and not TOP.fullmatch(str(name)):
            raise ArgumentError("return_token_scores", f"contain only {known}", got=repr(name))
