"""The service: from text and settings to results, without HTML."""

import contextlib
import functools
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from perplexity_sliding.views.comparison import Pair

from .jobs import Job, OverBudget
from .landmarks import Landmark, landmark_texts
from .limits import Limits, Refused
from .measure import (
    LoadedModel,
    check_text,
    check_tokens,
    in_page_words,
    measure,
    measure_contexts,
    measure_pair,
    measure_several,
    measure_tools,
)
from .metric import protocol_rows
from .models import BUNDLED, Shelf
from .protocols import guide
from .settings import Settings, check_settings

OWN_STARTS = (
    "The two models begin a text with different start tokens, so they were compared without one: the "
    "first token is not scored."
)


@dataclass(frozen=True)
class Scored:
    """One text under one model: the metric's result and its settings; a `Reading` for the views."""

    text: str
    settings: Settings
    loaded: LoadedModel
    result: dict

    @property
    def tokens(self) -> dict:
        return self.result["token_scores"][0]

    @property
    def whole(self) -> str:
        """All text that was read: the context and the text."""
        return self.settings.context + self.text

    @property
    def window(self) -> int:
        """Tokens in a window."""
        return self.settings.window

    @property
    def num_context_tokens(self) -> int:
        """Number of tokens that were read only as context."""
        return self.result.get("num_context_tokens", 0)


@dataclass(frozen=True)
class Compared:
    """One text under a model and under the reference that it is compared with.

    Attributes:
        scored: by the model; its result holds the metric's `comparison`.
        by_context: of the metric's comparison in windows without overlap, see `measure_pair`.
        remark: what had to be changed about the request, or None.
    """

    scored: Scored
    reference: LoadedModel
    by_context: list[dict]
    remark: str | None = None

    @property
    def pair(self) -> Pair:
        """The data of the view of a comparison."""
        scored, both = self.scored, (self.scored.loaded, self.reference)
        by_tokens = scored.result["comparison"]["compared"] == "tokens"
        return Pair(
            scored,
            (scored.loaded.name, self.reference.name),
            scored.tokens if by_tokens else scored.result["piece_scores"][0],
            [(loaded.name, loaded.window) for loaded in both if loaded.window > scored.window],
            self.remark,
        )


@dataclass(frozen=True)
class Sweep:
    """Results of one text under the protocols of several tools.

    Attributes:
        failed: settings that gave no result, with the reason.
    """

    scored: list[Scored]
    failed: list[tuple[Settings, str]]


