"""The visitor's own text: coloured where it is written, pointed at, and the window on it."""

import itertools
import json
import math
import re
import threading
import time

import pytest
from visitor import PHONE, ActionChains, Keys, Page, patched, slowed

from perplexity_sliding.views.numbers import odds
from space.service import Service

HOSTILE = "<img src=x onerror=\"window.hacked=1\"> ${window.hacked=2} {{hacked}} <b>bold</b> 'end'"
CHARACTERS = "Ça naïve, 你好 👩‍👩‍👧 e\u0301 end."
PIECES = ".ps-mirror [data-n]"
TOO_MANY = 1500  # elements: what a screen or two of text takes is far fewer
IN_REACH = """
const element = arguments[0], { x, y, width, height } = element.getBoundingClientRect();
return element.contains(document.elementFromPoint(x + width / 2, y + height / 2)) ? [x, y] : null;
"""
BOX = "const r = arguments[0].getBoundingClientRect(); return [r.left, r.top, r.right, r.bottom];"
SHIFT = """
window.shifted = [];
const name = ({ node }) => node?.id || node?.className || node?.nodeName;
new PerformanceObserver((list) => list.getEntries().forEach((one) => window.shifted.push([one.value, ...one.sources.map(name)])))
  .observe({type: "layout-shift", buffered: true});
"""


def data_of(page):
    return json.loads(page.one("[data-view=text]").get_attribute("data-payload"))


def is_whole(page, element):
    """Whether all of an element is on the screen, and none of it has to be scrolled."""
    left, top, right, bottom = page.script(BOX, element)
    width, height = page.script("return [innerWidth, innerHeight]")
    fits = page.script(
        "const e = arguments[0]; return e.scrollHeight <= e.clientHeight + 1 && e.scrollWidth <= e.clientWidth + 1",
        element,
    )
    return fits and left >= 0 and top >= 0 and right <= width and bottom <= height


def point_at(page, piece):
    ActionChains(page.browser).move_to_element(piece).perform()
    return page.one(".ps-tip:not([hidden])")


def says(page):
    return page.told(".ps-says")


def stand_still(page, element):
    """Wait until nothing lies over an element, and it has stayed where it is for half a second."""
    places = [None] * 5

    def stands():
        time.sleep(0.1)
        places.append(page.script(IN_REACH, element))
        return places[-1] is not None and places[-5:] == [places[-1]] * 5

    page.until(stands, "it moves, or something lies over it")


def move_window(page, window):
    """Move the slider below the text to a window, counted from 0."""
    slider = page.until(lambda: page.labelled("Window of the text"))
    page.script("arguments[0].focus()", slider)
    page.keys(Keys.HOME, *[Keys.ARROW_RIGHT] * window)
    page.until(lambda: f"Window {window + 1} of" in says(page))


def field(page, name):
    return int(page.one(f"#{name} input[type=number]").get_property("value"))


def enter(page, name, value):
    page.number(name).send_keys(Keys.CONTROL, "a")
    page.number(name).send_keys(f"{value}" + Keys.TAB)


