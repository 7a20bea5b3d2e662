"""A visitor's settings: checks, and conversion to arguments of the metric."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from .limits import Refused, whole_characters
from .protocols import START_CHOICES, guide, usual_stride

MOST_CONTEXT = 20_000  # characters


@dataclass(frozen=True)
class Settings:
    """One choice of model and windows.

    Attributes:
        model: a name on the page's list, or of a model on the Hub.
        window: tokens in a window; None for the longest that the model takes.
        stride: tokens from one window to the next; None for the protocol's usual one.
        start: a key of `START_CHOICES`.
        protocol: whose windows to use.
        context: what is read before the text and not scored; empty for nothing.
        words: whether the text's words are scored too.
    """

    model: str
    window: int | None = None
    stride: int | None = None
    start: str = "automatic"
    protocol: str = "sliding"
    context: str = ""
    words: bool = False

    def for_model(self, longest: int, clip: bool = False) -> "Settings":
        """Fill in window and stride for a model with a limit of `longest` tokens.

        Args:
            clip: shorten a window that is too long for the model, instead of refusing it, and a
                stride that leaves less than half of it as context.
        """
        window = longest if self.window is None else self.window
        if clip and window > longest:
            shorter = None if self.stride is None else min(self.stride, max(1, longest // 2))
            return replace(self, window=longest, stride=shorter).for_model(longest, clip)
        if not 2 <= window <= longest:
            shorter = " Choose a shorter one; the text may still be longer than the window."
            raise Refused(
                f"The window must be between 2 and {longest:,} tokens with {self.model}, but it is "
                f"{window:,}.{shorter if window > longest else ''}"
            )
        if not guide(self.protocol).stride:
            return replace(self, window=window, stride=None)
        stride = self.stride
        if stride is None:
            stride = usual_stride(self.protocol, window)
        if clip:
            stride = min(stride, window)
        if not 1 <= stride <= window:
            reason = " A longer one would skip part of the text." if stride > window else ""
            raise Refused(
                f"The stride must be between 1 and the window, {window:,} tokens, but it is "
                f"{stride:,}.{reason}"
            )
        longest_stride = window - guide(self.protocol).starts_every_window
        return replace(self, window=window, stride=min(stride, longest_stride))

    def arguments(self) -> dict:
        """Return the metric's arguments that the protocol supports."""
        known = guide(self.protocol)
        arguments = {"max_length": self.window, "protocol": self.protocol}
        if known.stride:
            arguments["stride"] = self.stride
        if known.starts:
            arguments["add_start_token"] = START_CHOICES[self.start]
        if self.context:
            arguments["contexts"] = [self.context]
        if self.words:
            arguments["words"] = True
        return arguments


def check_settings(settings: Settings, protocols: Sequence[str]) -> Settings:
    """Refuse settings that are invalid for every model."""
    if settings.protocol not in protocols:
        raise Refused(
            f"There is no protocol called “{settings.protocol}”. Choose one of: "
            f"{', '.join(protocols)}."
        )
    if settings.start not in START_CHOICES:
        raise Refused(
            f"The start token must be one of {', '.join(START_CHOICES)}, not “{settings.start}”."
        )
    for name, value in (("window", settings.window), ("stride", settings.stride)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            raise Refused(f"The {name} must be a whole number of tokens, not “{value}”.")
    known = guide(settings.protocol)
    if settings.context and not known.contexts:
        raise Refused(
            f"The protocol {settings.protocol} scores no text after a context: its tool does not. "
            "Leave the context empty, or choose another protocol."
        )
    if settings.start not in known.starts:
        settings = replace(settings, start="automatic")
    return replace(
        settings, context=check_context(settings.context), words=settings.words and known.words
    )


def check_context(context: str) -> str:
    """Return the context, or refuse it."""
    if not isinstance(context, str):
        raise Refused(f"The context must be a text, not “{context}”.")
    if len(context) > MOST_CONTEXT:
        raise Refused(
            f"The context has {len(context):,} characters, and this page takes {MOST_CONTEXT:,} at "
            "most. Leave out its beginning."
        )
    return whole_characters(context, "context")
