"""From the scores of windows to the result of a measurement."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from ..digests import TextsDigest
from ..models.interface import ScoredModel, describe_measurement
from ..plan.measurement import LONG_TEXT, Columns, Measurement, scatter_to_tokens
from ..plan.tokenization import TokenizedText, tokens_of
from ..plan.windows import Window, count_inputs, guide_weights, merge_windows, num_scored, unite
from ..protocols import count_words
from ..scoring.measures import TOKEN_MEASURES
from .totals import Aggregation, TextScores, Totals
from .words import WordScoring

# Fields of a window in `token_scores`.
WINDOW_KEYS = ("begin", "first", "end", "start_token")
# Columns of `token_scores` besides, where there is a reference; tokens are decoded.
REFERENCE_COLUMNS = ("reference_nll", "kl", "top", "reference_top")


# Compares a measurement with that of a second model: builds `comparison`, and where the second
# argument is true the scores of tokens or pieces of both.
Comparison = Callable[["ScoredMeasurement", bool], dict]


@dataclass(frozen=True)
class ScoredMeasurement:
    """A measurement with its scores, and what becomes of them.

    Attributes:
        scores, borders: scores of the windows of each text, and of those after its scored parts.
        cost: tokens that the measurement alone reads.
        comparison: comparison with a second model, if any.
        word_counts: words of each text before it was detokenized, by its tool's count; None if it was not.
        text_digests: digest of each given text; for a chat, of its formatted text.
        word_scoring: scoring of words; None if they are not scored.
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

    @cached_property
    def texts(self) -> list[TextScores]:
        """Scores and sizes of each text, or of its scored part."""
        measurement = self.measurement
        is_weighted = measurement.plan.protocol.aggregate == "guide weights"
        bodies = [
            text[stream.begin :] if stream.part is None else stream.part.of(text)
            for text, stream in zip(measurement.texts, measurement.streams)
        ]
        scores = []
        for text, body, stream, windows, columns, count in zip(
            *(measurement.texts, bodies, measurement.streams, measurement.windows),
            *(self.scores, self._count_words(bodies)),
        ):
            nlls = list(map(measurement.nlls_to_average, columns))
            scores.append(
                TextScores(
                    window_nlls=nlls,
                    first_targets=[window.first for window in windows],
                    guide_weights=guide_weights(windows) if is_weighted else [],
                    stream_length=len(stream),
                    num_bytes=len(body.encode("utf-8")),
                    num_characters=len(body),
                    num_words=count,
                    token_bytes=bytes_of_tokens(text, stream, windows),
                    **scored_units(text, body, stream, windows, nlls),
                )
            )
        return scores

    def _count_words(self, bodies: Sequence[str]) -> list[int]:
        """Return the words of each text: those before it was detokenized, or the protocol's."""
        measurement, counts = self.measurement, self.word_counts
        protocol = measurement.plan.protocol
        if counts is None and measurement.parts is not None:
            return [
                sum(count_words(text[first:end]) for first, end in unite(stream.scored_part.spans))
                for text, stream in zip(measurement.texts, measurement.streams)
            ]
        if counts is None:  # no word goes from one text to the next
            separate = measurement.members or [[body] for body in bodies]
            return [sum(map(protocol.count_words, texts)) for texts in separate]
        if len(bodies) == len(counts):
            return counts
        joined = protocol.texts_joined or len(counts)
        return [sum(counts[first : first + joined]) for first in range(0, len(counts), joined)]

    @cached_property
    def totals(self) -> Totals:
        """Sums over the texts, which add up."""
        plan, is_detokenized = self.measurement.plan, self.word_counts is not None
        settings = {
            "protocol": plan.protocol.name,
            "max_length": plan.max_length,
            "stride": plan.stride,
            "add_start_token": False if plan.start == "none" else plan.start,
            "model_name": self.model.name,
        }
        more = {"detokenizer": "wikitext"} if is_detokenized else {}
        if self.word_scoring is not None:
            more |= self.word_scoring.fields()
        fields = self.measurement.signature_fields()
        return Totals.of(
            self.texts,
            Aggregation(
                plan.protocol.aggregate,
                plan.protocol.error,
                plan.max_length,
                is_detokenized,
                has_context=self.measurement.parts is not None,
                stream_texts=1 if plan.protocol.scores_each_text else plan.protocol.texts_joined,
            ),
            num_forward_tokens=self.cost,
            identity=settings | describe_measurement(self.model, fields, is_detokenized, more),
            texts_digest=sum(self.text_digests, TextsDigest()),
        )

    def totals_of_texts(self) -> list[Totals]:
        """List the totals of each text; their sum is the total of all."""
        measurement = self.measurement
        if len(self.text_digests) > len(measurement.texts):
            return [self.totals]  # joined
        totals = []
        for number, (text, windows, borders) in enumerate(
            zip(self.texts, measurement.windows, measurement.borders)
        ):
            planned = measurement.plan.over(0, [*windows, *borders])
            cost = count_inputs(merge_windows(planned, self.model.prefixes_agree)[0])
            if measurement.plan.carries != "nothing":
                cost = sum(window.num_targets for window in windows)
            counts = {
                "windows": len(windows),
                "forward tokens": cost,
                "context tokens": text.num_context,
            }
            alone = self.totals.take([number], [self.text_digests[number].value])
            totals.append(replace(alone, counts=counts))
        return totals

    def token_scores(self) -> list[dict[str, list]]:
        """List the tokens of each text with their scores."""
        measurement = self.measurement
        return [
            token_scores(self.model.tokenizer, *of_text)
            for of_text in zip(measurement.streams, measurement.windows, self.scores)
        ]

    def result(self, given: Mapping[str, Any]) -> dict:
        """Build the result of a call with these arguments; see the metric's documentation."""
        measurement, with_tokens = self.measurement, given["return_token_scores"] is not False
        result = self.totals.result()
        if given["return_totals"]:
            result["totals"] = self.totals
        if given["return_totals"] == "texts":
            result["text_totals"] = self.totals_of_texts()
        if self.word_scoring is not None:
            result["word_scores"] = self.word_scoring.of_measurement(
                measurement, self.scores, self.borders
            )
        has_offsets = with_tokens or self.word_scoring is not None
        is_of_chats = measurement.parts is not None and measurement.parts.chats is not None
        if (has_offsets and is_of_chats) or self.word_counts is not None:
            result["texts_as_read"] = list(measurement.texts)
        if with_tokens:
            result["token_scores"] = self.token_scores()
        if self.comparison is not None:
            result |= self.comparison(self, with_tokens)
            own, own_of_reference = measurement.own_windows
            result["comparison"] |= {
                "own_window": own,
                "reference_own_window": own_of_reference,
                "window_is_cut": bool(measurement.cut_models),
            }
        return result


