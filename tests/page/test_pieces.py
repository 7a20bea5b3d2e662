"""Texts are cut at tokens, but characters stay whole."""

import itertools

import pytest
import regex
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from models import make_byte_tokenizer

from perplexity_sliding.views.text import cut
from space.answers import text_data


@examples(max_examples=100)
@given(st.text(max_size=60))
def test_segments_cover_the_text_and_never_cut_a_character(text):
    tokenizer = make_byte_tokenizer()
    offsets = tokenizer(text, return_offsets_mapping=True)["offset_mapping"]
    segments = cut(text, offsets)
    assert "".join(text[s.start : s.end] for s in segments) == text
    whole = {0, len(text)} | {match.end() for match in regex.finditer(r"\X", text)}
    assert {s.start for s in segments} | {s.end for s in segments} <= whole | {0}
    numbers = [n for s in segments if s.first is not None for n in range(s.first, s.last + 1)]
    assert numbers == list(range(len(offsets)))


@pytest.mark.parametrize(
    "text, offsets, expected",
    [
        ("é", [(0, 1), (0, 1)], [(0, 1, 0, 1)]),  # two bytes, one letter
        ("e\u0301x", [(0, 1), (1, 2), (2, 3)], [(0, 2, 0, 1), (2, 3, 2, 2)]),  # letter and accent
        ("👩‍👧", [(0, 1), (1, 2), (2, 3)], [(0, 3, 0, 2)]),  # joined emoji
        ("a b", [(0, 1), (2, 3)], [(0, 1, 0, 0), (1, 2, None, None), (2, 3, 1, 1)]),  # a gap
        (" a ", [(1, 2)], [(0, 1, None, None), (1, 2, 0, 0), (2, 3, None, None)]),
        ("a", [(0, 0), (0, 1)], [(0, 1, 1, 1)]),  # a start token stands for no text
    ],
)
def test_segments(text, offsets, expected):
    assert [tuple(segment) for segment in cut(text, offsets)] == expected


def test_pieces_are_cut_where_the_script_cuts_them(scored):
    """JavaScript counts an emoji as two characters or more."""
    pieces = text_data(scored)["pieces"]
    utf16 = pieces["text"].encode("utf-16-le")
    ends = [2 * end for end in itertools.accumulate(pieces["lengths"])]
    shown = [utf16[a:b].decode("utf-16-le") for a, b in itertools.pairwise([0, *ends])]
    segments = cut(scored.text, scored.tokens["offsets"])
    assert shown == [scored.text[segment.start : segment.end] for segment in segments]
    assert max(pieces["lengths"]) > max(len(piece) for piece in shown)  # there is an emoji
