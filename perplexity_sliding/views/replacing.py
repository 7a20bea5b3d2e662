"""Atomic writing of files."""

import errno
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress

MOST_LINKS = 40  # in a chain, as in Linux
SYSTEM = ("/dev/", "/proc/")
# Errors for a mount point, or another user's file in a folder such as /tmp: written, not replaced.
UNMOVABLE = (errno.EBUSY, errno.EPERM, errno.EACCES)


@contextmanager
def replaced(path: str) -> Iterator[str]:
    """Yield a path to write to; on success, the file replaces `path`.

    Pipes, devices and standard streams are written directly, never replaced or removed.

    Raises:
        OSError: writing fails; its filename is `path`, and an existing file is unchanged.
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
    """Yield a temporary path next to a file, and replace the file with it."""
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
    """Return whether the file can be replaced or created."""
    if any(step.startswith(SYSTEM) for step in _steps(path)):
        return False
    if os.path.exists(path) and not stat.S_ISREG(os.stat(path).st_mode):
        return False
    return os.access(os.path.dirname(os.path.realpath(path)), os.W_OK)


def _steps(path: str) -> Iterator[str]:
    """Yield a path and the targets of its chain of links."""
    for _ in range(MOST_LINKS):
        folder, name = os.path.split(path)
        path = os.path.join(os.path.realpath(folder), name)
        yield path
        if not os.path.islink(path):
            return
        path = os.path.join(os.path.dirname(path), os.readlink(path))
