"""From a published figure to the settings that give it."""

import math
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal, InvalidOperation

import torch
from transformers import PreTrainedTokenizerBase

from .api import check, report_request, score_request, with_defaults
from .arguments import Setting, check_setting, check_whole_number
from .engines.sources import in_use_together
from .errors import ArgumentError, ArgumentTypeError
from .layouts import LAYOUTS, arrange
from .models.interface import ScoredModel
from .plan.measurement import Measurement
from .plan.settings import Corpus, plan_settings
from .plan.windows import PlannedWindow, count_inputs, merge_windows
from .protocols import PROTOCOLS, Protocol
from .request import Request
from .scoring.checkpoint import open_checkpoint
from .scoring.distributed import Processes
from .scoring.runner import Progress, Session

WINDOWS = (512, 1024, 2048, 4096)
STRIDES = (512, 256, 128, 64, 32)
# How usual a choice is beside the most usual one.  These are judgements, not measurements.
TOOLS = {
    **{"lm-eval": 1.0, "llama.cpp": 1.0, "gptq": 1.0, "stock": 0.9},
    **{"transformers-docs": 0.9, "transformers-docs-weighted": 0.9, "sliding": 0.7},
}
OTHER_TOOL, OTHER_WINDOW, OTHER_STRIDE = 0.5, 0.4, 0.4
STARTS = {True: 1.0, False: 0.6, "every": 0.2}
# The keys of a result that are averages, and how usual each is where it is not the tool's own.
AVERAGES = {
    "perplexity": 1.0,
    "mean_perplexity": 0.3,
    "word_perplexity": 0.3,
    "byte_perplexity": 0.1,
    "bits_per_byte": 0.3,
    "bits_per_original_byte": 0.3,
    "bits_per_character": 0.2,
}
OWN_AVERAGE = {"stock": "mean_perplexity", "lm-eval": "word_perplexity"}
# Of the perplexity's logarithm: no key of a result.
LOSSES = {"nats_per_token": (1.0, 0.3), "bits_per_token": (math.log(2), 0.1)}
TOKENS_READ = 40  # by default, for each token of the texts
CERTAIN = 0.01  # matches expected by chance, below which a match ends the search
NUM_NEAREST = 5
NEIGHBOURHOOD = 1.1  # the factor around a figure within which values are counted
FIELDS = ("protocol", "max_length", "stride", "add_start_token", "layout", "average")


