"""Short digests: of anything that JSON can hold, and of texts, whose digests add up."""

import hashlib
import json
from collections.abc import Iterable
from typing import NamedTuple

import xxhash

VERSION = "0.1.0"
DIGITS = 12
TEXTS_MODULUS = 2**127 - 1  # a prime
TEXTS_BASE = 0x9E3779B97F4A7C15F39CC0605CEDC835 % TEXTS_MODULUS  # an arbitrary number


def digest_of(state: object) -> str:
    """Digest what JSON can hold, and anything else by its name."""
    line = json.dumps(state, sort_keys=True, default=str)
    return xxhash.xxh3_128(line.encode()).hexdigest()[:DIGITS]


class TextsDigest(NamedTuple):
    """Digest of a sequence of texts; that of two sequences, one after the other, is their sum.

    A polynomial in the hashes of the texts, so that the parts of a corpus can be read apart.
    """

    count: int = 0
    value: int = 0

    @classmethod
    def of(cls, texts: Iterable[str]) -> "TextsDigest":
        digest = cls()
        for text in texts:
            digest += cls(1, xxhash.xxh3_128_intdigest(text.encode("utf-8")) % TEXTS_MODULUS)
        return digest

    def __add__(self, after: "TextsDigest") -> "TextsDigest":
        shifted = self.value * pow(TEXTS_BASE, after.count, TEXTS_MODULUS)
        return TextsDigest(self.count + after.count, (shifted + after.value) % TEXTS_MODULUS)

    def __str__(self) -> str:
        return hashlib.sha256(f"{self.count} {self.value}".encode()).hexdigest()[:DIGITS]
