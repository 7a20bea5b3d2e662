"""Take the README's pictures of the Space: docs/screenshot.png and docs/window.gif.

    python docs/screenshot.py
    python docs/screenshot.py --all FOLDER

Serves the app on this machine with the bundled model, opens it in a headless Chromium (Debian's
`chromium` and `chromium-driver`, and the `selenium` package), and photographs the first screen with a
token pointed at, and the window that slides through the text.  With `--all`, photographs every view in all
sizes and both themes instead, to be looked at.
"""

import argparse
import base64
import io
import shutil
import sys
import tempfile
import time
from pathlib import Path

from PIL import Image
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import app  # noqa: E402
from space.page import launch_options  # noqa: E402

PICTURE = ROOT / "docs" / "screenshot.png"
FILM = ROOT / "docs" / "window.gif"
SIZE = (1280, 800)
SIZES = {"laptop": (1366, 768), "desk": (1400, 900), "phone": (390, 844)}
FLAGS = ["--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars"]
COLOURS = 128
LOOP = 12.6  # seconds, a little more than the picture takes
FRAME = 0.5  # seconds
MOST_BYTES = 1_000_000
TOKEN = ".ps-mirror .b5"  # the first great surprise is pointed at


def open_browser(profile: str) -> webdriver.Chrome:
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or shutil.which("chromium-browser")
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    service = webdriver.ChromeService(executable_path=shutil.which("chromedriver"))
    return webdriver.Chrome(options=options, service=service)


def open_page(browser, url: str, size: tuple[int, int], theme: str = "light") -> None:
    """Open the page at this screen size."""
    width, height = size
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500},
    )
    browser.get(f"{url}?__theme={theme}")
    wait(browser, ".ps-whole .ps-mirror [data-n]")
    time.sleep(1)  # the window on the text


def wait(browser, selector: str, condition=lambda element: True):
    """Wait for an element that meets the condition."""

    def find(_):
        elements = browser.find_elements(By.CSS_SELECTOR, selector)
        return next((element for element in elements if condition(element)), None)

    return WebDriverWait(browser, 90).until(find)


def photograph(browser, element=None, whole: bool = False) -> Image.Image:
    """Capture the screen, an element, or the whole page."""
    options = {"captureBeyondViewport": whole}
    if element is not None:
        box = element.rect
        options["clip"] = {**{key: box[key] for key in ("x", "y", "width", "height")}, "scale": 1}
    taken = browser.execute_cdp_cmd("Page.captureScreenshot", options)
    return Image.open(io.BytesIO(base64.b64decode(taken["data"]))).convert("RGB")


def point(browser) -> None:
    """Hover over a token, with the page scrolled to its top."""
    ActionChains(browser).move_to_element(wait(browser, TOKEN)).perform()
    browser.execute_script("scrollTo(0, 0)")
    time.sleep(1)  # the slide


def film(browser) -> list[Image.Image]:
    """The window moving through the text."""
    page, frames = wait(browser, "#writing"), []
    wait(browser, '[data-step="play"]').click()
    begun = time.monotonic()
    while time.monotonic() - begun < LOOP:
        due = begun + FRAME * len(frames)
        time.sleep(max(0.0, due - time.monotonic()))
        frames.append(photograph(browser, page))
    return frames


def save_film(frames: list[Image.Image], path: Path) -> None:
    """Write a looping animation with few colours, the same in every frame."""
    palette = frames[len(frames) // 2].quantize(64)
    few = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames]
    few[0].save(
        path,
        save_all=True,
        append_images=few[1:],
        duration=round(1000 * LOOP / len(few)),
        loop=0,
        optimize=True,
    )
    if path.stat().st_size > MOST_BYTES:
        raise SystemExit(f"{path.name} has {path.stat().st_size:,} bytes, over {MOST_BYTES:,}.")


def take_pictures(browser, url: str) -> None:
    """The two pictures of the README."""
    open_page(browser, url, SIZE)
    point(browser)
    photograph(browser).quantize(COLOURS).save(PICTURE, optimize=True)
    open_page(browser, url, SIZE)
    save_film(film(browser), FILM)
    for path in (PICTURE, FILM):
        print(f"{path.relative_to(ROOT)}: {path.stat().st_size:,} bytes")


def take_all(browser, url: str, folder: Path) -> None:
    """Every view in all sizes and both themes."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, size in SIZES.items():
        for theme in ("light", "dark"):
            open_page(browser, url, size, theme)
            time.sleep(3)  # the window moves
            photograph(browser).save(folder / f"{name}-{theme}-first.png")
            for number in range(5):  # text, Compare, and what it compares with
                browser.execute_script(
                    "document.querySelectorAll('button[role=tab]')[arguments[0]].click()", number
                )
                time.sleep(6)  # what is opened measures
                photograph(browser, whole=True).save(folder / f"{name}-{theme}-{number}.png")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--all", type=Path, metavar="FOLDER", help="every view, to look at")
    args = parser.parse_args()
    page = app.create_app()
    _, url, _ = page.launch(**launch_options(), prevent_thread_lock=True, quiet=True)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        browser = open_browser(profile)
        try:
            take_all(browser, url, args.all) if args.all else take_pictures(browser, url)
        finally:
            browser.quit()
    page.close()


if __name__ == "__main__":
    main()
