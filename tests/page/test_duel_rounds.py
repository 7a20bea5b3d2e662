"""The rounds of the duel: what its options give away, and that the model's side is the metric's."""

import json
import re
import sys

import numpy as np
import pytest
from scipy.stats import binomtest
from space_models import ROOT
from tokenizers import Tokenizer

from perplexity_sliding import PerplexitySliding
from space import duel_rounds
from space.duel_rounds import APART, GAPS, OPTIONS, Gap, Proposer, find_gaps, is_fit

sys.path.append(str(ROOT / "benchmarks"))

import game

ROUNDS = json.loads(duel_rounds.ROUNDS.read_text("utf-8"))
PLACES = [(one["text"], gap) for one in ROUNDS for gap in [*one["gaps"], *one["more"]]]
HAND = ["lamp", "door", "house", "street", "window", "garden"]
bundled = pytest.mark.skipif(
    not (duel_rounds.MODEL / "model.safetensors").exists(), reason="the bundled model is not there"
)


def read_gap(row):
    return Gap(row["at"], row["options"], row["answer"])


def test_each_round_hides_ten_words_of_a_passage():
    assert {one["language"] for one in ROUNDS} == {"English", "German"}
    passages = {one["title"]: one["text"] for one in duel_rounds.read_passages()}
    assert len(ROUNDS) >= 5 and sum("1891" not in one["title"] for one in ROUNDS) >= 3
    for one in ROUNDS:
        assert passages[one["title"]].startswith(one["text"])
        assert len(one["gaps"]) == GAPS and len(one["more"]) in (0, GAPS)
        places = [gap["at"] for gap in one["gaps"]]
        assert places == sorted(places)
        both = sorted(len(one["text"][: gap["at"]].split()) for gap in [*one["gaps"], *one["more"]])
        assert min(np.diff(both)) >= APART
    for text, gap in PLACES:
        word = gap["options"][gap["answer"]]
        assert re.match(r"\w+", text[gap["at"] :])[0] == word
        assert len(set(gap["options"])) == OPTIONS and all(map(is_fit, gap["options"]))


@pytest.mark.parametrize("word", HAND)
def test_options_do_not_depend_on_the_word_that_came(word):
    others = [f"other{letter}" for letter in "abcdefghijkl"]
    before = "It was in the year, and at last we were near to the"
    seen = []

    def propose(context, number):
        seen.append((context, number))
        return [*HAND, *others]

    gaps = find_gaps(f"{before} {word} of the old man.", propose)
    assert seen == [("we were near to the", OPTIONS * duel_rounds.HANDS)]
    hands = duel_rounds.deal([*HAND, *others], f"{before} ")
    assert [gap.options for gap in gaps] == [hand for hand in hands if word in hand]
    assert [gap.options[gap.answer] for gap in gaps] == [word]


def test_players_who_do_not_read_find_no_more_than_chance():
    """Nor do they get a better perplexity than who has no idea."""
    tokenizer = Tokenizer.from_file(str(game.VOCABULARY))
    places = game.read_places()
    assert len(places) == len(PLACES)
    for name, choose in game.strategies(lambda word: tokenizer.token_to_id(f"Ġ{word}")).items():
        hits = [choose(words, likely) == came for words, likely, came in places]
        if name == "the likeliest":  # which the model alone knows
            assert np.mean(hits) > 2 / OPTIONS
            continue
        test = binomtest(sum(hits), len(hits), 1 / OPTIONS, "greater")
        assert test.pvalue > 0.05, name
        assert game.bet_half(hits) > OPTIONS, name


@bundled
def test_the_models_side_is_the_metrics():
    """As the continuation of the text before, and as the word of the running text."""
    metric = PerplexitySliding()
    for one, row in ((ROUNDS[0], 0), (ROUNDS[4], 5), (ROUNDS[-1], 9)):
        gap = one["gaps"][row]
        [whole], [five] = duel_rounds.score_gaps(one["text"], [read_gap(gap)], metric)
        assert gap["whole"] == pytest.approx(whole, abs=2e-3)
        assert gap["five"] == pytest.approx(five, abs=2e-3)
    gap = min(ROUNDS[0]["gaps"], key=lambda gap: gap["at"])
    word = gap["options"][gap["answer"]]
    before = ROUNDS[0]["text"][: gap["at"]]
    running = metric.compute(
        predictions=[f"{before}{word}"],
        model_id=str(duel_rounds.MODEL),
        add_start_token=False,
        stride=1,
        words=True,
    )
    scores = running["word_scores"][0]
    assert scores["words"][-1] == word
    assert gap["whole"][gap["answer"]] == pytest.approx(scores["surprisal"][-1], abs=2e-3)


@bundled
def test_the_options_are_those_that_the_model_proposes():
    propose = Proposer().propose
    for row in (3, 8):
        text, at = ROUNDS[1]["text"], ROUNDS[1]["gaps"][row]["at"]
        words = propose(duel_rounds.last_words(text[:at]), OPTIONS * duel_rounds.HANDS)
        assert ROUNDS[1]["gaps"][row]["options"] in duel_rounds.deal(words, text[:at])
