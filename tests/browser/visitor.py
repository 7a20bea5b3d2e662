"""A visitor for the browser tests: a headless Chromium that types, chooses, scores and points."""

import contextlib
import json
import shutil
import time
import zlib

import pytest

selenium = pytest.importorskip("selenium", reason="selenium is not installed")
from selenium import webdriver  # noqa: E402
from selenium.common.exceptions import StaleElementReferenceException  # noqa: E402
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
PHONE = {"width": 390, "height": 844, "pixelRatio": 2}
PATIENCE, INTERVAL = 180, 0.25  # seconds until a condition is given up, between two looks at it
# Controls whose name may contain some words: what names them does, or is elsewhere.
MENTIONING = """
return [...document.querySelectorAll("textarea, input, button, [role=listbox]")].filter((control) => {
  const { ariaLabel, title, value, textContent, labels } = control;
  const names = [ariaLabel, title, value, textContent, ...[...labels ?? []].map((label) => label.textContent)];
  return control.hasAttribute("aria-labelledby") || names.some((name) => name?.includes(arguments[0]));
});
"""


def start_browser(folder, phone=False, size=(1360, 1000), flags=()):
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS, *flags, f"--user-data-dir={folder}", "--window-size={},{}".format(*size)):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    if phone:
        options.add_experimental_option("mobileEmulation", {"deviceMetrics": PHONE})
    return webdriver.Chrome(
        options=options, service=webdriver.ChromeService(executable_path=CHROMEDRIVER)
    )


def ask_for_motion(browser, wish):
    """Let pages find "reduce" or "no-preference" among a visitor's wishes."""
    feature = {"name": "prefers-reduced-motion", "value": wish}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})


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
        wait = WebDriverWait(self.browser, patience, INTERVAL, [StaleElementReferenceException])
        return wait.until(lambda _: condition(), message)

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
        button = self.until(lambda: self.labelled(label), f"no control is called {label!r}")
        self.browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", button)
        button.click()

    def write(self, label, text):
        control = self.until(lambda: self.labelled(label), f"no control is called {label!r}")
        control.click()
        control.send_keys(Keys.CONTROL, "a")
        if text.isascii():
            control.send_keys(text)
        else:  # the driver cannot type every character
            self.browser.execute_cdp_cmd("Input.insertText", {"text": text})

    def fill(self, text):
        """Put a text into the text box at once, as pasting does."""
        self.script(
            "const area = arguments[0]; area.value = arguments[1];"
            "area.dispatchEvent(new Event('input', {bubbles: true}))",
            self.one("#text textarea"),
            text,
        )

    def choose(self, label, choice):
        control = self.until(lambda: self.labelled(label), f"no control is called {label!r}")
        control.click()
        options = self.until(  # an option has no text before it is drawn
            lambda: [o for o in self.all("ul [role=option]") if o.text.strip() == choice],
            f"{choice!r} is not offered",
        )
        options[0].click()

    def tab(self, name):
        """Open a tab: "Your text", "Other models", "Other strides" or "Other tools"."""
        tab = self.until(lambda: self._tab(name), f"no tab is called {name!r}")
        self.script("arguments[0].click()", tab)

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
        return self.one(selector).get_property("textContent")

    def number(self, name):
        """The field of `window` or `stride`."""
        return self.one(f"#{name} input[type=number]")

    @property
    def shown(self):
        """The text as it is coloured."""
        return self.one(".ps-mirror").get_property("textContent").removesuffix("\u200b")

    @property
    def status(self):
        """The line that says what happens, which leaves the screen after some seconds."""
        return self.told("#status").strip()

    def score(self):
        """Wait until what stands there is scored; press the button where that is needed."""

        pressed = []

        def scored():
            button = self.labelled("Score")
            if button is not None and not pressed:  # pressed again, it would begin again
                self.script("arguments[0].click()", button)
                pressed.append(button)
            done = "Scored with" in self.told("#status") and not self.all(".ps-card.ps-stale")
            return done and self._scored_mark == zlib.adler32(self.text.encode())

        time.sleep(0.3)  # for the first sign that other settings make the result an old one
        self.until(scored, "the text was not scored")

    @property
    def _scored_mark(self):
        """The fingerprint of the text that the number is of."""
        return json.loads(self.one(".ps-card").get_attribute("data-of"))[0]

    def script(self, source, *arguments):
        return self.browser.execute_script(source, *arguments)

    def keys(self, *keys):
        """Press keys where the focus is."""
        ActionChains(self.browser).send_keys(*keys).perform()

    @property
    def text(self):
        """What stands in the text box."""
        return self.one("#text textarea").get_property("value")
