"""The game: twenty words are guessed, twice, and both players get a perplexity."""

import json
import math
import re

import numpy as np
import pytest
from scipy.stats import t as student
from visitor import Keys, Page, ask_for_motion, patched

from space.page import ROUNDS

GAMES = json.loads(ROUNDS.read_text("utf-8"))
GAPS = 20
MIDDLE = "const r = arguments[0].getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2];"
KEPT = "return JSON.parse(localStorage.getItem('perplexity-sliding-game'))"


@pytest.fixture
def opened(browser, url):
    """Open the page with a fragment behind its address, for somebody whose browser kept some bets or none."""

    def open_page(behind, kept=""):
        browser.get(
            "about:blank"
        )  # else an address that differs behind the # alone is no new visit
        keep = f"localStorage.setItem('perplexity-sliding-game', {json.dumps(kept)})"
        with patched(browser, keep if kept else "localStorage.clear()"):
            return Page(browser, url + behind)

    ask_for_motion(browser, "reduce")
    return open_page


def taps_of(number):
    """Taps on each option, some on two, and some on none."""
    taps = [0] * 6
    taps[number % 6] = 3 if number % 7 == 0 else number % 2
    if number % 5 == 0:
        taps[(number + 1) % 6] = 1
    return taps


def shares(gap, part):
    weights = np.exp(-np.array(gap["five" if part else "whole"]))
    return weights / weights.sum()


def losses(number, part):
    """The loss of player and model at each gap, in nats (2, 20)."""
    yours, its = [], []
    for n, gap in enumerate(GAMES[number - 1][part]["gaps"]):
        weights = 5.0 ** np.array(taps_of(n))
        yours.append(-math.log(weights[gap["answer"]] / weights.sum()))
        its.append(-math.log(shares(gap, part)[gap["answer"]]))
    return np.array([yours, its])


def interval(values):
    margin = student.ppf(0.975, GAPS - 1) * values.std(ddof=1) / math.sqrt(GAPS)
    return [max(1.0, math.exp(values.mean() - margin)), math.exp(values.mean() + margin)]


def is_at(page, number):
    return page.all(".ps-options") and f"{number + 1} of 20" in page.told(".ps-game-count")


def play(page, place_bet):
    """Play a round to its end."""
    for number in range(GAPS):
        page.until(lambda number=number: is_at(page, number))
        place_bet(taps_of(number))


def by_keyboard(page):
    def place_bet(taps):
        page.keys(*[str(n + 1) for n, count in enumerate(taps) for _ in range(count)], Keys.ENTER)

    return place_bet


def press(page, element):
    element.click()


def touch(page, element):
    x, y = page.script(MIDDLE, element)
    for kind, points in (("touchStart", [{"x": x, "y": y}]), ("touchEnd", [])):
        page.browser.execute_cdp_cmd(
            "Input.dispatchTouchEvent", {"type": kind, "touchPoints": points}
        )


def by_pointer(page, act):
    def place_bet(taps):
        for option, count in zip(page.all(".ps-option"), taps):
            for _ in range(count):
                act(page, option)
        act(page, page.one(".ps-bet"))

    return place_bet


def check_numbers(page, number, part):
    cells = page.all(f".ps-game-table tr:nth-child({part + 2}) td")
    for cell, values in zip(cells, losses(number, part), strict=True):
        shown = [float(value) for value in re.findall(r"\d+\.\d+", cell.text)]
        expected = [math.exp(values.mean()), *interval(values)]
        assert shown == pytest.approx(expected, abs=0.0051)


