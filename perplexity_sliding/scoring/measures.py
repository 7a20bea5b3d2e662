"""Measures of a target token, given the logits that predict it: one class a measure.

A measure takes blocks of logits and returns columns, one value (or row of values) a target.  Where
two models score the same rows there are two blocks: the model's and the reference's.  To add a
measure of one number a token, write a class as `Rank` is one, and name it in `TOKEN_MEASURES`:
`return_token_scores=["its name"]` then returns its column in `token_scores`.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch

from ..digests import digest_of

# Elements of logits that are compared at once: with the four buffers a CPU's cache holds them; an
# accelerator wants larger pieces, still small beside the logits.
CPU_PIECE = 2**18
PIECE = 2**23
# What `compare_distributions` sums.
DIVERGENCES = ("kl", "kl_reverse", "total_variation", "reference_entropy")
# Largest u of these sums: q/p of e^30 leaves a p below 1e-13, near where float32 loses it.
LARGEST_LOG_RATIO = 30.0
# Nats up to which the logarithm of a sum can be recovered from a loss.
LARGEST_NEAR_NLL = 64.0


class Block:
    """Logits (R, V) of R rows, and the tokens (R,) that they predict.

    Log-likelihoods are taken in float32 whatever the model runs in: in bfloat16 they would come in
    steps.

    Args:
        only_nll: nothing but `nll` is asked of the block, which may overwrite its logits.
    """

    def __init__(self, logits: torch.Tensor, targets: torch.Tensor, only_nll: bool = False) -> None:
        self.logits = logits.float()
        self.targets = targets
        self.overwrites = only_nll and self.logits.is_contiguous()

    @cached_property
    def nll(self) -> torch.Tensor:
        if self.overwrites:  # the same numbers, without as much memory again
            log_probs = torch.log_softmax(self.logits, 1, out=self.logits)
            return -log_probs.gather(1, self.targets[:, None])[:, 0]
        return torch.nn.functional.cross_entropy(self.logits, self.targets, reduction="none")

    @cached_property
    def log_normalizer(self) -> torch.Tensor:
        """log Σ exp(logits), in nats (R,)."""
        return self.logits.logsumexp(1)


@dataclass(frozen=True)
class Measure:
    """Scores targets under the logits of one model, or of a model and its reference."""

    columns: ClassVar[tuple[str, ...]]  # names of what it returns
    num_models: ClassVar[int] = 1  # whose logits it needs

    @property
    def key(self) -> str:
        """Its name in a checkpoint; measures with the same key return the same columns."""
        return self.columns[0]

    def __call__(self, blocks: Sequence[Block]) -> dict[str, torch.Tensor]:
        """Return columns by name, each with R values or rows of values."""
        raise NotImplementedError


class NegativeLogLikelihood(Measure):
    """`nll`: negative log-likelihood of each target in nats (R,)."""

    columns = ("nll",)

    def __call__(self, blocks: Sequence[Block]) -> dict[str, torch.Tensor]:
        return {"nll": blocks[0].nll}


@dataclass(frozen=True)
class Alternatives(Measure):
    """The target's rank and the most likely tokens at its position.

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
        logits = blocks[0].logits
        top = logits.topk(min(self.number, logits.shape[1]))
        return Rank()(blocks) | {
            "top_ids": top.indices,
            "top_nll": blocks[0].log_normalizer[:, None] - top.values,
        }


class Likeliest(Measure):
    """`top`: id of the most likely token (R,)."""

    columns = ("top",)

    def __call__(self, blocks: Sequence[Block]) -> dict[str, torch.Tensor]:
        return {"top": blocks[0].logits.argmax(1)}


class Rank(Measure):
    """`rank`: rank of the target, 1 for the most likely token (R,)."""

    columns = ("rank",)

    def __call__(self, blocks: Sequence[Block]) -> dict[str, torch.Tensor]:
        logits, targets = blocks[0].logits, blocks[0].targets
        return {"rank": 1 + (logits > logits.gather(1, targets[:, None])).sum(1)}


