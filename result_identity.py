"""Whether two ways to run a model run the same one: their differences beside those of rounding.

The reference is scored in float32 and once more in bfloat16.  A server that runs the same weights in
half precision lies about as far from the first as the second does, token by token; another model,
or the same one run wrongly, lies farther.  Nlls are nats.
"""

import numpy as np
from scipy.stats import wilcoxon

# Nats by which two programs in float32 differ at most tokens.
FLOAT32 = 1e-3
# How much farther than bfloat16 in transformers other kernels in half precision may lie.
MARGIN = 3.0
PVALUE = 1e-3
# Fewest tokens of a group that are judged by themselves.
FEWEST = 8


def judge_identity(differences: np.ndarray, rounding: np.ndarray, contexts: np.ndarray) -> dict:
    """Judge whether a model is its reference up to rounding.

    Wilcoxon's signed-rank test of |difference| against `MARGIN` times |rounding|, one-sided; tokens
    count as independent.

    Args:
        differences: nll under the model less that under the reference (N,).
        rounding: nll under the reference in bfloat16 less that in float32 (N,).
        contexts: tokens that each prediction sees (N,).

    Returns:
        `same` ("float32", "bfloat16" or None), `pvalue`, `rms_difference`, `rms_rounding`, and a
        `summary`.
    """
    distance, allowed = np.abs(differences), MARGIN * np.abs(rounding)
    pvalue = farther(distance, allowed)
    same = None if pvalue < PVALUE else "bfloat16"
    if np.quantile(distance, 0.99) <= FLOAT32:
        same = "float32"
    rms, rms_rounding = (float(np.sqrt(np.mean(v**2))) for v in (differences, rounding))
    numbers = (
        f"over {len(distance):,} tokens they differ by {rms:.2g} nats (root mean square), and the "
        f"reference in bfloat16 from itself in float32 by {rms_rounding:.2g}"
    )
    if same is not None:
        verb = "is" if same == "float32" else "cannot be told from"
        summary = f"The model {verb} the reference up to the rounding of {same}: {numbers}."
    else:
        looks = describe_pattern(distance, allowed, contexts)
        summary = f"The model is not the reference (p = {pvalue:.1g}): {numbers}. {looks}"
    return {
        "same": same,
        "pvalue": pvalue,
        "rms_difference": rms,
        "rms_rounding": rms_rounding,
        "summary": summary,
    }


def farther(distance: np.ndarray, allowed: np.ndarray) -> float:
    """Return the p-value of distances being no larger than allowed ones (N,)."""
    excess = distance - allowed
    if not np.isfinite(excess).all():
        return 0.0
    if not excess.any():
        return 1.0
    return float(wilcoxon(excess, alternative="greater").pvalue)


def describe_pattern(distance: np.ndarray, allowed: np.ndarray, contexts: np.ndarray) -> str:
    """Say at which lengths of context two models part, and what that looks like."""
    group = np.frexp(contexts)[1]  # 0, 1, 2-3, 4-7, …
    lengths = [n for n in np.unique(group).tolist() if (group == n).sum() >= FEWEST]
    apart = [
        n
        for n in lengths
        if np.median(distance[group == n]) > max(np.median(allowed[group == n]), FLOAT32)
    ]
    if not apart or apart == lengths:
        return "They part at every length of context: other weights, a quantised copy, or another model."
    if apart == lengths[: len(apart)]:
        return (
            f"They part in the first {2 ** apart[-1] - 1} tokens of context and agree after them: a "
            "start token more or less."
        )
    if apart == lengths[-len(apart) :]:
        return (
            f"They agree up to {2 ** apart[0] // 2 - 1} tokens of context and part from there on: a "
            "window that is cut, or a rotary scaling that begins there."
        )
    return "They part at some lengths of context and not at others."
