"""Jobs tell their progress, and stop when their visitor leaves or asks anew."""

import itertools
import math
import threading
import time
from types import SimpleNamespace

import pytest
import regex
from pages import STORY

from space.jobs import TOLD_EVERY, Job, Stopped, Update, describe, follow
from space.models import BUNDLED
from space.settings import Settings


def test_several_tools_are_one_run_with_one_progress(service):
    job = Job(60)
    measured = service.every_protocol(STORY, Settings(BUNDLED, 64), job)
    updates = [update for update in job.told.queue if getattr(update, "share", None)]
    for _, of_step in itertools.groupby(updates, lambda update: update.sentence.split(":")[0]):
        shares = [update.share for update in of_step]
        assert shares == sorted(shares) and shares[-1] == 1.0
    for one in measured.scored:
        again = service.score(STORY, one.settings, Job(60))
        assert again.result["perplexity"] == pytest.approx(one.result["perplexity"], rel=1e-6)
        assert again.result["signature"] == one.result["signature"]


def test_progress_tells_a_share_and_a_running_estimate(service):
    job = Job(60)
    service.score(STORY, Settings(BUNDLED, 64, 8), job)
    told = [update for update in job.told.queue if update.share is not None]  # else it opens
    shares = [update.share for update in told]
    assert shares == sorted(shares) and shares[-1] == 1.0 and len(shares) > 10
    assert regex.fullmatch(
        r"Scoring: \d+% done, perplexity so far [\d,.]+\. About .+ left\.",
        told[0].sentence,
    )


def test_before_a_perplexity_is_known_none_is_told():
    progress = SimpleNamespace(done=640, total=640, perplexity=math.nan)
    assert describe("Scoring", progress, 0) == "Scoring: 100% done."


def test_a_page_is_told_a_few_times_a_second_and_the_result_at_last():
    def work(job):
        for step in range(100):
            job.say("step", step / 100)
            time.sleep(0.01)
        return "whole"

    begun = time.monotonic()
    *updates, last = follow(Job(60), work)
    assert last == "whole" and all(isinstance(update, Update) for update in updates)
    assert 1 < len(updates) < 2 + (time.monotonic() - begun) / TOLD_EVERY


def test_whoever_leaves_stops_the_work(service):
    running = threading.active_count()
    steps = follow(Job(60), lambda job: service.score(STORY * 4, Settings(BUNDLED, 64, 1), job))
    next(steps)
    steps.close()  # as gradio does when a visitor's connection ends
    end = time.monotonic() + 10
    while threading.active_count() > running:
        assert time.monotonic() < end, "it goes on"
        time.sleep(0.05)


def test_who_leaves_while_waiting_for_the_machine_leaves_it_alone(service):
    job = Job(60)
    job.stop()
    with service._machine, pytest.raises(Stopped):
        service.score(STORY, Settings(BUNDLED), job)
