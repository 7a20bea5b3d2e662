"""Running requests of visitors: progress, stopping and time limits.

The metric computes in one call, on a thread of its own; what it tells on the way reaches the page
through a queue.
"""

import math
import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from .limits import duration

# A request that would take this many times its budget is ended after a tenth of the budget, all of it
# of the present step: the first batches of a step say little of the rest.
HOPELESS = 1.2
# Seconds; each line of status costs a browser that shows a long text a good part of that.
TOLD_EVERY = 0.25
ANNOUNCED = 60.0  # seconds after which a request that never began is forgotten


class Stopped(Exception):
    """The visitor pressed Stop."""


class OverBudget(Exception):
    """The request exceeds a visitor's time limit; the message says so.

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


@dataclass(frozen=True)
class Shown:
    """The result."""

    result: object


class Job:
    """One request: its progress, whether it was stopped, and its deadline.

    Args:
        seconds: that it may compute; waiting and loading a model don't count.
        visitor: who asked for it; None for nobody in particular.
        address: where the visitor is, which many may share; None where that is not known.
        has_left: whether the visitor is gone, so that nobody waits for the result.

    Attributes:
        expected: seconds that it will compute, roughly, before it has begun.
        left: seconds that it will still compute, as far as is known.
        taken: a request runs under it.
        finished: that request ended.
        superseded: the same visitor asked for something newer, so nobody waits for its result.
        pressed: when the visitor asked for it, or for the announced one that it replaces, in milliseconds
            of the page.
    """

    def __init__(
        self,
        seconds: float,
        visitor: str | None = None,
        address: str | None = None,
        has_left: Callable[[], bool] = lambda: False,
    ):
        self.seconds = seconds
        self.visitor = visitor
        self.address = address
        self.has_left = has_left
        self.expected = 0.0
        self.left: float | None = None
        self.told: queue.Queue = queue.Queue()
        self.taken = self.finished = self.superseded = False
        self.announced = time.monotonic()
        self.pressed = 0.0
        self._stop = threading.Event()
        self._computed = 0.0
        self._so_far = ""

    def stop(self) -> None:
        self._stop.set()

    @property
    def stopped(self) -> bool:
        return self._stop.is_set()

    def check(self) -> None:
        """Raise `Stopped` if the visitor pressed Stop or left."""
        if self.stopped or self.has_left():
            raise Stopped(f"Stopped. {self._so_far}".strip())

    def say(self, sentence: str, share: float | None = None) -> None:
        """Report progress to the page."""
        self.check()
        self.told.put(Update(sentence, share))

    def computing(self, step: str = "Scoring") -> Callable:
        """Return a callback for one compute of the metric, and start the clock."""
        begun, before = time.monotonic(), self._computed

        def callback(progress) -> None:
            elapsed = time.monotonic() - begun
            self._computed = before + elapsed
            left = self.left = elapsed * (progress.total / progress.done - 1)
            self._so_far = describe(step, progress)
            time_left = f" About {duration(left)} left." if progress.done < progress.total else ""
            self.say(self._so_far + time_left, progress.done / progress.total)
            if progress.done < progress.total:
                self._check_budget(progress, elapsed, left)

        return callback

    @property
    def remaining(self) -> float:
        """Seconds that remain for computation."""
        return self.seconds - self._computed

    def _check_budget(self, progress, elapsed: float, left: float) -> None:
        expected = self._computed + left
        hopeless = elapsed > self.seconds / 10 and expected > HOPELESS * self.seconds
        if self._computed <= self.seconds and not hopeless:
            return
        raise OverBudget(
            elapsed + left,
            f"This would take about {duration(expected)}, and a request here may take "
            f"{duration(self.seconds)}. It ended after {progress.done:,} of {progress.total:,} "
            f"tokens, with a perplexity of {progress.perplexity:.4g} up to there. Choose a larger "
            "stride, a smaller model or a shorter text.",
        )


def describe(step: str, progress) -> str:
    """Describe the metric's progress, with the perplexity if it is known."""
    so_far = f", perplexity so far {progress.perplexity:,.1f}"
    known = "" if math.isnan(progress.perplexity) else so_far
    return f"{step}: {progress.done:,} of {progress.total:,} tokens read{known}."


