"""What is measured: a protocol with its numbers for one model, over one reading of the texts.

Joins what the three layers know: windows (integers), scores (arrays) and results (floats).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .plan_windows import Plan, Window
from .score_measures import Columns
from .text_tokenization import Parts, TokenizedText


@dataclass(frozen=True)
class Measurement:
    """One protocol, window and stride over the texts.

    Attributes:
        texts: the texts as scored, each on its own or joined.
        streams: their tokens.
        windows: the windows over each stream.
        borders: windows over the token after each scored range, where words are scored.
        parts: which parts of the texts are scored; None for all of each.
    """

    plan: Plan
    separator: str | None
    texts: list[str]
    streams: list[TokenizedText]
    windows: list[list[Window]]
    borders: list[list[Window]]
    parts: Parts | None = None

    @property
    def stream_texts(self) -> int | None:
        """How many texts make up a stream; None for all of them."""
        if self.separator is not None:
            return None
        return 1 if self.plan.protocol.scores_each_text else self.plan.protocol.texts_joined

    def signature_fields(self) -> dict[str, object]:
        """Return what its scores depend on beside the model, by name, in the signature's order."""
        plan, separator = self.plan, self.separator
        join = plan.protocol.join if separator is None else separator
        is_string = separator is not None or join not in (None, "tokens")
        return {
            "protocol": plan.protocol.name,
            "window": plan.max_length,
            "stride": plan.stride,
            **({} if plan.carries == "nothing" else {"carry": plan.carries}),
            "start": plan.start if plan.start_id is None else f"{plan.start}({plan.start_id})",
            "join": repr(join) if is_string else join,
            **({} if self.parts is None else self.parts.fields()),
        }


def nlls_by_token(
    measurement: Measurement, scores: Sequence[Sequence[Columns]]
) -> list[np.ndarray]:
    """Lay out the nll of each token of each text in nats (N,), NaN where it has none.

    Of several it has that with the most context.

    Args:
        scores: of the windows of each text.
    """
    of_texts = []
    for stream, windows, columns_of in zip(measurement.streams, measurement.windows, scores):
        nlls = np.full(len(stream), np.nan)
        for window, columns in zip(reversed(windows), reversed(columns_of)):
            nlls[window.first : window.end] = columns["nll"]
        of_texts.append(nlls)
    return of_texts


def contexts_by_token(measurement: Measurement) -> list[np.ndarray]:
    """Count the tokens that each prediction sees, for each text (N,), 0 where unscored."""
    of_texts = []
    for stream, windows in zip(measurement.streams, measurement.windows):
        seen = np.zeros(len(stream), dtype=np.int64)
        for window in reversed(windows):
            targets = np.arange(window.first, window.end)
            seen[targets] = window.context_length(targets)
        of_texts.append(seen)
    return of_texts
