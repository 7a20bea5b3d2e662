"""From token negative log-likelihoods to the result: perplexity, its uncertainty, its signature.

Floats only: no model, no text.  Nlls are in nats and summed in float64.
"""

import hashlib
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

# Parts that a single long text is cut into at most: more of them would be shorter than the stretches
# over which tokens are alike (Schmeiser, Batch size effects in the analysis of simulation output,
# 1982, finds 10 to 30 enough).
MAX_BLOCKS = 20
# A mean above this many nats makes Megatron-LM print exp(20).
MEGATRON_CAP = 20.0


@dataclass(frozen=True)
class TextScores:
    """What was measured of one text, or of one stream of joined texts.

    Attributes:
        window_nlls: nlls of the scored tokens in nats, one array a window, in the text's order.
        guide_weights: the weight that the transformers guide gives each window's mean.
        num_tokens: tokens of the text, scored or not, that stand for its characters.
        num_bytes: its length in UTF-8 bytes.
        num_characters: its length in Unicode code points.
        num_words: its whitespace-separated words, or the number the caller gave.
    """

    window_nlls: list[np.ndarray]
    guide_weights: list[int]
    num_tokens: int
    num_bytes: int
    num_characters: int
    num_words: int

    @property
    def nlls(self) -> np.ndarray:
        return np.concatenate(self.window_nlls).astype(np.float64)


def exp(value: float) -> float:
    """exp that returns inf where the result is too large for a float, instead of raising."""
    try:
        return math.exp(value)
    except OverflowError:
        return math.inf


def summarize(
    texts: Sequence[TextScores],
    aggregate: str = "tokens",
    error: str | None = None,
    block_tokens: int = 1,
    word_counts_given: bool = False,
) -> dict:
    """Compute every number of the result.

    Args:
        texts: scores of each text.
        aggregate: how window scores become the perplexity, see `window_terms`; or "texts" for the
            mean of the texts' perplexities.
        error: the ± to report as the protocol's tool does: "population", "sample" or None.
        block_tokens: fewest scored tokens in a cluster of windows, for a single text.
        word_counts_given: whether the word counts are the caller's, to normalise by.

    Returns:
        plain Python numbers; nats for `total_nll`, bits where the name says so.
    """
    nlls = np.concatenate([text.nlls for text in texts])
    total, count = float(nlls.sum()), len(nlls)
    perplexities = [exp(_ratio([text], aggregate)) for text in texts]
    clusters = texts if len(texts) > 1 else split_text(texts[0], block_tokens)
    if aggregate == "texts":
        perplexity = float(np.mean(perplexities))
        stderr, interval = mean_uncertainty(perplexities)
    else:
        perplexity = exp(_ratio(texts, aggregate))
        stderr, interval = ratio_uncertainty(*_terms(clusters, aggregate))
    result = {
        "perplexities": perplexities,
        "tokens_per_text": [len(text.nlls) for text in texts],
        "mean_perplexity": float(np.mean(perplexities)),
        "perplexity": perplexity,
        "perplexity_stderr": stderr,
        "perplexity_interval": interval,
        "total_nll": total,
        "num_tokens": count,
        "num_windows": sum(len(text.window_nlls) for text in texts),
    }
    result |= per_unit(texts, total / count)
    if word_counts_given:
        result["adjusted_perplexity"] = adjusted_perplexity(texts, total / count, aggregate)
    if error is not None:
        result["tool_stderr"] = tool_stderr(nlls, error)
    return result


def window_terms(text: TextScores, aggregate: str) -> tuple[np.ndarray, np.ndarray]:
    """Give each window a term and a weight; log perplexity is their ratio, summed over windows.

    "tokens" and "capped": (Σ nll, number of scored tokens), the mean over tokens.
    "window means": (mean nll, 1), the guide's form of 2022-2024.
    "guide weights": (mean nll × w, w) with the weights w of the guide's present form.
    """
    sums = np.array([window.sum(dtype=np.float64) for window in text.window_nlls])
    counts = np.array([len(window) for window in text.window_nlls], dtype=np.float64)
    if aggregate == "window means":
        return sums / counts, np.ones_like(counts)
    if aggregate == "guide weights":
        weights = np.array(text.guide_weights, dtype=np.float64)
        return sums / counts * weights, weights
    return sums, counts


def per_unit(texts: Sequence[TextScores], mean_nll: float) -> dict[str, float]:
    """Numbers that do not depend on the tokenizer: per byte, character and word.

    The mean per token times the tokens per unit.  Where every token is scored, this is
    lm-evaluation-harness's Σ nll / Σ units; where some are not, they count as average ones.
    """
    nll = mean_nll * sum(text.num_tokens for text in texts)
    per_byte = nll / sum(text.num_bytes for text in texts)
    per_character = nll / sum(text.num_characters for text in texts)
    per_word = nll / sum(text.num_words for text in texts)
    return {
        "bits_per_byte": per_byte / math.log(2),
        "byte_perplexity": exp(per_byte),
        "bits_per_character": per_character / math.log(2),
        "word_perplexity": exp(per_word),
    }


def adjusted_perplexity(texts: Sequence[TextScores], mean_nll: float, aggregate: str) -> float:
    """Perplexity per original word: exp(loss × tokens / words).

    "Evaluating and Comparing Language Models" calls loss × V1 / V2 the normalised loss.  Megatron
    leaves the first token and the first word out, and caps the exponent.
    """
    tokens = sum(text.num_tokens for text in texts)
    words = sum(text.num_words for text in texts)
    if aggregate == "capped":
        return exp(min(MEGATRON_CAP, mean_nll * (tokens - 1) / max(1, words - 1)))
    return exp(mean_nll * tokens / words)


