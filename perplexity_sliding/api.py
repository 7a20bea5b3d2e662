"""The pipeline of `compute`: check, open, plan, run, report."""

import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from inspect import cleandoc, signature

import torch
from transformers import PreTrainedTokenizerBase

from .arguments import (
    ARGUMENTS,
    Setting,
    check_names,
    check_texts,
    describe_arguments,
    read_once,
)
from .digests import TextsDigest
from .engines.sources import (
    OpenModels,
    WithoutAdapter,
    compare_tokenizers,
    in_use_together,
    read_alike,
    smallest_limit,
)
from .errors import ArgumentError, Wording
from .models.interface import EngineModel, ScoredModel
from .plan.measurement import Columns, Measurement
from .plan.parts import separate_chats
from .plan.settings import Corpus, own_window, plan_settings
from .plan.tokenization import Chat, Range
from .plan.windows import ContextLimit
from .protocols import DEFAULT_PROTOCOL
from .request import Request, check_request
from .results.contexts import expand_settings, total_contexts
from .results.pairs import score_pair
from .results.report import Comparison, Report, list_reports
from .results.words import WordScoring
from .scoring.carried import StateReader, open_carrier, score_carried
from .scoring.checkpoint import open_checkpoint
from .scoring.distributed import Processes
from .scoring.measures import Measure
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


DEFAULTS = {
    name: None if parameter.default is parameter.empty else parameter.default
    for name, parameter in signature(compute).parameters.items()
}
if compute.__doc__:  # python -OO drops it
    compute.__doc__ = cleandoc(compute.__doc__).replace("    {arguments}", describe_arguments())


def compute_with(opened: OpenModels, arguments: dict) -> dict:
    """Compute with models that stay open between calls.

    Args:
        opened: the open models; the call adds those that it loads.
        arguments: arguments of `compute`, by name.
    """
    distributed = arguments.get("distributed", False)
    ARGUMENTS["distributed"].check("distributed", distributed)
    processes = Processes(distributed)
    with processes.failing_together():
        request = check(processes, arguments)
        with open_session(request, processes) as session:
            with open_models(opened, request, session) as models:
                plan = make_plan(request, models)
                scores = score(session, plan, models)
            return report(plan, scores)


# --- check ----------------------------------------------------------------------------------------


def check(processes: Processes, arguments: dict) -> Request:
    """Check the arguments, and that they are the same in all processes; read iterators once."""
    check_names(list(DEFAULTS), arguments)
    given = {name: read_once(value) for name, value in (DEFAULTS | arguments).items()}
    if given["predictions"] is None:
        raise ArgumentError(
            "predictions",
            "be given: a list of at least one text, or add texts with `add_batch` first",
        )
    texts, chats = separate_chats(given["predictions"])
    texts = check_texts(texts)
    processes.agree(
        lambda: str(TextsDigest.of(texts)),
        "texts",
        "The metric distributes the windows itself: pass all texts to every process, or leave out "
        "`distributed` to score the texts of each process separately.",
    )
    request = check_request(texts, chats, given)
    processes.agree(
        lambda: request.digest,
        "contexts, scored spans, messages and words",
        "Pass the same to every process.",
    )
    return request


# --- open -----------------------------------------------------------------------------------------


@contextmanager
def open_session(request: Request, processes: Processes) -> Iterator[Session]:
    """Open the checkpoint of a request, and yield the session for its forward passes."""
    given = request.given
    with open_checkpoint(given["checkpoint"]) as checkpoint:
        # int: numpy's integers overflow
        yield Session(int(given["batch_size"]), checkpoint, processes, given["callback"])


@dataclass(frozen=True)
class Models:
    """The models of a call.

    Attributes:
        model: the measured model.
        reference: the model to compare with, if any.
    """

    model: ScoredModel
    reference: ScoredModel | None = None

    @property
    def compared(self) -> list[ScoredModel]:
        """The model, and the reference if there is one."""
        return [self.model] if self.reference is None else [self.model, self.reference]


