"""Jobs tell their progress, and stop when their visitor leaves or asks anew."""

import pytest
import regex
from pages import STORY

from space.jobs import Job, Stopped
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


def test_who_leaves_while_waiting_for_the_machine_leaves_it_alone(service):
    job = Job(60)
    job.stop()
    with service._machine, pytest.raises(Stopped):
        service.score(STORY, Settings(BUNDLED), job)
