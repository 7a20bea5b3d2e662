"""Requests as a visitor meets them in a browser: sent twice, refused, replaced, waited for."""

import contextlib
import json
import threading
import time

import pytest
import visitor  # skips where there is no browser
from selenium.webdriver.common.keys import Keys

from space import handlers
from space.jobs import Job
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
# The server ends its stream of answers just as another request is sent: its word of that arrives later
# than the answer to the request, for seconds at most.
LATE_END = """
const send = window.fetch;
let joined = () => {};
window.fetch = async (address, ...rest) => {
  const response = await send(address, ...rest), url = String(address.url ?? address);
  if (url.includes("queue/join")) setTimeout(joined, 50);
  if (!url.includes("queue/data")) return response;
  const late = new TransformStream({
    async transform(chunk, out) {
      const text = new TextDecoder().decode(chunk), ends = text.includes('"close_stream"');
      if (ends) await new Promise((go) => { joined = go; setTimeout(go, 5000); });
      out.enqueue(chunk);
    },
  });
  return new Response(response.body.pipeThrough(late), {headers: response.headers});
};
"""

# Answers that are streamed, as progress is, arrive later than those that are not.
SLOW_STREAM = """
const send = window.fetch;
window.fetch = async (address, ...rest) => {
  const response = await send(address, ...rest);
  if (!String(address.url ?? address).includes("queue/data")) return response;
  const slow = new TransformStream({
    transform: (chunk, out) => { setTimeout(() => out.enqueue(chunk), 1000); },
    flush: () => new Promise((go) => setTimeout(go, 1100)),
  });
  return new Response(response.body.pipeThrough(slow), {headers: response.headers});
};
"""

# The first answer with a result is held up on its way, and on a stream what comes behind it too.
LATE_RESULT = """
const send = window.fetch;
let isHeld = false;
async function hold(text) {
  if (isHeld || !text.includes("ps-card")) return;
  isHeld = true;
  await new Promise((go) => { window.letGo = go; });
}
window.fetch = async (address, ...rest) => {
  const response = await send(address, ...rest), url = String(address.url ?? address);
  if (url.includes("/run/")) await hold(await response.clone().text());
  if (!url.includes("queue/data")) return response;
  const late = new TransformStream({
    async transform(chunk, out) {
      await hold(new TextDecoder().decode(chunk));
      out.enqueue(chunk);
    },
  });
  return new Response(response.body.pipeThrough(late), {headers: response.headers});
};
"""


def tokens_in_text(page):
    """How long the scored text is, as the card says it; thousands for `LONG`."""
    return len(json.loads(page.one("[data-view=text]").get_attribute("data-payload"))["bits"])


def said_again(page, words):
    """Whether the status line says this, and not since an earlier request, which is marked."""
    return any(words in line.text for line in page.all("#status .ps-status:not([data-earlier])"))


def press_score(page):
    """Press the button once it is there: for a short text it is not."""
    page.until(lambda: page.status)
    page.script("document.getElementById('score').click()")


def is_idle(page):
    """Whether nothing is left to stop."""
    stop = page.labelled("Stop")
    return stop is None or not stop.is_enabled()


def test_a_second_score_scores_the_second_text(browser, url, held, monkeypatch):
    """And says so last.  Progress, which came behind it, stood there for good: "13 of 13 tokens read"."""
    say = Job.say

    def say_and_go_on_later(job, sentence, share=None):
        say(job, sentence, share)
        if share == 1:
            time.sleep(0.2)  # long enough for the line to be sent

    monkeypatch.setattr(Job, "say", say_and_go_on_later)
    with visitor.patched(browser, SLOW_STREAM):
        page = visitor.Page(browser, url)
        page.fill(LONG)
        press_score(page)
        page.until(lambda: "tokens read, perplexity so far" in page.status)
        page.fill("A short text, scored while another one was running.")
        press_score(page)
        page.until(lambda: page.is_scored, "the second text was not scored")
        assert tokens_in_text(page) < 100
        page.until(lambda: is_idle(page))
        time.sleep(
            1.5
        )  # for what is streamed; of a slow server it may come still later, and then this again
        page.until(lambda: "Scored with" in page.status, "progress is the last word", patience=30)


