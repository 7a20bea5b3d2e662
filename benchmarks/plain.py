"""The lower bound of a plain execution: bare forward passes over the required windows.

The body of the model over the tokens of every window, and the vocabulary product over the rows
that are scored: no loss, no texts, no bookkeeping.  Batches and blocks have the size that a short
search found fastest.
"""

import time
from collections.abc import Sequence
from typing import NamedTuple

import torch

BATCH_TOKENS = (1, 256, 512, 1024, 2048, 4096)  # 1 runs each window alone
BLOCK_ROWS = (64, 128, 256, 512, 1024)
TURNS = 4


class Settings(NamedTuple):
    batch_tokens: int
    block_rows: int


class PlainPasses:
    """Bare forward passes of a model over windows of random tokens.

    Args:
        windows: the plan, as `plan_windows` gives it; only lengths and numbers of targets matter.
    """

    def __init__(self, model, windows: Sequence):
        self.body = model.base_model
        self.head = model.get_output_embeddings().weight  # (V, D)
        self.windows = sorted(windows, key=lambda window: -window.num_inputs)
        self.settings = Settings(BATCH_TOKENS[0], BLOCK_ROWS[0])

    def search(self) -> Settings:
        """Find and store the fastest settings.

        On evenly spaced windows that fill the largest batch: fewer would fit into any.
        """
        num_tokens = sum(window.num_inputs for window in self.windows)
        some = self.windows[:: max(1, num_tokens // max(BATCH_TOKENS))]
        differing = {tuple(map(len, batches(some, tokens))): tokens for tokens in BATCH_TOKENS}
        tokens, _ = self._fastest(some, [Settings(tokens, 128) for tokens in differing.values()])
        self.settings = self._fastest(some, [Settings(tokens, rows) for rows in BLOCK_ROWS])
        return self.settings

    def __call__(self) -> None:
        self.run(self.windows, *self.settings)

    @torch.inference_mode()
    def run(self, windows: Sequence, batch_tokens: int, block_rows: int) -> None:
        for batch in batches(windows, batch_tokens):
            ids = torch.ones(len(batch), batch[0].num_inputs, dtype=torch.long)
            hidden = self.body(ids, use_cache=False).last_hidden_state  # (B, T, D)
            scored = [
                row[window.num_inputs - window.num_targets : window.num_inputs]
                for row, window in zip(hidden, batch)
            ]
            for rows in torch.cat(scored).split(block_rows):
                torch.nn.functional.linear(rows, self.head)

    def _fastest(self, windows: Sequence, settings: list[Settings]) -> Settings:
        """Try them in turns, so that other load on the machine affects all equally."""
        turns = [[self._seconds(windows, *each) for each in settings] for _ in range(TURNS)]
        best = [min(times) for times in zip(*turns)]
        return settings[best.index(min(best))]

    def _seconds(self, windows: Sequence, batch_tokens: int, block_rows: int) -> float:
        began = time.perf_counter()
        self.run(windows, batch_tokens, block_rows)
        return time.perf_counter() - began


def batches(windows: Sequence, batch_tokens: int) -> list[list]:
    """Windows, longest first, in batches of at most `batch_tokens` with the padding, or of one."""
    groups: list[list] = []
    for window in windows:
        if groups and (len(groups[-1]) + 1) * groups[-1][0].num_inputs <= batch_tokens:
            groups[-1].append(window)
        else:
            groups.append([window])
    return groups
