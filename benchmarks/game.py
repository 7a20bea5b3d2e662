"""Measure the score of players who do not read: the options must not reveal the actual word.

    python benchmarks/game.py

prints, for the rounds that ship with the page, how often each way of choosing finds the word that came
and the perplexity of a player who always bets half on that choice; and the same for options that are
the word that came and the five likeliest others, which is how such games are usually made.
"""

import json
import math
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

ROOT = Path(__file__).resolve().parent.parent
ROUNDS = ROOT / "space" / "duel.json"
VOCABULARY = ROOT / "demo_model" / "tokenizer.json"
HALF = 0.5  # what one tap puts on an option of six
OPTIONS = 6
HANDS = 25
DRAWS = 20_000
ENDLESS = 10**9  # rarer than any token: a word of several


def chances(surprisals: Sequence[float]) -> np.ndarray:
    """Return the probability of each option (N,), given that one of them is the actual word."""
    weights = np.exp(np.min(surprisals) - np.asarray(surprisals))
    return weights / weights.sum()


def strategies(token_of: Callable[[str], int]) -> dict[str, Callable[[Sequence[str], list], int]]:
    """Return strategies: functions of the options and their probabilities that return an index.

    Args:
        token_of: the number of a word's token; the tokenizer learned frequent words first. None for a
            word of several tokens.
    """
    return {
        "the first": lambda words, likely: 0,
        "the rarest": lambda words, likely: int(
            np.argmax([token_of(word) or ENDLESS for word in words])
        ),
        "the longest": lambda words, likely: int(np.argmax([len(word) for word in words])),
        "the oddest": lambda words, likely: int(np.argmin(likely)),
        "the likeliest": lambda words, likely: int(np.argmax(likely)),
    }


def read_places() -> list[tuple[list[str], np.ndarray, int]]:
    """Return the options, the model's probabilities and the index of the actual word of all gaps."""
    return [
        (gap["options"], chances(gap[known]), gap["answer"])
        for passage in json.loads(ROUNDS.read_text("utf-8"))
        for gaps, known in ((passage["gaps"], "whole"), (passage["more"], "five"))
        for gap in gaps
    ]


def perplexity(bets: Sequence[float]) -> float:
    """Return the perplexity of bets on the actual words."""
    return math.exp(-np.mean(np.log(bets)))


def bet_half(hits: Sequence[bool]) -> float:
    """Return the perplexity of a player who bets half on each choice and the rest on the others."""
    return perplexity([HALF if hit else (1 - HALF) / (OPTIONS - 1) for hit in hits])


def draw(weights: np.ndarray, seed: int, usual: bool) -> list[tuple[list[int], np.ndarray, int]]:
    """Draw options from a known distribution over words, the most likely first.

    Args:
        weights: the chance of each word (HANDS * OPTIONS,).
        usual: whether the options are the word that came and the likeliest others, instead of a hand
            that was dealt before.

    Returns:
        for each draw the options, their chances and the index of the word that came.
    """
    rng, drawn = random.Random(seed), []
    words = list(range(len(weights)))
    for came in rng.choices(words, weights.tolist(), k=DRAWS):
        if usual:
            hand = [came, *[word for word in words if word != came][: OPTIONS - 1]]
            rng.shuffle(hand)
        else:
            dealt = rng.sample(words, len(words))
            first = dealt.index(came) // OPTIONS * OPTIONS
            hand = dealt[first : first + OPTIONS]
        drawn.append((hand, weights[hand] / weights[hand].sum(), hand.index(came)))
    return drawn


def main() -> None:
    """Print the tables."""
    tokenizer = Tokenizer.from_file(str(VOCABULARY))
    places = read_places()
    print(f"{len(places)} gaps, chance finds {1 / OPTIONS:.1%}")
    for name, choose in strategies(lambda word: tokenizer.token_to_id(f"Ġ{word}")).items():
        hits = [choose(words, likely) == came for words, likely, came in places]
        print(f"{name:15} {np.mean(hits):6.1%}  perplexity {bet_half(hits):.2f}")
    print(f"{'the bundled model':15} perplexity {perplexity([p[n] for _, p, n in places]):.2f}")
    zipf = 1 / np.arange(1, HANDS * OPTIONS + 1)
    for usual in (False, True):
        drawn = draw(zipf / zipf.sum(), 0, usual)
        odd = np.mean([np.argmin(likely) == came for _, likely, came in drawn])
        bets = perplexity([likely[came] for _, likely, came in drawn])
        entropy = math.exp(np.mean([-likely @ np.log(likely) for _, likely, _ in drawn]))
        kind = "the word that came and the likeliest" if usual else "a hand that was dealt before"
        print(f"{kind}: the oddest {odd:.1%}; betting the truth {bets:.2f}, promised {entropy:.2f}")


if __name__ == "__main__":
    main()
