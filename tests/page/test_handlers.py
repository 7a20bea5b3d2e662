"""The page's handlers, as its components call them."""

import math
import os
import time
from pathlib import Path

import gradio as gr
import pytest
from pages import STORY, visitor

from perplexity_sliding.views.markup import escape
from space import jobs
from space.handlers import SCORE_OUTPUTS
from space.jobs import Stopped
from space.limits import Refused
from space.models import BUNDLED
from space.page import RESULTS_KEPT, build
from space.plan_view import sketch
from space.sharing import sentence


def test_scoring_fills_every_place(handlers, monkeypatch):
    # However fast this machine is, nothing that the job tells is passed over.
    monkeypatch.setattr(jobs, "newest", lambda told, earliest=0.0: told.get())
    handlers.begin(visitor())
    steps = list(handlers.score(visitor(), STORY, BUNDLED, 64, 32, "automatic", "sliding"))
    assert all(len(step) == 4 + len(SCORE_OUTPUTS) for step in steps)
    assert any("progress" in str(step[0]) for step in steps)
    assert "Scored with demo_model" in steps[-1][0]
    assert "ps-big" in steps[-1][4]


def test_of_a_result_that_is_kept_no_more_no_files_are_made(handlers):
    """After an hour, the files of the first sample stood there in its place."""
    opening = handlers.opening.settings.mark(handlers.opening.text)
    _, files = handlers.share(visitor(), "score", opening, None, *[None] * 3)
    assert files._constructor_args[0]["visible"] is True  # of what the page opened with
    *_, told = handlers.rescore(
        visitor(), STORY, BUNDLED, 64, 32, "automatic", "sliding", "", False
    )
    mark = told[1].settings.mark(told[1].text)
    drawer, files = handlers.share(visitor(), "score", mark, told[1], *[None] * 3)
    assert files._constructor_args[0]["visible"] is True
    assert escape(sentence(told[1])) in drawer
    said, files = handlers.share(visitor(), "score", mark, None, *[None] * 3)
    assert files._constructor_args[0]["visible"] is False
    assert 'role="alert"' in said and "score the text again" in said


def test_files_are_deleted_after_an_hour(handlers, monkeypatch):
    """No browser says for certain that its visitor left."""
    mark = handlers.opening.settings.mark(handlers.opening.text)
    asked = ("score", mark, None, None, None, None)
    handlers.share(visitor(), *asked)
    [folder] = Path(handlers._files.name).iterdir()
    handlers.share(visitor("neighbour"), *asked)
    assert folder.exists()
    os.utime(folder, (0, 0))
    handlers.share(visitor("neighbour"), *asked)
    assert not folder.exists()


def test_a_moved_stride_is_scored_by_itself(handlers):
    """Strides of six and less waited for the button, with the handle elsewhere."""
    text = STORY * 3  # 2,600 characters, as the first sample
    asked = (text, BUNDLED, 64, 3, "automatic", "sliding", "", False)
    assert [step[1] for step in handlers.rescore(visitor(), *asked)] == [gr.skip()]
    *_, told = handlers.rescore_moved(visitor(), *asked)
    assert told[1].settings.stride == 3
    *_, told = handlers.rescore_moved(visitor(), text * 100, *asked[1:])
    assert told[1] == gr.skip()  # minutes: that waits for the button


def test_what_is_forgotten_is_not_the_opening_again(service):
    """Gradio puts a state back to what it began with."""
    states = [block for block in build(service).blocks.values() if isinstance(block, gr.State)]
    kept = [state.value for state in states if state.time_to_live == RESULTS_KEPT]
    assert kept and not any(kept)


def test_of_two_choices_in_a_row_the_last_counts(service):
    """Gradio ignored the second while the answer to the first was on its way."""
    page = build(service)
    modes = {
        one["api_name"].rstrip("_0123456789"): one["trigger_mode"]
        for one in page.config["dependencies"]
    }
    for name in ("choose_sample", "choose_protocol", "ask_model", "ask_words", "ask", "idle"):
        assert modes[name] == "always_last"


