"""Take the pictures of the page: docs/screenshot.png, docs/window.gif and space/preview.png.

    python docs/screenshot.py
    python docs/screenshot.py --all FOLDER

Serves the app on this machine with the bundled model, opens it in a headless Chromium (Debian's
`chromium` and `chromium-driver`, and the `selenium` package), and photographs the first screen, the
preview of a link to the page, and the window that slides through a text.  With `--all`, photographs every
view in two sizes and both themes instead, to be looked at.
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
from selenium.webdriver.support.ui import WebDriverWait

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import app  # noqa: E402
from space.page import launch_options  # noqa: E402

PICTURE, FILM = ROOT / "docs" / "screenshot.png", ROOT / "docs" / "window.gif"
PREVIEW = ROOT / "space" / "preview.png"
SIZES = {"desk": (1280, 800), "phone": (390, 844)}
PREVIEW_SIZE, PREVIEW_SCALE = (1000, 525), 1.2  # the preview has 1200 × 630 pixels
FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars")
COLOURS, FILM_COLOURS = 128, 64
FRAME, FRAMES = 0.9, 8  # seconds, as a step of the window takes
FILLED = "return !document.querySelector('#busy, .view .quiet')?.textContent"
# Everything that can be seen of the page, each after what was opened before it.
VIEWS = {
    "first": "",
    "twice": "document.getElementById('twice').click()",
    "forgets": "document.getElementById('twice').click()",
    "share": "document.getElementById('open-share').click()",
    "memory": "document.querySelector('dialog')?.close(); document.getElementById('memory').open = true",
    "tools": "document.getElementById('tools').open = true",
    "models": "document.getElementById('models').open = true",
    "lab": "document.getElementById('lab').open = true",
    "duel": "localStorage.clear(); document.getElementById('open-duel').click()",
    "word": "document.querySelectorAll('#duel .option')[2].click(); document.querySelector('#duel .go').click()",
}


def open_browser(profile: str) -> webdriver.Chrome:
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or shutil.which("chromium-browser")
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    service = webdriver.ChromeService(executable_path=shutil.which("chromedriver"))
    return webdriver.Chrome(options=options, service=service)


def open_page(browser, url: str, size: tuple[int, int], theme="light", scale=1.0) -> None:
    """Open the page at this screen size, without the glide over a first long text."""
    width, height = size
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": width < 500},
    )
    less = {"name": "prefers-reduced-motion", "value": "reduce"}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [less]})
    browser.get(f"{url}?__theme={theme}")
    wait(browser, "return document.documentElement.dataset.ready")


def wait(browser, condition: str) -> None:
    WebDriverWait(browser, 90).until(lambda _: browser.execute_script(condition))


def photograph(browser, whole: bool = False) -> Image.Image:
    """Capture the screen, or the whole page."""
    taken = browser.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": whole})
    return Image.open(io.BytesIO(base64.b64decode(taken["data"]))).convert("RGB")


def film(browser) -> list[Image.Image]:
    """The window moving through a text."""
    browser.execute_script(
        "const sample = document.getElementById('sample'); sample.value = 'gate.txt';"
        "sample.dispatchEvent(new Event('change'))"
    )
    wait(browser, "return !document.getElementById('play').hidden")
    browser.execute_script("document.getElementById('play').click()")
    frames, begun = [], time.monotonic()
    for frame in range(FRAMES):
        time.sleep(max(0.0, begun + FRAME * (frame + 0.5) - time.monotonic()))
        frames.append(photograph(browser).crop((100, 60, 1180, 560)))
        if browser.execute_script("return document.getElementById('play').textContent") != "Pause":
            break
    return frames


def save_film(frames: list[Image.Image], path: Path) -> None:
    """Write a looping animation with few colours, the same in every frame."""
    palette = frames[len(frames) // 2].quantize(FILM_COLOURS)
    few = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames]
    few[0].save(
        path,
        save_all=True,
        append_images=few[1:],
        duration=round(1000 * FRAME),
        loop=0,
        optimize=True,
    )


def take_pictures(browser, url: str) -> None:
    """The pictures of the documents and of the page's preview."""
    for path, size, scale in (
        (PICTURE, SIZES["desk"], 1.0),
        (PREVIEW, PREVIEW_SIZE, PREVIEW_SCALE),
    ):
        open_page(browser, url, size, scale=scale)
        photograph(browser).quantize(COLOURS).save(path, optimize=True)
    open_page(browser, url, SIZES["desk"])
    save_film(film(browser), FILM)
    for path in (PICTURE, PREVIEW, FILM):
        print(f"{path.relative_to(ROOT)}: {path.stat().st_size:,} bytes")


def take_all(browser, url: str, folder: Path) -> None:
    """Every view in all sizes and both themes."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, size in SIZES.items():
        for theme in ("light", "dark"):
            open_page(browser, url, size, theme)
            for view, act in VIEWS.items():
                browser.execute_script(act)
                time.sleep(1.5)
                wait(browser, FILLED)
                whole = view not in ("first", "share", "duel", "gap", "word")
                photograph(browser, whole).save(folder / f"{name}-{theme}-{view}.png")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--all", type=Path, metavar="FOLDER", help="every view, to look at")
    args = parser.parse_args()
    page = app.create_app()
    _, url, _ = page.launch(**launch_options(page), prevent_thread_lock=True, quiet=True)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        browser = open_browser(profile)
        try:
            take_all(browser, url, args.all) if args.all else take_pictures(browser, url)
        finally:
            browser.quit()
    page.close()


if __name__ == "__main__":
    main()
