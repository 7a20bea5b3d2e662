"""Landmarks are measured with the model in use, and the verdict follows from them."""

import math

import pytest

from space.jobs import Job
from space.landmarks import Landmark, is_foreign, landmark_texts, verdict
from space.models import BUNDLED
from space.service import Service
from space.settings import Settings

MARKS = [Landmark("a rhyme", 10.0), Landmark("a novel", 40.0), Landmark("noise", 4000.0)]


def test_landmarks_are_the_scores_of_their_texts(folders):
    service = Service(folders["bundled"])
    marks = service.landmarks(BUNDLED, Job(60))
    found = {mark.name: mark.perplexity for mark in marks}
    assert found.keys() == landmark_texts().keys() and len(found) >= 5
    assert list(found.values()) == sorted(found.values())
    for name, text in landmark_texts().items():
        own = service.score(text, Settings(BUNDLED), Job(60)).result["perplexity"]
        assert found[name] == pytest.approx(own, rel=1e-9)
    assert service.landmarks(BUNDLED, Job(60)) is marks, "measured once"


@pytest.mark.parametrize(
    "perplexity, interval, said",
    [
        (5.0, None, "More predictable than a rhyme."),
        (11.0, None, "About as surprising as a rhyme."),
        (20.0, [12.0, 50.0], "Between a rhyme and a novel."),
        (20.0, [9.0, 50.0], "Perhaps between a rhyme and a novel."),
        (9000.0, None, "More surprising than noise."),
        (math.inf, None, "The model gave a part of it no chance at all."),
    ],
)
def test_a_verdict_is_a_place_among_the_landmarks(perplexity, interval, said):
    """In doubt where the interval holds several of them."""
    assert verdict(perplexity, interval, MARKS) == said


@pytest.mark.parametrize(
    "text, foreign",
    [
        ("Der Hund lief bellend durch unseren Garten.", True),
        ("Mi abuela me manda correos desde Madrid", True),
        ("I love pizza with pineapple.", False),
        ("Pferde laufen schnell davon", False),
        ("Pizza!", False),
        ("12 34 56 78 90 12", False),
        ("Ich will dass du kommst", True),
        ("Quick brown foxes jump lazily, happily, daily.", False),
        ("Minä rakastan sinua enemmän kuin mitään muuta maailmassa ja koko elämässä aina.", True),
        ("Привет, мир", True),
    ],
)
def test_another_language_is_told_by_its_commonest_words(text, foreign):
    assert is_foreign(text) == foreign
