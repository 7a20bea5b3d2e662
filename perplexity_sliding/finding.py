"""Find the settings that give a published figure."""

import csv
import math
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal, InvalidOperation
from pathlib import Path
from statistics import median
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from . import wikitext
from .api import Models, check, in_use, make_plan, open_session, report, run
from .argument_table import check_whole_number
from .arguments import Setting, check_setting
from .engines.sources import in_use_together
from .errors import ArgumentError, ArgumentTypeError
from .layouts import LAYOUTS, arrange, is_wikitext
from .models.interface import ScoredModel
from .plan.measurement import Measurement
from .plan.settings import Corpus, plan_settings
from .plan.windows import Plan, count_inputs, merge_windows
from .protocols import PROTOCOLS, Protocol
from .scoring.distributed import Processes
from .scoring.runner import Progress

WINDOWS = (512, 1024, 2048, 4096)
STRIDES = (512, 256, 128, 64, 32)
# Weights of choices relative to the most common one.  These are judgements, not measurements.
TOOLS = {
    **{"lm-eval": 1.0, "llama.cpp": 1.0, "gptq": 1.0, "stock": 0.9, "run-clm": 0.8},
    **{"transformers-docs": 0.9, "transformers-docs-weighted": 0.9, "sliding": 0.7},
}
OTHER_TOOL, OTHER_WINDOW, WINDOW_AS_STRIDE, OTHER_STRIDE = 0.5, 0.4, 0.8, 0.4
STARTS: dict[bool | str, float] = {True: 1.0, False: 0.6, "every": 0.2}
# By a tool in the layout that it reads; by a tool in another layout, and by us, beside the layout.
DETOKENIZED_BY_TOOL, DETOKENIZED_ELSEWHERE, DETOKENIZED_BY_US = 2.0, 0.5, 0.1
# Averages that a tool does not print itself.
AVERAGES = {
    "perplexity": 0.4,
    "mean_perplexity": 0.3,
    "word_perplexity": 0.3,
    "byte_perplexity": 0.1,
    "bits_per_byte": 0.3,
    "bits_per_original_byte": 0.2,
    "bits_per_character": 0.2,
    "adjusted_perplexity": 0.2,
}
# Averages computed from a key of a result: the key, the conversion, and the weight.
DERIVED: dict[str, tuple[str, Callable[[float], float], float]] = {
    "nats_per_token": ("perplexity", math.log, 0.3),
    "bits_per_token": ("perplexity", math.log2, 0.1),
    "original_byte_perplexity": ("bits_per_original_byte", lambda bits: 2.0**bits, 0.1),
}
# Weight of the averages of `Trainer.evaluate` that count the first label of a block, which is unscored.
OVER_ALL_LABELS = 0.5
# Averages that a tool prints; only the perplexity by default.
PRINTED = {
    "stock": ("mean_perplexity",),
    "lm-eval": (
        *("word_perplexity", "byte_perplexity", "bits_per_byte"),
        *("bits_per_original_byte", "original_byte_perplexity"),
    ),
    "paloma": ("perplexity", "bits_per_byte"),
    "run-clm": ("perplexity", "nats_per_token"),
    "megatron": ("perplexity", "adjusted_perplexity", "nats_per_token"),
    "fairseq": ("perplexity", "bits_per_token"),
}
# Decimals that tools print, and the factor by which matching decimals increase the likelihood.
DECIMALS = {"llama.cpp": 4, "lm-eval": 4, "run-clm": 4, "exllamav2": 4, "mlx-lm": 3}
SAME_DECIMALS = 3.0
TOKENS_READ = 40  # default budget per token of the texts
FEWEST_READ = 200_000  # minimum of the default budget, for short texts
CERTAIN = 0.01  # a match ends the search if fewer matches are expected by chance
OVERLAPS = (1, 2, 8)  # bounds of the windows per token, which separate passes by cost
SAMPLE_WINDOWS = 16  # longest windows in a sample of a corpus
SAMPLED_FROM = 4  # a corpus is sampled if it is at least this many times as long as the sample
SAMPLE_TOLERANCE = 0.02  # minimum relative tolerance of an estimate from a sample
MOST_MISSED = 700.0  # largest exponent, to keep the result finite
NUM_NEAREST = 5
NEIGHBOURHOOD = 1.1  # values within this factor of a figure determine their density
ROUNDING = 2e-6  # relative rounding error of a loss in single precision
FIELDS = ("protocol", "max_length", "stride", "add_start_token", "layout", "average")


