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
LANGUAGE, KEYS = "German", "random keys"
FILES = {
    "a nursery rhyme": "rhyme",
    "a novel": "story",
    "the news": "news",
    LANGUAGE: "deutsch",
}
NEAR = math.log(1.25)  # a perplexity within a quarter of a landmark's is about the same
MANY_WORDS = 12  # English has one of its commonest words among so many
WORD = re.compile(r"[^\W\d_]+")
# The commonest words of English, and of languages with the same letters, that the others have not.
ENGLISH = set(
    WORD.findall(
        "the of and to that it is i for you with are this not but his they from she which were my your "
        "their been who what about them him can have by at there when"
    )
)
OTHERS = set(
    WORD.findall(
        "der das und ist nicht ich ein eine mit dem zu auf für sich wir dass le la les et est une je tu "
        "nous vous dans pour que qui avec el los las es una y en con por mi yo il gli di che non sono per "
        "os um uma não com em meu het een van ik niet voor dat zijn och att det jag är"
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
    return texts | {KEYS: " ".join(mashed)}


def verdict(
    perplexity: float, interval: Sequence[float] | None, landmarks: Sequence[Landmark]
) -> str:
    """Say where a perplexity lies among the landmarks, of which the least surprising comes first.

    Args:
        interval: of the perplexity; where it holds several landmarks, the place is one of many.
    """
    if not math.isfinite(perplexity):
        return "The model gave a part of it no chance at all."
    place = bisect.bisect([mark.perplexity for mark in landmarks], perplexity)
    nearest = min(landmarks, key=lambda mark: abs(math.log(perplexity / mark.perplexity)))
    if abs(math.log(perplexity / nearest.perplexity)) < NEAR:
        said = f"about as surprising as {nearest.name}."
    elif place == 0:
        said = f"more predictable than {landmarks[0].name}."
    elif place == len(landmarks):
        said = f"more surprising than {landmarks[-1].name}."
    else:
        said = f"between {landmarks[place - 1].name} and {landmarks[place].name}."
    low, high = interval or (perplexity, perplexity)
    is_vague = sum(low <= mark.perplexity <= high for mark in landmarks) > 1
    return f"Perhaps {said}" if is_vague else said[0].upper() + said[1:]


def is_foreign(text: str) -> bool:
    """Return whether a text has more of the commonest words of other languages than of English.

    So has one of many words with none of either, and one in other letters.
    """
    words = [word.lower() for word in WORD.findall(text)]
    english, others = (sum(word in known for word in words) for known in (ENGLISH, OTHERS))
    other_letters = bool(words) and not any(
        "a" <= letter <= "z" for word in words for letter in word
    )
    return others > english or other_letters or (english == 0 and len(words) >= MANY_WORDS)
