"""The request of a call: its arguments, checked by themselves and against each other."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from numbers import Real
from os import PathLike
from pathlib import Path
from typing import Any

import torch

from .argument_table import ARGUMENTS, check_whole_number
from .arguments import (
    EVALUATOR_ROLE,
    KeyTokenRule,
    LongContext,
    Setting,
    check_kinds,
    check_long_context,
    check_names_of,
    check_word_counts,
    list_settings,
)
from .digests import TextsDigest
from .engines.sources import ModelSource, ReferenceSource, check_model_source, check_reference
from .errors import ArgumentError, ArgumentTypeError, Wording
from .plan.measurement import Measurement
from .plan.parts import check_alone, check_beside_reference, check_parts
from .plan.tokenization import Chat, Parts
from .results.report import Extras
from .results.words import check_words
from .scoring.measures import TOKEN_MEASURES, Measure, token_measures


@dataclass(frozen=True)
class Request:
    """The texts of a call, what is measured of them, under which models, and how it runs.

    Attributes:
        source: the model.
        reference: what it is compared with, if anything.
        settings: the measurements; one, unless `gives_list`.
        long_context: what is asked of the length of the context.
        key_rule: what makes a token key; None where key tokens are not measured.
        evaluator: the model that finds key tokens; None for the one that is measured.
        parts: the parts of each text that are scored; None for all of it.
        words: whether words are scored.
        word_spans: the words of each text; None for those between white space.
        margin: share by which the perplexity may exceed that of the reference.
        detokenizer: the name of what turned the texts into prose, for the signature.
        batch_size, logits_memory, callback, checkpoint: as in `compute`.
    """

    texts: list[str]
    source: ModelSource
    reference: ReferenceSource | None
    settings: list[Setting]
    gives_list: bool
    long_context: LongContext
    key_rule: KeyTokenRule | None
    evaluator: ModelSource | None
    parts: Parts | None
    words: bool
    word_spans: list[list[tuple[int, int]]] | None
    word_correction: str | None
    word_counts: list[int] | None
    num_alternatives: int
    token_columns: Sequence[str]
    margin: float | None
    detokenizer: str | None
    extras: Extras
    batch_size: int
    logits_memory: int
    callback: Callable | None
    checkpoint: str | Path | None

    @property
    def states(self) -> str | PathLike | None:
        """The file for the reference's last hidden states, where it runs first."""
        return None if self.reference is None else self.reference.states

    @property
    def needs_characters(self) -> bool:
        """Whether the characters of each token are needed.

        Pieces of text that two models both cut are found by their characters.
        """
        asked = self.extras.with_tokens or self.words or self.key_rule is not None
        return asked or self.reference is not None

    def measures(self) -> list[Measure]:
        """List what to measure of each token."""
        return token_measures(self.num_alternatives, self.token_columns)

    @cached_property
    def text_digests(self) -> list[TextsDigest]:
        """Digests of the texts, each with what of it is scored."""
        lines = self.texts if self.parts is None else self.parts.describe_texts(self.texts)
        return [TextsDigest.of([line]) for line in lines]

    def digests_as_read(self, measurement: Measurement) -> list[TextsDigest]:
        """Return digests of the texts; of chats, as the tokenizer's template wrote them out."""
        if self.parts is None or self.parts.chats is None:
            return self.text_digests
        written = zip(measurement.texts, measurement.streams)
        lines = (json.dumps([text, stream.scored_part.spans]) for text, stream in written)
        return [TextsDigest.of([line]) for line in lines]

    @property
    def digest(self) -> str:
        """Digest of what processes must have in common beside model and settings."""
        of_texts = sum(self.text_digests, TextsDigest())
        return str(TextsDigest.of(map(str, (of_texts, self.word_spans, self.word_counts))))


# Arguments that name the model and say how it is loaded.
OF_SOURCE = (
    *("model_id", "model", "tokenizer", "device", "dtype"),
    *("model_kwargs", "tokenizer_kwargs"),
)


