"""From the scores of windows to the result of a call."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, Protocol

import numpy as np
from transformers import PreTrainedTokenizerBase

from ..arguments import Setting
from ..digests import TextsDigest
from ..errors import wording_of
from ..models.interface import ScoredModel, describe_measurement
from ..plan.measurement import Columns, Measurement, scatter_to_tokens
from ..plan.settings import LONG_TEXT
from ..plan.tokenization import ScoredPart, TokenizedText, tokens_of
from ..plan.windows import Window, count_inputs, guide_weights, merge_windows, num_scored, unite
from ..protocols import count_words
from ..scoring.measures import TOKEN_MEASURES
from .totals import Aggregation, TextScores, Totals, ratio_of_perplexities
from .words import WordScoring

# Fields of a window in `token_scores`.
WINDOW_KEYS = ("begin", "first", "end", "start_token")
# Columns of `token_scores` besides, where there is a reference; tokens are decoded.
REFERENCE_COLUMNS = ("reference_nll", "kl", "top", "reference_top")


class Comparison(Protocol):
    """A comparison of a measurement with that of a second model."""

    def results(self, report: "Report", with_tokens: bool) -> dict:
        """Build `comparison`, and with tokens their columns; see the metric's documentation."""
        ...


@dataclass(frozen=True)
class Report:
    """The outcome of a measurement.

    Attributes:
        scores: scores of the windows of each text.
        borders: scores of the windows after the scored parts of each text.
        cost: tokens that the measurement alone reads.
        comparison: comparison with a second model, if any.
        word_counts: words of each text before it was detokenized, by its tool's count; None if it was not.
        text_digests: digest of each given text; for a chat, of its formatted text.
        word_scoring: scoring of words; None if they are not scored.
        detokenizer: name of the conversion of the texts, if any.
        own_windows: the window of the model alone, and of its reference if any; None if unlimited.
    """

    model: ScoredModel
    measurement: Measurement
    scores: list[list[Columns]]
    cost: int
    word_counts: list[int] | None
    text_digests: list[TextsDigest]
    comparison: Comparison | None = None
    borders: Sequence[list[Columns]] = ()
    word_scoring: WordScoring | None = None
    detokenizer: str | None = None
    own_windows: Sequence[int | None] = ()

    @property
    def window_is_cut(self) -> bool:
        """Whether one of two compared models has other numbers alone, in its longer window."""
        return bool(self.measurement.cut_for(self.own_windows))

    @cached_property
    def texts(self) -> list[TextScores]:
        """Scores and sizes of each text."""
        return text_scores(self.measurement, self.nlls, self.word_counts)

    @cached_property
    def nlls(self) -> list[list[np.ndarray]]:
        """The nlls of each window of each text that enter the sums, see `Measurement.nll_of`."""
        return [list(map(self.measurement.nll_of, of_text)) for of_text in self.scores]

    @cached_property
    def totals(self) -> Totals:
        """Sums over the texts, which add up."""
        plan = self.measurement.plan
        words_given = self.word_counts is not None
        protocol = plan.protocol
        return Totals.of(
            self.texts,
            Aggregation(
                protocol.aggregate,
                protocol.error,
                plan.max_length,
                words_given,
                has_context=self.measurement.parts is not None,
                stream_texts=self.measurement.stream_texts,
            ),
            num_forward_tokens=self.cost,
            identity=self.settings()
            | describe_measurement(
                self.model,
                self.measurement.signature_fields(),
                words_given,
                ({} if self.detokenizer is None else {"detokenizer": self.detokenizer})
                | ({} if self.word_scoring is None else self.word_scoring.fields()),
            ),
            texts_digest=sum(self.text_digests, TextsDigest()),
        )

    def totals_of_texts(self) -> list[Totals]:
        """List the totals of each text; their sum is the total of all."""
        if len(self.text_digests) > len(self.measurement.texts):
            return [self.totals]  # joined
        counts = [
            {
                "windows": len(windows),
                "forward tokens": self._cost_alone([*windows, *borders]),
                "context tokens": text.num_context,
            }
            for text, windows, borders in zip(
                self.texts, self.measurement.windows, self.measurement.borders
            )
        ]
        return self.totals.split(counts, self.text_digests)

    def _cost_alone(self, windows: list[Window]) -> int:
        """Count the tokens that the windows of a text alone read."""
        if self.measurement.plan.carries != "nothing":
            return sum(window.num_targets for window in windows)
        planned = self.measurement.plan.over(0, windows)
        return count_inputs(merge_windows(planned, self.model.prefixes_agree)[0])

    def settings(self) -> dict[str, object]:
        """Return the settings used, with `None` replaced by the actual values."""
        plan = self.measurement.plan
        return {
            "protocol": plan.protocol.name,
            "max_length": plan.max_length,
            "stride": plan.stride,
            "add_start_token": False if plan.start == "none" else plan.start,
            "model_name": self.model.name,
        }

    def token_scores(self) -> list[dict[str, list]]:
        """List the tokens of each text with their scores."""
        measurement = self.measurement
        return [
            token_scores(self.model.tokenizer, *of_text)
            for of_text in zip(measurement.streams, measurement.windows, self.scores)
        ]

    def result(self, given: Mapping[str, Any]) -> dict:
        """Build the result of a call; see the metric's documentation.

        Args:
            given: the arguments of the call.
        """
        result, with_tokens = self.totals.result(), given["return_token_scores"] is not False
        if given["return_totals"]:
            result["totals"] = self.totals
        if given["return_totals"] == "texts":
            result["text_totals"] = self.totals_of_texts()
        if self.word_scoring is not None:
            result["word_scores"] = self.word_scoring.of_measurement(
                self.measurement, self.scores, self.borders
            )
        parts = self.measurement.parts
        has_offsets = with_tokens or self.word_scoring is not None
        is_of_chats = has_offsets and parts is not None and parts.chats is not None
        if is_of_chats or self.detokenizer is not None:
            result["texts_as_read"] = list(self.measurement.texts)
        if with_tokens:
            result["token_scores"] = self.token_scores()
        if self.comparison is not None:
            result |= self.comparison.results(self, with_tokens)
            names = ("own_window", "reference_own_window")
            result["comparison"] |= zip(names, self.own_windows)
            result["comparison"]["window_is_cut"] = self.window_is_cut
        return result


