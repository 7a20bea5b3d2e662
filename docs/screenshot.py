"""Take the README's picture of the Space: docs/screenshot.png.

    python docs/screenshot.py

Serves the app on this machine with the bundled model, opens it in a headless Chromium (Debian's
`chromium` and `chromium-driver`, and the `selenium` package), and photographs the page with its
tokens, and beside it the windows.
"""

import base64
import io
import shutil
import sys
import tempfile
from pathlib import Path

from PIL import Image
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import app  # noqa: E402
from space.page import launch_options  # noqa: E402

PICTURE = ROOT / "docs" / "screenshot.png"
SIZE = (1240, 1190)
SAMPLE = "A story"
FLAGS = ["--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars"]
COLOURS = 128
MARGIN = 12  # pixels around the results


def open_browser(profile: str) -> webdriver.Chrome:
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or shutil.which("chromium-browser")
    for flag in (*FLAGS, f"--user-data-dir={profile}", f"--window-size={SIZE[0]},{SIZE[1]}"):
        options.add_argument(flag)
    service = webdriver.ChromeService(executable_path=shutil.which("chromedriver"))
    return webdriver.Chrome(options=options, service=service)


def wait(browser, selector: str, condition=lambda element: True):
    """Wait for an element for which the condition holds."""

    def find(_):
        elements = browser.find_elements(By.CSS_SELECTOR, selector)
        return next((element for element in elements if condition(element)), None)

    return WebDriverWait(browser, 60).until(find)


def score_sample(browser, name: str) -> None:
    """Choose a sample and score it."""
    wait(browser, "input", lambda e: "sample" in e.accessible_name).click()
    wait(browser, "ul [role=option]", lambda e: e.text.strip() == name).click()
    wait(browser, "textarea", lambda e: e.get_attribute("value").startswith("THE LAMP"))
    wait(browser, "#score").click()
    wait(browser, "#status", lambda e: "Scored with" in e.text)


def photograph(browser, left: float = 0, top: float = 0) -> Image.Image:
    """Photograph the page from a corner on."""
    clip = {"x": left, "y": top, "width": SIZE[0] - left, "height": SIZE[1] - top, "scale": 1}
    taken = browser.execute_cdp_cmd(
        "Page.captureScreenshot", {"clip": clip, "captureBeyondViewport": True}
    )
    return Image.open(io.BytesIO(base64.b64decode(taken["data"])))


def open_tab(browser, name: str) -> None:
    wait(browser, "button[role=tab]", lambda e: e.text.strip() == name).click()


def show_tokens(browser) -> None:
    open_tab(browser, "Tokens")
    wait(browser, ".ps-text > .b5[role=option]").click()  # the first great surprise


def show_windows(browser) -> None:
    open_tab(browser, "Windows")
    step = wait(browser, '[data-step="1"]')
    for _ in range(9):
        step.click()
    browser.execute_script("document.activeElement.blur()")


def stack(pictures: list[Image.Image]) -> Image.Image:
    """Put pictures side by side, their feet in line, in few colours to keep the file small."""
    width = sum(picture.width for picture in pictures)
    whole = Image.new("RGB", (width, pictures[0].height), "white")
    left = 0
    for picture in pictures:
        whole.paste(picture, (left, whole.height - picture.height))
        left += picture.width
    return whole.quantize(COLOURS)


def main() -> None:
    page = app.create_app()
    _, url, _ = page.launch(**launch_options(), prevent_thread_lock=True, quiet=True)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        browser = open_browser(profile)
        try:
            browser.get(url)
            wait(browser, ".ps-big")
            score_sample(browser, SAMPLE)
            show_tokens(browser)
            pictures = [photograph(browser)]
            show_windows(browser)
            results = wait(browser, "#status").rect
            pictures.append(photograph(browser, results["x"] - MARGIN, results["y"]))
        finally:
            browser.quit()
    page.close()
    stack(pictures).save(PICTURE, optimize=True)
    print(f"{PICTURE.relative_to(ROOT)}: {PICTURE.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