def check_request(texts: list[str], chats: Sequence[Chat] | None, asked: Mapping) -> Request:
    """Check the arguments of a call by themselves and against each other.

    Args:
        texts: checked; of chats, see `separate_chats`.
        asked: all arguments of `compute` by name.

    Raises:
        TypeError, ValueError: one of them is not as the metric's documentation says.
    """
    check_kinds(asked)
    settings, gives_list = list_settings(
        asked["protocol"],
        asked["max_length"],
        asked["stride"],
        asked["add_start_token"],
        asked["separator"],
    )
    long_context = check_long_context(
        asked["context_lengths"], asked["positions"], asked["carry"], settings, gives_list
    )
    key_rule, evaluator = check_key_tokens(asked["key_tokens"], gives_list)
    word_counts = check_word_counts(asked["word_counts"], texts)
    parts = check_parts(
        asked["contexts"],
        asked["score_spans"],
        asked["boundary"],
        asked["context_separator"],
        asked["separator"],
        texts,
        chats,
    )
    word_spans = check_word_arguments(asked["words"], asked["word_correction"], texts)
    check_combinations(asked, parts)
    token_columns = check_token_columns(asked["return_token_scores"])
    return_totals = asked["return_totals"]
    with_tokens = asked["return_token_scores"] is not False or asked["num_alternatives"] > 0
    source = check_model_source(ModelSource(**{name: asked[name] for name in OF_SOURCE}))
    reference = check_reference(asked["reference"], source, asked["distributed"])
    if asked["margin"] is not None and reference is None:
        raise ValueError(
            Wording(
                f"`margin` needs a model to compare with, got {asked['margin']!r}. Pass "
                "`reference`."
            )
        )
    return Request(
        texts=texts if parts is None else parts.separated(texts),
        source=source,
        reference=reference,
        settings=settings,
        gives_list=gives_list,
        long_context=long_context,
        key_rule=key_rule,
        evaluator=evaluator,
        parts=parts,
        words=asked["words"] is not False,
        word_spans=word_spans,
        word_correction=asked["word_correction"],
        word_counts=word_counts,
        num_alternatives=int(asked["num_alternatives"]),  # numpy's integers overflow
        token_columns=token_columns,
        margin=asked["margin"],
        detokenizer=asked["detokenizer"],
        extras=Extras(with_tokens, bool(return_totals), return_totals == "texts"),
        batch_size=int(asked["batch_size"]),
        logits_memory=int(asked["logits_memory"]),
        callback=asked["callback"],
        checkpoint=asked["checkpoint"],
    )


def check_word_arguments(
    words: object, word_correction: object, texts: Sequence[str]
) -> list[list[tuple[int, int]]] | None:
    """Return the characters of the words of each text; None where none are given."""
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


def check_combinations(asked: Mapping, parts: Parts | None) -> None:
    """Refuse arguments that exclude each other."""
    if asked["reference"] is not None:
        if asked["carry"]:
            raise ArgumentError(
                "carry", "be left out with a reference", advice="Make a call for each model."
            )
        check_beside_reference(asked["boundary"], asked["words"])
    of_whole_texts = {
        "context_lengths": asked["context_lengths"],
        "positions": asked["positions"],
        "carry": asked["carry"] or None,
        "key_tokens": asked["key_tokens"],
    }
    check_alone(of_whole_texts, parts, asked["words"])


def check_token_columns(return_token_scores: object) -> Sequence[str]:
    """Return the columns that token scores have beside the usual ones."""
    if isinstance(return_token_scores, bool):
        return ()
    if isinstance(return_token_scores, str) or not isinstance(return_token_scores, Sequence):
        raise ArgumentTypeError(
            "return_token_scores",
            f"be True, False, or a list of further columns ({', '.join(TOKEN_MEASURES)})",
            got=repr(return_token_scores),
        )
    check_names_of("return_token_scores", return_token_scores, TOKEN_MEASURES)
    return return_token_scores


def check_key_tokens(
    key_tokens: object, gives_list: bool
) -> tuple[KeyTokenRule | None, ModelSource | None]:
    """Return what makes a token key, and the model that finds such, if it is another one."""
    if key_tokens is None:
        return None, None
    if gives_list:
        raise ArgumentError(
            "key_tokens",
            "be left out where `protocol`, `max_length` or `stride` is a list",
            advice="Make a call for each.",
        )
    settings = {} if key_tokens == "longppl" else key_tokens
    known = [field.name for field in fields(KeyTokenRule)]
    if not isinstance(settings, dict) or not set(settings) <= {*known, "evaluator"}:
        raise ArgumentError(
            "key_tokens",
            f"be 'longppl', or a dict with some of {', '.join(known)} and evaluator",
            got=repr(key_tokens),
        )
    for name in ("short_context", "stride"):
        if name in settings:
            check_whole_number(f"key_tokens[{name!r}]", settings[name], 1)
    for name in ("gain", "largest_nll"):
        nats = settings.get(name, 0.0)
        if isinstance(nats, bool) or not isinstance(nats, Real):
            raise ArgumentTypeError(f"key_tokens[{name!r}]", "be a number of nats", got=repr(nats))
    rule = KeyTokenRule(**{name: settings[name] for name in known if name in settings})
    return rule, _evaluator(settings.get("evaluator"))


def _evaluator(evaluator: Any) -> ModelSource | None:
    if evaluator is None:
        return None
    if isinstance(evaluator, str):
        return ModelSource(evaluator, role=EVALUATOR_ROLE)
    is_pair = isinstance(evaluator, tuple) and len(evaluator) == 2
    if not (is_pair and isinstance(evaluator[0], torch.nn.Module)):
        raise ArgumentTypeError(
            EVALUATOR_ROLE,
            "be the name of a model on the Hub, a folder, or a pair (model, tokenizer)",
            got=repr(evaluator),
        )
    model, tokenizer = evaluator
    return ModelSource(model=model, tokenizer=tokenizer, role=EVALUATOR_ROLE)
