"""What a call does: check, open, read, plan, score, sum up."""

import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from inspect import signature
from os import PathLike

import torch
from transformers import PreTrainedTokenizerBase

from .arguments import (
    EVALUATOR_ROLE,
    Setting,
    check_flag,
    check_margin,
    check_names,
    check_running,
    check_texts,
)
from .digests import TextsDigest
from .engines.sources import (
    FreedModel,
    ModelSource,
    OpenModels,
    ReferenceSource,
    WithoutAdapter,
    check_model_source,
    check_reference,
    compare_tokenizers,
    in_use_together,
    read_alike,
    smallest_limit,
)
from .errors import ArgumentError, Wording
from .models.interface import EngineModel, ScoredModel, describe_key_tokens
from .models.language_model import LanguageModel
from .models.states import StateReader, find_carrier
from .plan.chats import separate_chats
from .plan.measurement import Measurement
from .plan.settings import Corpus, own_window, plan_settings
from .plan.tokenization import Chat, Range
from .plan.windows import ContextLimit
from .protocols import DEFAULT_PROTOCOL
from .request import Request, check_request
from .results.contexts import (
    LongContextTotals,
    PartTotals,
    expand_settings,
    total_contexts,
    total_positions,
)
from .results.key_tokens import check_offsets, find_key_characters, total_key_tokens
from .results.pairs import score_pair
from .results.report import Comparison, Report, list_reports
from .results.words import WordScoring
from .scoring.carried import score_carried
from .scoring.checkpoint import open_checkpoint
from .scoring.distributed import Processes
from .scoring.hidden_states import store_reference
from .scoring.measures import Healing, Measure, plan_healing
from .scoring.runner import Progress, Session, Work, without_collecting


def compute(
    predictions: Iterable[str] | Sequence[Chat],
    model_id: str | None = None,
    batch_size: int = 16,
    add_start_token: bool | str = True,
    device: str | torch.device | None = None,
    max_length: int | Sequence[int] | None = None,
    stride: int | Sequence[int] | None = None,
    model: torch.nn.Module | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    dtype: str | torch.dtype | None = None,
    model_kwargs: dict | None = None,
    tokenizer_kwargs: dict | None = None,
    return_token_scores: bool | Sequence[str] = False,
    protocol: str | Sequence[str] = DEFAULT_PROTOCOL,
    separator: str | None = None,
    word_counts: Sequence[int] | None = None,
    logits_memory: int = 2**29,
    num_alternatives: int = 0,
    callback: Callable[[Progress], None] | None = None,
    checkpoint: str | os.PathLike | None = None,
    distributed: bool = False,
    return_totals: bool | str = False,
    detokenizer: str | None = None,
    reference: str | torch.nn.Module | Mapping | None = None,
    margin: float | None = None,
    context_lengths: str | Sequence[int] | None = None,
    positions: str | Sequence[int] | None = None,
    carry: bool = False,
    key_tokens: str | dict | None = None,
    contexts: str | Sequence[str] | None = None,
    score_spans: Sequence[Sequence[Range]] | None = None,
    boundary: str = "joint",
    context_separator: str | None = None,
    words: bool | str | Sequence[Sequence[str] | Sequence[Range]] = False,
    word_correction: str | None = "pimentel",
) -> dict:
    """Compute the perplexity of texts under a causal language model, with a sliding window.

    The arguments, the keys of the result with their units, and the errors are those of the metric:
    `PerplexitySliding.inputs_description`.  A model that is given by name is loaded for this call;
    a `PerplexitySliding` keeps it for the next.

    Raises:
        TypeError, ValueError: an argument is unknown, or not what the documentation says; the model
            or its tokenizer cannot be loaded, or cannot be scored with.
        MemoryError: a single window does not fit.

    >>> from perplexity_sliding import compute
    >>> results = compute(["She closed the door."], model_id="demo_model")
    """
    return compute_with(OpenModels(), locals())


def compute_with(open_models: OpenModels, arguments: dict) -> dict:
    """Check, open, read and score, sum up; in all processes that share the work.

    Args:
        open_models: those that are open, and stay so.
        arguments: of `compute`, by name.

    Raises:
        TypeError, ValueError: an argument is unknown, or not what the documentation says.
    """
    processes = Processes(check_flag("distributed", arguments.get("distributed", False)))
    with processes.failing_together():
        asked = with_defaults(arguments)
        request, source, second = check(processes, asked)
        with open_checkpoint(asked["checkpoint"]) as store:
            # numpy's integers overflow
            sizes = int(asked["batch_size"]), int(asked["logits_memory"])
            session = Session(*sizes, store, processes, asked["callback"])
            models, session = open_all(open_models, source, second, session, request)
            scored = score_request(session, models, request)
            evaluator = partial(open_evaluator, open_models, request, models[0], source)
            return report_request(request, scored, session, evaluator)


