"""The first screen: a window moves over a line of a story, and its numbers are the metric's."""

import time

import pytest
from visitor import ActionChains, Keys, Page, ask_for_motion, start_browser

from space.hero_view import LINE

LIT = ".ps-cell b[class^=b]"


@pytest.fixture
def page(browser, url):
    """The page, freshly opened, in motion."""
    ask_for_motion(browser, "no-preference")
    return Page(browser, url)


def measured(metric, bundled, window, stride):
    """What the metric says of the picture's line."""
    return metric.compute(
        predictions=[LINE],
        model_id=bundled,
        max_length=window,
        stride=stride,
        add_start_token="once",
    )


def stop(page):
    """Let the picture stand still, with its whole line scored."""
    play = page.one("[data-hero=play]")
    if play.text == "Pause":
        page.script("arguments[0].click()", play)


def turn(page, name, *keys):
    """Press keys on a handle of the picture."""
    page.script("arguments[0].focus()", page.labelled(f"Picture: {name.lower()}"))
    page.keys(*keys)


def value(page, name):
    return int(page.labelled(f"Picture: {name.lower()}").get_attribute("aria-valuenow"))


def test_the_picture_moves_and_can_be_paused(page):
    lefts = set()
    for _ in range(12):
        lefts.add(page.one(".ps-pane").get_attribute("style").split("width")[0])
        time.sleep(0.4)
    assert len(lefts) > 1
    assert page.all(LIT)
    stop(page)
    before = page.one(".ps-film").get_property("innerHTML")
    time.sleep(1.5)
    assert page.one(".ps-film").get_property("innerHTML") == before


def test_the_picture_rests_while_it_is_out_of_sight(page):
    def scored():
        return page.one(".ps-film").get_property("innerHTML")

    page.script("window.scrollTo(0, document.body.scrollHeight)")
    assert page.script(
        "return document.querySelector('.ps-film').getBoundingClientRect().bottom < 0"
    )
    time.sleep(3)  # the longest that a frame stands
    before = scored()
    time.sleep(1.5)
    assert scored() == before
    assert page.one("[data-hero=play]").get_property("textContent") == "Pause"
    page.script("window.scrollTo(0, 0)")
    page.until(lambda: scored() != before)


@pytest.mark.parametrize("window, stride", [(12, 4), (8, 7), (4, 1), (24, 10)])
def test_the_pictures_numbers_are_the_metrics(page, metric, bundled, window, stride):
    stop(page)
    turn(page, "Window", Keys.HOME, *[Keys.ARROW_RIGHT] * (window - 4))
    turn(page, "Stride", Keys.HOME, *[Keys.ARROW_RIGHT] * (stride - 1))
    assert (value(page, "Window"), value(page, "Stride")) == (window, stride)
    result = measured(metric, bundled, window, stride)
    assert float(page.one(".ps-so-far").text) == pytest.approx(result["perplexity"], rel=1e-3)
    assert int(page.one(".ps-read").text) == result["num_forward_tokens"]
    assert f"of {result['num_windows']}" in page.one(".ps-caption").text
    assert len(page.all(LIT)) == result["num_tokens"]


def test_the_handles_are_dragged(page):
    stop(page)
    before = value(page, "Window"), value(page, "Stride")
    for name, move in (("Window", 90), ("Stride", 60)):
        time.sleep(0.6)  # a slide
        handle = page.labelled(f"Picture: {name.lower()}")
        ActionChains(page.browser).drag_and_drop_by_offset(handle, move, 0).perform()
        stop(page)  # it plays on after a drag
    assert value(page, "Window") > before[0] and value(page, "Stride") > before[1]


def test_the_introductions_words_point_at_the_picture(page):
    for word in ("window", "stride", "context"):
        ActionChains(page.browser).move_to_element(page.one(f"[data-term={word}]")).perform()
        page.until(lambda word=word: page.all(f".ps-hero.ps-show-{word}"))


@pytest.mark.parametrize("phone", [False, True])
def test_the_picture_and_the_button_are_on_the_first_screen(url, tmp_path, phone):
    browser = start_browser(tmp_path / "profile", phone=phone, size=(1366, 768 + 87))
    try:
        page = Page(browser, url)
        for part in (".ps-hero", "#score"):
            bottom = page.one(part).rect["y"] + page.one(part).rect["height"]
            assert bottom <= (844 if phone else 768)
        pane = page.one(".ps-pane").rect
        assert pane["x"] >= 0 and pane["x"] + pane["width"] <= page.script("return innerWidth") + 2
    finally:
        browser.quit()


def test_the_picture_stands_still_for_those_who_ask_for_it(url, tmp_path):
    browser = start_browser(tmp_path / "profile", flags=["--force-prefers-reduced-motion"])
    try:
        page = Page(browser, url)
        page.until(lambda: page.one("[data-hero=play]").text == "Play")
        before = page.one(".ps-film").get_property("innerHTML")
        time.sleep(1.5)
        assert page.one(".ps-film").get_property("innerHTML") == before
        assert page.all(LIT)
    finally:
        browser.quit()
