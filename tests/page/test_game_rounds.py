"""The rounds of the game: what its options give away, and that the model's side is the metric's."""

import json
import re

import numpy as np
import pytest
from scipy.stats import binomtest
from space_models import ROOT

from perplexity_sliding import PerplexitySliding
from space import game_rounds
from space.game_rounds import APART, GAPS, OPTIONS, WINDOW, deal, find_gaps, is_fit, last_words

GAMES = json.loads(game_rounds.ROUNDS.read_text("utf-8"))
ROUNDS = [one for game in GAMES for one in game]
PLACES = [(one["text"], gap) for one in ROUNDS for gap in one["gaps"]]


def chances(surprisals):
    """The chance of each option, given that one of them came."""
    weights = np.exp(-np.array(surprisals))
    return weights / weights.sum()


def test_each_round_hides_twenty_words_of_a_passage():
    assert len(GAMES) >= 3 and all(len(game) == 2 for game in GAMES)
    passages = game_rounds.PASSAGES.read_text("utf-8")
    for one in ROUNDS:
        assert one["text"] in passages and len(one["gaps"]) == GAPS
        numbers = sorted(len(one["text"][: gap["at"]].split()) for gap in one["gaps"])
        assert min(np.diff(numbers)) >= APART
    for text, gap in PLACES:
        word = gap["options"][gap["answer"]]
        assert re.search(r"\S+", text[gap["at"] :])[0] == word
        assert len(set(gap["options"])) == OPTIONS and all(map(is_fit, gap["options"]))


def test_five_words_before_a_gap_show_no_other_gap():
    """In the second round, which asks in another order, they would show what came there."""
    for _, second in GAMES:
        places = [gap["at"] for gap in second["gaps"]]
        assert places != sorted(places)
        hidden = {len(second["text"][:at].split()) for at in places}
        for number in hidden:
            assert not hidden & set(range(number - WINDOW, number))


def test_the_options_do_not_depend_on_the_word_that_came():
    """The same hand, whichever of its words is the passage's."""
    hand = deal(["lamp", "door", "house", "street", "window", "garden"], "seed")[0]
    before = "She had never before in all of her long life been so near to the"

    def propose(context, number):
        assert context == "so near to the" or context == "be so near to the" or number
        return sorted(hand)

    for word in hand:
        gaps = find_gaps(f"{before} {word} as then.", lambda context, number: sorted(hand))
        assert [gap.options for gap in gaps if gap.at == len(before) + 1] == [
            gaps[-1].options
        ]
