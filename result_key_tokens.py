"""LongPPL: perplexity over the tokens that need a long context (Fang et al., ICLR 2025).

A token is key where an evaluator model, given the whole text, predicts it well and far better than
from a short context.  Key tokens of one tokenizer become characters, and these the tokens of
another.  As the package `longppl` 0.3.0 does it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from numbers import Real

import numpy as np
import torch

from .model import LanguageModel
from .model_interface import UNLIMITED_WINDOW
from .model_source import ModelSource
from .plan import nlls_by_token
from .plan_settings import Corpus, plan_measurement
from .protocols import Protocol
from .request_checks import Setting, check_whole_number
from .result_report import Report
from .result_totals import perplexity_interval
from .result_uncertainty import Blocks, estimate_ratio, exp
from .score_measures import NegativeLogLikelihood
from .score_runner import Session
from .text_tokenization import TokenizedText

EVALUATOR_ROLE = "key_tokens['evaluator']"
# How the evaluator of the package `longppl` reads a text.
EVALUATOR = Protocol(
    "longppl evaluator",
    source="longppl",
    description="The tokenizer's own special tokens and no others; every token is scored once.",
    encoding="default",
    knobs=("max_length", "stride"),
)


@dataclass(frozen=True)
class KeyTokenRule:
    """What makes a token key.

    Attributes:
        short_context: fewest tokens that the short context has; nothing before that is key.
        stride: tokens that share a short context's first token.
        gain: nats that the long context must gain, more than which.
        largest_nll: nats that the long context must leave, less than which.
    """

    short_context: int = 4096
    stride: int = 1024
    gain: float = 2.0
    largest_nll: float = 2.0

    @property
    def window(self) -> int:
        """Length of the windows whose last `stride` tokens are scored with a short context."""
        return self.short_context + self.stride

    def describe(self) -> str:
        """Name the rule with its settings, for a signature."""
        return f"longppl({','.join(str(getattr(self, field.name)) for field in fields(self))})"

    def key_tokens(self, short: np.ndarray, full: np.ndarray) -> np.ndarray:
        """Find the key tokens (K,), given the nlls of all tokens under both contexts (N,).

        NaN, for what is not scored, is never key.
        """
        with np.errstate(invalid="ignore"):
            key = (short - full > self.gain) & (full < self.largest_nll)
        key[: self.short_context] = False
        return np.flatnonzero(key)


def check_key_tokens(
    key_tokens: object, gives_list: bool
) -> tuple[KeyTokenRule | None, ModelSource | None]:
    """Return what makes a token key, and the model that finds such, if it is another one."""
    if key_tokens is None:
        return None, None
    if gives_list:
        raise ValueError(
            "`key_tokens` must be left out where `protocol`, `max_length` or `stride` is a list. "
            "Make a call for each."
        )
    settings = {} if key_tokens == "longppl" else key_tokens
    known = [field.name for field in fields(KeyTokenRule)]
    if not isinstance(settings, dict) or not set(settings) <= {*known, "evaluator"}:
        raise ValueError(
            f"`key_tokens` must be 'longppl', or a dict with some of {', '.join(known)} and "
            f"evaluator, got {key_tokens!r}."
        )
    for name in ("short_context", "stride"):
        if name in settings:
            check_whole_number(f"key_tokens[{name!r}]", settings[name], 1)
    for name in ("gain", "largest_nll"):
        nats = settings.get(name, 0.0)
        if isinstance(nats, bool) or not isinstance(nats, Real):
            raise TypeError(f"`key_tokens[{name!r}]` must be a number of nats, got {nats!r}.")
    rule = KeyTokenRule(**{name: settings[name] for name in known if name in settings})
    return rule, _evaluator(settings.get("evaluator"))


def _evaluator(evaluator: object) -> ModelSource | None:
    if evaluator is None:
        return None
    if isinstance(evaluator, str):
        return ModelSource(evaluator, role=EVALUATOR_ROLE)
    if not _is_pair(evaluator):
        raise TypeError(
            f"`{EVALUATOR_ROLE}` must be the name of a model on the Hub, a folder, or a pair (model, "
            f"tokenizer), got {evaluator!r}."
        )
    model, tokenizer = evaluator
    return ModelSource(model=model, tokenizer=tokenizer, role=EVALUATOR_ROLE)


def _is_pair(value: object) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], torch.nn.Module)


def find_key_characters(
    session: Session, evaluator: LanguageModel, texts: list[str], rule: KeyTokenRule
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
            f"{name} must have a fast tokenizer with `key_tokens`, which says which characters a "
            "token stands for, got a slow one."
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
