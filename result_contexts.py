"""How far back a model looks: perplexity by length of context, by place in the text, and LongPPL.

By context, the same tokens are scored with windows of several lengths that slide by the same
stride.  A shorter window is the head of a longer one that begins at the same token, so all of them
cost what the longest costs::

    begin              c0      c1          longest
    |------------------##------##----------##          # the new tokens of a window of each length

LongPPL (Fang et al., ICLR 2025) is perplexity over the tokens that need a long context.  A token is
key where an evaluator model, given the whole text, predicts it well and far better than from a short
context.  Key tokens of one tokenizer become characters, and these the tokens of another.  As the
package `longppl` 0.3.0 does it.
"""

import itertools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from .errors import ArgumentError, Wording
from .model_interface import UNLIMITED_WINDOW, ContextLimit, ScoredModel
from .plan import contexts_by_token, nlls_by_token
from .plan_settings import Corpus, plan_measurement
from .protocols import Protocol
from .request_checks import EVALUATOR_ROLE, KeyTokenRule, LongContext, Setting
from .result_report import Report
from .result_totals import nll_interval, perplexity_interval
from .result_uncertainty import Blocks, Estimate, as_ratio, estimate_ratio, exp
from .score_measures import NegativeLogLikelihood
from .score_runner import Session
from .text_tokenization import TokenizedText

# How the evaluator of the package `longppl` reads a text.
EVALUATOR = Protocol(
    "longppl evaluator",
    source="longppl",
    description="The tokenizer's own special tokens and no others; every token is scored once.",
    encoding="default",
    knobs=("max_length", "stride"),
)

# Times that "doubling" halves the longest context, unless the stride sets an end before.
MOST_HALVINGS = 3

# The in-context learning score of Olsson et al. (In-context Learning and Induction Heads, 2022):
# the loss of the 500th token less that of the 50th.
EARLY_TOKEN, LATE_TOKEN = 50, 500

# --- what is planned ------------------------------------------------------------------------------


