"""Jobs tell their progress, and stop when their visitor stops them, leaves or asks anew."""

import itertools
import math
import threading
import time
from types import SimpleNamespace

import pytest
import regex
from pages import STORY

from space.jobs import (
    ANNOUNCED,
    TOLD_EVERY,
    Job,
    Jobs,
    Shown,
    Stopped,
    Update,
    describe,
    follow,
    newest,
)
from space.models import BUNDLED
from space.settings import Settings


@pytest.mark.parametrize("name", ["trade_off", "every_protocol"])
def test_several_settings_are_one_run_with_one_progress(service, name):
    job = Job(60)
    measured = getattr(service, name)(STORY, Settings(BUNDLED, 64), job)
    updates = [update for update in job.told.queue if getattr(update, "share", None)]
    for _, of_step in itertools.groupby(updates, lambda update: update.sentence.split(":")[0]):
        shares = [update.share for update in of_step]
        assert shares == sorted(shares) and shares[-1] == 1.0
    for one in measured.strides if name == "trade_off" else measured.scored:
        again = service.score(STORY, one.settings, Job(60))
        assert again.result["perplexity"] == pytest.approx(one.result["perplexity"], rel=1e-6)
        assert again.result["signature"] == one.result["signature"]


def test_progress_tells_tokens_and_a_running_estimate(service):
    job = Job(60)
    service.score(STORY, Settings(BUNDLED, 64, 8), job)
    told = [update for update in job.told.queue if update.share is not None]  # else it opens
    shares = [update.share for update in told]
    assert shares == sorted(shares) and shares[-1] == 1.0 and len(shares) > 10
    assert regex.fullmatch(
        r"Scoring: [\d,]+ of [\d,]+ tokens read, perplexity so far [\d,.]+\. About .+ left\.",
        told[0].sentence,
    )


def test_before_a_perplexity_is_known_none_is_told():
    progress = SimpleNamespace(done=64, total=640, perplexity=math.nan)
    assert describe("Scoring", progress) == "Scoring: 64 of 640 tokens read."


def test_a_slow_page_is_told_only_the_news():
    job = Job(60)
    for step in range(100):  # everything is told before anyone listens
        job.say("step", step / 100)
    assert newest(job.told) == Update("step", 0.99)
    job.say("late")
    job.told.put(None)
    assert newest(job.told) is None


def test_a_page_is_told_a_few_times_a_second():
    """Each line of status costs a browser with a long text a good part of a second."""

    def work(job):
        for step in range(100):
            job.say("step", step / 100)
            time.sleep(0.01)
        return "whole"

    begun = time.monotonic()
    *updates, last = follow(Job(60), work)
    assert last == Shown("whole")
    assert 1 < len(updates) < 2 + (time.monotonic() - begun) / TOLD_EVERY


def test_stop_stops(service):
    job, seen = Job(60), []
    with pytest.raises(Stopped, match=r"Stopped\. Scoring: [\d,]+ of"):
        for told in follow(job, lambda job: service.score(STORY, Settings(BUNDLED, 64, 1), job)):
            seen.append(told)
            if told.share is not None:  # before, a model may be loaded
                job.stop()
    assert seen[-1].share < 1


def test_stop_while_waiting(service):
    job = Job(60)
    job.stop()
    with pytest.raises(Stopped):
        list(follow(job, lambda job: service.score(STORY, Settings(BUNDLED), job)))


def test_whoever_leaves_stops_the_work(service):
    running = threading.active_count()
    steps = follow(Job(60), lambda job: service.score(STORY * 4, Settings(BUNDLED, 64, 1), job))
    next(steps)
    steps.close()  # as when a visitor's connection ends
    assert threading.active_count() <= running


def test_a_new_request_stops_the_last_of_the_same_visitor_only():
    jobs = Jobs(60)
    first, other = jobs.new("visitor"), jobs.new("neighbour")
    second = jobs.new("visitor")
    with pytest.raises(Stopped):
        first.check()
    second.check()
    other.check()
    jobs.forget("neighbour")
    with pytest.raises(Stopped):
        other.check()


def test_what_was_pressed_last_is_the_newest_also_behind_what_scores_by_itself():
    jobs = Jobs(60)
    jobs.new("visitor", 2.0)
    for _ in range(2):  # the second begins a job of its own
        jobs.take("visitor")
    assert jobs.is_newest("visitor", 2.0)
    assert not jobs.is_newest("visitor", 1.0)
    assert jobs.is_newest("neighbour", 1.0)


def test_jobs_that_are_over_are_not_kept(monkeypatch):
    jobs = Jobs(60)
    jobs.take("done").finished = True
    jobs.new("never came").announced -= 2 * ANNOUNCED
    running, announced = jobs.take("runs"), jobs.new("comes")
    assert jobs._jobs == {"runs": running, "comes": announced}