@dataclass(frozen=True)
class Figure:
    """A printed number, and the interval [low, high) that rounds to it.

    If a number has more digits than single precision resolves, the interval is as wide as its
    rounding errors.
    """

    printed: str
    low: float
    high: float
    decimals: int

    @classmethod
    def read(cls, figure: object) -> "Figure":
        """Parse a figure; a string keeps its trailing zeros.

        Raises:
            TypeError, ValueError: it is not a positive number.
        """
        if isinstance(figure, bool) or not isinstance(figure, str | int | float | Decimal):
            raise ArgumentTypeError(
                "figure", "be a number, a string of digits, or a list of them", got=repr(figure)
            )
        try:
            number = Decimal(str(figure).strip())
        except InvalidOperation:
            number = Decimal("nan")
        if not number.is_finite() or number <= 0:
            raise ArgumentError(
                "figure",
                "be a positive number such as '29.41'",
                got=repr(figure),
                advice="Write it as printed.",
            )
        decimals = -int(number.as_tuple().exponent)
        half = Decimal((0, (5,), -decimals - 1))
        rounding = Decimal(float(number) * ROUNDING * max(1.0, abs(math.log(float(number)))))
        half = max(half, rounding)
        return cls(str(figure).strip(), float(number - half), float(number + half), decimals)

    @property
    def value(self) -> float:
        return (self.low + self.high) / 2

    def fits(self, value: float) -> bool:
        """Return whether a value rounds to the figure."""
        return self.low <= value < self.high

    def distance(self, value: float) -> float:
        """Return the absolute logarithm of the ratio of a value to the figure."""
        return abs(math.log(value / self.value)) if value > 0 else math.inf


@dataclass(frozen=True)
class Case:
    """A figure with its model and texts.

    Attributes:
        named: command-line arguments that select the texts.
    """

    figure: Figure
    scorer: "Scorer"
    texts: list[str]
    named: list[str]


@dataclass(frozen=True)
class Step:
    """Settings that are scored in one pass over the texts of each case.

    Attributes:
        texts: texts of each case, in the step's layout.
        start: `add_start_token`.
        settings: settings that can score every case, with their weights.
        num_tokens: tokens read by the merged passes.
        layout_prior: weight of the layout.
        originals: texts before detokenization, if they were detokenized.
    """

    layout: str
    texts: list[list[str]]
    start: bool | str
    settings: dict[Setting, float]
    num_tokens: int
    layout_prior: float
    originals: list[list[str]] | None = None

    @property
    def worth(self) -> float:
        """Weight of the settings per token that they read."""
        return sum(self.settings.values()) * self.layout_prior / max(1, self.num_tokens)


def find(
    figure: float | str | Sequence[float | str],
    texts: Sequence[str | Sequence[str]],
    model_id: str | Sequence[str] | None = None,
    model: torch.nn.Module | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    max_tokens: int | None = None,
    files: Sequence[Sequence[str]] | None = None,
    callback: Callable[[Progress], None] | None = None,
    **arguments: object,
) -> dict:
    """Find the settings under which a model has a published figure on texts.

    Score the texts under every protocol, with the usual windows, strides, start tokens, layouts and
    averages, likeliest and cheapest first, and return the settings whose value rounds to the figure.
    In a long corpus, a sample decides which settings are worth a complete pass.  A match is not
    proof: see `expected_by_chance`.

    Args:
        figure: the figure as printed; a string keeps trailing zeros ("37.50").  One setting must
            explain all figures of a list: one per text, or one per model.
        texts: the corpus; with several figures of one model, a text or a list of texts per figure.
        model_id: the model; with several figures of the same texts, a model per figure.
        max_tokens: number of tokens that the model may read.  By default 40 per token of the texts,
            at least 200,000; the search then also ends with a match if fewer than 0.01 are expected
            by chance.
        files: for each figure, the arguments that select its texts in the returned commands.
        callback: called with the progress after every batch; its perplexity is NaN.
        arguments: `dtype`, `device`, `batch_size` and other arguments of `compute` for loading and
            running the model.

    Returns:
        figure: as given.
        matches: settings whose value rounds to the figure, most likely first, each with protocol,
            max_length, stride, add_start_token, layout, average, value, likelihood (its share of
            the weights of all matches) and the command that repeats it.  With several figures,
            value and command are lists.
        nearest: settings that do not match, each with its difference from the likeliest match.
        published: known published figures equal to this one, each with model, corpus, protocol and
            source; figures of other models only if the model is unknown.
        num_tried: number of values compared with the figure.
        expected_by_chance: expected number of matches by chance, from the density of values.
        num_forward_tokens: number of tokens read by the model.
        not_tried: omitted passes, each with its cost in tokens and, if a sample was read, the
            difference between its nearest estimate and the figure.
        conclusion: an assessment of the matches, in one sentence.

    Raises:
        TypeError, ValueError: a figure is not positive, the numbers of figures and texts or models
            differ, or as for `compute`.
    """
    given = figure if isinstance(figure, list | tuple) else [figure]
    figures = [Figure.read(one) for one in given]
    if max_tokens is not None:
        check_whole_number("max_tokens", max_tokens, 1)
    unknown = set(arguments) - {"dtype", "device", "batch_size", "logits_memory", "model_kwargs"}
    if unknown:
        raise TypeError(
            f"find() got an unexpected keyword argument {sorted(unknown)[0]!r}: it tries all "
            "protocols, windows, strides and start tokens itself."
        )
    models = list(model_id) if isinstance(model_id, list | tuple) else [model_id]
    corpora = pair_texts(figures, texts, models)
    named = list(files) if files is not None else [["FILE"]] * len(figures)
    loaded = {"model": model, "tokenizer": tokenizer, **arguments}
    scorers = [Scorer({"model_id": name, **loaded}) for name in dict.fromkeys(models)]
    scorers = scorers if len(models) > 1 else scorers * len(figures)
    cases = [
        Case(one, scorer, own, list(names))
        for one, scorer, own, names in zip(figures, scorers, corpora, named, strict=True)
    ]
    search = Search(cases, max_tokens, callback)
    search.run()
    return conclude(figure, search)