def list_reports(
    planned: dict[Setting, Measurement | ValueError],
    reports: Sequence[Report],
    given: Mapping[str, Any],
) -> list[dict]:
    """List an entry for each setting, in order: its result, or its error.

    Those after the first with a result also have the paired ratio to it.
    """
    waiting = iter(reports)
    entries = []
    for setting, outcome in planned.items():
        if isinstance(outcome, ValueError):
            entries.append(setting.describe() | {"error": wording_of(outcome)})
            continue
        report = next(waiting)
        entry = report.result(given)
        if report is not reports[0]:
            entry["ratio_to_first"] = ratio_of_perplexities(report.totals, reports[0].totals)
        entries.append(entry)
    return entries


def text_scores(
    measurement: Measurement, nlls: list[list[np.ndarray]], word_counts: list[int] | None
) -> list[TextScores]:
    """Combine the nlls of texts, or of their scored parts, with their sizes."""
    is_weighted = measurement.plan.protocol.aggregate == "guide weights"
    bodies = [
        text[stream.begin :] if stream.part is None else stream.part.of(text)
        for text, stream in zip(measurement.texts, measurement.streams)
    ]
    return [
        TextScores(
            window_nlls=of_text,
            first_targets=[window.first for window in windows],
            guide_weights=guide_weights(windows) if is_weighted else [],
            stream_length=len(stream),
            num_bytes=len(body.encode("utf-8")),
            num_characters=len(body),
            num_words=count,
            token_bytes=bytes_of_tokens(text, stream, windows),
            **scored_units(text, stream, windows, of_text),
        )
        for text, body, stream, windows, of_text, count in zip(
            *(measurement.texts, bodies, measurement.streams, measurement.windows),
            *(nlls, words_of(measurement, bodies, word_counts)),
        )
    ]


def words_of(
    measurement: Measurement, bodies: Sequence[str], word_counts: list[int] | None
) -> list[int]:
    """Return the words of each text: the caller's counts, or the protocol's."""
    protocol = measurement.plan.protocol
    if word_counts is None and measurement.parts is not None:
        return [
            sum(count_words(text[first:end]) for first, end in unite(stream.scored_part.spans))
            for text, stream in zip(measurement.texts, measurement.streams)
        ]
    if word_counts is None:  # no word goes from one text to the next
        separate = measurement.members or [[body] for body in bodies]
        return [sum(map(protocol.count_words, texts)) for texts in separate]
    if len(bodies) == len(word_counts):
        return word_counts
    joined = protocol.texts_joined or len(word_counts)
    return [
        sum(word_counts[first : first + joined]) for first in range(0, len(word_counts), joined)
    ]


def scored_units(
    text: str, stream: TokenizedText, windows: list[Window], nlls: list[np.ndarray]
) -> dict[str, Any]:
    """Count tokens; measure the scored part of a text if offsets are known."""
    if stream.part is not None:
        return units_of_part(text, stream, stream.part, windows, nlls)
    # those of the text, without added special tokens unless they are scored
    all_scored = unite((window.first, window.end) for window in windows) == ((0, len(stream)),)
    units = {"num_tokens": len(stream) - (0 if all_scored else int(stream.added.sum()))}
    if stream.offsets is None or num_scored(windows) == len(stream):
        return units
    scored = np.zeros(len(stream), dtype=bool)
    for window in windows:
        scored[window.first : window.end] = True
    if scored.sum() < num_scored(windows):  # some of them several times
        return units
    num_bytes, num_characters = measure_span(text, stream, scored)
    own = np.concatenate(nlls)[~stream.added[scored]]
    return units | {
        "scored_nll": float(own.sum(dtype=np.float64)),
        "scored_bytes": num_bytes,
        "scored_characters": num_characters,
    }


