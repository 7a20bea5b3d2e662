"""The sketch of a window and a stride says which context tokens have."""

import pytest
import regex
from pages import STORY

from space.jobs import Job
from space.models import BUNDLED
from space.plan_view import sketch
from space.settings import Settings


def test_sketch_says_what_the_stride_does():
    assert "<b>96 to 127 tokens</b> of context" in sketch(128, 32)
    assert "<b>1 to 128 tokens</b> of context" in sketch(128, 128)
    assert "second half" in sketch(128, 32, "llama.cpp")


@pytest.mark.parametrize("window, stride", [(2, 1), (2, 2), (3, 2), (8, 7), (8, 8), (9, 1)])
def test_the_sketch_counts_the_context_that_tokens_have(service, window, stride):
    """Window 2 seemed to have more context at stride 1 than at stride 2, which has more."""
    scored = service.score(STORY, Settings(BUNDLED, window, stride), Job(60))
    later = scored.tokens["windows"][1]["first"]
    contexts = scored.tokens["context_length"][later:]
    said = sketch(window, stride)
    least, *most = regex.findall(r"<b>(\d+)(?: to (\d+))? tokens?</b>", said)[0]
    assert int(least) == min(contexts) and int(most[0] or least) == max(contexts)
    without_overlap = service.score(STORY, Settings(BUNDLED, window, window), Job(60)).tokens
    more = sum(without_overlap["context_length"][later:]) > sum(contexts)
    assert (f"Stride {window} leaves more" in said) == more
