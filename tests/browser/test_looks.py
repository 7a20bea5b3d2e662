"""What everybody can read and reach: contrast, names, focus, a phone's width, no other machines."""

import pytest
from visitor import PHONE, Page, start_browser

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
return [...document.querySelectorAll(arguments[0])].filter((e) => e.offsetParent && e.textContent.trim()).map((element) => {
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
    words = ".ps-view p, .ps-view small, .ps-view dt, .ps-view dd, .ps-view span, .ps-view b, .ps-view label, .ps-view button"
    for colour in ("surprise", "rank", "context", "window"):
        themed.script("arguments[0].click()", themed.one(f'.ps-choice input[value="{colour}"]'))
        pairs = themed.script(CONTRAST, f"{words}, label span, button")
        assert len(pairs) > 100
        faint = [(text, round(ratio, 2)) for text, ratio in pairs if ratio < 4.5]
        assert not faint


def test_every_control_has_a_name_for_screen_readers(page):
    for control in page.all("textarea, input:not([type=file]), button, [role=listbox]"):
        if control.is_displayed() and control.get_attribute("tabindex") != "-1":
            assert control.accessible_name.strip(), control.get_attribute("outerHTML")[:200]


def test_the_focus_of_the_sliders_can_be_seen(page):
    for label in ("Window", "Stride"):
        slider = page.labelled(f"range slider for {label}") or page.labelled(label)
        page.script("document.activeElement.blur()")
        page.keys("\ue004")  # Tab: from here on the browser shows where the focus is
        page.script("arguments[0].focus()", slider)
        style = page.script(
            "const s = getComputedStyle(arguments[0]); return [s.outlineStyle, parseFloat(s.outlineWidth)]",
            slider,
        )
        assert style[0] != "none" and style[1] >= 2


def test_a_phone_shows_everything_without_sideways_scrolling(url, tmp_path):
    browser = start_browser(tmp_path / "profile", phone=True)
    try:
        page = Page(browser, url)
        page.write("Text", "A text typed on a telephone.")
        page.score()
        for name in ("Result", "Why context helps", "Tools", "Compare"):
            page.tab(name)
            page.until(lambda: page.all(".ps-view"))
            width = page.script("return document.documentElement.scrollWidth")
            assert width <= PHONE["width"]
    finally:
        browser.quit()


def test_nothing_is_asked_of_other_machines_and_nothing_fails(page, url):
    page.browser.get("about:blank")
    page.browser.get_log("browser")  # what the visit before left behind
    page = Page(page.browser, url)
    page.until(lambda: page.all(".ps-picture"))
    hosts = page.script(
        "return performance.getEntriesByType('resource').map(entry => new URL(entry.name).hostname)"
    )
    assert set(hosts) <= {"127.0.0.1", "localhost", ""}
    errors = [line for line in page.browser.get_log("browser") if line["level"] == "SEVERE"]
    assert not errors


def test_the_result_comes_in_sight_where_it_stands_below(page):
    """Between a telephone's width and that of two columns, nothing seemed to happen."""
    page.browser.set_window_size(740, 900)
    try:
        page.script("scrollTo(0, 0)")
        page.script("arguments[0].click()", page.labelled("Score"))
        page.until(lambda: "Scored with" in page.status)
        page.until(lambda: page.script("return scrollY") > 300, "the page stayed where it was")
        top = page.script("return document.querySelector('.ps-big').getBoundingClientRect().top")
        assert 0 < top < 700
    finally:
        page.browser.set_window_size(1360, 1000)