def test_both_rounds_by_keyboard_with_a_reload_in_the_middle(opened):
    page = opened("")
    page.script("arguments[0].click()", page.one("[data-open=game]"))
    page.until(lambda: page.all(".ps-game .ps-main"))
    text = GAMES[0][0]["text"]
    assert text[:60] not in page.told("#ps-game"), "the text is hidden until it is played"
    page.keys(Keys.ENTER)
    place_bet = by_keyboard(page)
    for number in range(7):
        page.until(lambda number=number: is_at(page, number))
        place_bet(taps_of(number))
    page.until(lambda: is_at(page, 7))
    shown = page.told(".ps-game-text")
    assert text.startswith(shown.removesuffix("?").rstrip())
    page.browser.refresh()
    page.until(lambda: is_at(page, 7), "the game does not go on after a reload")
    assert page.told(".ps-game-text") == shown
    for number in range(7, GAPS):
        page.until(lambda number=number: is_at(page, number))
        place_bet(taps_of(number))
    page.until(lambda: page.all(".ps-game-table"))
    check_numbers(page, 1, 0)
    page.script("arguments[0].focus()", page.one(".ps-game .ps-main"))
    page.keys(Keys.ENTER)
    page.until(lambda: is_at(page, 0))
    five = page.told(".ps-game-text").removeprefix("… ").removesuffix("?").split()
    assert len(five) == 5 and " ".join(five) in GAMES[0][1]["text"]
    play(page, place_bet)
    page.until(lambda: len(page.all(".ps-game-table tr")) == 3)
    check_numbers(page, 1, 0)
    check_numbers(page, 1, 1)
    assert len(page.all(".ps-both b")) == 2 * GAPS
    assert page.script(KEPT)["1"][0] == ["".join(map(str, taps_of(n))) for n in range(GAPS)]
    page.keys(Keys.ESCAPE)
    page.until(lambda: "game" not in page.browser.current_url)
    assert not page.one("#ps-game").is_displayed()


def test_a_second_visitor_plays_the_link(opened, url):
    """The same words, and what to beat: the first round by finger, the second by mouse."""
    page = opened("#game=2&beat=1.50-99.00")
    page.until(lambda: page.all(".ps-game .ps-main"))
    assert "1.50" in page.told(".ps-game-beat") and "99.00" in page.told(".ps-game-beat")
    assert GAMES[1][0]["text"][:60] not in page.told("#ps-game")
    page.script("arguments[0].click()", page.one(".ps-game .ps-main"))
    for part, act in enumerate((touch, press)):
        play(page, by_pointer(page, act))
        page.until(lambda part=part: len(page.all(".ps-game-table tr")) == part + 2)
        check_numbers(page, 2, part)
        if not part:
            page.script("arguments[0].click()", page.one(".ps-game .ps-main"))
    told = page.one(".ps-game-body > .ps-game-beat").text
    assert "1.50. You did not." in told and "99.00. You did." in told
    told = page.told(".ps-game-told")
    mine = [f"{math.exp(losses(2, part)[0].mean()):.2f}" for part in (0, 1)]
    assert told.endswith(f"{url}#game=2&beat={'-'.join(mine)}")
    picture = page.script("return decodeURIComponent(arguments[0].src)", page.one("#ps-game img"))
    for shown in [*mine, *(f"{math.exp(losses(2, part)[1].mean()):.2f}" for part in (0, 1))]:
        assert f">{shown}<" in picture


def test_who_has_no_idea_has_a_perplexity_of_six_and_is_not_fooled(opened):
    """It said of even bets: “something” fooled you."""
    page = opened("#game=1", kept=json.dumps({"1": [["000000"] * GAPS, []]}))
    page.until(lambda: page.all(".ps-game-table"))
    assert page.told(".ps-game-sum").startswith("You: 6.00.")
    told = page.told(".ps-game-body")
    assert "fooled the model" in told and "fooled you" not in told and "fooled me" not in told


def test_what_is_kept_and_what_a_link_says_may_make_no_sense(opened):
    """What is kept may have been written by anybody, and a link by anybody else."""
    page = opened("#game=99&beat=<b>-0.1", kept='{"1":[["9",5],7]}')
    page.until(lambda: page.all(".ps-game .ps-main"))
    assert not page.all(".ps-game-beat") and "Text 1 of" in page.told(".ps-game-count")


def test_a_game_that_was_left_open_does_not_come_back(opened):
    """It covered the next text, or the next game, that was opened in the tab."""
    page = opened("#game=1")
    page.until(lambda: "Text 1 of" in page.told(".ps-game-count"))
    page.script("location.hash = 'game=2'")  # loads the page anew
    page.until(lambda: "Text 2 of" in page.told(".ps-game-count"))
    page = opened("")
    page.browser.refresh()
    page.until(lambda: page.labelled("Text"))
    assert not page.all("#ps-game")
