"""Running requests: progress, stopping and the time that one may take.

The metric computes in one call, on a thread of its own; what it tells on the way is handed on.
"""

import math
import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from .limits import duration

# A request that would take this many times its budget is ended after a tenth of the budget: the first
# batches of a step say little of the rest.
HOPELESS = 1.2
TOLD_EVERY = 0.25  # seconds


class Stopped(Exception):
    """Nobody waits for the result any more."""


class OverBudget(Exception):
    """The request exceeds the time limit; the message says so.

    Attributes:
        needed: seconds that the step would take in all.
    """

    def __init__(self, needed: float, message: str):
        super().__init__(message)
        self.needed = needed


@dataclass(frozen=True)
class Update:
    """Progress of a running request.

    Attributes:
        sentence: what is happening.
        share: how much of it is done, 0 to 1; None while nobody knows.
    """

    sentence: str
    share: float | None = None


class Job:
    """One request.

    Args:
        seconds: that it may compute; waiting and loading a model don't count.
    """

    def __init__(self, seconds: float):
        self.seconds = seconds
        self.told: queue.Queue[Update | None] = queue.Queue()
        self._stop = threading.Event()
        self._computed = 0.0

    def stop(self) -> None:
        self._stop.set()

    def check(self) -> None:
        """Raise `Stopped` if nobody waits for the result any more."""
        if self._stop.is_set():
            raise Stopped

    def say(self, sentence: str, share: float | None = None) -> None:
        self.check()
        self.told.put(Update(sentence, share))

    @property
    def remaining(self) -> float:
        """Seconds that remain for computation."""
        return self.seconds - self._computed

    def computing(self, step: str = "Scoring") -> Callable:
        """Return a callback for one compute of the metric, and start the clock."""
        begun, before = time.monotonic(), self._computed

        def callback(progress) -> None:
            elapsed = time.monotonic() - begun
            self._computed = before + elapsed
            left = elapsed * (progress.total / progress.done - 1)
            self.say(describe(step, progress, left), progress.done / progress.total)
            if progress.done < progress.total:
                self._check_budget(progress, elapsed, left)

        return callback

    def _check_budget(self, progress, elapsed: float, left: float) -> None:
        expected = self._computed + left
        hopeless = elapsed > self.seconds / 10 and expected > HOPELESS * self.seconds
        if self._computed <= self.seconds and not hopeless:
            return
        raise OverBudget(
            elapsed + left,
            f"This would take about {duration(expected)}, and a request here may take "
            f"{duration(self.seconds)}. It ended after {progress.done / progress.total:.0%} "
            "of it. Choose a larger stride, a smaller model or a shorter text.",
        )


def describe(step: str, progress, left: float) -> str:
    """Describe the metric's progress, with the perplexity if it is known."""
    so_far = f", perplexity so far {progress.perplexity:,.1f}"
    known = "" if math.isnan(progress.perplexity) else so_far
    wait = f" About {duration(left)} left." if progress.done < progress.total else ""
    # A share: with overlapping windows, more tokens are read than the text has.
    return f"{step}: {progress.done / progress.total:.0%} done{known}.{wait}"


def follow(job: Job, work: Callable[[Job], object]) -> Iterator[Update | object]:
    """Run `work(job)` on a thread; yield its progress, and last its result.

    Closing the iterator, as gradio does when the visitor leaves, stops the work at its next batch.
    """
    outcome: dict = {}

    def run() -> None:
        try:
            outcome["result"] = work(job)
        except BaseException as error:  # raised again on the thread that follows
            outcome["error"] = error
        finally:
            job.told.put(None)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        while (told := _newest(job.told)) is not None:
            yield told
    finally:
        job.stop()
    if "error" in outcome:
        raise outcome["error"]
    yield outcome["result"]


def _newest(told: queue.Queue) -> Update | None:
    """Wait for progress, None for its end; of what is told within a moment, return the last."""
    item, due = told.get(), time.monotonic() + TOLD_EVERY
    while item is not None:
        try:
            item = told.get(timeout=max(0.0, due - time.monotonic()))
        except queue.Empty:
            break
    return item
