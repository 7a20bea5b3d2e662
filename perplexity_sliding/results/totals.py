"""From token negative log-likelihoods to the result: perplexity and its uncertainty.

Floats only: no model, no text.  Nlls are in nats and summed in float64.  Each text is reduced to
sums of bounded size, `Totals`, which add up: one text, a corpus and its shards take the same path.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from ..digests import TextsDigest, same_probes
from ..errors import ArgumentError
from ..protocols import Aggregate, ToolError
from .uncertainty import Blocks, Clusters, Estimate, as_ratio, estimate_ratio, exp, jackknife

# A mean above this many nats makes Megatron-LM print exp(20).
MEGATRON_CAP = 20.0
# The kind and format version of the output of `Totals.to_json`.
KIND = "totals of perplexity-sliding, 2"


@dataclass(frozen=True)
class TextScores:
    """Scores and sizes of one text, or of one stream of joined texts.

    Attributes:
        window_nlls: nlls of the scored tokens in nats, one array per window, in the text's order.
        first_targets: position of each window's first scored token in the stream.
        guide_weights: weight of each window's mean, for the average "guide weights".
        stream_length: tokens in the stream, scored or not.
        num_tokens: tokens of the stream that have characters of the text.
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

    def units(self, nll: float, count: float) -> tuple[float, ...]:
        """Return tokens, words, bytes, characters, their nll, and the nll of the words.

        If the characters of the scored tokens are known, only these count, as in nanochat's
        `evaluate_bpb`, and words are charged by their bytes.  Otherwise unscored tokens count as
        average ones of their text; if all are scored, this is lm-evaluation-harness's Σ nll / Σ units.

        Args:
            nll, count: of all scored tokens.
        """
        if self.scored_nll is not None and self.scored_bytes and self.scored_characters:
            nll, of_text = self.scored_nll, (self.scored_bytes, self.scored_characters)
        else:
            nll, of_text = nll * self.num_tokens / count, (self.num_bytes, self.num_characters)
        word_nll = nll * self.num_bytes / of_text[0]
        return (self.num_tokens, self.num_words, *of_text, nll, word_nll)


def perplexity_interval(estimate: Estimate, cap: float = math.inf) -> list[float] | None:
    """Return the interval of a perplexity from the estimate of its logarithm, between 1 and exp(cap)."""
    if estimate.interval is None:
        return None
    return [exp(min(max(0.0, bound), cap)) for bound in estimate.interval]


