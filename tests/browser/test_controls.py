"""What a visitor types, chooses and presses."""

import io
import time

from PIL import Image
from visitor import ActionChains, Keys, Page

from space import handlers


def test_the_handles_are_reached_by_tab_from_the_text(page):
    """The caret at the end of the text took the window out of sight, and with it both handles."""
    page.script("arguments[0].focus()", page.labelled("Settings"))
    stops = []
    for _ in range(3):
        page.keys(Keys.TAB)
        stops.append(page.script("return document.activeElement.className"))
    assert "ps-handle-window" in stops[1] and "ps-handle-stride" in stops[2]


def test_tabbing_past_the_samples_leaves_ones_own_text_alone(page):
    page.write("Text", "I typed this with care.")
    for _ in range(6):
        page.keys(Keys.TAB)
    time.sleep(1)  # for an answer that must not come
    assert page.text == "I typed this with care."


def test_the_text_box_shows_that_it_has_the_focus(page):
    """What was drawn around it lay out of sight."""

    def edge():
        """Colours along the upper edge of what a visitor sees of the box."""
        picture = Image.open(io.BytesIO(page.one("#text textarea").screenshot_as_png))
        middle = picture.width // 2
        return {picture.convert("RGB").getpixel((middle, y)) for y in range(8)}

    page.script("arguments[0].focus()", page.labelled("Settings"))
    before = edge()
    page.keys(Keys.TAB)
    assert page.script("return document.activeElement.tagName") == "TEXTAREA"
    page.until(lambda: edge() - before)
    assert any(blue > 2 * red for red, _, blue in edge() - before)


def test_a_list_closes_when_one_goes_on(page):
    """Gradio opened it at every key, at Tab once more."""
    page.press("Model")
    page.until(lambda: page.all("ul[role=listbox]"))
    page.keys(Keys.TAB)
    assert page.script("return document.activeElement.dataset.open") == "settings"
    page.until(lambda: not page.all("ul[role=listbox]"))
    page.press("Model")
    page.until(lambda: page.all("ul[role=listbox]"))
    ActionChains(page.browser).key_down(Keys.SHIFT).send_keys(Keys.TAB).key_up(Keys.SHIFT).perform()
    page.until(lambda: not page.all("ul[role=listbox]"), "Shift opened it")


CLOSED_WITH_FOCUS = """
return document.activeElement === arguments[0] && !document.querySelector("ul[role=listbox]");
"""


def test_a_choice_leaves_the_focus_where_it_was_made(page):
    """It went to nothing, and the next Tab began at the end of the page."""
    page.open("settings")
    field = page.until(lambda: page.labelled("Protocol"))
    page.script("arguments[0].focus()", field)
    page.until(lambda: page.all("ul[role=listbox]"))
    page.keys(Keys.ARROW_DOWN, Keys.ENTER)
    page.until(
        lambda: page.script(CLOSED_WITH_FOCUS, field), "the focus is lost, or the list opens"
    )
    assert page.all("#settings.ps-open"), "and the drawer is open still"
    page.until(lambda: "Scored with" in page.status)


def test_a_drawer_is_named_and_keeps_the_focus(page):
    page.open("settings")
    opener, drawer = page.one("[data-open=settings]"), page.one("#settings")
    assert (drawer.aria_role, drawer.accessible_name) == ("dialog", "Settings")
    assert opener.get_attribute("aria-expanded") == "true"
    page.until(lambda: page.script("return document.activeElement.dataset.close === ''"))
    at = "return arguments[0].contains(document.activeElement) && document.activeElement.outerHTML"
    stops = [page.script(at, drawer)]
    for _ in range(40):
        page.keys(Keys.TAB)
        stops.append(page.script(at, drawer))
        if stops[-1] == stops[0]:
            break
    assert all(stops) and stops[-1] == stops[0] and len(stops) > 3, "round and round in it"
    ActionChains(page.browser).key_down(Keys.SHIFT).send_keys(Keys.TAB).key_up(Keys.SHIFT).perform()
    assert page.script(at, drawer) == stops[-2]
    page.keys(Keys.ESCAPE)
    assert not page.all("#settings.ps-open") and opener.get_attribute("aria-expanded") == "false"
    # What a screen reader calls the box: its label holds the handles too.
    assert page.one("#text textarea").accessible_name == "Text"


