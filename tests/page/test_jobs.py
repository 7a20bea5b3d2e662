"""Jobs tell their progress, and stop when their visitor leaves or asks anew."""

import time

import pytest
import regex
from pages import STORY

from space.jobs import TOLD_EVERY, Job, Stopped, Update, follow
from space.models import BUNDLED
from space.settings import Settings


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


def test_who_leaves_while_waiting_for_the_machine_leaves_it_alone(service):
    job = Job(60)
    job.stop()
    with service._machine, pytest.raises(Stopped):
        service.score(STORY, Settings(BUNDLED), job)
