"""A visitor for the browser tests: a headless Chromium that types, chooses, scores and points."""

import contextlib
import shutil
import time

import pytest

selenium = pytest.importorskip("selenium", reason="selenium is not installed")
from selenium import webdriver  # noqa: E402
from selenium.common.exceptions import (  # noqa: E402
    ElementClickInterceptedException,
    ElementNotInteractableException,
    StaleElementReferenceException,
)
from selenium.webdriver.common.action_chains import ActionChains  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.support.ui import WebDriverWait  # noqa: E402

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
CHROMEDRIVER = shutil.which("chromedriver")
if not (CHROMIUM and CHROMEDRIVER):
    pytest.skip("chromium and chromedriver are not installed", allow_module_level=True)
FLAGS = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PHONE = {"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": True}
PATIENCE, INTERVAL = 180, 0.25  # seconds until a condition is given up, between two looks at it
# What gradio draws anew, moves or covers for a moment is looked for again.
IN_MOTION = (
    StaleElementReferenceException,
    ElementClickInterceptedException,
    ElementNotInteractableException,
)
# Controls whose name may contain some words: what names them does, or is elsewhere.
MENTIONING = """
return [...document.querySelectorAll("textarea, input, button, [role=listbox]")].filter((control) => {
  const { ariaLabel, title, value, textContent, labels } = control;
  const names = [ariaLabel, title, value, textContent, ...[...labels ?? []].map((label) => label.textContent)];
  return control.hasAttribute("aria-labelledby") || names.some((name) => name?.includes(arguments[0]));
});
"""
# The texts of the first element, in one request: between two, gradio may draw it anew.
TOLD = (
    "return [...document.querySelectorAll(arguments[0])].slice(0, 1).map((one) => one.textContent)"
)
# Whether the number is of what the controls show, and has been told of; all of it is read at once.
IS_SCORED = """
const card = document.querySelector(".ps-card"), of = JSON.parse(card?.dataset.of ?? "[]");
if (!card || card.matches(".ps-stale") || !document.getElementById("status")?.textContent.includes("Scored with")) return false;
const valueOf = (selector) => document.querySelector(selector)?.value ?? "";
const [text, model, window_, stride, , protocol, context] = of;
const sizes = {window: window_, stride};
return text === perplexityMark(valueOf("#text textarea")) && context === perplexityMark(valueOf("#settings textarea"))
  && valueOf("#model input").startsWith(model) && valueOf("#settings input[aria-label=Protocol]") === protocol
  && Object.entries(sizes).every(([name, size]) => size === null || Math.trunc(valueOf(`#${name} input[type=number]`)) === size);
"""
PRESS_SCORE = """
const score = document.getElementById("score"), isThere = score?.checkVisibility({visibilityProperty: true});
if (isThere) score.click();
return Boolean(isThere);
"""


def start_browser(folder):
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS, f"--user-data-dir={folder}", "--window-size=1360,1000"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(
        options=options, service=webdriver.ChromeService(executable_path=CHROMEDRIVER)
    )


def ask_for_motion(browser, wish):
    """Let pages find "reduce" or "no-preference" among a visitor's wishes."""
    feature = {"name": "prefers-reduced-motion", "value": wish}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})


@contextlib.contextmanager
def as_phone(browser):
    """Let a browser have a telephone's screen, and a finger for a mouse."""
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", PHONE)
    browser.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": True})
    try:
        yield
    finally:
        browser.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": False})
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@contextlib.contextmanager
def patched(browser, source):
    """Run a script before those of every page that is opened."""
    script = browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": source})
    try:
        yield
    finally:
        browser.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", script)


@contextlib.contextmanager
def slowed(browser, rate=3, seconds=0.05):
    """Let the browser compute more slowly, get every answer later, and keep nothing of an earlier visit."""
    late = {"offline": False, "downloadThroughput": -1, "uploadThroughput": -1}
    browser.execute_cdp_cmd("Network.enable", {})
    browser.execute_cdp_cmd("Network.setCacheDisabled", {"cacheDisabled": True})
    browser.execute_cdp_cmd("Network.emulateNetworkConditions", late | {"latency": 1000 * seconds})
    browser.execute_cdp_cmd("Emulation.setCPUThrottlingRate", {"rate": rate})
    try:
        yield
    finally:
        browser.execute_cdp_cmd("Emulation.setCPUThrottlingRate", {"rate": 1})
        browser.execute_cdp_cmd("Network.emulateNetworkConditions", late | {"latency": 0})
        browser.execute_cdp_cmd("Network.setCacheDisabled", {"cacheDisabled": False})


