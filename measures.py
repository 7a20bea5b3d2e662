"""What is measured of a target token, given the logits that predict it: one function a measure.

A measure takes blocks of logits and returns columns, one value (or row of values) a target.  Where
two models score the same rows there are two blocks: the model's and the reference's.  To add a
measure, write a class with a `key` and a `__call__` as here; whatever it returns reaches the caller
by name.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch


class Block:
    """Logits of R rows, in float32, and the tokens that they predict.

    Log-likelihoods are taken in float32 whatever the model runs in: in bfloat16 they would come in
    steps.

    Attributes:
        logits: (R, V), float32.
        targets: token ids (R,).
    """

    def __init__(self, logits: torch.Tensor, targets: torch.Tensor):
        self.logits = logits.float()
        self.targets = targets

    @cached_property
    def log_normalizer(self) -> torch.Tensor:
        """log Σ exp(logits), in nats (R,)."""
        return self.logits.logsumexp(1)


class Measure(Protocol):
    """Scores targets under the logits of one model, or of a model and its reference.

    Attributes:
        columns: names of the columns that it returns.
        key: names them in a checkpoint; measures of the same key give the same columns.
    """

    columns: tuple[str, ...]

    @property
    def key(self) -> str: ...

    def __call__(self, blocks: Sequence[Block]) -> dict[str, torch.Tensor]:
        """Return columns by name, each with R values or rows of values."""
        ...


@dataclass(frozen=True)
class NegativeLogLikelihood:
    """`nll`: negative log-likelihood of each target in nats (R,)."""

    columns = ("nll",)
    key = "nll"

    def __call__(self, blocks: Sequence[Block]) -> dict[str, torch.Tensor]:
        block = blocks[0]
        nll = torch.nn.functional.cross_entropy(block.logits, block.targets, reduction="none")
        return {"nll": nll}


@dataclass(frozen=True)
class Alternatives:
    """The target's rank and the likeliest tokens in its place.

    Gives `rank` (R,), 1 for the likeliest token; `top_ids` (R, K), the likeliest tokens, best
    first; and `top_nll` (R, K), their negative log-likelihoods in nats.

    Attributes:
        number: K; at most the size of the vocabulary is given.
    """

    number: int
    columns = ("rank", "top_ids", "top_nll")

    @property
    def key(self) -> str:
        return f"alternatives({self.number})"

    def __call__(self, blocks: Sequence[Block]) -> dict[str, torch.Tensor]:
        logits, targets = blocks[0].logits, blocks[0].targets
        top = logits.topk(min(self.number, logits.shape[1]))
        return {
            "rank": 1 + (logits > logits.gather(1, targets[:, None])).sum(1),
            "top_ids": top.indices,
            "top_nll": blocks[0].log_normalizer[:, None] - top.values,
        }
