"""Words that explain themselves, with the keyboard as well."""

import pytest
from visitor import Keys

from space.intro_view import MEANINGS

OPEN = "return [...document.querySelectorAll('[popover]:popover-open')].map((card) => card.id)"


@pytest.mark.parametrize("name", MEANINGS)
def test_a_word_explains_itself(page, name):
    key = name.replace(" ", "-")
    word = page.one(f"button[popovertarget=ps-about-{key}]")
    page.script("document.querySelectorAll('details').forEach((fold) => { fold.open = true; })")
    assert word.is_displayed()
    page.script("arguments[0].focus()", word)
    page.keys(Keys.ENTER)
    assert page.script(OPEN) == [f"ps-about-{key}"]
    assert MEANINGS[name] in page.one(f"#ps-about-{key}").text
    page.keys(Keys.ESCAPE)
    assert not page.script(OPEN)