# --- sizes of texts -------------------------------------------------------------------------------


def scored_units(
    text: str, body: str, stream: TokenizedText, windows: list[Window], nlls: list[np.ndarray]
) -> dict[str, Any]:
    """Count tokens; measure what is scored of a text if it is not all and offsets are known."""
    part = stream.part
    scored = np.zeros(len(stream), dtype=bool)
    for window in windows:
        scored[window.first : window.end] = True
    if part is None:
        # those of the text, without added special tokens unless they are scored
        added = 0 if scored.all() else int(stream.added.sum())
        units, most = {"num_tokens": len(stream) - added}, len(stream)
    else:
        units = {"num_tokens": part.num_targets, "num_context": len(stream) - part.num_targets}
        most = part.num_targets
    if stream.offsets is None or num_scored(windows) == most:
        return units
    nll = np.concatenate(nlls)
    if part is None:
        if scored.sum() < num_scored(windows):  # some of them several times
            return units
        nll = nll[~stream.added[scored]]
        num_bytes, num_characters = measure_span(text, stream, scored)
    else:  # without the tokens that nothing precedes
        unscored = np.zeros(len(stream), dtype=bool)
        for first, end in part.targets:
            unscored[first:end] = ~scored[first:end]
        left_out = measure_span(text, stream, unscored, part.spans)
        num_bytes = len(body.encode("utf-8")) - left_out[0]
        num_characters = len(body) - left_out[1]
    return units | {
        "scored_nll": float(nll.sum(dtype=np.float64)),
        "scored_bytes": num_bytes,
        "scored_characters": num_characters,
    }


def measure_span(
    text: str,
    stream: TokenizedText,
    tokens: np.ndarray,
    spans: Sequence[tuple[int, int]] | None = None,
) -> tuple[int, int]:
    """Count the bytes and characters of tokens, as nanochat's `evaluate_bpb` does.

    Characters without a token, such as dropped spaces, count for the next token, or for the last one.
    A character that several tokens share counts for the first of them.

    Args:
        tokens: mask of the tokens to count (N,).
        spans: ranges of the characters to count; None for the whole text.
    """
    starts, ends = (places[tokens & ~stream.added] for places in bounds_of_tokens(text, stream))
    bytes_before = count_bytes_before(text)
    num_bytes = num_characters = 0
    for span in [(0, len(text))] if spans is None else spans:
        begins, stops = np.clip(starts, *span), np.clip(ends, *span)
        num_bytes += int((bytes_before[stops] - bytes_before[begins]).sum())
        num_characters += int((stops - begins).sum())
    return num_bytes, num_characters


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
