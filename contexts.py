"""How far back a model looks: perplexity by length of context, and by place in the text.

By context, the same tokens are scored with windows of several lengths that slide by the same
stride.  A shorter window is the head of a longer one that begins at the same token, so all of them
cost what the longest costs::

    begin              c0      c1          longest
    |------------------##------##----------##          # the new tokens of a window of each length

Integers and floats only: no model, no text.
"""

import itertools
from collections.abc import Sequence

import numpy as np

from .results import exp
from .uncertainty import Blocks, Estimate, estimate_ratio

# Times that "doubling" halves the longest context, unless the stride sets an end before.
MOST_HALVINGS = 3
# The in-context learning score of Olsson et al. (In-context Learning and Induction Heads, 2022):
# the loss of the 500th token less that of the 50th.
EARLY_TOKEN, LATE_TOKEN = 50, 500


def doubling_lengths(longest: int, stride: int | None) -> list[int]:
    """A length and its halves, ascending: down to an eighth, or while two strides fit in.

    Args:
        longest: the window, at least 2.
    """
    lengths = [longest]
    while lengths[-1] // 2 >= 2 * (stride or 1) and (stride or len(lengths) <= MOST_HALVINGS):
        lengths.append(lengths[-1] // 2)
    return lengths[::-1]


def doubling_edges(longest: int) -> list[int]:
    """Edges 0, 1, 2, 4, … of bins of places, the last one at or past the longest text's end."""
    edges = [0, 1]
    while edges[-1] < longest:
        edges.append(2 * edges[-1])
    return edges


def summarize_contexts(
    context_lengths: Sequence[int],
    nlls: Sequence[Sequence[np.ndarray]],
    contexts: Sequence[np.ndarray],
    stride: int,
) -> list[dict]:
    """Perplexity of the same tokens by length of context.

    The tokens are those that the longest context can serve: they see between `longest - stride` and
    `longest - 1` tokens under it, and as many less under a shorter one as it is shorter.

    Args:
        context_lengths: window lengths, ascending.
        nlls: for each length and each text the nlls of its tokens in nats (N,), NaN where unscored.
        contexts: for each text how many tokens each of its tokens sees under the longest (N,).
        stride: tokens from one window to the next.

    Returns:
        for each length a dict; all but the longest with the ratio of its perplexity to the
        longest's, paired token by token.
    """
    longest = context_lengths[-1]
    served = [np.flatnonzero(seen >= longest - stride) for seen in contexts]
    texts = np.repeat(np.arange(len(served)), [len(places) for places in served])
    places = np.concatenate(served)
    columns = [np.concatenate([n[at] for n, at in zip(of_texts, served)]) for of_texts in nlls]
    blocks = Blocks.of(
        [len(seen) for seen in contexts], texts, places, [np.ones(len(places)), *columns]
    )
    tokens, *sums = blocks.clusters(longest).sums.T
    summaries = []
    for length, nll in zip(context_lengths, sums):
        estimate = estimate_ratio(nll, tokens)
        summaries.append({"context_length": length, **as_perplexity(estimate, len(places))})
        if length != longest:
            summaries[-1]["ratio_to_longest"] = as_ratio(estimate_ratio(nll - sums[-1], tokens))
    return summaries


def summarize_positions(
    edges: Sequence[int], nlls: Sequence[np.ndarray], block_tokens: int
) -> list[dict]:
    """Mean nll by place in the text, and of all tokens up to there.

    Args:
        edges: first places of the bins, ascending, and one past the last; 0 is a text's first token.
        nlls: for each text the nlls of its tokens in nats (N,), NaN where unscored.
        block_tokens: fewest tokens in a cluster.

    Returns:
        for each bin with a scored token a dict: `first` and `last` place, `nll` and its `interval`,
        `cumulative_nll` of all tokens from the first edge to `last`, `num_tokens`, `num_texts`.
    """
    scored = [np.flatnonzero(~np.isnan(nll)) for nll in nlls]
    texts = np.repeat(np.arange(len(scored)), [len(places) for places in scored])
    places = np.concatenate(scored)
    values = np.concatenate([nll[at] for nll, at in zip(nlls, scored)])
    lengths = [len(nll) for nll in nlls]
    summaries, total, count = [], 0.0, 0
    for first, end in itertools.pairwise(edges):
        inside = (places >= first) & (places < end)
        if not inside.any():
            continue
        total, count = total + float(values[inside].sum()), count + int(inside.sum())
        columns = [np.ones(inside.sum()), values[inside]]
        blocks = Blocks.of(lengths, texts[inside], places[inside], columns)
        tokens, nll = blocks.clusters(block_tokens).sums.T
        estimate = estimate_ratio(nll, tokens)
        summaries.append(
            {
                "first": int(first),
                "last": int(places[inside].max()),
                "nll": estimate.value,
                "interval": None if estimate.interval is None else list(estimate.interval),
                "cumulative_nll": total / count,
                "num_tokens": int(inside.sum()),
                "num_texts": len(np.unique(texts[inside])),
            }
        )
    return summaries


def in_context_score(nlls: Sequence[np.ndarray], contexts: Sequence[np.ndarray]) -> dict | None:
    """How much better the 500th token of a text is predicted than the 50th, in nats.

    The mean over texts in which both are scored with all tokens before them in sight; None where
    there is no such text.  Negative where the model learns from the context.

    Args:
        nlls: for each text the nlls of its tokens in nats (N,), NaN where unscored.
        contexts: for each text how many tokens each of its tokens sees (N,).
    """
    early, late = EARLY_TOKEN - 1, LATE_TOKEN - 1
    differences = np.array(
        [
            nll[late] - nll[early]
            for nll, seen in zip(nlls, contexts)
            if len(nll) > late and seen[late] >= late and not np.isnan(nll[[early, late]]).any()
        ]
    )
    if not len(differences):
        return None
    estimate = estimate_ratio(differences, np.ones(len(differences)))
    return {
        "nll_difference": estimate.value,
        "interval": None if estimate.interval is None else list(estimate.interval),
        "num_texts": len(differences),
    }


def as_perplexity(estimate: Estimate, num_tokens: int) -> dict:
    """A mean nll as it stands in the result, with its perplexity."""
    return {
        "perplexity": exp(estimate.value),
        "interval": exp_interval(estimate),
        "nll": estimate.value,
        "num_tokens": num_tokens,
    }


def as_ratio(estimate: Estimate) -> dict:
    """A mean difference of nlls as the ratio of two perplexities."""
    return {
        "perplexity_ratio": exp(estimate.value),
        "interval": exp_interval(estimate),
        "pvalue": estimate.pvalue,
    }


def exp_interval(estimate: Estimate) -> list[float] | None:
    return None if estimate.interval is None else [exp(end) for end in estimate.interval]
