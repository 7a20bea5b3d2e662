"""LongPPL (Fang et al., ICLR 2025): perplexity over the tokens that need a long context.

A token is key where an evaluator model, given the whole text, predicts it well and far better than
from a short context.  Key tokens of one tokenizer become characters, and these the tokens of another.
As the package `longppl` 0.3.0 does it.  Nlls are in nats.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from transformers import PreTrainedTokenizerBase

from ..arguments import EVALUATOR_ROLE, KeyTokenRule, Setting
from ..errors import Wording
from ..models.interface import ScoredModel
from ..plan.measurement import Measurement, nlls_by_token
from ..plan.settings import Corpus, plan_measurement
from ..plan.tokenization import TokenizedText
from ..plan.windows import UNLIMITED_WINDOW, ContextLimit
from ..protocols import Protocol
from ..scoring.measures import NegativeLogLikelihood
from ..scoring.runner import Session
from .report import Report
from .totals import perplexity_interval
from .uncertainty import Blocks, estimate_ratio, exp

# How the evaluator of the package `longppl` reads a text.
EVALUATOR = Protocol(
    "longppl evaluator",
    source="longppl",
    description="The tokenizer's own special tokens and no others; every token is scored once.",
    encoding="default",
    supported_arguments=("max_length", "stride"),
)


def plan_key_tokens(
    tokenizer: PreTrainedTokenizerBase,
    limit: ContextLimit,
    measurement: Measurement,
    rule: KeyTokenRule,
) -> list[Measurement]:
    """Plan how the evaluator reads the texts of a measurement: with long and with short contexts.

    The long context is the whole text, or as much as the evaluator takes, slid over by half of it.

    Args:
        tokenizer, limit: of the evaluator.

    Raises:
        ValueError: one of the tokenizers does not give the characters of its tokens.
    """
    check_offsets(measurement.streams, "`tokenizer`")
    corpus = Corpus(tokenizer, measurement.texts, with_offsets=True)
    _, streams = corpus.read(EVALUATOR, None)
    check_offsets(streams, f"`{EVALUATOR_ROLE}`")
    longest = max(2, *(len(stream) for stream in streams))
    longest = min(longest, limit.length or max(longest, UNLIMITED_WINDOW))
    settings = [
        Setting(EVALUATOR, longest, max(1, longest // 2)),
        Setting(EVALUATOR, min(rule.window, longest), min(rule.stride, longest)),
    ]
    return [plan_measurement(corpus, limit, setting) for setting in settings]


def find_key_characters(
    session: Session,
    evaluator: ScoredModel,
    measurements: Sequence[Measurement],
    rule: KeyTokenRule,
) -> list[np.ndarray]:
    """Find the characters of key tokens: for each text spans (first, one past the last) (M, 2).

    Args:
        evaluator: prepared.
        measurements: with long and with short contexts, see `plan_key_tokens`.
    """
    work, scores = session.score([evaluator], measurements, [NegativeLogLikelihood()])
    full, short = (
        nlls_by_token(measurement, of_measurement)
        for measurement, of_measurement, _ in work.by_measurement(scores)
    )
    spans = []
    for stream, short_nlls, full_nlls in zip(measurements[0].streams, short, full):
        key = rule.key_tokens(short_nlls, full_nlls)
        spans.append(merge_spans(stream.known_offsets[key[~stream.added[key]]]))
    return spans


@dataclass(frozen=True, eq=False)
class KeyTokenTotals:
    """Sums over key tokens.

    Attributes:
        blocks: number of key tokens, and their nll, of all texts.
        signature: the rule and the evaluator that found them.
    """

    blocks: Blocks
    signature: str
    are_enough = True

    def __add__(self, other: "KeyTokenTotals") -> "KeyTokenTotals":
        return KeyTokenTotals(self.blocks + other.blocks, self.signature)

    def result(self) -> dict:
        """Estimate how well key tokens are predicted: of all texts, and of each."""
        counts, nlls = self.blocks.by_text().T.tolist()
        result = {
            "num_key_tokens": int(sum(counts)),
            "longppls": [exp(nll / count) if count else None for nll, count in zip(nlls, counts)],
            "longppl": None,
            "longppl_interval": None,
            "longppl_signature": self.signature,
        }
        if not result["num_key_tokens"]:
            return result
        tokens, nll = self.blocks.clusters(1).sums.T
        estimate = estimate_ratio(nll, tokens)
        return result | {
            "longppl": exp(estimate.value),
            "longppl_interval": perplexity_interval(estimate),
        }


def total_key_tokens(report: Report, spans: Sequence[np.ndarray], signature: str) -> KeyTokenTotals:
    """Sum up the key tokens of texts.

    Args:
        spans: characters of the key tokens of each text.
        signature: the rule and the evaluator that found them.
    """
    nlls = nlls_by_token(report.measurement, report.scores)
    places = [
        np.flatnonzero(
            tokens_inside(stream.known_offsets, of_text) & ~stream.added & ~np.isnan(nll)
        )
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
    """Merge spans of characters (K, 2) that touch: (first, one past the last) of each (M, 2).

    Several tokens of one character stay apart, as in the authors' package.
    """
    if not len(offsets):
        return offsets.reshape(0, 2)
    apart = offsets[1:, 0] != offsets[:-1, 1]
    firsts = offsets[np.concatenate([[True], apart]), 0]
    ends = offsets[np.concatenate([apart, [True]]), 1]
    return np.stack([firsts, ends], axis=1)


def tokens_inside(offsets: np.ndarray, spans: np.ndarray) -> np.ndarray:
    """Return which tokens (N,) have all their characters in one of the spans.

    Args:
        offsets: first and one-past-last character of each token (N, 2).
        spans: ascending spans of characters (M, 2).
    """
    if not len(spans):
        return np.zeros(len(offsets), dtype=bool)
    number = np.searchsorted(spans[:, 0], offsets[:, 0], side="right") - 1
    return (number >= 0) & (offsets[:, 1] <= spans[number, 1])
