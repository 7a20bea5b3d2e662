"""From a published figure to the settings that give it.

Settings are tried over layouts of the texts, in passes that share the tokens they read.  How common a
choice is, of a tool, a window, a start token or an average, is a weight relative to the most common
one.  The weights are judgements, not measurements.
"""

import math
import shlex
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from decimal import Decimal, InvalidOperation
from itertools import product
from typing import Any, NamedTuple

import torch
from transformers import PreTrainedTokenizerBase

from .api import check, make_plan, open_session, report, score
from .arguments import Setting
from .engines.sources import in_use_together
from .errors import ArgumentError, ArgumentTypeError
from .layouts import LAYOUTS, arrange, is_wikitext
from .models.interface import ScoredModel
from .plan.measurement import Corpus, Measurement, plan_settings
from .plan.windows import count_inputs, merge_windows
from .protocols import PROTOCOLS
from .scoring.distributed import Processes
from .scoring.runner import Progress

FIELDS = ("protocol", "max_length", "stride", "add_start_token", "layout", "average")
ROUNDING = 2e-6  # relative rounding error of a loss in single precision

TOKENS_READ = 40  # default budget per token of the texts
FEWEST_READ = 200_000  # minimum of the default budget, for short texts
CERTAIN = 0.01  # a match ends the search if fewer matches are expected by chance
NEIGHBOURHOOD = 1.1  # values within this factor of a figure determine their density
NUM_NEAREST = 5

# Windows in tokens; strides as parts of the window, and in tokens.
WINDOWS, PARTS, STRIDES = (512, 1024, 2048, 4096), (1, 2, 4, 8), (512, 256)
OVERLAPS = (1, 2, 8)  # bounds of the windows per token, which separate passes by cost
TOOLS = {
    **{"lm-eval": 1.0, "llama.cpp": 1.0, "gptq": 1.0, "stock": 0.9, "run-clm": 0.8},
    **{"transformers-docs": 0.9, "transformers-docs-weighted": 0.9, "sliding": 0.7},
}
OTHER_TOOL, OTHER_WINDOW, WINDOW_AS_STRIDE, OTHER_STRIDE = 0.5, 0.4, 0.8, 0.4
STARTS: dict[bool | str, float] = {True: 1.0, False: 0.6, "every": 0.2}
# Layouts that are detokenized too: by a tool that does so, and by us, beside the layout's weight.
DETOKENIZED = ("as-is", "joined", "each-article")
DETOKENIZED_BY_TOOL, DETOKENIZED_BY_US = 2.0, 0.1
# Averages, with their weights for tools that do not print them.
AVERAGES = {
    **{"perplexity": 0.4, "mean_perplexity": 0.3, "word_perplexity": 0.3, "byte_perplexity": 0.1},
    **{"bits_per_byte": 0.3, "bits_per_original_byte": 0.2, "original_byte_perplexity": 0.1},
    **{"bits_per_character": 0.2, "adjusted_perplexity": 0.2, "nats_per_token": 0.3},
    **{"bits_per_token": 0.1, "trainer_nats_per_token": 0.5, "trainer_perplexity": 0.5},
}
# Averages that a tool prints, whose weight is 1; only the perplexity by default.
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
COUNT_ALL_LABELS = (
    "run-clm",
)  # tools that may count the first label of a block, which is unscored
# Decimals that tools print, and the factor by which matching decimals increase the likelihood.
DECIMALS = {"llama.cpp": 4, "lm-eval": 4, "run-clm": 4, "exllamav2": 4, "mlx-lm": 3}
SAME_DECIMALS = 3.0


