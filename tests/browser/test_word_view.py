"""The visitor's words: coloured where they are written, with a number from the first on."""

import json
import math
import re
import time
import zlib
from base64 import urlsafe_b64encode

import numpy as np
import pytest
from visitor import BOX, ActionChains, Keys, Page, on_line, patched

from perplexity_sliding.views.text import number
from space.page import OPENING

HOSTILE = "<img src=x onerror=\"window.hacked=1\"> ${window.hacked=2} {{hacked}} <b>bold</b> 'end'"
CHARACTERS = "Ça naïve, 你好 👩‍👩‍👧 e\u0301 end."
STORY = "It was late, and the lamp had gone out again. Nobody went to light it. "
PIECES = "#mirror [data-n]"
HEARD = "return [...document.querySelectorAll('.handle')].map((one) => one.ariaValueNow)"
PLACES = """
const places = {};
for (const id of ["stage", "says", "twice", "open-duel", "open-share", "number", "verdict", "models"]) {
  const { top, left } = document.getElementById(id).getBoundingClientRect();
  places[id] = [Math.round(left), Math.round(top + scrollY)];
}
return places;
"""


def pack(text):
    squeezed = zlib.compress(text.encode(), 9, wbits=-15)
    return urlsafe_b64encode(squeezed).decode().rstrip("=")


def rounded(perplexity):
    """A perplexity with one figure, with two, and with four."""
    return {float(f"{perplexity:.{places}e}") for places in (0, 1, 3)}


def figures_of(shown):
    return float(shown.removeprefix("about ").replace(",", ""))


