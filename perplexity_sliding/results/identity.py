"""Judge whether a model is its reference up to rounding, by the middle and the tail of differences.

No model.  Differences are of nlls, in nats.  Tokens count as independent.
"""

import numpy as np

# Nats by which two programs in float32 differ at most.
FLOAT32 = 1e-3
# How much farther than bfloat16 in transformers other kernels in half precision may lie.
MARGIN = 3.0
# The tail begins at so many times the root mean square of rounding.
MULTIPLE = 10.0
# The chance that rounding exceeds x falls at least as fast as x to the power of minus this.
TAIL = 4
PVALUE = 1e-3
# Between the two, it is not clear: values that are all a little too low are suspicious before they are
# refuted.
EQUAL_PVALUE = 0.05
# Approximations of smaller p-values mean nothing.
SMALLEST_PVALUE = 1e-15
# Fewest tokens of a group that are judged by themselves.
FEWEST = 8
# What differences at all lengths of context come from.
OTHERS = "other weights, a quantised copy, or another model"
# A cut window moves most tokens beyond it.  A minority may lie at some lengths by chance, such as those
# of a few requests that another model answered.
FEW = (
    "Too few of the tokens diverge to name a range of context lengths: other weights, or another model "
    "behind some of the requests."
)
# Nats that stand for an infinite nll of one of the two models.
INFINITE = 1e4


def judge_identity(differences: np.ndarray, rounding: np.ndarray, contexts: np.ndarray) -> dict:
    """Judge whether a model is its reference up to rounding.

    Differences of at most `FLOAT32` nats are the rounding of float32.  Others are tested against
    `MARGIN` times the rounding of bfloat16, see `middle_pvalues` and `tail_pvalues`, joined by
    Bonferroni's correction.  They are that rounding where no test makes it doubtful at
    `EQUAL_PVALUE`, and neither their root mean square nor the largest exceeds `MARGIN` times that of
    the rounding.

    Args:
        differences: nll under the model less that under the reference (N,).
        rounding: nll under the reference in bfloat16 less that in float32 (N,).
        contexts: tokens that each prediction sees (N,).

    Returns:
        `same`: "float32", "bfloat16" or None;
        `different`: whether the p-value is below `PVALUE`; else, without `same`, it is not clear;
        `pvalue`, at least `SMALLEST_PVALUE`;
        `rms_difference`, `rms_rounding`, `largest_difference`, `largest_rounding`: nats;
        `tail`: nats, where the tail of rounding begins;
        `share_beyond`, `share_beyond_rounding`: of tokens whose difference or rounding is in it;
        `bound`: nats, and `most_beyond_bound`: the share of such tokens that may differ by more, at
        95 % confidence;
        `summary`: a sentence.
    """
    differences, rounding = finite(differences), finite(rounding)
    distance, moved = np.abs(differences), np.abs(rounding)
    allowed = allowed_for(moved)
    pvalues = middle_pvalues(differences, rounding, allowed) + tail_pvalues(distance, moved)
    pvalue = max(SMALLEST_PVALUE, min(1.0, len(pvalues) * min(pvalues)))
    same = None
    if distance.max() <= FLOAT32:
        same = "float32"
    elif pvalue >= EQUAL_PVALUE and is_within(distance, moved):
        same = "bfloat16"
    bound = FLOAT32 if same == "float32" else float(allowed.max())
    tail = beginning_of_tail(moved)
    found = {
        "same": same,
        "different": pvalue < PVALUE,
        "pvalue": pvalue,
        "rms_difference": root_mean_square(distance),
        "rms_rounding": root_mean_square(moved),
        "largest_difference": float(distance.max()),
        "largest_rounding": float(moved.max()),
        "tail": tail,
        "share_beyond": float(np.mean(distance > tail)),
        "share_beyond_rounding": float(np.mean(moved > tail)),
        "bound": bound,
        "most_beyond_bound": most_beyond(distance, bound),
    }
    if same is not None:
        summary = agreement(found, differences, rounding)
    elif found["different"]:
        summary = f"{refusal(found, len(distance))} {describe_pattern(distance, moved, contexts)}"
    else:
        summary = (
            "It is not clear whether the model is the reference: "
            f"{measured(found, len(distance))} More text decides it."
        )
    return found | {"summary": summary}


