"""Output to stdout and stderr that tolerates closed pipes."""

import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import TextIO


def fill_gaps() -> None:
    """Open the null device for each of the three streams that is closed.

    Otherwise the first opened files would get their numbers, and libraries would print into them.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)


def to_stdout(pieces: Iterable[str]) -> None:
    """Print to standard output; ignore a closed pipe.

    Raises:
        OSError: writing to a file fails.
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
    """Print to stderr, unless it is closed."""
    if sys.stderr is None:
        return
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except (OSError, ValueError):  # ValueError: closed meanwhile
        let_go(sys.stderr)


def settle() -> None:
    """Flush the output of libraries, so that a closed pipe does not change the exit code."""
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
    """Redirect a stream, including buffered output, to the null device."""
    with suppress(OSError, ValueError):  # replacements in tests have no file descriptor
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)