def expand_settings(
    corpus: Corpus,
    limit: ContextLimit,
    settings: list[Setting],
    long_context: LongContext,
) -> list[Setting]:
    """List the settings to measure: one for each length of context, the longest first, one stride.

    Raises:
        ValueError: as when the longest is measured.
    """
    setting, context_lengths = settings[0], long_context.context_lengths
    if long_context.carry and setting.max_length is None and limit.length is None:
        return [replace(setting, max_length=UNLIMITED_WINDOW)]  # what is carried has no limit
    if context_lengths is None:
        return settings
    argument = "context_lengths"
    if context_lengths == "doubling":
        argument = "max_length"
        planned = plan_measurement(corpus, limit, setting)
        longest_text = max(len(stream) for stream in planned.streams)
        longest = max(2, min(planned.plan.max_length, longest_text))
        context_lengths = doubling_lengths(longest, setting.stride)
    stride = setting.stride or max(1, min(context_lengths) // 2)
    lengths = sorted(set(context_lengths), reverse=True)
    setting = replace(setting, stride=stride, window_argument=argument)
    return [replace(setting, max_length=length) for length in lengths]


def doubling_lengths(longest: int, stride: int | None) -> list[int]:
    """List a length and its halves, ascending: down to an eighth, or while two strides fit in.

    Args:
        longest: the window, at least 2.
    """
    lengths = [longest]
    while lengths[-1] // 2 >= 2 * (stride or 1) and (stride or len(lengths) <= MOST_HALVINGS):
        lengths.append(lengths[-1] // 2)
    return lengths[::-1]


def doubling_edges(longest: int) -> list[int]:
    """List edges 0, 1, 2, 4, … of bins of places, the last at or past the longest text's end."""
    edges = [0, 1]
    while edges[-1] < longest:
        edges.append(2 * edges[-1])
    return edges


# --- reports --------------------------------------------------------------------------------------


def report_curves(
    reports: Sequence[Report], long_context: LongContext, num_forward_tokens: int
) -> dict:
    """Build the keys of a result that answer what was asked; the first report is the result's."""
    result: dict[str, object] = {}
    if long_context.context_lengths is not None:
        result["by_context_length"] = report_contexts(reports)
        result["num_forward_tokens"] = num_forward_tokens
    if long_context.positions is not None:
        result |= report_positions(reports[0], long_context.positions)
    return result


def report_contexts(reports: Sequence[Report]) -> list[dict]:
    """Report the perplexity of the same tokens by length of context, shortest first.

    Raises:
        ValueError: no text is as long as the longest context.
    """
    ascending = reports[::-1]
    plan = ascending[-1].measurement.plan
    nlls = [nlls_by_token(report.measurement, report.scores) for report in ascending]
    contexts = contexts_by_token(ascending[-1].measurement)
    if not any((seen >= plan.max_length - plan.stride).any() for seen in contexts):
        longest = max(len(seen) for seen in contexts)
        raise ArgumentError(
            "context_lengths",
            "hold lengths that a text reaches",
            got=f"{plan.max_length} for texts of at most {longest} tokens",
            advice="Pass shorter ones, or longer texts.",
        )
    lengths = [report.measurement.plan.max_length for report in ascending]
    return summarize_contexts(lengths, nlls, contexts, plan.stride)


def report_positions(report: Report, positions: list[int] | str) -> dict:
    """Build the keys `by_position` and `in_context_score` of a result."""
    nlls = nlls_by_token(report.measurement, report.scores)
    contexts = contexts_by_token(report.measurement)
    edges = positions
    if edges == "doubling":
        edges = doubling_edges(max(len(nll) for nll in nlls))
    return {
        "by_position": summarize_positions(edges, nlls, report.measurement.plan.max_length),
        "in_context_score": in_context_score(nlls, contexts),
    }


# --- floats: no model, no text --------------------------------------------------------------------


def summarize_contexts(
    context_lengths: Sequence[int],
    nlls: Sequence[Sequence[np.ndarray]],
    contexts: Sequence[np.ndarray],
    stride: int,
) -> list[dict]:
    """Estimate the perplexity of the same tokens by length of context.

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
    columns = [
        np.concatenate([nll[tokens] for nll, tokens in zip(of_texts, served)]) for of_texts in nlls
    ]
    blocks = Blocks.of(
        [len(seen) for seen in contexts], texts, places, [np.ones(len(places)), *columns]
    )
    clusters = blocks.clusters(longest)
    tokens, *sums = clusters.sums.T
    summaries = []
    for length, nll in zip(context_lengths, sums):
        estimate = estimate_ratio(nll, tokens)
        summaries.append({"context_length": length, **as_perplexity(estimate, len(places))})
        if length != longest:
            difference = estimate_ratio(nll - sums[-1], tokens)
            summaries[-1]["ratio_to_longest"] = as_ratio(difference, clusters.sample)
    return summaries


def summarize_positions(
    edges: Sequence[int], nlls: Sequence[np.ndarray], block_tokens: int
) -> list[dict]:
    """Estimate the mean nll by place in the text, and of all tokens up to there.

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
    values = np.concatenate([nll[tokens] for nll, tokens in zip(nlls, scored)])
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
                "interval": nll_interval(estimate),
                "cumulative_nll": total / count,
                "num_tokens": int(inside.sum()),
                "num_texts": len(np.unique(texts[inside])),
            }
        )
    return summaries


