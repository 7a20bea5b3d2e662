"""Short digests: of anything that JSON can hold, and of texts, whose digests add up.

And the probe, which stands beside a signature as a digest does and is compared as a number; and
JSON that carries a digest, holds arrays to the last bit and notices when it was damaged.
"""

import base64
import hashlib
import json
import math
import re
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import xxhash

ARRAY_KEYS = {"dtype", "shape", "base64"}

DIGITS = 12
TEXTS_MODULUS = 2**127 - 1  # a prime
TEXTS_BASE = 0x9E3779B97F4A7C15F39CC0605CEDC835 % TEXTS_MODULUS  # an arbitrary number


def digest_of(state: object) -> str:
    """Digest what JSON can hold, and anything else by its name."""
    line = json.dumps(state, sort_keys=True, default=str)
    return xxhash.xxh3_128(line.encode()).hexdigest()[:DIGITS]


def probe_tolerance(signature: str) -> float:
    """Return by how many nats a token two probes may differ under one signature.

    In float32 1e-4, in float16 0.005, in bfloat16, quantised or elsewhere 0.03: machines, lengths
    and batches round otherwise.
    """
    number_format = re.search(r"(?:^|\|)dtype:([^|]*)", signature)
    if number_format is not None and number_format[1] in ("float32", "float64"):
        return 1e-4
    return 0.005 if number_format is not None and number_format[1] == "float16" else 0.03


def same_probe(probe: float, other: float, signature: str) -> bool:
    """Return whether two probes under one signature may be of the same computation."""
    return math.isclose(probe, other, rel_tol=0.0, abs_tol=probe_tolerance(signature))


class TextsDigest(NamedTuple):
    """Digest of a sequence of texts; that of two sequences, one after the other, is their sum.

    A polynomial in the hashes of the texts, so that the parts of a corpus can be read apart.
    """

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


# --- JSON that notices damage ---------------------------------------------------------------------


def to_checked_json(kind: str, fields: dict) -> str:
    """Write fields as JSON with what they are and a checksum; arrays as base64 of their bytes.

    Args:
        kind: what it is, with the number of its version.
        fields: what JSON can hold, and numpy arrays.
    """
    body = {"kind": kind} | {name: _pack(value) for name, value in fields.items()}
    return json.dumps(body | {"checksum": digest_of(body)})


def from_checked_json(kind: str, text: str, argument: str) -> dict:
    """Read what `to_checked_json` wrote.

    Args:
        argument: what the text is called, for an error.

    Raises:
        TypeError: it is not a string.
        ValueError: it is no JSON, something else, or damaged.
    """
    if not isinstance(text, str):
        raise TypeError(f"`{argument}` must be a string of JSON, got {type(text).__name__}.")
    try:
        body = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"`{argument}` must be JSON, but it cannot be read: {error}. Was it cut short?"
        ) from None
    found = body.get("kind") if isinstance(body, dict) else type(body).__name__
    if found != kind:
        raise ValueError(f"`{argument}` must hold {kind!r}, got {found!r}.")
    if body.pop("checksum", None) != digest_of(body):
        raise ValueError(
            f"`{argument}` is damaged: its checksum is another than when it was written. Write it "
            "again."
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