# --- check ----------------------------------------------------------------------------------------

# Arguments that say what scores, and how it runs; all others are of the request.
OF_SOURCE = (
    "model_id",
    "model",
    "tokenizer",
    "device",
    "dtype",
    "model_kwargs",
    "tokenizer_kwargs",
)
OF_RUN = ("batch_size", "logits_memory", "callback", "checkpoint", "distributed")


def with_defaults(arguments: dict) -> dict:
    """Return all arguments of `compute`, those that were not given with their defaults.

    Raises:
        TypeError, ValueError: one is unknown.
    """
    check_names(compute, arguments)
    call = signature(compute).bind(**arguments)
    call.apply_defaults()
    return call.arguments


def check(
    processes: Processes, asked: Mapping
) -> tuple[Request, ModelSource, ReferenceSource | None]:
    """Check the arguments; return what is asked for, of which model, and beside which other."""
    if asked["predictions"] is None:
        raise ArgumentError(
            "predictions",
            "be given: a list of at least one text, or add texts with `add_batch` first",
        )
    texts, chats = separate_chats(asked["predictions"])
    texts = check_texts(texts)
    agree_on_texts(processes, texts)
    check_running(
        asked["batch_size"],
        asked["logits_memory"],
        asked["num_alternatives"],
        asked["callback"],
        asked["checkpoint"],
    )
    others = ("predictions", *OF_SOURCE, *OF_RUN)
    of_request = {name: value for name, value in asked.items() if name not in others}
    request = check_request(texts, chats, **of_request)
    agree_on_request(processes, request)
    source = check_model_source(ModelSource(**{name: asked[name] for name in OF_SOURCE}))
    second = check_reference(asked["reference"], source, asked["distributed"])
    check_margin(asked["margin"], second is not None)
    return request, source, second


def agree_on_texts(processes: Processes, texts: Sequence[str]) -> None:
    """Refuse processes that share the work and were not given the same texts."""
    processes.agree(
        lambda: str(TextsDigest.of(texts)),
        "texts",
        "Windows are shared out by the metric itself: pass all texts to every process, or leave "
        "out `distributed` to score each one's by itself.",
    )


def agree_on_request(processes: Processes, request: Request) -> None:
    """Refuse processes that share the work and were asked for other parts of the texts."""
    processes.agree(
        lambda: request.digest,
        "contexts, scored spans, messages, words and word counts",
        "Pass the same ones to every process.",
    )


# --- open -----------------------------------------------------------------------------------------


def open_all(
    open_models: OpenModels,
    source: ModelSource,
    second: ReferenceSource | None,
    session: Session,
    request: Request,
) -> tuple[list[ScoredModel], Session]:
    """Open the model and, where there is one, its reference; and the session that goes on with them."""
    if second is not None and second.source is not None and second.states is not None:
        reference, session = store_states(
            open_models, source, second.source, second.states, session, request
        )
        return [open_models.open(source), reference], session
    model = open_models.open(source)
    if second is None:
        open_models.close("reference")
        return [model], session
    return [model, open_reference(open_models, second, model)], session


def open_reference(
    open_models: OpenModels, second: ReferenceSource, model: ScoredModel
) -> ScoredModel:
    """Open what the model is compared with; a live one reads with the model's tokenizer by default."""
    if second.source is None:
        open_models.close("reference")
        return WithoutAdapter.of(model)
    source = second.source
    if source.model is not None and source.tokenizer is None:
        source = replace(source, tokenizer=model.tokenizer)
    if source.model is not None:
        open_models.close("reference")
    return open_models.open(source)


def store_states(
    open_models: OpenModels,
    source: ModelSource,
    second: ModelSource,
    states: str | PathLike,
    session: Session,
    request: Request,
) -> tuple[ScoredModel, Session]:
    """Store the reference's states in a file, with no other model in memory."""
    language_model = open_models.open(source)
    model = FreedModel(language_model.tokenizer, language_model.limit)
    open_models.close("model")
    del language_model
    reference = open_models.open(second)
    open_models.close("reference")  # no other call can use what is left of it
    with reference.in_use():
        reference.prepare()
        limit = smallest_limit([model, reference])
        corpus = Corpus(model.tokenizer, request.texts, with_offsets=True, parts=request.parts)
        measured = accepted(plan_request(request, corpus, limit))
        planned = list(measured.values())
        of_reference = plan_reference(request, measured, reference.tokenizer, limit)
        if not read_alike(model, reference, list(zip(planned, of_reference))):
            raise ValueError(
                Wording(
                    "`reference['states']` needs models that read the same tokens, got other "
                    "tokenizers. Leave it out."
                )
            )
        return store_reference(states, reference, planned, session)


