"""Time limits for work with an untrusted model."""

import threading
import time
from collections.abc import Callable

from torch.overrides import TorchFunctionMode

from .jobs import Job
from .limits import Refused, duration

LOOK_AGAIN = 0.2  # seconds between two looks at whether the visitor pressed Stop


def within(seconds: float, work: Callable[[], object], job: Job, what: str) -> object:
    """Return what `work()` returns, or stop waiting for it.

    It runs on a thread of its own, which nobody can end from outside: what takes too long is left
    alone, and its result is dropped.

    Args:
        what: what takes long, as a sentence has it.

    Raises:
        Refused: it took longer.
        Stopped: the visitor pressed Stop or left.
    """
    outcome: dict = {}

    def run() -> None:
        try:
            outcome["result"] = work()
        except BaseException as error:  # raised again on the thread that waits
            outcome["error"] = error

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    end = time.monotonic() + seconds
    while thread.is_alive() and time.monotonic() < end:
        job.check()
        thread.join(LOOK_AGAIN)
    if thread.is_alive():
        raise Refused(f"{what} took longer than {duration(seconds)}.")
    if "error" in outcome:
        raise outcome["error"]
    return outcome["result"]


class Countdown(TorchFunctionMode):
    """Limit the number and the duration of torch calls.

    A model that a configuration describes is built by calls of torch, one and more for each part.
    """

    def __init__(self, calls: int, seconds: float):
        super().__init__()
        self.calls = calls
        self._end = time.monotonic() + seconds

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.calls -= 1
        if self.calls < 0 or time.monotonic() > self._end:
            raise Refused("its configuration describes more parts than any small model has.")
        return func(*args, **(kwargs or {}))
