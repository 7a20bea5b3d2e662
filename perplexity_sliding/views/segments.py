"""Segments of a text at token boundaries that never divide a character.

Byte-level tokenizers split accents, Chinese characters and emoji into several tokens.  Colours and
selections follow the characters of the original text, so tokens that share one go together.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import regex


class Segment(NamedTuple):
    """A piece of text and its tokens.

    Attributes:
        start, end: characters of the text, text[start:end].
        first, last: numbers of its first token and its last; None where no token covers it.
    """

    start: int
    end: int
    first: int | None = None
    last: int | None = None


def cut(text: str, offsets: Sequence[Sequence[int]]) -> list[Segment]:
    """Split a text into segments, in order and without gaps.

    Args:
        offsets: first and one-past-last character of each token; empty for one that stands for
            no character, such as a start token.
    """
    whole = _join_characters(_merge_overlaps(offsets), _character_starts(text))
    return list(_fill_gaps(whole, len(text)))


def segment_data(segments: Sequence[Segment]) -> list[list[int] | None]:
    """Return first and last token of each segment for the page's script; None without tokens."""
    return [None if s.first is None else [s.first, s.last] for s in segments]


def _merge_overlaps(offsets: Sequence[Sequence[int]]) -> Iterator[Segment]:
    """Join tokens that share characters."""
    current = None
    for number, (start, end) in enumerate(offsets):
        if end <= start:
            continue
        if current is not None and start < current.end:
            current = Segment(current.start, max(end, current.end), current.first, number)
            continue
        if current is not None:
            yield current
        current = Segment(start, end, number, number)
    if current is not None:
        yield current


def _character_starts(text: str) -> set[int]:
    """Find the starts of user-perceived characters: a letter with its accents, a whole emoji."""
    return {match.start() for match in regex.finditer(r"\X", text)} | {len(text)}


def _join_characters(segments: Iterator[Segment], starts: set[int]) -> Iterator[Segment]:
    """Join segments that meet in the middle of a character."""
    current = None
    for segment in segments:
        if current is not None and current.end == segment.start and current.end not in starts:
            current = Segment(current.start, segment.end, current.first, segment.last)
            continue
        if current is not None:
            yield current
        current = segment
    if current is not None:
        yield current


def _fill_gaps(segments: Iterator[Segment], length: int) -> Iterator[Segment]:
    """Create segments for text between tokens, such as stripped spaces."""
    reached = 0
    for segment in segments:
        if segment.start > reached:
            yield Segment(reached, segment.start)
        yield segment
        reached = segment.end
    if reached < length:
        yield Segment(reached, length)