@contextmanager
def open_models(opened: OpenModels, request: Request, session: Session) -> Iterator[Models]:
    """Open the models of a request, and use them within the context."""
    model = opened.open(request.source)
    models = Models(model, open_reference(opened, request, model))
    with in_use_together(models.compared):
        with session.checking():
            for model in models.compared:
                model.check()
                model.probe = None
                if request.given["identify"] or request.given["checkpoint"] is not None:
                    model.identify()
        yield models


def open_reference(opened: OpenModels, request: Request, model: ScoredModel) -> ScoredModel | None:
    """Open the reference, if any; a live reference uses the model's tokenizer by default."""
    source = request.reference
    if source is None or source.model_id is None:
        opened.close("reference")
    if source is None:
        return None
    if source.model_id is None and source.model is None:
        return WithoutAdapter.of(model)
    if source.model is not None and source.tokenizer is None:
        source = replace(source, tokenizer=model.tokenizer)
    return opened.open(source)


# --- plan -----------------------------------------------------------------------------------------

# The plan of each setting, or the error that refuses it.
Planned = dict[Setting, Measurement | ValueError]


@dataclass(frozen=True)
class CallPlan:
    """The windows of a call.

    Attributes:
        planned: the measurement of each setting, or the error that refuses it.
        measures: measures of each token.
        words: scoring of words; None if they are not scored.
        carrier: reader that carries the model's state; None for separate windows.
        of_reference: the measurements planned with the reference's tokenizer; None if it reads the
            same tokens, or there is no reference.
        own_windows: for each measurement, the window of each model alone.
    """

    request: Request
    corpus: Corpus
    planned: Planned
    measures: list[Measure]
    words: WordScoring | None
    carrier: StateReader | None
    of_reference: list[Measurement] | None
    own_windows: list[tuple[int | None, ...]]

    @property
    def measurements(self) -> list[Measurement]:
        """The accepted measurements."""
        return list(accepted(self.planned).values())


@without_collecting()
def make_plan(request: Request, models: Models, corpus: Corpus | None = None) -> CallPlan:
    """Tokenize the texts, and plan the windows of every measurement.

    Raises:
        ValueError: the only measurement, or every measurement of a list, is refused.
    """
    model, limit = models.model, smallest_limit(models.compared)
    # These checks do not depend on the texts, so they precede the tokenization.
    given = request.given
    carrier = open_carrier(model) if given["carry"] else None
    words = None
    if request.has_words:
        words = WordScoring.of(model, request.word_spans, given["word_correction"])
    if corpus is None:
        corpus = Corpus(
            model.tokenizer,
            request.texts,
            request.needs_characters,
            request.parts,
            given["detokenizer"],
        )
    settings = expand_settings(corpus, limit, request.settings, given)
    planned = plan_settings(corpus, limit, settings, request.gives_list, request.has_words)
    measured = accepted(planned)
    if not model.gives_logits:  # nor the probability of what could follow a scored part
        measured = {s: replace(m, borders=[[]] * len(m.borders)) for s, m in measured.items()}
        planned |= measured
    measures = request.measures()
    if words is not None:
        measures += [m for m in words.measures() if m not in measures]
    return CallPlan(
        request=request,
        corpus=corpus,
        planned=planned,
        measures=measures,
        words=words,
        carrier=carrier,
        of_reference=plan_reference(request, models, measured, limit),
        own_windows=find_own_windows(models, measured),
    )


def accepted(planned: Planned) -> dict[Setting, Measurement]:
    """Return the measurements that were not refused."""
    return {s: m for s, m in planned.items() if isinstance(m, Measurement)}


def plan_reference(
    request: Request, models: Models, measured: dict[Setting, Measurement], limit: ContextLimit
) -> list[Measurement] | None:
    """Plan the measurements for the reference; None if it reads the same tokens."""
    if models.reference is None:
        return None
    measurements = list(measured.values())
    parts = measurements[0].parts
    if parts is not None:
        parts = parts.as_read(measurements[0].texts, measurements[0].streams)
    corpus = Corpus(
        models.reference.tokenizer, request.texts, True, parts, request.given["detokenizer"]
    )
    of_reference = list(
        accepted(plan_settings(corpus, limit, list(measured), keeps_refusals=False)).values()
    )
    if read_alike(models.model, models.reference, list(zip(measurements, of_reference))):
        return None
    return of_reference


