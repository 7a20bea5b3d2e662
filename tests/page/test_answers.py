"""What the page is told of a score: its number and ±, the colours, the most surprising word, the text."""

import math
from dataclasses import replace

import numpy as np
import pytest
from pages import MANY, STORY
from scipy import stats

from perplexity_sliding.views import Reading
from perplexity_sliding.views.text import most_surprising, number, odds
from space.answers import (
    FOREIGN,
    SHORT,
    UNKNOWN,
    averages_tokens,
    interval_of,
    recipe,
    score_answer,
    text_data,
    worst_word,
)
from space.jobs import Job
from space.landmarks import KEYS, LANGUAGE, Landmark
from space.models import BUNDLED
from space.service import Service
from space.settings import Settings

MARKS = [Landmark("a novel", 40.0), Landmark("the news", 120.0)]


def scored_losses(scored):
    return np.array([nll for nll in scored.tokens["nll"] if nll is not None])


def test_a_number_from_the_first_words_with_the_interval_of_its_tokens(folders):
    scored = Service(folders["bundled"]).score("Hello big world", Settings(BUNDLED), Job(60))
    losses = scored_losses(scored)
    assert 2 <= len(losses) < 20
    low, high = np.exp(stats.t.interval(0.95, len(losses) - 1, losses.mean(), stats.sem(losses)))
    answer = score_answer(scored, MARKS)
    assert answer["perplexity"] == pytest.approx(math.exp(losses.mean()))
    assert answer["interval"] == pytest.approx([max(1.0, low), high])


def test_a_long_text_has_the_interval_of_the_metric(service):
    scored = service.score(STORY * 2, Settings(BUNDLED, 64, 32), Job(60))
    assert scored.result["perplexity_interval"] is not None
    assert interval_of(scored) == scored.result["perplexity_interval"]


@pytest.mark.parametrize("text, protocol", [("a", "sliding"), (STORY[:300], "transformers-docs")])
def test_no_interval_where_there_can_be_none(service, text, protocol):
    settings = Settings(BUNDLED, 64, protocol=protocol, start="automatic")
    scored = service.score(text, settings, Job(60))
    assert len(scored_losses(scored)) == 1 or not averages_tokens(scored)
    assert interval_of(scored) is None


def test_the_text_is_scored_as_it_is_given(service, metric):
    """Line ends of Windows became those of Unix in silence: 62.61 for 403.27."""
    text = "One line.\r\nAnother.\r"
    scored = service.score(text, Settings(BUNDLED, 64, 16), Job(60))
    model, tokenizer = scored.loaded.model, scored.loaded.tokenizer
    expected = metric.compute(predictions=[text], model=model, tokenizer=tokenizer, stride=16)
    assert scored.text == text
    assert scored.result["perplexity"] == pytest.approx(expected["perplexity"], rel=1e-9)


def test_a_context_is_shown_and_not_coloured(service):
    settings = Settings(BUNDLED, 64, 16, context="Before it 👩‍👩‍👧.")
    scored = service.score(" " + MANY, settings, Job(60))
    data = text_data(scored)
    assert data["before"] == len(settings.context.encode("utf-16-le")) // 2
    reached = 0
    for length, shown in zip(data["pieces"]["lengths"], data["pieces"]["classes"].split()):
        assert (shown == "out") == (reached < data["before"])
        reached += length
    assert f"after {scored.num_context_tokens} tokens of context" in recipe(scored)


READ = {
    "offsets": [[0, 1], [1, 5], [5, 7], [7, 8], [8, 10], [10, 11], [11, 13]],
    "nll": [None, 3.0, 8.0, 2.0, 12.0, 1.0, 9.0],
    "tokens": ["a", " Jos", "ia", "h", " b", ",", " c"],
    "alternatives": [[("h", 0.1)]] * 7,
}


def test_words_surprise_per_piece_and_the_page_shows_that_of_the_least_chance():
    """By tokens, an emoji's bytes lost."""
    reading = Reading("a Josiah b, c", READ, {}, "model")
    assert [word.word for word in most_surprising([reading], 9)] == ["b", "c", "Josiah"]
    told = worst_word(reading)
    assert (told["word"], told["piece"], told["odds"]) == ("Josiah", 2, odds(13.0))
    tokens = READ | {"nll": [None, 13.0, 12.0, 14.0, 12.0, 1.0, 9.0]}
    told = worst_word(Reading("a Josiah b, c", tokens, {}, "model"))
    assert (told["word"], told["odds"]) == ("Josiah", odds(39.0)), "its odds are of all of it"
    assert told["piece"] == 3, "it leads to its most surprising piece"
    tokens["nll"][3] = None
    assert worst_word(Reading("a Josiah b, c", tokens, {}, "model"))["word"] == "b"


