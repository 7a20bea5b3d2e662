"""The report in a real browser: pointing, keys, light and dark, paper, and texts that mean harm."""

import pytest
from visitor import PATIENCE, By, Keys, WebDriverWait, as_phone

from perplexity_sliding.cli import main as command_line

WHITE = "rgb(255, 255, 255)"
HOSTILE = "</script><script>document.title = 'taken'</script><img src=x onerror=\"document.title = 'taken'\"> "


@pytest.fixture
def report(browser, tmp_path, root):
    """A report of a text of several chunks, opened."""
    story = (root / "samples" / "story.txt").read_text("utf-8")[:4000]
    (tmp_path / "text.txt").write_text(HOSTILE + story, "utf-8")
    made = [str(tmp_path / "text.txt"), "--quiet", f"--html={tmp_path / 'r.html'}"]
    assert command_line.main([*made, f"--model={root / 'demo_model'}"]) == 0
    browser.get_log("browser")
    browser.get((tmp_path / "r.html").as_uri())
    return browser


def prefer(browser, scheme: str) -> None:
    feature = {"name": "prefers-color-scheme", "value": scheme}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})


def ground(browser) -> str:
    return browser.execute_script("return getComputedStyle(document.body).backgroundColor")


def test_a_token_is_told_of_by_mouse_and_by_keys(report):
    box, panel = (report.find_element(By.CSS_SELECTOR, name) for name in (".ps-text", ".ps-detail"))
    assert HOSTILE.strip() in box.text and report.title.startswith("Perplexity")
    assert not report.find_elements(By.TAG_NAME, "img")
    box.find_elements(By.CSS_SELECTOR, "[data-n]")[90].click()
    first = panel.text
    assert "bits of surprise" in first and "It expected most:" in first and "%" in first
    marked = report.find_elements(By.CSS_SELECTOR, ".in-context, .in-new")
    assert marked, "the window of the token is underlined"
    box.send_keys(Keys.ARROW_RIGHT)
    assert panel.text != first
    active = box.get_attribute("aria-activedescendant")
    assert report.find_element(By.ID, active).get_attribute("aria-selected") == "true"
    story = report.find_element(By.CSS_SELECTOR, ".ps-story button")
    story.click()
    chosen = report.find_element(By.ID, box.get_attribute("aria-activedescendant"))
    assert chosen.get_attribute("data-n") == story.get_attribute("data-piece")
    assert chosen.text.strip() and chosen.text.strip() in story.text
    assert chosen.text.strip() in panel.text
    assert [entry for entry in report.get_log("browser") if entry["level"] == "SEVERE"] == []


def test_it_follows_light_and_dark_and_is_light_and_whole_on_paper(report):
    prefer(report, "dark")
    report.refresh()
    dark = ground(report)
    prefer(report, "light")
    WebDriverWait(report, PATIENCE).until(lambda report: ground(report) != dark)
    assert ground(report) == WHITE
    pieces = "return document.querySelectorAll('.ps-text [data-n]').length"
    drawn = report.execute_script(pieces)
    prefer(report, "dark")
    WebDriverWait(report, PATIENCE).until(lambda report: ground(report) == dark)
    report.execute_script("dispatchEvent(new Event('beforeprint'))")
    assert report.execute_script(pieces) > drawn
    assert ground(report) == WHITE
    report.execute_script("dispatchEvent(new Event('afterprint'))")
    assert ground(report) == dark
    prefer(report, "light")


def test_a_phone_shows_all_of_its_width(report):
    with as_phone(report):
        assert report.execute_script("return document.documentElement.scrollWidth") <= 390