def finite(differences: np.ndarray) -> np.ndarray:
    """Replace non-finite differences: by 0 where both nlls are infinite, else by ±`INFINITE`."""
    return np.clip(np.nan_to_num(differences, nan=0.0), -INFINITE, INFINITE)


def allowed_for(moved: np.ndarray) -> np.ndarray:
    """Return by how much each token may differ, given the size of its rounding (N,)."""
    return np.maximum(MARGIN * moved, FLOAT32)


def is_within(distance: np.ndarray, moved: np.ndarray) -> bool:
    """Return whether differences are at most rounding: in total, and the largest one."""
    return all(
        size(distance) <= max(MARGIN * size(moved), FLOAT32) for size in (root_mean_square, np.max)
    )


def root_mean_square(values: np.ndarray) -> float:
    return float(np.sqrt(np.mean(values**2)))


def beginning_of_tail(moved: np.ndarray) -> float:
    """Return the nats at which the tail of rounding begins."""
    return max(MULTIPLE * root_mean_square(moved), FLOAT32)


def middle_pvalues(
    differences: np.ndarray, rounding: np.ndarray, allowed: np.ndarray
) -> list[float]:
    """Test the typical difference, by Wilcoxon's signed ranks, and the mean, by Student's t.

    Either one-sided, the mean against `MARGIN` times that of rounding or `FLOAT32`.
    """
    from scipy.stats import t

    pvalues = [ranked_pvalue(np.abs(differences) - allowed, "greater")]
    if len(differences) > 1:
        excess = abs(differences.mean()) - max(MARGIN * abs(rounding.mean()), FLOAT32)
        variance = differences.var(ddof=1) + MARGIN**2 * rounding.var(ddof=1)
        error = max(np.sqrt(variance / len(differences)), np.finfo(float).tiny)
        pvalues.append(float(2 * t.sf(max(0.0, excess / error), len(differences) - 1)))
    return pvalues


def ranked_pvalue(excess: np.ndarray, alternative: str) -> float:
    """Return the p-value of Wilcoxon's signed-rank test of values around 0 (N,)."""
    if not excess.any():
        return 1.0
    from scipy.stats import wilcoxon  # a tenth of what it takes to import the engine

    return float(wilcoxon(excess, alternative=alternative).pvalue)


def tail_pvalues(distance: np.ndarray, moved: np.ndarray) -> list[float]:
    """Test the root mean square, the share of tokens in the tail, and the largest difference.

    If differences are rounding, that of a token and `MARGIN` times its rounding may change places:
    - the sum of the differences of their squares then has random signs, and Hoeffding's inequality
      bounds it;
    - of the tokens where one alone of the two lies in the tail, it is either in half of them;
    - the ratio of the two largest has a tail of the power `TAIL`, of N tokens no more than N.
    """
    from scipy.stats import binom

    allowed = allowed_for(moved)
    squares = distance**2 - allowed**2
    excess = max(0.0, squares.sum())
    by_squares = np.exp(-(excess**2) / (2 * (squares**2).sum())) if excess else 1.0
    beyond, rounded_beyond = (v > beginning_of_tail(moved) for v in (distance, allowed))
    alone, other = int((beyond & ~rounded_beyond).sum()), int((rounded_beyond & ~beyond).sum())
    by_share = binom.sf(alone - 1, alone + other, 0.5)
    ratio = max(1.0, distance.max() / allowed.max())
    return [float(by_squares), float(by_share), float(ratio ** -min(TAIL, len(distance)))]


def most_beyond(distance: np.ndarray, bound: float) -> float:
    """Return the share of tokens that may differ by more, at 95 % confidence (Clopper, Pearson)."""
    from scipy.stats import beta

    count = int((distance > bound).sum())
    return (
        1.0 if count == len(distance) else float(beta.ppf(0.95, count + 1, len(distance) - count))
    )


# --- in words -------------------------------------------------------------------------------------


def agreement(found: dict, differences: np.ndarray, rounding: np.ndarray) -> str:
    """Describe up to which bound the model and its reference agree."""
    number = len(differences)
    most = f"{100 * found['most_beyond_bound']:.2g} % of such tokens (95 % confidence)"
    if found["same"] == "float32":
        return (
            "The model is the reference up to the rounding of float32: over "
            f"{number:,} tokens they differ by at most {found['largest_difference']:.2g} nats, and "
            f"by more than {FLOAT32:g} in fewer than {most}."
        )
    change, rounded = (f"{100 * np.expm1(v.mean()):+.2g} %" for v in (differences, rounding))
    return (
        "The model cannot be distinguished from the reference up to the rounding of bfloat16: "
        f"{measured(found, number)} Its perplexity changes by {change}, by the rounding {rounded}. "
        f"More than {found['bound']:.2g} nats may be the difference in up to {most}."
    )


