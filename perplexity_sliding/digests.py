"""Short digests of JSON values and texts, and comparisons of probes."""

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import xxhash

DIGITS = 12
TEXTS_MODULUS = 2**127 - 1  # a prime
TEXTS_BASE = 0x9E3779B97F4A7C15F39CC0605CEDC835 % TEXTS_MODULUS  # an arbitrary number

# Nats a token: five times the rounding that was found in half precision, and more for quantised and
# served models.
TOLERANCES = {"float64": 1e-4, "float32": 1e-4, "float16": 0.005, "bfloat16": 0.01}
COARSEST = 0.03
# Models of equal weights differ by less in float32, in nats a token, if their code adds in another order.
ROUNDING = 1e-6


def digest_of(state: object) -> str:
    """Digest a JSON value; other objects are digested as strings."""
    return digest_of_line(as_json(state))


def as_json(state: object) -> str:
    return json.dumps(state, sort_keys=True, default=str)


def digest_of_line(line: str) -> str:
    return xxhash.xxh3_128(line.encode()).hexdigest()[:DIGITS]


def probe_tolerance(signature: str) -> float:
    """Return the largest difference, in nats a token, of two probes under one signature."""
    number_format = re.search(r"(?:^|\|)dtype:([^|]*)", signature)
    if number_format is None:
        return COARSEST
    return TOLERANCES.get(number_format[1].removesuffix("+flush"), COARSEST)


def same_probe(probe: float, other: float, signature: str) -> bool:
    return math.isclose(probe, other, rel_tol=0.0, abs_tol=probe_tolerance(signature))


def same_probes(one: Mapping, other: Mapping) -> bool:
    """Check the probes of two results with one signature, if both have one."""
    if "probe" not in one or "probe" not in other:
        return True
    return same_probe(one["probe"], other["probe"], one.get("signature", ""))


def describe_probe(result: Mapping) -> str:
    """Format the probe of a result, if it was measured, as a line to quote with its signature."""
    return f"\nprobe: {result['probe']:.6f} nats a token" if "probe" in result else ""


@dataclass(frozen=True)
class TextsDigest:
    """A polynomial in the hashes of texts: the digest of a concatenation is the sum of digests."""

    count: int = 0
    value: int = 0

    @classmethod
    def of(cls, texts: Iterable[str]) -> "TextsDigest":
        count = value = 0
        for text in texts:
            count += 1
            number = xxhash.xxh3_128_intdigest(text.encode("utf-8"))
            value = (value * TEXTS_BASE + number) % TEXTS_MODULUS
        return cls(count, value)

    def __add__(self, after: "TextsDigest") -> "TextsDigest":
        shifted = self.value * pow(TEXTS_BASE, after.count, TEXTS_MODULUS)
        return TextsDigest(self.count + after.count, (shifted + after.value) % TEXTS_MODULUS)

    def __str__(self) -> str:
        return hashlib.sha256(f"{self.count} {self.value}".encode()).hexdigest()[:DIGITS]
