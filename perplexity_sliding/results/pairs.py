"""A model and its reference compared: their scores paired, token by token or by the byte."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from ..engines.sources import InBfloat16
from ..errors import ArgumentError, Wording
from ..models.identity import LIVE
from ..models.interface import ScoredModel, describe_measurement, describe_model
from ..models.language_model import LanguageModel
from ..plan.measurement import Columns, Measurement, nlls_by_token
from ..scoring.measures import Divergence, Likeliest, Measure, NegativeLogLikelihood
from ..scoring.runner import Session, Work, prepare_model
from .comparison import (
    PairedScores,
    Pieces,
    common_pieces,
    compare,
    compare_bytes,
    judge_sameness,
    worst_tokens,
)
from .report import Comparison, ScoredMeasurement
from .totals import ratio_of_perplexities

# Tokens in `worst_tokens`, at most.
WORST_TOKENS = 20
# Keys of the reference's own result that are added to the model's.
SHOWN_OF_REFERENCE = (
    *("perplexity", "perplexity_interval", "perplexities", "bits_per_byte"),
    *("signature", "probe"),
)
# Keys of a comparison by bytes that a comparison by tokens has too.
CHANGE_PER_BYTE = ("bits_per_byte_change", "bits_per_byte_change_interval", "num_compared_bytes")

# The summary of a comparison of a model with itself.
ITSELF = (
    "The model is compared with itself, in the same settings, so there is no difference to find. Load "
    "the two in different ones, such as --dtype bfloat16 --reference-dtype float32."
)


# --- by the token ---------------------------------------------------------------------------------


def compare_by_token(
    report: ScoredMeasurement,
    with_tokens: bool,
    *,
    reference: ScoredModel,
    margin: float | None,
    is_itself: bool = False,
    alone: list[list[Columns]] | None = None,
    rounded: list[list[Columns]] | None = None,
) -> dict:
    """Compare the scores of a measurement token by token with those under the reference.

    Args:
        margin: how much worse the model may be, as a share of the perplexity, or None.
        is_itself: whether the reference is the model itself.
        alone: scores of the windows of each text under the reference; None if both return logits, so
            that the model's scores have columns of the reference.
        rounded: those in bfloat16; None if both return logits, or the reference is not in float32.
    """
    results: dict = {}
    if alone is not None:
        beside = [
            [
                columns | {"reference_nll": other["nll"], "reference_top": other["top"]}
                for columns, other in zip(*of_text)
            ]
            for of_text in zip(report.scores, alone)
        ]
        report = replace(report, scores=beside)
        results = {"token_scores": report.token_scores()} if with_tokens else {}
    measurement, max_length = report.measurement, report.measurement.plan.max_length
    of_reference = [
        [{"nll": columns["reference_nll"]} for columns in of_text] for of_text in report.scores
    ]
    with reference.as_scored():
        totals = replace(report, model=reference, scores=of_reference, comparison=None).totals
    its_own = totals.result()
    scores = pair_scores(measurement, report.scores)
    ratio = ratio_of_perplexities(report.totals, totals)
    comparison = {"compared": "tokens", **compare(scores, ratio, margin)}
    if is_itself:
        comparison |= {"summary": ITSELF, "verdict": "the same"}
    comparison |= {f"reference_{k}": its_own[k] for k in SHOWN_OF_REFERENCE if k in its_own}
    if all(stream.offsets is not None for stream in measurement.streams):
        # comparable across tokenizers
        pieces = find_pieces((measurement, report.scores), (measurement, of_reference))
        by_bytes = compare_bytes(pieces, max_length)
        comparison |= {name: by_bytes[name] for name in CHANGE_PER_BYTE}
    comparison["worst_tokens"] = describe_tokens(
        report.model.tokenizer, measurement, scores, worst_tokens(scores, WORST_TOKENS)
    )
    if rounded is not None:
        nlls = [columns["nll"] for of_text in rounded for columns in of_text]
        rounding = np.concatenate(nlls).astype(np.float64) - scores["reference_nll"]
        identity = judge_sameness(scores.differences, rounding)
        comparison |= {"summary": identity["summary"], "identity": identity}
    return results | {"comparison": comparison}


def pair_scores(measurement: Measurement, scores: list[list[Columns]]) -> PairedScores:
    """Concatenate the scored tokens of all texts, with the change of the nlls that are averaged."""
    windows = [window for of_text in measurement.windows for window in of_text]
    counts = [sum(window.num_targets for window in of_text) for of_text in measurement.windows]
    texts = np.repeat(np.arange(len(counts)), counts)
    positions = np.concatenate([np.arange(window.first, window.end) for window in windows])
    lengths = [len(stream) for stream in measurement.streams]
    ids = np.concatenate([stream.ids for stream in measurement.streams])
    columns = [of_window for of_text in scores for of_window in of_text]
    averaged = [
        [measurement.nlls_to_average({"nll": of_window[name]}) for of_window in columns]
        for name in ("nll", "reference_nll")
    ]
    nlls, of_reference = (np.concatenate(of_model).astype(np.float64) for of_model in averaged)
    with np.errstate(invalid="ignore"):  # both may be infinite
        changes = nlls - of_reference
    together = {name: np.concatenate([of[name] for of in columns]) for name in columns[0]}
    return PairedScores(
        lengths,
        texts,
        positions,
        np.concatenate([window.context_lengths() for window in windows]),
        ids[(np.cumsum(lengths) - lengths)[texts] + positions],
        together | {"change": changes},
        measurement.plan.max_length,
    )


def describe_tokens(
    tokenizer: PreTrainedTokenizerBase,
    measurement: Measurement,
    scores: PairedScores,
    places: np.ndarray,
) -> list[dict]:
    described = []
    for place in places.tolist():
        text, position = int(scores.texts[place]), int(scores.positions[place])
        offsets = measurement.streams[text].offsets
        row: dict[str, object] = {"text": text, "position": position}
        row["offset"] = None if offsets is None else offsets[position].tolist()
        row["token"] = tokenizer.decode([int(scores.targets[place])])
        values = {name: column[place] for name, column in scores.columns.items()}
        row |= {n: float(values[n]) for n in ("kl", "nll", "reference_nll") if n in values}
        tops = ("top", "reference_top")
        described.append(row | {name: tokenizer.decode([int(values[name])]) for name in tops})
    return described


# --- by the byte ----------------------------------------------------------------------------------


def compare_by_byte(
    report: ScoredMeasurement,
    with_tokens: bool,
    *,
    reference: ScoredModel,
    margin: float | None,
    measurement: Measurement,
    scores: list[list[Columns]],
) -> dict:
    """Compare two models with different tokenizers over pieces between common boundaries.

    Args:
        measurement: the reference's own plan, over its own tokens.
        scores: of its windows.
    """
    pieces = find_pieces((report.measurement, report.scores), (measurement, scores))
    fields, is_detokenized = measurement.signature_fields(), report.word_counts is not None
    identity = describe_measurement(reference, fields, is_detokenized)
    comparison = {
        "compared": "bytes",
        **compare_bytes(pieces, report.measurement.plan.max_length, margin),
        **{f"reference_{k}": identity[k] for k in SHOWN_OF_REFERENCE if k in identity},
    }
    if not with_tokens:
        return {"comparison": comparison}
    piece_scores = [
        {
            "offsets": np.stack([of_text.begins, of_text.ends], axis=1).tolist(),
            "nll": of_text.nll.tolist(),
            "reference_nll": of_text.reference_nll.tolist(),
        }
        for of_text in pieces
    ]
    return {"comparison": comparison, "piece_scores": piece_scores}


def find_pieces(*sides: tuple[Measurement, list[list[Columns]]]) -> list[Pieces]:
    """List the pieces of each text that both score, of the measurement and the scores of either."""
    if any(stream.offsets is None for measurement, _ in sides for stream in measurement.streams):
        raise ValueError(
            Wording(
                "`reference` has other tokens than the model; comparing them by characters "
                "requires token offsets: pass fast tokenizers for both."
            )
        )
    texts = sides[0][0].texts
    return [
        common_pieces(text, model, reference)
        for text, model, reference in zip(texts, *(scored_characters(*side) for side in sides))
    ]


def scored_characters(
    measurement: Measurement, scores: list[list[Columns]]
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield characters (N, 2) of each token of a text, and its nll (N,), NaN where unscored.

    Added tokens are left out.  A start token at the head that was dropped comes unscored, and so does
    white space without a token before a scored part, which the other model has not scored.
    """
    for stream, nll in zip(measurement.streams, nlls_by_token(measurement, scores)):
        dropped = [[0, stream.begin]] if stream.begin else np.empty((0, 2), dtype=np.int64)
        offsets = np.concatenate([dropped, stream.known_offsets[~stream.added]])
        nll = np.concatenate([np.full(len(dropped), np.nan), nll[~stream.added]])
        for edge, _ in () if stream.part is None else stream.part.spans:
            place = int(np.searchsorted(offsets[:, 0], edge))
            before = int(offsets[:place, 1].max(initial=0))
            if before < edge:
                offsets = np.insert(offsets, place, (before, edge), axis=0)
                nll = np.insert(nll, place, np.nan)
        yield offsets, nll