@dataclass(frozen=True)
class Aggregation:
    """The settings by which token scores become a result.

    Attributes:
        average: "tokens", with equal weights; "window means", so that windows have equal weights, as
            in the guide of 2022-2024; "guide weights", those of the windows in its present form;
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


@dataclass(frozen=True, eq=False)
class Totals:
    """Sums from which a result is computed: at most 32 blocks per text, and a few counts.

    `Totals.of(a) + Totals.of(b)` equals `Totals.of(a + b)`.  JSON preserves them bit for bit.

    Attributes:
        aggregation: the settings by which the sums become a result.
        blocks: sums over blocks of tokens, of the columns tokens, nll, weight, term, bytes and nll².
        units: sums of each text for the numbers per unit, see `TextScores.units` (T, 6).
        counts: counts that add up over calls.
        identity: settings and signature, which all shards share.
        texts_digest: digest of the texts.
    """

    aggregation: Aggregation
    blocks: Blocks
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
        windows = [window for text in texts for window in text.window_nlls]
        sizes = np.array([len(window) for window in windows])
        num_scored = [sum(map(len, text.window_nlls)) for text in texts]
        text_of_token = np.repeat(np.arange(len(texts)), num_scored)
        nlls = np.concatenate(windows).astype(np.float64)
        firsts = np.concatenate([text.first_targets for text in texts])
        positions = np.arange(len(nlls)) + np.repeat(firsts - (np.cumsum(sizes) - sizes), sizes)
        ones = weights = np.ones_like(nlls)
        terms = nlls
        if aggregation.average in ("window means", "guide weights"):
            of_windows = [1] * len(windows)
            if aggregation.average == "guide weights":
                of_windows = [weight for text in texts for weight in text.guide_weights]
            weights = np.repeat(np.array(of_windows) / sizes, sizes)
            terms = np.multiply(nlls, weights, out=np.zeros_like(nlls), where=weights > 0)
        num_bytes = [
            np.full(count, text.num_bytes / max(1, count))
            if text.token_bytes is None
            else text.token_bytes
            for text, count in zip(texts, num_scored)
        ]
        columns = [ones, nlls, weights, terms, np.concatenate(num_bytes), nlls**2]
        lengths = [text.stream_length for text in texts]
        blocks = Blocks.of(lengths, text_of_token, positions, columns)
        units = [
            text.units(nll, count)
            for text, (count, nll, *_) in zip(texts, map(np.ndarray.tolist, blocks.by_text()))
        ]
        counts = {
            "windows": len(windows),
            "forward tokens": num_forward_tokens,
            "context tokens": sum(text.num_context for text in texts),
        }
        digest = texts_digest or TextsDigest()
        return cls(aggregation, blocks, np.array(units, float), counts, identity or {}, digest)

    def __add__(self, other: "Totals") -> "Totals":
        """Return the totals of both corpora, one after the other.

        Raises:
            ValueError: they were measured in different ways, or their texts are joined.
        """
        if not isinstance(other, Totals):
            return NotImplemented
        one, two = self._settings(), other._settings()
        differing = [
            f"{name} ({one.get(name)} and {two.get(name)})"
            for name in one | two
            if one.get(name) != two.get(name)
        ]
        if differing or not same_probes(self.identity, other.identity):
            raise ValueError(
                "Totals can be added only if model, protocol and settings are the same, but they "
                f"differ in {', '.join(differing) or 'their probes'}."
            )
        # In two halves, windows over joined texts would begin and end elsewhere.
        size, count = self.aggregation.stream_texts, self.texts_digest.count
        if size is None:
            raise ValueError(
                "Totals cannot be added where all texts of a call are joined: two halves give a "
                "different number than the whole. Score all texts in one call."
            )
        if count % size:
            raise ValueError(
                f"Totals can be added only after a multiple of {size:,} texts (these are joined), got "
                f"{count:,}. Score all of them in one call, or in shards of {size:,} texts."
            )
        return replace(
            self,
            blocks=self.blocks + other.blocks,
            units=np.concatenate([self.units, other.units]),
            counts={name: self.counts[name] + other.counts[name] for name in self.counts},
            texts_digest=self.texts_digest + other.texts_digest,
        )

    def __radd__(self, other: object) -> "Totals":
        return self if other == 0 else NotImplemented  # `sum` adds the first to 0

    def _settings(self) -> dict[str, object]:
        fields = str(self.identity.get("signature", "")).split("|")
        pairs = (field.partition(":") for field in fields)
        return asdict(self.aggregation) | {name: value for name, _, value in pairs}

    def take(self, texts: Sequence[int], digests: Sequence[int]) -> "Totals":
        """Return the totals of some of the texts, in this order; the counts stay those of all.

        Args:
            digests: `texts_digest.value` of each of these texts alone.
        """
        order = np.asarray(texts, dtype=np.int64)
        return replace(
            self,
            blocks=self.blocks.take(order),
            units=self.units[order],
            texts_digest=sum((TextsDigest(1, value) for value in digests), TextsDigest()),
        )

    def to_json(self) -> str:
        """Return the totals as JSON, bit for bit; see `from_json`."""
        body = {
            "kind": KIND,
            "aggregation": asdict(self.aggregation),
            "identity": self.identity,
            "counts": self.counts,
            "texts_digest": astuple(self.texts_digest),
            "sums": self.blocks.sums.tolist(),
            "blocks_per_text": self.blocks.per_text.tolist(),
            "lengths": self.blocks.lengths.tolist(),
            "units": self.units.tolist(),
        }
        return json.dumps(body)

    @classmethod
    def from_json(cls, text: str) -> "Totals":
        """Read the output of `to_json`, in any process.

        Raises:
            ValueError: it is something else, or cut short.
        """
        try:
            body = json.loads(text)
            found = body["kind"]
        except (ValueError, TypeError, LookupError):
            found = None
        if found != KIND:
            advice = "Was it cut short, or written by another version?"
            raise ArgumentError("text", f"hold {KIND!r}", got=f"{text:.60}", advice=advice)
        return cls(
            Aggregation(**body["aggregation"]),
            Blocks(*(np.array(body[name]) for name in ("sums", "blocks_per_text", "lengths"))),
            np.array(body["units"]),
            body["counts"],
            body["identity"],
            TextsDigest(*body["texts_digest"]),
        )

    @cached_property
    def of_texts(self) -> np.ndarray:
        """Sums of the columns of `blocks` over each text (T, 6)."""
        return self.blocks.by_text()

    def result(self) -> dict:
        """Compute every number of the result, in plain Python numbers."""
        tokens, nlls, *_ = self.of_texts.T
        total, count = float(nlls.sum()), int(tokens.sum())
        estimate, clusters = self.estimate()
        is_known = estimate.interval is not None
        perplexities = self.perplexities()  # lists take room, which the estimate has given back
        mean_perplexity = float(np.array(perplexities).sum()) / len(perplexities)
        cap = self.aggregation.cap
        is_mean = self.aggregation.average == "texts"
        perplexity = mean_perplexity if is_mean else exp(estimate.value)
        stderr = None
        if estimate.stderr is not None and math.isfinite(perplexity) and estimate.value < cap:
            stderr = perplexity * estimate.stderr
        result: dict[str, Any] = {  # first what is reported
            "perplexity": perplexity,
            "perplexity_interval": perplexity_interval(estimate, cap),
            "interval_sample": clusters.sample if is_known else None,
            "interval_scope": clusters.scope if is_known else None,
            **self._per_unit(clusters if is_known else None),
            **{k: self.identity[k] for k in ("signature_short", "signature") if k in self.identity},
            "perplexities": perplexities,
            "num_texts": len(perplexities),
            "num_tokens_per_text": tokens.astype(int).tolist(),
            "mean_perplexity": mean_perplexity,
            "perplexity_stderr": stderr,
            "total_nll": total,
            "num_tokens": count,
            "scored_share": count / int(self.blocks.lengths.sum()),
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

    def perplexities(self) -> list[float]:
        """Compute the perplexity of each text; NaN if the tool's weights of all its tokens are 0."""
        cap = self.aggregation.cap
        return [
            exp(min(term / weight, cap)) if weight > 0 else math.nan
            for weight, term in map(np.ndarray.tolist, self.of_texts[:, 2:4])
        ]

    def estimate(self) -> tuple[Estimate, Clusters]:
        """Estimate the log perplexity, and return the sample; only the value is capped."""
        clusters = self.blocks.cut(self._num_parts(self.blocks))
        estimate = estimate_ratio(*self._terms_and_weights(clusters))
        if self.aggregation.average == "texts":
            estimate = estimate.logarithm()
        return replace(estimate, value=min(estimate.value, self.aggregation.cap)), clusters

    def _num_parts(self, blocks: Blocks) -> np.ndarray:
        if self.aggregation.average == "texts":
            return np.ones_like(blocks.per_text)
        return blocks.num_parts(self.aggregation.block_tokens)

    def _terms_and_weights(self, clusters: Clusters) -> tuple[np.ndarray, np.ndarray]:
        """Return numerators and denominators of the (log) perplexity (C,)."""
        if self.aggregation.average == "texts":
            perplexities = np.array(self.perplexities())
            return perplexities, np.ones_like(perplexities)
        _, _, weights, terms, *_ = clusters.sums.T
        return terms, weights

    def _per_unit(self, clusters: Clusters | None) -> dict[str, float | list[float] | None]:
        """Compute the numbers per byte, with their interval, per character and per word.

        The interval per byte is not that of the perplexity in other units: where a text is hard, its
        tokens are shorter.
        """
        _, num_words, num_bytes, num_characters, nll, word_nll = self.units.sum(axis=0).tolist()
        bits = nll / num_bytes / math.log(2)
        interval = None
        if clusters is not None:
            nlls, sizes = self.units[:, 4], self.units[:, 2]
            if len(nlls) != len(clusters.sums):  # parts of texts
                _, nlls, _, _, sizes, _ = clusters.sums.T
            if np.isfinite([nlls, sizes]).all():
                estimate = estimate_ratio(nlls, sizes)
                if estimate.interval is not None and estimate.value:
                    interval = [max(0.0, b) / estimate.value * bits for b in estimate.interval]
        return {
            "bits_per_byte": bits,
            "bits_per_byte_interval": interval,
            "bits_per_character": nll / num_characters / math.log(2),
            # a text of only white space has no words
            "word_perplexity": exp(word_nll / num_words) if num_words else None,
        }

    def _adjusted_perplexity(self, mean_nll: float) -> float | None:
        """Compute the perplexity per original word: exp(loss × tokens / words).

        Megatron leaves the first token and the first word out, and caps the exponent.
        """
        tokens, words, *_ = self.units.sum(axis=0).tolist()
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
        count, nll, *_, square = self.of_texts.sum(axis=0).tolist()
        if count < 2 or not math.isfinite(exp(nll / count)):
            return None
        variance = max(0.0, square / count - (nll / count) ** 2)
        return exp(nll / count) * math.sqrt(variance / (count - 1))

    def leave_out_each(self, clusters: Clusters) -> tuple[np.ndarray, np.ndarray]:
        """Return the log perplexity without each cluster and of all (C + 1,), and their shares (C,)."""
        terms, weights = self._terms_and_weights(clusters)
        total, weight = terms.sum(), weights.sum()
        with np.errstate(invalid="ignore", divide="ignore"):
            values = np.append(total - terms, total) / np.append(weight - weights, weight)
            if self.aggregation.average == "texts":
                values = np.log(values)
        return np.minimum(values, self.aggregation.cap), weights / weight


