"""A text in selectable pieces, with a panel for their details; all views use it."""

from collections.abc import Sequence

from .markup import payload

PLAIN = "plain"  # the class of a piece without a colour
GAP = "-"  # class of text that is shown but cannot be selected


def text_box(pieces: Sequence[str], colours: Sequence[str | None], unit: str) -> str:
    """Show a text with selectable pieces.

    The page's script makes elements of those in sight only: tens of thousands would stop a browser
    that serves a screen reader for many seconds.

    Args:
        pieces: the pieces of the text, in order.
        colours: class of each; "" for none, None for text that cannot be selected.
        unit: name of a piece, such as "token".
    """
    data = {"text": "".join(pieces), **piece_columns(pieces, colours)}
    return (
        f'<div class="ps-text" dir="auto" role="listbox" tabindex="0" aria-label="{text_label(unit)}" '
        f"data-pieces={payload(data)}></div>"
    )


def text_label(unit: str) -> str:
    """Name the text for screen readers."""
    return f"The text, {unit} by {unit}. Arrow keys move from {unit} to {unit}."


def piece_columns(pieces: Sequence[str], colours: Sequence[str | None]) -> dict:
    """Return the pieces' lengths as the script counts characters, and their classes."""
    return {
        "lengths": [utf16_length(piece) for piece in pieces],
        "classes": " ".join(GAP if colour is None else colour or PLAIN for colour in colours),
    }


def utf16_length(text: str) -> int:
    """Count characters as the page's script does."""
    return len(text.encode("utf-16-le")) // 2


def detail_box(shown: str) -> str:
    """Write the box for the script's details of the selected piece."""
    return (
        '<div class="ps-detail" role="status"><p class="ps-hint">Point at a piece of the text, or move '
        f"with the arrow keys, to see {shown}.</p></div>"
    )
