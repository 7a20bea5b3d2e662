"""Measure times of contenders in turns, their ratios, and peak memory."""

import re
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

STATUS = Path("/proc/self/status")
RESET_PEAK = Path("/proc/self/clear_refs")


def time_in_turns(
    runs: Mapping[str, Callable[[], object]], repetitions: int
) -> dict[str, list[float]]:
    """Seconds of every run in every repetition, one after the other.

    What else the machine does then hits all of them alike; each begins a repetition once.
    """
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    names = list(runs)
    for repetition in range(repetitions):
        turn = repetition % len(names)
        for name in names[turn:] + names[:turn]:
            began = now()
            runs[name]()
            seconds[name].append(now() - began)
    return seconds


def now() -> float:
    """Seconds: processor time with one thread, which other programs hardly affect."""
    return time.process_time() if torch.get_num_threads() == 1 else time.perf_counter()


def ratio(
    seconds: dict[str, list[float]], above: Sequence[str], below: Sequence[str]
) -> dict[str, float]:
    """Time of some runs over the time of others, repetition by repetition."""
    sums = ([sum(turn) for turn in zip(*map(seconds.get, names))] for names in (above, below))
    values = [a / b for a, b in zip(*sums)]
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}


def peak_memory(run: Callable[[], object]) -> int:
    """Peak memory of a call in bytes, above the memory before it.

    Linux only: the process's own high-water mark, set back before.
    """
    RESET_PEAK.write_text("5")
    before = _status_bytes("VmRSS")
    run()
    return _status_bytes("VmHWM") - before


def _status_bytes(field: str) -> int:
    found = re.search(rf"^{field}:\s+(\d+)", STATUS.read_text(), re.M)
    return 1024 * int(found[1])
