"""From token negative log-likelihoods to the result: perplexity and its uncertainty.

Floats only: no model, no text.  Nlls are in nats and summed in float64.  Each text is reduced to
sums of bounded size, `Totals`, which add up: one text, a corpus and its shards take the same path.
"""

import base64
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from operator import methodcaller
from typing import Any

import numpy as np

from ..digests import TextsDigest, digest_of, same_probes
from ..errors import ArgumentError, ArgumentTypeError, Wording
from ..protocols import Aggregate, ToolError
from .uncertainty import Blocks, Clusters, Estimate, estimate_ratio, exp, jackknife

ARRAY_KEYS = {"dtype", "shape", "base64"}

# A mean above this many nats makes Megatron-LM print exp(20).
MEGATRON_CAP = 20.0
# Sums per text for the numbers per byte, character and word.
UNITS = ("tokens", "words", "bytes", "characters", "unit nll", "word nll")
# Fields of the identity that are reported with the number.
SIGNATURES = ("signature_short", "signature")
# The kind and format version of the output of `Totals.to_json`.
KIND = "totals of perplexity-sliding, 1"
# Splits a field of a signature.
_SPLIT = methodcaller("partition", ":")


@dataclass(frozen=True)
class TextScores:
    """Scores and sizes of one text, or of one stream of joined texts.

    Attributes:
        window_nlls: nlls of the scored tokens in nats, one array per window, in the text's order.
        first_targets: position of each window's first scored token in the stream.
        guide_weights: weight of each window's mean in the transformers guide; used for the average
            "guide weights".
        stream_length: tokens in the stream, scored or not.
        num_tokens: tokens of the stream that have characters of the text.
        num_bytes: the text's length in UTF-8 bytes.
        num_characters: its length in Unicode code points.
        num_words: its words as the protocol counts them, or the number the caller gave.
        scored_nll, scored_bytes, scored_characters: sums over the scored tokens with characters;
            None if the tokenizer returns no offsets.
        num_context: tokens read only as context, if a part of the text is scored.
        token_bytes: UTF-8 bytes of the scored tokens, like `window_nlls` one after the other (N,);
            NaN if unknown; None for all alike, as in a text that is too short to be cut.
    """

    window_nlls: list[np.ndarray]
    first_targets: list[int]
    guide_weights: list[int]
    stream_length: int
    num_tokens: int
    num_bytes: int
    num_characters: int
    num_words: int
    scored_nll: float | None = None
    scored_bytes: int | None = None
    scored_characters: int | None = None
    num_context: int = 0
    token_bytes: np.ndarray | None = None

    @property
    def bytes_of_tokens(self) -> np.ndarray:
        """UTF-8 bytes of the scored tokens, see `token_bytes` (N,)."""
        if self.token_bytes is not None:
            return self.token_bytes
        count = sum(map(len, self.window_nlls))
        return np.full(count, self.num_bytes / max(1, count))


def nll_interval(estimate: Estimate, cap: float = math.inf) -> list[float] | None:
    """Return the interval of a mean nll in nats, with bounds between 0 and the cap."""
    if estimate.interval is None:
        return None
    return [min(max(0.0, bound), cap) for bound in estimate.interval]


def perplexity_interval(estimate: Estimate, cap: float = math.inf) -> list[float] | None:
    """Return the interval of a perplexity, none below 1, from the estimate of its logarithm."""
    bounds = nll_interval(estimate, cap)
    return None if bounds is None else [exp(bound) for bound in bounds]


@dataclass(frozen=True)
class Aggregation:
    """The settings by which token scores become a result.

    Attributes:
        average: kind of average, see `token_weights`: "tokens", "window means", "guide weights";
            "capped", tokens with Megatron's cap; or "texts", the mean of their perplexities.
        error: the ± of the protocol's tool: "population", "sample" or None.
        block_tokens: minimum number of scored tokens in a part of a text that counts as independent.
        word_counts_given: whether the caller's word counts are used for normalisation.
        has_context: whether parts of the texts are read only as context.
        stream_texts: number of texts joined into one stream; None for all of a call.
    """

    average: Aggregate = "tokens"
    error: ToolError | None = None
    block_tokens: int = 1
    word_counts_given: bool = False
    has_context: bool = False
    stream_texts: int | None = 1

    @property
    def cap(self) -> float:
        return MEGATRON_CAP if self.average == "capped" else math.inf


