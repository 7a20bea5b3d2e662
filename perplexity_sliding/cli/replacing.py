"""Files that are written whole or not at all."""

import errno
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress

MOST_LINKS = 40  # that lead to each other, as Linux has it
SYSTEM = ("/dev/", "/proc/")
# A mount by itself, or another user's file in a folder such as /tmp: written to, but never replaced.
UNMOVABLE = (errno.EBUSY, errno.EPERM, errno.EACCES)


@contextmanager
def replaced(path: str) -> Iterator[str]:
    """Yield where to write a file, which takes the place of `path` once it is complete.

    A pipe, a device and a stream of a program are written as they are: never replaced, never removed.

    Raises:
        OSError: it cannot be written; its filename is `path`. What was there before is there still.
    """
    try:
        if is_replaceable(path):
            yield from _beside(os.path.realpath(path))
        else:
            yield path
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), path) from error


def _beside(path: str) -> Iterator[str]:
    """Yield a name beside a file; what is written there becomes the file."""
    ending = os.path.splitext(path)[1]
    place = os.path.join(os.path.dirname(path), f".{secrets.token_hex(8)}{ending}")
    try:
        yield place
        if os.path.exists(path):
            shutil.copymode(path, place)
        try:
            os.replace(place, path)
        except OSError as error:
            if error.errno not in UNMOVABLE:
                raise
            shutil.copyfile(place, path)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(place)


def is_replaceable(path: str) -> bool:
    """Return whether another file may take the place of this one, or there is none yet."""
    if any(step.startswith(SYSTEM) for step in _steps(path)):
        return False
    if os.path.exists(path) and not stat.S_ISREG(os.stat(path).st_mode):
        return False
    return os.access(os.path.dirname(os.path.realpath(path)), os.W_OK)


def _steps(path: str) -> Iterator[str]:
    """Yield a path, and where its links lead one after the other."""
    for _ in range(MOST_LINKS):
        folder, name = os.path.split(path)
        path = os.path.join(os.path.realpath(folder), name)
        yield path
        if not os.path.islink(path):
            return
        path = os.path.join(os.path.dirname(path), os.readlink(path))
