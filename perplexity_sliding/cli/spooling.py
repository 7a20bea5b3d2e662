"""Rows that may exceed memory."""

import pickle
from collections.abc import Iterator
from tempfile import SpooledTemporaryFile

IN_MEMORY_BYTES = 2**24


class Spool:
    """An append-only list, on disk once it is large; deleted with the process.

    Do not modify an appended item.
    """

    def __init__(self) -> None:
        self._file = SpooledTemporaryFile(IN_MEMORY_BYTES)  # noqa: SIM115
        self._num_items = 0

    def append(self, item: object) -> None:
        self._file.seek(0, 2)
        pickle.dump(item, self._file, pickle.HIGHEST_PROTOCOL)
        self._num_items += 1

    def __len__(self) -> int:
        return self._num_items

    def __iter__(self) -> Iterator:
        place = 0
        for _ in range(self._num_items):
            self._file.seek(place)
            item = pickle.load(self._file)
            place = self._file.tell()
            yield item
