"""Find the settings that give a published figure."""

import csv
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerBase

from ..arguments import check_whole_number
from ..errors import ArgumentError, ArgumentTypeError
from ..protocols import PROTOCOLS
from ..scoring.runner import Progress
from . import ROUNDING, Figure
from .candidates import (
    DECIMALS,
    FIELDS,
    SAME_DECIMALS,
    WINDOWS,
    Case,
    Scorer,
    Step,
    agree,
    list_steps,
    score_step,
)

LOADING = ("dtype", "device", "batch_size", "model_kwargs")
TOKENS_READ = 40  # default budget per token of the texts
FEWEST_READ = 200_000  # minimum of the default budget, for short texts
CERTAIN = 0.01  # a match ends the search if fewer matches are expected by chance
NEIGHBOURHOOD = 1.1  # values within this factor of a figure determine their density
SAMPLE_WINDOWS = 16  # longest windows in a sample of a corpus
SAMPLED_FROM = 4  # a corpus is sampled if it is at least this many times as long as the sample
SAMPLE_TOLERANCE = 0.03  # relative error of an estimate from a sample, beyond those seen
NUM_NEAREST = 5


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
    averages: the unchanged texts first, then the likeliest and cheapest, and return the settings
    whose value rounds to the figure.  In a long corpus, a sample decides which settings are worth a
    complete pass.  A match is not proof: see `expected_by_chance`.

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
        arguments: `dtype`, `device`, `batch_size` and other arguments of `compute` for loading and
            running the model.

    Returns:
        figure: as given.
        matches: the values that round to the figure, most likely first, each with the setting whose
            tool is known for it: protocol, max_length, stride, add_start_token, layout, average,
            value, likelihood (its share of the weights of all matches), the command that repeats it,
            and `same_value`, the other settings that give it.  With several figures, value and
            command are lists.
        nearest: settings that do not match, each with its difference from the likeliest match.
        published: known published figures equal to this one, each with model, corpus, protocol and
            source; figures of other models only if the model is unknown.
        num_tried: number of values compared with the figure.
        expected_by_chance: expected number of matches by chance, from the density of values.
        num_forward_tokens: number of tokens read by the model.
        not_tried: omitted passes, each with its cost in tokens, and whether it misses the figure on
            a sample.
        conclusion: an assessment of the matches, in one sentence.

    Raises:
        TypeError, ValueError: a figure is not positive, the numbers of figures and texts or models
            differ, or as for `compute`.
    """
    several = isinstance(figure, list | tuple)
    given = list(figure) if isinstance(figure, list | tuple) else [figure]
    figures = [Figure.read(one) for one in given]
    if max_tokens is not None:
        check_whole_number("max_tokens", max_tokens, 1)
    if unknown := sorted(set(arguments) - set(LOADING)):
        raise TypeError(
            f"find() got an unexpected keyword argument {unknown[0]!r}: it tries all protocols, "
            "windows, strides and start tokens itself."
        )
    models = list(model_id) if isinstance(model_id, list | tuple) else [model_id]
    corpora = pair_texts(figures, texts, models)
    named = files if files is not None else [["FILE"]] * len(figures)
    loaded = {"model": model, "tokenizer": tokenizer, **arguments}
    scorers = [Scorer({"model_id": name, **loaded}) for name in dict.fromkeys(models)]
    scorers = scorers if len(models) > 1 else scorers * len(figures)
    cases = [Case(*case) for case in zip(figures, scorers, corpora, named, strict=True)]
    search = Search(cases, max_tokens, callback)
    search.run()
    matches = list_matches(search, several)
    expected = chance(search.tried, figures)
    return {
        "figure": given if several else figure,
        "matches": matches,
        "nearest": list_nearest(search, matches, several),
        "published": list_published(cases),
        "num_tried": len(search.tried),
        "expected_by_chance": expected,
        "num_forward_tokens": search.num_read,
        "not_tried": [
            {
                "layout": step.layout,
                "num_settings": len(step.settings),
                "num_forward_tokens": step.num_tokens,
                "misses_on_sample": misses,
            }
            for step, misses in search.left_out
        ],
        "conclusion": describe(search, len(matches), expected),
    }


def pair_texts(figures: list[Figure], texts: object, models: list) -> list[list[str]]:
    """Return the texts of each figure.

    Raises:
        TypeError, ValueError: no texts, or as many figures as neither texts nor models.
    """
    if isinstance(texts, str) or not isinstance(texts, Sequence):
        raise ArgumentTypeError("texts", "be a list of strings", got=type(texts).__name__)
    of_models = len(models) > 1
    others, name = (len(models), "model") if of_models else (len(texts), "text")
    if not figures or (others != len(figures) and (of_models or len(figures) > 1)):
        got = f"{len(figures)} figures and {others} {name}s"
        raise ArgumentError("figure", f"have one number, or one per {name}", got=got)
    corpora = [list(texts)] * len(figures)
    if len(figures) > 1 and not of_models:
        corpora = [[text] if isinstance(text, str) else list(text) for text in texts]
    if not all(isinstance(text, str) for corpus in corpora for text in corpus):
        raise ArgumentTypeError("texts", "be a list of strings", got="other items")
    if not all(map(str.strip, map("".join, corpora))):
        raise ArgumentError("texts", "have at least one text that is not blank", got="none")
    return corpora


# --- the search -----------------------------------------------------------------------------------


@dataclass
class Search:
    """Passes in order of their worth, until a match is certain or the budget is spent.

    Attributes:
        max_tokens: the budget; None for the default, with which a certain match ends the search.
        tried: an entry for each setting and average, with its value for each figure.
        left_out: omitted steps, each with whether it misses the figures on a sample.
        num_read: number of tokens read.
        ratios: for each average and case, the logarithms of value over estimate of the settings
            that were scored on the whole and on the sample.
    """

    cases: list[Case]
    max_tokens: int | None
    callback: Callable[[Progress], None] | None
    tried: list[dict] = field(default_factory=list)
    left_out: list[tuple[Step, bool]] = field(default_factory=list)
    num_read: int = 0
    ratios: dict[tuple[str, int], list[float]] = field(default_factory=dict)

    def run(self) -> None:
        """Score one step after the other.

        Raises:
            ValueError: no pass fits in the budget, or no setting can score the texts.
        """
        steps = list_steps(self.cases)
        num_tokens = sum(
            len(stream)
            for case in self.cases
            for stream in case.scorer.corpus(case.texts).read(PROTOCOLS["sliding"])[1]
        )
        budget = self.max_tokens or max(FEWEST_READ, TOKENS_READ * num_tokens)
        self.total = min(budget, sum(step.num_tokens for step in steps))
        sample = None if self.max_tokens else take_sample(self.cases, num_tokens)
        whole = [case.texts for case in self.cases]
        for number, step in enumerate(steps):
            if self.num_read + step.num_tokens > budget:
                self.left_out.append((step, False))
                continue
            estimates = {} if sample is None else self.score(step, sample)
            if estimates and all(map(self.misses, estimates.values())):
                self.left_out.append((step, True))
                continue
            for key, entry in self.score(step, whole).items():
                self.tried.append(entry)
                pairs = zip(entry["values"], estimates[key]["values"]) if key in estimates else ()
                for place, (value, estimate) in enumerate(pairs):
                    ratios = self.ratios.setdefault((entry["average"], place), [])
                    ratios.append(math.log(value / estimate))
            may_end = self.max_tokens is None and any(map(self.is_match, self.tried))
            if may_end and chance(self.tried, self.figures) < CERTAIN:
                self.left_out += [(step, False) for step in steps[number + 1 :]]
                break
        if not self.tried:
            cheapest = min(step.num_tokens for step in steps)
            raise ArgumentError(
                "max_tokens",
                f"be at least {cheapest}, the tokens of the cheapest pass",
                got=str(budget),
            )

    @property
    def figures(self) -> list[Figure]:
        return [case.figure for case in self.cases]

    def is_match(self, entry: dict) -> bool:
        """Return whether a setting explains all figures."""
        return all(figure.fits(value) for figure, value in zip(self.figures, entry["values"]))

    def score(self, step: Step, corpora: list[list[str]]) -> dict[tuple, dict]:
        """Score a step, and report its progress within that of the search.

        Args:
            corpora: the texts of each case, or a sample, which may be too short to be scored.

        Returns:
            an entry for each setting and average.
        """
        cost = 0
        for case, texts in zip(self.cases, corpora):
            planned = case.scorer.plan(step.read(case.scorer, texts), step.settings)
            if len(planned) < len(step.settings):
                return {}
            cost += case.scorer.cost(planned.values())
        before, report = self.num_read, self.callback

        def callback(progress: Progress) -> None:
            if report is not None:
                report(Progress(min(self.total, before + progress.done), self.total, math.nan))

        entries = score_step(self.cases, step, corpora, callback if report else None)
        self.num_read += cost
        return {(entry["setting"], entry["average"]): entry for entry in entries}

    def misses(self, entry: dict) -> bool:
        """Return whether an estimate is too far from a figure, by the ratios of its average so far."""
        if entry["setting"].protocol.last == "cut":  # reads one window of any text
            return False
        for place, (figure, value) in enumerate(zip(self.figures, entry["values"])):
            ratios = self.ratios.get((entry["average"], place))
            expected = math.log(figure.value / value)
            if ratios and not (
                min(ratios) - SAMPLE_TOLERANCE < expected < max(ratios) + SAMPLE_TOLERANCE
            ):
                return True
        return False


def take_sample(cases: list[Case], num_tokens: int) -> list[list[str]] | None:
    """Return the first texts of each case, the last one cut at a line end; None of short corpora."""
    longest = max(case.scorer.model.limit.length or WINDOWS[-1] for case in cases)
    share = len(cases) * SAMPLE_WINDOWS * min(longest, WINDOWS[-1]) / num_tokens
    if share > 1 / SAMPLED_FROM:
        return None
    sample = []
    for case in cases:
        left, chosen = math.ceil(share * sum(map(len, case.texts))), []
        for text in case.texts:
            if left <= 0:
                break
            if len(text) > left:
                end = text.find("\n", left, 2 * left)
                text = text[: end + 1] if end >= 0 else text[: 2 * left]
            chosen.append(text)
            left -= len(text)
        sample.append(chosen)
    return sample


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


# --- the result -----------------------------------------------------------------------------------


def list_matches(search: Search, several: bool) -> list[dict]:
    """List the matching values, likeliest first; a tool that prints the average precedes others."""

    def weight(entry: dict) -> float:
        decimals = DECIMALS.get(entry["protocol"])
        is_printed_so = any(figure.decimals == decimals for figure in search.figures)
        return entry["prior"] * (SAME_DECIMALS if is_printed_so else 1.0)

    found = list(filter(search.is_match, search.tried))
    groups: list[list[dict]] = []  # of values that are equal but for rounding
    for entry in found:
        alike = (group for group in groups if agree(group[0]["values"], entry["values"], ROUNDING))
        if group := next(alike, None):
            group.append(entry)
        else:
            groups.append([entry])
    total, rows = sum(map(weight, found)), []
    for group in groups:
        first, *others = sorted(group, key=lambda e: (not e["is_printed"], -weight(e)))
        same = [{name: other[name] for name in FIELDS} for other in others]
        known = {"likelihood": sum(map(weight, group)) / total, "same_value": same}
        rows.append(shown(first, several) | known)
    return sorted(rows, key=lambda row: -row["likelihood"])


def shown(entry: dict, several: bool) -> dict:
    """Return the settings of an entry with its value and command, or those of each figure."""
    values, commands = entry["values"], entry["commands"]
    return {name: entry[name] for name in FIELDS} | {
        "value": values if several else values[0],
        "command": commands if several else commands[0],
    }


def list_nearest(search: Search, matches: list[dict], several: bool) -> list[dict]:
    """List the nearest other settings, each with its difference from the likeliest match.

    With a match, these differ from it in one setting; otherwise their values are the nearest.
    """
    others = [entry for entry in search.tried if not search.is_match(entry)]
    figures, nearest = search.figures, []
    for entry in sorted(others, key=lambda e: max(map(Figure.distance, figures, e["values"]))):
        differing = [name for name in FIELDS if matches and entry[name] != matches[0][name]]
        ratios = [value / figure.value - 1 for figure, value in zip(figures, entry["values"])]
        text = ", ".join(f"{100 * ratio:+.2f} %" for ratio in ratios)
        if differing:
            name = differing[0]
            text = f"{name} {entry[name]} instead of {matches[0][name]}"
        if len(differing) < 2:
            nearest.append(shown(entry, several) | {"difference": text})
    return nearest[:NUM_NEAREST]


def list_published(cases: list[Case]) -> list[dict]:
    """List the published figures that equal those of the cases.

    The test sets of WikiText are recognised by their first title.  Other texts may be any other
    corpus, but only with the figure's model.
    """

    found = []
    for case in cases:
        source = case.scorer.arguments
        name = source["model_id"] or getattr(source["model"], "name_or_path", None)
        short = str(name).rstrip("/").rpartition("/")[2].lower()
        is_wikitext_test = "= Robert Boulter =" in "".join(case.texts[:3])[:100]
        for row in read_published():
            own = row["model"].rpartition("/")[2].lower()
            may_be_model = short == own if name else is_wikitext_test
            may_be_corpus = row["corpus"].startswith("WikiText") == is_wikitext_test
            if may_be_model and may_be_corpus and case.figure.fits(float(row["figure"])):
                found.append(row)
    return found


def read_published() -> list[dict]:
    """Read the table of published figures, with their sources."""
    with open(Path(__file__).parent / "published.csv", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def describe(search: Search, num_matches: int, expected: float) -> str:
    """Assess the matches, or say why nothing matches."""
    tried, figures = search.tried, search.figures
    fits = "values would round to it" if len(figures) == 1 else "settings would fit all figures"
    by_chance = f"{expected:.2g} of {len(tried):,} {fits} by chance."
    if num_matches > 1:
        by_chance += " Several values match: more figures from the same source can decide."
    if num_matches:
        return by_chance
    left = "a setting not tried (--max-tokens N tries more), " if search.left_out else ""
    if len(figures) > 1:
        rest = "or figures of different settings: search for each of them separately"
        return f"No setting tried explains all figures: {left}{rest}."
    ppls = [entry["values"][0] for entry in tried if entry["average"] == "perplexity"]
    low, high, value = min(ppls), max(ppls), figures[0].value
    place = f"lies among the perplexities per token tried ({low:.4g} to {high:.4g})"
    rest = "layout of the text, another split, precision, window or stride"
    if value < low:
        place = f"is lower than every perplexity per token tried, the lowest being {low:.4g}"
        rest = "unit, text or split, a text seen in training, another model, a larger window or smaller stride"
    elif value > high:
        place = f"is higher than every perplexity per token tried, the highest being {high:.4g}"
        rest = "unit, text or model, coarser weights, or a smaller window"
    return f"No setting tried rounds to {figures[0].printed}; it {place}: {left}another {rest}. {by_chance}"
