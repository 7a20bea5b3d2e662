"""A text scored twice: under two models, two strides, and as every tool would."""

import json
import re

import pytest
from visitor import Keys, Page

from demo_model.round_weights import load_rounded
from space.metric import new_metric, protocol_rows
from space.samples import samples

VIEW = "[data-view=compare]"
LIT = f'{VIEW} .ps-text [aria-selected="true"]'
[STORY, *_] = samples().values()
TEXT = 3 * STORY  # long enough for intervals


@pytest.fixture(scope="module")
def compared(browser, url):
    """The page with its comparison; whoever changes the page's settings opens one of their own."""
    page = Page(browser, url)
    page.fill(TEXT)
    page.score()
    page.tab("Other models")
    page.until(lambda: page.all(".ps-verdict"), "opening the tab compared nothing")
    page.until(lambda: "Done." in page.status)
    page.script("document.querySelectorAll('details').forEach((fold) => { fold.open = true; })")
    return page


@pytest.fixture(scope="module")
def compare(bundled, longest):
    """The metric's result of the rounded copy, with the full model as its reference."""
    model, tokenizer = load_rounded(bundled)
    return lambda stride: new_metric().compute(
        predictions=[TEXT],
        model=model,
        tokenizer=tokenizer,
        reference=bundled,
        max_length=longest,
        stride=stride,
        return_token_scores=True,
    )