# --- plan -----------------------------------------------------------------------------------------

# Of each setting: its plan, or why there is none.
Planned = dict[Setting, Measurement | ValueError]


@without_collecting()
def plan_request(request: Request, corpus: Corpus, limit: ContextLimit) -> Planned:
    """Plan the measurements that a request asks for.

    Raises:
        ValueError: one is refused, or all of a list are.
    """
    settings = expand_settings(corpus, limit, request.settings, request.long_context)
    return plan_settings(corpus, limit, settings, request.gives_list, request.words)


def accepted(planned: Planned) -> dict[Setting, Measurement]:
    """Return the measurements that were planned."""
    return {s: m for s, m in planned.items() if isinstance(m, Measurement)}


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
    return list(accepted(plan_settings(corpus, limit, list(measured), False)).values())


# --- score ----------------------------------------------------------------------------------------


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


def score_request(session: Session, models: Sequence[ScoredModel], request: Request) -> Scored:
    """Read the texts and score what a request asks for, under a model or it and its reference."""
    with in_use_together(models):
        prepare_all(session, models)
        task = read_and_plan(models, request)
        measurements, measures = list(task.measured.values()), task.measures
        comparisons: Sequence[Comparison | None] = [None] * len(measurements)
        own_windows = find_own_windows(models, task)
        work: Work
        if task.carrier is not None:
            [measurement] = measurements
            work, scores = score_carried(session, models[0], task.carrier, measurement, measures)
        elif len(models) == 1:
            # a curve of context lengths is about the tokens of the first, the longest
            num_shown = None if request.gives_list else 1
            work, scores = session.score(models, measurements, measures, num_shown)
        else:
            tokenizer, limit = models[1].tokenizer, smallest_limit(models)
            of_reference = plan_reference(request, task.measured, tokenizer, limit)
            pairs = list(zip(measurements, of_reference))
            work, scores, comparisons = score_pair(
                session, (models[0], models[1]), pairs, measures, request.margin
            )
    with without_collecting():
        outcomes = zip(
            work.by_measurement(scores), work.of_borders(scores), comparisons, own_windows
        )
        reports = [
            Report(
                models[0],
                measurement,
                task.healing.heal(measurement, of_windows),
                cost,
                request.word_counts,
                request.digests_as_read(measurement),
                comparison,
                of_borders,
                task.words,
                request.detokenizer,
                own,
            )
            for (measurement, of_windows, cost), of_borders, comparison, own in outcomes
        ]
    return Scored(task.planned, reports, sum(work.costs))


def find_own_windows(models: Sequence[ScoredModel], task: "Task") -> list[tuple[int | None, ...]]:
    """Return the windows that two models have by themselves, for each measurement; warn of a loss.

    Both read the smaller window.  Where texts are longer, the other model's numbers are not those
    that it has alone.
    """
    if len(models) == 1:
        return [()] * len(task.measured)
    found = []
    for setting, measurement in task.measured.items():
        own = tuple(own_window(m.tokenizer, m.limit, setting) for m in models)
        window, slides = measurement.plan.max_length, any(len(w) > 1 for w in measurement.windows)
        cut = [n for n, length in enumerate(own) if length is None or length > window]
        if slides and cut:
            name = ("model", "reference")[cut[0]]
            alone = "states no limit" if own[cut[0]] is None else f"reads {own[cut[0]]}"
            warnings.warn(
                Wording(
                    f"The model and its `reference` are compared in windows of {window} tokens, "
                    f"the most that both take. By itself the {name} {alone}, and has other numbers.",
                    f"Pass `max_length={window}` if that is meant.",
                ),
                stacklevel=2,
            )
        found.append(own)
    return found


def prepare_all(session: Session, models: Sequence[ScoredModel]) -> None:
    """Look at the models before anything is scored."""
    with session.looking():
        for model in models:
            model.prepare()
            if session.checkpoint is not None:
                model.check_identifiable()


