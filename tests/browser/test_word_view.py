"""Words in the place of tokens, and a text after a context."""

from visitor import ActionChains, Keys

from space.markup import number

PIECES = ".ps-text [data-n]"
UNIT = '[data-units] input[value="{}"]'


def show(page, unit):
    page.script("arguments[0].click()", page.one(UNIT.format(unit)))


def pieces(page):
    return [piece.get_property("textContent") for piece in page.all(PIECES)]


def expected_words(metric, bundled, text, context=None):
    result = metric.compute(
        predictions=[text],
        contexts=None if context is None else [context],
        model_id=bundled,
        max_length=64,
        stride=32,
        words=True,
    )
    return result, result["word_scores"][0]


def test_words_are_shown_with_their_tokens(page, metric, bundled):
    text = "The lamplighter came home, and Josephine laughed."
    page.write("Text", text)
    page.score()
    show(page, "words")
    page.until(lambda: pieces(page) == text.split(), "the words are not shown")
    assert "word by word" in page.one(".ps-text").accessible_name
    result, words = expected_words(metric, bundled, text)
    longest = words["num_tokens"].index(max(words["num_tokens"]))
    ActionChains(page.browser).move_to_element(page.all(PIECES)[longest]).perform()
    page.until(lambda: "bits of surprise" in page.one(".ps-detail").text)
    told = page.one(".ps-detail").text
    assert f"{words['surprisal'][longest] / 0.6931471805599453:.2f} bits of surprise" in told
    assert f"entropy of {words['entropy'][longest] / 0.6931471805599453:.2f} bits" in told
    assert f"saw {words['context_length'][longest]} tokens" in told
    assert told.count(f" of {words['num_tokens'][longest]}, “") == words["num_tokens"][longest] > 1
    assert page.one(".ps-big output").text == number(result["perplexity"])
    # A keyboard and a screen reader go from word to word.
    page.script("arguments[0].focus()", page.one(".ps-text"))
    page.keys(Keys.HOME, Keys.ARROW_RIGHT)
    [selected] = page.all('.ps-text [aria-selected="true"]')
    assert selected.text == "lamplighter"
    assert selected.get_attribute("role") == "option"
    states = [selected.get_attribute(f"aria-{name}") for name in ("posinset", "setsize")]
    assert states == ["2", str(len(text.split()))]
    show(page, "tokens")
    page.until(lambda: len(pieces(page)) > len(text.split()))
    assert "token by token" in page.one(".ps-text").accessible_name


def test_words_stay_when_a_slider_moves(page):
    page.write("Text", "One short line of words.")
    page.score()
    show(page, "words")
    page.until(lambda: len(pieces(page)) == 5)
    page.script("arguments[0].focus()", page.labelled("range slider for Stride"))
    page.keys(Keys.HOME)
    page.until(lambda: "stride 1 " in page.one(".ps-recipe").text)
    page.until(lambda: len(pieces(page)) == 5, "the words are gone")
    show(page, "tokens")


def test_a_protocol_without_words_says_so(page):
    page.press("More settings")
    page.choose("Protocol", "gptq")
    page.until(lambda: "No words here: gptq" in page.one("[data-view=text]").text)
    assert not page.one(UNIT.format("words")).is_enabled()


def test_a_text_after_a_context(page, metric, bundled):
    text, context = " was kind to all of us.", "The old man by the sea"
    page.press("More settings")
    page.write("Text", text)
    page.write("Context", context)
    page.until(lambda: "of context" in page.one(".ps-recipe").text)
    page.until(lambda: not page.all(".ps-card.ps-stale"))
    result, _ = expected_words(metric, bundled, text, context)
    assert page.one(".ps-big output").text == number(result["perplexity"])
    assert f"after {result['num_context_tokens']} tokens of context" in page.one(".ps-recipe").text
    assert page.one(".ps-text").get_property("textContent") == context + text
    assert "".join(piece.text for piece in page.all(".ps-text .out")) == context.replace(" ", "")
    page.all(".ps-text .out")[0].click()
    assert "read, and not scored" in page.one(".ps-detail").text
    assert page.script("return location.hash").count("&context=") == 1
    page.tab("Cite and share")
    page.until(lambda: any("contexts=" in code.text for code in page.all(".cm-content")))
    assert any("--context-column context" in code.text for code in page.all(".cm-content"))


def test_a_protocol_without_contexts_refuses_with_a_sentence(page):
    page.press("More settings")
    page.write("Context", "Before it.")
    page.choose("Protocol", "llama.cpp")
    page.until(lambda: "llama.cpp scores no text after a context" in page.status)
