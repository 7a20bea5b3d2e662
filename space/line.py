"""The line before something that only a few can use at once, such as the machine.

Who waits knows their place and about how long it will take, and leaves as soon as they stop.
"""

import contextlib
import statistics
import threading
import time
from collections import deque
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field

from .jobs import Job
from .limits import Refused, duration

LOOK_AGAIN = 0.2  # seconds between two checks of the place in the queue
REMEMBERED = 20  # last turns, to estimate the duration of a turn
FORGIVEN = 60.0  # half-life of a visitor's used time, in seconds
ORDINALS = {1: "next", 2: "2nd", 3: "3rd"}


@dataclass(eq=False)
class Ticket:
    """A request in the line.

    Attributes:
        arrived: when it came, in seconds of the clock.
        begun: when its turn came; None while it waits.
        pushed_out: somebody with a better claim took its place in a full line.
    """

    job: Job
    arrived: float = field(default_factory=time.monotonic)
    begun: float | None = None
    pushed_out: bool = False

    @property
    def payers(self) -> tuple[Hashable, ...]:
        """Payer of a turn: an address, and one visitor among those who share it."""
        address, visitor = self.job.address, self.job.visitor
        if address is None:
            return () if visitor is None else (visitor,)
        return address, (address, visitor)


class Accounts:
    """Recently used seconds of each address and visitor, with a half-life of a minute."""

    def __init__(self):
        self._had: dict[Hashable, tuple[float, float]] = {}

    def __getitem__(self, payer: Hashable) -> float:
        seconds, at = self._had.get(payer, (0.0, 0.0))
        return seconds * 0.5 ** ((time.monotonic() - at) / FORGIVEN)

    def charge(self, payer: Hashable, seconds: float) -> None:
        """Add to a payer's used time, and drop payers whose time is almost zero."""
        self._had[payer] = (self[payer] + seconds, time.monotonic())
        self._had = {name: had for name, had in self._had.items() if self[name] > 0.01}


class Line:
    """Queue of requests: first short requests of visitors with little recent use.

    A request is due so many seconds after it came as its address and its visitor had lately and as
    it is expected to take itself.  So nobody waits for ever, many requests of one address stand in
    nobody's way, and a short text passes a long one.

    Args:
        waiting: how many may wait; in a full line the one that is due last goes.
        width: how many have their turn at once.
    """

    def __init__(self, waiting: int, width: int = 1):
        self.waiting = waiting
        self.width = width
        self._changed = threading.Condition()
        self._tickets: list[Ticket] = []
        self._accounts = Accounts()
        self._lengths: deque[float] = deque(maxlen=REMEMBERED)

    def __len__(self) -> int:
        return len(self._tickets)

    @contextlib.contextmanager
    def turn(self, job: Job) -> Iterator[None]:
        """Wait for a turn, and have it.

        Raises:
            Refused: the line is full.
            Stopped: the visitor left the line.
        """
        ticket = self._enter(job)
        try:
            self._wait(ticket)
            yield
        finally:
            self._leave(ticket)

    def _enter(self, job: Job) -> Ticket:
        ticket = Ticket(job)
        with self._changed:
            self._tickets.append(ticket)
            waiting = self._in_order()
            if len(self._tickets) > self.waiting + self.width and waiting:
                waiting[-1].pushed_out = True
                self._tickets.remove(waiting[-1])
            self._changed.notify_all()
        return ticket

    def _in_order(self) -> list[Ticket]:
        """List the waiting requests, the next one first."""
        return sorted((t for t in self._tickets if t.begun is None), key=self._due)

    def _due(self, ticket: Ticket) -> float:
        had = sum(self._accounts[payer] for payer in ticket.payers)
        return ticket.arrived + had + ticket.job.expected

    def _wait(self, ticket: Ticket) -> None:
        while True:
            ticket.job.check()
            with self._changed:
                if ticket.pushed_out:
                    raise Refused(
                        f"{self.waiting} requests are waiting already, and there is no room for "
                        "more. Please try again in a minute."
                    )
                place = self._in_order().index(ticket) + 1
                running = sum(t.begun is not None for t in self._tickets)
                if place <= self.width - running:
                    ticket.begun = time.monotonic()
                    return
                sentence = self._describe(place)
            ticket.job.say(sentence)
            with self._changed:
                self._changed.wait(LOOK_AGAIN)

    def _leave(self, ticket: Ticket) -> None:
        with self._changed:
            if not ticket.pushed_out:
                self._tickets.remove(ticket)
            if ticket.begun is not None:
                seconds = time.monotonic() - ticket.begun
                self._lengths.append(seconds)
                for payer in ticket.payers:
                    self._accounts.charge(payer, seconds)
            self._changed.notify_all()

    def _describe(self, place: int) -> str:
        """Describe a place in the line: 1 is next."""
        where = f"You are {ORDINALS.get(place, f'{place}th')} in line"
        seconds = self._expected_wait(place)
        return f"{where}." if seconds is None else f"{where}: about {duration(seconds)} to wait."

    def _expected_wait(self, place: int) -> float | None:
        """Estimate the seconds until a turn from recent ones; None while there are none."""
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