def pair_texts(figures: list[Figure], texts: object, models: list) -> list[list[str]]:
    """Return the texts of each figure.

    Raises:
        TypeError, ValueError: there are no texts, or the numbers of figures and texts or models
            differ.
    """
    if isinstance(texts, str) or not isinstance(texts, Sequence):
        raise ArgumentTypeError("texts", "be a list of strings", got=type(texts).__name__)
    if not figures:
        raise ArgumentError("figure", "have at least one number", got="an empty list")
    if len(models) > 1 and len(models) != len(figures):
        raise ArgumentError(
            "figure",
            "have one number per model",
            got=f"{len(figures)} figures and {len(models)} models",
        )
    if len(models) > 1 or len(figures) == 1:
        corpora = [list(texts)] * len(figures)
    elif len(figures) == len(texts):
        corpora = [[text] if isinstance(text, str) else list(text) for text in texts]
    else:
        raise ArgumentError(
            "figure",
            "have one number per text, or a single one for all",
            got=f"{len(figures)} figures and {len(texts)} texts",
        )
    for corpus in corpora:
        if not all(isinstance(text, str) for text in corpus):
            raise ArgumentTypeError("texts", "be a list of strings", got="other items")
        if not any(text.strip() for text in corpus):
            raise ArgumentError("texts", "have at least one text that is not blank", got="none")
    return corpora


# --- plan -----------------------------------------------------------------------------------------


class Scorer:
    """An open model that scores any list of settings in shared passes.

    Attributes:
        name: last part of its name, in lower case; None for a live model without a name.
        options: command-line options that select the model.
    """

    def __init__(self, source: dict) -> None:
        self.arguments = source
        model_id, model, dtype = (source.get(name) for name in ("model_id", "model", "dtype"))
        name = model_id or getattr(model, "name_or_path", None)
        self.name = short_name(name) if name else None
        self.options = [] if model_id is None else ["--model", str(model_id)]
        self.options += [] if dtype is None else ["--dtype", str(dtype).removeprefix("torch.")]
        self.processes = Processes(False)
        request = check(self.processes, {"predictions": ["a text"], **source})
        self.model: ScoredModel = request.source.open()
        with in_use_together([self.model]):
            self.model.check()

    @property
    def limit(self) -> int | None:
        return self.model.limit.length

    def count_tokens(self, texts: list[str]) -> int:
        """Count the tokens of texts."""
        return sum(map(len, self.corpus(texts).read(PROTOCOLS["sliding"], None)[1]))

    def corpus(self, texts: list[str]) -> Corpus:
        return Corpus(self.model.tokenizer, texts, with_offsets=False)

    def plan(self, texts: list[str], settings: list[Setting]) -> dict[Setting, Measurement]:
        """Plan the settings that the texts and the model allow."""
        try:
            planned = plan_settings(self.corpus(texts), self.model.limit, settings, True)
        except ValueError:  # all are refused
            return {}
        return {s: m for s, m in planned.items() if isinstance(m, Measurement)}

    def cost(self, measurements: list[Measurement]) -> int:
        """Count the tokens that the merged passes of measurements read."""
        numbers: dict[bytes, int] = {}
        planned: list = []
        for measurement in measurements:
            for stream, windows in zip(measurement.streams, measurement.windows):
                number = numbers.setdefault(stream.ids.tobytes(), len(numbers))
                planned += measurement.plan.over(number, windows)
        return count_inputs(merge_windows(planned, self.model.prefixes_agree)[0])

    def score(
        self, texts: list[str], settings: list[Setting], callback: Callable | None, **others: object
    ) -> list[dict]:
        """Return the result of each setting."""
        given = {"predictions": texts, **self.arguments, "callback": callback, **others}
        request = check(self.processes, given)
        request = replace(request, settings=settings, gives_list=True)
        with open_session(request, self.processes) as session:
            with in_use(Models(self.model), session) as models:
                plan = make_plan(request, models)
                scores = run(session, plan, models)
            return report(plan, scores)["measurements"]


