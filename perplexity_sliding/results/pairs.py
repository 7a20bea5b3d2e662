"""A model and its reference compared: their scores paired, token by token or by the byte."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from ..engines.sources import InBfloat16
from ..errors import ArgumentError, Wording
from ..models.identity import LIVE
from ..models.interface import ScoredModel, describe_measurement
from ..models.language_model import LanguageModel
from ..plan.measurement import Columns, Measurement, nlls_by_token
from ..scoring.measures import Divergence, Likeliest, Measure, NegativeLogLikelihood
from ..scoring.runner import Session, Work, prepare_model
from .comparison import (
    ITSELF,
    PairedScores,
    Pieces,
    common_pieces,
    compare,
    compare_bytes,
    tool_errors,
    worst_tokens,
)
from .report import Comparison, Report
from .same_model import judge_sameness
from .totals import ratio_of_perplexities

WORST_TOKENS = 20
# Keys of the reference's own result that are added to the model's.
SHOWN_OF_REFERENCE = (
    *("perplexity", "perplexity_interval", "perplexities", "bits_per_byte"),
    *("signature", "probe"),
)


# Keys of a comparison by bytes that a comparison by tokens has too.
CHANGE_PER_BYTE = ("bits_per_byte_change", "bits_per_byte_change_interval", "num_compared_bytes")


@dataclass(frozen=True)
class TokenComparison:
    """Compares the scores of a measurement token by token with those under the reference.

    Attributes:
        margin: how much worse the model may be, as a share of the perplexity, or None.
        is_itself: whether the reference is the model itself.
    """

    reference: ScoredModel
    margin: float | None
    is_itself: bool = field(default=False, kw_only=True)

    def compare(self, report: Report) -> dict:
        """Build the value of `comparison`; see the metric's documentation."""
        measurement, plan = report.measurement, report.measurement.plan
        with self.reference.as_scored():
            of_reference = replace(
                report,
                model=self.reference,
                scores=scores_of_reference(report.scores),
                comparison=None,
            ).totals
        reference = of_reference.result()
        scores = paired_scores(measurement, report.scores)
        ratio = ratio_of_perplexities(report.totals, of_reference)
        result = compare(scores, ratio, plan.max_length, self.margin)
        if self.is_itself:
            result["summary"] = ITSELF
        if plan.protocol.error == "population":
            result["tool_stderrs"] = tool_errors(scores)
        return {
            "compared": "tokens",
            **result,
            **{
                f"reference_{name}": reference[name]
                for name in SHOWN_OF_REFERENCE
                if name in reference
            },
            **self._change_per_byte(report),
            "worst_tokens": list_tokens(
                report.model.tokenizer, measurement, scores, worst_tokens(scores, WORST_TOKENS)
            ),
        }

    def results(self, report: Report, with_tokens: bool) -> dict:
        """Build the keys of a result that compare it; see `Comparison`."""
        return {"comparison": self.compare(report)}

    def _change_per_byte(self, report: Report) -> dict:
        """Return the change per byte, comparable across tokenizers, if offsets are known."""
        if any(stream.offsets is None for stream in report.measurement.streams):
            return {}
        own = report.measurement, scores_of_reference(report.scores)
        pieces = ByteComparison(self.reference, self.margin, *own).pieces(report)
        by_bytes = compare_bytes(pieces, report.measurement.plan.max_length)
        return {name: by_bytes[name] for name in CHANGE_PER_BYTE}


@dataclass(frozen=True)
class ValueComparison(TokenComparison):
    """Compares the scores of tokens if one of the models returns no logits.

    Attributes:
        scores: scores of the windows of each text under the reference.
        rounded: those in bfloat16; None if the reference itself is not in float32.
    """

    scores: list[list[Columns]]
    rounded: list[list[Columns]] | None

    def compare(self, report: Report) -> dict:
        """Build the value of `comparison`; see the metric's documentation."""
        beside = self._beside(report)
        result = super().compare(replace(report, scores=beside))
        if self.rounded is None:
            return result
        scores = paired_scores(report.measurement, beside)
        rounded = np.concatenate([w["nll"] for of_text in self.rounded for w in of_text])
        rounding = rounded.astype(np.float64) - scores["reference_nll"]
        identity = judge_sameness(scores.differences, rounding)
        return result | {"summary": identity["summary"], "identity": identity}

    def results(self, report: Report, with_tokens: bool) -> dict:
        """Build the keys of a result that compare it; see `Comparison`."""
        results = super().results(report, with_tokens)
        if not with_tokens:
            return results
        return results | {
            "token_scores": replace(report, scores=self._beside(report)).token_scores()
        }

    def _beside(self, report: Report) -> list[list[Columns]]:
        """Add the reference's values to those of the model."""
        return [
            [
                columns | {"reference_nll": other["nll"], "reference_top": other["top"]}
                for columns, other in zip(*of_text)
            ]
            for of_text in zip(report.scores, self.scores)
        ]


