"""What a call asks about long contexts: what is planned for it, and what comes of the scores."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from .arguments import LongContext, Setting
from .contexts import (
    doubling_edges,
    doubling_lengths,
    in_context_score,
    summarize_contexts,
    summarize_positions,
)
from .loading import UNLIMITED_WINDOW, ContextLimit
from .measurement import Corpus, Measurement, plan_measurement
from .report import Report
from .scoring import Columns
from .windows import Window


def expand_settings(
    corpus: Corpus,
    limit: ContextLimit,
    settings: list[Setting],
    asked: LongContext,
    add_start_token: bool | str,
    separator: str | None,
) -> list[Setting]:
    """The settings to measure: one for each length of context, the longest first, with one stride.

    Raises:
        ValueError: as when the longest is measured.
    """
    setting, context_lengths = settings[0], asked.context_lengths
    if asked.carry and setting.max_length is None and limit.length is None:
        return [replace(setting, max_length=UNLIMITED_WINDOW)]  # what is carried has no limit
    if context_lengths is None:
        return settings
    if context_lengths == "doubling":
        planned = plan_measurement(corpus, limit, setting, add_start_token, separator)
        longest_text = max(len(stream) for stream in planned.streams)
        longest = max(2, min(planned.plan.max_length, longest_text))
        context_lengths = doubling_lengths(longest, setting.stride)
    stride = setting.stride or max(1, min(context_lengths) // 2)
    lengths = sorted(set(context_lengths), reverse=True)
    return [Setting(setting.protocol, length, stride) for length in lengths]


def report_curves(reports: Sequence[Report], asked: LongContext, num_forward_tokens: int) -> dict:
    """The keys of a result that answer what was asked; the first report is that of the result."""
    answers: dict[str, object] = {}
    if asked.context_lengths is not None:
        answers["by_context"] = report_contexts(reports)
        answers["num_forward_tokens"] = num_forward_tokens
    if asked.positions is not None:
        answers |= report_positions(reports[0], asked.positions)
    return answers


def report_contexts(reports: Sequence[Report]) -> list[dict]:
    """Perplexity of the same tokens by length of context, shortest first.

    Raises:
        ValueError: no text is as long as the longest context.
    """
    ascending = reports[::-1]
    plan = ascending[-1].measurement.plan
    nlls = [
        [nlls_by_token(*of_text) for of_text in windows_of_texts(one.measurement, one.scores)]
        for one in ascending
    ]
    contexts = [
        contexts_by_token(*of_text)
        for of_text in windows_of_texts(ascending[-1].measurement, ascending[-1].scores)
    ]
    if not any((seen >= plan.max_length - plan.stride).any() for seen in contexts):
        longest = max(len(seen) for seen in contexts)
        raise ValueError(
            f"`context_lengths` must hold lengths that a text reaches, got {plan.max_length} for "
            f"texts of at most {longest} tokens. Pass shorter ones, or longer texts."
        )
    lengths = [one.measurement.plan.max_length for one in ascending]
    return summarize_contexts(lengths, nlls, contexts, plan.stride)


def report_positions(report: Report, positions: list[int] | str) -> dict:
    """The keys `by_position` and `in_context_score` of a result."""
    of_texts = list(windows_of_texts(report.measurement, report.scores))
    nlls = [nlls_by_token(*of_text) for of_text in of_texts]
    contexts = [contexts_by_token(*of_text) for of_text in of_texts]
    edges = positions
    if edges == "doubling":
        edges = doubling_edges(max(len(nll) for nll in nlls))
    return {
        "by_position": summarize_positions(edges, nlls, report.measurement.plan.max_length),
        "in_context_score": in_context_score(nlls, contexts),
    }


def windows_of_texts(
    measurement: Measurement, scores: Sequence[Sequence[Columns]]
) -> Iterator[tuple[int, list[Window], Sequence[Columns]]]:
    """Yield (number of tokens, windows, their scores) of each text."""
    for stream, windows, of_text in zip(measurement.streams, measurement.windows, scores):
        yield len(stream), windows, of_text


def nlls_by_token(
    num_tokens: int, windows: Sequence[Window], scores: Sequence[Columns]
) -> np.ndarray:
    """The nll of each token in nats (N,), NaN where it has none; with most context where several."""
    nlls = np.full(num_tokens, np.nan)
    for window, columns in zip(reversed(windows), reversed(scores)):
        nlls[window.first : window.end] = columns["nll"]
    return nlls


def contexts_by_token(
    num_tokens: int, windows: Sequence[Window], scores: Sequence[Columns]
) -> np.ndarray:
    """How many tokens the prediction of each sees (N,), 0 where it is not scored."""
    seen = np.zeros(num_tokens, dtype=np.int64)
    for window in reversed(windows):
        targets = np.arange(window.first, window.end)
        seen[targets] = targets - window.begin + window.start_token
    return seen
