"""A list of pieces of a text, each with a link to its position."""

import re
from collections.abc import Sequence

from .markup import escape
from .segments import Segment

LONGEST = 12  # characters of the rest of a word, before and after
AT_END, AT_BEGIN = re.compile(r"\w*$"), re.compile(r"^\w*")


def piece_list(
    entries: Sequence[tuple[int, str, str]], segments: Sequence[Segment], text: str
) -> str:
    """List pieces of a text with details.

    Args:
        entries: number of the piece among the segments, a short figure, and HTML of more words.
    """
    if not entries:
        return '<p class="ps-note">None did.</p>'
    rows = "".join(
        f'<li><button type="button" class="ps-button" data-piece="{piece}">'
        f"{in_word(text, segments[piece])}</button><b>{figure}</b><small>{words}</small></li>"
        for piece, figure, words in entries
    )
    return f'<ol class="ps-pieces">{rows}</ol>'


def in_word(text: str, segment: Segment) -> str:
    """Write a piece as HTML, with the rest of its word in pale letters."""
    before, piece, after = map(escape, around(text, segment))
    return f"<i>{before}</i><span>{piece}</span><i>{after}</i>"


def around(text: str, segment: Segment) -> tuple[str, str, str]:
    """Return a piece with the rest of its word before and after it: (before, piece, after)."""
    before = AT_END.search(text[max(0, segment.start - LONGEST) : segment.start])[0]
    after = AT_BEGIN.search(text[segment.end : segment.end + LONGEST])[0]
    piece = text[segment.start : segment.end]
    return (
        before if piece[:1].isalnum() else "",
        shown(piece),
        after if piece[-1:].isalnum() else "",
    )


def shown(piece: str) -> str:
    """Strip the spaces around a piece; make a piece of only spaces visible."""
    return piece.strip() or piece.replace("\n", "↵").replace(" ", "·").replace("\t", "⇥")