def follow(
    job: Job, work: Callable[[Job], object], silent: float = 0.0
) -> Iterator[Update | Shown]:
    """Run `work(job)` on a thread; yield its progress, and finally its result.

    Abandoning the iterator stops the work at its next batch.

    Args:
        silent: seconds before the first of what it tells.
    """
    outcome: dict = {}

    def run() -> None:
        try:
            outcome["result"] = work(job)
        except BaseException as error:  # raised again on the thread that follows
            outcome["error"] = error
        finally:
            job.finished = True
            job.told.put(None)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        earliest = time.monotonic() + silent
        while (told := newest(job.told, earliest)) is not None:
            earliest = time.monotonic() + TOLD_EVERY
            yield told
    finally:
        job.stop()
        thread.join()
    if "error" in outcome:
        raise outcome["error"]
    yield Shown(outcome["result"])


def newest(told: queue.Queue, earliest: float = 0.0) -> Update | None:
    """Wait for a job's progress, None for its end; of several updates, keep the last.

    Args:
        earliest: when an update is due, in seconds of the clock.
    """
    item = told.get()
    while item is not None:
        try:
            item = told.get(timeout=max(0.0, earliest - time.monotonic()))
        except queue.Empty:
            break
    return item


def is_over(job: Job) -> bool:
    """Return whether a job is over: it ended, or its request never started."""
    return job.finished or (not job.taken and time.monotonic() - job.announced > ANNOUNCED)


class Jobs:
    """The latest job of each visitor until it ends, so that their Stop button finds it."""

    def __init__(self, seconds: float):
        self.seconds = seconds
        self._lock = threading.Lock()
        self._jobs: dict[str, Job] = {}

    def new(self, visitor: str, pressed: float = 0.0) -> Job:
        """Announce a job, stopping the visitor's last one."""
        with self._lock:
            job = self._replace(visitor)
            job.pressed = pressed
            return job

    def is_newest(self, visitor: str, pressed: float) -> bool:
        """Return whether the visitor asked for nothing after this, whatever arrived first."""
        with self._lock:
            return visitor not in self._jobs or self._jobs[visitor].pressed <= pressed

    def take(
        self, visitor: str, address: str | None = None, has_left: Callable[[], bool] = lambda: False
    ) -> Job:
        """Return the job announced last, or a new one if another request runs under that."""
        with self._lock:
            job = self._jobs.get(visitor)
            if job is None or job.taken:
                job = self._replace(visitor)
            job.taken, job.address, job.has_left = True, address, has_left
            return job

    def is_busy(self, visitor: str) -> bool:
        """Return whether the visitor's latest job is announced or running."""
        with self._lock:
            return visitor in self._jobs and not self._jobs[visitor].finished

    def stop(self, visitor: str) -> None:
        """Stop a visitor's job, which says so in its own line.

        Beside that line it could arrive behind the job's last word, and stay.
        """
        with self._lock:
            if visitor in self._jobs:
                self._jobs[visitor].told.put(Update("Stopping…"))
            self._stop(visitor)

    def forget(self, visitor: str) -> None:
        """Stop and drop the job of a visitor who left, or whose request never started."""
        with self._lock:
            self._stop(visitor)
            self._jobs.pop(visitor, None)

    def _replace(self, visitor: str) -> Job:
        job = Job(self.seconds, visitor)
        if visitor in self._jobs:
            self._jobs[visitor].superseded = True
            self._stop(visitor)
            job.pressed = self._jobs[visitor].pressed
        self._jobs = {name: job for name, job in self._jobs.items() if not is_over(job)}
        self._jobs[visitor] = job
        return job

    def _stop(self, visitor: str) -> None:
        if visitor in self._jobs:
            self._jobs[visitor].stop()
