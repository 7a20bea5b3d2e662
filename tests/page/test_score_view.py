"""What the page shows of a score: its number in words, its colours and its story."""

import math
import re
from dataclasses import replace

import pytest
import regex
from pages import STORY, pieces_of

from perplexity_sliding.views.markup import number, percent
from perplexity_sliding.views.numbers import most_surprising, odds, story, surprise_words
from perplexity_sliding.views.reading import Reading
from perplexity_sliding.views.segments import cut
from space.card import card
from space.handlers import SCORE_OUTPUTS
from space.intervals import without_thin
from space.jobs import Job
from space.models import BUNDLED
from space.score_view import recipe, score_view
from space.service import Service
from space.settings import Settings
from space.sharing import sentence
from space.token_view import token_perplexity


@pytest.mark.parametrize(
    "share, shown", [(0.41, "41 %"), (0.0153, "1.5 %"), (0.001, "0.1 %"), (0.0009, "< 0.1 %")]
)
def test_a_chance_is_written_in_one_way(share, shown):
    assert percent(share) == shown


def test_a_text_of_one_window_has_its_start_token_once(service):
    scored = service.score("A gull.", Settings(BUNDLED, 64, 16), Job(60))
    assert "start:once" in scored.result["signature"]
    assert "start token once" in recipe(scored)


@pytest.mark.parametrize(
    "value, shown",
    [
        (27.314, "27.31"),
        (1e6, "1,000,000"),
        (0.01234, "0.01234"),
        (math.inf, "∞"),
        (999.96, "1000"),
        (191.0, "191.0"),
        (8.5, "8.500"),
        (999_999_999.0, "999,999,999"),
        (5.88623e23, "5.886 × 10²³"),
        (9.99999e9, "1.000 × 10¹⁰"),
    ],
)
def test_numbers_for_people(value, shown):
    assert number(value) == shown


@pytest.mark.parametrize("text, short", [("a", True), ("Hello world", True), (STORY, False)])
def test_a_few_tokens_have_no_perplexity_and_no_verdict(folders, text, short):
    """“a” had 877,518 and was “unlike anything it was trained on”."""
    scored = Service(folders["bundled"]).score(text, Settings(BUNDLED), Job(60))
    page = score_view(scored)
    assert ("ps-big" not in page) == short == ("Too short for a perplexity" in page)
    assert "unlike anything" not in page
    if short:
        bits = [nll / math.log(2) for nll in scored.tokens["nll"] if nll is not None]
        assert all(f"{value:.1f} bits" in page for value in bits)
        assert page.count("<tr>") == len(bits) and "expected" in page


def test_parts_of_one_character_are_told_apart(folders):
    page = score_view(Service(folders["bundled"]).score("🦜", Settings(BUNDLED), Job(60)))
    parts = regex.findall(r"part (\d+) of (\d+)", page)
    assert [int(k) for k, _ in parts] == list(range(1, page.count("<tr>") + 1)) and len(parts) > 1
    assert {int(n) for _, n in parts} == {len(parts)}


def test_words_of_a_number_that_nobody_can_read(scored):
    huge = replace(scored, result=scored.result | {"word_perplexity": 1.462e53})
    assert "over a million" in score_view(huge) and "10⁵³" not in score_view(huge)


@pytest.mark.parametrize("perplexity, blind", [(258.0, False), (260.0, True), (1e9, True)])
def test_a_perplexity_above_the_vocabulary_is_no_choice_among_tokens(scored, perplexity, blind):
    page = SCORE_OUTPUTS["score"](
        replace(scored, result=scored.result | {"perplexity": perplexity})
    )
    assert ("Worse than guessing blindly among the 259 tokens" in page) == blind
    assert ("equally likely ones" in page) != blind


@pytest.mark.parametrize(
    "interval, parts, shown",
    [
        ((8.0, 79.0), 10, True),
        ((17.41, 70.03), 4, False),
        ((8.0, 79.0), 9, False),
        (None, 0, False),
    ],
)
def test_an_interval_from_few_parts_is_not_shown(scored, interval, parts, shown):
    sample = f"{parts} parts of 1 text" if interval else None
    result = scored.result | {"perplexity": 20.0, "perplexity_interval": interval}
    result = without_thin(result | {"interval_sample": sample})
    page, *others = (show(replace(scored, result=result)) for show in (score_view, sentence, card))
    for view in (page, *others):
        assert ("95 % interval within this text 8.000 to 79.00" in view) == shown
    assert ("No interval: the text is too short" in page) != shown


def test_colours_follow_the_legend(scored):
    page = SCORE_OUTPUTS["text"](scored)
    edges = [0, 1, 3, 6, 10, 15, math.inf]
    text = scored.text
    expected = []
    for segment in cut(text, scored.tokens["offsets"]):
        own = scored.tokens["nll"][segment.first : segment.last + 1]
        bits = sum(own) / math.log(2)
        expected.append(next(n for n in range(6) if edges[n] <= bits < edges[n + 1]))
    assert pieces_of(page)["classes"].split() == [f"b{colour}" for colour in expected]
    assert pieces_of(page)["text"] == text


