"""Corpora larger than memory: texts in shards of bounded size.

A shard is computed like a corpus of its own and forgotten.  What is kept are the metric's `totals`,
which add up: a few sums a text.
"""

import math
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")  # anything that has a `text`


# Each text takes some room beside that of its characters.
MOST_TEXTS = 10_000


def cut_into_shards(texts: Iterable[T], num_characters: float) -> Iterator[list[T]]:
    """Yield runs of texts with at most so many characters each, or with a single larger text.

    A shard has at most `MOST_TEXTS` texts, unless its characters have no limit.
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
