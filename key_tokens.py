"""LongPPL: perplexity over the tokens that need a long context (Fang et al., ICLR 2025).

A token is key where an evaluator model, given the whole text, predicts it well and far better than
from a short context.  Key tokens of one tokenizer become characters, and these the tokens of
another.  As the package `longppl` 0.3.0 does it.

Arrays only: no model, no text.
"""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class KeyTokenRule:
    """What makes a token key.

    Attributes:
        short_context: fewest tokens that the short context has; nothing before that is key.
        stride: tokens that share a short context's first token.
        gain: nats that the long context must gain, more than which.
        largest_nll: nats that the long context must leave, less than which.
    """

    short_context: int = 4096
    stride: int = 1024
    gain: float = 2.0
    largest_nll: float = 2.0

    @property
    def window(self) -> int:
        """Length of the windows whose last `stride` tokens are scored with a short context."""
        return self.short_context + self.stride

    def key_tokens(self, short: np.ndarray, full: np.ndarray) -> np.ndarray:
        """Numbers of the key tokens (K,), given the nlls of all tokens under both contexts (N,).

        NaN, for what is not scored, is never key.
        """
        with np.errstate(invalid="ignore"):
            key = (short - full > self.gain) & (full < self.largest_nll)
        key[: self.short_context] = False
        return np.flatnonzero(key)


def merge_spans(offsets: np.ndarray) -> np.ndarray:
    """Merge spans of characters (K, 2) that touch: (first, one past the last) of each (M, 2)."""
    if not len(offsets):
        return offsets.reshape(0, 2)
    apart = offsets[1:, 0] != offsets[:-1, 1]
    firsts = offsets[np.concatenate([[True], apart]), 0]
    ends = offsets[np.concatenate([apart, [True]]), 1]
    return np.stack([firsts, ends], axis=1)


def tokens_inside(offsets: np.ndarray, spans: np.ndarray) -> np.ndarray:
    """Numbers of the tokens (K,) whose characters all lie in one of the spans.

    Args:
        offsets: first and one-past-last character of each token (N, 2).
        spans: ascending spans of characters (M, 2), apart from each other.
    """
    if not len(spans):
        return np.empty(0, dtype=np.int64)
    number = np.searchsorted(spans[:, 0], offsets[:, 0], side="right") - 1
    inside = (number >= 0) & (offsets[:, 1] <= spans[number, 1])
    return np.flatnonzero(inside)
