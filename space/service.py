"""The service: from text and settings to results, without HTML."""

import contextlib
import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from perplexity_sliding.views.comparison import Pair

from .jobs import Job, OverBudget
from .limits import Limits, Refused
from .line import Line
from .measure import (
    check_text,
    check_tokens,
    find_window,
    in_page_words,
    measure,
    measure_contexts,
    measure_pair,
    measure_several,
    measure_tools,
)
from .metric import protocol_rows
from .models import BUNDLED, LoadedModel, Shelf
from .protocols import guide
from .settings import Settings, check_settings

# Settings that make no difference to a measurement of strides: it has its own.
STRIDES_SET = ("stride", "protocol")
ENOUGH = 0.9  # share of the best gain; the knee is the cheapest setting that reaches it
# Speed of a small machine, used only for the order of the queue.
CHARACTERS_A_SECOND = 10_000
STRIDES_READ = 16  # times the text that the strides of a trade-off read, about
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

    @property
    def interval(self) -> Sequence[float] | None:
        """The 95 % interval of the perplexity; None if there is no meaningful one."""
        return self.result["perplexity_interval"]


@dataclass(frozen=True)
class Compared:
    """One text under a model and under the reference that it is compared with.

    Attributes:
        asked: settings before they were fitted to what both take.
        scored: by the model; its result holds the metric's `comparison`.
        by_context: of the metric's comparison in windows without overlap, see `measure_pair`.
        remark: what had to be changed about the request, or None.
    """

    asked: Settings
    scored: Scored
    reference: LoadedModel
    by_context: list[dict]
    remark: str | None = None

    @property
    def page_settings(self) -> Settings:
        """The page's settings of the comparison: the page's model is the reference."""
        return replace(self.asked, model=self.reference.name)

    @property
    def comparison(self) -> dict:
        return self.pair.comparison

    @property
    def by_tokens(self) -> bool:
        """Whether both read the same tokens, so that their predictions can be compared."""
        return self.pair.by_tokens

    @property
    def scores(self) -> dict:
        """Units that both models scored: tokens, or pieces between common token boundaries."""
        return self.pair.scores

    @property
    def pair(self) -> Pair:
        """The data of the view of a comparison."""
        scored, both = self.scored, (self.scored.loaded, self.reference)
        result = scored.result
        by_tokens = result["comparison"]["compared"] == "tokens"
        return Pair(
            scored,
            (scored.loaded.name, self.reference.name),
            scored.tokens if by_tokens else result["piece_scores"][0],
            self.by_context,
            [(loaded.name, loaded.window) for loaded in both if loaded.window > scored.window],
            self.remark,
        )


@dataclass(frozen=True)
class Sweep:
    """Results of one text for several settings.

    Attributes:
        failed: settings that gave no result, with the reason.
        asked: the page's own settings, before they were fitted to the model; None for strides.
    """

    scored: list[Scored]
    failed: list[tuple[Settings, str]]
    asked: Settings | None = None


@dataclass(frozen=True)
class TradeOff:
    """The gain of a smaller stride and a longer context on one text.

    Attributes:
        strides: results, the widest stride first.
        by_context: the metric's perplexities of the same tokens by length of context, the shortest
            first; empty where none were measured.
        remark: what was left out and why, or None.
    """

    strides: list[Scored]
    by_context: Sequence[dict] = ()
    remark: str | None = None

    @property
    def wide(self) -> Scored:
        return self.strides[0]

    @property
    def best(self) -> Scored:
        """The lowest perplexity; of two equal ones, that of the larger stride."""
        return min(self.strides, key=lambda scored: scored.result["perplexity"])

    @property
    def fits_one_window(self) -> bool:
        """Whether no stride changes the result."""
        return len(self.wide.tokens["windows"]) < 2

    @property
    def ratio(self) -> dict | None:
        """The paired ratio of the best stride's perplexity to the widest's; None if that is best."""
        return self.best.result.get("ratio_to_first")

    @property
    def knee(self) -> Scored | None:
        """The cheapest stride with most of the best one's gain.

        None where that may be chance.
        """
        if not is_gain(self.ratio and self.ratio["interval"]):
            return None
        perplexities = [scored.result["perplexity"] for scored in self.strides]
        return self.strides[find_knee(perplexities)]

    @property
    def context_knee(self) -> dict | None:
        """The shortest context with most of the gain of longer ones.

        None where it may be chance that the longest brings something.
        """
        if len(self.by_context) < 2:
            return None
        interval = self.by_context[0]["ratio_to_longest"]["interval"]
        if not is_gain(interval and [1 / end for end in interval[::-1]]):
            return None
        return self.by_context[find_knee([row["perplexity"] for row in self.by_context])]


def characters_read(text: str, settings: Settings) -> float:
    """Estimate the number of characters that windows read, with repetitions."""
    overlap = settings.window / settings.stride if settings.window and settings.stride else 2
    return (len(text) + len(settings.context)) * max(1, overlap)


def expected_seconds(text: str, settings: Settings) -> float:
    """Estimate the time of a score, for its place in the queue."""
    return characters_read(text, settings) / CHARACTERS_A_SECOND


def affordable(strides: list[int], needed: float, remaining: float) -> list[int]:
    """Return the widest strides that fit into a time; at least one, and one less than were tried.

    Args:
        strides: what was tried, the widest first; each takes as long as it is short.
        needed: seconds that all of them would take.
        remaining: seconds that are left.
    """
    whole, spent = sum(1 / stride for stride in strides), 0.0
    for kept, stride in enumerate(strides[:-1]):
        spent += needed / stride / whole
        if spent > remaining:
            return strides[: max(1, kept)]
    return strides[:-1]