def test_a_character_of_several_tokens_surprises_as_their_sum():
    tokens = {
        "offsets": [[0, 3], [3, 5], [4, 5], [4, 5], [5, 6]],
        "nll": [3.0, 3.0, 4.0, 5.0, 1.0],
        "tokens": ["sat", " \ufffd", "\ufffd", "\ufffd", "x"],
        "alternatives": [[(" dog", 0.1)]] * 5,
    }
    told = worst_word(Reading("sat 猫x", tokens, {}, "model"))
    assert (told["word"], told["odds"]) == ("猫", odds(3.0 + 4.0 + 5.0))
    assert told["expected"] is None, "the likeliest token is a part of a character"


@pytest.mark.parametrize(
    "guesses, said",
    [
        (["se", ",", " old", " Al"], "old"),
        (["se", " Al", " old"], "old"),
        (["se", " Al"], None),
        (["se", "“"], None),
    ],
)
@pytest.mark.parametrize("worst", [1, 2])
def test_a_new_word_is_expected_in_the_place_of_the_whole_word(guesses, said, worst):
    """It expected “These” after “The”, and the word was half of one."""
    text, offsets = "The Josian", [[0, 3], [3, 7], [7, 10]]
    tokens = {
        "offsets": offsets,
        "nll": [9.0 if number == worst else 1.0 for number in range(3)],
        "tokens": [text[a:b] for a, b in offsets],
        "alternatives": [[("x", 0.1)], [(guess, 0.1) for guess in guesses], [("h", 0.1)]],
    }
    told = worst_word(Reading(text, tokens, {}, "model"))
    assert (told["word"], told["expected"]) == ("Josian", said)


def test_a_word_with_an_apostrophe_is_whole_and_an_emoji_is_one():
    text, offsets = "I didn’t 🎉", [[0, 1], [1, 6], [6, 7], [7, 8], [8, 10], [9, 10], [9, 10]]
    tokens = {
        "offsets": offsets,
        "nll": [1.0, 8.0, 7.0, 9.0, 6.0, 1.0, 2.0],
        "tokens": [text[a:b] for a, b in offsets],
        "alternatives": [[("x", 0.1)]] * len(offsets),
    }
    words = most_surprising([Reading(text, tokens, {}, "model")], 9)
    assert [word.word for word in words] == ["🎉", "didn’t", "I"]


@pytest.mark.parametrize(
    "protocol, averages",
    [("sliding", True), ("gptq", True), ("transformers-docs", False), ("yarn", False)],
)
def test_only_a_mean_over_tokens_has_an_interval_over_them(service, protocol, averages):
    scored = service.score(STORY, Settings(BUNDLED, 64, protocol=protocol), Job(60))
    assert averages_tokens(scored) == averages


def test_what_has_no_end_is_a_number_for_json(scored):
    endless = replace(scored, result=scored.result | {"perplexity": math.inf})
    answer = score_answer(endless, MARKS)
    assert answer["perplexity"] == 1e9 and "no chance at all" in answer["verdict"]


def test_another_language_has_no_place_on_the_scale(service):
    """Its number may be near that of any landmark."""
    scored = service.score(
        "Der Zug kommt heute nicht, und wir warten auf ihn.", Settings(BUNDLED), Job(60)
    )
    answer = score_answer(scored, [Landmark(LANGUAGE, 2.0)])
    assert answer["verdict"] == FOREIGN and answer["placed"]
    answer = score_answer(scored, [Landmark(LANGUAGE, 1e9)])
    assert answer["verdict"].startswith(FOREIGN) and not answer["placed"]


@pytest.mark.parametrize("repeats, said", [(1, UNKNOWN), (9, "More surprising than random keys.")])
def test_a_short_text_is_not_called_random_keys(service, repeats, said):
    scored = service.score("email my boss " * repeats, Settings(BUNDLED), Job(60))
    assert score_answer(scored, [Landmark(KEYS, 2.0)])["verdict"] == said


def test_a_few_words_are_not_compared(service):
    scored = service.score("Hi", Settings(BUNDLED), Job(60))
    assert score_answer(scored, [Landmark("a novel", 1e9)])["verdict"] == SHORT


def test_numbers_and_odds_for_people():
    numbers = [(27.314, "27.31"), (1e6, "1,000,000"), (0.01234, "0.01234"), (999.96, "1000")]
    for value, shown in [*numbers, (8.5, "8.500"), (5.88623e23, "5.886 × 10²³"), (math.inf, "∞")]:
        assert number(value) == shown
    rare = [(4.42e9, "1 in 4.4 billion"), (3e15, "less likely than 1 in 1,000 trillion")]
    for one_in, said in [(1.2, "1 in 1"), (53_318, "1 in 53,300"), (812.4, "1 in 812"), *rare]:
        assert said in odds(math.log(one_in))
    assert "no chance" in odds(math.inf)