def ratio_of_perplexities(totals: Totals, first: Totals) -> dict:
    """Divide the perplexity of one measurement of a corpus by another's, paired.

    The jackknife leaves the same part of the corpus out of both, so that what makes it hard for
    both cancels.  Parts are found by position: where one of them had the texts joined, a
    separator or start token shifts them by a token or two.

    Returns:
        `ratio`, its 95 % `interval`, the `pvalue` of it being 1, and the `sample`, what was taken as
        independent: all but the ratio are None with too little text.
    """
    both = totals, first
    log_ratio = totals.estimate()[0].value - first.estimate()[0].value
    estimate, sample = Estimate(log_ratio), ""
    is_mean = any(of_one.aggregation.average == "texts" for of_one in both)
    if not is_mean or len(totals.blocks.lengths) == len(first.blocks.lengths):
        blocks = totals.blocks.aligned(first.blocks)
        num_parts = np.minimum(*(one._num_parts(of_one) for one, of_one in zip(both, blocks)))
        clusters = [of_one.cut(num_parts) for of_one in blocks]
        (values, shares), (first_values, first_shares) = (
            one.leave_out_each(of_one) for one, of_one in zip(both, clusters)
        )
        with np.errstate(invalid="ignore"):  # infinite less infinite
            differences = values - first_values
            moved = differences[-1] - differences[:-1]
        estimate = jackknife(float(differences[-1]), moved, (shares + first_shares) / 2)
        sample = clusters[0].sample
    ratio = as_ratio(replace(estimate, value=log_ratio), sample)
    return ratio | {"ratio": None} if math.isnan(log_ratio) else ratio
