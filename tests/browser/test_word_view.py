"""Words in the place of tokens, and a text after a context."""

import pytest
from visitor import ActionChains, Keys

PIECES = ".ps-mirror [data-n]"
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
        words=True,
    )
    return result, result["word_scores"][0]


def test_words_are_shown_with_their_tokens(page, metric, bundled):
    text = "The lamplighter came home, and Josephine laughed."
    page.write("Text", text)
    page.score()
    show(page, "words")
    page.until(lambda: pieces(page) == text.split(), "the words are not shown")
    _, words = expected_words(metric, bundled, text)
    longest = words["num_tokens"].index(max(words["num_tokens"]))
    ActionChains(page.browser).move_to_element(page.all(PIECES)[longest]).perform()
    page.until(lambda: "bits of surprise" in page.told(".ps-tip"))
    told = page.told(".ps-tip")
    assert f"{words['surprisal'][longest] / 0.6931471805599453:.2f} bits of surprise" in told
    assert f"entropy of {words['entropy'][longest] / 0.6931471805599453:.2f} bits" in told
    assert len(page.all(".ps-tip .ps-parts li")) == words["num_tokens"][longest] > 1
    show(page, "tokens")
    page.until(lambda: len(pieces(page)) > len(text.split()))


def test_the_most_surprising_word_leads_to_its_place_among_words(page):
    """Its number counts pieces of words."""
    show(page, "words")
    page.until(lambda: all(not piece.startswith(" ") for piece in pieces(page)))
    page.until(lambda: page.is_scored)
    assert page.told(".ps-change") == "", "no setting has changed"
    page.script("arguments[0].click()", page.one(".ps-word"))
    chosen = page.one('.ps-mirror [aria-selected="true"]').get_property("textContent")
    assert page.told(".ps-word").strip() in chosen
    assert page.one(".ps-tip").is_displayed()
    show(page, "tokens")


def test_words_stay_when_a_slider_moves(page):
    page.write("Text", "One short line of words.")
    page.score()
    show(page, "words")
    page.until(lambda: len(pieces(page)) == 5)
    page.number("stride").send_keys(Keys.CONTROL, "a", Keys.NULL, "1")
    page.until(lambda: "stride 1 " in page.told(".ps-recipe") and page.is_scored)
    page.until(lambda: len(pieces(page)) == 5, "the words are gone")
    show(page, "tokens")


def test_a_protocol_without_words_says_so(page):
    page.open("settings")
    page.choose("Protocol", "gptq")
    page.until(lambda: "No words here: gptq" in page.told("[data-view=text]"))
    assert not page.one(UNIT.format("words")).is_enabled()


def test_a_text_after_a_context(page, metric, bundled):
    text, context = " was kind to all of us.", "The old man by the sea"
    page.write("Text", text)
    page.open("settings")
    page.write("Context", context)
    page.until(lambda: "of context" in page.told(".ps-recipe") and page.is_scored)
    result, _ = expected_words(metric, bundled, text, context)
    assert page.script(
        "return JSON.parse(document.querySelector('.ps-card').dataset.payload).perplexity"
    ) == pytest.approx(result["perplexity"], rel=1e-5)
    assert f"after {result['num_context_tokens']} tokens of context" in page.told(".ps-recipe")
    assert page.shown == text
    assert page.script("return location.hash").count("&context=") == 1
    page.open("share")
    page.until(lambda: "contexts=" in page.told("#share"))
    assert "--context-column context" in page.told("#share")


def test_a_protocol_without_contexts_refuses_with_a_sentence(page):
    page.open("settings")
    page.write("Context", "Before it.")
    page.choose("Protocol", "llama.cpp")
    page.until(lambda: "llama.cpp scores no text after a context" in page.status)
