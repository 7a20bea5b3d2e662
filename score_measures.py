"""What is measured of a target token, given the logits that predict it: one function a measure.

A measure takes blocks of logits and returns columns, one value (or row of values) a target.  Where
two models score the same rows there are two blocks: the model's and the reference's.  To add a
measure of one number a token, write a class as `Rank` is one, and name it in `TOKEN_MEASURES`:
`return_token_scores=["its name"]` then returns its column in `token_scores`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch

from .digests import digest_of


class Block:
    """Logits of R rows, in float32, and the tokens that they predict.

    Log-likelihoods are taken in float32 whatever the model runs in: in bfloat16 they would come in
    steps.

    Attributes:
        logits: (R, V), float32.
        targets: token ids (R,).
    """

    def __init__(self, logits: torch.Tensor, targets: torch.Tensor) -> None:
        self.logits = logits.float()
        self.targets = targets

    @cached_property
    def nll(self) -> torch.Tensor:
        """Negative log-likelihood of each target, in nats (R,)."""
        return torch.nn.functional.cross_entropy(self.logits, self.targets, reduction="none")

    @cached_property
    def log_normalizer(self) -> torch.Tensor:
        """log Σ exp(logits), in nats (R,)."""
        return self.logits.logsumexp(1)


class Measure(Protocol):
    """Scores targets under the logits of one model, or of a model and its reference.

    Attributes:
        columns: names of the columns that it returns.
        num_models: how many models' logits it takes: 2 where it compares.
        key: names them in a checkpoint; measures of the same key give the same columns.
    """

    columns: tuple[str, ...]
    num_models: int

    @property
    def key(self) -> str: ...

    def __call__(self, blocks: Sequence[Block]) -> dict[str, torch.Tensor]:
        """Return columns by name, each with R values or rows of values."""
        ...


@dataclass(frozen=True)
class NegativeLogLikelihood:
    """`nll`: negative log-likelihood of each target in nats (R,)."""

    columns = ("nll",)
    num_models = 1
    key = "nll"

    def __call__(self, blocks: Sequence[Block]) -> dict[str, torch.Tensor]:
        return {"nll": blocks[0].nll}


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
    num_models = 1

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


@dataclass(frozen=True)
class Likeliest:
    """`top`: id of the likeliest token (R,)."""

    columns = ("top",)
    num_models = 1
    key = "top"

    def __call__(self, blocks: Sequence[Block]) -> dict[str, torch.Tensor]:
        return {"top": blocks[0].logits.argmax(1)}


@dataclass(frozen=True)
class Rank:
    """`rank`: 1 where the target is the likeliest token, and so on (R,)."""

    columns = ("rank",)
    num_models = 1
    key = "rank"

    def __call__(self, blocks: Sequence[Block]) -> dict[str, torch.Tensor]:
        logits, targets = blocks[0].logits, blocks[0].targets
        return {"rank": 1 + (logits > logits.gather(1, targets[:, None])).sum(1)}


@dataclass(frozen=True)
class Entropy:
    """`entropy`: of the prediction, -Σ p log p over the vocabulary in nats (R,)."""

    columns = ("entropy",)
    num_models = 1
    key = "entropy"

    def __call__(self, blocks: Sequence[Block]) -> dict[str, torch.Tensor]:
        return {"entropy": torch.special.entr(blocks[0].logits.softmax(1)).sum(1)}


# Makers of the measures of one number a token that a caller may ask for, by the name of the column.
TOKEN_MEASURES: dict[str, Callable[[], Measure]] = {"rank": Rank, "entropy": Entropy}


def token_measures(num_alternatives: int, token_columns: Sequence[str]) -> list[Measure]:
    """List the measures that give what a caller wants to know of each token, the nll first."""
    measures: list[Measure] = [NegativeLogLikelihood()]
    if num_alternatives:
        measures.append(Alternatives(num_alternatives))
    given = {name for measure in measures for name in measure.columns}
    asked = (name for name in TOKEN_MEASURES if name in token_columns)
    return measures + [TOKEN_MEASURES[name]() for name in asked if name not in given]


@dataclass(frozen=True)
class SetMass:
    """-log of the probability that the next token is one of a set, in nats (R,).

    Attributes:
        name: of the column.
        ids: the set.
    """

    name: str
    ids: tuple[int, ...]
    num_models = 1

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.name,)

    @property
    def key(self) -> str:
        return f"mass({digest_of(self.ids)})"

    def __call__(self, blocks: Sequence[Block]) -> dict[str, torch.Tensor]:
        return {self.name: negative_log_mass(blocks[0], self.ids)}


@dataclass(frozen=True)
class TailMass:
    """`tail`: -log of the probability of the tokens that begin as the target does, in nats (R, K).

    Only for the targets that are asked for; NaN elsewhere.

    Attributes:
        sets: (target, its sets of tokens) for each such target; K is the largest number of sets.
    """

    sets: tuple[tuple[int, tuple[tuple[int, ...], ...]], ...]
    columns = ("tail",)
    num_models = 1

    @property
    def key(self) -> str:
        return f"tail({digest_of(self.sets)})"

    def __call__(self, blocks: Sequence[Block]) -> dict[str, torch.Tensor]:
        block = blocks[0]
        width = max(len(sets) for _, sets in self.sets)
        tail = block.logits.new_full((len(block.targets), width), torch.nan)
        for target, sets in self.sets:
            rows = torch.nonzero(block.targets == target)[:, 0]
            of_target = Block(block.logits[rows], block.targets[rows])
            for column, ids in enumerate(sets):
                tail[rows, column] = negative_log_mass(of_target, ids)
        return {"tail": tail}


def negative_log_mass(block: Block, ids: Sequence[int]) -> torch.Tensor:
    """Compute -log of the probability that the next token is one of `ids`, in nats (R,)."""
    chosen = torch.tensor(ids, dtype=torch.long, device=block.logits.device)
    return block.log_normalizer - block.logits[:, chosen].logsumexp(1)
