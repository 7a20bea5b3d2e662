"""Progress of a run: one bar on a terminal, one line per minute in a log."""

import sys
import time
from collections.abc import Callable
from contextlib import suppress
from math import isnan

from .messages import harmless, say, to_stderr

LOG_INTERVAL = 60.0  # seconds
CLEAR_LINE = "\r\x1b[2K"


class Progress:
    """Shows the progress of a run, whose shards are parts of one bar.

    Args:
        title: title of the bar.
        hidden: whether to show nothing.
        clock: returns seconds, for the lines in a log.
    """

    def __init__(
        self,
        title: str,
        hidden: bool,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.title = title
        self.hidden = hidden or sys.stderr is None
        self.on_terminal = not self.hidden and sys.stderr.isatty()
        self.clock = clock
        self.started = self.logged = clock()
        self.parts_done = 0.0
        self.part = 1.0
        self.scale = 1.0  # share of the current run, if there are several
        self.first: tuple[float, float] | None = None  # time and share after the first batch
        self.has_resumed = False
        self._bars = None

    def status(self, message: str) -> None:
        """Show a step before there is a bar."""
        if self.on_terminal and self._bars is None:
            to_stderr(f"{CLEAR_LINE}{harmless(message)} …")

    def resumed(self, done: int, total: int) -> None:
        """Say once how much a checkpoint has."""
        if not self.hidden and not self.has_resumed:
            self.clear()
            say(f"resuming: the checkpoint has {done:,} of {total:,} tokens.")
        self.has_resumed = True

    def begin_part(self, share: float) -> None:
        """Start a part of the run, such as a shard, with its share of the whole."""
        self.part = share * self.scale

    def end_part(self) -> None:
        self.parts_done += self.part

    def __call__(self, progress) -> None:
        """Update the progress of the part; this is the `callback` of `compute`."""
        if self.hidden:
            return
        share = min(1.0, self.parts_done + self.part * progress.done / progress.total)
        # Measure the speed from here on, because reading a checkpoint takes no time.
        self.first = self.first or (self.clock(), share)
        # Nothing is scored yet while a reference stores its states.
        so_far = "" if isnan(progress.perplexity) else f"{progress.perplexity:.2f}"
        if self.on_terminal:
            self._draw(share, so_far)
        elif self.clock() - self.logged >= LOG_INTERVAL:
            self._log(share, so_far)

    def _draw(self, share: float, perplexity: str) -> None:
        if self._bars is None:
            self.clear()
            self._bars = make_bars()
            self._task = self._bars.add_task(self.title, total=1.0, perplexity="")
            with suppress(OSError):  # the terminal may be closed
                self._bars.start()
        so_far = perplexity and f"perplexity {perplexity}"
        self._bars.update(self._task, completed=share, perplexity=so_far)

    def _log(self, share: float, perplexity: str) -> None:
        self.logged = self.clock()
        left = self._seconds_left(share)
        say(
            f"{self.title}: {share:.0%} after {minutes(self.logged - self.started)}"
            + ("" if left is None else f", {time_left(left)} left")
            + (perplexity and f", perplexity so far {perplexity}")
        )

    def _seconds_left(self, share: float) -> float | None:
        """Estimate the seconds left; None until a second batch: the first includes loading."""
        begin, before = self.first
        return (self.clock() - begin) / (share - before) * (1 - share) if share > before else None

    def close(self) -> None:
        """Clear the line before other output."""
        if self._bars is not None:
            with suppress(OSError):
                self._bars.stop()
        else:
            self.clear()

    def clear(self) -> None:
        """Clear the line of `status`."""
        if self.on_terminal:
            to_stderr(CLEAR_LINE)


def make_bars():
    """Make a bar on stderr; warnings appear above it."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    return Progress(
        TextColumn("{task.description}: {task.percentage:3.0f} %", markup=False),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("<"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[perplexity]}", markup=False),
        console=Console(file=sys.stderr),
        redirect_stdout=False,
    )


def time_left(seconds: float) -> str:
    """Format an estimate of the time left."""
    return "less than a minute" if seconds < 60 else f"about {minutes(seconds)}"


def minutes(seconds: float) -> str:
    """Format a duration to the minute."""
    hours, remaining = divmod(round(seconds / 60), 60)
    return f"{hours} h {remaining} min" if hours else f"{remaining} min"