def scores_of_reference(scores: list[list[Columns]]) -> list[list[Columns]]:
    """Replace the model's nlls by the reference's."""
    return [[{"nll": columns["reference_nll"]} for columns in of_text] for of_text in scores]


def paired_scores(measurement: Measurement, scores: list[list[Columns]]) -> PairedScores:
    """Concatenate the scored tokens of all texts."""
    windows = [window for of_text in measurement.windows for window in of_text]
    counts = [sum(window.num_targets for window in of_text) for of_text in measurement.windows]
    texts = np.repeat(np.arange(len(counts)), counts)
    positions = np.concatenate([np.arange(window.first, window.end) for window in windows])
    contexts = np.concatenate(
        [
            np.arange(window.context_length(window.first), window.context_length(window.end))
            for window in windows
        ]
    )
    starts = np.concatenate([[0], np.cumsum([len(stream) for stream in measurement.streams])])
    ids = np.concatenate([stream.ids for stream in measurement.streams])
    columns = [columns for of_text in scores for columns in of_text]
    return PairedScores(
        [len(stream) for stream in measurement.streams],
        texts,
        positions,
        contexts,
        ids[starts[texts] + positions],
        {name: np.concatenate([of_window[name] for of_window in columns]) for name in columns[0]},
    )


def list_tokens(
    tokenizer: PreTrainedTokenizerBase,
    measurement: Measurement,
    scores: PairedScores,
    places: np.ndarray,
) -> list[dict]:
    """Describe scored tokens: their places, and the values of both models."""

    def describe(place: int) -> dict:
        text, position = int(scores.texts[place]), int(scores.positions[place])
        offsets = measurement.streams[text].offsets
        values = {
            name: float(scores.columns[name][place])
            for name in ("kl", "nll", "reference_nll")
            if name in scores.columns
        }
        tops = {
            name: tokenizer.decode([int(scores.columns[name][place])])
            for name in ("top", "reference_top")
        }
        return {
            "text": text,
            "position": position,
            "offset": None if offsets is None else offsets[position].tolist(),
            "token": tokenizer.decode([int(scores.targets[place])]),
            **values,
            **tops,
        }

    return [describe(place) for place in places.tolist()]


@dataclass(frozen=True)
class ByteComparison:
    """Compares two models with different tokenizers over pieces between common boundaries.

    Attributes:
        measurement: the reference's own plan, over its own tokens.
        scores: of its windows.
    """

    reference: ScoredModel
    margin: float | None
    measurement: Measurement
    scores: list[list[Columns]]

    def compare(self, report: Report) -> dict:
        """Build the value of `comparison`; see the metric's documentation."""
        pieces = self.pieces(report)
        identity = describe_measurement(
            self.reference,
            self.measurement.signature_fields(),
            words_given=report.word_counts is not None,
        )
        return {
            "compared": "bytes",
            **compare_bytes(pieces, report.measurement.plan.max_length, self.margin),
            **{
                f"reference_{name}": identity[name]
                for name in ("signature", "probe")
                if name in identity
            },
        }

    def results(self, report: Report, with_tokens: bool) -> dict:
        """Build the keys of a result that compare it; see `Comparison`."""
        result: dict = {"comparison": self.compare(report)}
        return result | ({"piece_scores": self.piece_scores(report)} if with_tokens else {})

    def piece_scores(self, report: Report) -> list[dict]:
        """List the pieces of each text, with the values of both models."""
        return [
            {
                "offsets": np.stack([pieces.begins, pieces.ends], axis=1).tolist(),
                "nll": pieces.nll.tolist(),
                "reference_nll": pieces.reference_nll.tolist(),
            }
            for pieces in self.pieces(report)
        ]

    def pieces(self, report: Report) -> list[Pieces]:
        """List the pieces of each text.

        Raises:
            ValueError: a tokenizer gives no offsets.
        """
        sides = (report.measurement, report.scores), (self.measurement, self.scores)
        if any(stream.offsets is None for side, _ in sides for stream in side.streams):
            raise ValueError(
                Wording(
                    "`reference` has other tokens than the model; comparing them by characters "
                    "requires token offsets: pass fast tokenizers for both."
                )
            )
        return [
            common_pieces(text, *of_models)
            for text, *of_models in zip(
                report.measurement.texts, *(scored_characters(*side) for side in sides)
            )
        ]


