"""Several processes score one set of windows: sharing the work, and gathering the result.

A thin layer over `accelerate`, which sets up torch.distributed from the environment of `torchrun`.
Every call makes the same exchanges in every process.  A process that fails still makes the next
exchange, where all processes raise its error, and are in step again for the next call.
"""

import heapq
import logging
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch

from ..errors import Wording

# A child of evaluate's logger, so that evaluate.logging controls it.
logger = logging.getLogger("evaluate.perplexity_sliding")

# Longest time that a process waits for the others: enough for the share of the slowest.
TIMEOUT = timedelta(days=2)


class Processes:
    """The processes of a call: a single one, or the group that `torchrun` describes."""

    def __init__(self, distributed: bool) -> None:
        self.rank, self.count = 0, 1
        if distributed:
            try:
                from accelerate import PartialState
            except ImportError:
                needed = "`distributed=True` needs the package accelerate: pip install accelerate."
                raise ValueError(Wording(needed)) from None
            # Without an accelerator, accelerate joins a group only with cpu=True.
            state: Any = PartialState(cpu=not torch.cuda.is_available(), timeout=TIMEOUT)
            self.rank, self.count = state.process_index, state.num_processes

    def share(self, costs: Sequence[int]) -> list[int]:
        """Return the indices of this process's pieces of work, the most expensive first.

        Each piece, largest first, is assigned to the least loaded process: Graham's
        longest-processing-time rule (1969), at most 4/3 of the best possible finish.
        """
        parts: list[list[int]] = [[] for _ in range(self.count)]
        loads = [(0, rank) for rank in range(self.count)]
        for place in sorted(range(len(costs)), key=costs.__getitem__, reverse=True):
            load, rank = heapq.heappop(loads)
            parts[rank].append(place)
            heapq.heappush(loads, (load + costs[place], rank))
        return parts[self.rank]

    def agree(self, describe: Callable[[], str], what: str, advice: str) -> None:
        """Refuse, in each process, if one describes its input otherwise than process 0."""
        if self.count == 1:
            return
        descriptions = self.exchange(describe())
        differing = [rank for rank, other in enumerate(descriptions) if other != descriptions[0]]
        if differing:
            error = ValueError(
                f"The {what} must be the same in all processes with distributed=True, but those of "
                f"process {differing[0]} differ from those of process 0. {advice}"
            )
            raise shared(error)

    def exchange(self, value: object, error: Exception | None = None) -> list:
        """Send a value to all processes; return the values of all, by rank.

        An error in one is raised in each, so that none waits.
        """
        if self.count == 1:
            return [value]
        from accelerate.utils import gather_object

        try:
            sent = pickle.loads(pickle.dumps(error))
        except Exception:  # it cannot travel
            sent = RuntimeError(f"{type(error).__name__}: {error}")
        try:
            messages = gather_object([(sent, value)])
        except Exception as failure:  # another process has ended: no exchange is possible
            raise shared(failure) from None
        for rank, (failed, _) in enumerate(messages):
            if failed is not None:
                raise shared(error if error is not None and rank == self.rank else failed)
        return [other for _, other in messages]

    def announce(self, error: Exception) -> None:
        """Log at once that this process failed; the others raise the error at the next exchange."""
        if self.count > 1:
            logger.error(
                f"Process {self.rank} of {self.count} failed: {error} The call ends once the "
                "others have finished their shares."
            )

    @contextmanager
    def failing_together(self) -> Iterator[None]:
        """Raise an error that happens in one process between two exchanges in all of them.

        An error that came by an exchange is known to all already.
        """
        try:
            yield
        except Exception as error:
            if self.count > 1 and not getattr(error, "is_shared", False):
                self.exchange(None, error)
            raise


def shared(error: Exception) -> Exception:
    """Mark an error that is raised in every process, so that one of them may print it for all."""
    vars(error)["is_shared"] = True
    return error
