"""The search: passes in order of their worth, until a match is certain or the budget is spent."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from ..arguments import Setting
from ..errors import ArgumentError
from ..layouts import arrange
from ..scoring.runner import Progress
from . import wikitext
from .entries import list_entries, score_texts
from .figures import Figure, chance, is_match
from .priors import DECIMALS, SAME_DECIMALS
from .sampling import Sample
from .scorer import Case
from .steps import Step, list_steps, split_steps

TOKENS_READ = 40  # default budget per token of the texts
FEWEST_READ = 200_000  # minimum of the default budget, for short texts
CERTAIN = 0.01  # a match ends the search if fewer matches are expected by chance


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
