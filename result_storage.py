"""JSON that holds arrays to the last bit, and notices when it was damaged."""

import base64
import json

import numpy as np

from .digests import digest_of

ARRAY_KEYS = {"dtype", "shape", "base64"}


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
