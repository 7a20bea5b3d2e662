"""Words that explain themselves, and the tour: with the keyboard as well."""

import pytest
from visitor import Keys

from space.intro_view import MEANINGS, STEPS

FOCUS = "return document.activeElement.textContent"
OPEN = "return [...document.querySelectorAll('[popover]:popover-open')].map((card) => card.id)"


@pytest.mark.parametrize("name", MEANINGS)
def test_a_word_explains_itself(page, name):
    key = name.replace(" ", "-")
    word = page.one(f"button[popovertarget=ps-about-{key}]")
    assert word.is_displayed()
    page.script("arguments[0].focus()", word)
    page.keys(Keys.ENTER)
    assert page.script(OPEN) == [f"ps-about-{key}"]
    assert MEANINGS[name] in page.one(f"#ps-about-{key}").text
    page.keys(Keys.ESCAPE)
    assert not page.script(OPEN)


def test_the_tour_is_walked_with_the_keyboard(page):
    page.script("arguments[0].focus()", page.labelled("Take the tour"))
    for number, (title, words) in enumerate(STEPS, 1):
        page.keys(Keys.ENTER)  # the button that goes on has the focus
        assert page.script(OPEN)[-1] == f"ps-tour-{number}"
        shown = page.one(f"#ps-tour-{number}")
        assert title in shown.text and words in shown.text
        top = page.script(
            "const r = arguments[0].getBoundingClientRect();"
            "return document.elementFromPoint(r.x + r.width / 2, r.y + r.height / 2).closest('[popover]').id",
            shown,
        )
        assert top == f"ps-tour-{number}"  # it lies on those before
    page.keys(Keys.ENTER)
    assert not page.script(OPEN)
    page.until(lambda: page.script(FOCUS) == "Take the tour", "the focus is lost")
    page.keys(Keys.ENTER, Keys.ENTER, Keys.ENTER)
    for focus in ("Next", "Next", "Take the tour"):
        page.keys(Keys.ESCAPE)
        page.until(lambda focus=focus: page.script(FOCUS) == focus, "the focus is lost")
    assert not page.script(OPEN)
