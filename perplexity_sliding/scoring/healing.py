"""Tokens that reach across the edge of a scored part, scored given their characters before the edge.

    p(x | its first characters) = p(x) / Σ p(v) over the tokens v whose text begins with them

which is token healing by one token: the conditional probability of the characters after the edge,
given those before it, as far as one token reaches.  Special tokens stand for no characters, unless x
is one itself, written out in the text.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import ArgumentError
from ..models.interface import ScoredModel
from ..plan.measurement import Columns, Measurement
from ..plan.tokenization import TokenizedText, special_ids, vocabulary_texts
from ..plan.windows import Window
from .measures import Measure, TailMass

# For a token across an edge, by the characters before the edge: all tokens that begin with them.
Completions = dict[int, dict[str, tuple[int, ...]]]


@dataclass(frozen=True)
class Healing:
    """The completions that heal tokens across edges; empty where there are none."""

    completions: Completions

    def measures(self) -> list[Measure]:
        """List what to measure of each token for the healing."""
        if not self.completions:
            return []
        sets = ((token, tuple(tails.values())) for token, tails in self.completions.items())
        return [TailMass(tuple(sets))]

    def heal(self, measurement: Measurement, scores: list[list[Columns]]) -> list[list[Columns]]:
        """Heal the scores of tokens across edges among those of the windows of each text."""
        if not self.completions:
            return scores
        return [
            [self._heal_window(stream, window, columns) for window, columns in zip(*of_text)]
            for stream, *of_text in zip(measurement.streams, measurement.windows, scores)
        ]

    def _heal_window(self, stream: TokenizedText, window: Window, columns: Columns) -> Columns:
        nll = columns["nll"].copy()
        for first, tail in stream.scored_part.across:
            if window.first <= first < window.end:
                column = list(self.completions[int(stream.ids[first])]).index(tail)
                place = first - window.first
                nll[place] -= columns["tail"][place, column]
        return columns | {"nll": nll}


def plan_healing(model: ScoredModel, measurements: Sequence[Measurement]) -> Healing:
    """Find the tokens across edges that are to be healed.

    Raises:
        ValueError: the text of one does not begin with the characters before the edge.
    """
    across = {
        (int(stream.ids[first]), tail): position
        for measurement in measurements
        if measurement.parts is not None and measurement.parts.boundary == "healed"
        for position, stream in enumerate(measurement.streams)
        for first, tail in stream.scored_part.across
    }
    if not across:
        return Healing({})
    texts = vocabulary_texts(model.tokenizer)
    special = special_ids(model.tokenizer)
    completions: Completions = {}
    for (target, tail), position in sorted(across.items()):
        if not texts[target].startswith(tail):
            raise ArgumentError(
                "boundary",
                f"be 'joint' or 'separate' for the text at position {position}: its token across "
                f"the edge stands for {texts[target]!r}, which does not begin with {tail!r} as "
                "the text does, so it cannot be healed",
            )
        completions.setdefault(target, {})[tail] = tuple(
            token
            for token, text in enumerate(texts[: model.vocabulary_size])
            if text.startswith(tail) and (token not in special or target in special)
        )
    return Healing(completions)