def list_steps(cases: list[Case]) -> list[Step]:
    """List the steps in descending order of their worth per token.

    Raises:
        ValueError: no setting can score the texts.
    """
    steps: list[Step] = []
    seen: set[tuple] = set()  # texts as a protocol joins them: two layouts may be one to it
    of_wikitext = any(is_wikitext(case.texts) for case in cases)
    for name, layout in LAYOUTS.items():
        usual = layout.usual_for_wikitext if of_wikitext else layout.usual
        texts = [arrange(case.texts, name) for case in cases]
        joined = {p: (p.name, *(joined_by(p, own) for own in texts)) for p in PROTOCOLS.values()}
        protocols = [protocol for protocol, key in joined.items() if key not in seen]
        if not usual or not protocols or not all(texts):
            continue
        seen.update(joined.values())
        for start in STARTS:
            settings = list_choices(cases, protocols, start)
            whole = Step(name, texts, start, dict.fromkeys(settings, 0.0), 0, usual)
            steps += split_steps(cases, whole)
        if of_wikitext and name in ("as-is", "joined", "each-article"):
            steps += detokenizing_steps(cases, name, texts, usual)
    if not steps:
        raise ArgumentError("texts", "be long enough to score", got="texts of fewer than 2 tokens")
    return sorted(steps, key=lambda step: -step.worth)


def joined_by(protocol: Protocol, texts: list[str]) -> tuple[str, ...]:
    """Return texts, joined as the protocol requires."""
    if protocol.join is None or protocol.join == "tokens":
        return tuple(texts)
    return (protocol.join.join(texts),)


def detokenizing_steps(
    cases: list[Case], layout: str, texts: list[list[str]], usual: float
) -> list[Step]:
    """List the steps that detokenize WikiText and count the words of the original."""
    steps = []
    for protocol in PROTOCOLS.values():
        detokenize = protocol.detokenize or wikitext.detokenize
        prose = [[detokenize(text) for text in own] for own in texts]
        if prose != texts:
            settings = dict.fromkeys(list_choices(cases, [protocol], True), 0.0)
            prior = prior_of_detokenized(protocol, layout, usual)
            step = Step(layout, prose, True, settings, 0, prior, texts)
            steps += split_steps(cases, step)
    return steps


def prior_of_detokenized(protocol: Protocol, layout: str, usual: float) -> float:
    """Return the weight of a layout of detokenized WikiText for a tool.

    Tools that detokenize read articles separately, or all text as one.
    """
    if protocol.detokenize is None:
        return usual * DETOKENIZED_BY_US
    reads = ("each-article",) if protocol.scores_each_text else ("as-is", "joined")
    return DETOKENIZED_BY_TOOL if layout in reads else usual * DETOKENIZED_ELSEWHERE


def split_steps(cases: list[Case], whole: Step) -> list[Step]:
    """Split a step into the tools' own settings and the others, and each by its cost."""
    planned = [case.scorer.plan(own, list(whole.settings)) for case, own in zip(cases, whole.texts)]
    groups: dict[tuple[int, bool], dict[Setting, float]] = {}
    seen = set()
    for setting in whole.settings:
        if all(setting in own for own in planned):
            plans = [own[setting].plan for own in planned]
            overlap = max(plan.max_length / plan.stride for plan in plans)
            cost = sum(overlap > bound for bound in OVERLAPS)
            is_own = setting.max_length is None and setting.stride is None
            key = tuple((p.protocol.name, p.max_length, p.stride, p.start) for p in plans)
            if key not in seen:
                seen.add(key)
                usual = prior_of(setting, plans[0])
                groups.setdefault((cost, is_own), {})[setting] = usual
    steps = []
    for settings in groups.values():
        costs = [
            case.scorer.cost([own[setting] for setting in settings])
            for case, own in zip(cases, planned)
        ]
        steps.append(replace(whole, settings=settings, num_tokens=sum(costs)))
    return steps