def test_ten_cold_loads_are_complete(browser, url, longest):
    """ "NaN tokens" stood there after 5 of 16, and one arrow key then scored another window."""
    with on_line(browser, 200_000, 40):
        for _ in range(10):
            page = Page(browser, url)
            assert page.script(HEARD) == [str(longest), str(longest // 2)]
            assert page.script("return document.body.innerText.includes('NaN')") is False
            assert page.told("#perplexity") and page.told("#verdict") and page.shown == OPENING


def test_a_first_visit_asks_for_one_file_and_moves_nothing(browser, url):
    watch = """
    window.shifts = [];
    new PerformanceObserver((list) => { for (const { value, sources } of list.getEntries())
      window.shifts.push([value, ...sources.map(({ node }) => node?.id || node?.nodeName)]);
    }).observe({type: "layout-shift", buffered: true});
    """
    browser.get_log("browser")
    with patched(browser, watch):
        page = Page(browser, url)
        time.sleep(1)  # for what would move after that
        shifts = page.script("return window.shifts")
        assert sum(value for value, *_ in shifts) < 0.01, shifts
    assert page.script("return performance.getEntriesByType('resource').length") == 0
    errors = [line for line in browser.get_log("browser") if line["level"] == "SEVERE"]
    assert not errors


def test_the_first_screen_is_ones_words_a_number_and_two_buttons(page):
    for shown in ("#text", "#number", "#verdict", "#twice", "#open-duel", ".teaser"):
        assert page.script(BOX, page.one(shown))[3] <= 800, shown
    looks = "return getComputedStyle(arguments[0]).fontSize"
    assert page.script(looks, page.one("#text")) == "40px"
    page.click("#text")
    page.keys("Hi there")
    page.until(lambda: page.text == "Hi there", "the first words are not replaced")
    assert page.scored().startswith("about ")


@pytest.mark.parametrize("text", ["One", "It was the best of times.", STORY * 3])
def test_a_text_of_any_length_keeps_every_control_on_the_screen(page, metric, bundled, text):
    """Texts under 20 tokens had no number, and a table that pushed all controls away."""
    before = page.script(PLACES)
    shown = page.scored(text)
    result = metric.compute(predictions=[text.strip()], model_id=bundled)
    assert page.exact == number(result["perplexity"])
    assert figures_of(shown) in rounded(result["perplexity"])
    assert shown.startswith("about ") or len(text) > 60
    for control in ("#twice", "#open-duel", "#open-share"):
        assert page.script(BOX, page.one(control))[3] <= 800
    if len(text) < 60:
        after = page.script(PLACES)
        assert {name: after[name] for name in ("stage", "twice", "number", "models")} == {
            name: before[name] for name in ("stage", "twice", "number", "models")
        }


def test_nothing_moves_because_something_is_said(page):
    """Play moved 72 pixels up when it was pressed, and the second click missed."""
    page.scored(STORY * 12)
    before = page.script(PLACES)
    page.click("#play")
    page.until(lambda: "Window 2 of" in page.told("#says"))
    assert page.told("#play") == "Pause" and page.script(PLACES) == before
    page.click("#play")
    page.script("document.querySelector('.word').click()")
    page.until(lambda: "a chance of" in page.told("#says"))
    assert page.script(PLACES) == before


def test_the_colours_are_those_of_the_metric(page, metric, bundled):
    page.scored(STORY[:-1])
    result = metric.compute(predictions=[STORY[:-1]], model_id=bundled, return_token_scores=True)
    [scores] = result["token_scores"]
    bits = np.array(scores["nll"]) / math.log(2)
    inside = {at for word in re.finditer(r"\w+", STORY[:-1]) for at in range(*word.span())[1:]}
    words = np.cumsum([begin not in inside for begin, _ in scores["offsets"]])
    assert len(set(words)) < len(bits), "a word has several tokens"
    of_words = [bits[words == word].sum() for word in words]
    for colours, values in [("surprise", of_words), ("token", bits)]:
        page.script(
            "colours.value = arguments[0]; colours.dispatchEvent(new Event('change'))", colours
        )
        pieces = page.all(PIECES)
        assert len(pieces) == len(values) and page.shown == page.text
        levels = [sum(own >= edge for edge in (1, 3, 6, 10, 15)) for own in values]
        shown = [piece.get_attribute("class").split()[0] for piece in pieces]
        assert shown == [f"b{level}" for level in levels]


def test_what_is_typed_keeps_the_colours_around_it(page):
    page.scored(STORY)
    page.script(
        "const area = document.getElementById('text');"
        "area.setRangeText('A parrot said so. ', 0, 0, 'end');"
        "area.dispatchEvent(new Event('input', {bubbles: true}));"
        "window.kept = [...document.querySelectorAll('#mirror [data-n]')].map((e) => e.className)"
    )
    assert len(page.script("return window.kept")) > 10  # at once, before anything was scored
    page.scored()
    assert page.shown == page.text == "A parrot said so. " + STORY


def test_a_word_is_told_of_by_mouse_caret_and_its_button(page):
    page.scored(STORY)
    ActionChains(page.browser).move_to_element(page.all(PIECES)[3]).perform()
    page.until(lambda: page.one("#tip").is_displayed() and "bits of surprise" in page.told("#tip"))
    rightmost = max(page.all(PIECES), key=lambda piece: page.script(BOX, piece)[2])
    ActionChains(page.browser).move_to_element(rightmost).perform()
    width = page.script("return document.documentElement.clientWidth")
    assert page.script(BOX, page.one("#tip"))[2] <= width, "it is not below the scroll bar"
    page.one("#text").send_keys(Keys.CONTROL, Keys.HOME)
    page.keys(Keys.ARROW_RIGHT)
    page.until(lambda: "“It”" in page.told("#says"))
    assert not page.one("#tip").is_displayed()
    word = page.told(".word")
    page.script("document.querySelector('.word').click()")
    assert page.told("#mirror .lit") in word and "1 in" in page.told("#story")


def test_the_last_of_several_texts_is_the_one_that_is_scored(page, metric, bundled):
    for text in (STORY * 200, STORY * 100, "The sea was calm."):
        page.fill(text)
        time.sleep(0.3)
    shown = page.scored()
    expected = metric.compute(predictions=["The sea was calm."], model_id=bundled)
    assert figures_of(shown) in rounded(expected["perplexity"])
    assert page.shown == "The sea was calm."


def test_characters_stay_whole_and_nothing_of_a_text_is_run(page):
    page.scored(CHARACTERS)
    assert page.shown == CHARACTERS
    assert [piece.text for piece in page.all(PIECES) if "👩‍👩‍👧" in piece.text]
    page.script("window.hacked = 0")
    page.scored(HOSTILE)
    assert page.shown == HOSTILE and page.script("return window.hacked") == 0
    page.scored("سلام دنیا.")
    _, _, right, _ = page.script(BOX, page.one(PIECES))
    left, _, end, _ = page.script(BOX, page.one("#text"))
    assert right > (left + end) / 2  # it begins at the right


def test_a_file_is_read_and_its_line_ends_are_said(page, tmp_path):
    path = tmp_path / "mine.txt"
    path.write_bytes(b"A harbour.\r\nA ship.")
    page.one("#file").send_keys(str(path))
    page.until(lambda: page.text == "A harbour.\nA ship.")
    assert r"line ends (\r\n) became \n" in page.told("#says")
    path.write_bytes(b"\xff\xd8\xff\xe0 no text")
    page.one("#file").send_keys(str(path))
    page.until(lambda: "not plain text" in page.told("#says"))
    assert page.text == "A harbour.\nA ship."


def test_address_and_reload_bring_text_and_settings_back(browser, url, longest):
    text = "A text that came with its link: ça, 你好 & <b>more</b>."
    page = Page(browser, f"{url}?window=48&stride=12#text={pack(text)}")
    shown = page.scored()
    assert page.text == text and "window 48 · stride 12" in page.told("#recipe")
    again = Page(browser, page.script("return location.href"))
    assert again.scored() == shown and again.text == text
    again.fill("Typed just before a reload.")
    browser.refresh()
    again.until(lambda: again.text == "Typed just before a reload.")
    long = Page(browser, f"{url}?window=100000")
    said = f"A window of 100,000 tokens was asked for, but demo_model reads {longest} at most"
    long.until(lambda: said in long.told("#busy"))
    broken = Page(browser, f"{url}#text=broken")
    assert "broken" in broken.told("#says") and broken.text == OPENING


def test_a_server_that_is_gone_is_said_and_asked_again(page):
    with on_line(page.browser, offline=True):
        page.fill("Nobody is there.")
        page.until(lambda: "cannot reach its server" in page.told("#busy"))
        time.sleep(1)
        assert "cannot reach its server" in page.told("#busy") and page.text == "Nobody is there."
    page.until(lambda: page.script("return !document.querySelector('#answer.old')"), patience=30)
    assert page.shown == "Nobody is there." and page.told("#busy") == ""


def test_what_is_refused_says_so_beside_its_field(page, longest):
    shown = page.scored()
    for name, value in (
        ("window", "100000"),
        ("window", "abc"),
        ("window", "0"),
        ("stride", "500"),
    ):
        page.enter(name, value)
        field = page.one(f"#{name}")
        assert field.get_attribute("aria-invalid") == "true", value
        said = page.told(f"#{field.get_attribute('aria-describedby')}")
        assert f"still of {longest if name == 'window' else longest // 2}" in said
        assert page.scored() == shown and f"window {longest} " in page.told("#recipe")
    page.enter("model", "owner/code")
    page.until(lambda: "program code of its own" in page.told("#busy"))
    assert page.one("#busy").get_attribute("role") == "alert"
    assert page.told("#busy") == page.told("#model-wrong")
    page.enter("model", "owner/bytes")
    page.scored()
    assert page.told("#busy") == "" and "owner/bytes" in page.told("#who")
    assert page.one("#window").get_property("max") == "32"
    assert not page.all("[aria-invalid]")


def test_without_a_text_no_number_stands_there(page):
    page.scored("A text.")
    page.fill("")
    page.until(lambda: "There is no text yet" in page.told("#says"))
    assert not page.one("#perplexity").is_displayed() and not page.one("#story").is_displayed()
    assert not page.one("#twice").is_enabled()
    page.browser.refresh()
    page.until(lambda: "There is no text yet" in page.told("#says"), "the emptied text came back")
    page.scored("A text again.")
    assert page.one("#story").is_displayed()


def choose_sample(page, name):
    page.script(
        "const sample = document.getElementById('sample'); sample.value = arguments[0];"
        "sample.dispatchEvent(new Event('change'))",
        name,
    )


def paste(page, text):
    page.script(
        "const area = document.getElementById('text'); area.value = arguments[0];"
        "area.dispatchEvent(new InputEvent('input', {bubbles: true, inputType: 'insertFromPaste'}))",
        text,
    )
    page.scored()


def is_window(said):
    return said.startswith("Window ")


def test_one_glide_from_the_second_window_on(browser, url):
    """Not with reduced motion."""
    watch = """
    window.said = [];
    addEventListener("DOMContentLoaded", () => new MutationObserver(() =>
      window.said.push(document.getElementById("says").textContent))
      .observe(document.getElementById("says"), {childList: true}));
    """
    with patched(browser, watch):
        still = Page(browser, url)
        paste(still, STORY * 12)
        time.sleep(1)
        assert not any(map(is_window, still.script("return said")))
        # Neither a text that somebody sent nor a sample moves before one slides the window.
        moving = Page(browser, f"{url}#text={pack(STORY * 12)}", motion="no-preference")
        moving.scored()
        assert "Somebody sent you this text" in moving.told("#says")
        choose_sample(moving, "gate.txt")
        moving.until(lambda: "KEEPER" in moving.text)
        moving.scored()
        assert not any(map(is_window, moving.script("return said")))
        assert moving.one("#sample").get_property("value") == "gate.txt", "it says what is shown"
        for _ in range(2):
            paste(moving, STORY * 12)
            moving.until(lambda: moving.told("#play") != "Pause", "it does not end")
        windows = list(filter(is_window, moving.script("return said")))
    assert all("all before the frame is forgotten" in said for said in windows)
    assert [said.startswith("Window 2 of") for said in windows].count(True) == 1


def test_ones_own_words_come_back(page):
    page.scored("Typed by a visitor.")
    choose_sample(page, "rhyme.txt")
    page.until(lambda: "Jack" in page.text)
    choose_sample(page, "typed")
    page.until(lambda: page.text == "Typed by a visitor.")
    for name, words in (("rhyme.txt", "Jack"), ("gate.txt", "KEEPER")):
        choose_sample(page, name)
        page.until(lambda words=words: words in page.text)
    page.click("#back")
    page.until(lambda: page.text == "Typed by a visitor.")
    for go_back in (
        lambda: page.click("#back"),
        lambda: page.one("#text").send_keys(Keys.CONTROL, "z"),
    ):
        page.click("#twice")
        page.until(lambda: page.text == "Typed by a visitor. Typed by a visitor.")
        page.one("#text").click()
        go_back()
        page.until(lambda: page.text == "Typed by a visitor.")
        assert not page.one("#back").is_displayed()


def test_the_browser_s_back_closes_a_dialog_and_brings_the_text_before_back(page):
    score = page.scored("Typed by a visitor.")
    for opener in ("open-share", "open-duel"):
        page.click(f"#{opener}")
        page.until(lambda: page.all("dialog"))
        page.browser.back()
        page.until(lambda: not page.all("dialog"))
    choose_sample(page, "rhyme.txt")
    page.until(lambda: "Jack" in page.text)
    page.scored()
    page.browser.back()
    page.until(lambda: page.text == "Typed by a visitor.")
    assert page.scored() == score
    page.browser.forward()
    page.until(lambda: "Jack" in page.text)
    assert page.one("#sample").get_property("value") == "rhyme.txt", "it says what is shown"


def test_the_picture_to_share_shows_the_text_and_one_message_has_all(page, url):
    page.scored("I love pizza with pineapple.")
    page.script(
        "navigator.clipboard.writeText = (words) => { window.copied = words; return Promise.resolve(); }"
    )
    page.click("#open-share")
    page.until(
        lambda: page.script("return document.querySelector('#share img')?.naturalWidth") == 1200
    )
    page.script("document.querySelector('#share .main').click()")
    copied = page.until(lambda: page.script("return window.copied"))
    assert page.told("#perplexity") in copied and page.told(".word") in copied
    assert f"{url}#text=" in copied
    drawn = page.script(
        "const image = document.querySelector('#share img'), canvas = document.createElement('canvas');"
        "canvas.width = 1200; canvas.height = 630; const draw = canvas.getContext('2d');"
        "draw.drawImage(image, 0, 0); const { data } = draw.getImageData(0, 0, 1200, 630), seen = new Set();"
        "for (let n = 0; n < data.length; n += 4) seen.add(data.slice(n, n + 3).join());"
        "return [...seen]"
    )
    assert "245,176,92" in drawn or "230,125,58" in drawn, "the colours of the words"
    page.keys(Keys.ESCAPE)
    page.until(lambda: not page.all("#share"))


def test_a_citation_repeats_the_number(page, metric, bundled):
    page.scored(STORY)
    page.script("document.getElementById('lab').open = true")
    page.click("#cite")
    page.until(lambda: "metric.compute" in page.told("#citation"))
    result = metric.compute(predictions=[STORY.strip()], model_id=bundled)
    assert f"Perplexity {number(result['perplexity'])}" in page.told("#citation")
    names = json.loads(json.dumps([one.text for one in page.all("#citation .row button")]))
    assert {"tokens.csv", "tokens.json", "text.txt"} <= set(names)
