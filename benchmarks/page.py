"""Measure the page in a browser: size, layout shifts, amount of text and latency.

Beside that, how many words and controls the first screen has, and what the server keeps of requests.

    python benchmarks/page.py

Serves the app with the bundled model and, beside it, a bare gradio page with one text box that tells its
length; opens both in a headless Chromium (Debian's `chromium` and `chromium-driver`, and the `selenium`
package), in turns and each time in a new profile, as on a first visit.  Times are printed in seconds
and as the median of the ratios of a turn, which a busy machine changes less.
"""

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.request import Request, urlopen

import gradio as gr
from selenium import webdriver
from selenium.webdriver.support.ui import WebDriverWait

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import app  # noqa: E402
from space.page import launch_options  # noqa: E402
from space.samples import samples  # noqa: E402

SIZES = {"1280 × 800": (1280, 800), "390 × 844": (390, 844)}
SLOWED = 4  # times, where layout shift is measured: parts arrive one by one
CHARACTERS = 2000  # about 500 tokens
PATIENCE = 300  # seconds
FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars")
WATCH = """
window.shift = 0;
new PerformanceObserver((list) => { for (const { value } of list.getEntries()) window.shift += value; })
  .observe({type: "layout-shift", buffered: true});
const seen = new MutationObserver(() => {
  if (!document.querySelector(".ps-whole, #bare-text textarea")) return;
  window.drawn = performance.now();
  seen.disconnect();
});
seen.observe(document, {childList: true, subtree: true, attributes: true});
"""
VISIT = """
const resources = performance.getEntriesByType("resource");
const [arrival] = performance.getEntriesByType("navigation"), [paint] = performance.getEntriesByName("first-contentful-paint");
return {
  shift: window.shift, first: paint.startTime / 1000, drawn: window.drawn / 1000,
  bytes: [arrival, ...resources].reduce((sum, { transferSize }) => sum + transferSize, 0),
};
"""
TEXT = """
const area = document.querySelector("#text textarea"), box = area.getBoundingClientRect(), style = getComputedStyle(area);
const height = Math.min(box.bottom, innerHeight) - box.top;
return {
  share: height * box.width / (innerWidth * innerHeight),
  lines: Math.floor((height - parseFloat(style.paddingTop)) / parseFloat(style.lineHeight)),
};
"""
# Words and controls that are in sight, but for the words of the visitor's own text.
FIRST_SCREEN = """
const seen = (box) => box.width > 2 && box.height > 2 && box.top < innerHeight && box.bottom > 0 && box.left < innerWidth && box.right > 0;
const shown = (element) => {
  if (!element.checkVisibility({visibilityProperty: true, opacityProperty: true})) return false;
  for (let at = element; at; at = at.parentElement) {
    const { width, height } = at.getBoundingClientRect(), { overflow, display } = getComputedStyle(at);
    if (overflow !== "visible" && display !== "contents" && (width <= 2 || height <= 2)) return false; // for screen readers
  }
  return true;
};
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), range = document.createRange();
let words = 0;
while (walker.nextNode()) {
  const node = walker.currentNode, parent = node.parentElement;
  if (!node.data.trim() || parent.closest(".ps-mirror, script, style, [popover]") || !shown(parent)) continue;
  range.selectNode(node);
  if ([...range.getClientRects()].some(seen)) words += node.data.trim().split(/\\s+/).length;
}
const controls = [...document.querySelectorAll("button, a[href], input, textarea, summary, [role=slider]")];
return { words, controls: controls.filter((one) => shown(one) && seen(one.getBoundingClientRect())).length };
"""
QUIET_AFTER = 7  # seconds: the hint in the corner has left
FEW, MANY = 200, 2000  # requests
# The time from a letter that is typed until the answer to it is drawn.
ANSWER = """
const [letter, bare, done] = arguments, area = document.querySelector("#text textarea, #bare-text textarea");
const answered = () => bare ? document.querySelector("#bare-answer").textContent.trim() === String(area.value.length)
  : JSON.parse(document.querySelector("[data-view=text]").dataset.payload).pieces.text === area.value;
area.value += letter;
const begun = performance.now();
const looks = new MutationObserver(() => {
  if (!answered()) return;
  looks.disconnect();
  requestAnimationFrame(() => setTimeout(() => done((performance.now() - begun) / 1000))); // painted
});
looks.observe(document.querySelector("#results, #bare-answer"), {childList: true, characterData: true, subtree: true});
area.dispatchEvent(new Event("input", {bubbles: true}));
"""


def first_screen(browser) -> dict:
    time.sleep(QUIET_AFTER)
    return browser.execute_script(FIRST_SCREEN)