def is_gain(interval: Sequence[float] | None) -> bool:
    """Return whether the interval of a ratio of perplexities lies below 1."""
    return interval is not None and interval[1] < 1


def find_knee(perplexities: Sequence[float]) -> int:
    """Find the first perplexity with most of the lowest one's gain over the first."""
    shares = (gain_share(perplexity, perplexities) for perplexity in perplexities)
    return next(place for place, share in enumerate(shares) if share >= ENOUGH)


def gain_share(perplexity: float, perplexities: Sequence[float]) -> float:
    """Return a perplexity's share of the lowest one's gain over the first, in log-perplexity."""
    first, lowest = math.log(perplexities[0]), math.log(min(perplexities))
    return (first - math.log(perplexity)) / (first - lowest)


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
        self.line = Line(self.limits.waiting)
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
        with self._opened([self.shelf.known_as(name)], job) as (loaded,):
            return loaded

    def _check(self, settings: Settings) -> Settings:
        """Normalize the model's name in settings, and refuse invalid settings."""
        settings = check_settings(settings, self.protocols)
        return replace(settings, model=self.shelf.known_as(settings.model))

    @contextlib.contextmanager
    def _opened(self, names: Sequence[str], job: Job) -> Iterator[list[LoadedModel]]:
        """Open models for scoring, with exclusive use of the machine.

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
        settings = self._check(settings)
        job.expected = expected_seconds(text, settings)
        with self._opened([settings.model], job) as (loaded,):
            check_tokens(loaded, text, self.limits, job)
            settings = settings.for_model(loaded.window, clip)
            result = measure(loaded, text, settings, job.computing())
            return Scored(text, settings, loaded, result)

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
        job.expected = 2 * expected_seconds(text, settings)
        with self._opened([settings.model, reference], job) as both:
            # Whose window the settings must fit is named where they don't.
            shortest = min(both, key=lambda loaded: loaded.window)
            fitted = replace(settings, model=shortest.name).for_model(shortest.window, clip)
            shared = replace(fitted, model=settings.model)
            for loaded in both:
                check_tokens(loaded, text, self.limits, job)
            try:
                return self._compare(text, settings, shared, both, job)
            except Refused:
                if shared.start == "none" or "none" not in guide(shared.protocol).starts:
                    raise
            # The two may have different start tokens.
            without = replace(shared, start="none")
            compared = self._compare(text, settings, without, both, job)
            return replace(compared, remark=OWN_STARTS)

    def _compare(
        self, text: str, asked: Settings, shared: Settings, both: Sequence[LoadedModel], job: Job
    ) -> Compared:
        result, by_context = measure_pair(*both, text, shared, job.computing())
        return Compared(asked, Scored(text, shared, both[0], result), both[1], by_context)

    def trade_off(self, text: str, settings: Settings, job: Job) -> TradeOff:
        """Score a text with strides from the whole window down to a sixteenth of it.

        And the same tokens with windows of several lengths, where the text is longer than one.
        """
        text = check_text(text, self.limits)
        settings = self._check(settings)
        job.expected = STRIDES_READ * len(text) / CHARACTERS_A_SECOND
        with self._opened([settings.model], job) as (loaded,):
            check_tokens(loaded, text, self.limits, job)
            full = replace(settings, protocol=Settings.protocol)
            full = full.for_model(loaded.window, clip=True)
            strides = sorted({max(1, full.window >> halvings) for halvings in range(5)})[::-1]
            measured = self._strides(text, full, strides, loaded, job)
            if measured.fits_one_window or measured.remark:
                return measured
            try:
                step = job.computing("Shorter contexts")
                by_context = measure_contexts(loaded, text, full, step)
            except (OverBudget, Refused) as reason:
                return replace(measured, remark=f"Shorter contexts were left out. {reason}")
            return replace(measured, by_context=by_context)

    def _strides(
        self, text: str, full: Settings, strides: list[int], loaded: LoadedModel, job: Job
    ) -> TradeOff:
        """Score with all strides together; omit the most expensive ones if time is short."""
        measured, reason = strides, None
        while True:
            arguments = full.arguments() | {"stride": measured}
            try:
                entries = measure_several(loaded, text, job.computing("Strides"), **arguments)
            except OverBudget as over:
                if len(measured) == 1:
                    raise
                measured, reason = affordable(measured, over.needed, job.remaining), over
                continue
            left_out = [f"{stride:,}" for stride in strides[len(measured) :]]
            remark = f"Left out: stride {', '.join(left_out)}. {reason}" if left_out else None
            return TradeOff(self._gather(text, full, entries, loaded).scored, remark=remark)

    def every_protocol(self, text: str, settings: Settings, job: Job) -> Sweep:
        """Score a text with the page's protocol, and with every other tool's in the same window.

        The page's own protocol comes first, with the page's stride and start token, so that its number is
        the page's; the others have their usual stride and start, and are compared with it.
        """
        text = check_text(text, self.limits)
        asked = settings = self._check(settings)
        job.expected = len(self.protocols) * len(text) / CHARACTERS_A_SECOND
        with self._opened([settings.model], job) as (loaded,):
            check_tokens(loaded, text, self.limits, job)
            settings = settings.for_model(loaded.window, clip=True)
            own, others = measure_tools(loaded, text, settings, self.protocols, job.computing)
            sweep = self._gather(text, replace(settings, start="automatic"), others, loaded)
            if own is None:
                return replace(sweep, asked=asked)
            return Sweep([Scored(text, settings, loaded, own), *sweep.scored], sweep.failed, asked)

    def _gather(
        self, text: str, settings: Settings, entries: Sequence[dict], loaded: LoadedModel
    ) -> Sweep:
        """Collect the results of several settings; list refused ones separately."""
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
