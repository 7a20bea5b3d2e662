"""Times of contenders that take turns, their ratios, and the memory that each needs at its peak."""

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from cases import OURS, PLAIN, Case

STATUS = Path("/proc/self/status")
RESET_PEAK = Path("/proc/self/clear_refs")


def time_in_turns(case: Case, repetitions: int) -> dict[str, list[float]]:
    """Seconds of every contender in every repetition, one after the other.

    What else the machine does then hits all of them alike; each begins a repetition once.
    """
    seconds: dict[str, list[float]] = {name: [] for name in case.contenders}
    names = list(case.contenders)
    for repetition in range(repetitions):
        turn = repetition % len(names)
        for name in names[turn:] + names[:turn]:
            began = time.perf_counter()
            case.contenders[name].run()
            seconds[name].append(time.perf_counter() - began)
    return seconds


def agreement(case: Case) -> dict[str, float]:
    """How far each contender's number is from ours for the same windows, relatively."""
    differences = {}
    for name, contender in case.contenders.items():
        value = contender.run()  # also the warm-up
        if contender.twin is not None:
            own = contender.twin()
            differences[name] = abs(value - own) / abs(own)
    return differences


def ratios(seconds: dict[str, list[float]]) -> dict[str, dict[str, float]]:
    """Each contender's time over ours, and ours over the plain passes, repetition by repetition."""
    pairs = {"ours / plain passes": (OURS, PLAIN)}
    pairs |= {f"{name} / ours": (name, OURS) for name in seconds if name not in (OURS, PLAIN)}
    return {
        label: spread([a / b for a, b in zip(seconds[above], seconds[below])])
        for label, (above, below) in pairs.items()
    }


def spread(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}


def peak_memory(run: Callable[[], object]) -> int:
    """Bytes of memory that a call takes at its peak, above what the process held before.

    Linux only: the process's own high-water mark, set back before.
    """
    RESET_PEAK.write_text("5")
    before = _status_bytes("VmRSS")
    run()
    return _status_bytes("VmHWM") - before


def peak_memory_apart(script: Path, *arguments: str) -> int | None:
    """The same, measured in a process of its own that prints it as JSON; None where it died."""
    command = [sys.executable, str(script), *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
    return json.loads(done.stdout.splitlines()[-1])["peak_bytes"] if done.returncode == 0 else None


def _status_bytes(field: str) -> int:
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(field + ":"))
    return int(line.split()[1]) * 1024