def refusal(found: dict, number: int) -> str:
    """Describe how far the model is from its reference."""
    pvalue = found["pvalue"]
    sure = f"p = {pvalue:.1g}" if pvalue > SMALLEST_PVALUE else f"p < {SMALLEST_PVALUE:g}"
    return (
        f"The model is not the reference ({sure}): {measured(found, number)} "
        f"{100 * found['share_beyond']:.2g} % of the tokens differ by more than "
        f"{found['tail']:.2g} nats; rounding moves {100 * found['share_beyond_rounding']:.2g} % as "
        "far."
    )


def measured(found: dict, number: int) -> str:
    """Write differences and rounding as a sentence."""
    return (
        f"over {number:,} tokens they differ by {found['rms_difference']:.2g} nats (root mean "
        f"square; at most {found['largest_difference']:.2g}), and the reference in bfloat16 from "
        f"itself in float32 by {found['rms_rounding']:.2g} (at most "
        f"{found['largest_rounding']:.2g})."
    )


def describe_pattern(distance: np.ndarray, moved: np.ndarray, contexts: np.ndarray) -> str:
    """Describe at which lengths of context two models diverge, and the likely cause.

    Names a pattern only where the tokens of the other lengths are shown to agree, and most tokens of
    these lengths to diverge.

    Args:
        distance, moved: sizes of the difference and of the rounding of each token (N,).
    """
    group = np.frexp(contexts)[1]  # 0, 1, 2-3, 4-7, …
    lengths = [n for n in np.unique(group).tolist() if (group == n).sum() >= FEWEST]
    apart = [n for n in lengths if are_apart(distance[group == n], moved[group == n])]
    if apart == lengths:
        return f"They diverge at every context length: {OTHERS}."
    none = f"No range of context lengths is shown to agree: {OTHERS}."
    if not apart:
        return none
    early, late = apart[0] == lengths[0], apart[-1] == lengths[-1]
    inside = (early | (group >= apart[0])) & (late | (group <= apart[-1]))
    in_a_row = lengths[lengths.index(apart[0]) :][: len(apart)] == apart
    if not in_a_row or not agree(distance, moved, ~inside):
        return none
    if not do_most_differ(distance[inside], moved[inside]):
        return FEW
    begin, end = 2 ** apart[0] // 2, 2 ** apart[-1] - 1
    if late:
        return (
            f"They agree up to {begin - 1} tokens of context and begin to diverge between {begin} and "
            f"{2 * begin - 1}, as where a window is cut or a rotary scaling begins."
        )
    if early:
        return (
            f"They diverge in the first {end} tokens of context and agree after them, as with a start "
            "token more or less."
        )
    return f"They diverge from {begin} to {end} tokens of context and agree at other lengths."


def are_apart(distance: np.ndarray, moved: np.ndarray) -> bool:
    """Return whether tokens differ by more than rounding."""
    allowed = allowed_for(moved)
    middle = ranked_pvalue(distance - allowed, "greater")
    return min(middle, *tail_pvalues(distance, moved)) < PVALUE


def do_most_differ(distance: np.ndarray, moved: np.ndarray) -> bool:
    """Return whether more than half of the tokens are shown to differ by more than rounding."""
    from scipy.stats import binom

    beyond = int((distance > allowed_for(moved)).sum())
    return bool(binom.sf(beyond - 1, len(distance), 0.5) < PVALUE)


def agree(distance: np.ndarray, moved: np.ndarray, rest: np.ndarray) -> bool:
    """Check whether the rest of the tokens agree, in contrast to the others."""
    near, rounded = distance[rest], moved[rest]
    allowed = allowed_for(rounded)
    if not len(near) or ranked_pvalue(near - allowed, "less") >= PVALUE:
        return False
    ratio, ratio_apart = (
        root_mean_square(distance[chosen]) / max(root_mean_square(moved[chosen]), FLOAT32)
        for chosen in (rest, ~rest)
    )
    return is_within(near, rounded) and ratio_apart >= MARGIN * ratio
