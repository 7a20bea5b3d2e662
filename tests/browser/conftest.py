"""The served page and one browser, shared by all browser tests."""

import threading

import pytest
from fake_hub import FakeHub
from space_models import bundled_model, byte_model
from transformers import AutoConfig

from space.jobs import Job
from space.limits import Limits
from space.page import build, launch_options
from space.service import Service


@pytest.fixture(scope="session")
def bundled(tmp_path_factory):
    """The folder of the model that the page has at hand."""
    return bundled_model(tmp_path_factory.mktemp("bundled"))


@pytest.fixture(scope="session")
def longest(bundled):
    """The tokens that the bundled model reads at once; the page begins with half of that as its stride."""
    return AutoConfig.from_pretrained(bundled).max_position_embeddings


@pytest.fixture(scope="session")
def hub(tmp_path_factory):
    base = tmp_path_factory.mktemp("models")
    hub = FakeHub()
    hub.add("owner/bytes", byte_model(base / "bytes", context=32))
    hub.add("owner/code", base / "bytes", tags=["custom_code"])
    hub.add("owner/slow", base / "bytes")
    hub.gates["owner/slow"] = threading.Event()  # its weights never come
    yield hub
    hub.gates["owner/slow"].set()
    hub.close()


@pytest.fixture(scope="session")
def service(bundled, hub):
    """What computes for the page's visitors."""
    # On a busy machine a long text takes more than a visitor may have.
    return Service(bundled, Limits(seconds=600), hub.endpoint)


@pytest.fixture(scope="session")
def url(service):
    page = build(service)
    _, url, _ = page.launch(**launch_options(), prevent_thread_lock=True, quiet=True)
    yield url
    page.close()


@pytest.fixture
def held(monkeypatch):
    """A long text that is being scored waits at its first line of progress, until it is stopped."""
    say = Job.say

    def say_and_wait(job, sentence, share=None):
        say(job, sentence, share)
        if share is not None and share < 1:
            job._stop.wait(90)

    monkeypatch.setattr(Job, "say", say_and_wait)


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    from visitor import start_browser  # skips where there is no browser

    browser = start_browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.quit()


@pytest.fixture
def page(browser, url):
    """The page, freshly opened by somebody who asks for less motion, which saves processor time."""
    from visitor import Page, ask_for_motion

    ask_for_motion(browser, "reduce")
    return Page(browser, url)


@pytest.fixture
def phone(browser, url):
    """The page on a telephone."""
    from visitor import Page, as_phone, ask_for_motion

    ask_for_motion(browser, "reduce")
    with as_phone(browser):
        page = Page(browser, url)
        assert page.script("return matchMedia('(pointer: coarse) and (max-width: 640px)').matches")
        yield page