def find(
    figure: float | str | Sequence[float | str],
    texts: Sequence[str | Sequence[str]],
    model_id: str | Sequence[str] | None = None,
    model: torch.nn.Module | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    max_tokens: int | None = None,
    files: Sequence[Sequence[str]] | None = None,
    callback: Callable[[Progress], None] | None = None,
    dtype: str | torch.dtype | None = None,
    device: str | torch.device | None = None,
    batch_size: int = 16,
    model_kwargs: dict | None = None,
) -> dict:
    """Find the settings under which a model has a published figure on texts.

    Score the texts under every protocol, with the usual windows, strides, start tokens, layouts and
    averages: the unchanged texts first, then the likeliest and cheapest, and return the settings
    whose value rounds to the figure.  A match is not proof: see `expected_by_chance`.

    Args:
        figure: the figure as printed; a string keeps trailing zeros ("37.50").  One setting must
            explain all figures of a list: one per text, or one per model.
        texts: the corpus; with several figures of one model, a text or a list of texts per figure.
        model_id: the model; with several figures of the same texts, a model per figure.
        max_tokens: number of tokens that the model may read, with which everything is tried.  By
            default 40 per token of the texts, at least 200,000; the search then also ends with a
            match if fewer than 0.01 are expected by chance.
        files: for each figure, the arguments that select its texts in the returned commands.
        callback: called with the progress after every batch; its perplexity is NaN.
        model, tokenizer, dtype, device, batch_size, model_kwargs: as for `compute`.

    Returns:
        figure: as given.
        matches: the values that round to the figure, likeliest first, each with its protocol,
            max_length, stride, add_start_token, layout, average, value, likelihood (its share of the
            weights of all matches), command, and `same_value`, the other settings that give it.
            With several figures, value and command are lists.
        nearest: the settings with the nearest other values, each with its difference from the figure.
        num_tried, expected_by_chance: number of values compared with the figure, and of those
            expected to match by chance, from the density of values.
        num_forward_tokens: number of tokens read by the model.
        not_tried: omitted passes, each with its layout, num_settings and num_forward_tokens.
        conclusion: an assessment of the matches, in one sentence.

    Raises:
        TypeError, ValueError: a figure is not positive, the numbers of figures and texts or models
            differ, or as for `compute`.
    """
    figures = list(map(Figure.read, figure if isinstance(figure, list | tuple) else [figure]))
    models = list(model_id) if isinstance(model_id, list | tuple) else [model_id]
    if isinstance(texts, str):
        raise ArgumentTypeError("texts", "be a list of strings", got="str")
    per_model = len(models) > 1 or len(figures) == 1
    corpora: Sequence[Any] = [texts] * len(figures) if per_model else texts
    num, name = (len(models), "model") if per_model else (len(texts), "text")
    if not figures or num != len(figures):
        got = f"{len(figures)} figures and {num} {name}s"
        raise ArgumentError("figure", f"have one number, or one per {name}", got=got)
    running: dict = {"model": model, "tokenizer": tokenizer, "model_kwargs": model_kwargs}
    running |= {"dtype": dtype, "device": device, "batch_size": batch_size}
    opened = []
    for one in models:
        given = {"predictions": ["a text"], "model_id": one, **running}
        opened.append(check(Processes(False), given).source.open())
        with in_use_together(opened[-1:]):
            opened[-1].check()
    cases = [
        Case(
            figure=figures[place],
            source={"model_id": models[place % len(models)], **running},
            model=opened[place % len(models)],
            texts=[corpus] if isinstance(corpus, str) else list(corpus),
            files=["FILE"] if files is None else files[place],
        )
        for place, corpus in enumerate(corpora)
    ]
    search = Search(cases, max_tokens, callback)
    search.run()
    matches, nearest = list_matches(search), list_nearest(search)
    for entry in [] if isinstance(figure, list | tuple) else matches + nearest:
        entry |= {name: entry[name][0] for name in ("value", "command")}
    expected = chance(search.tried, figures)
    return {
        "figure": figure,
        "matches": matches,
        "nearest": nearest,
        "num_tried": len(search.tried),
        "expected_by_chance": expected,
        "num_forward_tokens": search.num_read,
        "not_tried": search.left_out,
        "conclusion": describe(search, len(matches), expected),
    }