def find_own_windows(
    models: Models, measured: dict[Setting, Measurement]
) -> list[tuple[int | None, ...]]:
    """Return the window of each model alone, for each measurement.

    Both models read the smaller window.  Warn if that changes the numbers of the other model, which
    happens for texts that do not fit into the window.
    """
    if models.reference is None:
        return [()] * len(measured)
    found = []
    for setting, measurement in measured.items():
        own = tuple(own_window(m.tokenizer, m.limit, setting) for m in models.compared)
        cut = measurement.cut_for(own)
        if cut:
            window = measurement.plan.max_length
            name = ("model", "reference")[cut[0]]
            alone = "states no limit" if own[cut[0]] is None else f"reads {own[cut[0]]}"
            warnings.warn(
                Wording(
                    f"The model and its `reference` are compared in windows of {window} tokens, "
                    f"the most that both accept. Alone, the {name} {alone}, and has other numbers.",
                    f"Pass `max_length={window}` to silence this warning.",
                ),
                stacklevel=2,
            )
        found.append(own)
    return found


# --- run ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scores:
    """Scores from the forward passes of a call.

    Attributes:
        models: the models after the run.
        work: the passes of the measurements.
        columns: the scores of each pass.
        comparisons: for each measurement, its comparison with the reference, if there is one.
    """

    models: Models
    work: Work
    columns: list[Columns]
    comparisons: Sequence[Comparison | None]


def score(session: Session, plan: CallPlan, models: Models) -> Scores:
    """Score the texts.

    Raises:
        MemoryError, ValueError: a model cannot be used.
    """
    request, measurements, measures = plan.request, plan.measurements, plan.measures
    model, reference = models.model, models.reference
    for one in models.compared:
        prepare_model(one, measurements if one is model else plan.of_reference or measurements)
        if isinstance(one, EngineModel):
            compare_tokenizers(one, measurements[0].texts)
    comparisons: Sequence[Comparison | None] = [None] * len(measurements)
    work: Work
    if plan.carrier is not None:
        [measurement] = measurements
        work, columns = score_carried(session, model, plan.carrier, measurement, measures)
    elif reference is None:
        # progress of a curve of context lengths shows its first and longest
        num_shown = None if request.gives_list else 1
        work, columns = session.score([model], measurements, measures, num_shown)
    else:
        work, columns, comparisons = score_pair(
            session,
            (model, reference),
            measurements,
            plan.of_reference,
            measures,
            request.given["margin"],
        )
    return Scores(models, work, columns, comparisons)


# --- report ---------------------------------------------------------------------------------------


def report(plan: CallPlan, scores: Scores) -> dict:
    """Build the result of the call; see the metric's documentation."""
    request, given = plan.request, plan.request.given
    with without_collecting():
        reports = make_reports(plan, scores)
        if request.gives_list:
            measurements = list_reports(plan.planned, reports, given)
            first = next(entry for entry in measurements if "error" not in entry)
            together = {"num_forward_tokens": sum(scores.work.costs)}
            return first | together | {"measurements": measurements}
        result = reports[0].result(given)
    if given["context_lengths"] is None:
        return result
    totals = total_contexts(reports, sum(scores.work.costs))
    if given["return_totals"]:
        result["long_context_totals"] = totals
    if totals.are_enough or not given["return_totals"]:
        result |= totals.result()
    return result


def make_reports(plan: CallPlan, scores: Scores) -> list[Report]:
    """Collect the scores of each measurement from the passes."""
    request, work, corpus = plan.request, scores.work, plan.corpus
    return [
        Report(
            model=scores.models.model,
            measurement=measurement,
            scores=of_windows,
            cost=cost,
            word_counts=corpus.count_words(measurement.plan.protocol),
            text_digests=request.digests_as_read(
                measurement, corpus.wordings(measurement.plan.protocol)
            ),
            comparison=comparison,
            borders=of_borders,
            word_scoring=plan.words,
            detokenizer=corpus.name_detokenizer(measurement.plan.protocol),
            own_windows=own_windows,
        )
        for (measurement, of_windows, cost), of_borders, comparison, own_windows in zip(
            work.by_measurement(scores.columns),
            work.of_borders(scores.columns),
            scores.comparisons,
            plan.own_windows,
        )
    ]
