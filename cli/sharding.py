"""Corpora larger than memory: texts in shards of bounded size, and their results put together.

A shard is computed like a corpus of its own and forgotten.  What is kept are sums, and two numbers
for each text, from which the uncertainty follows; so all that grows with the corpus is two numbers
a text.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TypeVar

from results import exp, mean_uncertainty, ratio_uncertainty

T = TypeVar("T")  # anything that has a `text`

# The protocols that score every text on its own.  The others join all texts into one first.
SCORE_EACH = (None, "sliding", "stock", "lm-eval", "paloma")
SUMMED = ("total_nll", "num_tokens", "num_windows", "num_forward_tokens")


def cut_into_shards(texts: Iterable[T], num_characters: float) -> Iterator[list[T]]:
    """Yield runs of texts with at most so many characters each, or with a single larger text."""
    shard: list[T] = []
    size = 0
    for text in texts:
        if shard and size + len(text.text) > num_characters:
            yield shard
            shard, size = [], 0
        shard.append(text)
        size += len(text.text)
    if shard:
        yield shard


class Totals:
    """The results of shards, added up to that of the corpus.

    Args:
        mean_of_texts: the perplexity is the mean of the texts', as in the stock metric.
    """

    def __init__(self, mean_of_texts: bool):
        self.mean_of_texts = mean_of_texts
        self.num_shards = 0
        self.sums: Counter = Counter()
        self.perplexities: list[float] = []
        self.tokens_per_text: list[int] = []
        self.last: dict = {}

    @property
    def num_texts(self) -> int:
        return len(self.perplexities)

    def add(self, result: dict, units: dict[str, int]) -> None:
        """Add the metric's result for a shard.

        Args:
            units: "bytes", "characters" and "words" of its texts; with original texts also their
                "original bytes".
        """
        self.num_shards += 1
        self.sums.update({name: result[name] for name in SUMMED} | units)
        self.sums["own tokens"] += own_tokens(result, units["bytes"])
        self.perplexities += result["perplexities"]
        self.tokens_per_text += result["tokens_per_text"]
        self.last = result

    def result(self) -> dict:
        """The result of the corpus, as the metric would give it in one piece, up to rounding.

        Only where a text's perplexity is infinite there is no interval: its nll is not known then.
        """
        mean_nll = self.sums["total_nll"] / self.sums["num_tokens"]
        mean_perplexity = math.fsum(self.perplexities) / len(self.perplexities)
        stderr, interval = self._uncertainty()
        return {
            "perplexities": self.perplexities,
            "tokens_per_text": self.tokens_per_text,
            "mean_perplexity": mean_perplexity,
            "perplexity": mean_perplexity if self.mean_of_texts else exp(mean_nll),
            "perplexity_stderr": stderr,
            "perplexity_interval": interval,
            **{name: self.sums[name] for name in SUMMED},
            **self._per_unit(mean_nll * self.sums["own tokens"]),
            "signature": self.last["signature"],
            "signature_short": self.last["signature_short"],
        }

    def _uncertainty(self) -> tuple[float | None, list[float] | None]:
        import numpy as np

        if self.mean_of_texts:
            return mean_uncertainty(self.perplexities)
        tokens = np.array(self.tokens_per_text, dtype=np.float64)
        return ratio_uncertainty(np.log(self.perplexities) * tokens, tokens)

    def _per_unit(self, nll: float) -> dict[str, float]:
        """Numbers per byte, character and word, as far as the shards had them."""
        per_byte = nll / self.sums["bytes"]
        numbers = {
            "bits_per_byte": per_byte / math.log(2),
            "byte_perplexity": exp(per_byte),
            "bits_per_character": nll / self.sums["characters"] / math.log(2),
            "word_perplexity": exp(nll / self.sums["words"]),
        }
        if "adjusted_perplexity" in self.last:
            numbers["adjusted_perplexity"] = exp(nll / self.sums["words"])
        if "original bytes" in self.sums:
            per_original_byte = nll / self.sums["original bytes"]
            numbers["bits_per_original_byte"] = per_original_byte / math.log(2)
        return numbers


def own_tokens(result: dict, num_bytes: int) -> int:
    """Tokens that stand for the texts, the unscored ones included.

    The metric counts these as average ones in bits_per_byte = mean nll · own tokens / bytes.
    """
    mean_nll = result["total_nll"] / result["num_tokens"]
    if mean_nll == 0 or not math.isfinite(mean_nll):
        return result["num_tokens"]
    return round(result["bits_per_byte"] * math.log(2) * num_bytes / mean_nll)