class Figure(NamedTuple):
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
        """Parse a figure; a string keeps its trailing zeros."""
        try:
            number = Decimal(str(figure).strip())
        except InvalidOperation:
            number = Decimal("nan")
        if number.is_nan() or not 1e-9 <= number <= 1e38:
            must = "be a number such as '29.41', as printed, from 1e-9 to 1e38"
            raise ArgumentError("figure", must, got=repr(figure))
        rounding = float(number) * ROUNDING * max(1.0, abs(math.log(float(number))))
        decimals = -int(number.as_tuple().exponent)
        half = max(Decimal((0, (5,), -decimals - 1)), Decimal(rounding))
        return cls(str(figure).strip(), float(number - half), float(number + half), decimals)

    @property
    def value(self) -> float:
        return (self.low + self.high) / 2

    def fits(self, value: float) -> bool:
        return self.low <= value < self.high

    def distance(self, value: float) -> float:
        return abs(math.log(value / self.value))


# --- what to try ----------------------------------------------------------------------------------


@dataclass
class Case:
    """A figure with its model and texts.

    Attributes:
        source: the arguments of `compute` that select the model.
        files: the command-line arguments that select the texts.
    """

    figure: Figure
    source: dict
    model: ScoredModel
    texts: list[str]
    files: Sequence[str]
    corpora: dict[tuple, Corpus] = field(default_factory=dict)

    def corpus(self, texts: list[str], layout: str = "as-is", detokenizes: bool = False) -> Corpus:
        """Return these texts in a layout with their tokens, which all settings share."""
        texts, detokenizer = arrange(texts, layout), "wikitext" if detokenizes else None
        corpus = Corpus(self.model.tokenizer, texts, False, detokenizer=detokenizer)
        return self.corpora.setdefault((detokenizer, *texts), corpus)

    def plan(self, corpus: Corpus, settings: Iterable[Setting]) -> dict[Setting, Measurement]:
        """Plan the settings that the texts and the model allow."""
        try:
            planned = plan_settings(corpus, self.model.limit, list(settings), True)
        except ValueError:  # all are refused
            return {}
        return {s: m for s, m in planned.items() if isinstance(m, Measurement)}

    def cost(self, measurements: Iterable[Measurement]) -> int:
        """Count the tokens that the merged passes of measurements read."""
        numbers: dict[bytes, int] = {}
        planned: list = []
        for measurement in measurements:
            for stream, windows in zip(measurement.streams, measurement.windows):
                number = numbers.setdefault(stream.ids.tobytes(), len(numbers))
                planned += measurement.plan.over(number, windows)
        return count_inputs(merge_windows(planned, self.model.prefixes_agree)[0])

    def score(self, corpus: Corpus, settings: Iterable[Setting], callback: Callable) -> dict:
        """Return the result of `compute` with a measurement for each setting."""
        given = {"detokenizer": corpus.detokenizer, "callback": callback}
        processes, models = Processes(False), [self.model]
        request = check(processes, {"predictions": corpus.texts, **self.source, **given})
        request = replace(request, settings=list(settings), gives_list=True)
        with open_session(request, processes) as session, in_use_together([self.model]):
            plan = make_plan(request, models, corpus)
            return report(plan, *score(session, plan, models))


class Step(NamedTuple):
    """Settings, with their weights, that are scored in one pass over the texts of each case."""

    layout: str
    detokenizes: bool
    settings: dict[Setting, float]
    num_tokens: int
    is_plain: bool  # unchanged texts, the tool's own window, and a usual part of it as stride


