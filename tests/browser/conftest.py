"""The served page and one browser, shared by all browser tests."""

import pytest
from fake_hub import FakeHub
from space_models import bundled_model, byte_model

from space.limits import Limits
from space.page import build, launch_options
from space.service import Service


@pytest.fixture(scope="session")
def bundled(tmp_path_factory):
    """The folder of the model that the page has at hand."""
    return bundled_model(tmp_path_factory.mktemp("bundled"))


@pytest.fixture(scope="session")
def hub(tmp_path_factory):
    hub = FakeHub()
    hub.add("owner/bytes", byte_model(tmp_path_factory.mktemp("models") / "bytes", context=32))
    hub.add("owner/code", byte_model(tmp_path_factory.mktemp("code")), tags=["custom_code"])
    yield hub
    hub.close()


@pytest.fixture(scope="session")
def service(bundled, hub):
    """What computes for the page's visitors."""
    # On a busy machine a long text takes more than a visitor may have.
    return Service(bundled, Limits(seconds=600), hub.endpoint)


@pytest.fixture(scope="session")
def longest(service):
    """The tokens that the bundled model reads at once."""
    return service.default_settings.window


@pytest.fixture(scope="session")
def url(service):
    page = build(service)
    _, url, _ = page.launch(**launch_options(page), prevent_thread_lock=True, quiet=True)
    yield url
    page.close()


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    from visitor import start_browser  # skips where there is no browser

    browser = start_browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.quit()


@pytest.fixture
def page(browser, url):
    """The page, freshly opened by somebody who asks for less motion, which saves processor time."""
    from visitor import Page

    return Page(browser, url)


@pytest.fixture
def phone(browser, url):
    """The page on a telephone."""
    from visitor import Page, as_phone

    with as_phone(browser):
        page = Page(browser, url)
        assert page.script("return matchMedia('(pointer: coarse) and (max-width: 700px)').matches")
        yield page
