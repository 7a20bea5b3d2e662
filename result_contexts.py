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

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from .errors import Wording
from .model_interface import UNLIMITED_WINDOW, ContextLimit, ScoredModel
from .plan import contexts_by_token, nlls_by_token
from .plan_settings import Corpus, plan_measurement
from .protocols import Protocol
from .request_checks import EVALUATOR_ROLE, KeyTokenRule, LongContext, Setting
from .result_context_totals import ContextTotals, KeyTokenTotals, PositionTotals
from .result_report import Report
from .result_uncertainty import Blocks
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


# --- what is summed up ----------------------------------------------------------------------------------


def total_contexts(reports: Sequence[Report], num_forward_tokens: int) -> ContextTotals:
    """Sum up the same tokens by length of context, shortest first."""
    ascending = reports[::-1]
    return ContextTotals.of(
        [report.measurement.plan.max_length for report in ascending],
        [nlls_by_token(report.measurement, report.scores) for report in ascending],
        contexts_by_token(ascending[-1].measurement),
        ascending[-1].measurement.plan.stride,
        num_forward_tokens,
    )


def total_positions(report: Report, positions: list[int] | str) -> PositionTotals:
    """Sum up tokens by place in the text."""
    nlls = nlls_by_token(report.measurement, report.scores)
    edges = positions
    if edges == "doubling":
        edges = doubling_edges(max(len(nll) for nll in nlls))
    contexts = contexts_by_token(report.measurement)
    return PositionTotals.of(edges, nlls, contexts, report.measurement.plan.max_length)


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


def total_key_tokens(report: Report, spans: Sequence[np.ndarray], signature: str) -> KeyTokenTotals:
    """Sum up the key tokens of texts.

    Args:
        spans: characters of the key tokens of each text.
        signature: by what rule and which evaluator these were found.
    """
    nlls = nlls_by_token(report.measurement, report.scores)
    places = [
        np.flatnonzero(tokens_inside(stream.offsets, of_text) & ~stream.added & ~np.isnan(nll))
        for stream, nll, of_text in zip(report.measurement.streams, nlls, spans)
    ]
    texts = np.repeat(np.arange(len(places)), [len(inside) for inside in places])
    values = np.concatenate([nll[inside] for nll, inside in zip(nlls, places)])
    lengths = [len(nll) for nll in nlls]
    columns = [np.ones(len(texts)), values]
    blocks = Blocks.of(lengths, texts, np.concatenate(places), columns)
    return KeyTokenTotals(blocks, signature)


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