def test_a_score_sets_no_field_that_it_took_as_asked(handlers):
    """Another number may have been typed while it was computed."""
    asked = (BUNDLED, 48, 32, "automatic", "sliding")
    *_, last = handlers.score(visitor(), STORY, *asked)
    assert all("value" not in field._constructor_args[0] for field in last[1:3])


def test_refusals_are_announced_and_change_nothing_else(handlers):
    [step] = handlers.score(visitor(), "", BUNDLED, 64, 32, "automatic", "sliding")
    assert 'role="alert"' in step[0] and "There is no text yet" in step[0]
    assert all(value == gr.skip() for value in step[1:])


@pytest.mark.parametrize("measure", ["trade_off", "every_protocol"])
def test_a_refusal_stands_in_the_view_that_it_concerns(handlers, measure):
    """The view stayed empty, and the reason stood below the screen."""
    asked = ("", BUNDLED, 64, 32, "automatic", "sliding", "")
    run = handlers.noting("a view", getattr(handlers, measure), ())
    *_, (line, first, *_, measured) = run(visitor(), 0, *asked)
    assert 'role="alert"' in line and "There is no text yet" in first
    assert measured == gr.skip()  # so that it is asked for again


def test_a_comparison_that_was_stopped_says_so_in_its_place(handlers, monkeypatch):
    """The tab stayed empty."""

    def stopped(text, settings, job):
        raise Stopped("Stopped. So far, nothing.")

    monkeypatch.setattr(handlers.service, "trade_off", stopped)
    run = handlers.noting("a view", handlers.trade_off, ())
    asked = (STORY, BUNDLED, 64, 32, "automatic", "sliding", "")
    [(line, first, *_, measured)] = run(visitor(), 0, *asked)
    assert "Stopped." in line and "Stopped. So far, nothing. Leave this tab" in first
    assert measured == gr.skip()  # so that it is asked for again


def test_faults_are_not_shown_to_visitors(handlers, monkeypatch, caplog):
    def fail(*args, **kwargs):
        raise RuntimeError(STORY)

    monkeypatch.setattr(handlers.service, "score", fail)
    [step] = handlers.score(visitor(), STORY, BUNDLED, 64, 32, "automatic", "sliding")
    assert "Something went wrong" in step[0] and STORY[:20] not in step[0]
    assert "RuntimeError" in caplog.text and "in fail" in caplog.text
    assert STORY[:20] not in caplog.text  # it may quote what a visitor wrote


def test_the_stop_button_ends_the_visitors_own_request(handlers, monkeypatch):
    def slowly(text, settings, job, clip):
        for _ in range(1000):
            job.say("Scoring.")
            time.sleep(0.01)

    monkeypatch.setattr(handlers.service, "score", slowly)
    handlers.begin(visitor())
    steps = handlers.score(visitor(), STORY, BUNDLED, 64, 1, "automatic", "sliding")
    next(steps)
    handlers.stop(visitor("neighbour"))
    next(steps)
    # Its answer could arrive behind the job's last word, so the job itself says "Stopping…".
    assert handlers.stop(visitor()) is None
    last = list(steps)[-1]
    assert "Stopped." in last[0]


@pytest.mark.parametrize("ends", ["with a result", "with a refusal", "with a fault"])
def test_a_request_that_was_replaced_changes_nothing(handlers, monkeypatch, scored, ends):
    """Its result stood over that of the newer request, where it came a moment later."""

    def overtaken(text, settings, job, clip):
        handlers.begin(visitor())
        if ends == "with a refusal":
            raise Refused("No room.")
        return scored if ends == "with a result" else 1 / 0

    monkeypatch.setattr(handlers.service, "score", overtaken)
    handlers.begin(visitor())
    steps = handlers.score(visitor(), STORY, BUNDLED, 64, 32, "automatic", "sliding")
    assert all(value == gr.skip() for step in steps for value in step)


