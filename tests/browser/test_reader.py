"""The text, its windows and its surprise: what is pointed at in one of them lights in all."""

import time

import pytest
from visitor import ActionChains, Keys, Page, start_browser

HOSTILE = "<img src=x onerror=\"window.hacked=1\"> ${window.hacked=2} {{hacked}} <b>bold</b> 'end'"
CHARACTERS = "Ça naïve, 你好 👩‍👩‍👧 e\u0301 end."
PIECES = ".ps-text [data-n]"
TOO_MANY = 1500  # elements: what a screen or two of text takes is far fewer
LIT = """
const box = (element) => { const { left, right } = element.getBoundingClientRect(); return [left, right]; };
return ["context", "new"].map((name) => box(document.querySelector(`.ps-span .ps-${name}`)));
"""


def in_sight(page, element):
    """Whether an element's middle is on the screen, with nothing over it."""
    return page.script(
        "const r = arguments[0].getBoundingClientRect();"
        "const top = document.elementFromPoint(r.x + r.width / 2, Math.min(r.y + 12, r.y + r.height / 2));"
        "return arguments[0].contains(top)",
        element,
    )


def piece_at(page, number):
    """A piece of the text, brought in sight: the others are no elements yet."""
    page.script(
        "const chunks = [...document.querySelectorAll('[data-view=text] .ps-chunk')];"
        "let first = 0;"
        "for (const chunk of chunks) {"
        "  if (chunk.querySelector(`[data-n='${arguments[0]}']`)) return;"
        "  first += 200; if (first > arguments[0]) return chunk.scrollIntoView({block: 'center'});"
        "}",
        number,
    )
    piece = page.one(f'.ps-text [data-n="{number}"]')
    page.script("arguments[0].scrollIntoView({block: 'center'})", piece)
    return piece


def point_at(page, number):
    """Move the mouse over a piece of the text."""
    piece = piece_at(page, number)
    ActionChains(page.browser).move_to_element(piece).perform()
    return piece


def test_a_token_is_selected_by_pointing(page):
    page.until(lambda: len(page.all(PIECES)) > 30)
    piece_at(page, 20).click()
    told = page.one(".ps-detail").text
    assert "bits of surprise" in told and "guess" in told and "in window" in told
    assert len(page.all(".ps-guesses code")) >= 5
    assert page.all(".ps-legend .ps-box")[0].is_displayed()


def test_what_is_told_of_a_token_is_in_sight(page):
    """On a laptop the box was below the screen, on a phone two screens away."""
    page.browser.set_window_size(1366, 768)
    try:
        point_at(page, 60)
        page.until(lambda: "bits of surprise" in page.one(".ps-detail").text)
        assert in_sight(page, page.one(".ps-detail"))
    finally:
        page.browser.set_window_size(1360, 1000)


def test_what_is_told_of_a_token_is_in_sight_on_a_phone(url, tmp_path):
    browser = start_browser(tmp_path / "profile", phone=True)
    try:
        page = Page(browser, url)
        piece = piece_at(page, 60)
        page.script(
            "arguments[0].scrollIntoView({block: 'end'})", piece
        )  # what is below is not seen
        page.script("arguments[0].click()", piece)
        page.until(lambda: "bits of surprise" in page.one(".ps-detail").text)
        assert in_sight(page, page.one(".ps-detail"))
    finally:
        browser.quit()


def test_a_token_that_was_no_guess_is_listed_after_the_guesses(page):
    ranks = page.script(
        "return JSON.parse(document.querySelector('[data-view=text]').dataset.payload).rank"
    )
    number = next(n for n, rank in enumerate(ranks) if rank and rank > 100)
    [piece] = page.script(
        "const data = JSON.parse(document.querySelector('[data-view=text]').dataset.payload);"
        "return [data.segments.findIndex((s) => s && s[0] <= arguments[0] && arguments[0] <= s[1])]",
        number,
    )
    point_at(page, piece)
    page.until(lambda: f"{ranks[number]:,}" in page.all(".ps-guesses .ps-hit")[0].text)


def test_a_click_holds_a_token_and_a_second_one_lets_go(page):
    for element in (30, 30):
        point_at(page, element).click()
    held = point_at(page, 40)
    page.until(lambda: held.get_attribute("aria-selected") == "true")
    held.click()
    assert "Esc to let go" in page.one(".ps-detail").text
    point_at(page, 50)
    assert held.get_attribute("aria-selected") == "true"


