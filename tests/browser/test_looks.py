"""What everybody can read and reach: contrast, names, focus, a phone's width, zoom, forced colours."""

import importlib.util
import os
import time
from pathlib import Path

import pytest
from visitor import BOX, DESK, PHONE, Keys, Page, patched

# Deque's script, which axe-core-python brings; $AXE names another one, such as a newer one of npm's axe-core.
PACKAGE = importlib.util.find_spec("axe_core_python")
AXE = os.environ.get("AXE") or (PACKAGE and Path(PACKAGE.origin).with_name("axe.min.js"))
FAULTS = """
const done = arguments[0], told = ({ id, nodes }) => nodes.map(({ html }) => `${id}: ${html.slice(0, 120)}`);
axe.run(document, {resultTypes: ["violations"]}).then(({ violations }) => done(violations.flatMap(told)));
"""

# Controls that a finger of 44 pixels does not hit, but for words and handles in a text.
SMALL = """
const small = [];
for (const control of document.querySelectorAll("button, a[href], input, select, summary, [role=slider]")) {
  if (!control.checkVisibility({visibilityProperty: true}) || control.matches(".ps-mark, .handle")) continue;
  const { width, height } = (control.closest(".ps-choice label") ?? control).getBoundingClientRect();
  if (Math.min(width, height) < 43.5) small.push(`${control.tagName} ${control.id || control.textContent.trim()} ${width}x${height}`);
}
return small;
"""
OPEN_ALL = "for (const one of document.querySelectorAll('#questions > details')) one.open = true"
FILLED = (
    "return ['memory', 'tools', 'models'].every((id) => document.querySelector(`#${id} .ps-view`))"
)


def test_the_page_follows_the_systems_theme(browser, url):
    page = Page(browser, url, prefers_color_scheme="dark")
    assert page.script("return document.body.classList.contains('dark')")


def test_colours_that_say_something_outlive_those_of_a_system(browser, url):
    page = Page(browser, url, forced_colors="active")
    colour = "return getComputedStyle(document.querySelector(arguments[0])).backgroundColor"
    ground = page.script("return getComputedStyle(document.body).backgroundColor")
    assert page.script(colour, "#mirror .b5") not in (ground, "rgba(0, 0, 0, 0)")


def test_the_keyboard_reaches_every_control_and_shows_where_it_is(page):
    stops = []
    for _ in range(6):
        page.keys(Keys.TAB)
        stops.append(
            page.script("return document.activeElement.id || document.activeElement.className")
        )
        outline = "const { outlineStyle, outlineWidth } = getComputedStyle(document.activeElement); return [outlineStyle, outlineWidth]"
        assert page.script(outline) == ["solid", "3px"], stops
    assert stops[:4] + stops[5:] == ["sample", "text", "twice", "open-duel", "open-share"]
    assert stops[4].startswith("word")


def test_a_finger_hits_every_control_and_nothing_scrolls_sideways(phone):
    def check(part):
        assert not phone.script(SMALL), part
        assert phone.script("return document.documentElement.scrollWidth") <= PHONE["width"], part

    check("first")
    phone.script(OPEN_ALL)
    phone.until(lambda: phone.script(FILLED))
    check("questions")
    phone.script("document.getElementById('open-share').click()")
    phone.until(lambda: phone.all("#share img"))
    check("share")
    phone.keys(Keys.ESCAPE)
    phone.script("localStorage.clear(); document.getElementById('open-duel').click()")
    phone.until(lambda: phone.all(".option"))
    check("duel")


def test_a_phone_shows_words_number_and_buttons_and_types_at_once(phone):
    for shown in ("#text", "#twice", "#open-duel", "#number", "#verdict"):
        _, top, _, bottom = phone.script(BOX, phone.one(shown))
        assert top >= 0 and bottom <= PHONE["height"], shown
    phone.touch(phone.all("#mirror [data-n]")[1])
    phone.until(lambda: "“old”: a chance of" in phone.told("#says"))
    picked = "const { selectionStart, selectionEnd } = document.activeElement; return selectionEnd - selectionStart"
    assert phone.script(picked) == 0, "a tap on a word reads it, and selects nothing"
    phone.script("scrollTo(0, 400); document.querySelector('.word').click()")
    phone.until(lambda: phone.script(BOX, phone.one("#mirror .lit"))[1] >= 0)
    phone.touch(phone.one("#text"), down=0.9)  # beside the words
    phone.keys("Typed on a telephone.")
    assert phone.text == "Typed on a telephone."
    phone.scored()
    # Above a keyboard that takes half of the screen, what one types is in sight.
    phone.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", PHONE | {"height": 420})
    assert 0 < phone.script(BOX, phone.one("#mirror [data-n]"))[3] < 420


def test_four_times_as_large_everything_is_there(browser, url):
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {**DESK, "width": 320, "height": 256}
    )
    try:
        page = Page(browser, url)
        page.script(OPEN_ALL)
        page.until(lambda: page.script(FILLED))
        assert page.script("return document.documentElement.scrollWidth") <= 320
        page.click("#twice")
        page.until(lambda: page.told("#twice") == "Let it forget")
        kept = "localStorage.setItem('perplexity-sliding-duel', JSON.stringify({'2-whole': Array(10).fill('010000')}))"
        with patched(browser, kept):
            page = Page(browser, f"{url}#duel=2&beat=3")
            page.until(lambda: page.all("#duel .squares"))
            width = "return arguments[0].scrollWidth - arguments[0].clientWidth"
            assert page.script(width, page.one("#duel")) == 0
            ends = [page.script(BOX, square)[2] for square in page.all(".squares i")]
            assert len(ends) == 10 and max(ends) <= 320
    finally:
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", DESK)


def test_on_paper_there_is_the_text_and_its_number(page):
    page.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        assert page.one("#mirror").is_displayed() and page.one("#number").is_displayed()
        for part in ("#text", "#twice", "#questions"):
            assert not page.one(part).is_displayed()
    finally:
        page.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


@pytest.mark.skipif(not AXE, reason="axe-core-python is not installed")
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_no_violation(browser, url, theme):
    page = Page(browser, f"{url}?__theme={theme}")

    def check(part):
        assert not browser.execute_async_script(FAULTS), part

    page.script(Path(AXE).read_text(encoding="utf-8"))
    page.scored()
    check("first")
    for words in ("Let it forget", "Let it remember"):
        page.click("#twice")
        page.until(lambda words=words: page.told("#twice") == words)
        time.sleep(0.6)  # longer than a double click
    check("forgotten")
    page.scored("It was late.\nThe lamp had gone out. " * 20)
    page.script(OPEN_ALL)
    page.until(lambda: page.script(FILLED) and not page.all(".view .old"))
    check("questions")
    page.click("#open-share")
    page.until(lambda: page.all("#share .main"))
    check("share")
    page.keys(Keys.ESCAPE)
    page.script("localStorage.clear(); document.getElementById('open-duel').click()")
    page.until(lambda: page.all(".option"))
    page.keys("1")
    check("duel")
    page.click("#duel .go")
    page.until(lambda: page.all(".bars"))
    check("bars")