@pytest.fixture
def slow_score(service, monkeypatch):
    """Scores take long enough to be replaced; tells when one has begun."""
    score, begun = service.score, threading.Event()

    def score_later(text, settings, job, **options):
        begun.set()
        job._stop.wait(5)
        return score(text, settings, job, **options)

    monkeypatch.setattr(service, "score", score_later)
    return begun


def test_a_row_counts_that_is_pressed_before_the_new_table_is_asked_for(
    page, slow_score, monkeypatch
):
    """The request for the table, which arrived behind the score's, replaced that."""
    row = ".ps-tool[data-protocol='llama.cpp'] button"
    page.tab("Other tools")
    page.until(lambda: page.all(row) and "Done." in page.status)
    page.tab("Your text")
    page.number("stride").send_keys(Keys.CONTROL, "a")
    page.number("stride").send_keys("48" + Keys.TAB)
    page.until(lambda: "stride 48 " in page.told(".ps-recipe") and page.is_scored)
    measured_of = handlers.measured_of
    slow_score.clear()
    monkeypatch.setattr(
        handlers, "measured_of", lambda *wanted: slow_score.wait(60) and measured_of(*wanted)
    )
    page.tab("Other tools")
    time.sleep(1)  # for the request
    page.script("document.querySelector(arguments[0]).click()", row)
    page.until(
        lambda: "protocol llama.cpp " in page.told(".ps-recipe") and page.is_scored,
        "the row's score is lost",
        patience=60,
    )


@pytest.mark.parametrize("is_asked", [True, False])
def test_score_counts_that_is_pressed_before_a_tab_begins_to_measure(
    browser, url, slow_score, monkeypatch, is_asked
):
    """The tab that had been left replaced the score as soon as its answer was there."""
    measured_of, asked = handlers.measured_of, threading.Event()
    monkeypatch.setattr(
        handlers, "measured_of", lambda *wanted: asked.set() or measured_of(*wanted)
    )
    with visitor.patched(browser, SLOW_STREAM):
        page = visitor.Page(browser, url)
        page.fill(LONG * 3)  # which is not scored by itself
        page.until(lambda: page.all(".ps-card.ps-stale"))
        assert asked.wait(60)  # for the tab that is open at first
        asked.clear()
        page.tab("Other tools")
        asked.wait(60 if is_asked else 0.3)  # else the page has not heard yet that the tab is open
        page.tab("Your text")
        press_score(page)
        page.until(lambda: page.is_scored, "the score is lost", patience=60)


def test_score_pressed_as_the_last_answer_arrives_is_answered(browser, url):
    """Its answer came over a stream that the page took to be open: "Asked." stayed for good."""
    with visitor.patched(browser, LATE_END):
        page = visitor.Page(browser, url)
        for text in ("A text that scores itself.", "And another one, behind it."):
            page.fill(text)
            page.until(lambda: page.is_scored)
            page.script("document.querySelector('#status .ps-status').dataset.earlier = 'yes'")
            press_score(page)
            page.until(lambda: said_again(page, "Scored with"), "no answer")
            page.until(lambda: is_idle(page))


def test_the_last_of_many_clicks_counts(page):
    for number in range(4):
        page.fill(f"{LONG} {number}" if number < 3 else "The last of four texts.")
        press_score(page)
    page.until(lambda: page.is_scored, "the last text was not scored")
    assert tokens_in_text(page) < 100
    page.until(lambda: is_idle(page))


