"""Judge whether a server runs its reference: the same model, the same up to rounding, or another.

Rounding is measured on the same tokens: by how much the reference in bfloat16 differs from itself in
float32.  A server of the same weights in half precision differs from it by about as much.
"""

import numpy as np

# Nats by which two programs in float32 differ at most.
FLOAT32 = 1e-3
# How many times that of rounding the root mean square of differences may be, as other kernels round
# in other ways; and the largest, which varies more.
MARGIN, MARGIN_OF_LARGEST = 3.0, 10.0
# Standard errors by which a mean may differ by chance.
ERRORS = 3.0
# Fewest tokens that show rounding well enough: of servers that round twice as much, 1 % differ by more.
FEWEST = 100
# Nats that stand for an infinite nll of one of the two models.
INFINITE = 1e4


def judge_sameness(differences: np.ndarray, rounding: np.ndarray) -> dict:
    """Judge whether a model is its reference up to rounding.

    Args:
        differences: nll under the model less that under the reference, in nats (N,).
        rounding: nll under the reference in bfloat16 less that in float32 (N,).

    Returns:
        `same`: "float32" if no token differs by more than `FLOAT32`; "bfloat16" if root mean square,
        largest and mean are those of rounding within their margins; None otherwise;
        `different`: whether they are not; without `same`, it is not clear, for lack of tokens;
        `rms_difference`, `rms_rounding`, `largest_difference`, `largest_rounding`,
        `mean_difference`, `mean_rounding`: nats;
        `summary`: a sentence.
    """
    number = len(differences)
    differences, rounding = (  # where both nlls are infinite, they agree
        np.nan_to_num(v, nan=0.0, posinf=INFINITE, neginf=-INFINITE)
        for v in (differences, rounding)
    )
    rms, of_rounding = (float(np.sqrt(np.mean(v**2))) for v in (differences, rounding))
    largest, largest_rounding = (float(np.abs(v).max()) for v in (differences, rounding))
    mean, mean_rounding = float(differences.mean()), float(rounding.mean())
    pairs = (
        (rms, MARGIN * of_rounding),
        (largest, MARGIN_OF_LARGEST * largest_rounding),
        (abs(mean), MARGIN * (abs(mean_rounding) + ERRORS * of_rounding / np.sqrt(number))),
    )
    is_rounding = all(found <= max(allowed, FLOAT32) for found, allowed in pairs)
    same = None
    if largest <= FLOAT32:
        same = "float32"
    elif is_rounding and number >= FEWEST:
        same = "bfloat16"
    different = not is_rounding and number >= FEWEST
    if same == "float32":
        verdict = "The model is the reference"
    elif same == "bfloat16":
        verdict = "The model is the reference up to the rounding of bfloat16"
    elif different:
        verdict = "The model is not the reference, or has other settings"
    else:
        verdict = f"It takes {FEWEST} tokens to tell whether the model is the reference"
    return {
        "same": same,
        "different": different,
        "rms_difference": rms,
        "rms_rounding": of_rounding,
        "largest_difference": largest,
        "largest_rounding": largest_rounding,
        "mean_difference": mean,
        "mean_rounding": mean_rounding,
        "summary": (
            f"{verdict}: over {number:,} tokens they differ by {rms:.2g} nats (root mean square; at "
            f"most {largest:.2g}, on average {mean:+.2g}), and the reference in bfloat16 from itself "
            f"by {of_rounding:.2g} (at most {largest_rounding:.2g}, on average {mean_rounding:+.2g})."
        ),
    }
