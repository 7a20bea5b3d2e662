"""The duel: ten words are guessed against the model, by mouse, finger and keyboard, and by a friend."""

import json
import math
import time

import numpy as np
import pytest
from visitor import BOX, Keys, Page, patched

from space.page import ROUNDS

PASSAGES = json.loads(ROUNDS.read_text("utf-8"))
GAPS = 10
KEPT = "perplexity-sliding-duel"


@pytest.fixture
def opened(browser, url):
    """Open the page with a fragment behind its address, for somebody whose browser kept some bets or none."""

    def open_page(behind, kept=None):
        keep = (
            f"localStorage.setItem('{KEPT}', {json.dumps(kept)})"
            if kept
            else "localStorage.clear()"
        )
        with patched(browser, keep):
            return Page(browser, url + behind)

    return open_page


def taps_of(number):
    """Taps on each option, some on two, and some on none."""
    taps = [0] * 6
    taps[number % 6] = 3 if number % 7 == 0 else number % 2
    if number % 5 == 0:
        taps[(number + 1) % 6] = 1
    return taps


def shares_of(passage, known="whole"):
    """What player and model gave to the word that came, at each gap (2, 10)."""
    shares = []
    for number, gap in enumerate(passage["gaps" if known == "whole" else "more"]):
        weights = 5.0 ** np.array(taps_of(number)), np.exp(-np.array(gap[known]))
        shares.append([own[gap["answer"]] / own.sum() for own in weights])
    return np.array(shares).T


def by_keyboard(page, taps):
    page.keys(*[str(n + 1) for n, count in enumerate(taps) for _ in range(count)], Keys.ENTER)


def by_mouse(page, taps):
    for option, count in zip(page.all(".option"), taps):
        for _ in range(count):
            option.click()
    page.one(".go").click()


def by_finger(page, taps):
    for option, count in zip(page.all(".option"), taps):
        for _ in range(count):
            page.touch(option)
    page.touch(page.one(".go"))


def go_on(page):
    """Press the button that goes on, and has the focus, until it is no second press of the one before."""
    page.until(lambda: page.keys(Keys.ENTER) or not page.all(".bars"))


def bet(page, place_bet, number):
    if not any(taps_of(number)):
        time.sleep(0.6)  # else it is the second press of the one before
    place_bet(page, taps_of(number))
    page.until(lambda: page.all(".bars"))


def play(page, place_bet, begin=0, end=GAPS):
    for number in range(begin, end):
        at = f"{number + 1} of 10"
        page.until(lambda at=at: page.all(".options") and at in page.told(".count"))
        bet(page, place_bet, number)
        go_on(page)
    page.until(lambda: end < GAPS or page.all(".squares"))


def check_result(page, number, known="whole"):
    you, model = shares_of(PASSAGES[number - 1], known)
    known = np.maximum(you, model) > 1 / 6 + 1e-9  # else a word is nobody's
    yours, its = known & (you > model), known & (you <= model)
    won, lost = int(yours.sum()), int(its.sum())
    heading = page.told("#duel h3")
    assert str(max(won, lost)) in heading or won == lost
    assert ("You beat" in heading, "machine wins" in heading) == (won > lost, won < lost)
    signs = np.where(yours, "✓", np.where(its, "×", "–"))
    assert page.told(".squares [role]") == "".join(signs)
    assert page.one(".squares [role]").get_attribute("aria-label").count("yours") == won
    told = page.told("#duel .body > p:not(.row, .beat)")
    for shares in (you, model):
        assert f"{math.exp(-np.log(shares).mean()):.2f}" in told
    return won


