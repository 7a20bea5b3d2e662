"""What a visitor types, chooses and presses."""

import time

import pytest
from visitor import PHONE, ActionChains, Keys, Page, start_browser

HOSTILE = "<img src=x onerror=\"window.hacked=1\"> ${window.hacked=2} {{hacked}} <b>bold</b> 'end'"
CHARACTERS = "Ça naïve, 你好 👩‍👩‍👧 e\u0301 end."


def test_tabbing_past_the_samples_leaves_ones_own_text_alone(page):
    page.write("Text", "I typed this with care.")
    for _ in range(6):
        page.keys(Keys.TAB)
    time.sleep(1)  # for an answer that must not come
    assert page.text == "I typed this with care."


def test_tabbing_past_the_model_leaves_window_and_stride_alone(page):
    for label, value in (("Window", "40"), ("Stride", "5")):
        page.write(f"number input for {label}", value + "\n")
    page.script("arguments[0].focus()", page.labelled("Model"))
    page.keys(Keys.TAB)
    time.sleep(1)
    assert [page.labelled(name).get_attribute("value") for name in ("Window", "Stride")] == [
        "40",
        "5",
    ]


def test_a_newcomer_sees_a_result_and_what_the_words_mean(page):
    assert float(page.one(".ps-big").text.replace(",", "")) > 1
    introduction = page.one(".ps-intro").text
    assert all(word in introduction for word in ("window", "stride", "context"))
    assert "tokens of context" in page.one(".ps-sketch").text


def test_a_visitor_types_a_text_and_scores_it(page):
    before = page.one(".ps-big").text
    page.write("Text", "The sea was calm, and the boats came home one by one.")
    page.score()
    assert page.one(".ps-big").text != before
    assert "interval" in page.one(".ps-interval").text


def test_the_call_to_copy_is_there(page):
    page.press("Cite, repeat and share")
    page.until(lambda: any("metric.compute" in code.text for code in page.all(".cm-content")))
    assert any("python score.py" in code.text for code in page.all(".cm-content"))
    assert "protocol:sliding" in page.one(".ps-signature").text


def test_a_sample_is_chosen_and_scored(page):
    page.choose("Or begin with a sample", "A short note")
    page.until(lambda: "blue pot" in page.labelled("Text").get_attribute("value"))
    page.score()


def test_a_file_is_uploaded(page, tmp_path):
    path = tmp_path / "mine.txt"
    path.write_text("An uploaded text about a harbour.", encoding="utf-8")
    page.one("input[type=file]").send_keys(str(path))
    page.until(lambda: "harbour" in page.labelled("Text").get_attribute("value"))
    assert "Press Score" in page.status


def test_a_file_that_is_no_text_is_refused_with_a_sentence(page, tmp_path):
    path = tmp_path / "picture.txt"
    path.write_bytes(b"\xff\xd8\xff\xe0 no text")
    page.one("input[type=file]").send_keys(str(path))
    page.until(lambda: "not plain text in UTF-8" in page.status)


def test_a_token_is_selected_by_pointing(page):
    page.tab("Tokens")
    page.until(lambda: len(page.all(".ps-text > span")) > 30)
    page.all(".ps-text > span")[20].click()
    told = page.one(".ps-detail").text
    assert "bits of surprise" in told and "guess" in told and "in window" in told
    assert len(page.all(".ps-guesses code")) == 5
    assert page.all(".ps-legend .ps-box")[0].is_displayed()


def test_tokens_are_reached_with_the_keyboard(page):
    page.tab("Tokens")
    text = page.one(".ps-text")
    page.until(lambda: text.get_attribute("role") == "listbox")
    page.script("arguments[0].focus()", text)
    ActionChains(page.browser).send_keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT).perform()
    [selected] = page.all('.ps-text [aria-selected="true"]')
    assert text.get_attribute("aria-activedescendant") == selected.get_attribute("id")
    ActionChains(page.browser).send_keys(Keys.END).perform()
    assert page.all(".ps-text > span")[-1].get_attribute("aria-selected") == "true"


