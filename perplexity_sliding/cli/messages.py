"""Output to stdout and stderr that tolerates closed pipes; messages and progress of a run."""

import os
import re
import sys
import time
import traceback
from collections.abc import Iterable
from contextlib import suppress
from math import isnan
from pathlib import Path
from typing import TextIO

from tqdm import tqdm

from ..arguments import ARGUMENTS
from ..errors import wording_of

# The program's name, and the command that calls it: in a clone, and once installed.
IN_CLONE = (Path(__file__).parents[2] / "score.py").exists()
PROGRAM, COMMAND = ("score.py", "python score.py") if IN_CLONE else ("perplexity-sliding",) * 2
# Controls that move the cursor, change colours or reverse the direction of writing: all but tabs and
# newlines, and the marks of bidirectional text.
CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
# Arguments of the metric with other names on the command line.
OTHER_NAMES = {
    "predictions": "the input",
    "model": "--model",
    "model_id": "--model",
    "contexts": "--context-column",
    "detokenizer": "--detokenize",
    "words": "--words",
    "figure": "--find",
    "reference['model_id']": "--reference",
    "reference['dtype']": "--reference-dtype",
    "reference['model_kwargs']": "--reference-model-kwargs",
    "reference['tokenizer']": "--tokenizer",
}
LOG_INTERVAL = 60.0  # seconds
CLEAR_LINE = "\r\x1b[2K"
BAR = "{desc}: {percentage:3.0f} % |{bar}| {elapsed}<{remaining}{postfix}"


# --- streams --------------------------------------------------------------------------------------


def to_stdout(pieces: Iterable[str]) -> None:
    """Print to standard output; ignore a closed pipe."""
    try:
        sys.stdout.writelines(pieces)
        sys.stdout.flush()
    except BrokenPipeError:
        let_go(sys.stdout)


def to_stderr(text: str) -> None:
    """Print to stderr, above a bar if there is one."""
    try:
        tqdm.write(text, sys.stderr, end="")
        sys.stderr.flush()
    except (OSError, ValueError):  # ValueError: closed meanwhile
        let_go(sys.stderr)


def settle() -> None:
    """Flush the output of libraries, so that a closed pipe does not change the exit code."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            let_go(stream)


def let_go(stream: TextIO) -> None:
    """Redirect a stream, including buffered output, to the null device."""
    with suppress(OSError, ValueError):  # replacements in tests have no file descriptor
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)


# --- messages -------------------------------------------------------------------------------------


def say(message: str) -> None:
    """Print one line on stderr."""
    to_stderr(f"{PROGRAM}: {harmless(one_line(message))}\n")


def show_traceback(error: BaseException) -> None:
    to_stderr(harmless("".join(traceback.format_exception(error))))


def describe(error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError):
        name = (error.name or "").partition(".")[0]
        return f"the package {name} is missing: pip install {name}."
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}"
    return in_options(error)


def in_options(error: object, **others: object) -> str:
    """Return the message of an error or warning in options, with other parts, see `Wording`."""
    return wording_of(error).said(as_option, **others)


def as_option(argument: str, value: str | None) -> str | None:
    """Return the option of an argument, with its value in the command line's syntax."""
    known = ARGUMENTS.get(argument)
    name = OTHER_NAMES.get(argument)
    if name is None and known is not None and known.option is not None:
        name = f"--{argument.replace('_', '-')}"
    if name is None or value in (None, "True"):
        return name
    bare = value.strip("'")
    return f"{name} {bare.lower() if bare.strip() else value}"


def harmless(text: str) -> str:
    """Escape control characters that a terminal would execute."""
    return CONTROLS.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def one_line(text: str) -> str:
    return " ".join(text.split())


def list_some(names: list[str]) -> str:
    more = len(names) - 3
    return ", ".join(names[:3]) + (f" and {more} more" if more > 0 else "")


# --- progress -------------------------------------------------------------------------------------


class Progress:
    """Progress of a run and its parts, such as shards: one bar on a terminal, lines in a log."""

    def __init__(self, title: str, hidden: bool):
        self.title, self.hidden = title, hidden
        self.on_terminal = not hidden and sys.stderr.isatty()
        self.started = self.logged = time.monotonic()
        self.parts_done, self.part = 0.0, 1.0
        self.scale = 1.0  # share of the current run, if there are several
        self.has_resumed = False
        self.bar: tqdm | None = None

    def status(self, message: str) -> None:
        if self.on_terminal and self.bar is None:
            to_stderr(f"{CLEAR_LINE}{harmless(message)} …")

    def resumed(self, done: int, total: int) -> None:
        """Say once how much a checkpoint has."""
        if not self.hidden and not self.has_resumed:
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
        # Nothing is scored yet while a reference stores its states.
        so_far = "" if isnan(progress.perplexity) else f"perplexity {progress.perplexity:.2f}"
        if self.on_terminal:
            if self.bar is None:
                self.close()  # clears the status
                self.bar = tqdm(desc=self.title, total=1.0, bar_format=BAR, leave=False)
            self.bar.set_postfix_str(so_far, refresh=False)
            self.bar.update(share - self.bar.n)
        elif share and (now := time.monotonic()) - self.logged >= LOG_INTERVAL:
            self.logged, passed = now, (now - self.started) / 60
            left = passed / share * (1 - share)
            said = f"{self.title}: {share:.0%} after {passed:.0f} min, {left:.0f} min left"
            say(", ".join(filter(None, [said, so_far])))

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()
        elif self.on_terminal:
            to_stderr(CLEAR_LINE)