def list_steps(cases: list[Case]) -> list[Step]:
    """List the steps: plain ones first, each by the weight of its settings per token."""
    limits = [limit for case in cases if (limit := case.model.limit.length) is not None]
    choices = list_choices(min(limits, default=None))
    of_wikitext = any(is_wikitext(case.texts) for case in cases)
    steps: list[Step] = []
    seen: set[tuple] = set()  # two layouts may be one to a protocol that joins the texts
    for (layout, row), detokenizes in product(LAYOUTS.items(), (False, True)):
        usual = row.usual_for_wikitext if of_wikitext else row.usual
        is_read = not detokenizes or (of_wikitext and layout in DETOKENIZED)
        if not usual or not is_read or not all(arrange(case.texts, layout) for case in cases):
            continue
        corpora = [case.corpus(case.texts, layout, detokenizes) for case in cases]
        planned = [case.plan(corpus, choices) for case, corpus in zip(cases, corpora)]
        groups: dict[tuple, dict[Setting, float]] = {}
        for setting in choices:
            protocol, measurements = setting.protocol, [of.get(setting) for of in planned]
            plans = [m.plan for m in measurements if m is not None]
            read = [tuple(map(tuple, m.members or [m.texts])) for m in measurements if m]
            if len(plans) < len(cases) or (*plans, *read) in seen:
                continue
            seen.add((*plans, *read))
            plan, has_own_window = plans[0], setting.max_length is None
            has_usual_stride = plan.stride in [plan.max_length // part for part in PARTS]
            is_plain = has_own_window and (setting.stride is None or has_usual_stride)
            is_plain = is_plain and layout == "as-is" and not detokenizes
            overlap = max(plan.max_length / plan.stride for plan in plans)
            level = sum(overlap > bound for bound in OVERLAPS)
            weight = usual
            if detokenizes:
                weight = DETOKENIZED_BY_TOOL if protocol.detokenizes else usual * DETOKENIZED_BY_US
            weight *= TOOLS.get(protocol.name, OTHER_TOOL) * STARTS[setting.add_start_token]
            weight *= 1.0 if has_own_window else OTHER_WINDOW
            if setting.stride is not None:
                weight *= WINDOW_AS_STRIDE if plan.stride == plan.max_length else OTHER_STRIDE
            groups.setdefault((plan.start, level, is_plain), {})[setting] = weight
        for (*_, is_plain), settings in groups.items():
            cost = sum(case.cost(of[s] for s in settings) for case, of in zip(cases, planned))
            steps.append(Step(layout, detokenizes, settings, cost, is_plain))
    if not steps:
        raise ArgumentError("texts", "be long enough to score", got="texts of fewer than 2 tokens")
    return sorted(steps, key=lambda s: (not s.is_plain, -sum(s.settings.values()) / s.num_tokens))


def list_choices(limit: int | None) -> list[Setting]:
    """List the usual settings that the protocols' tools have, each tool's own first."""
    choices = []
    windows = [None, *(length for length in WINDOWS if limit is None or length <= limit)]
    for start, protocol, window in product(STARTS, PROTOCOLS.values(), windows):
        length = window or limit or 0
        usual = {length // part for part in PARTS} | {n for n in STRIDES if n <= length}
        for stride in [None, *sorted(usual - {0}, reverse=True)]:
            setting = Setting(protocol, window, stride, start)
            with suppress(ValueError):  # the tool has no such setting
                setting.check()
                choices.append(setting)
    return sorted(choices, key=lambda s: (s.max_length or 0, s.stride or 0))


# --- the search -----------------------------------------------------------------------------------


@dataclass
class Search:
    """Passes in order of their worth, until a match is certain or the budget is spent.

    Attributes:
        tried: an entry for each setting and average, with its value for each figure.
    """

    cases: list[Case]
    max_tokens: int | None = None
    callback: Callable[[Progress], None] | None = None
    tried: list[dict] = field(default_factory=list)
    left_out: list[dict] = field(default_factory=list)
    num_read: int = 0

    def run(self) -> None:
        steps = list_steps(self.cases)
        corpora = [case.corpus(case.texts) for case in self.cases]
        streams = [stream for corpus in corpora for stream in corpus.read(PROTOCOLS["sliding"])[1]]
        num_tokens = sum(map(len, streams))
        budget = self.max_tokens or max(FEWEST_READ, TOKENS_READ * num_tokens)
        self.total = min(budget, sum(step.num_tokens for step in steps))
        for number, step in enumerate(steps):
            if self.num_read + step.num_tokens > budget:
                self.leave_out(step)
                continue
            self.tried += self.score(step)
            may_end = self.max_tokens is None and any(map(self.is_match, self.tried))
            if may_end and chance(self.tried, self.figures) < CERTAIN:
                list(map(self.leave_out, steps[number + 1 :]))
                break
        if not self.tried:
            cheapest = min(step.num_tokens for step in steps)
            must = f"be at least {cheapest}, the tokens of the cheapest pass"
            raise ArgumentError("max_tokens", must, got=str(budget))

    def leave_out(self, step: Step) -> None:
        known = {"layout": step.layout, "num_settings": len(step.settings)}
        self.left_out.append(known | {"num_forward_tokens": step.num_tokens})

    @property
    def figures(self) -> list[Figure]:
        return [case.figure for case in self.cases]

    def is_match(self, entry: dict) -> bool:
        return all(figure.fits(value) for figure, value in zip(self.figures, entry["value"]))

    def score(self, step: Step) -> list[dict]:
        """Score a step on the texts of each case; return an entry for each setting and average."""

        def callback(progress: Progress) -> None:
            if self.callback is not None:
                done = min(self.total, self.num_read + progress.done)
                self.callback(Progress(done, self.total, math.nan))

        results, averages = [], []
        for case in self.cases:
            corpus = case.corpus(case.texts, step.layout, step.detokenizes)
            result = case.score(corpus, step.settings, callback)
            self.num_read += result["num_forward_tokens"]
            results.append(result["measurements"])
            averages.append([averages_of(one, corpus) for one in results[-1]])
        entries = []
        for (setting, weight), of_cases, values in zip(
            step.settings.items(), zip(*results), zip(*averages)
        ):
            protocol = setting.protocol
            known: dict = {"protocol": protocol.name}
            for name in ("max_length", "stride", "add_start_token"):
                own = [result[name] for result in of_cases]
                known[name] = own[0] if all(value == own[0] for value in own) else own
            known["layout"] = step.layout + ", detokenized" * step.detokenizes
            known["command"] = [write_command(case, step, setting) for case in self.cases]
            for average in values[0]:
                value = [of_case.get(average, math.nan) for of_case in values]
                if all(0 < one < math.inf for one in value):
                    is_printed = average in PRINTED.get(protocol.name, ("perplexity",))
                    prior = weight * (1.0 if is_printed else AVERAGES[average])
                    of_average = {"average": average, "value": value}
                    entries.append(known | of_average | {"prior": prior, "is_printed": is_printed})
        return entries


def averages_of(result: dict, corpus: Corpus) -> dict[str, float]:
    """Return the values of a result that a paper could print."""
    protocol, perplexity = PROTOCOLS[result["protocol"]], result["perplexity"]
    known = result | {"nats_per_token": math.log(perplexity)}
    known["bits_per_token"] = math.log2(perplexity)
    if corpus.detokenizer is not None:
        per_byte = known.pop("bits_per_byte")  # of the prose, which no tool reports
        del known["bits_per_character"]
        if protocol.scores_each_text:  # the command line counts no bytes of joined texts
            read, given = ("".join(of).encode() for of in (corpus.wordings, corpus.texts))
            known["bits_per_original_byte"] = per_byte * len(read) / len(given)
    for unit in ("byte", "original_byte"):
        bits = known.get(f"bits_per_{unit}")
        if bits is not None and bits < 1024:  # else it would leave the range of floats
            known[f"{unit}_perplexity"] = 2.0**bits
    if protocol.name in COUNT_ALL_LABELS:
        # `Trainer.evaluate` does so in transformers from 4.57 until 2026, and still for models such as
        # GPT-2, whose loss it does not recognise as shifted.
        loss = math.log(perplexity) * (result["max_length"] - 1) / result["max_length"]
        known |= {"trainer_nats_per_token": loss, "trainer_perplexity": math.exp(loss)}
    return {name: known[name] for name in AVERAGES if known.get(name) is not None}


def write_command(case: Case, step: Step, setting: Setting) -> str:
    """Return the command that repeats a setting."""
    before, files, source = "", case.files, case.source
    if step.layout != "as-is":
        lay_out = ["python", "-m", "perplexity_sliding.cli.searching", step.layout, *files]
        before, files = f"{shlex.join(lay_out)} > laid-out.jsonl && ", ["laid-out.jsonl"]
    dtype = source["dtype"]
    given = {
        "--model": source["model_id"],
        "--dtype": None if dtype is None else str(dtype).removeprefix("torch."),
        "--protocol": setting.protocol.name,
        "--max-length": setting.max_length,
        "--stride": setting.stride,
        "--add-start-token": {False: "false", "every": "every"}.get(setting.add_start_token),
        "--detokenize": "wikitext" if step.detokenizes else None,
        "--format": "json",
    }
    options = [str(part) for pair in given.items() if pair[1] is not None for part in pair]
    return before + shlex.join(["python", "score.py", *files, *options])


def chance(tried: list[dict], figures: list[Figure]) -> float:
    """Return the expected number of matches by chance.

    This assumes that values around each figure are uniform on a logarithmic scale, and that figures
    of several texts are independent, which is only approximate for those of one setting.
    """
    # those that differ in their first eight digits
    rows = {tuple(float(f"{value:.8g}") for value in entry["value"]) for entry in tried}
    expected = float(len(rows))
    for place, figure in enumerate(figures):
        values = {row[place] for row in rows}
        around = [v for v in values if figure.distance(v) <= math.log(NEIGHBOURHOOD)]
        width = math.log(figure.high / max(figure.low, figure.value / 100))
        share = len(around) / len(values) * width / (2 * math.log(NEIGHBOURHOOD))
        expected *= min(1.0, share)
    return expected


# --- the result -----------------------------------------------------------------------------------


def list_matches(search: Search) -> list[dict]:
    """List the matching values, likeliest first; a tool that prints the average precedes others."""

    decimals = {figure.decimals for figure in search.figures}
    found = list(filter(search.is_match, search.tried))
    for entry in found:
        if DECIMALS.get(entry["protocol"]) in decimals:
            entry["prior"] *= SAME_DECIMALS
    groups: dict[tuple, list[dict]] = {}  # of values that are equal but for rounding
    for entry in found:
        groups.setdefault(tuple(f"{value:.6g}" for value in entry["value"]), []).append(entry)
    total, rows = sum(entry["prior"] for entry in found), []
    for group in groups.values():
        first, *others = sorted(group, key=lambda e: (not e["is_printed"], -e["prior"]))
        same = [{name: other[name] for name in FIELDS} for other in others]
        likelihood = sum(entry["prior"] for entry in group) / total
        rows.append(shown(first) | {"likelihood": likelihood, "same_value": same})
    return sorted(rows, key=lambda row: -row["likelihood"])


def shown(entry: dict) -> dict:
    return {name: entry[name] for name in (*FIELDS, "value", "command")}


def list_nearest(search: Search) -> list[dict]:
    """List the nearest other values, each with its difference from the figures."""
    others, figures = [e for e in search.tried if not search.is_match(e)], search.figures
    others.sort(key=lambda e: max(map(Figure.distance, figures, e["value"])))
    nearest = []
    for entry in others[:NUM_NEAREST]:
        ratios = [value / figure.value - 1 for figure, value in zip(figures, entry["value"])]
        apart = ", ".join(f"{100 * ratio:+.2f} %" for ratio in ratios)
        nearest.append(shown(entry) | {"difference": apart})
    return nearest


def describe(search: Search, num_matches: int, expected: float) -> str:
    """Assess the matches, or say why nothing matches."""
    tried, figures = search.tried, search.figures
    by_chance = f"{expected:.2g} of {len(tried):,} values would match by chance."
    if num_matches > 1:
        by_chance += " Several values match: more figures from the same source can decide."
    if num_matches:
        return by_chance
    left = "a setting not tried (--max-tokens N tries more), " if search.left_out else ""
    if len(figures) > 1:
        return f"No setting tried explains all figures: {left}or figures of different settings."
    ppls = [entry["value"][0] for entry in tried if entry["average"] == "perplexity"]
    place = f"perplexities per token are from {min(ppls):.4g} to {max(ppls):.4g}"
    rest = "another unit, layout or split of the text, precision or model"
    return f"No setting tried rounds to {figures[0].printed}; {place}: {left}{rest}. {by_chance}"