def test_a_button_that_goes_leaves_the_focus_to_the_number(page):
    page.fill("A text that nobody has scored yet, " * 600)
    button = page.until(lambda: page.labelled("Score"))
    page.script("arguments[0].focus()", button)
    page.keys(Keys.ENTER)
    page.until(lambda: page.is_scored)
    page.until(lambda: page.script("return document.activeElement.matches('.ps-card')"))


def test_a_sample_that_was_changed_is_no_longer_the_sample(page):
    sample = page.one("#samples input")
    assert sample.get_property("value") == "A story"
    story = page.text
    page.one("#text textarea").click()
    page.keys("x")
    page.until(lambda: sample.get_property("value") == "Your own text")
    # Of two choices in a row the first text comes under the second name: its own name comes back with it.
    page.fill(story)
    page.until(lambda: sample.get_property("value") == "A story")


def test_a_visitor_types_a_text_and_scores_it(page):
    before = page.one(".ps-big").text
    page.write(
        "Text", "The sea was calm, and the boats came home one by one, as on every evening. " * 2
    )
    page.score()
    assert page.one(".ps-big").text != before
    assert "interval" in page.told(".ps-interval")


def test_the_card_says_how_its_number_was_made(page, longest):
    page.open("settings")
    page.choose("Protocol", "llama.cpp")
    page.score()
    recipe = page.told(".ps-recipe")
    assert "llama.cpp" in recipe and f"window {longest}" in recipe and "start token" in recipe


# What a note said as it came, and then: it is silent for too short a time to be asked.
RECORD_NOTE = """
window.noted = [];
new MutationObserver(() => {
  const note = document.querySelector(".ps-card .ps-stale-note");
  if (note) window.noted.push(note.textContent);
}).observe(document.querySelector("#aside"), {childList: true, subtree: true});
"""


def test_a_result_says_when_it_is_not_of_the_present_text(page):
    """Old numbers stood beside new texts without a sign."""
    page.script(RECORD_NOTE)
    page.fill("A text that nobody has scored yet, " * 600)
    page.until(lambda: page.script("return window.noted.at(-1)?.includes('not scored yet')"))
    assert page.script("return window.noted[0]") == "", "it is read out at every pause of typing"
    note = page.one(".ps-card .ps-stale-note")
    assert note.get_attribute("role") == "status"
    # It fades in, makes room for itself, and covers nothing.
    page.until(lambda: note.rect["height"] > 20)
    page.until(lambda: note.rect["y"] + note.rect["height"] <= page.one(".ps-label").rect["y"])
    # The same note says so where there is no text, and takes it back.
    page.fill("  ")
    page.until(lambda: "No text is there" in note.get_property("textContent"))
    page.fill("A text that nobody has scored, " * 600)
    page.until(lambda: "not scored yet" in note.get_property("textContent"))
    page.fill("A short text in its place.")
    page.until(lambda: page.is_scored)
    page.fill("  ")  # Score would lead nowhere
    page.until(lambda: "No text is there to score" in page.told(".ps-stale-note"))


def test_the_call_to_copy_is_there(page):
    page.open("share")
    page.until(lambda: "metric.compute" in page.told("#share"))
    assert "python score.py" in page.told("#share")
    assert "protocol:sliding" in page.told("#share .ps-signature")


CORRECTED = ".ps-corrected"


def test_numbers_that_cannot_be_used_are_corrected_with_a_word(page, longest):
    """A window of 3.7 stood there while 3 was scored, and one of 1000 became 64 in silence."""
    for name, typed, used, said in (
        ("window", "1000", str(longest), f"between 2 and {longest} tokens: 1,000 became {longest}"),
        ("window", "0", "2", f"between 2 and {longest} tokens: 0 became 2"),
        ("window", "40.7", "40", "a whole number of tokens: 40.7 became 40"),
        ("stride", "50", "40", "between 1 and 40 tokens: 50 became 40"),
    ):
        field = page.number(name)
        field.send_keys(Keys.CONTROL, "a")
        field.send_keys(typed + Keys.TAB)
        page.until(lambda: field.get_property("value") == used and said in page.told(CORRECTED))  # noqa: B023
    page.until(lambda: "window 40 · stride 40" in page.told(".ps-recipe"))
    page.number("stride").send_keys(Keys.CONTROL, "a")
    page.number("stride").send_keys("20" + Keys.TAB)
    page.until(lambda: not page.all(CORRECTED))


