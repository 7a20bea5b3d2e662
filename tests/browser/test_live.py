"""What happens by itself: short texts score again, opened tabs measure, and both say what changed."""

import time

import pytest
from visitor import Keys, Page, ask_for_motion, patched

from space.samples import samples

BACKSPACE = {"type": "keyDown", "key": "Backspace", "code": "Backspace", "windowsVirtualKeyCode": 8}


def scored_text(page):
    return page.told(".ps-recipe")


def test_a_moved_slider_scores_again_and_says_what_changed(page, metric, bundled, longest):
    before = page.one(".ps-big output").text
    page.script("arguments[0].focus()", page.labelled("Handle of the stride"))
    page.keys(Keys.PAGE_DOWN)  # one key: of several, a slow browser may send each
    stride = longest // 2 - 8
    page.until(lambda: f"stride {stride} " in scored_text(page), "nothing was scored by itself")
    [text, *_] = samples().values()
    results = [
        metric.compute(predictions=[text], model_id=bundled, max_length=longest, stride=stride)
        for stride in (longest // 2, stride)
    ]
    after = page.one(".ps-big output").text
    assert float(after) == pytest.approx(results[1]["perplexity"], rel=1e-3)
    change = page.one(".ps-change").text
    work = results[1]["num_forward_tokens"] / results[0]["num_forward_tokens"]
    assert change.startswith(f"{before} → {after}, ")
    assert f"{work:.1f} × the work" in change


def test_a_change_of_what_is_scored_is_said_beside_the_number(page, longest):
    """Without its first token, a text looked better predicted."""
    page.open("settings")
    page.choose("Protocol", "llama.cpp")
    page.until(lambda: "llama.cpp" in scored_text(page) and page.one(".ps-change").text)
    assert page.one(".ps-change").text.split(", ")[-1].startswith("not comparable:")
    page.choose("Protocol", "sliding")
    as_before = f"protocol sliding · window {longest} · stride {longest // 2} "
    page.until(lambda: as_before in scored_text(page))


def test_a_short_text_scores_itself_while_it_is_typed(page):
    page.write("Text", "The sea was calm.")
    page.until(lambda: page.shown == "The sea was calm." and page.is_scored)


def test_what_is_pasted_or_deleted_is_scored_like_what_is_typed(page):
    page.write("Text", "The sea was calm.")
    page.until(lambda: page.shown == "The sea was calm.")
    for command, argument, text in [
        ("Input.insertText", {"text": " A gull"}, "The sea was calm. A gull"),
        ("Input.dispatchKeyEvent", BACKSPACE, "The sea was calm. A gul"),
    ]:
        page.browser.execute_cdp_cmd(command, argument)
        page.until(lambda text=text: page.shown == text and page.is_scored, command)


def test_a_long_text_waits_for_the_button(page):
    page.fill("Again the tide came in and went out. " * 1200)
    page.until(lambda: page.all(".ps-card.ps-stale"))
    time.sleep(2)
    assert page.all(".ps-card.ps-stale")
    assert "Scor" not in page.status


# What the page asks for while it is drawn reaches the server late, after the first click.
LATE = """
const send = window.fetch, late = new Promise((done) => addEventListener("click", () => setTimeout(done, 500)));
window.fetch = async (address, ...more) => {
  if (String(address).includes("/queue/join") && !window.clicked) await late;
  return send(address, ...more);
};
addEventListener("click", () => { window.clicked = true; }, true);
"""


def test_a_tab_that_is_opened_before_the_page_is_ready_is_filled(browser, url):
    """What opening it asked for was forgotten by the first answers."""
    ask_for_motion(browser, "reduce")
    with patched(browser, LATE):
        page = Page(browser, url)
        page.tab("Other models")
        page.until(lambda: page.all(".ps-verdict"), "opening the tab compared nothing")
        page.until(lambda: "Done." in page.status)


def test_the_list_of_needy_tokens_leads_to_them(page):
    page.tab("Other strides")
    page.until(lambda: "Done." in page.status and page.all(".ps-pieces li"))
    rows = [row.text.split("\n") for row in page.all(".ps-pieces li")]
    assert all(row[0].isalpha() for row in rows if "same word" in row[-1])  # no sign is a word
    last = page.all(".ps-pieces li")[-1]
    word, saved = (
        last.find_element("css selector", "button"),
        last.find_element("css selector", "b"),
    )
    expected, bits = word.text, float(saved.text.split()[0])
    page.script("arguments[0].click()", word)
    told = page.one("[data-view=gain] .ps-detail").text
    assert expected in told and "The added context saved" in told
    assert float(told.split("saved ")[1].split()[0]) == pytest.approx(bits, abs=0.06)
