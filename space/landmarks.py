"""Landmarks: how surprising well-known kinds of text are to the model in use, and where a text stands.

Nothing here is typed in: the texts are scored by the model itself, once, before its first verdict.
"""

import bisect
import math
import random
import re
import string
from collections.abc import Sequence
from typing import NamedTuple

from .samples import FOLDER

CHARACTERS = 900  # of a landmark: enough for a place on the scale, and read in a moment
FILES = {
    "a nursery rhyme": "rhyme",
    "a novel": "story",
    "the news": "news",
    "another language": "deutsch",
}
NEAR = math.log(1.25)  # a perplexity within a quarter of a landmark's is about the same
FEWEST_WORDS = 5
WORD = re.compile(r"[^\W\d_]+")
# The commonest words of English that its neighbours have not: hardly a sentence has none of them.
ENGLISH = set(
    WORD.findall(
        "the of and to a that it is i for you with are this not but had his they from she which we were "
        "their been has who will if my your what about them him can have be by at there when"
    )
)


class Landmark(NamedTuple):
    """A kind of text, and its perplexity under a model."""

    name: str
    perplexity: float


def landmark_texts() -> dict[str, str]:
    """Return the texts of the landmarks by name."""
    texts = {
        name: (FOLDER / f"{stem}.txt").read_text(encoding="utf-8")[:CHARACTERS]
        for name, stem in FILES.items()
    }
    keys = random.Random(1)
    mashed = (
        "".join(keys.choices(string.ascii_lowercase, k=keys.randint(2, 8))) for _ in range(40)
    )
    return texts | {"keys hit at random": " ".join(mashed)}


def verdict(perplexity: float, landmarks: Sequence[Landmark]) -> str:
    """Say where a perplexity lies among the landmarks, of which the least surprising comes first."""
    if not math.isfinite(perplexity):
        return "The model gave a part of it no chance at all."
    nearest = min(landmarks, key=lambda mark: abs(math.log(perplexity / mark.perplexity)))
    if abs(math.log(perplexity / nearest.perplexity)) < NEAR:
        return f"About as surprising as {nearest.name}."
    place = bisect.bisect([mark.perplexity for mark in landmarks], perplexity)
    if place == 0:
        return f"More predictable than {landmarks[0].name}."
    if place == len(landmarks):
        return f"More surprising than {landmarks[-1].name}."
    return f"More surprising than {landmarks[place - 1].name}, less than {landmarks[place].name}."


def doubt(interval: Sequence[float] | None, landmarks: Sequence[Landmark]) -> str:
    """Say among which landmarks a perplexity may lie, where its interval holds several."""
    within = [
        mark for mark in landmarks if interval and interval[0] <= mark.perplexity <= interval[1]
    ]
    if len(within) < 2:
        return ""
    return f"With so few words, it may be anything from {within[0].name} to {within[-1].name}."


def is_foreign(text: str) -> bool:
    """Return whether a text has words, but none of those that any English text has."""
    words = [word.lower() for word in WORD.findall(text)]
    return len(words) >= FEWEST_WORDS and not ENGLISH.intersection(words)
