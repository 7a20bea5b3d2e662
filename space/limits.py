"""Limits per visitor of a free machine."""

from dataclasses import dataclass

FAULT = "Something went wrong on this page's side. Please try again."


@dataclass(frozen=True)
class Limits:
    """The budget of a request and of the machine.

    Attributes:
        characters: of a text, checked before it is tokenized.
        tokens: of a text.
        seconds: that one request may compute.
        window: the longest window offered, whatever the model takes.
        model_bytes: weights of a model, as stored on the Hub.
        models: how many are kept in memory.
        waiting: requests in the queue.
    """

    characters: int = 200_000
    tokens: int = 20_000
    seconds: float = 60.0
    window: int = 2048
    model_bytes: int = 1_500_000_000
    models: int = 2
    waiting: int = 200


class Refused(ValueError):
    """A request that is turned down, with a sentence for the visitor."""


def whole_characters(text: str, name: str) -> str:
    """Return a text as it is; refuse half a character."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise Refused(
            f"The {name} contains broken characters (half of a pair). Paste it again."
        ) from None
    return text


def duration(seconds: float) -> str:
    """Write seconds as words: `12 seconds`, `3 minutes`."""
    value, unit = (seconds / 60, "minute") if seconds >= 100 else (seconds, "second")
    value = max(1, round(value))
    return f"{value:,} {unit}" + ("" if value == 1 else "s")
