"""Words that explain themselves, with the keyboard as well."""

from visitor import Keys

from space.intro_view import MEANINGS

OPEN = "return [...document.querySelectorAll('[popover]:popover-open')].map((card) => card.id)"


def test_each_word_explains_itself(page):
    page.script("document.querySelectorAll('details').forEach((fold) => { fold.open = true; })")
    for name, meaning in MEANINGS.items():
        key = name.replace(" ", "-")
        word = page.one(f"button[popovertarget=ps-about-{key}]")
        assert word.is_displayed(), name
        page.script("arguments[0].focus()", word)
        page.keys(Keys.ENTER)
        assert page.script(OPEN) == [f"ps-about-{key}"]
        assert meaning in page.one(f"#ps-about-{key}").text
        page.keys(Keys.ESCAPE)
        assert not page.script(OPEN), name
