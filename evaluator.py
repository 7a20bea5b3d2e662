"""Which tokens of texts need a long context, as an evaluator model finds them: see key_tokens.py."""

from collections.abc import Sequence

import numpy as np

from .arguments import Setting
from .curves import nlls_by_token, windows_of_texts
from .key_tokens import KeyTokenRule, merge_spans, tokens_inside
from .language_model import LanguageModel
from .loading import UNLIMITED_WINDOW
from .measurement import Corpus, plan_measurement
from .measures import NegativeLogLikelihood
from .report import Report
from .results import exp
from .running import Session
from .tokenization import TokenizedText
from .uncertainty import Blocks, estimate_ratio
from .windows import Protocol

# How the evaluator of the package `longppl` reads a text.
EVALUATOR = Protocol(
    "longppl evaluator",
    source="longppl",
    description="The tokenizer's own special tokens and no others; every token is scored once.",
    encoding="default",
    knobs=("max_length", "stride"),
)


def find_key_characters(
    session: Session, evaluator: LanguageModel, texts: list[str], rule: KeyTokenRule
) -> list[np.ndarray]:
    """The characters of key tokens: for each text spans (first, one past the last) (M, 2).

    The long context is the whole text, or as much as the evaluator takes, slid over by half of it.

    Raises:
        ValueError: the evaluator cannot be scored with, or does not say which characters its
            tokens stand for.
    """
    with evaluator.in_use():
        evaluator.check()
        corpus = Corpus(evaluator.tokenizer, texts, with_offsets=True)
        _, streams = corpus.read(EVALUATOR, None)
        check_offsets(streams, "`evaluator`")
        longest = max(2, *(len(stream) for stream in streams))
        longest = min(longest, evaluator.limit.length or max(longest, UNLIMITED_WINDOW))
        settings = [
            Setting(EVALUATOR, longest, max(1, longest // 2)),
            Setting(EVALUATOR, min(rule.window, longest), min(rule.stride, longest)),
        ]
        measurements = [
            plan_measurement(corpus, evaluator.limit, setting, True, None) for setting in settings
        ]
        work, scores = session.score([evaluator], measurements, [NegativeLogLikelihood()])
    full, short = (
        [nlls_by_token(*of_text) for of_text in windows_of_texts(measurement, of_measurement)]
        for measurement, of_measurement, _ in work.by_measurement(scores)
    )
    return [
        merge_spans(stream.offsets[rule.key_tokens(short_nlls, full_nlls)])
        for stream, short_nlls, full_nlls in zip(streams, short, full)
    ]


def report_key_tokens(report: Report, spans: Sequence[np.ndarray]) -> dict:
    """The keys of a result that say how well key tokens are predicted.

    Args:
        spans: characters of the key tokens of each text.
    """
    of_texts = list(windows_of_texts(report.measurement, report.scores))
    nlls = [nlls_by_token(*of_text) for of_text in of_texts]
    places = [
        inside[~np.isnan(nll[inside])]
        for stream, nll, of_text in zip(report.measurement.streams, nlls, spans)
        for inside in [tokens_inside(stream.offsets, of_text)]
    ]
    of_keys = [nll[inside] for nll, inside in zip(nlls, places)]
    texts = np.repeat(np.arange(len(places)), [len(inside) for inside in places])
    answers = {
        "num_key_tokens": len(texts),
        "longppls": [exp(float(nll.mean())) if len(nll) else None for nll in of_keys],
        "longppl": None,
        "longppl_interval": None,
    }
    if not len(texts):
        return answers
    lengths = [len(nll) for nll in nlls]
    columns = [np.ones(len(texts)), np.concatenate(of_keys)]
    blocks = Blocks.of(lengths, texts, np.concatenate(places), columns)
    tokens, nll = blocks.clusters(1).sums.T
    estimate = estimate_ratio(nll, tokens)
    answers["longppl"] = exp(estimate.value)
    if estimate.interval is not None:
        answers["longppl_interval"] = [exp(end) for end in estimate.interval]
    return answers


def check_offsets(streams: Sequence[TokenizedText], name: str) -> None:
    if any(stream.offsets is None for stream in streams):
        raise ValueError(
            f"{name} must have a fast tokenizer with `key_tokens`, which says which characters a "
            "token stands for, got a slow one."
        )
