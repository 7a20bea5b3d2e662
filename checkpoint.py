"""A run that survives being killed: scores of finished windows in a SQLite file.

Every batch is one transaction, so the file holds whole batches whenever the process dies.  Scores
lie under a key made of the measurement's signature and the text's hash: another model, dtype,
window, stride or text never matches, and several runs may share a file.
"""

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import xxhash

from .windows import Window

# SQLite's own way to tell whose file it is: an arbitrary number in the header.
APPLICATION_ID = 0x50504C31
BUSY_TIMEOUT_S = 60.0
SCHEMA = """
CREATE TABLE IF NOT EXISTS scores (
    run TEXT, text TEXT, first_read INTEGER, first INTEGER, end INTEGER, start_token INTEGER,
    nll BLOB NOT NULL,
    PRIMARY KEY (run, text, first_read, first, end, start_token)
) WITHOUT ROWID
"""


class Checkpoint:
    """Scores of the windows of one run.

    Args:
        path: the file; made if it is not there.
        run: what identifies the measurement, such as its signature.

    Raises:
        ValueError: the file is damaged, or is none of ours.
    """

    def __init__(self, path: str | Path, run: str):
        self.path = str(path)
        self.run = run
        self.connection = None
        try:
            self._open()
        except (sqlite3.Error, ValueError) as error:  # ValueError: NUL in the name
            self.close()
            raise ValueError(f"`checkpoint`={self.path!r} cannot be used: {error}.") from error

    def _open(self) -> None:
        self.connection = sqlite3.connect(self.path, timeout=BUSY_TIMEOUT_S, isolation_level=None)
        with _transaction(self.connection):
            owner = self.connection.execute("PRAGMA application_id").fetchone()[0]
            tables = self.connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
            if tables and owner != APPLICATION_ID:
                raise sqlite3.DatabaseError("it is a database of another program")
            self.connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            self.connection.execute(SCHEMA)

    def load(self, text: str) -> dict[Window, np.ndarray]:
        """Return the finished windows of a text, given by its hash, with their nlls."""
        try:
            rows = self.connection.execute(
                "SELECT first_read, first, end, start_token, nll FROM scores WHERE run = ? AND text = ?",
                (self.run, text),
            ).fetchall()
        except sqlite3.Error as error:
            raise ValueError(f"`checkpoint`={self.path!r} cannot be read: {error}.") from error
        scores = {
            Window(begin, first, end, bool(start)): np.frombuffer(nll, dtype=np.float32)
            for begin, first, end, start, nll in rows
        }
        if any(len(nll) != window.num_targets for window, nll in scores.items()):
            raise ValueError(f"`checkpoint`={self.path!r} cannot be used: its scores are damaged.")
        return scores

    def save(self, scores: Iterable[tuple[str, Window, np.ndarray]]) -> None:
        """Store the windows of a batch, all of them or none."""
        with _transaction(self.connection):
            self.connection.executemany(
                "INSERT OR REPLACE INTO scores VALUES (?, ?, ?, ?, ?, ?, ?)",
                [
                    (self.run, text, *map(int, window), nll.astype(np.float32).tobytes())
                    for text, window, nll in scores
                ],
            )

    def close(self) -> None:
        if self.connection is not None:
            self.connection.close()


@contextmanager
def open_checkpoint(path: str | Path | None, run: str) -> Iterator[Checkpoint | None]:
    """The checkpoint at a path for the time of a run, or none."""
    if path is None:
        yield None
        return
    checkpoint = Checkpoint(path, run)
    try:
        yield checkpoint
    finally:
        checkpoint.close()


def text_hash(ids: np.ndarray) -> str:
    """Identify a text by the tokens that the model reads."""
    return xxhash.xxh3_128(np.ascontiguousarray(ids, dtype=np.int64)).hexdigest()


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """BEGIN IMMEDIATE … COMMIT: two writers wait for each other instead of failing midway."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")
