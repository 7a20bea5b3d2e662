"""What a call asks for, checked: the arguments by themselves and against each other."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from numbers import Real
from typing import Any

import torch

from .arguments import (
    EVALUATOR_ROLE,
    KeyTokenRule,
    LongContext,
    Setting,
    check_choice,
    check_detokenizer,
    check_long_context,
    check_names_of,
    check_separator,
    check_whole_number,
    check_word_counts,
    list_settings,
)
from .digests import TextsDigest
from .engines.sources import ModelSource
from .errors import ArgumentError, ArgumentTypeError
from .plan.measurement import Measurement
from .plan.parts import check_alone, check_beside_reference, check_parts
from .plan.tokenization import Chat, Parts, Range
from .results.report import Extras
from .results.words import CORRECTIONS, check_words
from .scoring.measures import TOKEN_MEASURES, Measure, token_measures


@dataclass(frozen=True)
class Request:
    """The texts of a call and what is to be measured of them.

    Attributes:
        settings: the measurements; one, unless `gives_list`.
        long_context: what is asked of the length of the context.
        key_rule: how key tokens are told from others; None where all count.
        evaluator: the model that finds key tokens; None for the one that is measured.
        parts: what of each text is scored; None for all.
        words: whether words are scored.
        word_spans: the words of each text; None for those between white space.
        margin: what a perplexity may exceed that of the reference by, as a share.
        detokenizer: what turned the texts into prose, for the signature.
    """

    texts: list[str]
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

    @property
    def reads_characters(self) -> bool:
        """Whether the characters of each token are needed, even without a reference."""
        return self.extras.with_tokens or self.words or self.key_rule is not None

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
        """What processes must have in common beside texts, model and settings."""
        of_texts = sum(self.text_digests, TextsDigest())
        return str(TextsDigest.of(map(str, (of_texts, self.word_spans, self.word_counts))))


def check_request(
    texts: list[str],
    chats: Sequence[Chat] | None,
    *,
    protocol: str | Sequence[str],
    max_length: int | Sequence[int] | None,
    stride: int | Sequence[int] | None,
    add_start_token: bool | str,
    separator: str | None,
    context_lengths: str | Sequence[int] | None,
    positions: str | Sequence[int] | None,
    carry: bool,
    key_tokens: str | dict | None,
    contexts: str | Sequence[str] | None,
    score_spans: Sequence[Sequence[Range]] | None,
    boundary: str,
    context_separator: str | None,
    words: bool | str | Sequence[Sequence[str] | Sequence[Range]],
    word_correction: str | None,
    word_counts: Sequence[int] | None,
    num_alternatives: int,
    reference: object,
    margin: float | None,
    return_token_scores: bool | Sequence[str],
    return_totals: bool | str,
    detokenizer: str | None,
) -> Request:
    """Check the arguments of a call by themselves and against each other.

    Raises:
        TypeError, ValueError: they are not what the metric's documentation says.
    """
    check_separator(separator)
    settings, gives_list = list_settings(protocol, max_length, stride, add_start_token, separator)
    long_context = check_long_context(context_lengths, positions, carry, settings, gives_list)
    if carry and reference is not None:
        raise ArgumentError(
            "carry", "be left out with a reference", advice="Make a call for each model."
        )
    key_rule, evaluator = check_key_tokens(key_tokens, gives_list)
    word_counts = check_word_counts(word_counts, texts)
    check_detokenizer(detokenizer)
    parts = check_parts(contexts, score_spans, boundary, context_separator, separator, texts, chats)
    check_choice("word_correction", word_correction, CORRECTIONS)
    if words is False and word_correction != CORRECTIONS[0]:
        raise ArgumentError(
            "word_correction",
            "be left out without `words`",
            got=repr(word_correction),
            advice="Pass `words=True`.",
        )
    word_spans = None if words is False else check_words(words, texts)
    if reference is not None:
        check_beside_reference(boundary, words)
    of_whole_texts = {
        "context_lengths": context_lengths,
        "positions": positions,
        "carry": carry or None,
        "key_tokens": key_tokens,
    }
    check_alone(of_whole_texts, parts, words)
    token_columns = check_token_columns(return_token_scores)
    check_choice("return_totals", return_totals, (True, False, "texts"))
    with_tokens = return_token_scores is not False or num_alternatives > 0
    return Request(
        texts=texts if parts is None else parts.separated(texts),
        settings=settings,
        gives_list=gives_list,
        long_context=long_context,
        key_rule=key_rule,
        evaluator=evaluator,
        parts=parts,
        words=words is not False,
        word_spans=word_spans,
        word_correction=word_correction,
        word_counts=word_counts,
        num_alternatives=int(num_alternatives),  # numpy's overflow
        token_columns=token_columns,
        margin=margin,
        detokenizer=detokenizer,
        extras=Extras(with_tokens, bool(return_totals), return_totals == "texts"),
    )


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
    if not _is_pair(evaluator):
        raise ArgumentTypeError(
            EVALUATOR_ROLE,
            "be the name of a model on the Hub, a folder, or a pair (model, tokenizer)",
            got=repr(evaluator),
        )
    model, tokenizer = evaluator
    return ModelSource(model=model, tokenizer=tokenizer, role=EVALUATOR_ROLE)


def _is_pair(value: object) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], torch.nn.Module)
