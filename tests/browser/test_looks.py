"""What everybody can read and reach: contrast, names, focus, a phone's width, no other machines."""

import pytest
from visitor import PHONE, Keys, Page, ask_for_motion

# The contrast of WCAG 2: (lighter + 0.05) / (darker + 0.05) of the relative luminances.
CONTRAST = """
const parts = (colour) => {
  const numbers = (colour.match(/[\\d.]+/g) || [0, 0, 0, 0]).map(Number);
  return colour.startsWith("color(srgb") ? numbers.map((part, n) => n < 3 ? 255 * part : part) : numbers;
};
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
def test_everything_can_be_read(browser, url, theme):
    ask_for_motion(browser, "reduce")
    themed = Page(browser, f"{url}?__theme={theme}")
    dark = themed.script("return document.body.classList.contains('dark')")
    assert dark == (theme == "dark")
    words = ".ps-view p, .ps-view small, .ps-view dt, .ps-view dd, .ps-view span, .ps-view b, .ps-view label, .ps-view button"
    for colour in ("surprise", "rank", "context", "window"):
        themed.script("arguments[0].click()", themed.one(f'.ps-choice input[value="{colour}"]'))
        pairs = themed.script(CONTRAST, f"{words}, .ps-mirror [data-n], label span, button")
        assert len(pairs) > 100
        faint = [(text, round(ratio, 2)) for text, ratio in pairs if ratio < 4.5]
        assert not faint


def test_colours_that_say_something_outlive_those_of_a_system(page):
    """In high contrast, surprise had no colours, and guesses no bars."""
    sight = {"features": [{"name": "forced-colors", "value": "active"}]}
    page.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", sight)
    try:
        colour = "return getComputedStyle(document.querySelector(arguments[0])).backgroundColor"
        boxes = {page.script(colour, f".ps-colours .b{level}") for level in range(1, 6)}
        assert len(boxes) == 5
        assert page.script(colour, ".ps-mirror .b4") in boxes
        pairs = page.script(CONTRAST, ".ps-mirror [data-n], .ps-box")
        assert not [(text, ratio) for text, ratio in pairs if ratio < 4.5]
    finally:
        page.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_every_control_has_a_name_for_screen_readers(page):
    for control in page.all("textarea, input:not([type=file]), button, [role=listbox]"):
        if control.is_displayed() and control.get_attribute("tabindex") != "-1":
            assert control.accessible_name.strip(), control.get_attribute("outerHTML")[:200]


# Controls whose middle is less than 22 pixels from something else, but for words in a sentence and marks
# in a chart, which touch each other.
SMALL = """
const small = [];
for (const control of document.querySelectorAll(`${arguments[0]} :is(button, a[href], input, textarea, summary, [role=slider], [role=listbox])`)) {
  const area = control.closest("label:has(input[type=radio])") ?? control;
  if (!control.checkVisibility({visibilityProperty: true}) || control.closest("[popover]") || control.matches(".ps-mark")) continue;
  if (getComputedStyle(area).display === "inline" && area.parentNode.textContent.trim() !== area.textContent.trim()) continue;
  area.scrollIntoView({block: "center", behavior: "instant"});
  const {left, right, top, bottom} = area.getBoundingClientRect(), x = (left + right) / 2, y = (top + bottom) / 2;
  if (Math.min(right - left, bottom - top) < 2) continue; // of an upload, and of tabs that are only measured
  const hits = [[0, 0], [0, -21], [0, 21], [-21, 0], [21, 0]].filter(([dx, dy]) => area.contains(document.elementFromPoint(x + dx, y + dy)));
  if (hits.length < 5) small.push(`${control.tagName} ${control.ariaLabel ?? control.textContent.trim() ?? control.type} ${right - left}x${bottom - top}`);
}
return small;
"""
# Sizes of letters, typefaces and corners of what is shown.
LOOKS = """
const sizes = new Set(), faces = new Set(), corners = new Set();
for (const element of document.querySelectorAll("body *")) {
  const box = element.getBoundingClientRect(), looks = getComputedStyle(element);
  if (!element.checkVisibility({visibilityProperty: true, opacityProperty: true}) || Math.min(box.width, box.height) < 2) continue;
  const says = element.matches("input, textarea") || [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
  if (says && !element.closest("footer")) { sizes.add(looks.fontSize); if (!element.closest("code, pre, .ps-piece")) faces.add(looks.fontFamily.split(",")[0]); }
  if (says || looks.borderTopWidth !== "0px") looks.borderRadius.split(" ").forEach((corner) => corners.add(corner));
}
return [[...sizes], [...faces], [...corners]];
"""


def test_one_typeface_one_scale_and_one_radius(page):
    """Whatever opened beside gradio's own parts had another typeface, and sizes of its own."""

    def check():
        sizes, faces, corners = map(set, page.script(LOOKS))
        assert sizes <= {"13px", "16px", "18px", "24px", "48px"}
        assert faces == {"Inter"}
        # The page's radius, that of words and marks, from which gradio takes a pixel, and round dots.
        assert corners <= {"0px", "8px", "4px", "3px", "50%"}

    check()
    page.script("document.querySelectorAll('.ps-more > summary').forEach((fold) => fold.click())")
    page.one("#text textarea").click()
    page.until(lambda: page.one(".ps-tip").is_displayed())
    check()
    page.open("share")
    page.until(lambda: not page.all("#share.ps-waits"))
    check()
    page.keys(Keys.ESCAPE)
    page.script("arguments[0].click()", page.one("[data-open=game]"))
    page.until(lambda: page.all(".ps-game .ps-main"))
    check()
    page.keys(Keys.ENTER)
    page.until(lambda: page.all(".ps-option"))
    check()
    page.keys(Keys.ESCAPE)


AT_REST = """
const drawer = document.getElementById(arguments[0]), { bottom } = drawer.getBoundingClientRect();
return bottom <= innerHeight + 1 && drawer.getAnimations().every((one) => one.playState === "finished");
"""


# What the tabs of comparisons have once they are measured.
FILLED = {"Other strides": ".ps-pieces", "Other tools": ".ps-group", "Other models": ".ps-verdict"}


def test_a_finger_hits_every_control(phone):
    for name in ("Your text", *FILLED):
        phone.tab(name)
        if name in FILLED:
            phone.until(lambda name=name: phone.one(FILLED[name]).is_displayed())
        assert not phone.script(SMALL, "body"), name
    for drawer in ("share", "settings"):
        phone.open(drawer)
        phone.until(lambda: not phone.all("#share.ps-waits"))
        phone.until(lambda drawer=drawer: phone.script(AT_REST, drawer), "it slides on")
        assert not phone.script(SMALL, f"#{drawer}"), drawer
        phone.keys(Keys.ESCAPE)
    phone.script("arguments[0].click()", phone.one("[data-open=game]"))
    phone.until(lambda: phone.all(".ps-game .ps-main"))
    phone.keys(Keys.ENTER)
    phone.until(lambda: phone.all(".ps-option"))
    assert not phone.script(SMALL, "#ps-game")


def test_a_phone_shows_everything_without_sideways_scrolling(phone):
    phone.press("Edit the text")
    phone.write("Text", "A text typed on a telephone.")
    phone.score()
    for name in ("Your text", *FILLED):
        phone.tab(name)
        phone.until(lambda: phone.all(".ps-view"))
        width = phone.script("return document.documentElement.scrollWidth")
        assert width <= PHONE["width"]


def test_nothing_is_asked_of_other_machines_and_nothing_fails(browser, url):
    browser.get("about:blank")
    browser.get_log("browser")  # what the visit before left behind
    page = Page(browser, url)
    page.until(lambda: page.all(".ps-story"))
    hosts = page.script(
        "return performance.getEntriesByType('resource').map(entry => new URL(entry.name).hostname)"
    )
    assert set(hosts) <= {"127.0.0.1", "localhost", ""}
    errors = [line for line in page.browser.get_log("browser") if line["level"] == "SEVERE"]
    assert not errors
