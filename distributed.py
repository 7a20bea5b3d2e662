"""Several processes score one set of windows: who takes which, and how all get the result.

A thin layer over `accelerate`, which sets up torch.distributed from what `torchrun` says.
"""

import heapq
from collections.abc import Sequence

import torch


class Processes:
    """The processes of a run; a single one unless `distributed`.

    Args:
        distributed: join the process group that `torchrun` describes.  Every process of it must
            then make the same call, or the others wait for it in vain.

    Raises:
        ValueError: accelerate is not installed.
    """

    def __init__(self, distributed: bool):
        self.rank, self.count = 0, 1
        if distributed:
            state = _join()
            self.rank, self.count = state.process_index, state.num_processes

    def share(self, costs: Sequence[int]) -> list[int]:
        """The places of the pieces of work that fall to this process."""
        return share_out(costs, self.count)[self.rank]

    def gather(self, result: list, error: Exception | None) -> list:
        """Put the results of all processes together, in all processes.

        An error in one is raised in each: the others would otherwise wait for its result.
        """
        if self.count == 1:
            outcomes = [(result, error)]
        else:
            from accelerate.utils import gather_object

            outcomes = gather_object([(result, error)])
        for _, error in outcomes:
            if error is not None:
                raise error
        return [item for part, _ in outcomes for item in part]


def share_out(costs: Sequence[int], num_parts: int) -> list[list[int]]:
    """Share out pieces of work evenly: each, largest first, goes to who has least so far.

    Graham's longest-processing-time rule (1969): at most 4/3 of the best possible finish.
    """
    parts: list[list[int]] = [[] for _ in range(num_parts)]
    loads = [(0, part) for part in range(num_parts)]
    for place in sorted(range(len(costs)), key=costs.__getitem__, reverse=True):
        load, part = heapq.heappop(loads)
        parts[part].append(place)
        heapq.heappush(loads, (load + costs[place], part))
    return parts


def _join():
    try:
        from accelerate import PartialState
    except ImportError:
        raise ValueError(
            "`distributed=True` needs the package accelerate: pip install accelerate."
        ) from None
    # Without an accelerator, accelerate joins a group only when told to use the CPU.
    return PartialState(cpu=not torch.cuda.is_available())
