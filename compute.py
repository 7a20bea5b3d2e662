"""A call: what it asks for, checked; then step by step: plan it, score it, report it."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from transformers import PreTrainedTokenizerBase

from .digests import TextsDigest
from .model import LanguageModel
from .model_loading import ContextLimit
from .model_states import StateReader, find_carrier
from .plan import Corpus, Measurement, plan_settings
from .request_checks import (
    Setting,
    check_choice,
    check_detokenizer,
    check_flag,
    check_names_of,
    check_separator,
    check_word_counts,
    list_settings,
)
from .result_curves import LongContext, check_long_context, expand_settings, report_curves
from .result_key_tokens import (
    KeyTokenRule,
    check_key_tokens,
    check_offsets,
    find_key_characters,
    report_key_tokens,
)
from .result_report import Extras, Report, list_reports
from .result_words import CORRECTIONS, WordScoring, check_words
from .score_carried import score_carried
from .score_healing import plan_healing
from .score_measures import TOKEN_MEASURES, Measure, token_measures
from .score_pairs import (
    ByteComparison,
    TokenComparison,
    in_use_together,
    score_pair,
    smallest_limit,
)
from .score_passes import Columns
from .score_runner import Session, Work
from .signature import describe_key_tokens
from .text_parts import Chat, Parts, check_alone, check_beside_reference, check_parts
from .text_tokenization import Range


@dataclass(frozen=True)
class Request:
    """The texts of a call and what is to be measured of them.

    Attributes:
        settings: the measurements; one, unless `gives_list`.
        long_context: what is asked of the length of the context.
        key_rule: how key tokens are told from others; None where all count.
        parts: what of each text is scored; None for all.
        words: whether words are scored.
        word_spans: the words of each text; None for those between white space.
        margin: what a perplexity may exceed that of the reference by, as a share.
        detokenizer: what turned the texts into prose, for the signature.
    """

    texts: list[str]
    settings: list[Setting]
    gives_list: bool
    add_start_token: bool | str
    separator: str | None
    long_context: LongContext
    key_rule: KeyTokenRule | None
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
        """Digests of the texts; of chats, as the tokenizer's template has written them out."""
        if self.parts is None or self.parts.chats is None:
            return self.text_digests
        written = zip(measurement.texts, measurement.streams)
        lines = (json.dumps([text, stream.part.spans]) for text, stream in written)
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
    evaluator: str | tuple | None,
    contexts: str | Sequence[str] | None,
    score_spans: Sequence[Sequence[Range]] | None,
    boundary: str,
    context_separator: str | None,
    words: bool | str | Sequence[Sequence[str] | Sequence[Range]],
    word_correction: str | None,
    word_counts: Sequence[int] | None,
    num_alternatives: int,
    token_columns: Sequence[str],
    reference_model: object,
    margin: float | None,
    return_token_scores: bool,
    return_totals: bool | str,
    detokenizer: str | None,
) -> Request:
    """Check the arguments of a call by themselves and against each other.

    Args:
        reference_model: whatever the model is compared with, or None.

    Raises:
        TypeError, ValueError: they are not what the metric's documentation says.
    """
    settings, gives_list = list_settings(protocol, max_length, stride)
    long_context = check_long_context(
        context_lengths, positions, carry, settings, gives_list, add_start_token
    )
    if carry and reference_model is not None:
        raise ValueError("`carry` must be False with a reference. Make a call for each model.")
    key_rule = check_key_tokens(key_tokens, evaluator, gives_list)
    word_counts = check_word_counts(word_counts, len(texts))
    check_separator(separator)
    check_detokenizer(detokenizer)
    parts = check_parts(contexts, score_spans, boundary, context_separator, separator, texts, chats)
    check_choice("word_correction", word_correction, CORRECTIONS)
    if words is False and word_correction != CORRECTIONS[0]:
        raise ValueError(
            f"`word_correction` must be left out without `words`, got {word_correction!r}. Pass "
            "words=True."
        )
    word_spans = None if words is False else check_words(words, texts)
    if reference_model is not None:
        check_beside_reference(boundary, words)
    of_whole_texts = {
        "context_lengths": context_lengths,
        "positions": positions,
        "carry": carry or None,
        "key_tokens": key_tokens,
    }
    check_alone(of_whole_texts, parts, words)
    check_names_of("token_columns", token_columns, TOKEN_MEASURES)
    check_flag("return_token_scores", return_token_scores)
    check_choice("return_totals", return_totals, (True, False, "texts"))
    with_tokens = return_token_scores or num_alternatives > 0 or bool(token_columns)
    return Request(
        texts=texts if parts is None else parts.separated(texts),
        settings=settings,
        gives_list=gives_list,
        add_start_token=add_start_token,
        separator=separator,
        long_context=long_context,
        key_rule=key_rule,
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


# Of each setting: its plan, or why there is none.
Planned = dict[Setting, Measurement | ValueError]


@dataclass(frozen=True)
class Scored:
    """The outcome of a request.

    Attributes:
        planned: the measurements, and what was refused.
        reports: of each that was measured.
        num_forward_tokens: tokens read for all of them.
    """

    planned: Planned
    reports: list[Report]
    num_forward_tokens: int


def plan_request(request: Request, corpus: Corpus, limit: ContextLimit) -> Planned:
    """Plan the measurements that a request asks for.

    Raises:
        ValueError: one is refused, or all of a list are.
    """
    start = (request.add_start_token, request.separator)
    settings = expand_settings(corpus, limit, request.settings, request.long_context, *start)
    return plan_some(request, corpus, limit, settings, keeps_refusals=request.gives_list)


def without_refusals(planned: Planned) -> dict[Setting, Measurement]:
    """Return the measurements that were planned."""
    return {s: m for s, m in planned.items() if isinstance(m, Measurement)}


def plan_some(
    request: Request,
    corpus: Corpus,
    limit: ContextLimit,
    settings: Sequence[Setting],
    keeps_refusals: bool,
) -> Planned:
    """Plan a measurement of the request's texts for each setting."""
    return plan_settings(
        corpus,
        limit=limit,
        settings=settings,
        add_start_token=request.add_start_token,
        separator=request.separator,
        keeps_refusals=keeps_refusals,
        with_borders=request.words,
    )


def plan_reference(
    request: Request,
    measured: dict[Setting, Measurement],
    tokenizer: PreTrainedTokenizerBase,
    limit: ContextLimit,
) -> list[Measurement]:
    """Plan the measurements of a model for its reference, which reads the same texts.

    Args:
        tokenizer: the reference's.
    """
    parts = request.parts
    if parts is not None:
        first = next(iter(measured.values()))
        parts = parts.as_read(first.texts, first.streams)
    corpus = Corpus(tokenizer, request.texts, with_offsets=True, parts=parts)
    planned = plan_some(request, corpus, limit, list(measured), keeps_refusals=False)
    return list(planned.values())


def score_request(
    session: Session, model: LanguageModel, reference: LanguageModel | None, request: Request
) -> Scored:
    """Score what a request asks for under a model, or under it and its reference."""
    models = [model] if reference is None else [model, reference]
    with in_use_together(models):
        for language_model in models:
            language_model.prepare()
            if session.checkpoint is not None:
                language_model.check_identifiable()
        word_scoring = carrier = None
        if request.words:
            word_scoring = WordScoring.of(model, request.word_spans, request.word_correction)
        if request.long_context.carry:
            check_carries(model)
            carrier = find_carrier(model.model, model.description)
        # pieces of text that both models cut are found by their characters
        with_offsets = request.reads_characters or reference is not None
        corpus = Corpus(model.tokenizer, request.texts, with_offsets, request.parts)
        planned = plan_request(request, corpus, smallest_limit(models))
        measured = without_refusals(planned)
        if not model.gives_logits:  # which tell what could follow a scored part
            measured = {s: replace(m, borders=[[]] * len(m.borders)) for s, m in measured.items()}
        measures = request.measures()
        if word_scoring is not None:
            measures += [m for m in word_scoring.measures() if m not in measures]
        healing = plan_healing(model, measured.values())
        measures += healing.measures()
        work, scores, comparisons = _score(session, models, carrier, request, measured, measures)
    outcomes = zip(work.by_measurement(scores), work.of_borders(scores), comparisons)
    reports = [
        Report(
            model,
            measurement,
            healing.heal(measurement, of_windows),
            cost,
            request.word_counts,
            request.digests_as_read(measurement),
            comparison,
            of_borders,
            word_scoring,
            request.detokenizer,
        )
        for (measurement, of_windows, cost), of_borders, comparison in outcomes
    ]
    return Scored(planned, reports, sum(work.costs))


def check_carries(model: LanguageModel) -> None:
    """Refuse to carry the state of a model that lives elsewhere.

    Raises:
        ValueError: it does.
    """
    if not isinstance(model, LanguageModel):
        raise ValueError(
            f"`carry` needs a model of transformers, whose state can be handed on, got "
            f"{model.description}. Pass its name or folder as `model_id`, or leave out `carry`."
        )


def _score(
    session: Session,
    models: Sequence[LanguageModel],
    carrier: StateReader | None,
    request: Request,
    measured: dict[Setting, Measurement],
    measures: Sequence[Measure],
) -> tuple[Work, list[Columns], Sequence[TokenComparison | ByteComparison | None]]:
    """Score measurements: carried, alone, or beside the reference."""
    measurements = list(measured.values())
    if carrier is not None:
        return *score_carried(session, models[0], carrier, *measurements, measures), [None]
    if len(models) == 1:
        # a curve of context lengths is about the tokens of the first, the longest
        num_shown = None if request.gives_list else 1
        return *session.score(models, measurements, measures, num_shown), [None] * len(measured)
    limit = smallest_limit(models)
    of_reference = plan_reference(request, measured, models[1].tokenizer, limit)
    pairs = list(zip(measurements, of_reference))
    return score_pair(session, models, pairs, measures, request.margin)


def report_request(
    request: Request,
    scored: Scored,
    session: Session,
    open_evaluator: Callable[[], LanguageModel],
) -> dict:
    """Build what the call returns; see the metric's documentation.

    Args:
        open_evaluator: opens the model that finds key tokens, where these are asked for.
    """
    reports, extras = scored.reports, request.extras
    if request.gives_list:
        measurements = list_reports(scored.planned, reports, extras)
        first = next(entry for entry in measurements if "error" not in entry)
        together = {"num_forward_tokens": scored.num_forward_tokens}
        return first | together | {"measurements": measurements}
    result = reports[0].result(extras)
    result |= report_curves(reports, request.long_context, scored.num_forward_tokens)
    if request.key_rule is None:
        return result
    measurement = reports[0].measurement
    check_offsets(measurement.streams, "`tokenizer`")
    evaluator, rule = open_evaluator(), request.key_rule
    characters = find_key_characters(session, evaluator, measurement.texts, rule)
    result |= report_key_tokens(reports[0], characters)
    return result | {"longppl_signature": describe_key_tokens(evaluator, rule.describe())}