def _sum(values: np.ndarray | list[float]) -> Any:
    """Sum texts; a single text, such as each row of a table, skips the slow reduction."""
    return values[0] if len(values) == 1 else np.add.reduce(values)


@dataclass(frozen=True, eq=False)
class Totals:
    """Sums from which a result is computed: at most 32 blocks per text, and a few counts.

    `Totals.of(a) + Totals.of(b)` equals `Totals.of(a + b)`.  Totals pickle, and JSON preserves them
    bit for bit.

    Attributes:
        aggregation: the settings by which the sums become a result.
        blocks: sums over blocks of tokens, of the columns tokens, nll, weight, term and bytes.
        squares: squared deviations of the nlls from their text's mean, summed (T,).
        units: the sums `UNITS` of each text (T, 6).
        counts: counts that add up over calls.
        identity: settings and signature, which all shards share.
        texts_digest: digest of the texts.
    """

    aggregation: Aggregation
    blocks: Blocks
    squares: np.ndarray
    units: np.ndarray
    counts: dict[str, int]
    identity: dict[str, Any]
    texts_digest: TextsDigest

    @classmethod
    def of(
        cls,
        texts: Sequence[TextScores],
        aggregation: Aggregation,
        num_forward_tokens: int = 0,
        identity: dict[str, object] | None = None,
        texts_digest: TextsDigest | None = None,
    ) -> "Totals":
        """Reduce texts to their sums."""
        windows = [window for text in texts for window in text.window_nlls]
        sizes = np.array([len(window) for window in windows])
        windows_per_text = [len(text.window_nlls) for text in texts]
        text_of_token = np.repeat(np.repeat(np.arange(len(texts)), windows_per_text), sizes)
        nlls = np.concatenate(windows).astype(np.float64)
        firsts = np.concatenate([text.first_targets for text in texts])
        positions = np.arange(len(nlls)) + np.repeat(firsts - (np.cumsum(sizes) - sizes), sizes)
        weights = token_weights(texts, sizes, aggregation.average)
        terms = np.multiply(nlls, weights, out=np.zeros_like(nlls), where=weights > 0)
        lengths = [text.stream_length for text in texts]
        num_bytes = np.concatenate([text.bytes_of_tokens for text in texts])
        columns = [np.ones_like(nlls), nlls, weights, terms, num_bytes]
        blocks = Blocks.of(lengths, text_of_token, positions, columns)
        sums = blocks.by_text()
        means = sums[:, 1] / sums[:, 0]
        with np.errstate(invalid="ignore"):  # an infinite nll has no deviation
            squares = np.bincount(text_of_token, (nlls - means[text_of_token]) ** 2)
        counts = {"windows": len(windows), "forward tokens": num_forward_tokens}
        counts["context tokens"] = sum(text.num_context for text in texts)
        units = count_units(texts, sums[:, 1], sums[:, 0])
        digest = texts_digest or TextsDigest()
        return cls(aggregation, blocks, squares, units, counts, identity or {}, digest)

    def __add__(self, other: "Totals") -> "Totals":
        """Return the totals of both corpora, one after the other.

        Raises:
            ValueError: they were measured in different ways, or their texts are joined, so that
                the result of one call would be another.
        """
        if not isinstance(other, Totals):
            return NotImplemented
        if not self._is_measured_as(other):
            raise ValueError(
                "Totals can be added only if model, protocol and settings are the same, but they "
                f"differ in {self._differences(other)}."
            )
        self._check_apart()
        return replace(
            self,
            blocks=self.blocks + other.blocks,
            squares=np.concatenate([self.squares, other.squares]),
            units=np.concatenate([self.units, other.units]),
            counts={name: self.counts[name] + other.counts[name] for name in self.counts},
            texts_digest=self.texts_digest + other.texts_digest,
        )

    def _is_measured_as(self, other: "Totals") -> bool:
        """Check that both have the same model, protocol and settings; probes may differ by rounding."""
        one, two = (totals.identity | {"probe": None} for totals in (self, other))
        is_same = (self.aggregation, one) == (other.aggregation, two)
        return is_same and same_probes(self.identity, other.identity)

    def _differences(self, other: "Totals") -> str:
        """List the settings that differ, with both values, or the probes if no setting differs."""
        one, two = self._settings(), other._settings()
        names = [name for name in one | two if one.get(name) != two.get(name)]
        differing = [f"{name} ({one.get(name)} and {two.get(name)})" for name in names]
        return ", ".join(differing) or "their probes"

    def _settings(self) -> dict[str, object]:
        """Return the fields that a result depends on, by their names in the signature."""
        parts = str(self.identity.get("signature", "")).split("|")
        return asdict(self.aggregation) | {name: value for name, _, value in map(_SPLIT, parts)}

    def __radd__(self, other: object) -> "Totals":
        """Begin a `sum`, which adds the first to 0."""
        return self if other == 0 else NotImplemented

    def _check_apart(self) -> None:
        """Check that nothing is added after texts that one call would have joined with it.

        Joined texts have one stream of windows.  In two halves, windows would begin and end elsewhere,
        and tokens at the cut would have a different context.
        """
        size, count = self.aggregation.stream_texts, self.texts_digest.count
        if size is None:
            raise ValueError(
                "Totals can be added only if texts are scored separately, but here all texts of a call "
                "are joined, and two halves give a different number than the whole. Score all of them "
                "in one call."
            )
        if count % size:
            raise ValueError(
                f"Totals can be added only after a multiple of {size:,} texts (these are joined), got "
                f"{count:,}. Score all of them in one call, or in shards of {size:,} texts."
            )

    def take(self, texts: Sequence[int], digests: Sequence[int]) -> "Totals":
        """Reorder the texts.

        Args:
            texts: the number of each text, in the new order.
            digests: `texts_digest.value` of each of them alone.
        """
        order = np.asarray(texts, dtype=np.int64)
        return replace(
            self,
            blocks=self.blocks.take(order),
            squares=self.squares[order],
            units=self.units[order],
            texts_digest=sum((TextsDigest(1, value) for value in digests), TextsDigest()),
        )

    def split(
        self, counts: Sequence[dict[str, int]], digests: Sequence[TextsDigest]
    ) -> list["Totals"]:
        """List the totals of each text.

        Args:
            counts, digests: `counts` and `texts_digest` of each text.
        """
        ends = np.cumsum(self.blocks.per_text).tolist()
        return [
            replace(
                self,
                blocks=Blocks(
                    self.blocks.sums[first:end],
                    self.blocks.per_text[text : text + 1],
                    self.blocks.lengths[text : text + 1],
                ),
                squares=self.squares[text : text + 1],
                units=self.units[text : text + 1],
                counts=counts[text],
                texts_digest=digests[text],
            )
            for text, (first, end) in enumerate(zip([0, *ends], ends))
        ]

    def to_json(self) -> str:
        """Return the totals as JSON, bit for bit and with a checksum; see `from_json`."""
        return to_checked_json(
            KIND,
            {
                "aggregation": asdict(self.aggregation),
                "identity": self.identity,
                "counts": self.counts,
                "texts": [self.texts_digest.count, str(self.texts_digest.value)],
                "lengths": self.blocks.lengths,
                "blocks_per_text": self.blocks.per_text,
                "sums": self.blocks.sums,
                "squares": self.squares,
                "units": self.units,
            },
        )

    @classmethod
    def from_json(cls, text: str) -> "Totals":
        """Read the output of `to_json`, in any process.

        Raises:
            TypeError, ValueError: it is something else, or damaged.
        """
        fields = from_checked_json(KIND, text, "text")
        count, value = fields["texts"]
        return cls(
            Aggregation(**fields["aggregation"]),
            Blocks(fields["sums"], fields["blocks_per_text"], fields["lengths"]),
            fields["squares"],
            fields["units"],
            fields["counts"],
            fields["identity"],
            TextsDigest(count, int(value)),
        )

    def __reduce__(self) -> tuple:
        return Totals.from_json, (self.to_json(),)

    def __copy__(self) -> "Totals":
        return self  # nothing of it changes

    def __deepcopy__(self, memo: dict) -> "Totals":
        return self

    @cached_property
    def of_texts(self) -> np.ndarray:
        """Sums of the columns of `blocks` over each text (T, 5)."""
        return self.blocks.by_text()

    def result(self) -> dict:
        """Compute every number of the result.

        Returns:
            plain Python numbers; nats for `total_nll`, bits where the name says so.
        """
        tokens, nlls, *_ = self.of_texts.T
        total, count = float(_sum(nlls)), int(_sum(tokens))
        estimate, clusters = self.estimate()
        of_each = self._of_each_text()  # lists take room, which the estimate has given back
        mean_perplexity = of_each["mean_perplexity"]
        mean_of_texts = self.aggregation.average == "texts"
        perplexity = mean_perplexity if mean_of_texts else exp(estimate.value)
        stderr, has_interval = estimate.stderr, estimate.interval is not None
        known = has_interval and math.isfinite(perplexity) and estimate.value < self.aggregation.cap
        result = {  # first what is reported
            "perplexity": perplexity,
            "perplexity_interval": perplexity_interval(estimate, self.aggregation.cap),
            "interval_sample": clusters.sample if has_interval else None,
            "interval_scope": clusters.scope if has_interval else None,
            **self._per_unit(clusters if has_interval else None),
            **{name: self.identity[name] for name in SIGNATURES if name in self.identity},
            **of_each,
            "perplexity_stderr": perplexity * stderr if known and stderr is not None else None,
            "total_nll": total,
            "num_tokens": count,
            "scored_share": count / int(_sum(self.blocks.lengths)),
            "num_windows": self.counts["windows"],
            "num_forward_tokens": self.counts["forward tokens"],
        }
        if self.aggregation.has_context:
            result["num_context_tokens"] = self.counts["context tokens"]
        if self.aggregation.word_counts_given:
            result["adjusted_perplexity"] = self._adjusted_perplexity(total / count)
        if self.aggregation.error is not None:
            result["tool_stderr"] = self._tool_stderr()
        return result | {"texts_digest": str(self.texts_digest)} | self.identity

    def _of_each_text(self) -> dict:
        """Compute the keys of the result about single texts, their number and mean."""
        perplexities = self.perplexities()
        return {
            "perplexities": perplexities,
            "num_texts": len(perplexities),
            "num_tokens_per_text": self.of_texts[:, 0].astype(int).tolist(),
            "mean_perplexity": float(_sum(perplexities)) / len(perplexities),
        }

    def perplexities(self) -> list[float]:
        """Compute the perplexity of each text; NaN if the tool's weights of all its tokens are 0."""
        cap = self.aggregation.cap
        return [
            exp(min(term / weight, cap)) if weight > 0 else math.nan
            for _, _, weight, term in map(np.ndarray.tolist, self.of_texts[:, :4])
        ]

    def estimate(self) -> tuple[Estimate, Clusters]:
        """Estimate the log perplexity, uncapped; and return the sample."""
        clusters = self.blocks.cut(self._num_parts())
        estimate = estimate_ratio(*self._terms_and_weights(clusters))
        if self.aggregation.average == "texts":
            estimate = estimate.logarithm()
        if estimate.value > self.aggregation.cap:
            estimate = replace(estimate, value=self.aggregation.cap)
        return estimate, clusters

    def _num_parts(self) -> np.ndarray:
        if self.aggregation.average == "texts":
            return np.ones_like(self.blocks.per_text)
        return self.blocks.num_parts(self.aggregation.block_tokens)

    def _terms_and_weights(self, clusters: Clusters) -> tuple[np.ndarray, np.ndarray]:
        """Return the numerators and denominators of the (log) perplexity of each cluster."""
        _, _, weights, terms, _ = clusters.sums.T
        if self.aggregation.average == "texts":
            perplexities = np.array(self.perplexities())
            return perplexities, np.ones_like(perplexities)
        return terms, weights

    def _sum_units(self) -> dict[str, float]:
        return dict(zip(UNITS, _sum(self.units).tolist()))

    def _per_unit(self, clusters: Clusters | None) -> dict[str, float | list[float] | None]:
        """Compute the numbers per byte, with their interval, per character and per word."""
        units = self._sum_units()
        per_byte = units["unit nll"] / units["bytes"]
        per_character = units["unit nll"] / units["characters"]
        words = units["words"]
        return {
            "bits_per_byte": per_byte / math.log(2),
            "bits_per_byte_interval": self._interval_of_bits(clusters, per_byte / math.log(2)),
            "bits_per_character": per_character / math.log(2),
            # a text of only white space has no words
            "word_perplexity": exp(units["word nll"] / words) if words else None,
        }

    def _interval_of_bits(self, clusters: Clusters | None, bits: float) -> list[float] | None:
        """Return the interval of the bits per byte, a ratio of sums over the clusters.

        It is not that of the perplexity in other units: where a text is hard, its tokens are shorter.
        """
        if clusters is None:
            return None
        units = dict(zip(UNITS, self.units.T))
        nlls, num_bytes = units["unit nll"], units["bytes"]
        if len(nlls) != len(clusters.sums):  # parts of texts
            _, nlls, _, _, num_bytes = clusters.sums.T
        if not np.isfinite([nlls, num_bytes]).all():
            return None
        estimate = estimate_ratio(nlls, num_bytes)
        if estimate.interval is None or not estimate.value:
            return None
        return [max(0.0, bound) / estimate.value * bits for bound in estimate.interval]

    def _adjusted_perplexity(self, mean_nll: float) -> float | None:
        """Compute the perplexity per original word: exp(loss × tokens / words).

        "Evaluating and Comparing Language Models" calls loss × V1 / V2 the normalised loss.
        Megatron leaves the first token and the first word out, and caps the exponent.
        """
        units = self._sum_units()
        tokens, words = units["tokens"], units["words"]
        if self.aggregation.average == "capped":
            tokens, words = tokens - 1, max(1, words - 1)
        if not words:  # only white space
            return None
        return exp(min(self.aggregation.cap, mean_nll * tokens / words))

    def _tool_stderr(self) -> float | None:
        """Compute the ± that llama.cpp and mlx-lm print, with tokens as independent.

        llama.cpp: σ² = (E[nll²] - E[nll]²) / (n - 1).  mlx-lm: σ = std(ddof=1) / √n.  Both are
        the same number times the perplexity, up to rounding.
        """
        tokens, nlls, *_ = self.of_texts.T
        count = int(tokens.sum())
        if count < 2 or not np.isfinite(nlls).all():
            return None
        mean = float(nlls.sum()) / count
        squares = float(self.squares.sum() + (tokens * (nlls / tokens - mean) ** 2).sum())
        perplexity = exp(mean)
        if not math.isfinite(perplexity):
            return None
        return perplexity * math.sqrt(squares / count / (count - 1))

    def leave_out_each(self, clusters: Clusters) -> tuple[float, np.ndarray, np.ndarray]:
        """Return the log perplexity, its values without each cluster (C,), and their shares (C,)."""
        terms, weights = self._terms_and_weights(clusters)
        total, weight = terms.sum(), weights.sum()
        with np.errstate(invalid="ignore", divide="ignore"):
            values = np.append(total - terms, total) / np.append(weight - weights, weight)
            if self.aggregation.average == "texts":
                values = np.log(values)
        values = np.minimum(values, self.aggregation.cap)
        return float(values[-1]), values[:-1], weights / weight


