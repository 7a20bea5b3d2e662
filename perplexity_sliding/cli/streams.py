"""Standard output and stderr, whose readers may leave: that costs what they would have read, and no more."""

import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import TextIO


def fill_gaps() -> None:
    """Open the null device for each of the three streams that is closed.

    The first files of the run would take their numbers, and libraries would print into them.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)


def to_stdout(pieces: Iterable[str]) -> None:
    """Print on standard output, as far as its reader stays: head, for one, may have seen enough.

    Raises:
        OSError: it goes to a file that cannot take it.
    """
    if sys.stdout is None:
        return
    try:
        sys.stdout.writelines(pieces)
        sys.stdout.flush()
    except BrokenPipeError:
        let_go(sys.stdout)
    except OSError as error:
        let_go(sys.stdout)
        raise OSError(error.errno, error.strerror, "standard output") from error


def to_stderr(text: str) -> None:
    """Print on stderr, where anybody reads it."""
    if sys.stderr is None:
        return
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except (OSError, ValueError):  # ValueError: closed since
        let_go(sys.stderr)


def settle() -> None:
    """Print what libraries have left to print, so that the exit code is not Python's for a pipe that broke."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except BrokenPipeError:
            let_go(stream)
        except (OSError, ValueError):
            if stream is sys.stderr:
                let_go(stream)


def let_go(stream: TextIO) -> None:
    """Send what a stream still has, and all that follows, to the null device."""
    with suppress(OSError, ValueError):  # what tests put in its place has no number
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)
