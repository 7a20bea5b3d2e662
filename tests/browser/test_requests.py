"""Requests as a visitor meets them in a browser: sent twice, refused, replaced, waited for."""

import re
import time

import pytest
import visitor  # skips where there is no browser
from gradio_client import Client
from selenium.webdriver.common.keys import Keys

from space.links import link, pack
from space.models import BUNDLED
from space.settings import Settings

LONG = "Again the tide came in and went out. " * 400
# What a page sees of a server that is full or just starts again.
REFUSE = """
const send = window.fetch;
window.fetch = (address, ...rest) => String(address.url ?? address).includes("queue/join")
  ? Promise.resolve(new Response('{"detail": "Queue is full."}', {status: 503}))
  : send(address, ...rest);
"""


def tokens_in_text(page):
    """How long the scored text is, as the card says it; thousands for `LONG`."""
    [number] = re.findall(r"of ([\d,]+) in the text", page.one(".ps-numbers").text)
    return int(number.replace(",", ""))


def is_idle(page):
    """Whether nothing is left to stop."""
    stop = page.labelled("Stop")
    return stop is None or not stop.is_enabled()


def test_a_second_score_scores_the_second_text(page):
    page.fill(LONG)
    page.press("Score")
    page.until(lambda: "tokens read, perplexity so far" in page.status)
    page.fill("A short text, scored while another one was running.")
    page.press("Score")
    page.until(lambda: "Scored with" in page.status, "the second text was not scored")
    assert tokens_in_text(page) < 100
    page.until(lambda: is_idle(page))


def test_the_last_of_many_clicks_counts(page):
    for number in range(4):
        page.fill(f"{LONG} {number}" if number < 3 else "The last of four texts.")
        page.press("Score")
    page.until(lambda: "Scored with" in page.status, "the last text was not scored")
    assert tokens_in_text(page) < 100
    page.until(lambda: is_idle(page))


def test_a_request_that_is_refused_before_it_begins_says_so_and_idles(page):
    page.script(REFUSE)
    page.press("Score")
    page.until(lambda: "turned away" in page.status, "the page waits for ever")
    assert page.all('#status [role="alert"]')
    page.until(lambda: is_idle(page))


def test_who_waits_sees_the_place_and_leaves_at_once(page, url):
    program = Client(url, verbose=False)
    running = program.submit("word " * 15000, stride=1, api_name="/score")  # ends after 6 seconds
    page.press("Score")
    page.until(lambda: "You are next in line" in page.status, "the page does not tell the place")
    page.press("Stop")
    page.until(lambda: page.status.startswith("Stopped."))
    assert not running.done()
    page.until(lambda: is_idle(page))
    running.exception(timeout=60)


def test_stop_is_felt_during_a_download(page):
    window = page.labelled("Window").get_attribute("max")
    page.write("Model", "owner/slow\n")
    page.until(lambda: "Downloading owner/slow" in page.status)
    page.press("Stop")
    page.until(lambda: page.status.startswith("Stopped."), "Stop waits for the download")
    assert page.labelled("Window").get_attribute("max") == window
    page.until(lambda: is_idle(page))


def test_a_link_with_a_text_scores_it(page, url):
    text = "A text that came with its link: ça, 你好 & <b>more</b>."
    address = link(Settings(BUNDLED, 48, 12), text)
    linked = visitor.Page(page.browser, url.rstrip("/") + "/" + address)
    linked.until(lambda: "Scored with" in linked.status, "the link was not scored")
    assert linked.labelled("Text").get_attribute("value") == text
    assert tokens_in_text(linked) < 100
    assert linked.labelled("Window").get_attribute("value") == "48"
    linked.tab("Cite and share")
    shared = linked.one("a.ps-link").get_attribute("href")
    assert shared.endswith(address)  # the same link again


def test_a_link_that_is_partly_wrong_still_says_so_when_it_is_scored(page, url):
    """Its text scored itself, and "Scored with" stood where the remark had been."""
    page.browser.get("about:blank")
    linked = visitor.Page(page.browser, f"{url}?window=1#text={pack('The first text.')}")
    linked.until(lambda: linked.text == "The first text." and "Scored with" in linked.status)
    assert "The link's window is ignored" in linked.one("#remark").text
    # As a link in the address bar does that differs behind the # alone.
    linked.script("location.hash = arguments[0]", f"text={pack('The second.')}")
    linked.until(lambda: linked.labelled("Text") and linked.text == "The second.")
    linked.until(lambda: linked.one(".ps-text").get_property("textContent") == "The second.")


def test_files_are_made_of_what_is_shown(page):
    page.tab("Cite and share")
    page.press("Make files")
    page.until(lambda: len(page.all("a[download]")) >= 4, "no files are offered")
    names = {node.get_attribute("download") for node in page.all("a[download]")}
    assert names >= {"text.txt", "tokens.csv", "tokens.json", "card.svg"}


def test_a_number_that_is_only_deleted_comes_back(page):
    """Gradio puts the lowest in its place: a stride of 1, the dearest of all."""
    field = page.labelled("number input for Stride")
    field.send_keys(Keys.CONTROL, "a")
    field.send_keys(Keys.DELETE)
    page.until(lambda: field.get_attribute("value") == "")
    field.send_keys(Keys.TAB)
    page.until(lambda: field.get_attribute("value") != "")
    page.press("Score")
    page.until(lambda: "Scored with" in page.status)
    assert field.get_attribute("value") == "32"
    assert "stride 32 " in page.one(".ps-recipe").text


@pytest.mark.parametrize("typed", ["999999", "-5", ""])
def test_a_number_that_no_slider_has_is_no_fault(page, typed):
    field = page.one("input[type=number]")
    field.send_keys(Keys.CONTROL, "a")
    field.send_keys(typed or Keys.DELETE)
    page.until(lambda: "After the first window" in page.one(".ps-sketch").text)
    time.sleep(1)  # for a fault that must not come: it was one while the number was typed
    assert not page.all(".toast-body")
    page.press("Score")
    told = ("Scored with", "must be between 2 and")
    page.until(lambda: any(part in page.status for part in told), "the server stumbled over it")
    page.until(lambda: is_idle(page))
