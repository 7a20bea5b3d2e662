"""What a visitor finds who comes by a link, or comes back."""

import json
import threading
from types import SimpleNamespace

import gradio as gr
import pytest
from models import words
from pages import MANY, visitor

from space.jobs import Job
from space.links import MODELS, STRIDES, TOOLS, pack
from space.models import BUNDLED


def arrive(handlers, behind="", kept="", **query):
    """What a visitor finds who comes by a link."""
    names = ("text", "context", "model", "window", "stride", "start", "protocol", "sketch")
    values = handlers.arrive(visitor(**query), behind, kept, 3)
    names += ("status", "visits", "remark", "other", "linked")
    return SimpleNamespace(**dict(zip(names, values, strict=True)))


def test_links_set_the_controls_and_are_scored(handlers):
    found = arrive(handlers, window="32", stride="4", protocol="transformers-docs")
    assert (found.model, found.protocol) == (BUNDLED, "transformers-docs")
    assert (found.window.value, found.stride.value) == (32, 4)
    assert found.text == gr.skip()
    assert found.visits == 4  # which scores


def test_a_link_may_bring_a_text_alone(handlers):
    found = arrive(handlers, f"#text={pack(MANY)}")
    assert (found.text, found.visits) == (MANY, 4)
    assert (found.window.value, found.stride.value) == (64, 32)


def test_a_text_is_back_after_a_reload_even_if_the_address_is_older(handlers):
    kept = json.dumps({"text": "typed later", "context": "and this before it"})
    found = arrive(handlers, f"#text={pack(MANY)}", kept, window="32")
    assert (found.text, found.context) == ("typed later", "and this before it")
    assert (found.window.value, found.visits) == (32, 4)


def test_a_long_text_that_is_back_waits_for_the_button(handlers):
    found = arrive(handlers, kept=json.dumps({"text": "long " * 20_000, "context": ""}))
    assert found.text.startswith("long") and found.visits == 3
    assert "Press Score" in found.status


def test_settings_are_back_after_a_reload_and_so_is_a_press_of_score(handlers):
    settings = {"model": BUNDLED, "window": 32, "stride": 4, "protocol": "transformers-docs"}
    kept = {"text": "long " * 20_000, "context": "", "settings": settings, "pressed": True}
    found = arrive(handlers, kept=json.dumps(kept), window="64", stride="8")
    assert (found.window.value, found.stride.value) == (32, 4)
    assert found.protocol == "transformers-docs"
    assert found.visits == 4 and "Press Score" not in found.status


@pytest.mark.parametrize(
    "kept", ["", "{", "[1]", '{"text": 5}', "null", '{"other": "x"}', '{"settings": 5}']
)
def test_what_no_page_kept_is_no_text(handlers, kept):
    assert all(value == gr.skip() for value in vars(arrive(handlers, kept=kept)).values())


def test_a_window_alone_brings_half_of_it_as_stride(handlers):
    found = arrive(handlers, window="32")
    assert (found.window.value, found.stride.value) == (32, 16)


@pytest.mark.parametrize(
    "behind, query, said",
    [
        ("", {"window": "1"}, "window in the link is not a number"),
        ("#text=*", {}, "text in the link is broken"),
    ],
)
def test_a_link_of_which_nothing_is_left_says_so_alone(handlers, behind, query, said):
    others = vars(arrive(handlers, behind, **query))
    remark = others.pop("remark")
    assert said in remark.value and 'role="alert"' in remark.value
    assert all(value == gr.skip() for value in others.values())


@pytest.mark.parametrize(
    "behind, query, said",
    [
        ("", {"window": "32", "stride": "some"}, "stride in the link is not a number"),
        ("#text=*", {"window": "32"}, "text in the link is broken"),
    ],
)
def test_a_link_that_is_partly_wrong_says_so_and_is_scored(handlers, behind, query, said):
    found = arrive(handlers, behind, **query)
    assert said in found.remark.value and found.remark.visible
    assert (found.window.value, found.stride.value, found.visits) == (32, 16, 4)


def test_a_link_with_too_long_a_window_says_what_is_used(handlers):
    found = arrive(handlers, window="100000", stride="90000")
    assert found.window.value == 64
    assert "window of 100,000 is more than fits: 64 is used" in found.remark.value
    assert "stride of 90,000" in found.remark.value


def test_a_link_to_another_model_asks_for_its_own_window(handlers):
    found = arrive(handlers, model="owner/words")
    model, window, stride = found.model, found.window, found.stride
    assert (model, window.value, stride.value) == ("owner/words", 2048, 1024)
    chosen = (model, window.value, stride.value, "automatic", "sliding")
    last = list(handlers.score(visitor(), words([5, 9, 4] * 20), *chosen))[-1]
    assert (last[1].value, last[1].maximum) == (16, 16)  # what the model takes
    assert (last[2].value, last[2].maximum) == (8, 16)


def test_a_visitor_who_arrives_does_not_wait_for_those_who_compute(handlers):
    handlers.service.default_settings  # noqa: B018  # known since the page was built
    arrived = []
    with handlers.service.line.turn(Job(60)):  # as during a computation
        visit = threading.Thread(target=lambda: arrived.append(arrive(handlers, stride="4")))
        visit.start()
        visit.join(timeout=30)
    assert arrived[0].stride.value == 4


def test_a_plain_visit_changes_nothing(handlers):
    assert all(value == gr.skip() for value in vars(arrive(handlers)).values())


def test_a_hostile_link_is_ignored_with_a_sentence(handlers):
    found = arrive(handlers, stride="1e9", protocol="<script>alert(1)</script>", window="99999")
    assert 'role="alert"' in found.remark.value
    assert "<script>" not in found.remark.value


@pytest.mark.parametrize("compare", [MODELS, STRIDES, TOOLS])
def test_a_link_opens_a_comparison_once_its_text_is_scored(handlers, compare):
    found = arrive(handlers, f"#text={pack(MANY)}", compare=compare, other="owner/words")
    assert (found.linked, found.other, found.visits) == (compare, "owner/words", 4)
    assert (found.text, found.model) == (MANY, BUNDLED)
    assert arrive(handlers, compare=compare).visits == 4  # without a text: the first sample's


@pytest.mark.parametrize(
    "query, said",
    [
        ({"compare": "everything"}, "compare is ignored"),
        ({"compare": TOOLS, "other": "../etc"}, "other model in the link"),
    ],
)
def test_a_comparison_that_makes_no_sense_is_ignored_with_a_sentence(handlers, query, said):
    found = arrive(handlers, f"#text={pack(MANY)}", **query)
    assert said in found.remark.value and found.other == gr.skip()
    assert found.linked == (TOOLS if query["compare"] == TOOLS else gr.skip())