def resident() -> int:
    """Return the memory of this process in bytes; only on Linux."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


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


def measure_memory(url: str, text: str, few: int = FEW, many: int = MANY) -> tuple[int, int]:
    """Return the memory after a few requests, and after many."""
    held = []
    for number in range(1, many + 1):
        call_score(url, f"{number}. {text}")
        if number in (few, many):
            held.append(resident())
    return tuple(held)


def bare_page(text: str) -> gr.Blocks:
    """Build the smallest gradio page that answers a typed letter."""
    with gr.Blocks(analytics_enabled=False) as page:
        box = gr.Textbox(text, lines=12, elem_id="bare-text")
        answer = gr.HTML(str(len(text)), elem_id="bare-answer")
        box.change(lambda text: str(len(text)), box, answer, show_progress="hidden")
    return page


def visit(url: str, size: tuple[int, int], slowed: int, look) -> object:
    """Open a page as on a first visit, and return the result of `look`."""
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
            browser.execute_cdp_cmd("Emulation.setCPUThrottlingRate", {"rate": slowed})
            browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": WATCH})
            browser.get(url)
            WebDriverWait(browser, PATIENCE, 0.2).until(
                lambda _: browser.execute_script("return window.drawn !== undefined")
            )
            return look(browser)
        finally:
            browser.quit()


def first_visit(browser) -> dict:
    return browser.execute_script(VISIT)


def type_letter(browser, text: str | None) -> float:
    """Return the seconds until a typed letter is answered; no text where the page is the bare one."""
    if text is not None:
        fill = "document.querySelector('#text textarea').value = arguments[0]"
        browser.execute_script(fill, text)
    browser.execute_async_script(ANSWER, "a", text is None)  # the answer to all of the text
    return browser.execute_async_script(ANSWER, "b", text is None)


def turn(url: str, bare: str, text: str) -> tuple[dict, dict]:
    """Visit both pages and type a letter into both."""
    return tuple(
        visit(
            address,
            SIZES["1280 × 800"],
            1,
            lambda browser, own=own: {**first_visit(browser), "letter": type_letter(browser, own)},
        )
        for address, own in ((url, text), (bare, None))
    )


def measure(url: str, bare: str, text: str, turns: int) -> Iterator[tuple[str, list[str]]]:
    """Yield the rows of the table: both sizes of the page, and the bare page where it has such a thing."""

    def both(slowed: int, look) -> list[dict]:
        return [visit(url, size, slowed, look) for size in SIZES.values()]

    seen = both(1, lambda browser: {**first_visit(browser), **browser.execute_script(TEXT)})
    yield "share of the first screen that is text", [f"{100 * one['share']:.0f} %" for one in seen]
    yield "lines of text on the first screen", [str(one["lines"]) for one in seen]
    screens = both(1, first_screen)
    yield "words on the first screen", [str(one["words"]) for one in screens]
    yield "controls on the first screen", [str(one["controls"]) for one in screens]
    moved = both(SLOWED, first_visit)
    named = f"layout shift, the browser slowed {SLOWED} times"
    yield named, [f"{one['shift']:.4f}" for one in moved]
    ours, theirs = zip(*(turn(url, bare, text) for _ in range(turns)))
    weights = (seen[0]["bytes"], seen[1]["bytes"], theirs[0]["bytes"])
    yield "bytes of a first visit", [f"{value:,}" for value in weights]
    for name, key in (
        ("first paint", "first"),
        ("until all of it is drawn", "drawn"),
        ("from a key stroke to the colours painted, 500 tokens", "letter"),
    ):
        yield name, timed([one[key] for one in ours], [one[key] for one in theirs])


def timed(ours: list[float], theirs: list[float]) -> list[str]:
    """Write times of the page and of the bare one, and the median of their ratios."""
    ratio = statistics.median(one / other for one, other in zip(ours, theirs))
    return [
        f"{statistics.median(ours):.2f} s: {ratio:.1f} ×",
        "",
        f"{statistics.median(theirs):.2f} s",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=5, help="of each time, 5 by default")
    parser.add_argument(
        "--memory",
        action="store_true",
        help=f"only measure memory after {FEW} and {MANY:,} requests",
    )
    args = parser.parse_args()
    if args.memory:
        return print_memory()
    text = next(iter(samples().values()))[:CHARACTERS]
    page, bare = app.create_app(), bare_page(text)
    _, url, _ = page.launch(**launch_options(), prevent_thread_lock=True, quiet=True)
    _, bare_url, _ = bare.launch(prevent_thread_lock=True, quiet=True, ssr_mode=False)
    print(f"| | {' | '.join(SIZES)} | a bare gradio page |")
    print("| --- | --- | --- | --- |")
    for name, cells in measure(url, bare_url, text, args.turns):
        print(f"| {name} | {' | '.join([*cells, '', ''][:3])} |", flush=True)
    bare.close()
    page.close()


def print_memory() -> None:
    """Print the server's memory after a few requests and after many."""
    text = next(iter(samples().values()))[:CHARACTERS]
    page = app.create_app()
    _, url, _ = page.launch(**launch_options(), prevent_thread_lock=True, quiet=True)
    few, many = measure_memory(url, text)
    print(
        f"after {FEW} requests: {few / 1e6:,.0f} MB; after {MANY:,}: {many / 1e6:,.0f} MB, ", end=""
    )
    print(f"{(many - few) / 1e6:+,.0f} MB")
    page.close()


if __name__ == "__main__":
    main()