def ratio_of_perplexities(totals: Totals, first: Totals) -> dict:
    """Divide the perplexity of one measurement of a corpus by another's, paired.

    The jackknife leaves the same part of the corpus out of both, so that what makes it hard for
    both cancels.  Parts are found by position: where one of them had the texts joined, a
    separator or start token shifts them by a token or two.

    Returns:
        "ratio"; "interval" of 95 % confidence, "pvalue" of a ratio other than 1 by
        chance, and "sample", what was taken as independent: None where that is too little.
    """
    log_ratio = totals.estimate()[0].value - first.estimate()[0].value
    ratio = {"ratio": None if math.isnan(log_ratio) else exp(log_ratio)}
    unknown = ratio | dict.fromkeys(("interval", "pvalue", "sample"))
    clusters = shared_clusters(totals, first)
    if clusters is None:
        return unknown
    value, without, shares = totals.leave_out_each(clusters[0])
    first_value, first_without, first_shares = first.leave_out_each(clusters[1])
    shares = (shares + first_shares) / 2
    estimate = jackknife(value - first_value, without - first_without, shares)
    if estimate.interval is None:
        return unknown
    return ratio | {
        "interval": [exp(bound) for bound in estimate.interval],
        "pvalue": estimate.pvalue,
        "sample": clusters[0].sample,
    }


