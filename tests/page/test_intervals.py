"""Intervals are shown of a text of ten parts and more, wherever the page has any."""

import math

import pytest
from models import random_text

from perplexity_sliding.views.comparison import comparison_view
from space.intervals import FEWEST_PARTS
from space.jobs import Job
from space.memory_view import change_by_context, memory_view
from space.models import BUNDLED, ROUNDED
from space.settings import Settings

WINDOW = 64  # bytes that the bundled model of these tests reads at once
PARTS = [(4, False), (FEWEST_PARTS - 1, False), (FEWEST_PARTS, True)]


def text_of(parts):
    return random_text(64 * parts)[: WINDOW * parts]


def conclusions(value):
    """Everything in a result that is, or follows from, an interval."""
    entries = list(value.items() if isinstance(value, dict) else enumerate(value))
    ends = "interval", "pvalue", "sample", "scope"
    own = [entry for name, entry in entries if str(name).endswith(ends)]
    nested = (entry for _, entry in entries if isinstance(entry, (dict, list)))
    return own + [found for entry in nested for found in conclusions(entry)]


@pytest.mark.parametrize("other", [ROUNDED, "owner/words"])
@pytest.mark.parametrize("parts, shown", PARTS)
def test_a_comparison(service, parts, shown, other):
    settings = Settings(other, WINDOW, WINDOW, start="none")
    compared = service.compare(text_of(parts), settings, BUNDLED, Job(600), clip=True)
    found = conclusions(compared.pair.comparison)
    assert any(found) == shown
    assert any(conclusions(compared.by_context)) == (shown and other == ROUNDED)
    page = comparison_view(compared.pair) + change_by_context(compared)
    summary = compared.pair.comparison["summary"]
    assert "interval" in summary and ("not enough text for an interval" in summary) != shown
    assert ("Intervals are within this text" in page) == shown
    assert ("Bars are 95 % intervals" in page) == ('class="ps-error"' in page)
    assert (compared.pair.comparison["verdict"] == "too little text to tell") != shown


@pytest.mark.parametrize("parts, shown", PARTS)
def test_memory(service, parts, shown):
    memory = service.memory(text_of(parts), Settings(BUNDLED, WINDOW, 16), Job(600))
    assert len(memory.strides) > 2 and memory.by_context
    for result in memory.strides[1:]:
        ratio = result["ratio_to_first"]
        assert math.isfinite(ratio["ratio"]) and (ratio["interval"] is not None) == shown
    assert any(conclusions(list(memory.by_context))) == shown
    interval = memory.by_context[0]["ratio_to_longest"]["interval"]  # of fewer parts than the text
    assert ("too short for an interval" in memory_view(memory)) == (interval is None)


@pytest.mark.parametrize("length, lengths", [(7, []), (8, [2, 4]), (WINDOW, [2, 4, 8, 16, 32])])
def test_memory_within_one_window(service, length, lengths):
    memory = service.memory(text_of(1)[:length], Settings(BUNDLED, WINDOW, 16), Job(60))
    assert [group["context_length"] for group in memory.by_context] == lengths
    assert ("leave nothing to forget" in memory_view(memory)) == (lengths == [])