def test_to_the_end_by_keyboard_with_a_reload_in_the_middle_and_five_words(opened):
    page = opened("#duel=2")
    page.until(lambda: page.all(".options"))
    passage = PASSAGES[1]
    hidden = passage["text"][passage["gaps"][0]["at"] :].strip()
    assert hidden[:30] not in page.told("#duel"), "the text is hidden until it is played"
    play(page, by_keyboard, end=4)
    page.until(lambda: "5 of 10" in page.told(".count"))
    shown = page.told(".passage")
    assert passage["text"].startswith(shown.removesuffix("?").rstrip())
    page.browser.refresh()
    page.until(lambda: page.all("#duel") and "5 of 10" in page.told(".count"))
    assert page.told(".passage") == shown
    play(page, by_keyboard, begin=4)
    check_result(page, 2)
    next(one for one in page.all("#duel button") if one.text.startswith("Ten more")).click()
    page.until(lambda: page.all(".options"))
    five = page.told(".passage").removeprefix("… ").removesuffix("?").split()
    assert len(five) == 5 and " ".join(five) in passage["text"]
    play(page, by_keyboard)
    check_result(page, 2, "five")


def test_bars_show_both_bets_and_the_longer_one_wins(opened):
    page = opened("#duel=1")
    page.until(lambda: page.all(".options"))
    page.click(".go")
    assert page.all(".options"), "the second press of two is no answer"
    before = page.script(BOX, page.one("#duel")), page.script(BOX, page.one(".go"))
    by_mouse(page, taps_of(0))
    after = page.script(BOX, page.one("#duel")), page.script(BOX, page.one(".go"))
    assert after == before, "nothing grows, and who goes on presses the same place"
    page.keys(Keys.ENTER)
    assert page.all(".bars"), "the second press of two is none"
    you, model = shares_of(PASSAGES[0])
    widths = page.script(
        "return [...document.querySelectorAll('.came .bar i')].map((bar) => parseFloat(bar.style.width))"
    )
    assert widths == pytest.approx([100 * you[0], 100 * model[0]], abs=0.1)
    score = page.told(".score")
    assert max(you[0], model[0]) < 1 / 6 and "no one’s" in page.told(".verdict")
    assert score == "You 0 · the machine 0" and len(page.all(".progress .nobody")) == 1
    word = PASSAGES[0]["gaps"][0]["options"][PASSAGES[0]["gaps"][0]["answer"]]
    assert word in page.told(".verdict") and word in page.told(".came")


@pytest.mark.parametrize("place_bet", [by_mouse, by_finger])
def test_a_second_player_plays_the_same_words(opened, url, place_bet):
    page = opened("#duel=3&beat=4")
    page.until(lambda: page.all(".options"))
    assert "won four of ten" in page.told(".beat")
    page.keys(Keys.ESCAPE)
    page.until(lambda: page.script("return location.hash") == "", "its link stays in the address")
    assert not page.all("#duel") and page.script("return document.activeElement.id") == "open-duel"
    page.click("#open-duel")  # leads back to the friend's words
    page.until(lambda: page.all(".options"))
    assert "won four of ten" in page.told(".beat")
    play(page, place_bet)
    won = check_result(page, 3)
    assert "won four" in page.told("#duel .body .beat")
    assert ("fewer than you" in page.told(".beat")) == (won > 4)
    page.script("navigator.clipboard.writeText = async (words) => { window.copied = words }")
    page.until(lambda: page.all("#duel .row .main"))
    next(one for one in page.all("#duel button") if one.text == "Copy the message").click()
    copied = page.until(lambda: page.script("return window.copied"))
    assert copied.endswith(f"{url}#duel=3&beat={won}")
    assert copied.count("🟦") == won and sum(map(copied.count, "🟦🟧⬜")) == GAPS


def test_what_is_kept_and_what_a_link_says_may_make_no_sense(opened):
    page = opened("#duel=99&beat=<b>1", kept='{"1-whole": ["9", 5], "2-whole": 7}')
    page.until(lambda: page.all(".options"))
    assert not page.all(".beat")
    titles = [passage["title"].split(",")[0] for passage in PASSAGES]
    assert any(title in page.told("#duel .body") for title in titles)