def test_a_slow_answer_undoes_no_number(page, longest, monkeypatch):
    """What stood in the fields before was put back by the answer to a letter typed before it."""
    real = handlers.typed_sliders
    monkeypatch.setattr(handlers, "typed_sliders", lambda *typed: time.sleep(1) or real(*typed))

    def enter(name, typed):
        page.number(name).send_keys(Keys.CONTROL, "a")
        page.number(name).send_keys(typed + Keys.TAB)

    def sizes():
        return [page.number(name).get_property("value") for name in ("window", "stride")]

    enter("window", "40")
    enter("stride", "50")
    page.until(lambda: sizes() == ["40", "40"])
    enter("stride", "30")
    enter("window", "10")
    page.until(lambda: sizes() == ["10", "10"], "the stride follows the window")
    enter("window", "100")
    page.until(lambda: "window 100 · stride 30 " in page.told(".ps-recipe"))
    time.sleep(1.5)  # for an answer that must not come
    assert sizes() == ["100", "30"], "and comes back with it"


def test_a_file_is_uploaded(page, tmp_path):
    path = tmp_path / "mine.txt"
    path.write_text("An uploaded text about a harbour.", encoding="utf-8")
    page.one("input[type=file]").send_keys(str(path))
    page.until(lambda: "harbour" in page.shown and page.is_scored, "a short file scores itself")


def test_a_file_that_is_no_text_is_refused_with_a_sentence(page, tmp_path):
    path = tmp_path / "picture.txt"
    path.write_bytes(b"\xff\xd8\xff\xe0 no text")
    page.one("input[type=file]").send_keys(str(path))
    page.until(lambda: "not plain text in UTF-8" in page.status)
    time.sleep(2)  # for a score of the text before, which must not come
    assert "not plain text in UTF-8" in page.status


def test_a_named_model_sets_the_sliders(page):
    page.write("Model", "owner/bytes \n")
    page.until(lambda: "owner/bytes is ready" in page.status)
    page.until(lambda: page.number("window").get_attribute("max") == "32")
    page.score()
    assert "owner/bytes" in page.told(".ps-label")
    page.until(
        lambda: not page.all(".ps-stale"), "a space behind the name makes the result an old one"
    )


def test_a_model_with_code_is_refused_with_a_sentence(page):
    page.write("Model", "owner/code\n")
    page.until(lambda: "program code of its own" in page.told('#status [role="alert"]'))
    page.until(lambda: page.one("#model input").get_property("value").startswith("demo_model"))


# How many tokens the text has whose progress is drawn; words and bar are read at once.
BEING_READ = """
const said = document.querySelector("#status p:has(+ progress)")?.textContent ?? "";
return Number(/of ([\\d,]+) tokens read, perplexity so far/.exec(said)?.[1].replaceAll(",", "") ?? 0);
"""


def test_stop_stops(page, held):
    def note():
        return page.told(".ps-card .ps-stale-note")

    page.fill("The tide came in and went out. " * 500)  # which is scored by itself
    page.until(lambda: "new ones are being computed" in note(), "it says to press Score")
    shorter = page.until(lambda: page.script(BEING_READ))
    page.fill("Again the tide came in and went out. " * 1500)
    page.press("Score")
    page.until(lambda: page.script(BEING_READ) > shorter, "no progress of the longer text")
    page.press("Stop")
    page.until(lambda: page.status.startswith("Stopped."))
    page.until(lambda: "Press Score" in note(), "it says that something is being computed")
    page.write("Text", "A short text afterwards.")
    page.score()


def test_a_text_over_the_budget_is_refused_with_a_sentence(page):
    page.fill("word " * 50000)
    page.press("Score")
    page.until(lambda: "this page takes 200,000 at most" in page.status)


def test_a_link_carries_the_settings(page, url):
    linked = Page(page.browser, url + "?stride=16&window=64&protocol=transformers-docs")
    linked.until(lambda: linked.is_scored, "a link does not score by itself")
    assert linked.number("stride").get_attribute("value") == "16"
    assert linked.number("window").get_attribute("value") == "64"
    # A mean over windows is nothing that the tokens read so far have.
    linked.until(lambda: "so far" not in linked.told("#steps .ps-says"))
    linked.open("share")
    link = linked.one("a.ps-link").get_attribute("href")
    assert "stride=16" in link and "protocol=transformers-docs" in link