@dataclass(frozen=True)
class Task:
    """What there is to score of a request.

    Attributes:
        planned: the measurements, and what was refused.
        measured: those that were not.
        measures: what to measure of each token.
        healing: of the tokens that reach across the edge of a scored part.
        words: how words are scored; None where they are not.
        carrier: carries the model's state; None where every window begins anew.
    """

    planned: Planned
    measured: dict[Setting, Measurement]
    measures: list[Measure]
    healing: Healing
    words: WordScoring | None
    carrier: StateReader | None


def read_and_plan(models: Sequence[ScoredModel], request: Request) -> Task:
    """Read the texts as the models do, and plan what a request asks for."""
    model = models[0]
    words = carrier = None
    if request.words:
        words = WordScoring.of(model, request.word_spans, request.word_correction)
    if request.long_context.carry:
        carrier = find_carrier(check_carries(model).model, model.description)
    # pieces of text that both models cut are found by their characters
    with_offsets = request.reads_characters or len(models) > 1
    corpus = Corpus(model.tokenizer, request.texts, with_offsets, request.parts)
    planned = plan_request(request, corpus, smallest_limit(models))
    measured = accepted(planned)
    for language_model in models:
        if isinstance(language_model, EngineModel):
            compare_tokenizers(language_model, next(iter(measured.values())).texts)
    if not model.gives_logits:  # which tell what could follow a scored part
        measured = {s: replace(m, borders=[[]] * len(m.borders)) for s, m in measured.items()}
    measures = request.measures()
    if words is not None:
        measures += [m for m in words.measures() if m not in measures]
    healing = plan_healing(model, list(measured.values()))
    return Task(planned, measured, measures + healing.measures(), healing, words, carrier)


def check_carries(model: ScoredModel) -> LanguageModel:
    """Return the model; refuse to carry the state of a model that lives elsewhere.

    Raises:
        ValueError: it does.
    """
    if not isinstance(model, LanguageModel):
        raise ValueError(
            Wording(
                "`carry` needs a model of transformers, whose state can be handed on, got "
                f"{model.description}. Pass its name or folder as `model_id`, or leave out "
                "`carry`."
            )
        )
    return model


# --- sum up ---------------------------------------------------------------------------------------


def report_request(
    request: Request, scored: Scored, session: Session, evaluator: Callable[[], ScoredModel]
) -> dict:
    """Build what the call returns; see the metric's documentation.

    Args:
        evaluator: opens the model that finds key tokens.
    """
    reports, extras = scored.reports, request.extras
    if request.gives_list:
        with without_collecting():
            measurements = list_reports(scored.planned, reports, extras)
        first = next(entry for entry in measurements if "error" not in entry)
        together = {"num_forward_tokens": scored.num_forward_tokens}
        return first | together | {"measurements": measurements}
    with without_collecting():
        result = reports[0].result(extras)
    totals = total_long_contexts(request, scored, session, evaluator)
    if totals is None:
        return result
    if extras.with_totals:
        result["long_context_totals"] = totals
    if totals.are_enough or not extras.with_totals:
        result |= totals.result()
    return result


def total_long_contexts(
    request: Request, scored: Scored, session: Session, evaluator: Callable[[], ScoredModel]
) -> LongContextTotals | None:
    """Sum up what was asked of long contexts, if anything was."""
    asked, rule, reports = request.long_context, request.key_rule, scored.reports
    parts: list[PartTotals] = []
    identity = reports[0].totals.identity | {"probe": None, "long_probe": None}
    if asked.context_lengths is not None:
        contexts = total_contexts(reports, scored.num_forward_tokens)
        parts.append(contexts)
        identity["context_lengths"] = contexts.context_lengths
    if asked.positions is not None:
        parts.append(total_positions(reports[0], asked.positions))
        identity["positions"] = asked.positions
    if rule is not None:
        measurement = reports[0].measurement
        check_offsets(measurement.streams, "`tokenizer`")
        finder = evaluator()
        characters = find_key_characters(session, finder, measurement.texts, rule)
        signature = describe_key_tokens(finder, rule.describe())
        parts.append(total_key_tokens(reports[0], characters, signature))
        identity["key_tokens"] = signature
    return LongContextTotals(parts, identity) if parts else None


def open_evaluator(
    open_models: OpenModels, request: Request, model: ScoredModel, source: ModelSource
) -> ScoredModel:
    """Open the model that finds key tokens: the one given, or the one that is measured."""
    evaluator = request.evaluator
    if evaluator is None:
        open_models.close(EVALUATOR_ROLE)
        return model
    if evaluator.model_id is not None:
        evaluator = replace(evaluator, device=source.device, dtype=source.dtype)
    return open_models.open(evaluator)