def test_characters_stay_whole_and_say_so(page):
    page.write("Text", CHARACTERS)
    page.score()
    page.tab("Tokens")
    page.until(lambda: page.one(".ps-text").text == CHARACTERS)
    [family] = [span for span in page.all(".ps-text > span") if "👩‍👩‍👧" in span.text]
    family.click()
    told = page.one(".ps-detail").text
    assert "splits this into" in told and "Token 1 of" in told


def test_windows_step_and_follow_the_pointer(page):
    page.tab("Windows")
    page.until(lambda: page.all(".ps-row"))
    assert "Window 1 of" in page.one(".ps-says").text
    page.press("Next window")
    assert "Window 2 of" in page.one(".ps-says").text
    assert page.all(".ps-strip .in-context") and page.all(".ps-strip .in-new")
    scored_later = page.script(
        "const span = [...document.querySelectorAll('.ps-strip .in-new ~ .out')]"
        ".find(span => span.getClientRects().length === 1 && span.textContent.trim());"
        "span.scrollIntoView({block: 'center'}); return span"
    )
    ActionChains(page.browser).move_to_element(scored_later).perform()
    page.until(lambda: "is scored here" in page.one(".ps-says").text)
    assert "Window 3 of" in page.one(".ps-says").text
    assert len(page.all(".ps-row .ps-lit")) == 1


def test_windows_play(page):
    page.tab("Windows")
    page.until(lambda: page.all(".ps-row"))
    page.press("Play")
    page.until(lambda: "Window 3 of" in page.one(".ps-says").text)
    page.press("Pause")
    said = page.one(".ps-says").text
    time.sleep(1.2)  # longer than a step
    assert page.one(".ps-says").text == said


def test_strides_and_protocols_are_measured(page):
    page.write("Text", "It was a quiet evening in the village. " * 25)
    page.tab("Trade-off")
    page.press("Measure several strides")
    page.until(lambda: "Done." in page.status)
    assert len(page.all(".ps-table tbody tr")) == 5
    assert len(page.all(".ps-mark")) > 5
    page.tab("Protocols")
    page.press("Measure as every tool does")
    page.until(lambda: "Done." in page.status)
    page.until(lambda: len(page.all(".ps-tools tbody tr")) == 11)


def test_two_models_are_compared(page):
    page.tab("Compare")
    page.write("Compare with", "owner/bytes\n")
    page.press("Compare the two models")
    page.until(lambda: page.all(".ps-verdict"))
    assert "predicts this text better" in page.one(".ps-verdict").text
    page.all(".ps-text > span")[5].click()
    page.until(lambda: "owner/bytes:" in page.one(".ps-detail").text)


def test_a_named_model_sets_the_sliders(page):
    page.write("Model", "owner/bytes\n")
    page.until(lambda: "owner/bytes is ready" in page.status)
    page.until(lambda: page.labelled("Window").get_attribute("max") == "32")
    page.score()
    assert "owner/bytes" in page.one(".ps-label").text


def test_a_model_with_code_is_refused_with_a_sentence(page):
    page.write("Model", "owner/code\n")
    page.until(lambda: "program code of its own" in page.status)
    assert page.all('#status [role="alert"]')


def test_stop_stops(page):
    page.fill("Again the tide came in and went out. " * 1500)
    page.press("Score")
    page.until(lambda: "tokens read, perplexity so far" in page.status)
    assert page.all("#status progress")
    page.press("Stop")
    page.until(lambda: page.status.startswith("Stopped."))
    page.write("Text", "A short text afterwards.")
    page.score()


def test_a_text_over_the_budget_is_refused_with_a_sentence(page):
    page.fill("word " * 50000)
    page.press("Score")
    page.until(lambda: "this page takes 200,000 at most" in page.status)