@dataclass(frozen=True)
class Figure:
    """A number as printed, and the interval [low, high) that rounds to it."""

    printed: str
    low: float
    high: float

    @classmethod
    def read(cls, figure: object) -> "Figure":
        """Read a figure; a string keeps the zeros at its end.

        Raises:
            TypeError, ValueError: it is no positive number.
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
                advice="Write it as it is printed.",
            )
        half = Decimal((0, (5,), number.as_tuple().exponent - 1))
        return cls(str(figure).strip(), float(number - half), float(number + half))

    @property
    def value(self) -> float:
        return (self.low + self.high) / 2

    def fits(self, value: float) -> bool:
        """Return whether a value rounds to the figure."""
        return self.low <= value < self.high

    def distance(self, value: float) -> float:
        """Return how far a value lies from the figure, as the logarithm of their ratio."""
        return abs(math.log(value / self.value)) if value > 0 else math.inf


@dataclass(frozen=True)
class Step:
    """Settings that are scored in one pass over each corpus.

    Attributes:
        texts: of each corpus, in the step's layout.
        start: `add_start_token`.
        settings: those that every corpus can be scored with.
        num_tokens: read by the merged passes.
        prior: of its likeliest setting.
        originals: where the tool turns the texts into prose, what they were.
    """

    layout: str
    texts: list[list[str]]
    start: bool | str
    settings: list[Setting]
    num_tokens: int
    prior: float
    originals: list[list[str]] | None = None


def find(
    figure: float | str | Sequence[float | str],
    texts: Sequence[str],
    model_id: str | None = None,
    model: torch.nn.Module | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    max_tokens: int | None = None,
    files: Sequence[str] | None = None,
    callback: Callable[[Progress], None] | None = None,
    **arguments: object,
) -> dict:
    """Find the settings under which a model has a published figure on texts.

    Scores the texts under every protocol, with the windows, strides, start tokens, layouts and
    averages that people use, likeliest first, and returns those whose value rounds to
    the figure.  A match is no proof: compare `expected_by_chance`.

    Args:
        figure: as printed; a string keeps zeros at its end ("37.50").  With several, one setting
            must explain all: the first figure on the first text, and so on.
        texts: the corpus; with several figures, as many texts as figures.
        max_tokens: tokens that the model may read for it.  By default 40 for each of the texts,
            and the search ends with a match where fewer than 0.01 are expected by chance.
        files: names of the texts' files, for the commands.
        callback: as that of `compute`; called for each pass over a corpus.
        arguments: `dtype`, `device`, `batch_size` and others of `compute` that say how the model
            is loaded and run.

    Returns:
        figure: as given.
        matches: settings whose value rounds to the figure, likeliest first, each with protocol,
            max_length, stride, add_start_token, layout, average, value, likelihood (its share of
            that of all matches, from how usual the settings are) and the command that repeats it.
            With several figures, value and command are lists.
        nearest: settings that do not match, each with its difference to the likeliest match.
        num_tried: values that were compared with the figure.
        expected_by_chance: settings that would match if values lay anywhere around the figure.
        num_forward_tokens: tokens that the model has read.
        not_tried: passes that were left out, with the tokens that each would read.
        conclusion: one sentence on what that means.

    Raises:
        TypeError, ValueError: a figure is not positive, texts and figures do not pair, or as
            `compute`.
    """
    several = isinstance(figure, list | tuple)
    figures = [Figure.read(one) for one in (figure if several else [figure])]
    corpora = pair_texts(figures, texts)
    if max_tokens is not None:
        check_whole_number("max_tokens", max_tokens, 1)
    unknown = set(arguments) - {"dtype", "device", "batch_size", "logits_memory", "model_kwargs"}
    if unknown:
        raise TypeError(
            f"find() takes no argument {sorted(unknown)[0]!r}: it tries all protocols, windows, "
            "strides and start tokens itself."
        )
    source = {"model_id": model_id, "model": model, "tokenizer": tokenizer, **arguments}
    scorer = Scorer(source, callback)
    steps = list_steps(scorer, corpora)
    budget = max_tokens or TOKENS_READ * scorer.count_tokens(corpora)
    names = list(files) if files is not None else ["FILE"] * len(texts)
    named = [[name] for name in names] if several else [names]
    commands = Commands(named, model_id, arguments.get("dtype"))
    tried: list[dict] = []
    left_out, num_read = [], 0
    for number, step in enumerate(steps):
        if num_read + step.num_tokens > budget:
            left_out.append(step)
            continue
        tried += score_step(scorer, step, commands)
        num_read += step.num_tokens
        has_match = any(is_match(one, figures) for one in tried)
        if max_tokens is None and has_match and chance(tried, figures) < CERTAIN:
            left_out += steps[number + 1 :]
            break
    if not tried:
        raise ArgumentError(
            "max_tokens",
            f"be at least {min(step.num_tokens for step in steps)}, the tokens of the cheapest pass",
            got=str(budget),
        )
    return conclude(figure, figures, tried, left_out, num_read)


def pair_texts(figures: list[Figure], texts: object) -> list[list[str]]:
    """Return the texts of each figure.

    Raises:
        TypeError, ValueError: there are none, or not one for each of several figures.
    """
    if isinstance(texts, str) or not isinstance(texts, Sequence):
        raise ArgumentTypeError("texts", "be a list of strings", got=type(texts).__name__)
    if not figures:
        raise ArgumentError("figure", "name at least one figure", got="an empty list")
    if not any(isinstance(text, str) and text.strip() for text in texts):
        raise ArgumentError("texts", "have at least one text that is not blank", got="none")
    if len(figures) == 1:
        return [list(texts)]
    if len(figures) != len(texts):
        raise ArgumentError(
            "figure",
            "name one figure for each text, or a single one for all",
            got=f"{len(figures)} figures and {len(texts)} texts",
        )
    return [[text] for text in texts]


# --- plan -----------------------------------------------------------------------------------------


class Scorer:
    """A model that stays open, and scores any list of settings in one pass."""

    def __init__(self, source: dict, callback: Callable | None) -> None:
        self.arguments = source | {"callback": callback}
        self.processes = Processes(False)
        _, checked, _ = check(
            self.processes, with_defaults({"predictions": ["a text"], **self.arguments})
        )
        self.model: ScoredModel = checked.open()
        with in_use_together([self.model]):
            self.model.prepare()

    def count_tokens(self, corpora: list[list[str]]) -> int:
        """Count the tokens of the texts."""
        read = [self.corpus(texts).read(PROTOCOLS["sliding"], None)[1] for texts in corpora]
        return sum(len(stream) for streams in read for stream in streams)

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
        planned = []
        for measurement in measurements:
            start_id = measurement.plan.start_id
            for stream, windows in zip(measurement.streams, measurement.windows):
                number = numbers.setdefault(stream.ids.tobytes(), len(numbers))
                planned += [
                    PlannedWindow(number, window, start_id if window.start_token else None)
                    for window in windows
                ]
        return count_inputs(merge_windows(planned, self.model.prefixes_agree)[0])

    def score(self, texts: list[str], settings: list[Setting], **others: object) -> list[dict]:
        """Return the result of each setting."""
        asked = with_defaults({"predictions": texts, **self.arguments, **others})
        request, _, _ = check(self.processes, asked)
        request: Request = replace(request, settings=settings, gives_list=True)
        with open_checkpoint(None) as store:
            sizes = int(asked["batch_size"]), int(asked["logits_memory"])
            session = Session(*sizes, store, self.processes, asked["callback"])
            scored = score_request(session, [self.model], request)
            return report_request(request, scored, session, lambda: self.model)["measurements"]


def list_steps(scorer: Scorer, corpora: list[list[str]]) -> list[Step]:
    """List what to score: the likeliest first, of equally likely ones the cheapest.

    Raises:
        ValueError: no setting can score the texts.
    """
    steps: list[Step] = []
    seen: set[tuple] = set()
    for layout in LAYOUTS:
        texts = [arrange(own, layout) for own in corpora]
        key = tuple(map(tuple, texts))
        if key in seen or not all(texts):
            continue
        seen.add(key)
        for start in STARTS:
            steps += split_steps(scorer, layout, texts, start, list(PROTOCOLS.values()))
        if layout in ("as-is", "each-article"):
            steps += detokenizing_steps(scorer, layout, texts)
    if not steps:
        raise ArgumentError("texts", "be long enough to score", got="texts of fewer than 2 tokens")
    return sorted(steps, key=lambda step: (-step.prior, step.num_tokens))


def detokenizing_steps(scorer: Scorer, layout: str, texts: list[list[str]]) -> list[Step]:
    """List the steps of tools that turn WikiText into prose, and count the words of what it was."""
    steps = []
    for protocol in PROTOCOLS.values():
        if protocol.detokenize is not None:
            prose = [[protocol.detokenize(text) for text in own] for own in texts]
            if prose != texts:
                found = split_steps(scorer, layout, prose, True, [protocol])
                steps += [replace(step, originals=texts) for step in found]
    return steps


def split_steps(
    scorer: Scorer,
    layout: str,
    texts: list[list[str]],
    start: bool | str,
    protocols: list[Protocol],
) -> list[Step]:
    """Return a step of the settings that read a text about once or twice, and of the costly ones."""
    settings = list_choices(scorer, protocols, start)
    planned = [scorer.plan(own, settings) for own in texts]
    groups: dict[tuple[bool, bool], dict[tuple, Setting]] = {}
    for setting in settings:
        if all(setting in own for own in planned):
            plan = planned[0][setting].plan
            others = [own[setting].plan for own in planned]
            if any((o.max_length, o.stride) != (plan.max_length, plan.stride) for o in others):
                continue  # one setting must explain all
            is_costly = plan.max_length > 4 * plan.stride
            is_own = setting.max_length is None and setting.stride is None
            key = (plan.protocol.name, plan.max_length, plan.stride, plan.start)
            if not any(key in group for group in groups.values()):
                groups.setdefault((is_costly, is_own), {})[key] = setting
    return [
        Step(
            layout,
            texts,
            start,
            list(group.values()),
            sum(scorer.cost([own[s] for s in group.values()]) for own in planned),
            max(prior_of(setting) for setting in group.values()) * LAYOUTS[layout][1],
        )
        for group in groups.values()
    ]


def list_choices(scorer: Scorer, protocols: list[Protocol], start: bool | str) -> list[Setting]:
    """List the settings that people use, those that a tool has by itself first."""
    limit = scorer.model.limit.length
    windows = [None, *(length for length in WINDOWS if limit is None or length <= limit)]
    choices = []
    for protocol in protocols:
        for window in windows:
            length = window or limit
            strides = [None]
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


def prior_of(setting: Setting) -> float:
    """Return how usual a setting is."""
    usual = TOOLS.get(setting.protocol.name, OTHER_TOOL) * STARTS[setting.add_start_token]
    usual *= 1.0 if setting.max_length is None else OTHER_WINDOW
    return usual * (1.0 if setting.stride is None else OTHER_STRIDE)


# --- score ----------------------------------------------------------------------------------------


def score_step(scorer: Scorer, step: Step, commands: "Commands") -> list[dict]:
    """Score a step; return an entry for each setting and average, with a value for each figure."""
    of_corpora = [score_corpus(scorer, step, number) for number in range(len(step.texts))]
    entries = []
    for setting, *results in zip(step.settings, *of_corpora):
        averaged = [averages_of(result) for result in results]
        for average in averaged[0]:
            values = [of_corpus.get(average) for of_corpus in averaged]
            if all(value is not None and math.isfinite(value) for value in values):
                layout = step.layout + (", detokenized by the tool" if step.originals else "")
                usual = prior_of(setting) * LAYOUTS[step.layout][1]
                entries.append(
                    {
                        "protocol": setting.protocol.name,
                        "max_length": results[0]["max_length"],
                        "stride": results[0]["stride"],
                        "add_start_token": results[0]["add_start_token"],
                        "layout": layout,
                        "average": average,
                        "values": values,
                        "prior": usual * prior_of_average(setting.protocol.name, average),
                        "commands": commands.of(step, setting),
                    }
                )
    return entries


def score_corpus(scorer: Scorer, step: Step, number: int) -> list[dict]:
    """Return the results of a step's settings on one corpus."""
    texts = step.texts[number]
    if step.originals is None:
        return scorer.score(texts, step.settings)
    originals, protocol = step.originals[number], step.settings[0].protocol
    results = scorer.score(
        texts,
        step.settings,
        word_counts=[protocol.count_words(text) for text in originals],
        detokenizer=protocol.detokenize.__name__,
    )
    if not protocol.scores_each_text:  # the command line counts no bytes of joined texts
        return [{k: v for k, v in r.items() if k not in PER_BYTE} for r in results]
    ratio = num_bytes(texts) / num_bytes(originals)
    return [
        {k: v for k, v in r.items() if k not in PER_BYTE}
        | {"bits_per_original_byte": r["bits_per_byte"] * ratio}
        for r in results
    ]