def test_a_request_that_ends_late_leaves_the_newer_result_alone(handlers):
    """It cleared the place where the newer one's result waited to be shown."""

    def run(request):
        yield "Scoring.", gr.skip()
        yield gr.skip(), gr.skip()

    assert [made for _, made in handlers.making(run)(visitor())] == [None, gr.skip()]


def test_a_result_that_an_overtaken_request_showed_is_said_again(handlers):
    """A line of progress, still on its way when it was shown, stood there for good."""

    def run(request):
        yield "Scoring.", gr.skip(), gr.skip()
        yield "Scored.", "a number", "colours"

    progress, (line, made) = handlers.making(run)(visitor())
    assert progress == ("Scoring.", None) and line == gr.skip()
    show = handlers.showing(2)
    kept, *shown = show(made)
    assert shown == ["Scored.", "a number", "colours"]
    assert show(kept) == (["Scored."], "Scored.", gr.skip(), gr.skip())
    assert show(None) == gr.skip()  # nothing was made since


def test_sliders_follow_the_model(handlers):
    steps = list(handlers.adopt_model(visitor(), "owner/words", 32, "sliding", BUNDLED))
    _, name, window, stride, picture = steps[-1]
    assert name == "owner/words"
    assert (window.value, window.maximum) == (16, 16)
    assert (stride.value, stride.maximum) == (8, 16)
    assert "<b>8 to 15 tokens</b> of context" in picture


def test_a_refused_model_leaves_the_one_before(handlers):
    """Its name stood over the window and stride of the model before."""
    last = list(handlers.adopt_model(visitor(), "owner/nothing", 32, "sliding", BUNDLED))[-1]
    assert "no public model called owner/nothing" in last[0]
    assert last[1] == BUNDLED and all(value == gr.skip() for value in last[2:])


@pytest.mark.parametrize(
    "window, stride, taken",
    [
        (16, 48, (16, 16)),
        (999999, 4, (999999, 4)),
        (-5, 0, (2, 2)),
        (None, None, (2, 2)),
        (7.9, math.nan, (7, 7)),
        (math.inf, "3", (2, 2)),
    ],
)
def test_whatever_is_typed_into_the_sliders_can_be_drawn(handlers, window, stride, taken):
    assert handlers.draw(window, stride, "sliding") == sketch(*taken)


@pytest.mark.parametrize(
    "window, stride, said",
    [
        (999999, 4, "Scored with"),  # as long as the model takes
        (None, None, "Scored with"),
        (-5, 4, "The window must be between 2 and 64"),
        (32, 0, "The stride must be between 1 and"),
    ],
)
def test_whatever_is_typed_is_scored_or_refused_with_a_sentence(handlers, window, stride, said):
    *_, last = handlers.score(visitor(), STORY, BUNDLED, window, stride, "automatic", "sliding")
    assert said in last[0]


def test_a_protocol_without_a_stride_switches_the_slider_off(handlers):
    stride, start, *_ = handlers.choose_protocol("llama.cpp", 64, "once")
    assert stride.interactive is False
    assert stride.value == 64  # the tool's own
    assert start.interactive is False
    stride, *_ = handlers.choose_protocol("megatron", 64, "once")
    assert (stride.interactive, stride.value) == (True, 32)


def test_each_protocol_begins_with_its_usual_stride(handlers):
    """The stride of the protocol before stayed, and with it the number was another."""
    *_, wanted = handlers.choose_protocol("fairseq", 64, "once")
    assert wanted == 64
    stride, *_, wanted = handlers.choose_protocol("sliding", 64, "once")
    assert stride.value == wanted == 32


def test_an_address_without_its_text_says_so(handlers):
    long = "".join(map(chr, range(300, 2300)))
    asked = (BUNDLED, 64, 64, "automatic", "sliding")
    *_, (line, *_) = handlers.score(visitor(), long, *asked)
    assert "too long for a link" in line
    *_, (line, *_) = handlers.score(visitor(), STORY, *asked)
    assert "too long" not in line
