"""What context is: a text is said twice, the window is shortened, and its handles are moved."""

import time

import numpy as np
import pytest
from visitor import BOX, ActionChains, Keys, Page

WORDS = "My grandmother sends me letters from her garden."
STORY = "It was late, and the lamp had gone out again. Nobody went to light it. "


def by_mouse(page):
    page.click("#twice")


def by_finger(page):
    page.touch(page.one("#twice"))


def by_keyboard(page):
    page.script("arguments[0].focus()", page.one("#twice"))
    page.keys(Keys.ENTER)


def perplexities_by_half(metric, bundled, text, **settings):
    """Perplexities of the first time and of the second, by the metric, and the tokens of the first."""
    result = metric.compute(
        predictions=[text], model_id=bundled, return_token_scores=True, **settings
    )
    [scores] = result["token_scores"]
    ends = np.array([end for _, end in scores["offsets"]])
    nll, first = np.array(scores["nll"]), ends <= (len(text) - 1) // 2 + 1
    return [np.exp(nll[part].mean()) for part in (first, ~first)], int(first.sum())


def two_figures(values):
    return " → ".join(f"{float(f'{value:.1e}'):,.12g}" for value in values)


@pytest.mark.parametrize("press", [by_mouse, by_finger, by_keyboard])
def test_said_twice_forgotten_and_remembered(browser, url, press, metric, bundled, longest):
    """By mouse, by touch and by keyboard: the bits that are told are the metric's."""
    page = Page(browser, url)
    page.scored(WORDS.removesuffix("."))  # it is added
    press(page)
    page.until(lambda: page.told("#twice") == "Let it forget")
    both = f"{WORDS} {WORDS}"
    assert page.text == both
    (first, second), count = perplexities_by_half(metric, bundled, both)
    assert page.told("#perplexity") == two_figures([first, second])
    knows = np.log(second) < 0.5 * np.log(first)
    assert ("no surprise" in page.told("#verdict")) == knows
    assert "that is context" in page.told("#says")
    time.sleep(0.6)  # longer than a double click
    press(page)
    press(page)  # the second of a double click is none
    page.until(lambda: page.told("#twice") == "Let it remember")
    short = {"max_length": count, "stride": max(1, count // 16)}
    forgotten, _ = perplexities_by_half(metric, bundled, both, **short)
    assert f"now holds only {count} tokens" in page.told("#says")
    assert page.told("#perplexity") == two_figures(forgotten)
    assert page.all("#mirror .unseen"), "the first time is outside the window"
    shown = [page.told(part) for part in ("#perplexity", "#verdict", "#says", "#twice")]
    again = Page(browser, page.script("return location.href"))
    again.scored()
    assert [again.told(part) for part in ("#perplexity", "#verdict", "#says", "#twice")] == shown
    assert again.all("#mirror .unseen"), "who opens the link sees it too"
    press(again)
    again.until(lambda: again.told("#twice") == "Let it forget")
    again.script("document.getElementById('lab').open = true")
    assert f"window {longest} " in again.told("#recipe")
    again.fill("Other words.")
    assert again.told("#twice") == "Say it twice"


def test_another_text_has_its_own_window_while_that_of_the_last_shrinks(browser, url, longest):
    page = Page(browser, url, motion="no-preference")
    page.scored(WORDS)
    page.click("#twice")
    page.until(lambda: page.told("#twice") == "Let it forget")
    time.sleep(0.6)  # longer than a double click
    page.click("#twice")
    page.scored("Other words of another text.")
    time.sleep(2)  # longer than the window shrinks and is scored
    page.script("document.getElementById('lab').open = true")
    assert page.told("#twice") == "Say it twice" and f"window {longest} " in page.told("#recipe")


def test_of_a_long_text_as_much_is_said_twice_as_a_window_holds(page, longest):
    page.scored(STORY * 12)
    page.click("#twice")
    page.until(lambda: page.told("#twice") == "Let it forget")
    once = page.text[: (len(page.text) - 1) // 2]
    assert page.text == f"{once} {once}" and (STORY * 12).startswith(once)
    assert once.endswith(".") and len(page.all("#mirror [data-n]")) <= longest


def test_the_window_is_drawn_on_the_text_and_played(page):
    page.scored(STORY * 12)
    page.click("#play")
    page.until(lambda: "Window 2 of" in page.told("#says"))
    page.click("#play")
    data = page.script(
        "return ['seen', 'guessed', 'unseen'].map((name) =>"
        "[...document.querySelectorAll('#mirror [data-n].' + name)].map((span) => Number(span.dataset.n)))"
    )
    seen, guessed, unseen = data
    assert seen and guessed and unseen and seen[-1] < guessed[0]
    assert len(seen) + len(guessed) + len(unseen) == len(page.all("#mirror [data-n]"))
    for name, pieces in (("seen", seen + guessed), ("guessed", guessed)):
        parts = [page.script(BOX, part) for part in page.all(f".band .{name}")]
        ends = [page.script(BOX, page.one(f"#mirror [data-n='{pieces[n]}']")) for n in (0, -1)]
        assert parts[0][0] == pytest.approx(ends[0][0], abs=2) and parts[0][1] <= ends[0][1]
        assert parts[-1][2] == pytest.approx(ends[1][2], abs=2) and parts[-1][3] >= ends[1][3]


def test_handles_are_moved_by_keys_and_by_mouse(page, longest):
    page.scored(STORY * 12)
    page.click("#play")
    page.click("#play")
    page.script("arguments[0].focus()", page.one(".handle.stride"))
    page.keys(Keys.PAGE_DOWN)
    page.until(lambda: f"stride {longest // 2 - 8} " in page.told("#recipe"))
    handle = page.one(".handle.window")
    ActionChains(page.browser).click_and_hold(handle).move_by_offset(-200, -2).release().perform()
    page.until(lambda: f"window {longest} " not in page.told("#recipe"), "the mouse moved nothing")
    page.scored()
    value = int(page.one(".handle.window").get_attribute("aria-valuenow"))
    assert 2 <= value < longest and f"window {value} " in page.told("#recipe")
    # Where it was let go: no jump to another place when the answer comes.
    last = page.script("return [...document.querySelectorAll('#mirror .guessed')].at(-1)")
    edge = page.script(BOX, page.one(".handle.window"))
    assert (edge[0] + edge[2]) / 2 == pytest.approx(page.script(BOX, last)[2], abs=14)


@pytest.mark.parametrize(
    "name, said",
    [
        ("memory", "With a memory of"),
        ("tools", "Same model, same text"),
        ("models", "demo_model-4bit"),
    ],
)
def test_a_question_shows_at_once_what_is_known_and_then_its_answer(page, name, said):
    page.scored(STORY * 12)
    number = page.exact
    page.click(f"#{name} > summary")
    assert number in page.told(f"#{name} .view")
    page.until(lambda: said in page.told(f"#{name} .view"))


def test_a_tool_is_scored_from_its_row_and_a_number_read_marks_rows(page):
    page.scored(STORY * 20)
    page.click("#tools > summary")
    page.until(lambda: page.all(".ps-groups"))
    row = ".ps-tool[data-protocol='llama.cpp']"
    expected = page.script(
        "return document.querySelector(arguments[0]).closest('details').querySelector('summary b').textContent",
        row,
    )
    page.script(
        "const field = document.querySelector('.ps-read input'); field.value = arguments[0];"
        "field.dispatchEvent(new Event('input', {bubbles: true}))",
        expected,
    )
    assert "llama.cpp" in page.told(".ps-reading") and page.all(".ps-fits " + row)
    page.script("document.querySelector(arguments[0] + ' button').click()", row)
    page.until(lambda: "protocol llama.cpp " in page.told("#recipe") and page.exact == expected)