# --- forward passes -------------------------------------------------------------------------------


def score_pair(
    session: Session,
    models: tuple[ScoredModel, ScoredModel],
    measurements: Sequence[Measurement],
    of_reference: Sequence[Measurement] | None,
    measures: Sequence[Measure],
    margin: float | None,
) -> tuple[Work, list[Columns], Sequence[Comparison]]:
    """Score measurements under prepared models, together if they read the same tokens.

    Args:
        of_reference: the measurements planned with the reference's tokenizer; None if both models
            read the same tokens.

    Returns:
        work and scores of the model, and the comparison of each measurement.
    """
    model, reference = models
    given: dict = {"reference": reference, "margin": margin}
    comparisons: list[Comparison]

    def score_alone(
        one: ScoredModel, planned: Sequence[Measurement], asked: Sequence[Measure]
    ) -> list[list[list[Columns]]]:
        """Score the windows of each text of each measurement under one model."""
        work, scores = session.score([one], planned, asked)
        return [of_texts for _, of_texts, *_ in work.by_measurement(scores)]

    if of_reference is not None:
        planned = score_alone(reference, of_reference, [NegativeLogLikelihood()])
        comparisons = [
            partial(compare_by_byte, **given, measurement=measurement, scores=scores)
            for measurement, scores in zip(of_reference, planned)
        ]
        return *session.score([model], measurements, measures), comparisons
    if all(each.gives_logits for each in models):
        is_itself = is_compared_with_itself(model, reference)
        if is_itself and margin is not None:
            raise ArgumentError(
                "margin",
                "be left out where a model is compared with itself, in the same settings: it would "
                "always be met",
                advice="Load the reference with another `reference['dtype']`, such as float32.",
            )
        comparisons = [partial(compare_by_token, **given, is_itself=is_itself)] * len(measurements)
        return *session.score(models, measurements, [*measures, Divergence()]), comparisons
    values: list[Measure] = [NegativeLogLikelihood(), Likeliest()]
    others = score_alone(reference, measurements, values)
    roundings: Sequence[list[list[Columns]] | None] = [None] * len(measurements)
    if isinstance(reference, LanguageModel) and reference.dtype == torch.float32:
        rounded = InBfloat16.of(reference)
        with rounded.in_use():
            rounded.check()
            prepare_model(rounded, measurements)
            roundings = score_alone(rounded, measurements, values[:1])
    comparisons = [
        partial(compare_by_token, **given, alone=of_windows, rounded=rounding)
        for of_windows, rounding in zip(others, roundings)
    ]
    together = [*measures, *(m for m in values if m not in measures)]
    return *session.score([model], measurements, together), comparisons


def is_compared_with_itself(model: ScoredModel, reference: ScoredModel) -> bool:
    """Return whether two models in memory are the same object, or of the same files and settings."""
    if not isinstance(model, LanguageModel) or type(model) is not type(reference):
        return False
    one, other = describe_model(model), describe_model(reference)
    same_files = one == other and f"|revision:{LIVE}|" not in one
    return model.model is reference.model or same_files
