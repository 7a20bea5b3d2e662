"""A sample of a long corpus, which estimates what a pass over all of it would give."""

import math
from dataclasses import dataclass, field
from statistics import median

from ..arguments import Setting
from .figures import Figure
from .scorer import Case
from .steps import WINDOWS

SAMPLE_WINDOWS = 16  # longest windows in a sample of a corpus
SAMPLED_FROM = 4  # a corpus is sampled if it is at least this many times as long as the sample
SAMPLE_TOLERANCE = 0.02  # minimum relative tolerance of an estimate from a sample
MOST_MISSED = 700.0  # largest exponent, to keep the result finite


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
