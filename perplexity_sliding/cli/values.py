"""Parsers of the values of options, and what is published of them."""

import argparse
import json
import re

from ..arguments import Anything, Choice, Number, WholeNumber, WholeNumbers

# Keys of JSON objects whose values are not published.
SECRET = re.compile(r"(token|key|auth\w*|password|secret|headers?|proxies)$", re.IGNORECASE)


def numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def lengths(text: str) -> list[int] | str:
    return text if text == "doubling" else numbers(text)


def names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")]


def truth(text: str) -> bool | str:
    """Parse "true" and "false"; other words are in lower case."""
    return {"true": True, "false": False}.get(text.lower(), text.lower())


def part(text: str) -> tuple[int, int]:
    """Parse the number of a part: "3/8"."""
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise argparse.ArgumentTypeError(
            f"must be the number of a part and the number of parts, such as 3/8, got {text!r}"
        )
    return int(match[1]), int(match[2])


def json_object(text: str) -> dict:
    """Parse a JSON object; convert numeric keys of `max_memory`, as accelerate requires."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:  # the value may be a secret
        raise argparse.ArgumentTypeError(f"the value is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError('the value must be a JSON object such as {"a": 1}')
    if isinstance(value.get("max_memory"), dict):
        value["max_memory"] = {
            int(key) if key.isdecimal() else key: room for key, room in value["max_memory"].items()
        }
    return value


def unescaped(text: str) -> str:
    r"""Replace escapes such as \n and \t, which a shell passes unchanged."""
    try:
        return text.encode("latin-1", "backslashreplace").decode("unicode_escape")
    except UnicodeDecodeError as error:
        raise argparse.ArgumentTypeError(f"{text!r} has a bad escape: {error.reason}") from None


def settings_of(kind: object) -> dict:
    """Return argparse's settings for a kind of value; its range is checked after parsing."""
    match kind:
        case WholeNumber(several=True):
            return {"type": numbers}
        case WholeNumber():
            return {"type": int}
        case WholeNumbers():
            return {"type": lengths}
        case Choice((True, False)):
            return {"action": "store_const", "const": True}
        case Choice(choices) if True in choices:
            return {"type": truth}
        case Choice(choices):
            return {"choices": [value for value in choices if value is not None]}
        case Number():
            return {"type": float}
        case Anything("names"):
            return {"type": names}
        case Anything("JSON"):
            return {"type": json_object}
    return {}


def without_secrets(value: object) -> object:
    """Remove keys and tokens from a JSON object; the keys of `key_mapping` are names of weights."""
    if not isinstance(value, dict):
        return value
    return {
        key: item if key == "key_mapping" else without_secrets(item)
        for key, item in value.items()
        if not SECRET.search(str(key))
    }