# Of the prose, which such a tool does not report.
PER_BYTE = ("byte_perplexity", "bits_per_byte", "bits_per_character")


def num_bytes(texts: list[str]) -> int:
    return sum(len(text.encode("utf-8")) for text in texts)


def averages_of(result: dict) -> dict[str, float]:
    """Return the values of a result that a paper may print."""
    values = {key: result[key] for key in AVERAGES if result.get(key) is not None}
    loss = math.log(values["perplexity"])
    return values | {name: loss / unit for name, (unit, _) in LOSSES.items()}


def prior_of_average(protocol: str, average: str) -> float:
    """Return how usual an average is for a protocol's tool."""
    if average == OWN_AVERAGE.get(protocol):
        return 1.0
    usual = LOSSES[average][1] if average in LOSSES else AVERAGES[average]
    return usual * (0.5 if protocol in OWN_AVERAGE else 1.0)


class Commands:
    """Writes the command that repeats a setting alone.

    Args:
        files: of each corpus.
        model_id: None for a live model or that of the command line.
    """

    def __init__(self, files: list[list[str]], model_id: str | None, dtype: object) -> None:
        self.files = files
        self.options = [] if model_id is None else ["--model", str(model_id)]
        self.options += [] if dtype is None else ["--dtype", str(dtype).removeprefix("torch.")]

    def of(self, step: Step, setting: Setting) -> list[str]:
        """Return the command for each corpus; it prints the value under the average's name."""
        given = {
            "--protocol": setting.protocol.name,
            "--max-length": setting.max_length,
            "--stride": setting.stride,
            "--add-start-token": {False: "false", "every": "every"}.get(setting.add_start_token),
            "--detokenize": "wikitext" if step.originals else None,
        }
        options = [str(part) for pair in given.items() if pair[1] is not None for part in pair]
        commands = []
        for files in self.files:
            before = ""
            if step.layout != "as-is":
                lay_out = ["python", "-m", "perplexity_sliding.layouts", step.layout, *files]
                before, files = f"{shlex.join(lay_out)} > laid-out.jsonl && ", ["laid-out.jsonl"]
            command = ["python", "score.py", *files, *self.options, *options, "--json"]
            commands.append(before + shlex.join(command))
        return commands


