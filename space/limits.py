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
        model_parameters: weights of a model, as its configuration would build it.
        models: how many are kept in memory.
        waiting: requests in the line; in a full one, those of who had most are turned away.
        downloads: models that are fetched at once.
        looking: seconds that it may take to open a model and try it out.
    """

    characters: int = 200_000
    tokens: int = 20_000
    seconds: float = 60.0
    window: int = 2048
    model_bytes: int = 1_500_000_000
    model_parameters: int = 800_000_000
    models: int = 2
    waiting: int = 40
    downloads: int = 3
    looking: float = 60.0


class Refused(ValueError):
    """A request that is turned down, with a sentence for the visitor."""


def whole_characters(text: str, name: str) -> str:
    """Return a text with line ends as the page has them; refuse half a character."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise Refused(
            f"The {name} contains broken characters (half of a pair). Paste it again."
        ) from None
    return text.replace("\r\n", "\n").replace("\r", "\n")


def duration(seconds: float) -> str:
    """Write seconds as words: `12 seconds`, `3 minutes`."""
    value, unit = (seconds / 60, "minute") if seconds >= 100 else (seconds, "second")
    value = max(1, round(value))
    return f"{value:,} {unit}" + ("" if value == 1 else "s")
