"""Texts, uploads and the time that a request may take."""

import time
from types import SimpleNamespace

import pytest
from pages import STORY

from space.gate import check_name
from space.jobs import Job, OverBudget
from space.limits import Limits, Refused
from space.models import BUNDLED
from space.service import Service
from space.settings import Settings


@pytest.mark.parametrize(
    "text, said",
    [
        ("  \n ", "There is no text yet"),
        (None, "There is no text yet"),
        ("x" * 101, "101 characters, and this page takes 100 at most"),
        ("\ud800", "broken characters"),
        ("x" * 60, "has 60 tokens for demo_model, and this page takes 50 at most"),
    ],
)
def test_texts_that_are_refused(folders, text, said):
    service = Service(folders["bytes"], Limits(characters=100, tokens=50))
    with pytest.raises(Refused, match=said):
        service.score(text, Settings(BUNDLED), Job(60))


def test_a_request_over_its_time_ends_with_a_clear_sentence(service):
    with pytest.raises(OverBudget, match=r"may take 1 second.* larger stride"):
        service.score(STORY, Settings(BUNDLED, 64, 1), Job(seconds=0))


def test_a_step_is_judged_by_itself_alone():
    """Where earlier steps had taken six seconds, a step was judged by its first batch."""
    job = Job(60)
    job._computed = 20.0  # an earlier step
    callback = job.computing()
    time.sleep(0.05)
    callback(SimpleNamespace(total=10_000, done=10, perplexity=5.0))  # 50 s to go, it seems


@pytest.mark.parametrize("name", ["http://127.0.0.1:8000/v1", "HTTP://example.org", "./m.gguf"])
def test_no_address_is_asked_and_no_file_opened(name):
    with pytest.raises(Refused, match="not the name of a model"):
        check_name(name)