def in_context_score(nlls: Sequence[np.ndarray], contexts: Sequence[np.ndarray]) -> dict | None:
    """Estimate how much better the 500th token of a text is predicted than the 50th, in nats.

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
    """Describe a mean nll, with its perplexity."""
    return {
        "perplexity": exp(estimate.value),
        "interval": perplexity_interval(estimate),
        "nll": estimate.value,
        "num_tokens": num_tokens,
    }


# --- LongPPL --------------------------------------------------------------------------------------


def find_key_characters(
    session: Session, evaluator: ScoredModel, texts: list[str], rule: KeyTokenRule
) -> list[np.ndarray]:
    """Find the characters of key tokens: for each text spans (first, one past the last) (M, 2).

    The long context is the whole text, or as much as the evaluator takes, slid over by half of it.

    Raises:
        ValueError: the evaluator cannot be scored with, or does not say which characters its
            tokens stand for.
    """
    with evaluator.in_use():
        evaluator.prepare()
        corpus = Corpus(evaluator.tokenizer, texts, with_offsets=True)
        _, streams = corpus.read(EVALUATOR, None)
        check_offsets(streams, f"`{EVALUATOR_ROLE}`")
        longest = max(2, *(len(stream) for stream in streams))
        longest = min(longest, evaluator.limit.length or max(longest, UNLIMITED_WINDOW))
        settings = [
            Setting(EVALUATOR, longest, max(1, longest // 2)),
            Setting(EVALUATOR, min(rule.window, longest), min(rule.stride, longest)),
        ]
        measurements = [plan_measurement(corpus, evaluator.limit, setting) for setting in settings]
        work, scores = session.score([evaluator], measurements, [NegativeLogLikelihood()])
    full, short = (
        nlls_by_token(measurement, of_measurement)
        for measurement, of_measurement, _ in work.by_measurement(scores)
    )
    return [
        merge_spans(stream.offsets[rule.key_tokens(short_nlls, full_nlls)])
        for stream, short_nlls, full_nlls in zip(streams, short, full)
    ]


def report_key_tokens(report: Report, spans: Sequence[np.ndarray]) -> dict:
    """Build the keys of a result that say how well key tokens are predicted.

    Args:
        spans: characters of the key tokens of each text.
    """
    nlls = nlls_by_token(report.measurement, report.scores)
    places = [
        np.flatnonzero(tokens_inside(stream.offsets, of_text) & ~stream.added & ~np.isnan(nll))
        for stream, nll, of_text in zip(report.measurement.streams, nlls, spans)
    ]
    of_keys = [nll[inside] for nll, inside in zip(nlls, places)]
    texts = np.repeat(np.arange(len(places)), [len(inside) for inside in places])
    result = {
        "num_key_tokens": len(texts),
        "longppls": [exp(float(nll.mean())) if len(nll) else None for nll in of_keys],
        "longppl": None,
        "longppl_interval": None,
    }
    if not len(texts):
        return result
    lengths = [len(nll) for nll in nlls]
    columns = [np.ones(len(texts)), np.concatenate(of_keys)]
    blocks = Blocks.of(lengths, texts, np.concatenate(places), columns)
    tokens, nll = blocks.clusters(1).sums.T
    estimate = estimate_ratio(nll, tokens)
    return result | {
        "longppl": exp(estimate.value),
        "longppl_interval": perplexity_interval(estimate),
    }


def check_offsets(streams: Sequence[TokenizedText], name: str) -> None:
    if any(stream.offsets is None for stream in streams):
        raise ValueError(
            Wording(
                f"{name} must have a fast tokenizer with `key_tokens`, which says which "
                "characters a token stands for, got a slow one."
            )
        )


def merge_spans(offsets: np.ndarray) -> np.ndarray:
    """Merge spans of characters (K, 2) that touch: (first, one past the last) of each (M, 2)."""
    if not len(offsets):
        return offsets.reshape(0, 2)
    apart = offsets[1:, 0] != offsets[:-1, 1]
    firsts = offsets[np.concatenate([[True], apart]), 0]
    ends = offsets[np.concatenate([apart, [True]]), 1]
    return np.stack([firsts, ends], axis=1)


def tokens_inside(offsets: np.ndarray, spans: np.ndarray) -> np.ndarray:
    """Tell which tokens (N,) have all their characters in one of the spans.

    Args:
        offsets: first and one-past-last character of each token (N, 2).
        spans: ascending spans of characters (M, 2), apart from each other.
    """
    if not len(spans):
        return np.zeros(len(offsets), dtype=bool)
    number = np.searchsorted(spans[:, 0], offsets[:, 0], side="right") - 1
    return (number >= 0) & (offsets[:, 1] <= spans[number, 1])
