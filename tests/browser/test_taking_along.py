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
    page.until(lambda: page.script("return location.search") != before)
    page.until(lambda: not page.all(".ps-card.ps-stale"))
    shown = result_of(page)
    opened = Page(page.browser, page.script("return location.href"))
    opened.until(lambda: "Scored with" in opened.status)
    assert result_of(opened) == shown


def test_the_address_keeps_what_is_not_its_own(page, url):
    themed = Page(page.browser, f"{url}?__theme=dark")
    themed.write("Text", "A text in the dark.")
    themed.until(lambda: "#text=" in themed.script("return location.href"))
    assert "__theme=dark" in themed.script("return location.search")


def test_a_text_outlives_a_reload(page):
    text = "A long text that is typed and not scored yet. " * 1500
    page.fill(text)
    page.until(lambda: page.all(".ps-card.ps-stale"))
    page.browser.refresh()
    page.until(lambda: page.labelled("Text") and page.text == text, "the text is lost")
    page.until(lambda: "Your text is back" in page.status)
    other = Page(page.browser, page.script("return location.origin"))
    time.sleep(1)  # for an answer that must not come
    assert other.text != text  # a new visit begins anew


def test_control_and_enter_score(page):
    page.fill("Again the tide came in and went out. " * 600)
    page.one("#text textarea").send_keys(
        Keys.CONTROL, Keys.ENTER
    )  # held together, on an element alone
    page.until(lambda: "Scored with" in page.status, "nothing was scored")


def test_the_card_is_saved_as_a_picture(page, downloads):
    page.open("share")
    page.press("Make a picture and files")
    page.until(lambda: page.all(".ps-picture-card"))
    page.press("Save as PNG")
    page.press("Save as SVG")
    drawn = ElementTree.parse(downloads("card.svg")).getroot()
    with Image.open(downloads("card.png")) as picture:
        assert picture.size == tuple(2 * int(drawn.get(side)) for side in ("width", "height"))
        assert len(picture.convert("RGB").getcolors(1 << 20)) > 20


def test_files_of_an_earlier_result_do_not_stand_beside_a_new_sentence(page):
    page.open("share")
    page.press("Make a picture and files")
    page.until(lambda: page.all(".ps-picture-card"))
    signature = page.told("#share .ps-signature + p + .ps-signature")
    page.write("Text", "The sea was calm.")
    page.until(lambda: page.told("#share .ps-signature + p + .ps-signature") != signature)
    page.until(lambda: not page.all(".ps-picture-card") and not page.all("#share .file-preview"))
    page.fill("Again the tide came in and went out. " * 600)
    page.until(lambda: page.all("#share .ps-stale"), "an old sentence is not marked")


def test_a_chart_is_saved_as_it_stands(page, downloads):
    page.tab("another stride")
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