def test_who_waits_sees_the_place_and_leaves_at_once(page, service):
    with service.line.turn(Job(60)):  # as while somebody else's text is scored
        press_score(page)
        page.until(
            lambda: "You are next in line" in page.status, "the page does not tell the place"
        )
        page.press("Stop")
        page.until(lambda: page.status.startswith("Stopped."))
        page.until(lambda: is_idle(page))


def test_what_is_refused_before_it_begins_says_so(page):
    page.script(REFUSE)
    press_score(page)
    page.until(lambda: "turned away before it began" in page.told('#status [role="alert"]'))
    page.until(lambda: is_idle(page))


def test_stop_is_felt_during_a_download(page):
    window = page.number("window").get_attribute("max")
    page.write("Model", "owner/slow\n")
    page.until(lambda: "Downloading owner/slow" in page.status)
    page.press("Stop")
    page.until(lambda: page.status.startswith("Stopped."), "Stop waits for the download")
    assert page.number("window").get_attribute("max") == window
    page.until(lambda: is_idle(page))


def test_a_link_with_a_text_scores_it(page, url):
    text = "A text that came with its link: ça, 你好 & <b>more</b>."
    address = link(Settings(BUNDLED, 48, 12), text)
    linked = visitor.Page(page.browser, url.rstrip("/") + "/" + address)
    linked.until(lambda: linked.is_scored, "the link was not scored")
    assert linked.text == text
    assert tokens_in_text(linked) < 100
    assert linked.number("window").get_attribute("value") == "48"
    linked.open("share")
    shared = linked.one("a.ps-link").get_attribute("href")
    assert shared.endswith(address)  # the same link again


def test_a_link_that_is_partly_wrong_still_says_so_when_it_is_scored(page, url):
    """Its text scored itself, and "Scored with" stood where the remark had been."""
    page.browser.get("about:blank")
    linked = visitor.Page(page.browser, f"{url}?window=1#text={pack('The first text.')}")
    linked.until(lambda: linked.text == "The first text." and linked.is_scored)
    assert "The link's window is ignored" in linked.one("#remark").text
    # As a link in the address bar does that differs behind the # alone.
    linked.script("location.hash = arguments[0]", f"text={pack('The second.')}")
    linked.until(lambda: linked.text == linked.shown == "The second.")


# What a page does when a result arrives, once before it hears of its new address, and once after.
STILL_ARRIVES = """
const asked = () => window.perplexityAsked("The first text."), address = location.href;
addEventListener("hashchange", asked);
location.hash = arguments[0];
if (arguments[1]) history.replaceState(history.state, "", address);
"""


@pytest.mark.parametrize("is_followed", [False, True])
def test_a_result_that_arrives_beside_a_new_link_does_not_undo_it(page, url, is_followed):
    """The page kept the first text, or its address, until the new page came, which found it there."""
    page.browser.get("about:blank")
    linked = visitor.Page(page.browser, f"{url}#text={pack('The first text.')}")
    linked.until(lambda: linked.text == "The first text." and linked.is_scored)
    linked.script(STILL_ARRIVES, f"text={pack('The second.')}", is_followed)
    linked.until(lambda: linked.text == linked.shown == "The second.", patience=60)


def test_files_are_made_of_what_is_shown(page):
    page.open("share")
    page.until(lambda: len(page.all("a[download]")) >= 4, "no files are offered")
    names = {node.get_attribute("download") for node in page.all("a[download]")}
    assert names >= {"text.txt", "tokens.csv", "tokens.json", "card.svg"}


def test_a_number_that_is_only_deleted_comes_back(page, longest):
    """Gradio puts the lowest in its place: a stride of 1, the dearest of all."""
    field = page.number("stride")
    field.send_keys(Keys.CONTROL, "a")
    field.send_keys(Keys.DELETE)
    page.until(lambda: field.get_attribute("value") == "")
    field.send_keys(Keys.TAB)
    page.until(lambda: field.get_attribute("value") != "")
    page.script("document.getElementById('score').click()")
    # What the empty field stood for may be shown first.
    usual = longest // 2
    page.until(lambda: f"stride {usual} " in page.told(".ps-recipe") and page.is_scored)
    assert field.get_attribute("value") == str(usual)