class Entropy(Measure):
    """`entropy`: of the prediction, -Σ p log p over the vocabulary in nats (R,)."""

    columns = ("entropy",)

    def __call__(self, blocks: Sequence[Block]) -> dict[str, torch.Tensor]:
        return {"entropy": torch.special.entr(blocks[0].logits.softmax(1)).sum(1)}


# Measures of one number a token that `return_token_scores` takes, by the name of the column.
TOKEN_MEASURES: dict[str, Callable[[], Measure]] = {"rank": Rank, "entropy": Entropy}
# The name of a column with the most likely tokens: "top5".
TOP = re.compile(r"top([1-9]\d*)")


def token_measures(token_columns: Sequence[str]) -> list[Measure]:
    """List the measures for the columns of each token that a call returns, the nll first."""
    measures: list[Measure] = [NegativeLogLikelihood()]
    numbers = [int(match[1]) for name in token_columns if (match := TOP.fullmatch(name))]
    if numbers:
        measures.append(Alternatives(max(numbers)))
    given = {name for measure in measures for name in measure.columns}
    asked = (name for name in TOKEN_MEASURES if name in token_columns)
    return measures + [TOKEN_MEASURES[name]() for name in asked if name not in given]


@dataclass(frozen=True)
class SetMass(Measure):
    """-log of the probability that the next token is one of the set `ids`, in nats (R,)."""

    name: str
    ids: tuple[int, ...]

    @property
    def columns(self) -> tuple[str, ...]:  # type: ignore[override]
        return (self.name,)

    @property
    def key(self) -> str:
        return f"mass({digest_of(self.ids)})"

    def __call__(self, blocks: Sequence[Block]) -> dict[str, torch.Tensor]:
        block = blocks[0]
        chosen = torch.tensor(self.ids, dtype=torch.long, device=block.logits.device)
        return {self.name: block.log_normalizer - block.logits[:, chosen].logsumexp(1)}


class Divergence(Measure):
    """The predictions of a model and of its reference compared, row by row.

    Gives columns (R,), in nats where they are no probabilities:

    reference_nll: nll of the target under the reference.
    kl, kl_reverse: divergence of the model from the reference, and the other way round.
    total_variation: half the sum of |p - q|: how often the two must pick different tokens.
    top, reference_top: id of the likeliest token.
    reference_top_probability, reference_entropy: how sure the reference is.
    outside, reference_outside: probability of the ids that only one of the two has.

    Where the vocabularies differ in size, the divergences are of the distributions over the ids
    that both have, each renormalised.
    """

    columns = (
        *("reference_nll", "top", "reference_top", "reference_top_probability"),
        *("outside", "reference_outside", *DIVERGENCES),
    )
    num_models = 2

    def __call__(self, blocks: Sequence[Block]) -> dict[str, torch.Tensor]:
        model, reference = blocks
        common = min(block.logits.shape[1] for block in blocks)
        sums, mass = compare_distributions(
            *((block.logits[:, :common], near_normalizer(block, common)) for block in blocks[::-1])
        )
        log_normalizer = near_normalizer(reference, common) + mass.log()
        if common < reference.logits.shape[1]:
            log_normalizer = reference.log_normalizer
        reference_top = top_ids(reference.logits)
        highest = reference.logits.gather(1, reference_top[:, None])[:, 0]
        return {
            "reference_nll": reference.nll,
            "top": top_ids(model.logits),
            "reference_top": reference_top,
            "reference_top_probability": (highest - log_normalizer).exp(),
            "outside": outside(model, common),
            "reference_outside": outside(reference, common),
        } | sums


def top_ids(logits: torch.Tensor) -> torch.Tensor:
    """Find the most likely ids (R,) under logits (R, V); the first one of ties."""
    if logits.device.type != "cpu":
        return logits.argmax(1)
    return torch.from_numpy(logits.numpy().argmax(1))  # ten times as fast as torch's