def split_text(text: TextScores, block_tokens: int) -> list[TextScores]:
    """Cut one text into runs of windows with at least `block_tokens` scored tokens each.

    Tokens near each other are alike, so the uncertainty of a single text comes from differences
    between its parts; a remainder joins the last block.
    """
    block_tokens = max(block_tokens, len(text.nlls) / MAX_BLOCKS)
    cuts, pending = [0], 0
    for number, window in enumerate(text.window_nlls, start=1):
        pending += len(window)
        if pending >= block_tokens:
            cuts.append(number)
            pending = 0
    cuts[-1] = len(text.window_nlls) if len(cuts) > 1 else cuts[-1]
    return [
        TextScores(text.window_nlls[a:b], text.guide_weights[a:b], 0, 0, 0, 0)
        for a, b in itertools.pairwise(cuts)
    ]


def ratio_uncertainty(
    terms: np.ndarray, weights: np.ndarray
) -> tuple[float | None, list[float] | None]:
    """Standard error and 95 % interval of exp(Σ terms / Σ weights), the clusters independent.

    The jackknife (Efron, The Jackknife, the Bootstrap and Other Resampling Plans, 1982): leaving one
    of C clusters out moves the ratio R by (term - R · weight) / (Σ weight - weight), and
    var(R) = (C - 1) / C · Σ moved².  The interval is symmetric in log perplexity, with Student's t
    for (Σ weight)² / Σ weight² - 1 degrees of freedom: the effective number of clusters (Kish, 1965)
    is C where all weigh the same, and less where some outweigh the rest.  The standard error of
    the perplexity is the delta method's.

    Returns:
        (standard error, [low, high]); both None with fewer than two clusters, the standard error
        also where the perplexity is infinite.
    """
    count, others = len(terms), weights.sum() - weights
    if count < 2 or (others <= 0).any() or not np.isfinite(terms).all():
        return None, None
    ratio = float(terms.sum() / weights.sum())
    moved = (terms - ratio * weights) / others  # by leaving one cluster out
    stderr = math.sqrt((count - 1) / count * float((moved**2).sum()))
    effective = round(float(weights.sum() ** 2 / (weights**2).sum()))
    margin = student_t_quantile(0.975, max(1, effective - 1)) * stderr
    interval = [exp(ratio - margin), exp(ratio + margin)]
    perplexity = exp(ratio)
    return (perplexity * stderr if math.isfinite(perplexity) else None), interval


def mean_uncertainty(values: Sequence[float]) -> tuple[float | None, list[float] | None]:
    """Standard error and 95 % interval of a plain mean."""
    if len(values) < 2 or not np.isfinite(values).all():
        return None, None
    mean = float(np.mean(values))
    stderr = float(np.std(values, ddof=1)) / math.sqrt(len(values))
    margin = student_t_quantile(0.975, len(values) - 1) * stderr
    return stderr, [max(1.0, mean - margin), mean + margin]


def tool_stderr(nlls: np.ndarray, error: str) -> float | None:
    """The ± that llama.cpp ("population") and mlx-lm ("sample") print: tokens as independent.

    llama.cpp: σ² = (E[nll²] - E[nll]²) / (n - 1).  mlx-lm: σ = std(ddof=1) / √n.  Both are the
    same number times the perplexity, up to rounding.
    """
    if len(nlls) < 2 or not np.isfinite(nlls).all():
        return None
    perplexity = exp(float(nlls.mean()))
    if not math.isfinite(perplexity):
        return None
    if error == "population":
        variance = float((nlls**2).mean() - nlls.mean() ** 2) / (len(nlls) - 1)
        return perplexity * math.sqrt(max(variance, 0.0))
    return perplexity * float(nlls.std(ddof=1)) / math.sqrt(len(nlls))


def student_t_quantile(probability: float, degrees: int) -> float:
    """Quantile of Student's t.

    Exact for 1 and 2 degrees of freedom, else Hill's expansion around the normal quantile
    (Abramowitz and Stegun 26.7.5).
    """
    if degrees == 1:
        return math.tan(math.pi * (probability - 0.5))
    if degrees == 2:
        return (2 * probability - 1) * math.sqrt(2 / (4 * probability * (1 - probability)))
    z = NormalDist().inv_cdf(probability)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return z + sum(term / degrees**power for power, term in enumerate(terms, start=1))


def signature(fields: dict[str, object]) -> tuple[str, str]:
    """One line that pins what was measured, and a short form for papers.

    In the spirit of sacrebleu's: `key:value` pairs joined by `|`.  The short form keeps the model
    and protocol and a digest of the whole line.
    """
    line = "|".join(f"{key}:{_shown(value)}" for key, value in fields.items())
    digest = hashlib.sha256(line.encode("utf-8")).hexdigest()[:12]
    return line, f"ppl|{fields['protocol']}|L{fields['window']}|S{fields['stride']}|{digest}"


def _shown(value) -> str:
    """A field's value on one line, without the sign that ends it."""
    return str(value).encode("unicode_escape").decode("ascii").replace("|", r"\x7c")


def _ratio(texts: Sequence[TextScores], aggregate: str) -> float:
    terms, weights = _terms(texts, aggregate)
    if weights.sum() == 0:
        return math.nan
    ratio = float(terms.sum() / weights.sum())
    return min(MEGATRON_CAP, ratio) if aggregate == "capped" else ratio


def _terms(texts: Sequence[TextScores], aggregate: str) -> tuple[np.ndarray, np.ndarray]:
    """Terms and weights summed over the windows of each text."""
    sums = [[part.sum() for part in window_terms(text, aggregate)] for text in texts]
    return np.array([term for term, _ in sums]), np.array([weight for _, weight in sums])