def shared_clusters(totals: Totals, first: Totals) -> tuple[Clusters, Clusters] | None:
    """Divide the corpus in the same way for both; None if only one of them has separate texts."""
    if "texts" in (totals.aggregation.average, first.aggregation.average):
        if len(totals.blocks.lengths) != len(first.blocks.lengths):
            return None
        one_each = np.ones_like(totals.blocks.per_text)
        return totals.blocks.cut(one_each), first.blocks.cut(one_each)
    blocks = totals.blocks.aligned(first.blocks)
    block_tokens = totals.aggregation.block_tokens, first.aggregation.block_tokens
    num_parts = np.minimum(
        *(of_totals.num_parts(least) for of_totals, least in zip(blocks, block_tokens))
    )
    return blocks[0].cut(num_parts), blocks[1].cut(num_parts)


def token_weights(
    texts: Sequence[TextScores], sizes: np.ndarray, aggregate: Aggregate
) -> np.ndarray:
    """Weigh each scored token; log perplexity is Σ weight · nll / Σ weight.

    "window means": 1 / size of its window, so that windows have equal weights, as in the guide of
    2022-2024.  "guide weights": w / size, with the weights w of the present guide.  Otherwise tokens
    have equal weights.

    Args:
        sizes: scored tokens of each window of all texts.
    """
    if aggregate == "window means":
        return np.repeat(1 / sizes, sizes)
    if aggregate == "guide weights":
        guide_weights = np.concatenate([text.guide_weights for text in texts])
        return np.repeat(guide_weights / sizes, sizes)
    return np.ones(sizes.sum())


