"""Rows that may exceed memory."""

import pickle
from collections.abc import Callable, Iterator
from tempfile import SpooledTemporaryFile
from typing import Generic, TypeVar

T = TypeVar("T")
IN_MEMORY_BYTES = 2**24
TOGETHER = 32  # items per write, each of which may be large


class Rows(Generic[T]):
    """Rows that are generated anew for each iteration.

    Args:
        make: returns an iterator over all rows.
        columns: keys of all rows, in the order of their first appearance; None if unknown.
    """

    def __init__(self, make: Callable[[], Iterator[T]], columns: list[str] | None = None) -> None:
        self._make = make
        self.columns = columns

    def __iter__(self) -> Iterator[T]:
        return self._make()


class Spool(Generic[T]):
    """An append-only list, on disk once it is large; deleted with the process.

    Do not modify an appended item.
    """

    def __init__(self) -> None:
        self._file = SpooledTemporaryFile(IN_MEMORY_BYTES)  # noqa: SIM115
        self._latest: list[T] = []  # items that are not in the file yet
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
        # `place` is the position in the file, `given` the number of items yielded after it.
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
