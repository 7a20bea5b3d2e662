"""The pipeline of `compute`: check, open, plan, score, report."""

import json
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from inspect import cleandoc
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from .arguments import (
    ARGUMENTS,
    CHATS,
    LENGTHS,
    REQUIRED,
    SEVERAL,
    WORD_LIST,
    Setting,
    check_combinations,
    check_names,
    check_supported,
    check_texts,
    describe_arguments,
    list_settings,
    read_once,
)
from .digests import TextsDigest
from .engines.sources import (
    ModelSource,
    OpenModels,
    WithoutAdapter,
    check_model_source,
    check_reference,
    in_use_together,
    read_alike,
    smallest_limit,
)
from .errors import ArgumentError, ArgumentTypeError, Wording, wording_of
from .models.interface import ScoredModel
from .plan.measurement import Corpus, Measurement, own_window, plan_settings
from .plan.parts import Parts, check_parts, separate_chats
from .plan.tokenization import Chat, Range
from .plan.windows import ContextLimit
from .protocols import DEFAULT_PROTOCOL
from .results.contexts import expand_settings, total_contexts
from .results.pairs import score_pair
from .results.report import ScoredMeasurement
from .results.totals import ratio_of_perplexities
from .results.words import WordScoring, check_words
from .scoring.carried import StateReader, open_carrier, score_carried
from .scoring.checkpoint import open_checkpoint
from .scoring.distributed import Processes
from .scoring.measures import TOKEN_MEASURES, TOP, Measure, token_measures
from .scoring.runner import Progress, Session, Work, prepare_model, without_collecting


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
    return_token_scores: bool | Sequence[str] = False,
    protocol: str | Sequence[str] = DEFAULT_PROTOCOL,
    callback: Callable[[Progress], None] | None = None,
    checkpoint: str | os.PathLike | None = None,
    identify: bool = False,
    distributed: bool = False,
    return_totals: bool | str = False,
    detokenizer: str | None = None,
    reference: str | torch.nn.Module | Mapping | None = None,
    margin: float | None = None,
    context_lengths: str | Sequence[int] | None = None,
    carry: bool = False,
    contexts: str | Sequence[str] | None = None,
    score_spans: Sequence[Sequence[Range]] | None = None,
    boundary: str = "joint",
    words: bool | str | Sequence[Sequence[str] | Sequence[Range]] = False,
    word_correction: str | None = "pimentel",
) -> dict:
    """Compute the perplexity of texts under a causal language model, with a sliding window.

    A named model is loaded for this call; a `PerplexitySliding` keeps it for the next.
    `PerplexitySliding.inputs_description` describes the keys of the result.

    Args:
        {arguments}

    Returns:
        dict of plain Python numbers.

    Raises:
        TypeError, ValueError: an argument is unknown or invalid, or the model or its tokenizer
            cannot be loaded or used.
        MemoryError: a single window does not fit in memory.

    >>> from perplexity_sliding import compute
    >>> results = compute(["She closed the door."], model_id="demo_model")
    """
    return compute_with(OpenModels(), locals())


if compute.__doc__:  # python -OO drops it
    compute.__doc__ = cleandoc(compute.__doc__).replace("    {arguments}", describe_arguments())


def compute_with(opened: OpenModels, arguments: dict) -> dict:
    """Compute with the arguments of `compute`, and models that stay open between calls."""
    distributed = arguments.get("distributed", False)
    ARGUMENTS["distributed"].check("distributed", distributed)
    processes = Processes(distributed)
    with processes.failing_together():
        request = check(processes, arguments)
        with open_session(request, processes) as session:
            with open_models(opened, request) as models:
                plan = make_plan(request, models)
                reports, cost = score(session, plan, models)
            return report(plan, reports, cost)


