"""What to try: settings over layouts of the texts, in passes that share the tokens they read.

How common each choice is, of a tool, a window, a start token or an average, is a weight relative to
the most common choice.  The weights are judgements, not measurements.
"""

import math
import shlex
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from ..api import Models, check, make_plan, open_session, report
from ..api import score as score_texts
from ..arguments import Setting
from ..engines.sources import in_use_together
from ..errors import ArgumentError
from ..layouts import LAYOUTS, arrange, is_wikitext
from ..plan.measurement import Measurement
from ..plan.settings import Corpus, plan_settings
from ..plan.windows import count_inputs, merge_windows
from ..protocols import PROTOCOLS, Protocol
from ..scoring.distributed import Processes
from . import Figure

FIELDS = ("protocol", "max_length", "stride", "add_start_token", "layout", "average")
OVERLAPS = (1, 2, 8)  # bounds of the windows per token, which separate passes by cost


def power_of_two(bits: float) -> float:
    return 2.0**bits if bits < 1024 else math.inf


TOOLS = {
    **{"lm-eval": 1.0, "llama.cpp": 1.0, "gptq": 1.0, "stock": 0.9, "run-clm": 0.8},
    **{"transformers-docs": 0.9, "transformers-docs-weighted": 0.9, "sliding": 0.7},
}
OTHER_TOOL, OTHER_WINDOW, WINDOW_AS_STRIDE, OTHER_STRIDE = 0.5, 0.4, 0.8, 0.4
STARTS: dict[bool | str, float] = {True: 1.0, False: 0.6, "every": 0.2}
# By a tool in the layout that it reads; by a tool in another layout, and by us, beside the layout.
DETOKENIZED_BY_TOOL, DETOKENIZED_ELSEWHERE, DETOKENIZED_BY_US = 2.0, 0.5, 0.1
# Averages: the key of a result, the conversion if any, and the weight for tools that do not print them.
AVERAGES: dict[str, tuple[str, Callable[[float], float] | None, float]] = {
    "perplexity": ("perplexity", None, 0.4),
    "mean_perplexity": ("mean_perplexity", None, 0.3),
    "word_perplexity": ("word_perplexity", None, 0.3),
    "byte_perplexity": ("bits_per_byte", power_of_two, 0.1),
    "bits_per_byte": ("bits_per_byte", None, 0.3),
    "bits_per_original_byte": ("bits_per_original_byte", None, 0.2),
    "original_byte_perplexity": ("bits_per_original_byte", power_of_two, 0.1),
    "bits_per_character": ("bits_per_character", None, 0.2),
    "adjusted_perplexity": ("adjusted_perplexity", None, 0.2),
    "nats_per_token": ("perplexity", math.log, 0.3),
    "bits_per_token": ("perplexity", math.log2, 0.1),
    "trainer_nats_per_token": ("trainer_loss", None, 0.5),
    "trainer_perplexity": ("trainer_loss", math.exp, 0.5),
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
# Tools that may count the first label of a block, which is unscored.
COUNT_ALL_LABELS = ("run-clm",)
# Decimals that tools print, and the factor by which matching decimals increase the likelihood.
DECIMALS = {"llama.cpp": 4, "lm-eval": 4, "run-clm": 4, "exllamav2": 4, "mlx-lm": 3}
SAME_DECIMALS = 3.0
# Windows in tokens; strides as parts of the window, and in tokens.
WINDOWS, PARTS, STRIDES = (512, 1024, 2048, 4096), (1, 2, 4, 8), (512, 256)


class Scorer:
    """An open model that scores any list of settings in shared passes."""

    def __init__(self, source: dict) -> None:
        self.arguments = source
        self.processes = Processes(False)
        request = check(self.processes, {"predictions": ["a text"], **source})
        self.model = request.source.open()
        with in_use_together([self.model]):
            self.model.check()
        self._corpora: dict[tuple, Corpus] = {}

    def corpus(self, texts: list[str], detokenizer: str | None = None) -> Corpus:
        """Return the texts with their tokens, which all settings share."""
        corpus = Corpus(self.model.tokenizer, texts, False, detokenizer=detokenizer)
        return self._corpora.setdefault((detokenizer, *texts), corpus)

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

    def score(
        self, corpus: Corpus, settings: Iterable[Setting], callback: Callable | None
    ) -> list[dict]:
        """Return the result of each setting."""
        given = {"detokenizer": corpus.detokenizer, "callback": callback}
        request = check(self.processes, {"predictions": corpus.texts, **self.arguments, **given})
        request = replace(request, settings=list(settings), gives_list=True)
        with open_session(request, self.processes) as session:
            with in_use_together([self.model]):
                models = Models(self.model)
                plan = make_plan(request, models, corpus)
                scores = score_texts(session, plan, models)
            return report(plan, scores)["measurements"]


class Case(NamedTuple):
    """A figure with its model and texts, and the command-line arguments that select the texts."""

    figure: Figure
    scorer: Scorer
    texts: list[str]
    named: Sequence[str]


@dataclass(frozen=True)
class Step:
    """Settings that are scored in one pass over the texts of each case.

    Attributes:
        detokenizes: whether WikiText is converted to prose.
        settings: settings that can score every case, with their weights.
        num_tokens: tokens read by the merged passes.
        is_plain: whether the texts are unchanged, and the window is the tool's own and the stride a
            usual part of it.
    """

    layout: str
    detokenizes: bool = False
    settings: dict[Setting, float] = field(default_factory=dict)
    num_tokens: int = 0
    is_plain: bool = False

    @property
    def worth(self) -> tuple[bool, float]:
        """Plain steps precede others, and each the weight of its settings per token."""
        return self.is_plain, sum(self.settings.values()) / max(1, self.num_tokens)

    def read(self, scorer: Scorer, texts: list[str]) -> Corpus:
        """Return texts in the step's layout."""
        return scorer.corpus(arrange(texts, self.layout), "wikitext" if self.detokenizes else None)


def list_steps(cases: list[Case]) -> list[Step]:
    """List the steps in descending order of their worth.

    Tools that detokenize WikiText read articles separately, or all text as one.

    Raises:
        ValueError: no setting can score the texts.
    """
    steps: list[Step] = []
    seen: set[tuple] = set()  # texts as a protocol joins them: two layouts may be one to it
    of_wikitext = any(is_wikitext(case.texts) for case in cases)
    for name, layout in LAYOUTS.items():
        usual = layout.usual_for_wikitext if of_wikitext else layout.usual
        texts = [arrange(case.texts, name) for case in cases]
        if not usual or not all(texts):
            continue
        protocols: list[Protocol] = []
        for protocol in PROTOCOLS.values():
            joint = None if protocol.join == "tokens" else protocol.join
            joined = [tuple(own) if joint is None else joint.join(own) for own in texts]
            if (key := (protocol.name, *joined)) not in seen:
                seen.add(key)
                protocols.append(protocol)
        if protocols:
            steps += split(cases, Step(name), protocols, usual)
        if not of_wikitext or name not in ("as-is", "joined", "each-article"):
            continue
        for protocol in PROTOCOLS.values():
            weight = usual * DETOKENIZED_BY_US
            if protocol.detokenize is not None:
                reads = ("each-article",) if protocol.scores_each_text else ("as-is", "joined")
                elsewhere = usual * DETOKENIZED_ELSEWHERE
                weight = DETOKENIZED_BY_TOOL if name in reads else elsewhere
            steps += split(cases, Step(name, detokenizes=True), [protocol], weight)
    if not steps:
        raise ArgumentError("texts", "be long enough to score", got="texts of fewer than 2 tokens")
    return sorted(steps, key=lambda step: step.worth, reverse=True)


def split(cases: list[Case], step: Step, protocols: list[Protocol], usual: float) -> list[Step]:
    """Give a step the settings of protocols, and split it by start token and cost.

    Args:
        usual: weight of the layout.
    """
    limits = [limit for case in cases if (limit := case.scorer.model.limit.length) is not None]
    choices = list_choices(protocols, min(limits, default=None))
    planned = []
    for case in cases:
        corpus = step.read(case.scorer, case.texts)
        is_new = corpus.wordings(protocols[0]) != corpus.texts or not step.detokenizes
        planned.append(case.scorer.plan(corpus, choices) if is_new else {})
    groups: dict[tuple, dict[Setting, float]] = {}
    seen = set()
    for setting in choices:
        plans = [own[setting].plan for own in planned if setting in own]
        key = tuple((p.protocol.name, p.max_length, p.stride, p.start) for p in plans)
        if len(plans) < len(cases) or key in seen:
            continue
        seen.add(key)
        first, has_own_window = plans[0], setting.max_length is None
        is_own = has_own_window and setting.stride is None
        is_plain = has_own_window and first.stride in [first.max_length // part for part in PARTS]
        overlap = max(plan.max_length / plan.stride for plan in plans)
        level = sum(overlap > bound for bound in OVERLAPS)
        weight = usual * TOOLS.get(setting.protocol.name, OTHER_TOOL)
        weight *= STARTS[setting.add_start_token] * (1.0 if has_own_window else OTHER_WINDOW)
        if setting.stride is not None:
            is_disjoint = first.stride == first.max_length
            weight *= WINDOW_AS_STRIDE if is_disjoint else OTHER_STRIDE
        group = (first.start, level, is_own, is_own or is_plain)
        groups.setdefault(group, {})[setting] = weight
    steps = []
    for (*_, is_plain), settings in groups.items():
        cost = sum(c.scorer.cost(own[s] for s in settings) for c, own in zip(cases, planned))
        is_plain = is_plain and step.layout == "as-is" and not step.detokenizes
        steps.append(replace(step, settings=settings, num_tokens=cost, is_plain=is_plain))
    return steps


def list_choices(protocols: list[Protocol], limit: int | None) -> list[Setting]:
    """List the usual settings that the protocols' tools have, each tool's own first."""
    choices = []
    for start in STARTS:
        for protocol in protocols:
            for window in [None, *(n for n in WINDOWS if limit is None or n <= limit)]:
                length = window or limit or 0
                usual = {length // part for part in PARTS}
                usual |= {stride for stride in STRIDES if stride <= length}
                strides = [None, *sorted(usual - {0}, reverse=True)]
                for stride in strides:
                    setting = Setting(protocol, window, stride, start)
                    with suppress(ValueError):  # the tool has no such setting
                        setting.check()
                        choices.append(setting)
    return sorted(choices, key=lambda s: (s.max_length or 0, s.stride or 0))


# --- the values of a setting ----------------------------------------------------------------------


def score_step(
    cases: list[Case], step: Step, corpora: list[list[str]], callback: Callable | None
) -> list[dict]:
    """Score a step; list an entry for each setting and average, with a value for each case.

    Args:
        corpora: the texts of each case, or a sample of them.
    """
    protocol, results = next(iter(step.settings)).protocol, []
    for case, texts in zip(cases, corpora):
        corpus = step.read(case.scorer, texts)
        results.append(case.scorer.score(corpus, step.settings, callback))
        if not step.detokenizes:
            continue
        own = (corpus.wordings(protocol), corpus.texts)
        sizes = [sum(len(text.encode("utf-8")) for text in of) for of in own]
        for result in results[-1]:
            per_byte = result.pop("bits_per_byte")  # of the prose, which no tool reports
            del result["bits_per_character"]
            if protocol.scores_each_text:  # the command line counts no bytes of joined texts
                result["bits_per_original_byte"] = per_byte * sizes[0] / sizes[1]
    of_all = zip(step.settings, *results)
    return [entry for setting, *own in of_all for entry in list_entries(cases, step, setting, own)]


def list_entries(
    cases: list[Case], step: Step, setting: Setting, results: list[dict]
) -> list[dict]:
    """List the averages of a setting's results; of equal ones, only the most common."""
    layout, protocol = step.layout, setting.protocol
    if step.detokenizes:
        layout += ", detokenized" + (" by the tool" if protocol.detokenize else "")
    known: dict = {"protocol": protocol.name, "layout": layout, "setting": setting}
    for name in ("max_length", "stride", "add_start_token"):
        own = [result[name] for result in results]
        known[name] = own[0] if all(value == own[0] for value in own) else own
    known["commands"] = [write_command(case, step, setting) for case in cases]
    averaged = [averages_of(result) for result in results]
    printed = PRINTED.get(protocol.name, ("perplexity",))
    weights = {name: 1.0 if name in printed else AVERAGES[name][2] for name in averaged[0]}
    entries: list[dict] = []
    for average in sorted(weights, key=lambda name: -weights[name]):
        values = [of_case.get(average, math.nan) for of_case in averaged]
        is_new = not any(agree(values, entry["values"]) for entry in entries)
        if is_new and all(0 < value < math.inf for value in values):
            prior = step.settings[setting] * weights[average]
            more = {"average": average, "values": values, "prior": prior}
            entries.append(known | more | {"is_printed": weights[average] == 1})
    return entries


def agree(values: list[float], others: list[float], tolerance: float = 1e-9) -> bool:
    return all(math.isclose(a, b, rel_tol=tolerance) for a, b in zip(values, others))


def averages_of(result: dict) -> dict[str, float]:
    """Return the values of a result that a paper could print."""
    if result["protocol"] in COUNT_ALL_LABELS:
        # `Trainer.evaluate` divides by all labels of a block in transformers from 4.57 until 2026,
        # and still for models such as GPT-2, whose loss it does not recognise as shifted.
        block = result["max_length"]
        loss = math.log(result["perplexity"]) * (block - 1) / block
        result = result | {"trainer_loss": loss}
    values = {}
    for name, (key, convert, _) in AVERAGES.items():
        value = result.get(key)
        if value is not None and (convert is None or 0 < value < math.inf):
            values[name] = value if convert is None else convert(value)
    return values


def write_command(case: Case, step: Step, setting: Setting) -> str:
    """Return the command that repeats a setting."""
    before, files, source = "", case.named, case.scorer.arguments
    if step.layout != "as-is":
        lay_out = ["python", "-m", "perplexity_sliding.cli.searching", step.layout, *files]
        before, files = f"{shlex.join(lay_out)} > laid-out.jsonl && ", ["laid-out.jsonl"]
    dtype = source.get("dtype")
    given = {
        "--model": source.get("model_id"),
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
