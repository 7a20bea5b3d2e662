"""Differences between the scores of a model and of its reference, with their uncertainty.

No model.  Nlls and divergences are in nats.  The two are compared token by token, or where their
tokenizers differ by the byte, over pieces of text that both cut; what is taken as independent are
texts, or parts of texts, never tokens.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ..digests import ROUNDING
from ..errors import ArgumentError
from .uncertainty import Blocks, Clusters, Estimate, as_ratio, estimate_ratio, share_interval

# Equal weights differ by less in float32, in nats, at a single token.
TOKEN_ROUNDING = 1e-5
# Ranges of the reference's highest probability, as in exllamav3's qbench: where the reference is
# unsure, every change has a large effect; where it is sure, only damage has.
CONFIDENCES = ((0.0, 0.25), (0.25, 0.5), (0.5, 0.75), (0.75, 0.95), (0.95, 1.0))
PERCENTILES = (0, 0.1, 1, 5, 10, 25, 50, 75, 90, 95, 99, 99.9, 100)
# Maximum mean probability of ids that only one of the models has; above it, the models are not
# comparable over the common ids.
MOST_OUTSIDE = 1e-3


@dataclass(frozen=True, eq=False)
class PairedScores:
    """Scores of the same tokens under a model and its reference, one text after the other.

    Attributes:
        lengths: tokens of each text, scored or not (T,).
        texts: the text that each scored token belongs to (N,), 0 to T - 1.
        positions: its place there (N,).
        contexts: tokens that its prediction sees (N,).
        targets: its id (N,).
        columns: `nll` and all that `Divergence` gives, each (N,).
        block_tokens: fewest scored tokens in a part of a text that is taken as independent.
    """

    lengths: Sequence[int]
    texts: np.ndarray
    positions: np.ndarray
    contexts: np.ndarray
    targets: np.ndarray
    columns: dict[str, np.ndarray]
    block_tokens: float

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, name: str) -> np.ndarray:
        return self.columns[name].astype(np.float64)

    @property
    def differences(self) -> np.ndarray:
        """nll of each token under the model less that under the reference, in nats (N,)."""
        with np.errstate(invalid="ignore"):  # both may be infinite
            return self["nll"] - self["reference_nll"]

    @property
    def are_of_logits(self) -> bool:
        return "kl" in self.columns

    @cached_property
    def clusters(self) -> Clusters:
        """The texts, or parts of texts, that are assumed to be independent."""
        ones = np.ones(len(self))
        blocks = Blocks.of(self.lengths, self.texts, self.positions, [ones])
        return blocks.clusters(self.block_tokens)

    def sums(self, column: np.ndarray, chosen: np.ndarray | slice = slice(None)) -> np.ndarray:
        """Sum a column of the chosen tokens over each cluster, and count them (2, C)."""
        texts, positions = self.texts[chosen], self.positions[chosen]
        blocks = Blocks.of(self.lengths, texts, positions, [np.ones(len(texts)), column])
        return blocks.cut(self.clusters.num_parts).sums.T[::-1]

    def mean(self, column: np.ndarray, chosen: np.ndarray | slice = slice(None)) -> Estimate:
        return estimate_ratio(*self.sums(column, chosen))


def compare(scores: PairedScores, ratio: dict, margin: float | None = None) -> dict:
    """Compare a model with its reference.

    Args:
        ratio: of the perplexities, see `ratio_of_perplexities`.
        margin: how much worse the model may be: 0.01 allows a perplexity that is 1 % higher.

    Returns:
        plain Python numbers and intervals of 95 % confidence, None where the text is too little.
    """
    result = {
        **judge(ratio, margin, "perplexity", len(scores.lengths)),
        "perplexity_ratio": ratio,
        "interval_sample": ratio["sample"],
        "interval_scope": scores.clusters.scope,
        **(compare_distributions(scores) if scores.are_of_logits else {}),
        **compare_predictions(scores),
        **compare_probabilities(scores),
    }
    if scores.are_of_logits:
        sureness = scores["reference_top_probability"]
        result["by_confidence"] = compare_groups(scores, sureness, CONFIDENCES)
    doublings = range(int(scores.contexts.max()).bit_length() + 1)
    doubling = [(2**number // 2, 2**number - 1) for number in doublings]  # 1, 2-3, 4-7, …
    return result | {"by_tokens_seen": compare_groups(scores, scores.contexts, doubling)}


def judge(ratio: dict, margin: float | None, what: str, num_texts: int) -> dict:
    """Judge by the interval of a ratio whether the model is better or worse: a word, and a sentence.

    That none is seen to be better does not make them equal: "within 1 %" only follows where all
    of the interval lies below the margin.

    Args:
        what: the quantity of which `ratio` is that of the model to the reference.
    """
    value, interval = ratio["ratio"], ratio["interval"]
    is_within = interval is not None and margin is not None and interval[1] < 1 + margin
    texts = "this text" if num_texts == 1 else "these texts"
    if interval is None:
        verdict, summary = "too little text to tell", "The model against the reference"
    elif interval[1] < 1 - ROUNDING:
        verdict, summary = "better", f"The model predicts {texts} better than the reference"
    elif margin is not None and is_within:
        verdict = f"within {100 * margin:g} %"
        summary = f"The model is {verdict} of the reference"
    elif interval[0] > 1 + ROUNDING:
        verdict, summary = "worse", f"The model predicts {texts} worse than the reference"
    else:
        verdict = "no clear difference"
        summary = "No clear difference between the model and the reference"

    def in_words(ratio: float) -> str:
        return f"{100 * abs(ratio - 1):.3g} % {'higher' if ratio >= 1 else 'lower'}"

    if value is None or not math.isfinite(value):
        summary = (
            f"There is no ratio, because the {what} of the model or the reference is infinite."
        )
    elif interval is not None and max(abs(one - 1) for one in (value, *interval)) <= ROUNDING:
        summary = "No difference between the model and the reference"
        summary += f": the {what} of both is the same."
    else:
        change = "the same" if abs(value - 1) <= ROUNDING else in_words(value)
        sure = ". There is not enough text for an interval."
        if interval is not None:
            sure = f" (95 % interval: {in_words(interval[0])} to {in_words(interval[1])})."
        summary += f": its {what} is {change}{sure}"
    judged = {"verdict": verdict, "summary": summary}
    return judged if margin is None else judged | {"margin": margin, "within_margin": is_within}


def compare_distributions(scores: PairedScores) -> dict:
    for name, column in {"model": "outside", "reference": "reference_outside"}.items():
        mass = float(scores[column].mean())
        if mass > MOST_OUTSIDE:
            raise ArgumentError(
                "reference",
                f"have the vocabulary of the model, up to padding, but the {name} gives ids that "
                f"the other lacks a probability of {mass:.2g} on average, more than {MOST_OUTSIDE}",
                advice="Pass the reference's tokenizer as `reference['tokenizer']` if it differs.",
            )
    result: dict[str, object] = {}
    for name in ("kl", "kl_reverse"):
        estimate = scores.mean(scores[name])
        result |= {name: estimate.value, f"{name}_interval": positive_interval(estimate)}
    kl = scores["kl"]
    return result | {
        "kl_percentiles": percentiles(kl),
        "num_infinite_kl": int(np.isinf(kl).sum()),
    }


def compare_predictions(scores: PairedScores) -> dict:
    top, reference_top = scores.columns["top"], scores.columns["reference_top"]
    right, was_right = top == scores.targets, reference_top == scores.targets
    shares = {
        "same_top": top == reference_top,
        "accuracy": right,
        "reference_accuracy": was_right,
        "right_to_wrong": was_right & ~right,
        "wrong_to_right": right & ~was_right,
    }
    if scores.are_of_logits:
        shares = {"token_agreement": 1 - scores["total_variation"]} | shares
    result: dict[str, object] = {}
    for name, column in shares.items():
        hits, tokens = scores.sums(column.astype(np.float64))
        result[name] = float(hits.sum() / tokens.sum())
        result[f"{name}_interval"] = share_interval(hits, tokens)
    change = scores.mean(right.astype(np.float64) - was_right)
    return result | {
        "accuracy_change": change.value,
        "accuracy_change_interval": change.interval,
        "accuracy_change_pvalue": change.pvalue,
    }


def compare_probabilities(scores: PairedScores) -> dict:
    changes = np.exp(-scores["nll"]) - np.exp(-scores["reference_nll"])
    mean, square = scores.mean(changes), scores.mean(changes**2)
    interval = positive_interval(square)
    return {
        "delta_p": mean.value,
        "delta_p_interval": mean.interval,
        "rms_delta_p": math.sqrt(square.value),
        "rms_delta_p_interval": interval and [math.sqrt(bound) for bound in interval],
        "delta_p_percentiles": percentiles(changes),
    }


def compare_groups(
    scores: PairedScores, values: np.ndarray, ranges: Sequence[tuple[float, float]]
) -> list[dict]:
    """Estimate divergence and change of the tokens whose value (N,) is in each ascending range."""
    group = np.searchsorted([low for low, _ in ranges], values, side="right") - 1
    groups = []
    for number in np.unique(group).tolist():
        chosen = group == number
        (low, high), num_tokens = ranges[number], int(chosen.sum())
        described: dict[str, object] = {"low": low, "high": high, "num_tokens": num_tokens}
        described["share"] = num_tokens / len(scores)
        if scores.are_of_logits:
            kl = scores.mean(scores["kl"][chosen], chosen)
            described |= {"kl": kl.value, "kl_interval": positive_interval(kl)}
        change = scores.mean(scores["change"][chosen], chosen)
        groups.append(
            described | {"log_ratio": change.value, "log_ratio_interval": change.interval}
        )
    return groups


def positive_interval(estimate: Estimate) -> list[float] | None:
    """Return the interval of a positive, skewed number: symmetric in its logarithm."""
    if estimate.value == 0:
        return estimate.interval
    interval = estimate.logarithm().interval
    return interval and [math.exp(bound) for bound in interval]


def percentiles(values: np.ndarray) -> dict[str, float]:
    """Compute order statistics, interpolated in between; by the percentage, as `"99.9"`."""
    with np.errstate(invalid="ignore"):  # between two infinite ones
        statistics = np.nan_to_num(
            np.percentile(values, PERCENTILES), nan=math.inf, posinf=math.inf
        )
    return {f"{percent:g}": value for percent, value in zip(PERCENTILES, statistics.tolist())}


def worst_tokens(scores: PairedScores, number: int) -> np.ndarray:
    """Find the tokens with the largest divergence, or change of nll, beyond rounding (≤ number,)."""
    size = scores.columns["kl"] if scores.are_of_logits else np.abs(scores.differences)
    largest = np.argsort(-size, kind="stable")[:number]
    return largest[size[largest] > TOKEN_ROUNDING]


# --- other tokenizers: by the byte ----------------------------------------------------------------


class Pieces(NamedTuple):
    """Fully scored pieces of a text between token boundaries that both models share.

    Attributes:
        length: characters of the text.
        begins, ends: where each piece begins and ends, in characters (P,).
        tokens: tokens of the model in it (P,).
        num_bytes: its length in UTF-8 (P,).
        nll, reference_nll: its nll under either model, in nats (P,).
    """

    length: int
    begins: np.ndarray
    ends: np.ndarray
    tokens: np.ndarray
    num_bytes: np.ndarray
    nll: np.ndarray
    reference_nll: np.ndarray


def common_pieces(
    text: str, model: tuple[np.ndarray, np.ndarray], reference: tuple[np.ndarray, np.ndarray]
) -> Pieces:
    """Split a text at the token boundaries that both models share.

    Args:
        model, reference: characters (N, 2) of each token of the text and its nll (N,), NaN where
            unscored.  Characters without a token belong to the next token, or to the last one.
    """
    sides = [(offsets.copy(), nll) for offsets, nll in (model, reference)]
    for offsets, _ in sides:
        offsets[-1:, 1] = len(text)
    ends = np.intersect1d(clean_ends(sides[0][0]), clean_ends(sides[1][0]))
    begins = np.concatenate([[0], ends[:-1]]).astype(int)
    num_bytes = [len(text[begin:end].encode()) for begin, end in zip(begins, ends)]
    counts, nlls = [], []
    for offsets, nll in sides:
        piece = np.searchsorted(ends, offsets[:, 1])
        inside = piece < len(ends)  # none where the other model has no token
        counts.append(np.bincount(piece[inside], minlength=len(ends)))
        nlls.append(np.bincount(piece[inside], nll[inside], minlength=len(ends)))
    columns = begins, ends, counts[0], np.array(num_bytes, dtype=int), *nlls
    scored = ~np.isnan(nlls[0] + nlls[1])
    return Pieces(len(text), *(column[scored] for column in columns))


def clean_ends(offsets: np.ndarray) -> np.ndarray:
    """Find the ends of tokens that share no character with a later token, ascending."""
    begins, ends = offsets.T
    reached = np.maximum.accumulate(ends)
    next_begin = np.append(np.minimum.accumulate(begins[::-1])[::-1][1:], np.iinfo(np.int64).max)
    return np.unique(reached[reached <= next_begin])


def compare_bytes(
    texts: Sequence[Pieces], block_tokens: float, margin: float | None = None
) -> dict:
    """Compare two models with different tokenizers over the pieces of texts.

    Args:
        block_tokens: fewest tokens of the model in a part of a text that is taken as independent.
        margin: how much worse the model may be, as a share of its perplexity per byte.
    """
    number = np.repeat(np.arange(len(texts)), [len(text.ends) for text in texts])
    if not len(number):
        raise ArgumentError(
            "predictions",
            "contain text that both models score",
            got="none",
            why="their tokenizers have no common boundary in it",
        )
    names = ("tokens", "num_bytes", "nll", "reference_nll")
    columns = [np.concatenate([getattr(text, name) for text in texts]) for name in names]
    ends = np.concatenate([text.ends for text in texts])
    blocks = Blocks.of([text.length for text in texts], number, ends - 1, columns)
    clusters = blocks.clusters(block_tokens)
    _, sizes, nll, reference_nll = clusters.sums.T
    estimate = estimate_ratio(nll - reference_nll, sizes)
    bits, reference_bits = (nats.sum() / sizes.sum() / math.log(2) for nats in (nll, reference_nll))
    interval = estimate.interval
    ratio = as_ratio(estimate, clusters.sample)
    return {
        **judge(ratio, margin, "perplexity per byte", len(texts)),
        "bits_per_byte": float(bits),
        "reference_bits_per_byte": float(reference_bits),
        "bits_per_byte_change": estimate.value / math.log(2),
        "bits_per_byte_change_interval": interval and [bound / math.log(2) for bound in interval],
        "byte_perplexity_ratio": ratio,
        "interval_sample": clusters.sample,
        "interval_scope": clusters.scope,
        "num_compared_bytes": int(sizes.sum()),
    }


# --- the same model up to rounding ----------------------------------------------------------------

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
    """Judge whether a server runs its reference: the same model, the same up to rounding, or another.

    Rounding is measured on the same tokens: a server of the same weights in half precision differs from
    the reference in float32 by about as much as the reference in bfloat16 does.

    Args:
        differences: nll under the model less that under the reference, in nats (N,).
        rounding: nll under the reference in bfloat16 less that in float32 (N,).

    Returns:
        `same`: "float32" if no token differs by more than `FLOAT32`; "bfloat16" if root mean square,
        largest and mean are those of rounding within their margins; None otherwise, or with fewer
        tokens than `FEWEST`; these three of `difference` and of `rounding`; `summary`: a sentence.
    """

    def describe(values: np.ndarray) -> dict[str, float]:
        # where both nlls are infinite, they agree
        finite = np.nan_to_num(values, nan=0.0, posinf=INFINITE, neginf=-INFINITE)
        rms = float(np.sqrt(np.mean(finite**2)))
        return {"rms": rms, "largest": float(np.abs(finite).max()), "mean": float(finite.mean())}

    def in_words(nats: dict[str, float]) -> str:
        rms, largest, mean = nats.values()
        return f"{rms:.2g} nats (root mean square; at most {largest:.2g}, on average {mean:+.2g})"

    found, expected, number = describe(differences), describe(rounding), len(differences)
    bounds = {
        "rms": MARGIN * expected["rms"],
        "largest": MARGIN_OF_LARGEST * expected["largest"],
        "mean": MARGIN * (abs(expected["mean"]) + ERRORS * expected["rms"] / math.sqrt(number)),
    }
    same: str | None = None
    if found["largest"] <= FLOAT32:
        same, verdict = "float32", "The model is the reference"
    elif number < FEWEST:
        verdict = f"It takes {FEWEST} tokens to tell whether the model is the reference"
    elif all(abs(found[name]) <= max(FLOAT32, bounds[name]) for name in bounds):
        same, verdict = "bfloat16", "The model is the reference up to the rounding of bfloat16"
    else:
        verdict = "The model is not the reference, or has other settings"
    summary = (
        f"{verdict}: over {number:,} tokens they differ by {in_words(found)}, and the reference in "
        f"bfloat16 from itself by {in_words(expected)}."
    )
    return {"same": same, "difference": found, "rounding": expected, "summary": summary}