def count_units(texts: Sequence[TextScores], nlls: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Compute the sums for the numbers per byte, character and word of each text (T, 6).

    If the characters of the scored tokens are known, only these count, as in nanochat's
    `evaluate_bpb`, and words are charged by their bytes.  Otherwise unscored tokens count as average
    ones of their text; if all are scored, this is lm-evaluation-harness's Σ nll / Σ units.

    Args:
        nlls, counts: sum of the nlls and number of the scored tokens of each text (T,).
    """
    rows = []
    for text, nll, count in zip(texts, nlls.tolist(), counts.tolist()):
        if text.scored_nll is not None and text.scored_bytes and text.scored_characters:
            unit_nll = text.scored_nll
            num_bytes, num_characters = text.scored_bytes, text.scored_characters
        else:
            unit_nll = nll * text.num_tokens / count
            num_bytes, num_characters = text.num_bytes, text.num_characters
        word_nll = unit_nll * text.num_bytes / num_bytes
        rows.append(
            (text.num_tokens, text.num_words, num_bytes, num_characters, unit_nll, word_nll)
        )
    return np.array(rows, dtype=np.float64)


# --- JSON that notices damage ---------------------------------------------------------------------


def to_checked_json(kind: str, fields: dict) -> str:
    """Write fields as JSON with a kind and a checksum; arrays as base64.

    Args:
        kind: the kind of the document, with its version.
        fields: JSON values and numpy arrays.
    """
    body = {"kind": kind} | {name: _pack(value) for name, value in fields.items()}
    return json.dumps(body | {"checksum": digest_of(body)})


def from_checked_json(kind: str, text: str, argument: str) -> dict:
    """Read the output of `to_checked_json`.

    Args:
        argument: name of the argument, for errors.

    Raises:
        TypeError: it is not a string.
        ValueError: it is not JSON, of another kind, or damaged.
    """
    if not isinstance(text, str):
        raise ArgumentTypeError(argument, "be a string of JSON", got=type(text).__name__)
    try:
        body = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ArgumentError(
            argument, f"be JSON, but it cannot be read: {error}", advice="Was it cut short?"
        ) from None
    found = body.get("kind") if isinstance(body, dict) else type(body).__name__
    if found != kind:
        raise ArgumentError(argument, f"hold {kind!r}", got=repr(found))
    if body.pop("checksum", None) != digest_of(body):
        raise ValueError(
            Wording(
                f"`{argument}` is damaged: its checksum is another than when it was written. "
                "Write it again."
            )
        )
    return {name: _unpack(value) for name, value in body.items() if name != "kind"}


def _pack(value: object) -> object:
    if not isinstance(value, np.ndarray):
        return value
    value = np.ascontiguousarray(value, value.dtype.newbyteorder("<"))
    text = base64.b64encode(value.tobytes()).decode("ascii")
    return {"dtype": value.dtype.str, "shape": list(value.shape), "base64": text}


def _unpack(value: object) -> object:
    if not isinstance(value, dict) or set(value) != ARRAY_KEYS:
        return value
    flat = np.frombuffer(base64.b64decode(value["base64"]), np.dtype(value["dtype"]))
    return flat.reshape(value["shape"]).astype(flat.dtype.newbyteorder("="))
