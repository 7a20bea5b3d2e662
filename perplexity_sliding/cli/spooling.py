"""Rows that may be more than memory holds."""

import pickle
from collections.abc import Callable, Iterator
from tempfile import SpooledTemporaryFile
from typing import Generic, TypeVar

T = TypeVar("T")
IN_MEMORY_BYTES = 2**24
TOGETHER = 32  # items, of which each may be large


class Rows(Generic[T]):
    """Rows that are made anew each time that one goes through them.

    Args:
        make: begins with the first.
        columns: keys of all rows, in the order in which they come up; None where nobody knows yet.
    """

    def __init__(self, make: Callable[[], Iterator[T]], columns: list[str] | None = None) -> None:
        self._make = make
        self.columns = columns

    def __iter__(self) -> Iterator[T]:
        return self._make()


class Spool(Generic[T]):
    """A list to append to and to go through; on the disk once it is large, and gone with the run.

    An item must not change once it is appended.
    """

    def __init__(self) -> None:
        self._file = SpooledTemporaryFile(IN_MEMORY_BYTES)  # noqa: SIM115
        self._latest: list[T] = []  # those that are not in the file yet: together they take less
        self._end = self._num_items = 0

    def append(self, item: T) -> None:
        self._latest.append(item)
        self._num_items += 1
        if len(self._latest) == TOGETHER:
            self._file.seek(self._end)
            pickle.dump(self._latest, self._file, pickle.HIGHEST_PROTOCOL)
            self._end = self._file.tell()
            self._latest = []

    def __len__(self) -> int:
        return self._num_items

    def __iter__(self) -> Iterator[T]:
        # In the file; and of what comes next there, which may still be among the latest.
        place = given = 0
        while place < self._end or given < len(self._latest):
            if place == self._end:
                given += 1
                yield self._latest[given - 1]
                continue
            self._file.seek(place)
            items = pickle.load(self._file)[given:]
            place, given = self._file.tell(), 0
            yield from items
