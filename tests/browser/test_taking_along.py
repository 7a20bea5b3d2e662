"""What a visitor takes along and comes back to: addresses, a text over a reload, pictures."""

import time
import xml.etree.ElementTree as ElementTree

import pytest
from PIL import Image
from visitor import Keys, Page

from space.limits import Limits
from space.links import TEXT, unpack


def result_of(page):
    return page.one(".ps-card").get_attribute("data-payload")


@pytest.fixture
def downloads(page, tmp_path):
    """Where the browser puts what is saved."""
    page.browser.execute_cdp_cmd(
        "Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)}
    )

    def saved(name):
        path = tmp_path / name
        page.until(lambda: path.exists() and path.stat().st_size, f"{name} was not saved")
        return path

    return saved


def test_the_address_follows_text_and_settings(page):
    assert not page.script("return location.hash")  # nothing was asked yet
    page.write("Text", "A text for the address bar. " * 17)
    page.until(lambda: unpack(page.script("return location.hash"), Limits()).get(TEXT) == page.text)
    handle = page.until(lambda: page.labelled("Handle of the stride"))
    page.script("arguments[0].focus()", handle)
    before = page.script("return location.search")
    page.keys(Keys.ARROW_LEFT)
    page.until(lambda: page.script("return location.search") != before and page.is_scored)
    shown = result_of(page)
    opened = Page(page.browser, page.script("return location.href"))
    opened.until(lambda: opened.is_scored)
    assert result_of(opened) == shown


def test_the_address_keeps_what_is_not_its_own(browser, url):
    themed = Page(browser, f"{url}?__theme=dark")
    themed.write("Text", "A text in the dark.")
    themed.until(lambda: "#text=" in themed.script("return location.href"))
    assert "__theme=dark" in themed.script("return location.search")


def test_a_text_outlives_a_reload(page):
    text = "A long text that is typed and not scored yet. " * 1500
    page.fill(text)
    page.until(lambda: page.all(".ps-card.ps-stale"))
    page.browser.refresh()
    page.until(lambda: page.text == text and "Your text is back" in page.status, "it is lost")
    other = Page(page.browser, page.script("return location.origin"))
    time.sleep(1)  # for an answer that must not come
    assert other.text != text  # a new visit begins anew


def test_control_and_enter_score(page):
    page.fill("Again the tide came in and went out. " * 600)
    page.one("#text textarea").send_keys(
        Keys.CONTROL, Keys.ENTER
    )  # held together, on an element alone
    page.until(lambda: page.is_scored, "nothing was scored")


def test_the_card_is_saved_as_a_picture(page, downloads):
    page.open("share")
    page.until(lambda: page.all(".ps-picture-card"))
    page.press("Save as PNG")
    page.press("Save as SVG")
    drawn = ElementTree.parse(downloads("card.svg")).getroot()
    with Image.open(downloads("card.png")) as picture:
        assert picture.size == tuple(2 * int(drawn.get(side)) for side in ("width", "height"))
        assert len(picture.convert("RGB").getcolors(1 << 20)) > 20


def press_share(page):
    """Open the drawer of what is shown, and wait until it is filled."""

    def pressed():
        [button] = [one for one in page.all("[data-open=share]") if one.is_displayed()]
        page.script("arguments[0].click()", button)
        return True

    page.until(pressed)
    page.until(lambda: page.all("#share.ps-open:not(.ps-waits)"))


def test_the_drawer_is_of_what_is_shown_when_it_is_opened(page):
    press_share(page)
    page.until(lambda: page.all("#share a[download]"))
    digest = page.told("#share .ps-signature + p + .ps-signature")
    page.keys(Keys.ESCAPE)
    page.write("Text", "The sea was calm.")
    page.score()
    press_share(page)
    page.until(lambda: page.told("#share .ps-signature + p + .ps-signature") != digest)
    assert not page.all("#share .ps-stale")
    page.fill("Again the tide came in and went out. " * 600)
    page.until(lambda: page.all("#share .ps-stale"), "an old sentence is not marked")


def test_share_begins_with_the_link_the_picture_and_a_sentence(page):
    press_share(page)
    order = [part.text for part in page.all("#share h3") if part.is_displayed()]
    assert order == ["Link", "Picture", "For a friend"]
    assert page.one("#share .ps-link").text.startswith("http://")
    papers = page.one("#share details")
    assert papers.get_attribute("open") is None
    address = page.one("#share .ps-link").get_attribute("href")
    copied = "navigator.clipboard.writeText = (words) => { window.copied = words; return Promise.resolve(); }"
    page.script(copied)
    page.press("Copy the link")
    page.until(lambda: page.script("return window.copied") == address)
    page.press("Copy the sentence")
    page.until(lambda: page.script("return window.copied") != address)
    assert page.script("return window.copied").endswith(f"Josiah”, 1 in 4.3 trillion.\n{address}")


COMPARISONS = (
    ("Other models", "models", ".ps-verdict", "comparison.csv"),
    ("Other strides", "strides", "[data-view=gain]", "strides.csv"),
    ("Other tools", "tools", ".ps-groups", "tools.csv"),
)


def test_each_comparison_has_an_address_a_drawer_and_files(page):
    page.fill("It was late, and the lamp had gone out again. Nobody went to light it. " * 12)
    page.score()
    addresses = {}
    for tab, compare, part, name in COMPARISONS:
        page.tab(tab)
        page.until(lambda: page.all(part) and f"compare={compare}" in page.browser.current_url)  # noqa: B023
        press_share(page)
        files = [one.get_attribute("download") for one in page.all("#share a[download]")]
        address = page.one("#share .ps-link").get_attribute("href")
        assert address == page.browser.current_url and name in files
        assert page.told(".ps-friend [data-text]") and page.told("#share .ps-signature")
        addresses[part] = address, page.told(part)
        page.keys(Keys.ESCAPE)
    for part, (address, shown) in addresses.items():
        page.browser.get("about:blank")
        opened = Page(page.browser, address)  # a friend's
        opened.until(lambda: opened.all(part) and opened.told(part) == shown, "it does not open")  # noqa: B023
        assert opened.browser.current_url == address
        opened.tab("Your text")
        opened.until(lambda: "compare=" not in opened.browser.current_url)  # noqa: B023


def test_a_chart_is_saved_as_it_stands(page, downloads):
    page.tab("Other strides")
    page.until(lambda: page.all(".ps-chart .ps-save"))
    page.script("arguments[0].click()", page.one(".ps-chart .ps-save"))
    drawn = ElementTree.parse(downloads("chart.svg")).getroot()
    tags = [node.tag.rpartition("}")[2] for node in drawn.iter()]
    assert "polyline" in tags and tags.count("rect") > 5
    words = [node.text for node in drawn.iter() if node.tag.endswith("}text")]
    caption = page.one(".ps-chart figcaption").text
    assert caption in words and "Save as SVG" not in words
    width, height = (float(drawn.get(side)) for side in ("width", "height"))
    for node in drawn.iter():
        if node.get("x"):
            assert -1 <= float(node.get("x")) <= width and -1 <= float(node.get("y")) <= height + 1