def test_tokens_are_reached_with_the_keyboard(page):
    text = page.one(".ps-text")
    page.until(lambda: text.get_attribute("role") == "listbox")
    page.script("arguments[0].focus()", text)
    ActionChains(page.browser).send_keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT).perform()
    [selected] = page.all('.ps-text [aria-selected="true"]')
    assert text.get_attribute("aria-activedescendant") == selected.get_attribute("id")
    ActionChains(page.browser).send_keys(Keys.END).perform()
    [last] = page.all('.ps-text [aria-selected="true"]')
    assert last.get_attribute("aria-posinset") == last.get_attribute("aria-setsize")
    assert int(last.get_attribute("data-n")) > 500
    assert in_sight(page, last)


def test_characters_stay_whole_and_say_so(page):
    page.write("Text", CHARACTERS)
    page.score()
    page.until(lambda: page.one(".ps-text").text == CHARACTERS)
    [family] = [span for span in page.all(PIECES) if "👩‍👩‍👧" in span.text]
    family.click()
    told = page.one(".ps-detail").text
    assert "splits this into" in told and "Token 1 of" in told


def test_texts_run_in_their_own_direction(page):
    page.fill("سلام دنیا.")
    page.score()
    page.until(lambda: "سلام" in page.one(".ps-text").text)
    style = page.script(
        "const s = getComputedStyle(document.querySelector('.ps-text'));"
        "return [s.direction, s.unicodeBidi, s.whiteSpace]"
    )
    assert style[:2] == ["rtl", "plaintext"]
    assert "break-spaces" in style[2]  # a run of spaces is not one cut line


def test_the_word_is_coloured_and_not_the_space_before_it(page):
    text = "A coloured word and  two spaces."
    page.write("Text", text)
    page.score()
    page.until(lambda: page.script("return document.querySelector('.ps-text').textContent") == text)
    pieces = [piece.get_property("textContent") for piece in page.all(PIECES)]
    assert not [piece for piece in pieces if piece.strip() and piece != piece.lstrip(" ")]


def test_the_window_slides_over_the_whole_text(page):
    """It used to stand still while rows were drawn anew around it."""
    page.until(lambda: "Window 1 of" in page.one(".ps-says").text)
    page.press("Next window")
    assert "Window 2 of" in page.one(".ps-says").text
    places = []
    for _ in range(3):
        time.sleep(0.5)  # the slide
        places.append(page.script(LIT))
        page.press("Next window")
    lefts = [context[0] for context, _ in places]
    assert lefts[0] + 10 < lefts[1] < lefts[2] - 10
    for context, fresh in places:
        assert context[1] == pytest.approx(fresh[0], abs=1)
    assert page.all(".ps-text .in-context") and page.all(".ps-text .in-new")


def test_pointing_at_a_token_lights_its_window_everywhere(page):
    """The strip's colours used to stay those of the window before."""
    data = page.script(
        "return JSON.parse(document.querySelector('[data-view=text]').dataset.payload)"
    )
    begin, first, end, _ = data["windows"][3]
    piece = next(n for n, s in enumerate(data["segments"]) if s and s[0] >= first + 2)
    point_at(page, piece)
    page.until(lambda: "Window 4 of" in page.one(".ps-says").text)
    assert page.one(".ps-steps input").get_attribute("value") == "4"
    assert "Window 4 of" in page.one(".ps-steps input").get_attribute("aria-valuetext")
    lit = page.script(
        "return ['in-context', 'in-new'].map((name) =>"
        "[...document.querySelectorAll('.ps-text .' + name)].map((span) => Number(span.dataset.n)))"
    )
    spans = [[data["segments"][n][0] for n in (numbers[0], numbers[-1])] for numbers in lit]
    assert spans[0][0] >= begin and spans[0][1] < first
    assert spans[1][0] >= first and spans[1][1] < end
    assert page.one(".ps-dot").is_displayed()


def test_a_token_that_several_windows_score_is_shown_in_the_first_of_them(page, url):
    """Its surprise and its context are those of the first, and the last was named beside them."""
    linked = Page(page.browser, f"{url}?protocol=longlora&window=32&stride=16")
    linked.until(lambda: "longlora" in linked.one(".ps-recipe").text)
    linked.until(lambda: not linked.all(".ps-stale"))
    piece_at(linked, 24).click()
    told = linked.one(".ps-detail").text
    assert "saw 24 tokens before it" in told and "in window 1 of" in told


def test_pointing_at_the_map_selects_the_token_below_the_pointer(page):
    data = page.script(
        "return JSON.parse(document.querySelector('[data-view=text]').dataset.payload)"
    )
    picture = page.one(".ps-picture")
    page.script("arguments[0].scrollIntoView({block: 'center'})", picture)
    ActionChains(page.browser).move_to_element(picture).click().perform()
    [selected] = page.all('.ps-text [aria-selected="true"]')
    number = int(selected.get_attribute("data-n"))
    assert data["segments"][number][0] == pytest.approx(len(data["bits"]) / 2, abs=2)


