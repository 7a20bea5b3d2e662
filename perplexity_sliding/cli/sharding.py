"""Divide a corpus larger than memory into shards of bounded size.

Each shard is scored and discarded.  Only the metric's `totals`, a few sums per text, are kept and
added up.
"""

import math
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")  # anything that has a `text`


# A text takes memory beyond that of its characters.
MOST_TEXTS = 10_000


def cut_into_shards(texts: Iterable[T], num_characters: float) -> Iterator[list[T]]:
    """Yield runs of texts with at most this many characters each, or with a single larger text.

    A shard has at most `MOST_TEXTS` texts, unless the number of characters is unlimited.
    """
    num_texts = MOST_TEXTS if num_characters < math.inf else math.inf
    shard: list[T] = []
    size = 0
    for text in texts:
        if shard and (size + len(text.text) > num_characters or len(shard) >= num_texts):
            yield shard
            shard, size = [], 0
        shard.append(text)
        size += len(text.text)
    if shard:
        yield shard