def test_the_first_screen_is_the_text(browser, url):
    size = {"width": 1280, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        page = Page(browser, url)
        width, height = page.script("return [innerWidth, innerHeight]")
        left, top, right, bottom = page.script(BOX, page.one("#text textarea"))
        assert (right - left) * (min(bottom, height) - top) >= 0.4 * width * height
        for shown in (".ps-big", ".ps-story", "#window", '[data-step="play"]'):
            assert page.script(BOX, page.one(shown))[3] <= height
        assert page.one("h1").text.endswith("?")
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_the_first_screen_of_a_phone_has_text_and_number(phone):
    _, top, _, bottom = phone.script(BOX, phone.one("#text textarea"))
    assert (bottom - top) * 374 >= 0.5 * PHONE["height"] * PHONE["width"], "half of it is text"
    assert phone.script(BOX, phone.one(".ps-big"))[3] < PHONE["height"]
    phone.script("arguments[0].scrollIntoView({block: 'center'})", phone.one("#text textarea"))
    phone.script(
        "const r = arguments[0].getBoundingClientRect();"
        "document.querySelector('#text textarea').dispatchEvent(new MouseEvent('click',"
        "{clientX: r.x + r.width / 2, clientY: r.y + r.height / 2, bubbles: true}))",
        phone.all(PIECES)[12],
    )
    tip = phone.one(".ps-tip:not([hidden])")
    assert "bits of surprise" in tip.text
    assert phone.script("return arguments[0].readOnly", phone.one("#text textarea"))
    # The sheet leaves the word in sight, also above a keyboard.
    word, sheet = phone.one('.ps-mirror [aria-selected="true"]'), phone.script(BOX, tip)
    assert sheet[3] <= PHONE["height"] + 1 and phone.script(BOX, word)[3] < sheet[1]
    phone.script(
        "const real = visualViewport.height;"
        "Object.defineProperty(visualViewport, 'height', {configurable: true, value: real - 300});"
        "visualViewport.dispatchEvent(new Event('resize'))"
    )
    sheet = phone.script(BOX, tip)
    assert sheet[3] <= PHONE["height"] - 299 and 0 < phone.script(BOX, word)[3] < sheet[1]
    phone.script("delete visualViewport.height; visualViewport.dispatchEvent(new Event('resize'))")
    # The pencil edits: then a tap puts the caret, and no sheet lies over the text.
    phone.script("arguments[0].click()", phone.one(".ps-pencil"))
    assert not phone.script("return arguments[0].readOnly", phone.one("#text textarea"))
    assert not tip.is_displayed()
    phone.script("arguments[0].click()", phone.one(".ps-pencil"))
    phone.script("document.documentElement.style.setProperty('--ps-text-height', '230px')")
    phone.until(lambda: phone.all(".ps-handle-window.ps-docked"))
    # A finger takes the handle of the window to another word.
    before, handle = field(phone, "window"), phone.one(".ps-handle-window")
    # The box shows fewer words than the window has: the handle waits at its lower edge.
    assert phone.all(".ps-handle-window.ps-docked") and handle.is_displayed()
    assert phone.script(BOX, handle)[3] < phone.script(BOX, phone.one("#text textarea"))[3]
    x, y = phone.script(
        "const r = arguments[0].getBoundingClientRect(); return [r.x + r.width / 2, r.bottom]",
        handle,
    )
    for kind, up in (  # the lines above hold earlier words, wherever in its line the handle is
        ("touchStart", 4),
        ("touchMove", 60),
        ("touchMove", 90),
        ("touchEnd", 0),
    ):
        points = [] if kind == "touchEnd" else [{"x": x, "y": y - up}]
        phone.browser.execute_cdp_cmd(
            "Input.dispatchTouchEvent", {"type": kind, "touchPoints": points}
        )
    phone.until(lambda: field(phone, "window") < before, "the finger moved nothing")
    # As long as the window, the stride ends below the box too: each waits at a place of its own.
    phone.fill(phone.text + " ")
    enter(phone, "window", before)
    enter(phone, "stride", before)
    phone.until(lambda: phone.is_scored and len(phone.all(".ps-handle.ps-docked")) == 2)
    boxes = sorted(phone.script(BOX, one) for one in phone.all(".ps-docked"))
    assert boxes[0][2] <= boxes[1][0] and boxes[1][2] <= PHONE["width"]
    # A long name ends before the arrow, and what was said leaves the story.
    arrow, name = phone.one("#model .icon-wrap"), phone.one("#model input")
    padding = "return parseFloat(getComputedStyle(arguments[0]).paddingRight)"
    assert phone.script(BOX, name)[2] - phone.script(padding, name) <= phone.script(BOX, arrow)[0]
    phone.until(lambda: not phone.one(".ps-status").is_displayed())


def test_a_small_screen_has_the_handle_of_a_window_that_ends_below_it(browser, url):
    """At twice the size, the box ended below the screen, and the handle waited there."""
    size = {"width": 640, "height": 280, "deviceScaleFactor": 2, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        page = Page(browser, url)
        page.fill(page.text + " It was a quiet evening by the sea." * 30)
        page.score()
        page.until(lambda: page.all(".ps-handle-window.ps-docked"))
        box, handle = page.one("#text textarea"), page.one(".ps-handle-window")
        for height in (250, 200):  # pixels, of which the page's head takes 90
            browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size | {"height": height})
            page.until(
                lambda height=height: height - 40 < page.script(BOX, handle)[3] <= height,
                "below the screen, or above its lower edge",
            )
            assert page.script(BOX, box)[3] > height
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_the_colours_are_those_of_the_metric(page, metric, bundled, longest):
    result = metric.compute(
        predictions=[page.text],
        model_id=bundled,
        return_token_scores=True,
        max_length=longest,
        stride=longest // 2,
    )
    [scores] = result["token_scores"]
    data = data_of(page)
    bits = [None if nll is None else nll / math.log(2) for nll in scores["nll"]]
    assert data["bits"] == pytest.approx(bits, abs=2e-3)
    assert page.shown == page.text
    edges = (1, 3, 6, 10, 15)
    for piece in page.all(PIECES)[:40]:
        first, last = data["segments"][int(piece.get_attribute("data-n"))]
        level = sum(sum(bits[first : last + 1]) >= edge for edge in edges)
        assert piece.get_attribute("class").split()[0] == f"b{level}"


def test_what_is_typed_keeps_the_colours_around_it(page):
    page.script(
        "window.kept = null; const area = document.querySelector('#text textarea');"
        "area.setRangeText('A parrot said so. ', 0, 0, 'end');"
        "area.dispatchEvent(new Event('input', {bubbles: true}));"
        "window.kept = [...document.querySelectorAll('.ps-mirror [data-n]')].slice(0, 30).map((e) => e.className)"
    )
    kept = page.script("return window.kept")
    assert sum(name.startswith("b") for name in kept) > 20  # at once, before anything was scored
    page.score()
    assert page.shown == page.text and page.text.startswith("A parrot said so. ")
    assert sum(data_of(page)["pieces"]["lengths"]) == len(page.text)


def test_the_panel_stands_beside_the_word_and_its_bars_can_be_read(page):
    data = data_of(page)
    worst = page.one(".ps-mirror .b5")
    tip = point_at(page, worst)
    page.until(lambda: "bits of surprise" in tip.text)
    assert is_whole(page, tip)
    word, panel = page.script(BOX, worst), page.script(BOX, tip)
    assert (
        abs(word[0] - panel[0]) < 400 and min(abs(panel[1] - word[3]), abs(panel[3] - word[1])) < 20
    )
    token = data["segments"][int(worst.get_attribute("data-n"))][0]
    shares = [share for _, share in data["alternatives"][token]]
    bars = [
        page.script("return arguments[0].getBoundingClientRect().width", bar)
        for bar in page.all(".ps-tip .ps-bar")
    ]
    assert bars[0] > 100  # pixels, of the likeliest
    for share, width in zip(shares, bars):
        assert width == pytest.approx(max(2, bars[0] * share / shares[0]), abs=2)
    assert f"{data['rank'][token]:,}" in tip.text  # where the word itself stood


def test_a_click_pins_and_escape_releases(page):
    ActionChains(page.browser).move_to_element(page.all(PIECES)[30]).click().perform()
    assert "Esc to release" in page.one(".ps-tip").text
    told = page.one(".ps-tip").text
    ActionChains(page.browser).move_to_element(page.all(PIECES)[45]).perform()
    assert page.one(".ps-tip").text == told
    page.keys(Keys.ESCAPE)
    assert not page.one(".ps-tip").is_displayed()


def test_the_caret_tells_of_its_token(page):
    page.script(
        "const a = arguments[0]; a.focus(); a.setSelectionRange(0, 0)", page.one("#text textarea")
    )
    page.keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    tip = page.one(".ps-tip:not([hidden])")
    assert tip.get_attribute("role") == "status" and "surprise" in tip.text
    page.keys("x")
    assert not page.one(".ps-tip").is_displayed()  # nothing lies over what is written


def test_the_most_surprising_word_leads_to_its_place(page):
    data = data_of(page)
    story, word = page.one(".ps-story"), page.one(".ps-word")
    text, ends = data["pieces"]["text"], list(itertools.accumulate(data["pieces"]["lengths"]))
    surprise = {}  # of each word in bits: that of all its pieces
    for found in re.finditer(r"\w+", text):
        own = [
            n
            for n, end in enumerate(ends)
            if end > found.start() and ends[n - 1] * (n > 0) < found.end()
        ]
        tokens = [
            data["bits"][n]
            for place in own
            for n in range(data["segments"][place][0], data["segments"][place][1] + 1)
        ]
        surprise[found.span()] = sum(tokens)
    (begin, end), worst = max(surprise.items(), key=lambda entry: entry[1])
    assert word.text == text[begin:end]
    assert odds(worst * math.log(2)) in story.text
    page.script("arguments[0].click()", word)
    token = page.one('.ps-mirror [aria-selected="true"]').text.strip()
    assert token and token in word.text and page.one(".ps-tip").text.startswith(token)


def test_the_handles_are_dragged_and_turned(page, metric, bundled, longest):
    before = page.one(".ps-big output").text
    handle = page.one(".ps-handle-window")
    stand_still(page, handle)  # the pointer takes a quarter of a second to get there
    ActionChains(page.browser).click_and_hold(handle).move_by_offset(-160, -8).perform()
    page.until(lambda: says(page).startswith("Window ") and "scored here" in says(page))
    ActionChains(page.browser).release().perform()
    page.until(lambda: field(page, "window") < longest, "the field does not follow")
    page.script("arguments[0].focus()", page.one(".ps-handle-stride"))
    page.keys(Keys.HOME, *[Keys.ARROW_RIGHT] * 7)
    page.until(lambda: field(page, "stride") == 8 and "stride 8 " in page.told(".ps-recipe"))
    page.score()
    expected = metric.compute(
        predictions=[page.text], model_id=bundled, max_length=field(page, "window"), stride=8
    )
    assert float(page.one(".ps-big output").text) == pytest.approx(expected["perplexity"], rel=1e-3)
    assert page.one(".ps-big output").text != before
    handle = page.one(".ps-handle-stride")
    assert handle.get_attribute("role") == "slider"
    assert handle.get_attribute("aria-valuenow") == "8" and handle.accessible_name
    # Turned and turned back before it is sent: nothing changes, so no preview of a change may stay.
    page.script("arguments[0].focus()", handle)
    shown = says(page)
    page.keys(Keys.ARROW_RIGHT, Keys.ARROW_LEFT)
    page.until(lambda: says(page) == shown, "the preview stays")


def drag(page, handle, pieces, pause=0.1):
    """Press a handle, and go over pieces or to places of the screen without letting go."""
    stand_still(page, handle)
    moved = ActionChains(page.browser, duration=20).click_and_hold(handle)
    for piece in pieces:
        if isinstance(piece, tuple):
            moved.w3c_actions.pointer_action.move_to_location(*piece)
        else:
            moved.move_to_element(piece)
        moved.pause(pause)
    moved.perform()


def let_go(page):
    ActionChains(page.browser).release().perform()


def handle_stands_at(page, stride):
    """Whether the handle of the stride stands behind the last token of so many."""
    token = data_of(page)["before"] + stride - 2  # the start token takes a place
    piece = next(
        n
        for n, span in enumerate(data_of(page)["segments"])
        if span and span[0] <= token <= span[1]
    )
    end = page.script(BOX, page.one(f".ps-mirror [data-n='{piece}']"))[2]
    handle = page.script(BOX, page.one(".ps-handle-stride"))
    return abs((handle[0] + handle[2]) / 2 - end) < 8


def test_an_answer_that_comes_while_a_handle_is_dragged_does_not_move_it(page):
    """Dragged fast to 6, it stood at 29, and so did the number; the field said 6."""
    handle = page.one(".ps-handle-stride")
    targets = [page.one(f".ps-mirror [data-n='{n}']") for n in (44, 30, 5)]
    drag(page, handle, targets, pause=2)  # each is sent, and answered while the handle is held
    chosen = int(page.one(".ps-handle-stride").get_attribute("aria-valuenow"))
    assert 1 <= chosen <= 8
    page.until(lambda: field(page, "stride") == chosen)
    let_go(page)
    page.until(lambda: f"stride {chosen} " in page.told(".ps-recipe"), "it was not scored")
    page.until(lambda: not page.all(".ps-stale") and handle_stands_at(page, chosen))
    assert page.one(".ps-handle-stride").get_attribute("aria-valuenow") == str(chosen)


def test_a_handle_follows_the_pointer_out_of_the_text(page):
    """There it stood still."""
    _, _, right, _ = page.script(BOX, page.one("#text textarea"))
    _, top, _, low = page.script(BOX, page.one(".ps-mirror [data-n='20']"))
    end = field(page, "stride")
    beside = (int(right) + 80, int(top + low) // 2)
    drag(page, page.one(".ps-handle-stride"), [page.one(".ps-mirror [data-n='5']"), beside])
    # Where it was let go is said at once; the field follows, of a slow browser over places on the way.
    line_end = int(page.one(".ps-handle-stride").get_attribute("aria-valuenow"))
    assert 8 < line_end < end
    page.until(lambda: field(page, "stride") == line_end)
    let_go(page)
    page.until(lambda: handle_stands_at(page, line_end))


def test_a_handle_that_leaves_the_text_above_goes_to_its_beginning(page):
    """Above the first line it stood still."""
    left, top, _, _ = page.script(BOX, page.one("#text textarea"))
    above = (int(left) + 6, int(top) - 60)
    drag(page, page.one(".ps-handle-stride"), [page.one(".ps-mirror [data-n='40']"), above])
    page.until(lambda: field(page, "stride") == 2)  # the start token takes a place
    let_go(page)
    page.until(lambda: " stride 2 " in page.told(".ps-recipe"))


def test_a_stride_beyond_the_window_takes_its_handle_along(page, longest):
    """500 put 128 into the field, and left the handle at 1."""
    enter(page, "stride", 500)
    page.until(lambda: f"stride {longest} " in page.told(".ps-recipe"))
    assert field(page, "stride") == longest
    line = 40  # pixels, and more than one of them below the first
    tops = [".ps-handle-stride", f"{PIECES}"]
    page.until(lambda: page.one(tops[0]).rect["y"] > page.one(tops[1]).rect["y"] + line)
    assert page.one(".ps-handle-stride").get_attribute("aria-valuenow") == str(longest)


@pytest.mark.parametrize("other", ["A text that nobody has scored yet, " * 600, "  "])
def test_panel_map_play_and_number_end_with_their_text(page, other):
    point_at(page, page.all(PIECES)[8])
    page.script("arguments[0].click()", page.one('[data-step="play"]'))
    ActionChains(page.browser).click().perform()
    page.until(lambda: "Pinned" in page.one(".ps-tip").text)
    page.script("arguments[0].click()", page.one('[data-step="play"]'))
    page.fill(other)
    page.until(lambda: not page.one(".ps-tip").is_displayed(), "the panel stays")
    play = page.one('[data-step="play"]')
    assert not play.is_enabled() and play.get_property("textContent") == "Play"
    gone = (".ps-steps", ".ps-says", ".ps-strip", ".ps-big", ".ps-handle-window")
    page.until(lambda: not any(page.one(part).is_displayed() for part in gone), "something stays")
    page.fill("It was late, and the lamp had gone out again. " * 4)
    page.score()
    for part in (".ps-steps", ".ps-says", ".ps-big"):
        page.until(lambda part=part: page.one(part).is_displayed(), f"{part} does not come back")
    assert page.one('[data-step="play"]').is_enabled()


FORETOLD = re.compile(r"(\d+) tokens? scored here, the first after (\d+) tokens? of context")
# The result may come before the test has looked at what was foretold.
REMEMBER_WHAT_IS_SAID = """
  const say = () => said.push(document.querySelector(".ps-says")?.textContent ?? "");
  window.said = [];
  window.saying?.disconnect();
  window.saying = new MutationObserver(say);
  window.saying.observe(document.body, { subtree: true, childList: true, characterData: true });
"""
TOLD = re.compile(r"guesses (?:all|the last) (\d+), each from the (\d+)")


@pytest.mark.parametrize("start", ["once", "every"])
def test_what_a_handle_foretells_is_what_is_scored(browser, url, start):
    """Where no window overlaps the one before, the first of its tokens has that one's last before it."""
    linked = Page(browser, f"{url}?stride=64&window=128&start={start}")
    linked.until(lambda: linked.is_scored)
    handles = {name: linked.one(f".ps-handle-{name}") for name in ("window", "stride")}
    for window, name, key in (
        *((1, "stride", key) for key in (Keys.END, Keys.ARROW_LEFT, Keys.PAGE_DOWN)),
        (1, "window", Keys.ARROW_LEFT),
        (0, "window", Keys.PAGE_DOWN),
    ):
        move_window(linked, window)
        linked.script("arguments[0].focus()", handles[name])
        linked.script(REMEMBER_WHAT_IS_SAID)
        linked.keys(key)
        foretold = linked.until(lambda: FORETOLD.search(linked.script("return said.join('\\n')")))
        shape = [field(linked, name) for name in handles]
        linked.until(lambda: TOLD.search(says(linked)) and linked.is_scored, "no result came")
        assert TOLD.search(says(linked)).groups() == foretold.groups(), (window, name, shape)


def test_the_window_is_drawn_on_the_text(page):
    data = data_of(page)
    move_window(page, 2)
    assert "Window 3 of" in says(page)
    begin, first, end, _ = data["windows"][2]
    assert f": {end - begin} tokens. The model guesses the last {end - first}, each" in says(page)
    lit = page.script(
        "return ['in-context', 'in-new'].map((name) =>"
        "[...document.querySelectorAll('.ps-mirror .' + name)].map((span) => Number(span.dataset.n)))"
    )
    spans = [[data["segments"][n][0] for n in (numbers[0], numbers[-1])] for numbers in lit]
    assert spans[0][0] >= begin and spans[0][1] < first
    assert spans[1][0] >= first and spans[1][1] < end
    # What it does not see is pale, and what it sees has a band behind it.
    pale = page.script(
        "return [...document.querySelectorAll('.ps-mirror .unseen')].map((one) => Number(one.dataset.n))"
    )
    places = [data["segments"][n] for n in pale]
    assert places and all(place[0] < begin or place[0] >= end for place in places)
    assert len(pale) + sum(map(len, lit)) == len(page.all(PIECES))
    box = page.script(BOX, page.one("#text textarea"))
    for name, numbers in (("context", lit[0]), ("new", lit[1])):
        parts = [page.script(BOX, part) for part in page.all(f".ps-band-{name}")]
        ends = [page.script(BOX, page.one(f".ps-mirror [data-n='{numbers[n]}']")) for n in (0, -1)]
        assert parts[0][0] == pytest.approx(ends[0][0], abs=1) and parts[0][1] <= ends[0][1]
        assert parts[-1][2] == pytest.approx(ends[1][2], abs=1) and parts[-1][3] >= ends[1][3]
        assert all(box[0] <= left <= right <= box[2] for left, _, right, _ in parts)
    page.fill("Another text, of which no window is known yet. " * 900)
    page.until(lambda: not page.all(".ps-band i") and not page.all(".ps-mirror .unseen"))


# Number and sentence while the third window is played, which may be over before anybody could ask;
# and then the visitor stops it.
AT_THE_THIRD = """
const says = document.querySelector(".ps-says"), play = document.querySelector("[data-step=play]");
new MutationObserver((_, observer) => {
  if (!says.textContent.startsWith("Window 3 of")) return;
  observer.disconnect();
  window.third = [".ps-big output", ".ps-headline > p:last-of-type"].map((part) => document.querySelector(part).textContent);
  play.click();
}).observe(says, {childList: true, characterData: true, subtree: true});
play.click();
"""


def test_play_slides_the_window_and_the_number_grows(page):
    final = page.told(".ps-big output")
    page.script(AT_THE_THIRD)
    so_far, sentence = page.until(lambda: page.script("return window.third"))
    assert so_far != final
    # The sentence under the number is of the same tokens.
    assert "So far" in sentence and sentence.endswith(f"Over all of them, {final}.")
    assert page.told(".ps-big output") == final
    assert f"from {final} equally likely" in page.told(".ps-headline > p:last-of-type")
    said = says(page)
    time.sleep(1.2)  # longer than a step
    assert says(page) == said


def test_a_few_tokens_are_told_one_by_one(page):
    page.write("Text", "Hello world")
    page.score()
    assert not page.all(".ps-big")
    assert "Too short for a perplexity" in page.one(".ps-card").text
    assert "world" in page.one(".ps-few").text and "bits" in page.one(".ps-few").text


def test_characters_stay_whole_and_texts_run_in_their_direction(page):
    page.fill(CHARACTERS)
    page.score()
    page.until(lambda: page.shown == CHARACTERS)
    [family] = [span for span in page.all(PIECES) if "👩‍👩‍👧" in span.text]
    assert "splits this into" in point_at(page, family).text
    page.fill("سلام دنیا.")
    page.score()
    _, _, right, _ = page.script(BOX, page.one(PIECES))
    area = page.script(BOX, page.one("#text textarea"))
    assert right > (area[0] + area[2]) / 2  # it begins at the right


def test_a_visitors_text_is_never_run(page):
    page.script("window.hacked = 0")
    page.fill(HOSTILE)
    page.score()
    page.until(lambda: page.shown == HOSTILE)
    for piece in page.all(PIECES)[::7]:
        point_at(page, piece)
    assert page.script("return window.hacked") == 0
    assert not page.all(".ps-view img, .ps-mirror img, .ps-mirror b")


def test_a_long_text_is_scored_drawn_where_it_is_seen_and_has_a_map(page):
    """An element for every token of a long text stopped a browser with a screen reader for minutes."""
    text = "It was a quiet evening in the village by the sea. " * 1200  # 60,000 characters
    page.fill(text)
    page.press("Score")
    page.until(lambda: page.is_scored and page.shown == text)
    assert len(page.all(PIECES)) < TOO_MANY
    tree = page.browser.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    heard = [node["role"]["value"] for node in tree if not node["ignored"]]
    # Beside the lines of the text box: nothing of the coloured pieces behind it.
    assert 50 < len([role for role in heard if role != "InlineTextBox"]) < TOO_MANY
    assert page.one(".ps-strip").is_displayed()
    # The map is pressed and dragged: the box shows what lies there, and not where its caret is.
    strip, area = page.one(".ps-strip"), page.one("#text textarea")
    shown = "const a = arguments[0]; return (a.scrollTop + a.clientHeight / 2) / a.scrollHeight"
    ActionChains(page.browser).click(strip).perform()
    assert page.script(shown, area) == pytest.approx(0.5, abs=0.02)
    down = round(0.4 * strip.rect["height"])
    hand = ActionChains(page.browser).click_and_hold(strip).move_by_offset(0, down)
    hand.release().perform()
    assert page.script(shown, area) == pytest.approx(0.9, abs=0.02)
    page.script("arguments[0].scrollTop = arguments[0].scrollHeight", area)
    page.until(lambda: int(page.all(PIECES)[-1].get_attribute("data-n")) > 11_000)
    # On paper it is seen whole.
    plain = "return document.querySelectorAll('.ps-mirror .ps-chunk:not(:has([data-n]))').length"
    assert page.script(plain) > 10
    is_dark = "return document.body.classList.contains('dark')"
    page.script("document.body.classList.add('dark')")
    page.script("dispatchEvent(new Event('beforeprint'))")
    assert page.script(plain) == 0 and not page.script(is_dark)
    page.script("dispatchEvent(new Event('afterprint'))")
    assert page.script(is_dark)


def test_nothing_moves_while_the_page_is_drawn(browser, url):
    """On a slow machine its parts arrive one by one, and each pushed the others."""
    with patched(browser, SHIFT), slowed(browser):
        page = Page(browser, url)
        title = page.script("return getComputedStyle(document.body, '::before').content")
        page.until(lambda: says(page))
        time.sleep(1)  # for what would move after that
        shifts = page.script("return window.shifted")
    assert sum(value for value, *_ in shifts) < 0.01, shifts
    assert title == "none"  # it only stood in for the page's own


def test_the_text_is_printed_whole(page):
    page.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        mirror = page.one(".ps-mirror")
        assert page.script(
            "const e = arguments[0]; return e.scrollHeight <= e.clientHeight + 2", mirror
        )
        assert (
            page.one(".ps-big").is_displayed() and page.one(".ps-card .ps-signature").is_displayed()
        )
        assert not page.one("#text textarea").is_displayed() and not page.one("#bar").is_displayed()
    finally:
        page.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


def test_drawers_open_close_and_give_the_focus_back(page):
    """On a slow machine too: a drawer took no focus before it was drawn."""
    inside = "return arguments[0].contains(document.activeElement)"
    with slowed(page.browser):
        for name in ("settings", "share"):
            drawer = page.one(f"#{name}")
            page.until(lambda drawer=drawer: drawer.get_property("inert"))
            page.script("arguments[0].focus()", page.one(f"[data-open={name}]"))
            page.keys(Keys.ENTER)
            page.until(lambda drawer=drawer: page.script(inside, drawer))
            assert drawer.is_displayed()
            page.keys(Keys.ESCAPE)
            page.until(lambda drawer=drawer: not drawer.is_displayed())
            assert page.script("return document.activeElement.dataset.open") == name


def test_a_sample_is_one_click(page, monkeypatch):
    real, may_score = Service.score, threading.Event()

    def score_later(*arguments, **more):
        may_score.wait(60)
        return real(*arguments, **more)

    def press(name):
        page.choose("Sample", name)

    monkeypatch.setattr(Service, "score", score_later)
    move_window(page, 1)
    page.script("arguments[0].scrollTop = 99", page.one("#text textarea"))
    try:
        press("A long story")
        # The number of the text before stood there, bright, until the new one was scored.
        page.until(lambda: page.all(".ps-card.ps-stale"))
        # Another text begins at its beginning.
        page.until(lambda: says(page).startswith("Window 1 of"))
        assert page.one("#text textarea").get_property("scrollTop") == 0
    finally:
        may_score.set()
    for name in ("A limerick", "Nonsense"):
        press(name)
    page.until(lambda: page.text.startswith("Purple eleven"))
    page.score()
    assert page.shown == page.text
