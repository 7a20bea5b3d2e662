"""Measure times of contenders in turns, their ratios, and the peak memory of each."""

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from cases import OURS, PLAIN, Case

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


def agreement(case: Case) -> dict[str, float]:
    """Relative difference of each contender's number from ours for the same windows."""
    differences = {}
    for name, contender in case.contenders.items():
        value = contender.run()  # also the warm-up
        if contender.twin is not None:
            own_value = contender.twin()
            differences[name] = abs(value - own_value) / abs(own_value)
    return differences


def ratios(seconds: dict[str, list[float]]) -> dict[str, dict[str, float]]:
    """Each contender's time over ours, and ours over the plain passes, repetition by repetition."""
    pairs = {"ours / plain passes": ([OURS], [PLAIN])}
    pairs |= {f"{name} / ours": ([name], [OURS]) for name in seconds if name not in (OURS, PLAIN)}
    return {label: ratio(seconds, *sides) for label, sides in pairs.items()}


def ratio(
    seconds: dict[str, list[float]], above: Sequence[str], below: Sequence[str]
) -> dict[str, float]:
    """Time of some runs over the time of others, repetition by repetition."""
    sums = ([sum(turn) for turn in zip(*map(seconds.get, names))] for names in (above, below))
    return spread([a / b for a, b in zip(*sums)])


def spread(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}


def peak_memory(run: Callable[[], object]) -> int:
    """Peak memory of a call in bytes, above the memory before it.

    Linux only: the process's own high-water mark, set back before.
    """
    RESET_PEAK.write_text("5")
    before = status_bytes("VmRSS")
    run()
    return status_bytes("VmHWM") - before


def peak_memory_apart(script: Path, *arguments: str) -> int | None:
    """The same, measured in a new process that prints it as JSON; None if it died."""
    command = [sys.executable, str(script), *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
    return json.loads(done.stdout.splitlines()[-1])["peak_bytes"] if done.returncode == 0 else None


def status_bytes(field: str) -> int:
    """The memory fields of this process's status."""
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(field + ":"))
    return int(line.split()[1]) * 1024
