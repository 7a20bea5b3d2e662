"""What a visitor types, chooses and presses."""

import time

from visitor import Keys, Page

from space.metric import protocol_rows
from space.samples import samples


def test_tabbing_past_the_samples_leaves_ones_own_text_alone(page):
    page.write("Text", "I typed this with care.")
    for _ in range(6):
        page.keys(Keys.TAB)
    time.sleep(1)  # for an answer that must not come
    assert page.text == "I typed this with care."


def test_tabbing_past_the_model_leaves_window_and_stride_alone(page):
    for label, value in (("Window", "40"), ("Stride", "5")):
        page.write(f"number input for {label}", value + "\n")
    page.script("arguments[0].focus()", page.labelled("Model"))
    page.keys(Keys.TAB)
    time.sleep(1)
    assert [page.labelled(name).get_attribute("value") for name in ("Window", "Stride")] == [
        "40",
        "5",
    ]


def test_a_newcomer_sees_a_result_and_what_the_words_mean(page):
    assert float(page.one(".ps-big").text.replace(",", "")) > 1
    introduction = page.one(".ps-intro").text
    assert all(word in introduction for word in ("window", "stride", "context"))
    assert "of context" in page.one(".ps-sketch").text


def test_a_visitor_types_a_text_and_scores_it(page):
    before = page.one(".ps-big").text
    page.write("Text", "The sea was calm, and the boats came home one by one.")
    page.score()
    assert page.one(".ps-big").text != before
    assert "interval" in page.one(".ps-interval").text


def test_the_card_says_how_its_number_was_made(page):
    page.press("More settings")
    page.choose("Protocol", "llama.cpp")
    page.score()
    page.until(lambda: "llama.cpp" in page.one(".ps-recipe").text)
    assert (
        "window 64" in page.one(".ps-recipe").text and "start token" in page.one(".ps-recipe").text
    )


def test_settings_that_a_tool_does_not_have_are_not_shown(page):
    """A stride of 32 stood there, greyed, where the tool takes 64."""
    assert page.labelled("range slider for Stride")
    page.press("More settings")
    page.choose("Protocol", "llama.cpp")
    page.until(lambda: page.labelled("range slider for Stride") is None)
    page.choose("Protocol", "sliding")
    page.until(lambda: page.labelled("range slider for Stride"))


def test_a_result_says_when_it_is_not_of_the_present_text(page):
    """Old numbers stood beside new texts without a sign."""
    page.fill("A text that nobody has scored yet, " * 600)
    page.until(lambda: page.all(".ps-card.ps-stale") and page.all("[data-view=text].ps-stale"))
    time.sleep(2)  # it fades in, and makes room for itself
    [note] = [note for note in page.all(".ps-stale-note") if note.is_displayed()]
    assert "out of date" in note.text
    assert note.get_attribute("role") == "status"
    bottom = note.rect["y"] + note.rect["height"]
    assert bottom <= page.one(".ps-label").rect["y"]  # it covers nothing
    page.score()
    page.until(lambda: not page.all(".ps-stale"))


def test_tables_of_the_text_before_say_so(page):
    """Trade-off and tools stood there for the text before, under "Scored with"."""
    page.tab("Tools")
    page.until(lambda: page.all(".ps-tools") and "Done." in page.status)
    assert not page.all(".ps-view.ps-stale .ps-tools")
    page.fill("A text that nobody has scored yet, " * 300)
    page.until(lambda: page.all(".ps-view.ps-stale .ps-tools"))


def test_the_call_to_copy_is_there(page):
    page.tab("Cite and share")
    page.until(lambda: any("metric.compute" in code.text for code in page.all(".cm-content")))
    assert any("python score.py" in code.text for code in page.all(".cm-content"))
    assert "protocol:sliding" in page.one(".ps-signature").text


def test_a_sample_is_chosen_and_scored(page):
    page.choose("Or begin with a sample", "A short note")
    page.until(lambda: "blue pot" in page.labelled("Text").get_attribute("value"))
    page.score()


def test_a_samples_name_goes_with_its_text(page):
    sample = page.labelled("Or begin with a sample")
    name = sample.get_attribute("value")
    assert samples()[name] == page.text
    page.write("Text", "My own text.")
    page.until(
        lambda: not sample.get_attribute("value"), "the sample's name stays over another text"
    )
    page.choose("Or begin with a sample", name)
    page.until(lambda: page.text == samples()[name])
    time.sleep(1)  # for an answer that must not come
    assert sample.get_attribute("value") == name


def test_a_file_is_uploaded(page, tmp_path):
    path = tmp_path / "mine.txt"
    path.write_text("An uploaded text about a harbour.", encoding="utf-8")
    page.one("input[type=file]").send_keys(str(path))
    page.until(lambda: "harbour" in page.labelled("Text").get_attribute("value"))
    page.until(lambda: "harbour" in page.one(".ps-text").text, "a short file scores itself")


def test_a_file_that_is_no_text_is_refused_with_a_sentence(page, tmp_path):
    path = tmp_path / "picture.txt"
    path.write_bytes(b"\xff\xd8\xff\xe0 no text")
    page.one("input[type=file]").send_keys(str(path))
    page.until(lambda: "not plain text in UTF-8" in page.status)
    time.sleep(2)  # for a score of the text before, which must not come
    assert "not plain text in UTF-8" in page.status


def test_strides_and_protocols_are_measured(page):
    page.fill("It was a quiet evening in the village. " * 25)
    page.tab("Why context helps")
    page.until(lambda: "Done." in page.status)
    assert len(page.all(".ps-table tbody tr")) == 5
    assert len(page.all(".ps-mark")) > 5
    page.tab("Tools")
    page.until(lambda: len(page.all(".ps-tools tbody tr")) == len(protocol_rows()))
    assert "Same model, same text" in page.one(".ps-tools").find_element("xpath", "..").text
    assert page.all(".ps-cut rect.ps-lost")  # what a tool throws away is drawn


def test_a_named_model_sets_the_sliders(page):
    page.write("Model", "owner/bytes \n")
    page.until(lambda: "owner/bytes is ready" in page.status)
    page.until(lambda: page.labelled("Window").get_attribute("max") == "32")
    page.score()
    assert "owner/bytes" in page.one(".ps-label").text
    page.until(
        lambda: not page.all(".ps-stale"), "a space behind the name makes the result an old one"
    )


def test_a_model_with_code_is_refused_with_a_sentence(page):
    page.write("Model", "owner/code\n")
    page.until(lambda: "program code of its own" in page.status)
    assert page.all('#status [role="alert"]')


def test_stop_stops(page):
    page.fill("Again the tide came in and went out. " * 1500)
    page.press("Score")
    page.until(lambda: "tokens read, perplexity so far" in page.status)
    assert page.all("#status progress")
    page.press("Stop")
    page.until(lambda: page.status.startswith("Stopped."))
    page.write("Text", "A short text afterwards.")
    page.score()


def test_a_text_over_the_budget_is_refused_with_a_sentence(page):
    page.fill("word " * 50000)
    page.press("Score")
    page.until(lambda: "this page takes 200,000 at most" in page.status)


def test_a_link_carries_the_settings(page, url):
    linked = Page(page.browser, url + "?stride=16&window=64&protocol=transformers-docs")
    linked.until(lambda: "Scored with" in linked.status, "a link does not score by itself")
    assert linked.labelled("Stride").get_attribute("value") == "16"
    assert linked.labelled("Window").get_attribute("value") == "64"
    linked.tab("Cite and share")
    link = linked.one(".ps-view a").get_attribute("href")
    assert "stride=16" in link and "protocol=transformers-docs" in link
