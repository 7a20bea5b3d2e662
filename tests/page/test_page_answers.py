"""The page as it is served: one file, its previews, and a queue that nobody waits in for nothing."""

import gzip
import json
import re
import time
from contextlib import ExitStack

import httpx
import pytest
from pages import STORY

from space.limits import Limits
from space.page import build, launch_options
from space.service import Service

MOST_BYTES = 160_000  # on the line, of a first visit


@pytest.fixture(scope="module")
def page(folders, hub):
    blocks = build(Service(folders["bytes"], Limits(), hub.endpoint))
    _, url, _ = blocks.launch(**launch_options(blocks), prevent_thread_lock=True, quiet=True)
    blocks.url = url
    yield blocks
    blocks.close()


def join(page, name, asked, session):
    """Ask as the page does, and return the stream of answers."""
    body = {
        "data": [asked],
        "fn_index": page.page_data["calls"][name],
        "session_hash": session,
        "simple_format": True,
    }
    joined = httpx.post(f"{page.url}gradio_api/queue/join", json=body, timeout=60)
    joined.raise_for_status()
    return httpx.stream(
        "GET", f"{page.url}gradio_api/queue/data", params={"session_hash": session}, timeout=60
    )


def messages(stream):
    for line in filter(None, stream.iter_lines()):
        yield json.loads(line.removeprefix("data: "))


def last_answer(page, name, asked, session):
    with join(page, name, asked, session) as stream:
        values = [m["output"]["data"][0] for m in messages(stream) if m.get("output")]
    return values[-1]


def test_the_first_visit_is_one_small_compressed_file(page):
    answer = httpx.get(page.url, headers={"Accept-Encoding": "gzip"})
    assert answer.headers["content-encoding"] == "gzip"
    assert len(gzip.compress(answer.content, 6)) < MOST_BYTES
    assert int(answer.headers["content-length"]) < MOST_BYTES
    fetched = re.findall(r'(?:src|href)="((?!#|data:)[^"]+)"', answer.text)
    assert not fetched, "it needs nothing else"
    plain = httpx.get(page.url, headers={"Accept-Encoding": "identity"})
    assert plain.text == answer.text and "content-encoding" not in plain.headers


def test_a_link_to_the_page_has_a_preview(page):
    text = httpx.get(page.url).text
    meta = dict(re.findall(r'<meta (?:property|name)="([^"]+)" content="([^"]*)"', text))
    assert meta["og:title"] == re.search(r"<title>(.*)</title>", text)[1]
    assert "language model" in meta["og:description"] and meta["description"]
    assert meta["og:url"] == page.url
    assert meta["og:image"] == f"{page.url}preview.png"
    picture = httpx.get(meta["og:image"])
    assert picture.headers["content-type"] == "image/png"
    size = tuple(int.from_bytes(picture.content[at : at + 4], "big") for at in (16, 20))
    assert size == (int(meta["og:image:width"]), int(meta["og:image:height"]))


def test_on_a_space_the_address_is_the_spaces(page, monkeypatch):
    monkeypatch.setenv("SPACE_HOST", "user-name.hf.space")
    assert 'content="https://user-name.hf.space/preview.png"' in httpx.get(page.url).text


def test_samples_and_rounds_are_served(page):
    for file in page.page_data["samples"]:
        assert httpx.get(f"{page.url}samples/{file}").text.strip()
    assert len(httpx.get(f"{page.url}duel.json").json()) >= 3


def test_what_is_said_of_a_sample_is_what_its_questions_answer(page):
    shown = {"tools": r"text: ([\d., to]+)<", "models": r"× ([\d.]+)", "memory": r"([−+][\d.]+) %"}
    for name, pattern in shown.items():
        file = "story.txt" if name == "models" else "opening.txt"
        asked = {"text": httpx.get(f"{page.url}samples/{file}").text, "other": "demo_model-4bit"}
        html = last_answer(page, name, asked, f"s-{name}")["result"]["html"]
        found = re.search(pattern, html)[1].replace("−", "-")
        if name != "tools":
            change = float(found) if name == "memory" else 100 * float(found) - 100
            found = f"{abs(change):.0f} % {'lower' if change < 0 else 'higher'} with"
        assert found in page.page_data["teasers"][name]


@pytest.mark.parametrize("name", ["score", "memory", "tools", "models", "cite"])
def test_each_question_of_the_page_is_answered(page, name):
    asked = {"text": STORY, "window": 64, "stride": 32, "other": "owner/words"}
    told = last_answer(page, name, asked, f"a-{name}")
    assert told.keys() == {"result"} and told["result"]


def test_two_models_are_not_judged_by_too_little_text(page):
    asked = {"text": STORY[:320], "other": "demo_model-4bit"}
    shown = last_answer(page, "models", asked, "short")["result"]["html"]
    assert "too short to tell which of the two is better" in shown
    assert "That takes about 640 tokens, 2.0 times as many as it has." in shown


@pytest.mark.parametrize(
    "asked, said",
    [
        ({"text": ""}, "There is no text yet"),
        ({"text": "x", "window": 1}, "The window must be between 2 and 64"),
        ({"text": "x", "window": "many"}, "The window must be a whole number"),
        ({"text": "x", "model": "no model"}, "not the name of a model"),
    ],
)
def test_what_makes_no_sense_is_refused_with_a_sentence(page, asked, said):
    assert said in last_answer(page, "score", asked, f"r-{said}"[:20])["refused"]


def test_a_fault_is_told_without_what_was_written(page, monkeypatch, caplog):
    def fail(service, text, *others, **more):
        raise RuntimeError(text)

    monkeypatch.setattr(Service, "score", fail)
    told = last_answer(page, "score", {"text": "a secret"}, "fault")
    assert "Something went wrong on this page's side" in told["refused"]
    assert "RuntimeError" in caplog.text and "a secret" not in caplog.text


def test_a_score_that_nobody_waits_for_is_stopped(page):
    """Stride 1, then stride 128, waited for 52,705 tokens."""
    long = {"text": STORY * 22, "window": 64, "stride": 1}
    begun = time.monotonic()
    with join(page, "score", long, "leaves") as stream:
        next(m for m in messages(stream) if m["msg"] == "process_generating")
    told = last_answer(page, "score", {"text": "A short one."}, "stays")
    assert told["result"]["perplexity"] > 1
    needed = 22 * len(STORY) / 64  # windows of one score of the long text with stride 64 alone
    assert time.monotonic() - begun < 30, f"it waited for some {64 * needed:,.0f} windows"


def test_a_full_queue_says_so(folders):
    service = Service(folders["bytes"], Limits(waiting=1))
    blocks = build(service)
    _, url, _ = blocks.launch(**launch_options(blocks), prevent_thread_lock=True, quiet=True)
    blocks.url = url
    statuses = []
    with service._machine, ExitStack() as streams:  # as while a long text is scored
        for number in range(8):
            try:
                streams.enter_context(join(blocks, "score", {"text": "x"}, f"full-{number}"))
            except httpx.HTTPStatusError as error:
                statuses.append(error.response.status_code)
            time.sleep(0.2)
    blocks.close()
    assert len(statuses) >= 2 and set(statuses) == {503}