def test_a_link_carries_the_settings(page, url):
    linked = Page(page.browser, url + "?stride=16&window=64&protocol=transformers-docs")
    linked.until(lambda: "Scored with" in linked.status, "a link does not score by itself")
    assert linked.labelled("Stride").get_attribute("value") == "16"
    assert linked.labelled("Window").get_attribute("value") == "64"
    linked.press("Cite, repeat and share")
    link = linked.one(".ps-view a").get_attribute("href")
    assert "stride=16" in link and "protocol=transformers-docs" in link


def test_a_visitors_text_is_never_run(page):
    page.script("window.hacked = 0")
    page.write("Text", HOSTILE)
    page.score()
    page.tab("Tokens")
    page.until(lambda: page.one(".ps-text").text == HOSTILE)
    for number in range(0, len(page.all(".ps-text > span")), 5):
        page.all(".ps-text > span")[number].click()
    page.tab("Windows")
    page.until(lambda: "bold" in page.one(".ps-strip").text)
    assert page.script("return window.hacked") == 0
    assert not page.all(".ps-view img, .ps-text b, .ps-strip b")


# The contrast of WCAG 2: (lighter + 0.05) / (darker + 0.05) of the relative luminances.
CONTRAST = """
const parts = (colour) => (colour.match(/[\\d.]+/g) || [0, 0, 0, 0]).map(Number);
const linear = (c) => (c /= 255) <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
const light = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
const ground = (element) => {
  for (; element; element = element.parentElement) {
    const colour = parts(getComputedStyle(element).backgroundColor);
    if (colour.length === 3 || colour[3] === 1) return colour;
  }
  return [255, 255, 255];
};
return [...document.querySelectorAll(arguments[0])].filter((e) => e.offsetParent).map((element) => {
  const pair = [light(parts(getComputedStyle(element).color)), light(ground(element))];
  const ratio = (Math.max(...pair) + 0.05) / (Math.min(...pair) + 0.05);
  return [element.textContent.slice(0, 30), ratio];
});
"""


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_everything_can_be_read(page, url, theme):
    themed = Page(page.browser, f"{url}?__theme={theme}")
    dark = themed.script("return document.body.classList.contains('dark')")
    assert dark == (theme == "dark")
    words = ".ps-view p, .ps-view small, .ps-view dt, .ps-view dd, .ps-view span, .ps-view button"
    for name in ("Score", "Tokens", "Windows"):
        themed.tab(name)
        expected = {"Score": ".ps-big", "Tokens": ".ps-text span", "Windows": ".ps-strip span"}[
            name
        ]
        themed.until(lambda selector=expected: themed.one(selector).is_displayed())
        pairs = themed.script(CONTRAST, f"{words}, label span, button")
        assert len(pairs) > 10
        faint = [(text, round(ratio, 2)) for text, ratio in pairs if ratio < 4.5]
        assert not faint


def test_every_control_has_a_name_for_screen_readers(page):
    for control in page.all("textarea, input:not([type=file]), button, [role=listbox]"):
        if control.is_displayed() and control.get_attribute("tabindex") != "-1":
            assert control.accessible_name.strip(), control.get_attribute("outerHTML")[:200]


def test_a_phone_shows_everything_without_sideways_scrolling(url, tmp_path):
    browser = start_browser(tmp_path / "profile", phone=True)
    try:
        page = Page(browser, url)
        page.write("Text", "A text typed on a telephone.")
        page.score()
        for name in ("Tokens", "Windows", "Protocols"):
            page.tab(name)
            page.until(lambda: page.all(".ps-view"))
            width = page.script("return document.documentElement.scrollWidth")
            assert width <= PHONE["width"]
    finally:
        browser.quit()


def test_nothing_is_asked_of_other_machines_and_nothing_fails(page):
    page.tab("Tokens")
    page.tab("Windows")
    page.until(lambda: page.all(".ps-row"))
    hosts = page.script(
        "return performance.getEntriesByType('resource').map(entry => new URL(entry.name).hostname)"
    )
    assert set(hosts) <= {"127.0.0.1", "localhost", ""}
    errors = [line for line in page.browser.get_log("browser") if line["level"] == "SEVERE"]
    assert not errors
