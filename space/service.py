"""What a visitor can ask for, from text and settings to results, without a word of HTML."""

import contextlib
import functools
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from .jobs import Job, OverBudget
from .limits import Limits, Refused
from .line import Line
from .measure import check_text, check_tokens, find_window, measure, new_metric
from .models import BUNDLED, LoadedModel, Shelf
from .paired import Difference, Piece, align, compare
from .protocols import guide
from .settings import Settings, check_settings

# A mean over fewer tokens would be noise.
FEWEST_IN_BIN = 8


@dataclass(frozen=True)
class Scored:
    """One text under one model: the metric's result and what it was asked."""

    text: str
    settings: Settings
    loaded: LoadedModel
    result: dict

    @property
    def tokens(self) -> dict:
        return self.result["token_scores"][0]


@dataclass(frozen=True)
class Compared:
    """One text under two models."""

    scored: tuple[Scored, Scored]
    pieces: list[Piece]
    difference: Difference


@dataclass(frozen=True)
class Sweep:
    """Results of one text for several settings, the cheapest first.

    Attributes:
        scored: those computed so far.
        failed: settings that gave no result, with the reason.
        remark: why it ended early, or None.
    """

    scored: list[Scored]
    failed: list[tuple[Settings, str]]
    remark: str | None = None