# --- conclude -------------------------------------------------------------------------------------


def is_match(entry: dict, figures: list[Figure]) -> bool:
    """Return whether a setting explains all figures."""
    return all(figure.fits(value) for figure, value in zip(figures, entry["values"]))


def chance(tried: list[dict], figures: list[Figure]) -> float:
    """Return how many settings would match by chance.

    Values around each figure are taken for evenly spread on a logarithmic scale; the figures of
    several texts for independent of each other, which those of one setting are not quite.
    """
    expected = float(len(distinct(tried)))
    for place, figure in enumerate(figures):
        values = {row[place] for row in distinct(tried)}
        around = [v for v in values if figure.distance(v) <= math.log(NEIGHBOURHOOD)]
        width = math.log(figure.high / max(figure.low, figure.value / 100))
        share = len(around) / len(values) * width / (2 * math.log(NEIGHBOURHOOD))
        expected *= min(1.0, share)
    return expected


def distinct(tried: list[dict]) -> set[tuple[float, ...]]:
    """Return the values that differ in their first eight digits."""
    return {tuple(float(f"{value:.8g}") for value in entry["values"]) for entry in tried}


def conclude(
    figure: object, figures: list[Figure], tried: list[dict], left_out: list[Step], num_read: int
) -> dict:
    """Build what `find` returns."""
    several = isinstance(figure, list | tuple)
    matches = [entry for entry in tried if is_match(entry, figures)]
    matches.sort(key=lambda entry: -entry["prior"])
    total = sum(entry["prior"] for entry in matches)
    expected = chance(tried, figures)
    return {
        "figure": list(figure) if several else figure,
        "matches": [
            shown(entry, several) | {"likelihood": entry["prior"] / total} for entry in matches
        ],
        "nearest": [
            shown(entry, several) | {"difference": text}
            for entry, text in list_nearest(tried, matches, figures)
        ],
        "num_tried": len(tried),
        "expected_by_chance": expected,
        "num_forward_tokens": num_read,
        "not_tried": [
            {
                "layout": step.layout,
                "add_start_token": step.start,
                "num_settings": len(step.settings),
                "num_forward_tokens": step.num_tokens,
            }
            for step in left_out
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


def list_nearest(
    tried: list[dict], matches: list[dict], figures: list[Figure]
) -> list[tuple[dict, str]]:
    """Return the nearest others and what separates each from the likeliest match.

    Beside a match these are settings that differ from it in one thing; otherwise those whose values
    are nearest.
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
    return ", ".join(f"{ratio:+.2%}" for ratio in ratios)


def describe(tried: list[dict], matches: list[dict], figures: list[Figure], expected: float) -> str:
    """Say what the matches are worth, or what a figure that nothing fits implies."""
    by_chance = f"{expected:.2g} of {len(tried):,} values would round to it by chance"
    if len(figures) > 1:
        by_chance = f"{expected:.2g} of {len(tried):,} settings would fit all figures by chance"
    if matches:
        ties = sum(entry["prior"] == matches[0]["prior"] for entry in matches)
        several = " Several fit: further figures of the same source separate them."
        return f"{by_chance}.{several if len(matches) > 1 or ties > 1 else ''}"
    ppls = [entry["values"][0] for entry in tried if entry["average"] == "perplexity"]
    low, high, value = min(ppls), max(ppls), figures[0].value
    if len(figures) > 1:
        return "No setting tried explains all figures; look for each of them by itself."
    if value < low:
        implied = (
            f"it is lower than every perplexity tried, of which the least is {low:.4g}: another "
            "unit, another text or split, a text seen in training, another model, or a larger window"
        )
    elif value > high:
        implied = (
            f"it is higher than every perplexity tried, of which the greatest is {high:.4g}: another "
            "unit, text or model, coarser weights, or a smaller window"
        )
    else:
        implied = (
            f"it lies among the perplexities tried ({low:.4g} to {high:.4g}): another layout of the "
            "text, another split, precision, window or stride"
        )
    return f"No setting tried rounds to {figures[0].printed}; {implied}. {by_chance}."
