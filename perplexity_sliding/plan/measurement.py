"""A measurement: a protocol with its settings for one model, and the texts as that model reads them.

It connects windows (integers), scores (arrays) and results (floats).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import numpy as np

from ..arguments import Setting
from .parts import Parts
from .tokenization import TokenizedText
from .windows import Plan, Window

# Scores of a pass by name: arrays with one value, or one row of values, per target.
Columns = dict[str, np.ndarray]


@dataclass(frozen=True)
class Measurement:
    """One protocol, window and stride over the texts.

    Attributes:
        setting: the settings as given, see `plan` for those used.
        texts: the texts as scored, separate or joined.
        streams: the tokens of the texts.
        windows: the windows over each stream.
        borders: windows over the token after each scored range, if words are scored.
        parts: the scored parts of the texts; None for whole texts.
        members: the texts of each stream, if those of several texts are joined token by token; else None.
    """

    setting: Setting
    plan: Plan
    texts: list[str]
    streams: list[TokenizedText]
    windows: list[list[Window]]
    borders: list[list[Window]]
    parts: Parts | None = None
    members: list[list[str]] | None = None

    def nll_of(self, columns: Columns) -> np.ndarray:
        """Return the nlls of a window's targets that all sums and averages are taken over (R,), in nats."""
        return columns["nll"]

    @cached_property
    def longest_pass(self) -> int:
        """Tokens of the longest forward pass; with a carried state, at most those of a window."""
        windows = chain.from_iterable(chain(self.windows, self.borders))
        longest = max((window.num_inputs + window.behind for window in windows), default=0)
        return longest if self.plan.carries == "nothing" else min(longest, self.plan.max_length)

    @property
    def is_cut(self) -> bool:
        """Whether a longer window would change scores: a text does not fit into a single one."""
        return any(
            len(windows) > 1
            or windows[0].begin > 0  # the beginning of a context is dropped
            or (stream.part is None and windows[0].end < len(stream))  # the end of a text is
            for stream, windows in zip(self.streams, self.windows)
            if windows
        )

    def cut_for(self, own_windows: Sequence[int | None]) -> list[int]:
        """List the numbers of the models that have other scores in windows of their own.

        Args:
            own_windows: the length of each model's window; None if unlimited.
        """
        window = self.plan.max_length
        longer = [n for n, own in enumerate(own_windows) if own is None or own > window]
        return longer if longer and self.is_cut else []

    @property
    def stream_texts(self) -> int | None:
        """Number of texts in a stream; None for all of them."""
        return 1 if self.plan.protocol.scores_each_text else self.plan.protocol.texts_joined

    def signature_fields(self) -> dict[str, object]:
        """Return the settings that the scores depend on, by name, in the signature's order."""
        plan, join = self.plan, self.plan.protocol.join
        return {
            "protocol": plan.protocol.name,
            "window": plan.max_length,
            "stride": plan.stride,
            **({} if plan.carries == "nothing" else {"carry": plan.carries}),
            "start": plan.start if plan.start_id is None else f"{plan.start}({plan.start_id})",
            "join": join if join in (None, "tokens") else repr(join),
            **({} if self.parts is None else self.parts.fields()),
            **self.setting.signed(),
        }


def scatter_to_tokens(windows: Sequence[Window], values: Sequence, over: list | np.ndarray) -> None:
    """Write the values of windows' targets into an array over the tokens of a text.

    A token that several windows score gets the value with the most context, that of its first window.

    Args:
        values: of each window, one a target.
        over: the array (N,), overwritten where a window has a target.
    """
    for window, of_window in zip(reversed(windows), reversed(values), strict=True):
        over[window.first : window.end] = of_window


def nlls_by_token(
    measurement: Measurement, scores: Sequence[Sequence[Columns]]
) -> list[np.ndarray]:
    """Return the nll of each token of each text in nats (N,), NaN where it is not scored.

    Args:
        scores: of the windows of each text.
    """
    of_texts = [np.full(len(stream), np.nan) for stream in measurement.streams]
    for windows, columns_of, nlls in zip(measurement.windows, scores, of_texts):
        scatter_to_tokens(windows, list(map(measurement.nll_of, columns_of)), nlls)
    return of_texts


def contexts_by_token(measurement: Measurement) -> list[np.ndarray]:
    """Count the tokens that each prediction sees, for each text (N,), 0 where unscored."""
    of_texts = [np.zeros(len(stream), dtype=np.int64) for stream in measurement.streams]
    for windows, seen in zip(measurement.windows, of_texts):
        scatter_to_tokens(windows, [window.context_lengths() for window in windows], seen)
    return of_texts