# --- check ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Request:
    """The checked arguments of a call.

    Attributes:
        given: all arguments, by name.
        texts: the texts; for chats, see `separate_chats`.
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
        return self.given["words"] is not False


def check(processes: Processes, arguments: dict) -> Request:
    """Check the arguments, and that they are the same in all processes; read iterators once."""
    check_names(arguments)
    given: dict[str, Any] = {
        name: read_once(arguments.get(name, argument.default))
        for name, argument in ARGUMENTS.items()
    }
    if given["predictions"] is None or given["predictions"] is REQUIRED:
        raise ArgumentError(
            "predictions",
            "be given: a list of at least one text, or add texts with `add_batch` first",
        )
    texts, chats = separate_chats(given["predictions"])
    texts = check_texts(texts)
    for name, value in given.items():
        ARGUMENTS[name].check(name, value)
    check_token_columns(given["return_token_scores"])
    settings, gives_list = list_settings(given)
    word_spans = None if given["words"] is False else check_words(given["words"], texts)
    lengths = given["context_lengths"]
    forms = {
        SEVERAL: gives_list,
        LENGTHS: lengths is not None and not isinstance(lengths, str),
        CHATS: chats is not None,
        WORD_LIST: word_spans is not None,
    }
    check_combinations(given, forms)
    if lengths is not None:
        check_supported("context_lengths", settings[0].protocol)
    if given["carry"]:
        check_supported("carry", settings[0].protocol)
    parts = check_parts(given["contexts"], given["score_spans"], given["boundary"], texts, chats)
    of_source = ("model_id", "model", "tokenizer", "device", "dtype", "model_kwargs")
    source = check_model_source(ModelSource(**{name: given[name] for name in of_source}))
    reference = check_reference(given["reference"], source)

    def describe() -> str:
        of_texts = sum(digest_texts(texts, parts), TextsDigest())
        return str(TextsDigest.of(map(str, (of_texts, word_spans))))

    processes.agree(
        describe,
        "texts, contexts, scored spans, messages and words",
        "The metric distributes the windows itself: pass all texts to every process, or leave out "
        "`distributed` to score the texts of each process separately.",
    )
    return Request(given, texts, source, reference, settings, gives_list, parts, word_spans)


def check_token_columns(columns: object) -> None:
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


def digest_texts(texts: list[str], parts: Parts | None) -> list[TextsDigest]:
    lines = texts if parts is None else parts.describe_texts(texts)
    return [TextsDigest.of([line]) for line in lines]


# --- open -----------------------------------------------------------------------------------------


@contextmanager
def open_session(request: Request, processes: Processes) -> Iterator[Session]:
    given = request.given
    with open_checkpoint(given["checkpoint"]) as checkpoint:
        # int: numpy's integers overflow
        yield Session(int(given["batch_size"]), checkpoint, processes, given["callback"])


@contextmanager
def open_models(opened: OpenModels, request: Request) -> Iterator[list[ScoredModel]]:
    """Open the model of a request, and its reference if any, and use them within the context."""
    models, source = [opened.open(request.source)], request.reference
    if source is None or source.model_id is None:
        opened.close("reference")
    if source is not None and source.model_id is None and source.model is None:
        models.append(WithoutAdapter.of(models[0]))
    elif source is not None:
        if source.model is not None and source.tokenizer is None:
            source = replace(source, tokenizer=models[0].tokenizer)
        models.append(opened.open(source))
    with in_use_together(models):
        for model in models:
            model.check()
            model.probe = None
            if request.given["identify"] or request.given["checkpoint"] is not None:
                model.identify()
        yield models


# --- plan -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CallPlan:
    """The windows of a call.

    Attributes:
        planned: the measurement of each setting, or the error that refuses it.
        carrier: reader that carries the model's state; None for separate windows.
        of_reference: the measurements planned with the reference's tokenizer; None if it reads the
            same tokens, or there is no reference.
    """

    request: Request
    corpus: Corpus
    planned: dict[Setting, Measurement | ValueError]
    measures: list[Measure]
    words: WordScoring | None
    carrier: StateReader | None
    of_reference: list[Measurement] | None

    @property
    def measurements(self) -> list[Measurement]:
        return [m for m in self.planned.values() if isinstance(m, Measurement)]


@without_collecting()
def make_plan(
    request: Request, models: Sequence[ScoredModel], corpus: Corpus | None = None
) -> CallPlan:
    """Tokenize the texts, and plan the windows of every measurement."""
    given, model, limit = request.given, models[0], smallest_limit(models)
    # These checks do not depend on the texts, so they precede the tokenization.
    carrier = open_carrier(model) if given["carry"] else None
    words = None
    if request.has_words:
        words = WordScoring.of(model, request.word_spans, given["word_correction"])
    if corpus is None:
        # two tokenizers are compared by the characters of their tokens
        has_tokens = given["return_token_scores"] is not False
        with_offsets = has_tokens or request.has_words or len(models) > 1
        detokenizer = given["detokenizer"]
        corpus = Corpus(model.tokenizer, request.texts, with_offsets, request.parts, detokenizer)
    settings = expand_settings(corpus, limit, request.settings, given)
    planned = plan_settings(corpus, limit, settings, request.gives_list, request.has_words)
    for setting, measurement in planned.items():
        if isinstance(measurement, ValueError):
            continue
        if not model.gives_logits:  # nor the probability of what could follow a scored part
            measurement = replace(measurement, borders=[[]] * len(measurement.borders))
        if len(models) > 1:
            own = [own_window(one.tokenizer, one.limit, setting) for one in models]
            measurement = replace(measurement, own_windows=own)
            for number in measurement.cut_models[:1]:
                window, name = measurement.plan.max_length, ("model", "reference")[number]
                alone = "states no limit" if own[number] is None else f"reads {own[number]}"
                said = Wording(
                    f"The model and its `reference` are compared in windows of {window} tokens, the "
                    f"most that both accept. Alone, the {name} {alone}, and has other numbers.",
                    f"Pass `max_length={window}` to silence this warning.",
                )
                warnings.warn(said, stacklevel=2)
        planned[setting] = measurement
    columns = given["return_token_scores"]
    measures = token_measures(() if isinstance(columns, bool) else columns)
    if words is not None:
        measures += [m for m in words.measures() if m not in measures]
    of_reference = plan_reference(request, models, planned, limit) if len(models) > 1 else None
    return CallPlan(request, corpus, planned, measures, words, carrier, of_reference)


def plan_reference(
    request: Request,
    models: Sequence[ScoredModel],
    planned: Mapping[Setting, Measurement | ValueError],
    limit: ContextLimit,
) -> list[Measurement] | None:
    """Plan the measurements for the reference; None if it reads the same tokens."""
    measured = {s: m for s, m in planned.items() if isinstance(m, Measurement)}
    measurements = list(measured.values())
    parts = measurements[0].parts
    if parts is not None:
        parts = parts.as_read(measurements[0].texts, measurements[0].streams)
    model, reference = models
    detokenizer = request.given["detokenizer"]
    corpus = Corpus(reference.tokenizer, request.texts, True, parts, detokenizer)
    of_reference: Any = list(plan_settings(corpus, limit, list(measured), False).values())
    return (
        None
        if read_alike(model, reference, list(zip(measurements, of_reference)))
        else of_reference
    )


# --- score ----------------------------------------------------------------------------------------


def score(
    session: Session, plan: CallPlan, models: Sequence[ScoredModel]
) -> tuple[list[ScoredMeasurement], int]:
    """Return the measurements with their scores, and the number of tokens read for all of them."""
    request, corpus, measurements = plan.request, plan.corpus, plan.measurements
    model = models[0]
    for one in models:
        prepare_model(one, measurements if one is model else plan.of_reference or measurements)
    comparisons: Sequence[Any] = [None] * len(measurements)
    work: Work
    if plan.carrier is not None:
        [measurement] = measurements
        work, columns = score_carried(session, model, plan.carrier, measurement, plan.measures)
    elif len(models) == 1:
        work, columns = session.score([model], measurements, plan.measures)
    else:
        pair, margin = (model, models[1]), request.given["margin"]
        work, columns, comparisons = score_pair(
            session, pair, measurements, plan.of_reference, plan.measures, margin
        )
    reports = []
    for (measurement, of_windows, of_borders, cost), comparison in zip(
        work.by_measurement(columns), comparisons
    ):
        parts, words = request.parts, None
        if corpus.detokenizer is not None:
            words = list(map(measurement.plan.protocol.count_words, corpus.texts))
        if parts is None or parts.chats is None:
            digests = digest_texts(corpus.wordings, parts)
        else:  # chats, as the tokenizer's template formats them
            scored = (stream.scored_part for stream in measurement.streams)
            lines = [[t, p.longer or p.spans] for t, p in zip(measurement.texts, scored)]
            digests = [TextsDigest.of([json.dumps(line)]) for line in lines]
        reports.append(
            ScoredMeasurement(
                model=model,
                measurement=measurement,
                scores=of_windows,
                cost=cost,
                word_counts=words,
                text_digests=digests,
                comparison=comparison,
                borders=of_borders,
                word_scoring=plan.words,
            )
        )
    return reports, sum(work.costs)


# --- report ---------------------------------------------------------------------------------------


@without_collecting()
def report(plan: CallPlan, reports: Sequence[ScoredMeasurement], cost: int) -> dict:
    """Build the result of the call; see the metric's documentation."""
    given = plan.request.given
    if not plan.request.gives_list:
        result = reports[0].result(given)
        if given["context_lengths"] is not None:
            totals = total_contexts(reports, cost)
            if given["return_totals"]:
                result["long_context_totals"] = totals
            if totals.are_enough or not given["return_totals"]:
                result |= totals.result()
        return result
    waiting = iter(reports)
    entries: list[dict] = []
    for setting, outcome in plan.planned.items():
        if isinstance(outcome, ValueError):
            given_as = {"max_length": setting.max_length, "stride": setting.stride}
            refused = {"protocol": setting.protocol.name} | given_as
            entries.append(refused | {"error": wording_of(outcome)})
            continue
        own = next(waiting)
        entries.append(own.result(given))
        if own is not reports[0]:
            ratio = ratio_of_perplexities(own.totals, reports[0].totals)
            entries[-1]["ratio_to_first"] = ratio
    first = next(entry for entry in entries if "error" not in entry)
    return first | {"num_forward_tokens": cost, "measurements": entries}
