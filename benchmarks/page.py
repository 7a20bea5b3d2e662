"""Measure the page in a browser: first paint, bytes, requests, words and controls, from key to colour.

    python benchmarks/page.py
    python benchmarks/page.py --memory

Serves the app with the bundled model and opens it in a headless Chromium (Debian's `chromium` and
`chromium-driver`, and the `selenium` package), each time in a new profile, as on a first visit.  With
`--memory`, scores 2,000 different texts instead, and prints the server's memory after 200 and after all.
"""

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
from pathlib import Path
from urllib.request import Request, urlopen

from selenium import webdriver
from selenium.webdriver.support.ui import WebDriverWait

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import app  # noqa: E402
from space.page import launch_options  # noqa: E402

SIZES = {"1280 × 800": (1280, 800), "390 × 844": (390, 844)}
TEXT = (ROOT / "samples" / "story.txt").read_text(encoding="utf-8")[:2000]  # about 500 tokens
LINE = 1.6e6 / 8  # bytes a second of the slow line
PATIENCE = 300  # seconds
FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars")
VISIT = """
const resources = performance.getEntriesByType("resource"), [paint] = performance.getEntriesByName("first-contentful-paint");
const [arrival] = performance.getEntriesByType("navigation");
const seen = ({ top, bottom, width }) => width && top < innerHeight && bottom > 0;
const shown = (one) => one.checkVisibility({visibilityProperty: true});
const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), range = document.createRange();
let words = 0;
for (let node; (node = walk.nextNode()); ) {
  const parent = node.parentElement;
  if (!node.data.trim() || parent.closest("script, style, textarea, select") || !shown(parent)) continue;
  range.selectNode(node);
  if ([...range.getClientRects()].some(seen)) words += node.data.trim().split(/\\s+/).length;
}
const controls = [...document.querySelectorAll("button, a[href], input, textarea, select, summary")];
return {
  paint: paint.startTime / 1000, requests: resources.length + 1, words,
  bytes: [arrival, ...resources].reduce((sum, { transferSize }) => sum + transferSize, 0),
  controls: controls.filter((one) => shown(one) && seen(one.getBoundingClientRect())).length,
};
"""
# The time from a letter that is typed until the colours of the answer to it are painted.
LETTER = """
const [text, done] = arguments, area = document.getElementById("text"), answer = document.getElementById("answer");
const type = (value) => new Promise((painted) => {
  area.value = value;
  const begun = performance.now();
  area.dispatchEvent(new Event("input", {bubbles: true}));
  const look = () => answer.matches(".old") ? requestAnimationFrame(look)
    : requestAnimationFrame(() => setTimeout(() => painted((performance.now() - begun) / 1000)));
  look();
});
type(text).then(() => type(text + "a")).then(done);
"""


def visit(url: str, size: tuple[int, int], look, line: float = -1) -> object:
    """Open the page as on a first visit, and return the result of `look`.

    Args:
        line: bytes a second that arrive; -1 for as many as there are.
    """
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options = webdriver.ChromeOptions()
        options.binary_location = shutil.which("chromium") or shutil.which("chromium-browser")
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        service = webdriver.ChromeService(executable_path=shutil.which("chromedriver"))
        browser = webdriver.Chrome(options=options, service=service)
        try:
            browser.set_script_timeout(PATIENCE)
            screen = {"width": size[0], "height": size[1], "mobile": size[0] < 500}
            browser.execute_cdp_cmd(
                "Emulation.setDeviceMetricsOverride", {**screen, "deviceScaleFactor": 1}
            )
            browser.execute_cdp_cmd("Network.enable", {})
            limits = {"downloadThroughput": line, "uploadThroughput": line, "latency": 0}
            browser.execute_cdp_cmd(
                "Network.emulateNetworkConditions", {"offline": False, **limits}
            )
            browser.get(url)
            ready = "return document.documentElement.dataset.ready"
            WebDriverWait(browser, PATIENCE, 0.1).until(lambda _: browser.execute_script(ready))
            return look(browser)
        finally:
            browser.quit()


def measure(url: str, turns: int) -> None:
    """Print a table of both sizes of the page."""
    print(f"| | {' | '.join(SIZES)} |\n| --- | --- | --- |")
    seen = [visit(url, size, lambda b: b.execute_script(VISIT), LINE) for size in SIZES.values()]
    rows = [
        ("words on the first screen", [str(one["words"]) for one in seen]),
        ("controls on the first screen", [str(one["controls"]) for one in seen]),
        ("requests of a first visit", [str(one["requests"]) for one in seen]),
        ("bytes of a first visit", [f"{one['bytes']:,}" for one in seen]),
        ("first paint at 1.6 Mbit/s", [f"{one['paint']:.2f} s" for one in seen]),
    ]
    letters = [
        [visit(url, size, lambda b: b.execute_async_script(LETTER, TEXT)) for _ in range(turns)]
        for size in SIZES.values()
    ]
    shown = [f"{statistics.median(times):.2f} s" for times in letters]
    rows.append(("from a keystroke to the painted colours, 500 tokens", shown))
    for name, cells in rows:
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


def call_score(url: str, text: str) -> None:
    """Score a text like a program, and read the whole answer."""
    address = f"{url}gradio_api/call/score"
    data = [text, "demo_model", None, None, "automatic", "sliding", False, "", False]
    headers = {"Content-Type": "application/json"}
    body = json.dumps({"data": data}).encode()
    with urlopen(Request(address, body, headers), timeout=PATIENCE) as answer:
        event = json.load(answer)["event_id"]
    with urlopen(f"{address}/{event}", timeout=PATIENCE) as answer:
        if "event: complete" not in answer.read().decode():
            raise RuntimeError("A request was not answered.")


def resident() -> int:
    """Return the memory of this process in bytes; only on Linux."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def measure_memory(url: str, few: int = 200, many: int = 2000) -> None:
    """Print the server's memory after a few requests and after many."""
    held = []
    for number in range(1, many + 1):
        call_score(url, f"{number}. {TEXT}")
        if number in (few, many):
            held.append(resident() / 1e6)
    print(
        f"after {few} requests: {held[0]:,.0f} MB; after {many:,}: {held[1]:,.0f} MB, "
        f"{held[1] - held[0]:+,.0f} MB"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=3, help="of each time, 3 by default")
    parser.add_argument("--memory", action="store_true", help="only measure memory")
    args = parser.parse_args()
    page = app.create_app()
    _, url, _ = page.launch(**launch_options(page), prevent_thread_lock=True, quiet=True)
    if args.memory:
        measure_memory(url)
    else:
        measure(url, args.turns)
    page.close()


if __name__ == "__main__":
    main()
