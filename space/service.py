"""What a visitor can ask for, from text and settings to results, without a word of HTML."""

import contextlib
import functools
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import scipy.stats

from .jobs import Job, OverBudget
from .limits import Limits, Refused
from .line import Line
from .measure import (
    check_text,
    check_tokens,
    find_window,
    in_page_words,
    measure,
    measure_several,
)
from .metric import new_metric, protocol_rows
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

    @property
    def whole(self) -> str:
        """All that was read: the context and the text."""
        return self.settings.context + self.text

    @property
    def context_tokens(self) -> int:
        """How many tokens were read as context alone."""
        return self.result.get("context_tokens", 0)


@dataclass(frozen=True)
class Compared:
    """One text under two models.

    Attributes:
        comparison: the metric's own, of the first with the second as its reference; None where
            they do not read the same tokens.
    """

    scored: tuple[Scored, Scored]
    pieces: list[Piece]
    difference: Difference
    comparison: dict | None = None


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
        self.protocols: Sequence[str] = tuple(protocol_rows())
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
            ids = [check_tokens(loaded, text, self.limits, job) for loaded in both]
            scored = []
            for loaded, reference in zip(both, (both[1] if ids[0] == ids[1] else None, None)):
                own = replace(shared, model=loaded.name)
                step = f"Scoring with {loaded.name}"
                scored.append(self._score(text, own, loaded, job, step, reference))
        if any(offset is None for one in scored for offset in one.tokens["offsets"]):
            raise Refused("One of the tokenizers does not say where its tokens are in the text.")
        pieces = align(text, scored[0].tokens, scored[1].tokens)
        difference = compare(text, pieces, self._metric.estimate_ratio, window)
        comparison = scored[0].result.pop("comparison", None)
        if comparison is not None and comparison["compared"] != "tokens":
            comparison = None
        return Compared(tuple(scored), pieces, difference, comparison)

    def trade_off(self, text: str, settings: Settings, job: Job) -> Sweep:
        """Score a text with strides from the whole window down to a sixteenth of it."""
        text = check_text(text, self.limits)
        settings = check_settings(settings, self.protocols)
        with self._opened([settings.model], job) as (loaded,):
            check_tokens(loaded, text, self.limits, job)
            full = replace(settings, protocol=Settings.protocol)
            full = full.for_model(loaded.window, clip=True)
            strides = sorted({max(1, full.window >> halvings) for halvings in range(5)})[::-1]
            return self._strides(text, full, strides, loaded, job)

    def _strides(
        self, text: str, full: Settings, strides: list[int], loaded: LoadedModel, job: Job
    ) -> Sweep:
        """Score with all strides at once; without the dearest ones where time does not suffice."""
        for measured in (strides[:kept] for kept in range(len(strides), 0, -1)):
            arguments = full.arguments() | {"stride": measured}
            try:
                entries = measure_several(loaded, text, job.computing("Scoring"), **arguments)
            except OverBudget as over:
                if len(measured) == 1:
                    raise
                reason = over
                continue
            left_out = [f"{stride:,}" for stride in strides[len(measured) :]]
            remark = f"Left out: stride {', '.join(left_out)}. {reason}" if left_out else None
            return replace(self._gather(text, full, entries, loaded), remark=remark)
        raise RuntimeError("No stride was tried.")

    def every_protocol(self, text: str, settings: Settings, job: Job) -> Sweep:
        """Score a text as every tool would, with the same window and its own usual stride."""
        text = check_text(text, self.limits)
        settings = check_settings(settings, self.protocols)
        with self._opened([settings.model], job) as (loaded,):
            check_tokens(loaded, text, self.limits, job)
            settings = settings.for_model(loaded.window, clip=True)
            entries = measure_several(
                loaded,
                text,
                job.computing("Scoring"),
                protocol=list(self.protocols),
                max_length=settings.window,
                contexts=[settings.context] if settings.context else None,
            )
            return self._gather(text, replace(settings, start="automatic"), entries, loaded)

    def _gather(
        self, text: str, settings: Settings, entries: Sequence[dict], loaded: LoadedModel
    ) -> Sweep:
        """What came of several settings, those that the metric refused apart."""
        scored, failed = [], []
        for entry in entries:
            protocol = entry["protocol"]
            stride = entry["stride"] if guide(protocol).stride else None
            own = replace(settings, protocol=protocol, stride=stride)
            if "error" in entry:
                failed.append((own, in_page_words(entry["error"])))
            else:
                own = replace(own, window=entry["max_length"])
                scored.append(Scored(text, own, loaded, entry))
        return Sweep(scored, failed)

    def _score(
        self,
        text: str,
        settings: Settings,
        loaded: LoadedModel,
        job: Job,
        step: str = "Scoring",
        reference: LoadedModel | None = None,
    ) -> Scored:
        """Score one text, beside a reference if the metric takes the two together."""
        job.check()
        if reference is not None:
            # Start tokens that differ, say: each model by itself may still be scored.
            with contextlib.suppress(Refused):
                callback = job.computing(step)
                result = measure(loaded, text, settings, callback, reference)
                return Scored(text, settings, loaded, result)
        return Scored(text, settings, loaded, measure(loaded, text, settings, job.computing(step)))


class ContextBin(NamedTuple):
    """Tokens with about the same context at a wide stride, measured again with more of it.

    Attributes:
        shortest, longest: context lengths in the bin that any token has at the wide stride.
        bits: mean of what the same tokens cost more with it than with the narrow stride's.
        interval: 95 % confidence interval of that mean, the tokens taken as independent: those of
            a bin stand a window apart.
        tokens: how many there are.
    """

    shortest: int
    longest: int
    bits: float
    interval: tuple[float, float]
    tokens: int


def worth_of_context(wide: Scored, narrow: Scored) -> list[ContextBin]:
    """What tokens lose by a short context, in bins of it that double: 1, 2-3, 4-7, …

    Every token is compared with itself. Bins of too few tokens to mean anything are left out.
    """
    bins: dict[int, list[tuple[int, float]]] = {}
    columns = (
        *(wide.tokens["nll"], narrow.tokens["nll"]),
        *(wide.tokens["context_length"], narrow.tokens["context_length"]),
    )
    for short_nll, long_nll, short, long in zip(*columns):
        if None not in (short_nll, long_nll) and 0 < short < long:
            bits = (short_nll - long_nll) / math.log(2)
            bins.setdefault(short.bit_length(), []).append((short, bits))
    return [
        _context_bin(*zip(*members))
        for _, members in sorted(bins.items())
        if len(members) >= FEWEST_IN_BIN
    ]


def _context_bin(contexts: Sequence[int], bits: Sequence[float]) -> ContextBin:
    mean = statistics.fmean(bits)
    stderr = statistics.stdev(bits) / math.sqrt(len(bits))
    margin = float(scipy.stats.t.ppf(0.975, len(bits) - 1)) * stderr
    return ContextBin(min(contexts), max(contexts), mean, (mean - margin, mean + margin), len(bits))