def scored_characters(
    measurement: Measurement, scores: list[list[Columns]]
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield characters (N, 2) of each token of a text, and its nll (N,), NaN where unscored.

    Added tokens are left out; a start token written at the head that was dropped comes unscored.
    """
    for stream, nll in zip(measurement.streams, nlls_by_token(measurement, scores)):
        dropped = [[0, stream.begin]] if stream.begin else np.empty((0, 2), dtype=np.int64)
        offsets = np.concatenate([dropped, stream.known_offsets[~stream.added]])
        nll = np.concatenate([np.full(len(dropped), np.nan), nll[~stream.added]])
        edges = [] if stream.part is None else [first for first, _ in stream.part.spans]
        yield with_edges(edges, offsets, nll)


def with_edges(
    edges: Sequence[int], offsets: np.ndarray, nll: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Insert unscored tokens before scored parts that follow characters without a token.

    White space that one tokenizer drops would else belong to the part's first token, and the other
    model has not scored it.
    """
    for edge in edges:
        place = int(np.searchsorted(offsets[:, 0], edge))
        before = int(offsets[:place, 1].max(initial=0))
        if before < edge:
            offsets = np.insert(offsets, place, (before, edge), axis=0)
            nll = np.insert(nll, place, np.nan)
    return offsets, nll


def score_values(
    session: Session,
    models: tuple[ScoredModel, ScoredModel],
    measurements: Sequence[Measurement],
    measures: Sequence[Measure],
    margin: float | None,
) -> tuple[Work, list[Columns], list[ValueComparison]]:
    """Score measurements under a model and its reference, one of which returns no logits."""
    model, reference = models
    values: list[Measure] = [NegativeLogLikelihood(), Likeliest()]
    other_work, other_scores = session.score([reference], measurements, values)
    others = [of_texts for _, of_texts, _ in other_work.by_measurement(other_scores)]
    roundings = score_rounded(session, reference, measurements)
    comparisons = [
        ValueComparison(reference, margin, *of_measurement)
        for of_measurement in zip(others, roundings)
    ]
    together = [*measures, *(m for m in values if m not in measures)]
    return *session.score([model], measurements, together), comparisons


def score_rounded(
    session: Session, reference: ScoredModel, measurements: Sequence[Measurement]
) -> list[list[list[Columns]] | None]:
    """Score measurements under a reference in bfloat16; None if it is not in float32."""
    if not isinstance(reference, LanguageModel) or reference.dtype != torch.float32:
        return [None] * len(measurements)
    rounded = InBfloat16.of(reference)
    with rounded.in_use():
        rounded.check()
        prepare_model(rounded, measurements)
        work, scores = session.score([rounded], measurements, [NegativeLogLikelihood()])
    return [of_texts for _, of_texts, _ in work.by_measurement(scores)]


def is_compared_with_itself(
    model: ScoredModel, reference: ScoredModel, measurement: Measurement
) -> bool:
    """Return whether two models in memory are one: the same object, or the same files and settings."""
    if not (isinstance(model, LanguageModel) and isinstance(reference, LanguageModel)):
        return False
    if type(model) is not type(reference):
        return False
    if model.model is reference.model:
        return True
    one, other = (
        describe_measurement(each, measurement.signature_fields(), words_given=False)
        for each in (model, reference)
    )
    return one["signature"] == other["signature"] and f"|revision:{LIVE}|" not in str(
        one["signature"]
    )


def score_pair(
    session: Session,
    models: tuple[ScoredModel, ScoredModel],
    measurements: Sequence[Measurement],
    of_reference: Sequence[Measurement] | None,
    measures: Sequence[Measure],
    margin: float | None,
) -> tuple[Work, list[Columns], Sequence[Comparison]]:
    """Score measurements under a model and its reference, together if they read the same tokens.

    Args:
        models: prepared models.
        of_reference: the measurements planned with the reference's tokenizer; None if both models
            read the same tokens.

    Returns:
        work and scores of the model, and the comparison of each measurement.
    """
    model, reference = models
    if of_reference is None:
        if not all(each.gives_logits for each in models):
            return score_values(session, models, measurements, measures, margin)
        is_itself = is_compared_with_itself(model, reference, measurements[0])
        if is_itself and margin is not None:
            raise ArgumentError(
                "margin",
                "be left out where a model is compared with itself, in the same settings: it would "
                "always be met",
                advice="Load the reference with another `reference['dtype']`, such as float32.",
            )
        work, scores = session.score(models, measurements, [*measures, Divergence()])
        return (
            work,
            scores,
            [TokenComparison(reference, margin, is_itself=is_itself)] * len(measurements),
        )
    other_work, other_scores = session.score([reference], of_reference, [NegativeLogLikelihood()])
    comparisons = [
        ByteComparison(reference, margin, measurement, of_texts)
        for measurement, of_texts, _ in other_work.by_measurement(other_scores)
    ]
    return *session.score([model], measurements, measures), comparisons