class Page:
    """What a visitor does, by the words on the page."""

    def __init__(self, browser, url):
        self.browser = browser
        browser.get(url)
        self.until(lambda: self.all(".ps-whole"), "the page was not drawn")

    def until(self, condition, message="the page did not get there", patience=PATIENCE):
        """Look until a condition holds.

        It names what is new: one that may have held before is no sign that anything happened. What
        belongs together is asked in one condition, best in one request; what stands in two may have
        been drawn at different times.
        """
        return WebDriverWait(self.browser, patience, INTERVAL, IN_MOTION).until(
            lambda _: condition(), message
        )

    def all(self, selector):
        return self.browser.find_elements(By.CSS_SELECTOR, selector)

    def one(self, selector):
        self.until(lambda: self.all(selector), f"nothing matches {selector}")
        return self.all(selector)[0]

    def labelled(self, label):
        """The control that a screen reader calls by this name."""
        for control in self.script(MENTIONING, label):
            name = control.accessible_name.strip()  # a request to the browser for each
            if control.is_displayed() and (name.startswith(label) or name.endswith(f" {label}")):
                return control
        return None

    def press(self, label):
        """Press a button, once it can be pressed."""

        def pressed():
            button = self.labelled(label)
            return button is not None and button.is_enabled() and self.click(button)

        self.until(pressed, f"no control is called {label!r}, or it cannot be pressed")

    def click(self, element):
        self.script("arguments[0].scrollIntoView({block: 'center'})", element)
        element.click()
        return True

    def write(self, label, text):
        def written():
            control = self.labelled(label)
            if control is None:
                return False
            control.click()
            control.send_keys(Keys.CONTROL, "a")
            if text.isascii():
                control.send_keys(text)
            else:  # the driver cannot type every character
                self.browser.execute_cdp_cmd("Input.insertText", {"text": text})
            return True

        self.until(written, f"no control is called {label!r}")

    def fill(self, text):
        """Put a text into the text box at once, as pasting does."""
        self.script(
            "const area = arguments[0]; area.value = arguments[1];"
            "area.dispatchEvent(new Event('input', {bubbles: true}))",
            self.one("#text textarea"),
            text,
        )

    def choose(self, label, choice):
        def opened():
            control = self.labelled(label)
            return control is not None and self.click(control)

        def chosen():  # an option has no text before it is drawn
            options = [o for o in self.all("ul [role=option]") if o.text.strip() == choice]
            return bool(options) and (options[0].click() or True)

        self.until(opened, f"no control is called {label!r}")
        self.until(chosen, f"{choice!r} is not offered")

    def tab(self, name):
        """Open a tab: "Your text", "Other models", "Other strides" or "Other tools"."""

        def opened():
            tab = self._tab(name)
            return tab is not None and (self.script("arguments[0].click()", tab) or True)

        self.until(opened, f"no tab is called {name!r}")

    def _tab(self, name):
        tabs = self.all("#results button[role=tab]")
        return next((tab for tab in tabs if tab.text.strip() == name), None)

    def open(self, drawer):
        """Open a drawer by its button, unless it is open."""
        if not self.all(f"#{drawer}.ps-open"):
            self.script("arguments[0].click()", self.one(f"[data-open={drawer}]"))
            self.until(lambda: self.all(f"#{drawer}.ps-open"))

    def told(self, selector):
        """All words of an element, also of what is folded."""
        [words] = self.until(lambda: self.script(TOLD, selector), f"nothing matches {selector}")
        return words

    def number(self, name):
        """The field of `window` or `stride`."""
        return self.one(f"#{name} input[type=number]")

    @property
    def shown(self):
        """The text as it is coloured."""
        return self.told(".ps-mirror").removesuffix("\u200b")

    @property
    def status(self):
        """The line that says what happens, which leaves the screen after some seconds."""
        return self.told("#status").strip()

    @property
    def is_scored(self):
        """Whether the number is of what stands there."""
        return self.script(IS_SCORED)

    def score(self):
        """Wait until what stands there is scored; press the button where that is needed."""
        pressed = False

        def scored():
            nonlocal pressed
            pressed = pressed or self.script(PRESS_SCORE)  # pressed again, it would begin again
            return self.is_scored

        time.sleep(0.3)  # for the first sign that other settings make the result an old one
        self.until(scored, "the text was not scored")

    def script(self, source, *arguments):
        return self.browser.execute_script(source, *arguments)

    def keys(self, *keys):
        """Press keys where the focus is."""
        ActionChains(self.browser).send_keys(*keys).perform()

    @property
    def text(self):
        """What stands in the text box."""
        return self.script("return document.querySelector('#text textarea')?.value")
