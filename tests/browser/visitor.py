"""A visitor for the browser tests: a headless Chromium that types, chooses, scores and points."""

import contextlib
import shutil

import pytest

selenium = pytest.importorskip("selenium", reason="selenium is not installed")
from selenium import webdriver  # noqa: E402
from selenium.common.exceptions import StaleElementReferenceException  # noqa: E402
from selenium.webdriver.common.action_chains import ActionChains  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402, F401
from selenium.webdriver.support.ui import WebDriverWait  # noqa: E402

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
CHROMEDRIVER = shutil.which("chromedriver")
if not (CHROMIUM and CHROMEDRIVER):
    pytest.skip("chromium and chromedriver are not installed", allow_module_level=True)
FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
DESK = {"width": 1280, "height": 800, "deviceScaleFactor": 1, "mobile": False}
PHONE = {"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": True}
PATIENCE, INTERVAL = 120, 0.1  # seconds until a condition is given up, between two looks at it
# Whether the number is of what stands there.
IS_SCORED = """
const busy = document.getElementById("busy").textContent;
return !document.querySelector("#answer.old") && !busy;
"""
BOX = "const r = arguments[0].getBoundingClientRect(); return [r.left, r.top, r.right, r.bottom];"


def start_browser(folder):
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS, f"--user-data-dir={folder}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(executable_path=CHROMEDRIVER)
    browser = webdriver.Chrome(options=options, service=service)
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", DESK)
    return browser


def emulate(browser, motion="reduce", **features):
    """Let pages find wishes of a visitor, such as less motion or forced colours."""
    wishes = {"prefers-reduced-motion": motion, **features}
    features = [{"name": name.replace("_", "-"), "value": value} for name, value in wishes.items()]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": features})


@contextlib.contextmanager
def as_phone(browser):
    """Let a browser have a telephone's screen, and a finger for a mouse."""
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", PHONE)
    browser.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": True})
    try:
        yield
    finally:
        browser.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": False})
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", DESK)


@contextlib.contextmanager
def patched(browser, source):
    """Run a script before those of every page that is opened."""
    script = browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": source})
    try:
        yield
    finally:
        browser.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", script)


@contextlib.contextmanager
def on_line(browser, bytes_a_second=-1, latency=0, offline=False):
    """Let the browser have a slow line or none, and keep nothing of an earlier visit."""
    line = {"downloadThroughput": bytes_a_second, "uploadThroughput": bytes_a_second}
    browser.execute_cdp_cmd("Network.enable", {})
    browser.execute_cdp_cmd("Network.setCacheDisabled", {"cacheDisabled": True})
    conditions = {"offline": offline, "latency": latency} | line
    browser.execute_cdp_cmd("Network.emulateNetworkConditions", conditions)
    try:
        yield
    finally:
        line = {"downloadThroughput": -1, "uploadThroughput": -1}
        conditions = {"offline": False, "latency": 0} | line
        browser.execute_cdp_cmd("Network.emulateNetworkConditions", conditions)
        browser.execute_cdp_cmd("Network.setCacheDisabled", {"cacheDisabled": False})


class Page:
    """What a visitor does."""

    def __init__(self, browser, url, motion="reduce", **features):
        self.browser = browser
        emulate(browser, motion, **features)
        browser.get(
            "about:blank"
        )  # else an address that differs behind the # alone is no new visit
        browser.get(url)
        self.until(lambda: self.script("return document.documentElement.dataset.ready"))

    def until(self, condition, message="the page did not get there", patience=PATIENCE):
        wait = WebDriverWait(self.browser, patience, INTERVAL, [StaleElementReferenceException])
        return wait.until(lambda _: condition(), message)

    def all(self, selector):
        return self.browser.find_elements(By.CSS_SELECTOR, selector)

    def one(self, selector):
        self.until(lambda: self.all(selector), f"nothing matches {selector}")
        return self.all(selector)[0]

    def told(self, selector):
        """All words of an element."""
        return self.one(selector).get_property("textContent").strip()

    def script(self, source, *arguments):
        return self.browser.execute_script(source, *arguments)

    def keys(self, *keys):
        """Press keys where the focus is."""
        ActionChains(self.browser).send_keys(*keys).perform()

    def click(self, selector):
        element = self.one(selector)
        self.script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", element)
        element.click()

    def touch(self, element, down=0.5):
        """Tap an element with a finger, at a share of its height."""
        self.script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", element)
        left, top, right, bottom = self.script(BOX, element)
        point = {"x": (left + right) / 2, "y": top + down * (bottom - top)}
        for kind, points in (("touchStart", [point]), ("touchEnd", [])):
            self.browser.execute_cdp_cmd(
                "Input.dispatchTouchEvent", {"type": kind, "touchPoints": points}
            )

    def fill(self, text):
        """Put a text into the text box at once, as pasting does."""
        self.script(
            "const area = document.getElementById('text'); area.value = arguments[0];"
            "area.dispatchEvent(new Event('input', {bubbles: true}))",
            text,
        )

    def enter(self, field, value):
        """Type a value into a field of the drawer for researchers, and leave it."""
        self.script("document.getElementById('lab').open = true")
        self.script(
            "const field = document.getElementById(arguments[0]); field.value = arguments[1];"
            "field.dispatchEvent(new Event(field.id === 'context' ? 'input' : 'change'))",
            field,
            value,
        )

    def scored(self, text=None):
        """Wait until what stands there is scored; return the number as it is shown."""
        if text is not None:
            self.fill(text)
        self.until(lambda: self.script(IS_SCORED), "it was not scored")
        return self.told("#perplexity")

    @property
    def exact(self):
        """The number with four digits, as researchers see it."""
        self.scored()
        return self.told("#numbers dd")

    @property
    def text(self):
        return self.one("#text").get_property("value")

    @property
    def shown(self):
        """The text as it is coloured."""
        return self.script(
            "return document.getElementById('mirror').textContent.replace('\\u200b', '')"
        )
