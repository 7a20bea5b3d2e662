"""How far two models' predictions of the next token lie apart, from their logits for the same rows.

A measure over two blocks: `blocks[0]` is the model's, `blocks[1]` the reference's.  With p the
reference's probability of a token, q the model's and u = ln q - ln p:

    KL(ref || model) = Σ p·(e^u - 1 - u)          KL(model || ref) = Σ p·(u·e^u - e^u + 1)

which are Σ p·ln(p/q) and Σ q·ln(q/p), as Σ q = Σ p.  No term is negative, and an error in either
logarithm of a sum enters squared, so float32 holds divergences of 1e-8 nats, where Σ p·ln(p/q)
loses everything below 1e-6.

The logarithms of the sums come from the losses, which are there anyway, to about 1e-5 nats.  The
terms tell what they are off by: with S = Σ p and s = Σ p·(e^u - 1), the true p is p/S and the true
u is u - ln(1 + s/S).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from .score_measures import Block

# Elements of logits that are compared at once: with the four buffers a CPU's cache holds them; an
# accelerator wants larger pieces, still small beside the logits.
CPU_PIECE = 2**18
PIECE = 2**23
COLUMNS = (
    *("reference_nll", "top", "reference_top", "reference_top_probability"),
    *("outside", "reference_outside"),
    *("kl", "kl_reverse", "total_variation", "reference_entropy"),
)
# Largest u of the sums above: q/p of e^30 leaves a p below 1e-13, near where float32 loses it.
LARGEST_LOG_RATIO = 30.0
# Nats up to which a loss still tells the logarithm of the sum that it came from.
LARGEST_NEAR_NLL = 64.0


@dataclass(frozen=True)
class Divergence:
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

    columns = COLUMNS
    num_models = 2
    key = "divergence"

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
    """Find the likeliest ids (R,) under logits (R, V), the first of equals."""
    if logits.device.type != "cpu":
        return logits.argmax(1)
    return torch.from_numpy(logits.numpy().argmax(1))  # ten times as fast as torch's


def outside(block: Block, common: int) -> torch.Tensor:
    """Sum the probability (R,) of the ids from `common` on."""
    if common == block.logits.shape[1]:
        return block.logits.new_zeros(len(block.logits))
    return (block.logits[:, common:].logsumexp(1) - block.log_normalizer).exp()


def compare_distributions(
    reference: tuple[torch.Tensor, torch.Tensor], model: tuple[torch.Tensor, torch.Tensor]
) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Compute the divergences between two distributions.

    Args:
        reference, model: each its logits (R, V) and about their log-normalizers (R,).

    Returns:
        the last of `COLUMNS`, and the sum of the reference's probabilities (R,), which would be 1
        with its log-normalizers themselves.
    """
    logits = reference[0]
    num_rows, width = logits.shape
    step = (CPU_PIECE if logits.device.type == "cpu" else PIECE) // width
    step = max(1, min(step, num_rows // 2))  # the buffers then take no more than two losses do
    buffers = torch.empty(4, step, width, device=logits.device)
    sums = torch.empty(5, num_rows, device=logits.device)
    too_far = torch.empty(num_rows, dtype=torch.bool, device=logits.device)
    for first in range(0, num_rows, step):
        rows = slice(first, first + step)
        size = len(logits[rows])
        sums[:, rows], too_far[rows] = _sum_terms(
            *(part[rows] for part in (*reference, *model)), buffers[:, :size]
        )
    for row in too_far.nonzero()[:, 0].tolist():
        sums[:4, row] = _sum_in_float64(reference[0][row], model[0][row])
    sums.clamp_min_(0)
    sums[2].clamp_max_(1)
    return dict(zip(COLUMNS[-4:], sums)), sums[4]


def _sum_terms(
    z_p: torch.Tensor,
    log_p: torch.Tensor,
    z_q: torch.Tensor,
    log_q: torch.Tensor,
    buffers: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sum the terms of each row, in place of `buffers` (4, R, V).

    Returns:
        sums (5, R) as `compare_distributions` names them, the mass of p the last, and whether the
        others are of no use (R,), because u is too large or no number.
    """
    p, u, ratio, terms = buffers
    torch.sub(z_p, log_p[:, None], out=terms)
    torch.exp(terms, out=p)
    mass = p.sum(1)
    entropy = mass.log() - terms.mul_(p).sum(1) / mass
    torch.sub(z_q, z_p, out=u).sub_((log_q - log_p)[:, None])
    largest = u.amax(1)
    torch.expm1(u, out=ratio)  # q/p - 1
    near_kl = torch.sub(ratio, u, out=terms).mul_(p).sum(1)
    excess = torch.mul(ratio, p, out=terms).sum(1) / mass
    both_ways = terms.mul_(u).sum(1)  # the sum of both divergences, as Σ p·(e^u - 1)·u
    kl = near_kl / mass - (excess - excess.log1p())
    kl_reverse = (both_ways - near_kl) / (mass * (1 + excess))
    kl_reverse -= excess.log1p() - excess / (1 + excess)
    distance = ratio.sub_(excess[:, None]).abs_().mul_(p).sum(1)
    total_variation = distance / (2 * mass * (1 + excess))
    sums = torch.stack([kl, kl_reverse, total_variation, entropy, mass])
    return sums, ~((largest <= LARGEST_LOG_RATIO) & sums.isfinite().all(0))


def _sum_in_float64(z_p: torch.Tensor, z_q: torch.Tensor) -> torch.Tensor:
    """Compute the same sums (4,) for one row (V,), where tokens may have no probability at all."""
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


def near_normalizer(block: Block, common: int) -> torch.Tensor:
    """Return about the logarithm of the sum (R,) of e^logit over the first `common` ids."""
    if common < block.logits.shape[1]:
        return block.logits[:, :common].logsumexp(1)
    log_sum = block.nll + block.logits.gather(1, block.targets[:, None])[:, 0]
    coarse = ~(block.nll < LARGEST_NEAR_NLL)
    log_sum[coarse] = block.logits[coarse].logsumexp(1)
    return log_sum
