"""Parsers of the values of options: numbers, sizes, lists, JSON, escapes."""

import argparse
import json
import re
from collections.abc import Callable, Sequence

from ..argument_table import Anything, Choice, Flag, Kind, Share, String, WholeNumber, WholeNumbers
from ..finding import LARGEST, SMALLEST

# Keys of JSON objects whose values are not published.
SECRET = re.compile(r"token\b|key|auth|password|secret|header|proxies", re.IGNORECASE)
# Settings that the number depends on; they only look like secrets.
PUBLISHED = re.compile(
    r"key_mapping|api_key_variable|(\w+_)?(num_key_\w*(heads|groups)\w*|key_(head_dim|dim|bias|multiplier))"
)
SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?b)?", re.IGNORECASE)
POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def whole_number(low: int) -> Callable[[str], int]:
    """Return a parser of whole numbers of at least `low`."""

    def read(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} must be a whole number") from None
        if number < low:
            raise argparse.ArgumentTypeError(f"must be at least {low}, got {number}")
        return number

    return read


def whole_numbers(low: int) -> Callable[[str], list[int]]:
    """Return a parser of whole numbers of at least `low`, separated by commas."""
    read_one = whole_number(low)

    def read(text: str) -> list[int]:
        if not re.fullmatch(r"\s*-?\d+\s*(,\s*-?\d+\s*)*", text):
            raise argparse.ArgumentTypeError(
                f"{text!r} must be a whole number, or several separated by commas"
            )
        return [read_one(number) for number in text.split(",")]

    return read


def figures(text: str) -> list[str]:
    """Parse numbers separated by commas, and keep their digits."""
    found = [part.strip() for part in text.split(",")]
    if not all(
        re.fullmatch(r"\d+(\.\d+)?(e[+-]?\d+)?", part, re.I) and SMALLEST <= float(part) <= LARGEST
        for part in found
    ):
        raise argparse.ArgumentTypeError(
            f"{text!r} must be a number such as 29.41, from {SMALLEST:g} to {LARGEST:g}, or several "
            "separated by commas"
        )
    return found


def doubling_or_numbers(low: int) -> Callable[[str], list[int] | str]:
    """Return a parser of "doubling", or of whole numbers of at least `low` separated by commas."""
    read_numbers = whole_numbers(low)
    return lambda text: text if text == "doubling" else read_numbers(text)


def size(unit: int) -> Callable[[str], int]:
    """Return a parser of sizes such as 64M; `unit` is the value of K, 1024 for bytes, else 1000."""

    def read(text: str) -> int:
        match = SIZE.fullmatch(text.strip())
        if match is None:
            raise argparse.ArgumentTypeError(f"{text!r} must be a size such as 500K, 64M or 2G")
        number = round(float(match[1]) * unit ** POWERS[match[2].lower()])
        if number < 1:
            raise argparse.ArgumentTypeError(f"must be at least 1, got {text}")
        return number

    return read


def real_number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} must be a number") from None


def positive(text: str) -> float:
    number = real_number(text)
    if not number > 0:
        raise argparse.ArgumentTypeError(f"must be above 0, got {text}")
    return number


def share(text: str) -> float:
    number = real_number(text)
    if not 0 <= number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 0 and below 1, got {text}")
    return number


def part(text: str) -> tuple[int, int]:
    """Parse the number of a part: "3/8"."""
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise argparse.ArgumentTypeError(
            f"must be the number of a part and the number of parts, such as 3/8, got {text!r}"
        )
    return int(match[1]), int(match[2])


def names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")]


def without_secrets(value: object) -> object:
    """Remove keys and tokens from a JSON object."""
    if not isinstance(value, dict):
        return value
    return {
        key: item if PUBLISHED.fullmatch(str(key)) else without_secrets(item)
        for key, item in value.items()
        if PUBLISHED.fullmatch(str(key)) or not SECRET.search(str(key))
    }


def json_object(text: str) -> dict:
    """Parse a JSON object; convert numeric keys of `max_memory`, as accelerate requires."""
    shown = "the value" if SECRET.search(text) else repr(text)
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise argparse.ArgumentTypeError(f"{shown} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f'{shown} must be a JSON object such as {{"a": 1}}')
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


def choice(choices: Sequence[object]) -> Callable[[str], object]:
    """Return a parser of one of a few values, including True and False."""
    by_name = {str(value).lower(): value for value in choices}

    def read(text: str) -> object:
        if text.lower() not in by_name:
            raise argparse.ArgumentTypeError(f"{text!r} must be one of {', '.join(by_name)}")
        return by_name[text.lower()]

    return read


def encoding(text: str) -> str:
    try:
        "".encode(text)
    except LookupError:
        raise argparse.ArgumentTypeError(
            f"{text!r} must be an encoding of Python, such as utf-8, cp1252 or utf-16"
        ) from None
    return text


def settings_of(kind: Kind) -> dict:
    """Return argparse's settings for a kind of value."""
    match kind:
        case WholeNumber(low, several=True):
            return {"type": whole_numbers(low)}
        case WholeNumber(is_size=True):
            return {"type": size(1024)}
        case WholeNumber(low):
            return {"type": whole_number(low)}
        case WholeNumbers(low):
            return {"type": doubling_or_numbers(low)}
        case Choice((True, False)):
            return {"action": "store_const", "const": True}
        case Choice(choices) if True in choices:
            return {"type": choice(choices)}
        case Choice(choices):
            return {"choices": [value for value in choices if value is not None]}
        case Flag():
            return {"action": "store_true"}
        case String():
            return {"type": unescaped}
        case Share():
            return {"type": share}
        case Anything(text) if text is not None:
            return {"type": READERS.get(text, str)}
    return {}


# Parsers of values that are checked where they are used.
READERS = {
    "names": names,
    "JSON": json_object,
}
