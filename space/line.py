"""The line before something that only a few can use at once, such as the machine.

Who waits knows their place and about how long it will take, and leaves as soon as they stop.
"""

import contextlib
import statistics
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from .jobs import Job, duration
from .limits import Refused

LOOK_AGAIN = 0.2  # seconds between two looks at one's place
REMEMBERED = 20  # of the last turns, for what a turn takes
ORDINALS = {1: "next", 2: "2nd", 3: "3rd"}


@dataclass(eq=False)
class Ticket:
    """A request in the line; `begun` is when its turn came (seconds of the clock)."""

    job: Job
    begun: float | None = None


class Line:
    """Requests in the order they came.

    Args:
        waiting: how many may wait; further ones are refused.
        per_visitor: how many one visitor may have in the line, the one whose turn it is included.
        width: how many have their turn at once.
    """

    def __init__(self, waiting: int, per_visitor: int, width: int = 1):
        self.waiting = waiting
        self.per_visitor = per_visitor
        self.width = width
        self._changed = threading.Condition()
        self._tickets: list[Ticket] = []
        self._lengths: deque[float] = deque(maxlen=REMEMBERED)

    def __len__(self) -> int:
        return len(self._tickets)

    @contextlib.contextmanager
    def turn(self, job: Job) -> Iterator[None]:
        """Wait for a turn, and have it.

        Raises:
            Refused: the line is full, or the visitor waits for enough already.
            Stopped: the visitor left the line.
        """
        ticket = self._enter(job)
        try:
            self._wait(ticket)
            yield
        finally:
            self._leave(ticket)

    def _enter(self, job: Job) -> Ticket:
        with self._changed:
            of_visitor = [
                t for t in self._tickets if t.job.visitor == job.visitor and not t.job.stopped
            ]
            if job.visitor is not None and len(of_visitor) >= self.per_visitor:
                raise Refused(
                    f"You have {len(of_visitor)} requests waiting or running already, and that is "
                    "the most that one visitor may have. Wait for one of them to end."
                )
            if len(self._tickets) >= self.waiting + self.width:
                raise Refused(
                    f"{len(self._tickets)} requests are waiting already, and there is no room for "
                    "more. Please try again in a minute."
                )
            ticket = Ticket(job)
            self._tickets.append(ticket)
            return ticket

    def _wait(self, ticket: Ticket) -> None:
        while True:
            ticket.job.check()
            with self._changed:
                place = self._tickets.index(ticket) - self.width + 1
                if place <= 0:
                    ticket.begun = time.monotonic()
                    return
                sentence = self._describe(place)
            ticket.job.say(sentence)
            with self._changed:
                self._changed.wait(LOOK_AGAIN)

    def _leave(self, ticket: Ticket) -> None:
        with self._changed:
            self._tickets.remove(ticket)
            if ticket.begun is not None:
                self._lengths.append(time.monotonic() - ticket.begun)
            self._changed.notify_all()

    def _describe(self, place: int) -> str:
        """A sentence about one's place: 1 for who is next."""
        where = f"You are {ORDINALS.get(place, f'{place}th')} in line"
        seconds = self._expected_wait(place)
        return f"{where}." if seconds is None else f"{where}: about {duration(seconds)} to wait."

    def _expected_wait(self, place: int) -> float | None:
        """Seconds until a turn, from what the last ones took; None while nothing is known."""
        if not self._lengths:
            return None
        typical = statistics.fmean(self._lengths)
        now = time.monotonic()
        running = [ticket for ticket in self._tickets if ticket.begun is not None]
        left = [
            typical - (now - ticket.begun) if ticket.job.left is None else ticket.job.left
            for ticket in running
        ]
        return max(0.0, min(left, default=0.0)) + (place - 1) * typical / self.width
