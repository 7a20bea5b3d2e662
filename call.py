"""A call, step by step: plan what is asked for, score it, report it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .arguments import Setting
from .carrying import score_carried
from .curves import expand_settings, report_curves
from .evaluator import check_offsets, find_key_characters, report_key_tokens
from .healing import plan_healing
from .language_model import LanguageModel
from .loading import ContextLimit
from .measurement import Corpus, Measurement, plan_settings
from .pairing import ByteComparison, TokenComparison, in_use_together, score_pair, smallest_limit
from .report import Report, list_reports
from .request import Request
from .running import Session
from .scoring import Columns
from .word_report import WordScoring
from .work import Work

# Of each setting: its plan, or why there is none.
Planned = dict[Setting, Measurement | ValueError]


@dataclass(frozen=True)
class Scored:
    """What came of a request.

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


def plan_some(
    request: Request,
    corpus: Corpus,
    limit: ContextLimit,
    settings: Sequence[Setting],
    keeps_refusals: bool,
) -> Planned:
    """Plan a measurement of the request's texts for each of some settings."""
    return plan_settings(
        corpus,
        limit=limit,
        settings=settings,
        add_start_token=request.add_start_token,
        separator=request.separator,
        keeps_refusals=keeps_refusals,
        with_borders=request.words,
    )


def score_request(
    session: Session, model: LanguageModel, reference: LanguageModel | None, request: Request
) -> Scored:
    """Score what a request asks for under a model, or under it and its reference."""
    models = [model] if reference is None else [model, reference]
    with in_use_together(models):
        for one in models:
            one.check()
        # pieces of text that both models cut are found by their characters
        with_offsets = request.reads_characters or reference is not None
        corpus = Corpus(model.tokenizer, request.texts, with_offsets, request.parts)
        planned = plan_request(request, corpus, smallest_limit(models))
        measured = {s: m for s, m in planned.items() if isinstance(m, Measurement)}
        measures = request.measures()
        word_scoring = None
        if request.words:
            word_scoring = WordScoring.of(model, request.word_spans, request.word_correction)
            measures += [m for m in word_scoring.measures() if m not in measures]
        healing = plan_healing(model, measured.values())
        measures += healing.measures()
        work, scores, comparisons = _score(session, models, request, measured, measures)
    reports = [
        Report(
            model,
            measurement,
            healing.heal(measurement, of_windows),
            cost,
            request.word_counts,
            request.text_digests,
            comparison,
            of_borders,
            word_scoring,
            request.detokenizer,
        )
        for (measurement, of_windows, cost), of_borders, comparison in zip(
            work.by_measurement(scores), work.of_borders(scores), comparisons
        )
    ]
    return Scored(planned, reports, sum(work.costs))


def _score(
    session: Session,
    models: Sequence[LanguageModel],
    request: Request,
    measured: dict[Setting, Measurement],
    measures: list,
) -> tuple[Work, list[Columns], Sequence[TokenComparison | ByteComparison | None]]:
    """Score measurements in the way that the request needs; without a reference none compares."""
    measurements = list(measured.values())
    if request.long_context.carry:
        return *score_carried(session, models[0], *measurements, measures), [None]
    if len(models) == 1:
        return *session.score(models, measurements, measures), [None] * len(measured)
    corpus = Corpus(models[1].tokenizer, request.texts, with_offsets=True)
    others = plan_some(
        request, corpus, smallest_limit(models), list(measured), keeps_refusals=False
    )
    pairs = list(zip(measurements, others.values()))
    return score_pair(session, models, pairs, measures, request.margin)


def report_request(
    request: Request,
    scored: Scored,
    session: Session,
    open_evaluator: Callable[[], LanguageModel],
) -> dict:
    """What the call returns; see the metric's documentation.

    Args:
        open_evaluator: opens the model that finds key tokens, where these are asked for.
    """
    reports, extras = scored.reports, request.extras
    if request.gives_list:
        return {
            "measurements": list_reports(scored.planned, reports, extras),
            "num_forward_tokens": scored.num_forward_tokens,
        }
    result = reports[0].result(extras)
    result |= report_curves(reports, request.long_context, scored.num_forward_tokens)
    if request.key_rule is None:
        return result
    measurement = reports[0].measurement
    check_offsets(measurement.streams, "`tokenizer`")
    characters = find_key_characters(session, open_evaluator(), measurement.texts, request.key_rule)
    return result | report_key_tokens(reports[0], characters)