def test_colours_show_rank_context_and_window(page):
    data = page.script(
        "return JSON.parse(document.querySelector('[data-view=text]').dataset.payload)"
    )
    number = next(n for n, s in enumerate(data["segments"]) if s and s[0] > 200 and s[0] == s[1])
    token = data["segments"][number][0]
    window = next(n for n, w in enumerate(data["windows"]) if w[1] <= token < w[2])
    rank = sum(data["rank"][token] > edge for edge in (1, 10, 100, 1000, 10000))
    for name, shown in (("rank", f"b{rank}"), ("window", f"n{window % 3}")):
        page.script("arguments[0].click()", page.one(f'.ps-choice input[value="{name}"]'))
        assert shown in piece_at(page, number).get_attribute("class").split()
        assert page.one(f'[data-legend="{name}"]').is_displayed()
    page.script("arguments[0].click()", page.one('.ps-choice input[value="context"]'))
    assert piece_at(page, number).get_attribute("class").startswith("c")
    page.script("arguments[0].click()", page.one('.ps-choice input[value="surprise"]'))


def count_listeners(page, selector):
    """How many functions listen to an element itself."""
    find = {"expression": f"document.querySelector({selector!r})"}
    element = page.browser.execute_cdp_cmd("Runtime.evaluate", find)["result"]["objectId"]
    told = page.browser.execute_cdp_cmd("DOMDebugger.getEventListeners", {"objectId": element})
    return len(told["listeners"])


def test_nothing_listens_for_a_result_that_is_gone(page):
    """The view's element stays from result to result, and with it would what listened to it."""
    view = "[data-view=text]"
    page.until(lambda: page.all(PIECES))
    page.script(f"document.querySelector({view!r}).kept = true")
    listeners = count_listeners(page, view)
    assert listeners > 0
    for sentences in (30, 15):
        page.fill("It was a quiet evening in the village by the sea. " * sentences)
        page.score()
        page.until(lambda: not page.all(".ps-stale"))
    assert page.script(f"return document.querySelector({view!r}).kept")
    assert count_listeners(page, view) == listeners


def test_windows_play(page):
    page.until(lambda: "Window 1 of" in page.one(".ps-says").text)
    page.script("arguments[0].click()", page.one('[data-step="play"]'))
    page.until(lambda: "Window 3 of" in page.one(".ps-says").text)
    page.script("arguments[0].click()", page.one('[data-step="play"]'))
    said = page.one(".ps-says").text
    time.sleep(1.2)  # longer than a step
    assert page.one(".ps-says").text == said


def test_what_a_tool_throws_away_is_drawn(page):
    page.press("More settings")
    page.choose("Protocol", "stock")
    page.score()
    page.until(lambda: "stock" in page.one(".ps-recipe").text)
    grey = page.script("return document.querySelector('.ps-line .ps-unscored').getBBox().width")
    data = page.script(
        "return JSON.parse(document.querySelector('[data-view=text]').dataset.payload)"
    )
    unscored = data["bits"].count(None)
    assert unscored > 400  # of a text that is cut after its first window
    assert grey == pytest.approx(unscored, abs=2)
    assert piece_at(page, 300).get_attribute("class") == "out"


def test_a_visitors_text_is_never_run(page):
    page.script("window.hacked = 0")
    page.write("Text", HOSTILE)
    page.score()
    page.until(lambda: page.one(".ps-text").text == HOSTILE)
    for number in range(0, len(page.all(PIECES)), 5):
        page.all(PIECES)[number].click()
    assert page.script("return window.hacked") == 0
    assert not page.all(".ps-view img, .ps-text b")


def test_a_screen_reader_does_not_stop_the_page(url, tmp_path):
    """An element for every token of a long text stopped the page for minutes."""
    browser = start_browser(tmp_path / "profile", flags=["--force-renderer-accessibility"])
    try:
        page = Page(browser, url)
        page.fill("It was a quiet evening in the village by the sea. " * 1200)  # 60,000 characters
        page.press("Score")
        page.until(lambda: "Scored with" in page.status)
        page.until(lambda: len(page.one(".ps-text").get_property("textContent")) == 60_000)
        page.until(lambda: page.all(PIECES))

        def options():
            nodes = browser.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
            return [node for node in nodes if node.get("role", {}).get("value") == "option"]

        page.until(lambda: len(options()) > 100)  # the tree follows the page
        assert len(options()) < TOO_MANY
        assert len(page.all(".ps-view *")) < 3 * TOO_MANY
        assert page.one(PIECES).get_attribute("role") == "option"
        piece_at(page, 11_000)  # what is scrolled to can be pointed at
        assert len(page.all(PIECES)) < TOO_MANY
    finally:
        browser.quit()