@pytest.fixture(scope="module")
def comparison(compare, longest):
    return compare(stride=longest // 2)


def legends(page):
    return [
        e.get_attribute("data-legend")
        for e in page.all(f"{VIEW} ul[data-legend]")
        if e.is_displayed()
    ]


def choose(page, colours):
    page.script("arguments[0].click()", page.one(f'{VIEW} .ps-choice input[value="{colours}"]'))


def test_quantisation_is_told_with_the_full_model_as_the_reference(compared, comparison):
    own = comparison["comparison"]
    said = re.sub("[Tt]he model", "demo_model-4bit", own["summary"])
    said = said.replace("the reference", "demo_model")
    assert compared.one(".ps-verdict").text == said
    table = compared.told(".ps-compared")
    assert f"× {own['perplexity_ratio']['ratio']:.4f}" in table
    assert f"{own['reference_perplexity']:#.4g}{comparison['perplexity']:#.4g}" in table


def test_a_changed_token_is_coloured_by_whether_it_got_worse(compared, comparison):
    choose(compared, "change")
    [scores] = comparison["token_scores"]
    bits = [1.4427 * (a - b) for a, b in zip(scores["nll"], scores["reference_nll"])]
    pieces = compared.one(f"{VIEW} .ps-text").get_attribute("data-pieces")
    classes = json.loads(pieces)["classes"].split()
    drawn = [e.get_attribute("class") for e in compared.all(f"{VIEW} .ps-text [data-n]")]
    assert drawn == [name for name in classes if name != "-"][: len(drawn)]
    assert sum(name.startswith("v") for name in classes) > 10
    worst = max(range(len(bits)), key=bits.__getitem__)
    text = compared.one(f"{VIEW} .ps-pieces button span").text
    begin, end = scores["offsets"][worst]
    assert text == TEXT[begin:end].strip()
    assert classes.count("v2") == sum(0.5 <= change < 2 for change in bits)
    assert classes.count("w1") == sum(-0.5 < change <= -0.1 for change in bits)


def test_the_switch_shows_divergence_with_its_own_legend_and_list(compared, comparison):
    choose(compared, "divergence")
    assert legends(compared) == ["divergence"]
    lists = [e for e in compared.all(f"{VIEW} div[data-legend]") if e.is_displayed()]
    assert len(lists) == 1 and "predictions changed most" in lists[0].text
    largest = comparison["comparison"]["worst_tokens"][0]["kl"]
    assert f"{largest:#.3g} nats" in lists[0].text
    classes = {e.get_attribute("class") for e in compared.all(f"{VIEW} .ps-text [data-n]")}
    assert classes <= {"b0", "b1", "b2", "b3", "b4", "b5", "out"} and len(classes) > 2
    choose(compared, "change")
    assert legends(compared) == ["change"]


def test_the_switch_works_with_the_keyboard(compared):
    choose(compared, "change")
    compared.script("arguments[0].focus()", compared.one(f"{VIEW} .ps-choice input"))
    compared.keys(Keys.ARROW_RIGHT)
    assert legends(compared) == ["divergence"]
    compared.keys(Keys.ARROW_LEFT)
    assert legends(compared) == ["change"]


def test_a_worst_token_leads_to_its_place_with_the_keyboard(compared):
    choose(compared, "change")
    for _ in range(2):  # the second time lets nothing go
        link = compared.all(f"{VIEW} .ps-pieces button")[1]
        named = link.find_element("css selector", "span").text
        compared.script("arguments[0].focus()", link)
        compared.keys(Keys.ENTER)
        [lit] = compared.all(LIT)
        assert lit.text.strip() == named
        assert compared.script("return document.activeElement.className") == "ps-text"
    told = compared.one(f"{VIEW} .ps-detail").text
    assert "demo_model-4bit:" in told and "worse." in told and "Esc to release" in told
    inside = compared.script(
        "const box = arguments[0].parentNode.getBoundingClientRect(), own = arguments[0].getBoundingClientRect();"
        "return own.top >= box.top && own.bottom <= box.bottom",
        lit,
    )
    assert inside
    compared.keys(Keys.ARROW_RIGHT)
    [after] = compared.all(LIT)
    assert after != lit


def test_where_it_changes_is_drawn(compared, compare, longest):
    apart = compare(stride=longest)["comparison"]  # without overlap, so that contexts differ
    charts = compared.all(f"{VIEW} .ps-chart")
    assert len(charts) == 4
    groups = [group for group in apart["by_tokens_seen"] if group["num_tokens"] >= 30]
    assert len(groups) > 2
    assert [len(chart.find_elements("css selector", ".ps-mark")) for chart in charts] == [
        *(len(groups), len(groups)),
        *(0, 0),
    ]
    mark = charts[1].find_elements("css selector", ".ps-mark")[-1]
    assert f"{groups[-1]['kl']:#.3g} nats" in mark.get_attribute("aria-label")
    assert "above the line" in charts[3].find_element("css selector", "[role=img]").get_attribute(
        "aria-label"
    )


def test_another_model_is_compared_as_soon_as_it_is_chosen(page):
    page.tab("Other models")
    page.until(lambda: "demo_model-4bit" in page.one(".ps-verdict").text)
    page.write("Compare it with", "owner/bytes\n")
    page.until(lambda: "owner/bytes" in page.one(".ps-verdict").text, "nothing was compared")
    table = page.told(".ps-compared")
    assert "Bits per byte" in table and "KL" not in table
    page.until(lambda: page.click(page.all(f"{VIEW} .ps-text [data-n]")[5]))
    page.until(lambda: "owner/bytes:" in page.one(f"{VIEW} .ps-detail").text)


def test_strides_and_contexts_say_what_the_metric_says(page, metric, bundled, longest):
    entries = metric.compute(
        predictions=[STORY],
        model_id=bundled,
        max_length=longest,
        stride=[longest >> n for n in range(5)],
    )["measurements"]
    best = min(entries, key=lambda entry: entry["perplexity"])
    change = 100 * (best["ratio_to_first"]["ratio"] - 1)
    page.tab("Other strides")
    page.until(lambda: "Done." in page.status and page.all("[data-view=gain] .ps-verdict"))
    said = page.one("[data-view=gain] .ps-verdict").text
    ends = [f"{entry['perplexity']:#.4g}" for entry in (entries[0], best)]
    assert f"Stride {best['stride']} instead of {longest}: perplexity {ends[0]} → {ends[1]}" in said
    assert f"{change:+.1f} %,".replace("-", "−") in said
    assert "interval" not in said  # from four parts
    contexts = metric.compute(
        predictions=[STORY], model_id=bundled, max_length=longest, context_lengths="doubling"
    )["by_context_length"]
    marks = [mark.get_attribute("aria-label") for mark in page.all(".ps-mark")]
    told = [label for label in marks if label.startswith("a window of")]
    assert len(told) == len(contexts)
    for label, row in zip(told, contexts):
        assert f"{row['context_length']}: perplexity {row['perplexity']:#.4g}" in label


# Of the present settings: a row of the table before has another number than its score will have.
TOOLS_ARE_NEW = """
const groups = document.querySelector(".ps-groups");
return Boolean(groups) && !groups.closest(".ps-stale") && !groups.querySelector(".ps-stale");
"""


def test_a_tool_is_scored_from_its_row(page):
    for name in ("llama.cpp", "megatron"):
        page.tab("Other tools")
        page.until(lambda: page.script(TOOLS_ARE_NEW))
        part = f".ps-tool[data-protocol='{name}']"
        expected = page.script(
            "return document.querySelector(arguments[0]).closest('details').querySelector('summary b').textContent",
            part,
        )
        page.script("document.querySelector(arguments[0] + ' button').click()", part)
        page.until(
            lambda name=name: f"protocol {name} " in page.told(".ps-recipe") and page.is_scored
        )
        assert page.one(".ps-big output").text == expected


def test_every_tool_is_on_one_axis(page):
    page.tab("Other tools")
    page.until(lambda: len(page.all(".ps-tool")) == len(protocol_rows()))
    places = [
        float(e.get_attribute("style").split(":")[1].strip(" %;")) for e in page.all(".ps-dots > b")
    ]
    assert places == sorted(places)
    numbers = [float(e.text.replace(",", "")) for e in page.all(".ps-group summary > b")]
    assert f"Same model, same text: {numbers[0]:#.4g} to {numbers[-1]:#.4g}" in page.told(
        "#results"
    )


READ = """
const [written] = arguments, field = document.querySelector(".ps-read input");
field.value = written;
field.dispatchEvent(new Event("input", { bubbles: true }));
const marked = [...document.querySelectorAll(".ps-fits .ps-tool")].map((tool) => tool.dataset.protocol);
return [marked, document.querySelector(".ps-reading").textContent];
"""


def test_a_number_that_was_read_marks_the_rows_that_give_it(page, bundled, longest):
    page.tab("Other tools")
    page.until(lambda: len(page.all(".ps-tool")) == len(protocol_rows()))
    text = page.one("#text textarea").get_attribute("value")
    result = new_metric().compute(
        predictions=[text], model_id=bundled, protocol="lm-eval", max_length=longest
    )
    marked, said = page.script(READ, f"{result['word_perplexity']:.3f}")
    assert "lm-eval" in marked and "gptq" not in marked
    assert f"lm-eval gives it: word perplexity {result['word_perplexity']:.4f}" in said
    assert "By chance, 0." in said
    marked, said = page.script(READ, f"{result['bits_per_byte']:.4f}".replace(".", ","))
    assert "lm-eval" in marked and "bits per byte" in said
    marked, said = page.script(READ, "100000")
    assert marked == [] and "No row gives it. The nearest is" in said and "--find 100000" in said
    assert page.script(READ, "29.4x") == [[], "Write it as it is printed, such as 29.41."]
    assert page.script(READ, "") == [[], ""]
    # In the dark it stood white on white.
    page.script("document.body.classList.add('dark')")
    ground = "return getComputedStyle(document.querySelector('.ps-read input')).backgroundColor"
    assert page.script(ground) != "rgb(255, 255, 255)"