def units_of_part(
    text: str,
    stream: TokenizedText,
    part: ScoredPart,
    windows: list[Window],
    nlls: list[np.ndarray],
) -> dict[str, Any]:
    """Count the tokens of a scored part; measure it without those that nothing precedes, if offsets are known."""
    units = {"num_tokens": part.num_targets, "num_context": len(stream) - part.num_targets}
    if stream.offsets is None or num_scored(windows) == part.num_targets:
        return units
    unscored = np.zeros(len(stream), dtype=bool)
    for first, end in part.targets:
        unscored[first:end] = True
    for window in windows:
        unscored[window.first : window.end] = False
    starts, ends = bounds_of_tokens(text, stream)
    left_out = "".join(
        text[max(start, first) : min(end, last)]
        for start, end in zip(starts[unscored].tolist(), ends[unscored].tolist())
        for first, last in part.spans
    )
    body = part.of(text)
    return units | {
        "scored_nll": float(sum(of_window.sum(dtype=np.float64) for of_window in nlls)),
        "scored_bytes": len(body.encode("utf-8")) - len(left_out.encode("utf-8")),
        "scored_characters": len(body) - len(left_out),
    }


def measure_span(text: str, stream: TokenizedText, scored: np.ndarray) -> tuple[int, int]:
    """Count the bytes and characters of scored tokens, as nanochat's `evaluate_bpb` does.

    Characters without a token, such as dropped spaces, count for the next token, or for the last one.
    A character that several tokens share counts for the first of them.

    Args:
        scored: mask of the scored tokens (N,).
    """
    starts, ends = bounds_of_tokens(text, stream)
    bytes_before = count_bytes_before(text)
    counted = scored & ~stream.added
    return (
        int((bytes_before[ends] - bytes_before[starts])[counted].sum()),
        int((ends - starts)[counted].sum()),
    )


def bounds_of_tokens(text: str, stream: TokenizedText) -> tuple[np.ndarray, np.ndarray]:
    """Return where the characters of each token begin and end (N,), (N,), see `measure_span`."""
    own = ~stream.added
    ends = np.where(own, stream.known_offsets[:, 1], 0)
    ends = np.maximum.accumulate(np.maximum(ends, stream.begin))
    if own.any():
        ends[np.flatnonzero(own)[-1] :] = len(text)
    starts = np.concatenate([[stream.begin], ends[:-1]])
    return starts, ends


def bytes_of_tokens(text: str, stream: TokenizedText, windows: list[Window]) -> np.ndarray | None:
    """Count the bytes of each scored token of a long text, window after window (N,).

    Returns:
        None for a short text; NaN if the tokenizer returns no offsets.
    """
    if len(text) < LONG_TEXT:
        return None
    if stream.offsets is None:
        return np.full(num_scored(windows), np.nan)
    starts, ends = bounds_of_tokens(text, stream)
    bytes_before = count_bytes_before(text)
    sizes = np.where(stream.added, 0, bytes_before[ends] - bytes_before[starts])
    return np.concatenate([sizes[window.first : window.end] for window in windows])


def count_bytes_before(text: str) -> np.ndarray:
    """Count the UTF-8 bytes before each character, and in all of them (N + 1,)."""
    codes = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
    sizes = 1 + (codes >= 0x80) + (codes >= 0x800) + (codes >= 0x10000)
    return np.concatenate([[0], np.cumsum(sizes)])


def token_scores(
    tokenizer: PreTrainedTokenizerBase,
    stream: TokenizedText,
    windows: list[Window],
    scores: list[Columns],
) -> dict[str, list]:
    """List every token of a text with its score, `None` if unscored."""
    offsets = [None] * len(stream) if stream.offsets is None else stream.offsets.tolist()
    columns: dict[str, list] = {
        "tokens": tokens_of(tokenizer, stream.ids.tolist()),
        "offsets": offsets,
    }
    decoded = cache(lambda number: tokenizer.decode([number]))  # most tops are a few tokens

    def add(name: str, values: Sequence[Sequence], unscored: object = None) -> None:
        columns[name] = [unscored] * len(stream)
        scatter_to_tokens(windows, values, columns[name])

    add("nll", [of_window["nll"].tolist() for of_window in scores])
    add("context_length", [window.context_lengths() for window in windows], 0)
    for name in TOKEN_MEASURES:
        if name in scores[0]:
            add(name, [of_window[name].tolist() for of_window in scores])
    if "top_ids" in scores[0]:
        likeliest = (zip(w["top_ids"].tolist(), w["top_nll"].tolist()) for w in scores)
        add(
            "alternatives",
            [
                [[[decoded(top), nll] for top, nll in zip(*of_token)] for of_token in of_window]
                for of_window in likeliest
            ],
        )
    if "reference_nll" in scores[0]:
        for name in REFERENCE_COLUMNS:
            if name not in scores[0]:  # a server gives no divergence
                continue
            values = [of_window[name].tolist() for of_window in scores]
            add(name, [list(map(decoded, v)) for v in values] if "top" in name else values)
    return columns | {"windows": [dict(zip(WINDOW_KEYS, window)) for window in windows]}