def list_choices(cases: list[Case], protocols: list[Protocol], start: bool | str) -> list[Setting]:
    """List the usual settings, each tool's own first."""
    limits = [case.scorer.limit for case in cases if case.scorer.limit is not None]
    limit = min(limits, default=None)
    windows = [None, *(length for length in WINDOWS if limit is None or length <= limit)]
    choices = []
    for protocol in protocols:
        for window in windows:
            length = window or limit
            strides: list[int | None] = [None]
            if "stride" in protocol.supported_arguments and length is not None:
                usual = (length, length // 2, *STRIDES)
                strides += sorted({s for s in usual if 0 < s <= length}, reverse=True)
            choices += [Setting(protocol, window, stride, start) for stride in strides]
    return sorted(filter(is_allowed, choices), key=lambda s: (s.max_length or 0, s.stride or 0))


def is_allowed(setting: Setting) -> bool:
    """Return whether the protocol's tool has the settings."""
    try:
        check_setting(setting)
    except ValueError:
        return False
    return True


def prior_of(setting: Setting, plan: Plan) -> float:
    """Return the weight of a setting."""
    usual = TOOLS.get(setting.protocol.name, OTHER_TOOL) * STARTS[setting.add_start_token]
    usual *= 1.0 if setting.max_length is None else OTHER_WINDOW
    if setting.stride is None:
        return usual
    return usual * (WINDOW_AS_STRIDE if plan.stride == plan.max_length else OTHER_STRIDE)


# --- search ---------------------------------------------------------------------------------------


@dataclass
class Search:
    """The passes over the texts, their results, and the omitted passes.

    Attributes:
        max_tokens: the budget; None for the default, with which a certain match ends the search.
        tried: an entry for each setting and average, with its value for each figure.
        left_out: omitted steps, each with the relative difference of its nearest estimate, if any.
        num_read: number of tokens read.
    """

    cases: list[Case]
    max_tokens: int | None
    callback: Callable[[Progress], None] | None
    tried: list[dict] = field(default_factory=list)
    left_out: list[tuple[Step, float | None]] = field(default_factory=list)
    num_read: int = 0

    def run(self) -> None:
        """Score one step after the other.

        Raises:
            ValueError: no pass fits in the budget, or no setting can score the texts.
        """
        steps = list_steps(self.cases)
        num_tokens = sum(case.scorer.count_tokens(case.texts) for case in self.cases)
        self.budget = self.max_tokens or max(FEWEST_READ, TOKENS_READ * num_tokens)
        self.total = min(self.budget, sum(step.num_tokens for step in steps))
        sample = Sample.of(self.cases, num_tokens)
        unlikely: list[tuple[Step, float]] = []
        for number, step in enumerate(steps):
            if self.num_read + step.num_tokens > self.budget:
                self.left_out.append((step, None))
                continue
            estimates = self.score_sample(sample, step) if sample else []
            if sample and estimates and self.tried:
                misses = sample.misses(estimates, self.figures)
                if misses:
                    far = self.part(step, list(misses))
                    unlikely.append((far, min(misses.values(), key=abs)))
                if len(misses) == len(step.settings):
                    continue
                step = self.part(step, [s for s in step.settings if s not in misses])
            entries = self.score(step)
            self.tried += entries
            if sample and estimates:
                sample.compare(estimates, entries)
            if self.is_certain():
                self.left_out += [(step, None) for step in steps[number + 1 :]]
                break
        for step, nearest in unlikely:  # last, and only with a given budget
            if self.max_tokens is None or self.num_read + step.num_tokens > self.budget:
                self.left_out.append((step, nearest))
            else:
                self.tried += self.score(step)
        if not self.tried:
            raise ArgumentError(
                "max_tokens",
                f"be at least {min(step.num_tokens for step in steps)}, the tokens of the "
                "cheapest pass",
                got=str(self.budget),
            )

    @property
    def figures(self) -> list[Figure]:
        return [case.figure for case in self.cases]

    @property
    def matches(self) -> list[dict]:
        """The entries that explain all figures, likeliest first."""
        matches = [entry for entry in self.tried if is_match(entry, self.figures)]
        return sorted(matches, key=lambda entry: -self.likelihood(entry))

    def likelihood(self, entry: dict) -> float:
        """Return the weight of a match, including that of its decimals."""
        decimals = DECIMALS.get(entry["protocol"])
        is_printed_so = any(figure.decimals == decimals for figure in self.figures)
        return entry["prior"] * (SAME_DECIMALS if is_printed_so else 1.0)

    def is_certain(self) -> bool:
        """Return whether a match ends the search."""
        if self.max_tokens is not None or not self.matches:
            return False
        return chance(self.tried, self.figures) < CERTAIN

    def part(self, step: Step, settings: list[Setting]) -> Step:
        """Return the part of a step that scores some of its settings."""
        if len(settings) == len(step.settings):
            return step
        costs = []
        for case, texts in zip(self.cases, step.texts):
            planned = case.scorer.plan(texts, settings)
            costs.append(case.scorer.cost([planned[setting] for setting in settings]))
        usual = {setting: step.settings[setting] for setting in settings}
        return replace(step, settings=usual, num_tokens=sum(costs))

    def score_sample(self, sample: "Sample", step: Step) -> list[dict]:
        """Score a step on the samples, as far as they are long enough."""
        texts = [arrange(own, step.layout) for own in sample.texts]
        originals = None
        if step.originals is not None:
            protocol = next(iter(step.settings)).protocol
            detokenize = protocol.detokenize or wikitext.detokenize
            originals, texts = texts, [[detokenize(text) for text in own] for own in texts]
        parts = split_steps(self.cases, replace(step, texts=texts, originals=originals))
        if sum(len(part.settings) for part in parts) < len(step.settings):
            return []  # the sample is too short for some settings
        return [entry for part in parts for entry in self.score(part)]

    def score(self, step: Step) -> list[dict]:
        """Score a step; return an entry for each setting and average, with a value for each case."""
        before = self.num_read
        report = self.callback

        def callback(progress: Progress) -> None:
            done = min(self.total, before + progress.done)
            if report is not None:
                report(Progress(done, self.total, math.nan))

        results = []
        for case, texts, originals in zip(self.cases, step.texts, step.originals or step.texts):
            own = callback if report is not None else None
            results.append(score_texts(case.scorer, step, texts, originals, own))
        self.num_read += step.num_tokens
        return [
            entry
            for setting, *of_setting in zip(step.settings, *results)
            for entry in list_entries(self.cases, step, setting, of_setting)
        ]


@dataclass
class Sample:
    """The first parts of long corpora, which predict the value of a complete pass.

    Attributes:
        ratios: for each average and case, the logarithms of value over estimate of the settings
            that were scored on the sample and the whole.
    """

    texts: list[list[str]]
    ratios: dict[tuple[str, int], list[float]] = field(default_factory=dict)

    @classmethod
    def of(cls, cases: list[Case], num_tokens: int) -> "Sample | None":
        """Take the first part of each case's texts; None if these are short."""
        longest = max(case.scorer.limit or WINDOWS[-1] for case in cases)
        share = len(cases) * SAMPLE_WINDOWS * min(longest, WINDOWS[-1]) / num_tokens
        if share > 1 / SAMPLED_FROM:
            return None
        return cls([first_part(case.texts, share) for case in cases])

    def compare(self, estimates: list[dict], entries: list[dict]) -> None:
        """Store the ratios of values on the whole to those on the sample."""
        known = {(entry["setting"], entry["average"]): entry["values"] for entry in estimates}
        for entry in entries:
            estimated = known.get((entry["setting"], entry["average"]), [])
            for place, (value, estimate) in enumerate(zip(entry["values"], estimated)):
                if entry["setting"].protocol.last != "cut":
                    ratios = self.ratios.setdefault((entry["average"], place), [])
                    ratios.append(math.log(value / estimate))

    def misses(self, estimates: list[dict], figures: list[Figure]) -> dict[Setting, float]:
        """Return the settings that cannot give the figures, with their smallest relative difference.

        Ratios of one average do not apply to another.
        """
        nearest: dict[Setting, float] = {}
        near = set()
        for entry in estimates:
            setting, miss = entry["setting"], self.miss(entry, figures)
            if miss == 0 or setting.protocol.last == "cut":  # reads one window of any text
                near.add(setting)
            nearest[setting] = min(nearest.get(setting, math.inf), miss, key=abs)
        return {setting: miss for setting, miss in nearest.items() if setting not in near}

    def miss(self, entry: dict, figures: list[Figure]) -> float:
        """Return the largest relative difference from a figure; 0 if all may be equal."""
        worst = 0.0
        for place, (figure, value) in enumerate(zip(figures, entry["values"])):
            ratios = self.ratios.get((entry["average"], place))
            if ratios is None:
                continue
            middle = median(ratios)
            spread = median(abs(ratio - middle) for ratio in ratios)
            miss = math.log(value / figure.value) + middle
            if abs(miss) > max(SAMPLE_TOLERANCE, 4 * spread, abs(worst)):
                worst = miss
        return math.expm1(min(worst, MOST_MISSED))


def first_part(texts: list[str], share: float) -> list[str]:
    """Return the first texts up to a share of the corpus; truncate the last one at a line end."""
    left = math.ceil(share * sum(map(len, texts)))
    chosen = []
    for text in texts:
        if left <= 0:
            break
        if len(text) > left:
            end = text.find("\n", left)
            text = text if end < 0 or end > 2 * left else text[: end + 1]
            text = text[: 2 * left]
        chosen.append(text)
        left -= len(text)
    return chosen


# --- score ----------------------------------------------------------------------------------------


def score_texts(
    scorer: Scorer, step: Step, texts: list[str], originals: list[str], callback: Callable | None
) -> list[dict]:
    """Return the results of a step's settings on texts."""
    if step.originals is None:
        return scorer.score(texts, list(step.settings), callback)
    protocol = next(iter(step.settings)).protocol
    results = scorer.score(
        texts,
        list(step.settings),
        callback,
        word_counts=[protocol.count_words(text) for text in originals],
        detokenizer=protocol.detokenize.__name__ if protocol.detokenize else "wikitext",
    )
    if protocol.scores_each_text:  # the command line counts no bytes of joined texts
        ratio = num_bytes(texts) / num_bytes(originals)
        for result in results:
            result["bits_per_original_byte"] = result["bits_per_byte"] * ratio
    return [{key: r[key] for key in r if key not in PER_BYTE} for r in results]


# Averages over the bytes of the prose, which such a tool does not report.
PER_BYTE = ("byte_perplexity", "bits_per_byte", "bits_per_character")


def num_bytes(texts: list[str]) -> int:
    return sum(len(text.encode("utf-8")) for text in texts)


def list_entries(
    cases: list[Case], step: Step, setting: Setting, results: list[dict]
) -> list[dict]:
    """List the averages of a setting's results; of equal ones, only the most common."""
    layout = step.layout
    if step.originals is not None:
        layout += ", detokenized" + (" by the tool" if setting.protocol.detokenize else "")
    usual = step.settings[setting] * step.layout_prior
    of_all = {
        **{"protocol": setting.protocol.name, "layout": layout},
        **{name: common(r[name] for r in results) for name in FIELDS[1:4]},
        **{"setting": setting, "commands": write_commands(cases, step, setting)},
    }
    averaged = [averages_of(result) for result in results]
    priors = {name: prior_of_average(setting.protocol.name, name) for name in averaged[0]}
    entries: list[dict] = []
    for average in sorted(priors, key=lambda name: -priors[name]):
        values = [of_case.get(average, math.nan) for of_case in averaged]
        if not all(0 < value < math.inf for value in values):
            continue
        if not any(agree(values, entry["values"]) for entry in entries):
            prior = usual * priors[average]
            entries.append(of_all | {"average": average, "values": values, "prior": prior})
    return entries


def common(values: Iterable) -> object:
    """Return the common value, or the list if values differ."""
    values = list(values)
    return values[0] if all(value == values[0] for value in values) else values


def agree(values: list[float], others: list[float]) -> bool:
    return all(math.isclose(a, b, rel_tol=1e-9) for a, b in zip(values, others))


def averages_of(result: dict) -> dict[str, float]:
    """Return the values of a result that a paper could print."""
    values = {key: result[key] for key in AVERAGES if result.get(key) is not None}
    derived = {
        name: convert(values[key])
        for name, (key, convert, _) in DERIVED.items()
        if 0 < values.get(key, 0) < math.inf
    }
    if result["protocol"] == "run-clm":
        derived |= over_all_labels(values["perplexity"], result["max_length"])
    return values | derived


def over_all_labels(perplexity: float, block: int) -> dict[str, float]:
    """Return the numbers of `Trainer.evaluate` if it divides by all labels of a block.

    transformers does so from 4.57 until 2026, and still for models such as GPT-2, whose loss it does
    not recognise as shifted.
    """
    loss = math.log(perplexity) * (block - 1) / block
    return {"trainer_nats_per_token": loss, "trainer_perplexity": math.exp(loss)}


def prior_of_average(protocol: str, average: str) -> float:
    """Return the weight of an average for a protocol's tool."""
    if average in PRINTED.get(protocol, ("perplexity",)):
        return 1.0
    if average.startswith("trainer_"):
        return OVER_ALL_LABELS
    return DERIVED[average][2] if average in DERIVED else AVERAGES[average]


def write_commands(cases: list[Case], step: Step, setting: Setting) -> list[str]:
    """Return the command that repeats a setting, for each case."""
    given = {
        "--protocol": setting.protocol.name,
        "--max-length": setting.max_length,
        "--stride": setting.stride,
        "--add-start-token": {False: "false", "every": "every"}.get(setting.add_start_token),
        "--detokenize": None if step.originals is None else "wikitext",
    }
    options = [str(part) for pair in given.items() if pair[1] is not None for part in pair]
    commands = []
    for case in cases:
        before, files = "", case.named
        if step.layout != "as-is":
            lay_out = ["python", "-m", "perplexity_sliding.cli.layouts", step.layout, *files]
            before, files = f"{shlex.join(lay_out)} > laid-out.jsonl && ", ["laid-out.jsonl"]
        command = ["python", "score.py", *files, *case.scorer.options, *options, "--json"]
        commands.append(before + shlex.join(command))
    return commands


# --- conclude -------------------------------------------------------------------------------------


def is_match(entry: dict, figures: list[Figure]) -> bool:
    """Return whether a setting explains all figures."""
    return all(figure.fits(value) for figure, value in zip(figures, entry["values"]))


def chance(tried: list[dict], figures: list[Figure]) -> float:
    """Return the expected number of matches by chance.

    This assumes that values around each figure are uniform on a logarithmic scale, and that figures
    of several texts are independent, which is only approximate for those of one setting.
    """
    # those that differ in their first eight digits
    rows = {tuple(float(f"{value:.8g}") for value in entry["values"]) for entry in tried}
    expected = float(len(rows))
    for place, figure in enumerate(figures):
        values = {row[place] for row in rows}
        around = [v for v in values if figure.distance(v) <= math.log(NEIGHBOURHOOD)]
        width = math.log(figure.high / max(figure.low, figure.value / 100))
        share = len(around) / len(values) * width / (2 * math.log(NEIGHBOURHOOD))
        expected *= min(1.0, share)
    return expected


def conclude(figure: Any, search: Search) -> dict:
    """Build the result of `find`."""
    several = isinstance(figure, list | tuple)
    figures, tried, matches = search.figures, search.tried, search.matches
    total = sum(map(search.likelihood, matches))
    expected = chance(tried, figures)
    return {
        "figure": list(figure) if several else figure,
        "matches": [
            shown(entry, several) | {"likelihood": search.likelihood(entry) / total}
            for entry in matches
        ],
        "nearest": [
            shown(entry, several) | {"difference": text}
            for entry, text in list_nearest(tried, matches, figures)
        ],
        "published": list_published(search.cases),
        "num_tried": len(tried),
        "expected_by_chance": expected,
        "num_forward_tokens": search.num_read,
        "not_tried": [
            {
                "layout": step.layout,
                "add_start_token": step.start,
                "num_settings": len(step.settings),
                "num_forward_tokens": step.num_tokens,
                "nearest_estimate": estimate,
            }
            for step, estimate in search.left_out
        ],
        "conclusion": describe(tried, matches, figures, expected),
    }


def shown(entry: dict, several: bool) -> dict:
    """Return the settings of an entry with its value and command, or those of each figure."""
    values, commands = entry["values"], entry["commands"]
    return {name: entry[name] for name in FIELDS} | {
        "value": values if several else values[0],
        "command": commands if several else commands[0],
    }


def list_published(cases: list[Case]) -> list[dict]:
    """List the published figures that equal those of the cases.

    The test sets of WikiText are recognised by their first title.  Other texts may be any other
    corpus, but only with the figure's model.
    """
    found = []
    for case in cases:
        is_wikitext_test = "= Robert Boulter =" in "".join(case.texts[:3])[:100]
        for row in read_published():
            is_model = case.scorer.name == short_name(row["model"])
            may_be_model = is_model or (case.scorer.name is None and is_wikitext_test)
            may_be_corpus = row["corpus"].startswith("WikiText") == is_wikitext_test
            if may_be_model and may_be_corpus and case.figure.fits(float(row["figure"])):
                found.append(row)
    return found


def read_published() -> list[dict]:
    """Read the table of published figures, with their sources."""
    with open(Path(__file__).parent / "published.csv", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def short_name(model: str) -> str:
    """Return the last part of a model's name, in lower case."""
    return str(model).rstrip("/").rpartition("/")[2].lower()


def list_nearest(
    tried: list[dict], matches: list[dict], figures: list[Figure]
) -> list[tuple[dict, str]]:
    """Return the nearest other settings, each with its difference from the likeliest match.

    With a match, these differ from it in one setting; otherwise their values are the nearest.
    """
    others = [entry for entry in tried if not is_match(entry, figures)]
    others.sort(key=lambda e: max(f.distance(v) for f, v in zip(figures, e["values"])))
    if not matches:
        return [(entry, distance(entry, figures)) for entry in others[:NUM_NEAREST]]
    best = matches[0]
    found = []
    for entry in others:
        differing = [name for name in FIELDS if entry[name] != best[name]]
        if len(differing) == 1:
            name = differing[0]
            found.append((entry, f"{name} {entry[name]} instead of {best[name]}"))
    return found[:NUM_NEAREST]


def distance(entry: dict, figures: list[Figure]) -> str:
    ratios = [value / figure.value - 1 for figure, value in zip(figures, entry["values"])]
    return ", ".join(f"{100 * ratio:+.2f} %" for ratio in ratios)


def describe(tried: list[dict], matches: list[dict], figures: list[Figure], expected: float) -> str:
    """Assess the matches, or explain why nothing matches."""
    by_chance = f"{expected:.2g} of {len(tried):,} values would round to it by chance"
    if len(figures) > 1:
        by_chance = f"{expected:.2g} of {len(tried):,} settings would fit all figures by chance"
    if matches:
        if all(agree(entry["values"], matches[0]["values"]) for entry in matches[1:]):
            several = " All matches have the same value: these texts cannot distinguish them."
        else:
            several = " Several settings match: more figures from the same source can decide."
        return f"{by_chance}.{several if len(matches) > 1 else ''}"
    ppls = [entry["values"][0] for entry in tried if entry["average"] == "perplexity"]
    low, high, value = min(ppls), max(ppls), figures[0].value
    if len(figures) > 1:
        return "No setting tried explains all figures; search for each of them separately."
    if value < low:
        implied = (
            f"it is lower than every perplexity per token tried, the lowest being {low:.4g}: another "
            "unit, another text or split, a text seen in training, another model, or a larger window"
        )
    elif value > high:
        implied = (
            f"it is higher than every perplexity per token tried, the highest being {high:.4g}: another "
            "unit, text or model, coarser weights, or a smaller window"
        )
    else:
        implied = (
            f"it lies among the perplexities per token tried ({low:.4g} to {high:.4g}): another layout of the "
            "text, another split, precision, window or stride"
        )
    return f"No setting tried rounds to {figures[0].printed}; {implied}. {by_chance}."