def test_the_story_is_of_the_most_surprising_word(folders):
    scored = Service(folders["bundled"]).score(STORY, Settings(BUNDLED), Job(60))
    told = story(scored)
    offsets, nll = scored.tokens["offsets"], scored.tokens["nll"]
    losses = {}  # of each word, by its first letter and its last: those of the tokens that touch it
    for word in re.finditer(r"\w+", STORY):
        own = [n for n, (a, b) in enumerate(offsets) if a < word.end() and b > word.start()]
        losses[word.span()] = sum(math.inf if nll[n] is None else nll[n] for n in own)
    (begin, end), loss = max(losses.items(), key=lambda entry: entry[1])
    assert f">{STORY[begin:end]}</span></button>, {odds(loss)}." in told


def test_a_word_of_several_tokens_surprises_as_their_sum():
    """The page named a word, and the odds of one piece of it."""
    text = "a Josiah b, c"
    tokens = {
        "offsets": [[0, 1], [1, 5], [5, 7], [7, 8], [8, 10], [10, 11], [11, 13]],
        "nll": [None, 3.0, 8.0, 2.0, 12.0, 1.0, 9.0],
        "tokens": ["a", " Jos", "ia", "h", " b", ",", " c"],
        "alternatives": [[("h", 0.1)]] * 7,
    }
    reading = Reading(text, tokens, {}, "model")
    told = story(reading)
    assert f">Josiah</span></button>, {odds(13.0)}." in told and "<em>Josh…</em>" in told
    assert 'data-piece="2"' in told, "it leads to its most surprising piece"
    assert surprise_words(reading) == f"Most surprising word: “Josiah”, {odds(13.0)}"
    assert [word.word for word in most_surprising(reading, 9)] == ["Josiah", "b", "c"]
    tokens["nll"][3] = None
    assert ">b</span>" in story(reading), "no word that was scored in part"


def test_a_character_of_several_tokens_surprises_as_their_sum():
    """Left out, the most surprising word was rarer than an average one."""
    text = "sat 猫x"
    tokens = {
        "offsets": [[0, 3], [3, 5], [4, 5], [4, 5], [5, 6]],
        "nll": [6.0, 3.0, 4.0, 5.0, 1.0],
        "tokens": ["sat", " \ufffd", "\ufffd", "\ufffd", "x"],
        "alternatives": [[(" dog", 0.1)]] * 5,
    }
    told = story(Reading(text, tokens, {}, "model"))
    assert "猫" in told and odds(3.0 + 4.0 + 5.0) in told
    assert "expected" not in told, "the likeliest token is a part of a character"
    assert ">猫</span>" in told, "words have no end there"
    tokens["nll"][0] = 13.0
    told = story(Reading(text, tokens, {}, "model"))
    assert f"</button>, {odds(13.0)}." in told and "expected “<em>dog</em>”" in told


@pytest.mark.parametrize(
    "begins, expected, said",
    [("ia", "h", "Josh…"), ("ia", ", ", ","), ("ia", " the", "the"), ("Jos", "Al", "Al")],
    ids=["a beginning", "a sign", "a word", "at its beginning"],
)
def test_what_was_expected_within_a_word_is_said_with_its_beginning(begins, expected, said):
    text = "“Josian"
    offsets = [[0, 1], [1, 4], [4, 6], [6, 7]]
    place = offsets.index([text.index(begins), text.index(begins) + len(begins)])
    tokens = {
        "offsets": offsets,
        "nll": [9.0 if number == place else 1.0 for number in range(len(offsets))],
        "tokens": [text[a:b] for a, b in offsets],
        "alternatives": [[(expected, 0.1)]] * len(offsets),
    }
    told = story(Reading(text, tokens, {}, "model"))
    assert f"The model expected “<em>{said}</em>”." in told
    assert '<span class="b5">' in told  # the colour of 11 nats, 16 bits


@pytest.mark.parametrize(
    "one_in, said",
    [
        *[(1.2, "1 in 1"), (53_318, "1 in 53,300"), (812.4, "1 in 812")],
        *[
            (999_999_900, "1 in 1,000,000,000"),
            (4.42e9, "1 in 4.4 billion"),
            (61.4e12, "1 in 61 trillion"),
        ],
        (999.9e9, "1 in 1,000 billion"),
        (3e15, "less likely than 1 in 1,000 trillion"),
    ],
)
def test_odds_for_people(one_in, said):
    assert said in odds(math.log(one_in))
    assert "no chance" in odds(math.inf)


@pytest.mark.parametrize(
    "protocol, grows",
    [("sliding", True), ("gptq", True), ("transformers-docs", False), ("yarn", False)],
)
def test_a_perplexity_grows_with_the_windows_only_where_it_is_of_the_tokens(
    service, protocol, grows
):
    """Play ended at another number than the page's."""
    scored = service.score(STORY, Settings(BUNDLED, 64, protocol=protocol), Job(60))
    assert token_perplexity(scored) == (scored.result["perplexity"] if grows else None)