def outside(block: Block, common: int) -> torch.Tensor:
    """Sum the probability (R,) of the ids from `common` on."""
    if common == block.logits.shape[1]:
        return block.logits.new_zeros(len(block.logits))
    return (block.logits[:, common:].logsumexp(1) - block.log_normalizer).exp()


def near_normalizer(block: Block, common: int) -> torch.Tensor:
    """Return about the logarithm of the sum (R,) of e^logit over the first `common` ids."""
    if common < block.logits.shape[1]:
        return block.logits[:, :common].logsumexp(1)
    log_sum = block.nll + block.logits.gather(1, block.targets[:, None])[:, 0]
    coarse = ~(block.nll < LARGEST_NEAR_NLL)
    log_sum[coarse] = block.logits[coarse].logsumexp(1)
    return log_sum


def compare_distributions(
    reference: tuple[torch.Tensor, torch.Tensor], model: tuple[torch.Tensor, torch.Tensor]
) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Compute the divergences between two distributions.

    Args:
        reference, model: each its logits (R, V) and about their log-normalizers (R,).

    Returns:
        `DIVERGENCES`, and the sum of the reference's probabilities (R,), which would be 1 with its
        log-normalizers themselves.
    """
    (z_p, log_p), (z_q, log_q) = reference, model
    num_rows, width = z_p.shape
    step = (CPU_PIECE if z_p.device.type == "cpu" else PIECE) // width
    step = max(1, min(step, num_rows // 2))  # then the buffers are at most as large as two losses
    buffers = torch.empty(4, step, width, device=z_p.device)
    sums = torch.empty(5, num_rows, device=z_p.device)
    largest = torch.empty(num_rows, device=z_p.device)
    for first in range(0, num_rows, step):
        rows = slice(first, first + step)
        p, u, ratio, terms = buffers[:, : len(z_p[rows])]
        torch.sub(z_p[rows], log_p[rows, None], out=terms)
        torch.exp(terms, out=p)
        mass = p.sum(1)
        entropy = mass.log() - terms.mul_(p).sum(1) / mass
        torch.sub(z_q[rows], z_p[rows], out=u).sub_((log_q[rows] - log_p[rows])[:, None])
        largest[rows] = u.amax(1)
        torch.expm1(u, out=ratio)  # q/p - 1
        near_kl = torch.sub(ratio, u, out=terms).mul_(p).sum(1)
        excess = torch.mul(ratio, p, out=terms).sum(1) / mass
        both_ways = terms.mul_(u).sum(1)  # the sum of both divergences, as Σ p·(e^u - 1)·u
        kl = near_kl / mass - (excess - excess.log1p())
        kl_reverse = (both_ways - near_kl) / (mass * (1 + excess))
        kl_reverse -= excess.log1p() - excess / (1 + excess)
        distance = ratio.sub_(excess[:, None]).abs_().mul_(p).sum(1)
        total_variation = distance / (2 * mass * (1 + excess))
        sums[:, rows] = torch.stack([kl, kl_reverse, total_variation, entropy, mass])
    too_far = ~((largest <= LARGEST_LOG_RATIO) & sums.isfinite().all(0))
    for row in too_far.nonzero()[:, 0].tolist():
        sums[:4, row] = sum_in_float64(z_p[row], z_q[row])
    sums.clamp_min_(0)
    sums[2].clamp_max_(1)
    return dict(zip(DIVERGENCES, sums)), sums[4]


def sum_in_float64(z_p: torch.Tensor, z_q: torch.Tensor) -> torch.Tensor:
    """Compute `DIVERGENCES` (4,) for one row (V,), in which tokens may have probability 0."""
    if z_p.device.type == "mps":  # knows no float64
        z_p, z_q = z_p.cpu(), z_q.cpu()
    log_p, log_q = (z.double().log_softmax(0) for z in (z_p, z_q))
    p, q = log_p.exp(), log_q.exp()
    u = log_q - log_p

    def expected(weights: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        return torch.where(weights > 0, weights * values, 0).sum()

    return torch.stack(
        [expected(p, -u), expected(q, u), (p - q).abs().sum() / 2, expected(p, -log_p)]
    ).to(z_p.dtype)