class Service:
    """The metric for visitors: within the limits, one at a time.

    Args:
        bundled: folder of the bundled model.
        endpoint: another Hub than huggingface.co.
        local_folders: whether a model may also be a folder of this machine.
    """

    def __init__(
        self,
        bundled: str | Path,
        limits: Limits | None = None,
        endpoint: str | None = None,
        local_folders: bool = False,
    ):
        self.limits = limits or Limits()
        self._metric = new_metric()
        self.protocols: Sequence[str] = tuple(self._metric.protocols)
        self.line = Line(self.limits.waiting, self.limits.per_visitor)
        self.shelf = Shelf(
            bundled,
            lambda model, tokenizer: find_window(model, tokenizer, self.limits),
            self.limits,
            endpoint,
            local_folders=local_folders,
        )

    @functools.cached_property
    def default_settings(self) -> Settings:
        """The bundled model with its own window; kept, so that no visitor waits for it."""
        bundled = self.load(BUNDLED, Job(self.limits.seconds))
        return Settings(BUNDLED).for_model(bundled.window)

    def load(self, name: str, job: Job) -> LoadedModel:
        """Fetch a model, so that its limits are known."""
        with self._opened([name.strip()], job) as (loaded,):
            return loaded

    @contextlib.contextmanager
    def _opened(self, names: Sequence[str], job: Job) -> Iterator[list[LoadedModel]]:
        """Models ready to score, and the machine to oneself.

        They are downloaded first, so that nobody in the line waits for another's download.
        """
        with contextlib.ExitStack() as stack:
            sources = [stack.enter_context(self.shelf.fetched(name, job)) for name in names]
            stack.enter_context(self.line.turn(job))
            yield [self.shelf.open(name, source, job) for name, source in zip(names, sources)]

    def score(self, text: str, settings: Settings, job: Job, clip: bool = False) -> Scored:
        """Score one text.

        Args:
            clip: shorten a window that is too long for the model, instead of refusing it.
        """
        text = check_text(text, self.limits)
        settings = check_settings(settings, self.protocols)
        with self._opened([settings.model], job) as (loaded,):
            check_tokens(loaded, text, self.limits, job)
            return self._score(text, settings.for_model(loaded.window, clip), loaded, job)

    def compare(self, text: str, settings: Settings, other: str, job: Job) -> Compared:
        """Score a text with two models, in windows that both take, and compare them in pairs."""
        text = check_text(text, self.limits)
        settings = check_settings(settings, self.protocols)
        if settings.model == other:
            raise Refused("Choose two different models to compare.")
        with self._opened([settings.model, other], job) as both:
            window = min(self.limits.window, *(m.window for m in both))
            if settings.window is not None:
                window = min(window, settings.window)
            shared = replace(settings, window=window).for_model(window, clip=True)
            scored = []
            for loaded in both:
                check_tokens(loaded, text, self.limits, job)
                own = replace(shared, model=loaded.name)
                scored.append(self._score(text, own, loaded, job, f"Scoring with {loaded.name}"))
        if any(offset is None for one in scored for offset in one.tokens["offsets"]):
            raise Refused("One of the tokenizers does not say where its tokens are in the text.")
        pieces = align(text, scored[0].tokens, scored[1].tokens)
        difference = compare(text, pieces, self._metric.estimate_ratio, window)
        return Compared(tuple(scored), pieces, difference)

    def trade_off(self, text: str, settings: Settings, job: Job) -> Sweep:
        """Score a text with strides from the whole window down to a sixteenth of it."""
        text = check_text(text, self.limits)
        with self._opened([settings.model], job) as (loaded,):
            full = replace(settings, protocol="sliding").for_model(loaded.window, clip=True)
            check_settings(full, self.protocols)
            check_tokens(loaded, text, self.limits, job)
            strides = sorted({max(1, full.window >> halvings) for halvings in range(5)})[::-1]
            choices = [replace(full, stride=stride) for stride in strides]
            return self._sweep(text, choices, loaded, job, lambda s: f"Stride {s.stride}")

    def every_protocol(self, text: str, settings: Settings, job: Job) -> Sweep:
        """Score a text as every tool would, with the same window."""
        text = check_text(text, self.limits)
        with self._opened([settings.model], job) as (loaded,):
            check_tokens(loaded, text, self.limits, job)
            choices = [self._as_tool(settings, name, loaded) for name in self.protocols]
            return self._sweep(text, choices, loaded, job, lambda s: f"Protocol {s.protocol}")

    def _as_tool(self, settings: Settings, protocol: str, loaded: LoadedModel) -> Settings:
        """The settings for another protocol: its own stride, where it has a usual one."""
        stride = None if guide(protocol).usual_stride else settings.stride
        settings = replace(settings, protocol=protocol, stride=stride)
        return check_settings(settings, self.protocols).for_model(loaded.window, clip=True)

    def _score(
        self, text: str, settings: Settings, loaded: LoadedModel, job: Job, step: str = "Scoring"
    ) -> Scored:
        job.check()
        return Scored(text, settings, loaded, measure(loaded, text, settings, job.computing(step)))

    def _sweep(self, text: str, choices, loaded: LoadedModel, job: Job, name) -> Sweep:
        """Score a text with each choice, showing what there is after each one."""
        scored: list[Scored] = []
        failed: list[tuple[Settings, str]] = []
        for settings in choices:
            try:
                scored.append(self._score(text, settings, loaded, job, name(settings)))
            except Refused as refusal:
                failed.append((settings, str(refusal)))
            except OverBudget as over:
                if not scored:
                    raise
                return Sweep(scored, failed, f"{name(settings)} is left out. {over}")
            job.show(Sweep(list(scored), list(failed)))
        return Sweep(scored, failed)


class ContextBin(NamedTuple):
    """Tokens with about the same context.

    Attributes:
        shortest, longest: context lengths in the bin that any token has.
        bits: their mean surprisal.
        stderr: its standard error, the tokens taken as independent.
        tokens: how many there are.
    """

    shortest: int
    longest: int
    bits: float
    stderr: float
    tokens: int


def surprise_by_context(scored: Scored) -> list[ContextBin]:
    """Mean surprisal by context length, in bins that double: 1, 2-3, 4-7, …

    Bins of too few tokens to mean anything are left out.
    """
    bins: dict[int, list[tuple[int, float]]] = {}
    for nll, context in zip(scored.tokens["nll"], scored.tokens["context_length"]):
        if nll is not None and context > 0:
            bins.setdefault(context.bit_length(), []).append((context, nll / math.log(2)))
    return [
        _context_bin(*zip(*own)) for _, own in sorted(bins.items()) if len(own) >= FEWEST_IN_BIN
    ]


def _context_bin(contexts: Sequence[int], bits: Sequence[float]) -> ContextBin:
    stderr = statistics.stdev(bits) / math.sqrt(len(bits))
    return ContextBin(min(contexts), max(contexts), statistics.fmean(bits), stderr, len(bits))