@dataclass(frozen=True)
class Memory:
    """What memory is worth on one text.

    Attributes:
        by_context: the metric's perplexities of the same tokens by length of context, the shortest
            first; empty for a few words.
        strides: results, the widest stride first.
        remark: what was left out and why, or None.
    """

    by_context: Sequence[dict]
    strides: list[dict]
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
        self.protocols: Sequence[str] = tuple(protocol_rows())
        self.shelf = Shelf(bundled, self.limits, endpoint, local_folders)
        self._machine = threading.Lock()
        self._landmarks: dict[str, list[Landmark]] = {}

    @functools.cached_property
    def default_settings(self) -> Settings:
        """The bundled model with its own window; kept, so that no visitor waits for it."""
        bundled = self.load(BUNDLED, Job(self.limits.seconds))
        return Settings(BUNDLED).for_model(bundled.window)

    def load(self, name: str, job: Job) -> LoadedModel:
        """Fetch and open a model, so that its limits are known."""
        with self._opened([self.shelf.known_as(name)], job) as (loaded,):
            return loaded

    def _check(self, settings: Settings) -> Settings:
        """Normalize the model's name in settings, and refuse invalid settings."""
        settings = check_settings(settings, self.protocols)
        return replace(settings, model=self.shelf.known_as(settings.model))

    @contextlib.contextmanager
    def _opened(self, names: Sequence[str], job: Job) -> Iterator[list[LoadedModel]]:
        """Open models for scoring, with exclusive use of the machine.

        They are downloaded first, so that nobody waits for another's download.
        """
        for name in names:
            self.shelf.fetch(name, job)
        while not self._machine.acquire(timeout=0.1):
            job.check()
        try:
            yield [self.shelf.open(name, job) for name in names]
        finally:
            self._machine.release()

    def score(
        self,
        text: str,
        settings: Settings,
        job: Job,
        clip: bool = False,
        identify: bool = False,
    ) -> Scored:
        """Score one text.

        Args:
            clip: shorten a window that is too long for the model, instead of refusing it.
            identify: whether the signature names the very weights, to be cited.
        """
        text = check_text(text, self.limits)
        settings = self._check(settings)
        with self._opened([settings.model], job) as (loaded,):
            check_tokens(loaded, text, self.limits)
            settings = settings.for_model(loaded.window, clip)
            result = measure(loaded, text, settings, job.computing(), identify)
            return Scored(text, settings, loaded, result)

    def landmarks(self, model: str, job: Job) -> list[Landmark]:
        """Return well-known kinds of text with their perplexities under a model, measured once."""
        if model not in self._landmarks:
            measured = [
                Landmark(name, self.score(text, Settings(model), job).result["perplexity"])
                for name, text in landmark_texts().items()
            ]
            self._landmarks[model] = sorted(measured, key=lambda mark: mark.perplexity)
        return self._landmarks[model]

    def compare(
        self, text: str, settings: Settings, reference: str, job: Job, clip: bool = False
    ) -> Compared:
        """Score a text with a model and a reference at once.

        Args:
            clip: shorten a window that is too long for one of them, instead of refusing it.
        """
        text = check_text(text, self.limits)
        settings = self._check(settings)
        reference = self.shelf.known_as(reference)
        if settings.model == reference:
            raise Refused("Choose two different models to compare.")
        with self._opened([settings.model, reference], job) as both:
            # Whose window the settings must fit is named where they don't.
            shortest = min(both, key=lambda loaded: loaded.window)
            fitted = replace(settings, model=shortest.name).for_model(shortest.window, clip)
            shared = replace(fitted, model=settings.model)
            for loaded in both:
                check_tokens(loaded, text, self.limits)
            try:
                return self._compare(text, shared, both, job)
            except Refused:
                if shared.start == "none" or "none" not in guide(shared.protocol).starts:
                    raise
            # The two may have different start tokens.
            compared = self._compare(text, replace(shared, start="none"), both, job)
            return replace(compared, remark=OWN_STARTS)

    def _compare(
        self, text: str, shared: Settings, both: Sequence[LoadedModel], job: Job
    ) -> Compared:
        result, by_context = measure_pair(*both, text, shared, job.computing())
        return Compared(Scored(text, shared, both[0], result), both[1], by_context)

    def memory(self, text: str, settings: Settings, job: Job) -> Memory:
        """Score the same tokens with windows of several lengths, and the text with several strides.

        The strides go from the whole window down to a sixteenth of it, as far as the time allows.
        """
        text = check_text(text, self.limits)
        settings = replace(self._check(settings), protocol=Settings.protocol)
        with self._opened([settings.model], job) as (loaded,):
            check_tokens(loaded, text, self.limits)
            full = settings.for_model(loaded.window, clip=True)
            widest = full.arguments() | {"stride": [full.window]}
            [whole] = measure_several(loaded, text, job.computing(), **widest)
            shorter = job.computing("Shorter windows")
            by_context = measure_contexts(loaded, text, full, shorter, whole["num_tokens"])
            if whole["num_windows"] < 2:
                return Memory(by_context, [whole])
            strides = sorted({max(1, full.window >> halvings) for halvings in range(5)})[::-1]
            arguments = full.arguments() | {"stride": strides}
            try:
                entries = measure_several(loaded, text, job.computing("Strides"), **arguments)
            except OverBudget as over:
                return Memory(by_context, [whole], f"Strides were left out. {over}")
            return Memory(by_context, [entry for entry in entries if "error" not in entry])

    def every_protocol(self, text: str, settings: Settings, job: Job) -> Sweep:
        """Score a text with the page's protocol, and with every other tool's in the same window.

        The page's own protocol comes first, with the page's stride and start token, so that its number is
        the page's; the others have their usual stride and start, and are compared with it.
        """
        text = check_text(text, self.limits)
        settings = self._check(settings)
        with self._opened([settings.model], job) as (loaded,):
            check_tokens(loaded, text, self.limits)
            settings = settings.for_model(loaded.window, clip=True)
            own, others = measure_tools(loaded, text, settings, self.protocols, job.computing)
        sweep = self._gather(text, replace(settings, start="automatic"), others, loaded)
        if own is None:
            return sweep
        return Sweep([Scored(text, settings, loaded, own), *sweep.scored], sweep.failed)

    def _gather(
        self, text: str, settings: Settings, entries: Sequence[dict], loaded: LoadedModel
    ) -> Sweep:
        """Collect the results of several protocols; list refused ones separately."""
        scored, failed = [], []
        for entry in entries:
            protocol = entry["protocol"]
            stride = entry["stride"] if guide(protocol).stride else None
            asked = replace(settings, protocol=protocol, stride=stride)
            if "error" in entry:
                failed.append((asked, in_page_words(entry["error"])))
            else:
                asked = replace(asked, window=entry["max_length"])
                scored.append(Scored(text, asked, loaded, entry))
        return Sweep(scored, failed)
