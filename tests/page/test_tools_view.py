"""All protocols side by side: their numbers or reasons, and pictures of their windows."""

import pytest
import regex
from pages import STORY

from perplexity_sliding.views.charts import window_picture
from perplexity_sliding.views.text import escape, number
from space.jobs import Job
from space.models import BUNDLED
from space.settings import Settings
from space.tools_view import group_equal, tools_view


def test_every_protocol_is_shown_with_its_number_or_its_reason(service):
    sweep = service.every_protocol("A short text.", Settings(BUNDLED, 64, 32), Job(60))
    page = tools_view(sweep)
    assert len(sweep.scored) + len(sweep.failed) == len(service.protocols)
    reasons = {settings.protocol: reason for settings, reason in sweep.failed}
    assert "must have at least 128 tokens with the protocol llama.cpp" in reasons["llama.cpp"]
    assert "Reduce the window, or pass more text." in reasons["llama.cpp"]
    assert all("`" not in reason for reason in reasons.values())
    short = [name for name, reason in reasons.items() if "at least" in reason]
    assert f"too short for {', '.join(short)}: write more" in page and "got" not in page
    others = [reason for name, reason in reasons.items() if name not in short]
    assert all(escape(reason) in page for reason in others)


def bars(picture, kind):
    """Places (begin, width) of the bars of a kind, in tokens."""
    found = regex.findall(
        rf'class="{kind}" x="(\d+)" y="\d+" width="(\d+)" height="(?:1|0.8)"', picture
    )
    return [(int(begin), int(width)) for begin, width in found]


def test_pictures_of_protocols_show_what_is_thrown_away(service):
    sweep = service.every_protocol(STORY, Settings(BUNDLED, 64), Job(60))
    length = len(sweep.scored[0].tokens["tokens"])
    for one in sweep.scored:
        windows, coverage = window_picture(one).split("</svg>")[:2]
        assert f'viewBox="0 0 {len(one.tokens["tokens"])} 1"' in coverage  # the whole text
        lost = one.tokens["nll"].count(None)
        assert sum(width for _, width in bars(coverage, "ps-lost")) == lost
        drawn = [(w["first"], w["end"] - w["first"]) for w in one.tokens["windows"]]
        reach = [new for new in drawn if new[0] < 640]
        assert bars(windows, "ps-new")[:3] == reach[:3]
    cut = {one.settings.protocol: one.tokens["nll"].count(None) for one in sweep.scored}
    assert cut["stock"] == length - 63 and cut["sliding"] == 0
    title = "How the first 640 tokens are split" if length > 640 else "How the text is split"
    assert title in tools_view(sweep)


def test_protocols_stand_in_order_on_one_axis_with_their_difference(service):
    sweep = service.every_protocol(STORY, Settings(BUNDLED, 64), Job(60))
    page = tools_view(sweep)
    numbers = sorted(one.result["perplexity"] for one in sweep.scored)
    assert f"Same model, same text: {number(numbers[0])} to {number(numbers[-1])}" in page
    places = [float(left) for left in regex.findall(r'<b style="left:([\d.]+)%"', page)]
    assert places == sorted(places) and places[0] == 4 and places[-1] == 96
    ratio = sweep.scored[4].result["ratio_to_first"]
    shown = f"{100 * (ratio['ratio'] - 1):+.1f} %".replace("-", "−")
    assert shown in page
    assert "what the others are compared with" in page


def test_tools_of_equal_results_are_one_row(service):
    sweep = service.every_protocol(STORY, Settings(BUNDLED, 64), Job(60))
    groups = group_equal(sweep.scored)
    assert sum(map(len, groups)) == len(sweep.scored) > len(groups)
    for group in groups:
        assert len({number(one.result["perplexity"]) for one in group}) == 1
    page = tools_view(sweep)
    assert page.count("<summary>") == len(groups)
    assert page.count("data-protocol=") == len(sweep.scored)
    names = [one.settings.protocol for one in max(groups, key=len)]
    assert f'<span class="ps-names">{", ".join(names)}<small>' in page


@pytest.mark.parametrize(
    "settings, said",
    [
        (Settings(BUNDLED, 33, 33), "sliding with a stride of 33"),
        (Settings(BUNDLED, 40, 7, "none", "yarn"), "yarn with a stride of 7"),
        (Settings(BUNDLED, 40, protocol="lm-eval"), "The bold row is lm-eval."),
    ],
)
def test_the_bold_row_is_the_number_of_the_page(service, settings, said):
    """The page showed 38.76, and the row 35.11: the one with the stride that the tool has by itself."""
    shown = service.score(STORY, settings, Job(60)).result
    sweep = service.every_protocol(STORY, settings, Job(60))
    own, *others = sweep.scored
    assert own.result["perplexity"] == pytest.approx(shown["perplexity"], rel=1e-9)
    assert own.result["signature"] == shown["signature"]
    protocols = [one.settings.protocol for one in sweep.scored]
    assert sorted(protocols + [s.protocol for s, _ in sweep.failed]) == sorted(service.protocols)
    for one in others:
        ratio = one.result["perplexity"] / own.result["perplexity"]
        assert one.result["ratio_to_first"]["ratio"] == pytest.approx(ratio, rel=1e-9)
        assert one.settings.window == settings.window
    page = tools_view(sweep)
    assert said in page and f"{settings.window} tokens" in page
    [bold] = regex.findall(r'ps-group ps-own">.*?</summary>', page)
    assert f"<b>{number(shown['perplexity'])}</b>" in bold
    stated = regex.findall(r'data-stride="(\d*)".*?<small>Window (\d+)(?:, stride (\d+))?\.', page)
    assert len(stated) == len(sweep.scored)
    assert all((a, str(settings.window)) == (c, b) for a, b, c in stated)