def test_as_many_tabs_as_one_likes_are_drawn_and_score(page, url):
    """The sixth one stayed at "Loading…": every open tab held one of a browser's six connections."""
    browser, first = page.browser, page.browser.current_window_handle
    try:
        for _ in range(7):
            browser.switch_to.new_window("tab")
            browser.get(url)
        page.until(lambda: page.all(".ps-whole"), "the eighth tab is not drawn")
        page.fill("It was late, and the lamp had gone out. " * 4)
        page.score()
    finally:
        for handle in set(browser.window_handles) - {first}:
            browser.switch_to.window(handle)
            browser.close()
        browser.switch_to.window(first)


def test_a_result_that_is_held_up_leaves_a_newer_one(browser, url):
    """It was shown as the last one, and the newer text had no result."""
    with visitor.patched(browser, LATE_RESULT):
        page = visitor.Page(browser, url)
        page.fill(LONG * 3)  # which is not scored by itself
        page.until(lambda: page.all(".ps-card.ps-stale"))
        press_score(page)
        page.until(lambda: page.script("return Boolean(window.letGo)"))
        page.fill("A short text, which is scored by itself meanwhile.")
        time.sleep(4)  # for its result, unless that waits behind the other
        page.script("window.letGo()")
        time.sleep(2)  # for the one that was held up
        page.until(lambda: page.is_scored, "the older result is the last", patience=30)
        assert tokens_in_text(page) < 100


@contextlib.contextmanager
def gone(page):
    """The server does not answer, and comes back."""
    network = {"offline": True, "latency": 0, "downloadThroughput": 0, "uploadThroughput": 0}
    page.browser.execute_cdp_cmd("Network.enable", {})
    page.browser.execute_cdp_cmd("Network.emulateNetworkConditions", network)
    try:
        yield
    finally:
        network = {"offline": False, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
        page.browser.execute_cdp_cmd("Network.emulateNetworkConditions", network)


def test_a_server_that_is_gone_is_said_in_sight(page):
    """Gradio's words covered the page's own and went; Score did nothing, and "Scored with" stayed."""
    with gone(page):
        page.fill("Nobody is there to score it. " * 8)
        page.until(lambda: "does not answer" in page.one(".ps-gone-note[role=alert]").text)
        page.until(lambda: not page.one("#status").is_displayed())
        before = page.until(lambda: page.one(".ps-gone-note").text)
        time.sleep(1.1)
        page.script("document.getElementById('score').click()")
        page.until(lambda: page.one(".ps-gone-note").text != before, "Score says nothing")
        top = "const r = arguments[0].getBoundingClientRect(); return arguments[0].contains(document.elementFromPoint(r.x + r.width / 2, r.y + r.height / 2))"
        page.until(lambda: page.script(top, page.one(".ps-gone-note")), "something covers it")
    page.fill("Now somebody is there to score it. " * 8)
    page.score()
    assert not page.all(".ps-gone-note")


def test_what_is_done_while_the_server_is_gone_outlives_it(page):
    """Gradio loads the page anew when it is back: text and stride were those of before, and nobody had pressed Score."""
    page.open("settings")
    with gone(page):
        page.fill("The last text that the page is told of.")
        page.until(lambda: page.all(".ps-gone-note"))
        page.fill(LONG * 3)  # which is not scored by itself
        page.choose("Protocol", "transformers-docs")
        page.number("stride").send_keys(Keys.CONTROL, "a")
        page.number("stride").send_keys("48" + Keys.TAB)
        page.script("document.getElementById('score').click()")
    page.until(lambda: not page.all(".ps-gone-note") and page.is_scored, "the press is lost")
    assert page.text == LONG * 3
    recipe = page.told(".ps-recipe")
    assert "protocol transformers-docs " in recipe and "stride 48 " in recipe
