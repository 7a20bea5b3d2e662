"""The served page and one browser, shared by all browser tests."""

import threading

import pytest
from fake_hub import FakeHub
from space_models import bundled_model, byte_model

import app
from space.limits import Limits
from space.page import launch_options


@pytest.fixture(scope="session")
def bundled(tmp_path_factory):
    """The folder of the model that the page has at hand."""
    return bundled_model(tmp_path_factory.mktemp("bundled"))


@pytest.fixture(scope="session")
def url(tmp_path_factory, bundled):
    base = tmp_path_factory.mktemp("models")
    hub = FakeHub()
    hub.add("owner/bytes", byte_model(base / "bytes", context=32))
    hub.add("owner/code", base / "bytes", tags=["custom_code"])
    hub.add("owner/slow", base / "bytes")
    hub.gates["owner/slow"] = threading.Event()  # its weights never come
    page = app.create_app(bundled, Limits(), hub.endpoint)
    _, url, _ = page.launch(**launch_options(), prevent_thread_lock=True, quiet=True)
    yield url
    page.close()
    hub.gates["owner/slow"].set()
    hub.close()


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
