"""Checkpoints: scores of finished passes in a SQLite file, so that a killed run can be resumed.

Every batch is one transaction: the file has whole batches whenever the process dies.  The key of a
score is the model's signature and probe, the text's hash, and the tokens that the pass reads.  Another
model, dtype or text never matches; another stride, window or protocol over the same text reuses the
scores.  Several runs may share a file.

Disks corrupt data silently: every row has a checksum, and damaged rows are scored again.
"""

import sqlite3
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import xxhash

from ..digests import same_probe
from ..errors import Wording
from ..models.interface import ScoredModel, describe_model
from ..plan.measurement import Columns
from ..plan.windows import Pass
from .measures import Measure

# Identifies the program that owns a SQLite file: an arbitrary number in the header.
APPLICATION_ID = 0x50504C35
# Another run locks the file for moments; a stopped one, or another program, may never release it.
WAIT_S, NUM_WAITS = 5.0, 12
SCHEMA = """
CREATE TABLE IF NOT EXISTS models (
    number INTEGER PRIMARY KEY, description TEXT NOT NULL, probe REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS scores (
    model INTEGER, text TEXT, first_read INTEGER, start_token INTEGER, end INTEGER, targets TEXT,
    name TEXT, dtype TEXT NOT NULL, width INTEGER NOT NULL, scores BLOB NOT NULL,
    checksum BLOB NOT NULL,
    PRIMARY KEY (model, text, first_read, start_token, end, targets, name)
) WITHOUT ROWID;
"""
NO_START_TOKEN = -1
# Errors of Python's sqlite3 on a damaged file, too large numbers and invalid UTF-8 among them.
FILE_ERRORS = (sqlite3.Error, OverflowError, UnicodeDecodeError)


class StoredPass(NamedTuple):
    """Scores of a pass of an earlier run."""

    end: int
    targets: np.ndarray
    columns: Columns


class Checkpoint:
    """Scores of passes under one model.

    Args:
        path: the file; created if it is missing.

    Raises:
        ValueError: the file cannot be read, or was not created by this program.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = str(path)
        self.model = 0  # its number in the file
        self.names: dict[str, str] = {}  # stored name of each wanted column
        self.prefixes_agree = True
        try:
            self.connection = sqlite3.connect(self.path, timeout=WAIT_S, isolation_level=None)
            self._create_tables()
        except (sqlite3.Error, ValueError) as error:  # ValueError: NUL in the name
            if hasattr(self, "connection"):
                self.close()
            raise self._failure(f"cannot be used: {error}.", error) from error

    def _create_tables(self) -> None:
        self.connection.text_factory = lambda text: text.decode("utf-8", "replace")
        if not self._has_tables():  # nothing is written to a file that may lie on a read-only disk
            with self._transaction():
                self.connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                for statement in SCHEMA.split(";"):
                    self.connection.execute(statement)

    def _has_tables(self) -> bool:
        with self._transaction("BEGIN"):
            owner = self._execute("PRAGMA application_id").fetchone()[0]
            tables = self.connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if tables and owner != APPLICATION_ID:
            raise sqlite3.DatabaseError(
                "it is a database of another program, or of an earlier version of this one"
            )
        return bool(tables)

    def use(
        self,
        models: Sequence[ScoredModel],
        measures: Sequence[Measure],
        key_prefix: str = "",
    ) -> None:
        """Set the models and measures whose scores are looked up and stored.

        Args:
            models: identified.
            key_prefix: separates scores that depend on more than the tokens that a pass reads.
        """
        numbers = [self._find(scored) for scored in models]
        self.model = numbers[0]
        self.prefixes_agree = all(scored.prefixes_agree for scored in models)
        if not self.prefixes_agree:
            # A run with shorter windows does not see that their length matters.
            key_prefix += "whole passes/"
        self.names = {}
        for measure in measures:
            beside = "".join(f"model {number}/" for number in numbers[1 : measure.num_models])
            for name in measure.columns:
                self.names[name] = f"{key_prefix}{beside}{measure.key}/{name}"

    def load(self, wanted: Sequence[tuple[str, Pass]]) -> dict[int, Columns]:
        """Return the scores of the passes that earlier runs have finished, by place.

        Args:
            wanted: (hash of the text, pass).
        """
        stored: dict[tuple, list[StoredPass]] = {}
        for text in {text for text, _ in wanted}:
            for (begin, start_token), stored_pass in self._stored(text):
                stored.setdefault((text, begin, start_token), []).append(stored_pass)
        finished = {}
        for place, (text, pass_) in enumerate(wanted):
            candidates = stored.get((text, pass_.begin, pass_.start_token), ())
            columns = self._put_together(pass_, candidates)
            if columns is not None:
                finished[place] = columns
        return finished

    def save(self, scores: Iterable[tuple[str, Pass, Columns]]) -> None:
        """Store the passes of a batch, all of them or none."""
        rows = [
            (*self._key(text, pass_), self.names[name], *_packed(values))
            for text, pass_, columns in scores
            for name, values in columns.items()
        ]
        rows = [(*row, checksum(row)) for row in rows]
        with self._writing() as connection:
            connection.executemany(
                "INSERT OR REPLACE INTO scores VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", rows
            )

    def close(self) -> None:
        self.connection.close()

    def _find(self, model: ScoredModel) -> int:
        """Return the number of the model with this signature and probe; add it if it is new."""
        with model.as_scored():
            description, probe = describe_model(model), model.probe
        if probe is None:
            raise RuntimeError(f"{model.description} must be identified first: call identify().")
        number = self._known(description, probe)
        if number is not None:
            return number  # nothing is written to a file that may lie on a read-only disk
        with self._writing() as connection:
            # Another process may have added it since, and its scores must be found again.
            number = self._known(description, probe)
            if number is None:
                values = "INSERT INTO models (description, probe) VALUES (?, ?)"
                number = connection.execute(values, (description, probe)).lastrowid
        return int(number or 0)

    def _known(self, description: str, probe: float) -> int | None:
        query = "SELECT number, probe FROM models WHERE description = ? ORDER BY number"
        found = self._read(query, (description,))
        same = [number for number, stored in found if same_probe(stored, probe, description)]
        return same[0] if same else None

    def _read(self, query: str, values: Sequence[object]) -> list[tuple]:
        """Return the rows of a query.

        Raises:
            ValueError: the file cannot be read.
        """
        try:
            return self._execute(query, values).fetchall()
        except FILE_ERRORS as error:
            reason = f"cannot be read: {error}. It is damaged: remove it, or name another file."
            raise self._failure(reason, error) from error

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """Run a transaction; explain a failure.

        Raises:
            ValueError: the disk is full or read-only, or the file locked for long or gone.
        """
        try:
            with self._transaction():
                yield self.connection
        except FILE_ERRORS as error:
            reason = (
                f"cannot be written: {error}. Its contents are intact: free disk space, and repeat "
                "the call to resume. Where the file is damaged, remove it."
            )
            raise self._failure(reason, error) from error

    @contextmanager
    def _transaction(self, begin: str = "BEGIN IMMEDIATE") -> Iterator[None]:
        """Run BEGIN IMMEDIATE … COMMIT: two writers wait for each other instead of failing midway."""
        self._execute(begin)
        try:
            yield
            self._execute("COMMIT")
        except BaseException:
            if self.connection.in_transaction:  # not where SQLite has rolled back: a full disk
                self.connection.execute("ROLLBACK")
            raise

    def _execute(self, statement: str, values: Sequence[object] = ()) -> sqlite3.Cursor:
        """Execute a statement; wait, with one warning, while another run has locked the file."""
        tries = 0
        while True:
            try:
                return self.connection.execute(statement, values)
            except sqlite3.OperationalError as error:
                tries += 1
                if not is_locked(error) or tries == NUM_WAITS:
                    raise
            if tries == 1:
                warnings.warn(
                    Wording(
                        f"`checkpoint`={self.path!r} is locked by another run, or another program: "
                        f"waiting for it, {NUM_WAITS * WAIT_S:g} s at most."
                    ),
                    stacklevel=2,
                )

    def _failure(self, reason: str, error: Exception) -> ValueError:
        """Return the error for a reason, or for a file that another run has locked."""
        if is_locked(error):
            reason = (
                f"is in use: another run, or another program, has it locked for "
                f"{NUM_WAITS * WAIT_S:g} s now. Its contents are intact: wait for that run or end "
                "it, and repeat the call; or name another file."
            )
        return ValueError(Wording(f"`checkpoint`={self.path!r} {reason}"))

    def _key(self, text: str, pass_: Pass) -> tuple:
        start_token = NO_START_TOKEN if pass_.start_token is None else pass_.start_token
        targets = ",".join(f"{first}-{end}" for first, end in pass_.targets)
        return self.model, text, pass_.begin, start_token, pass_.end, targets

    def _stored(self, text: str) -> Iterator[tuple[tuple[int, int | None], StoredPass]]:
        """Yield ((first token read, start token), scores) of each stored pass over a text."""
        marks = ", ".join("?" * len(self.names))
        rows = self._read(
            f"SELECT * FROM scores WHERE model = ? AND text = ? AND name IN ({marks})",
            (self.model, text, *self.names.values()),
        )
        whole = [row for *row, digest in rows if digest == checksum(row)]
        if len(whole) < len(rows):
            warnings.warn(
                Wording(
                    f"`checkpoint`={self.path!r} is damaged: {len(rows) - len(whole)} of the "
                    f"{len(rows)} scores of a text are not what was stored. They are computed "
                    "again."
                ),
                stacklevel=2,
            )
        columns: dict[tuple, Columns] = {}
        column_of = {stored: column for column, stored in self.names.items()}
        for _, _, begin, start_token, end, targets, name, *packed in whole:
            of_pass = columns.setdefault((begin, start_token, end, targets), {})
            of_pass[column_of[name]] = _unpacked(*packed)
        for (begin, start_token, end, ranges), named in columns.items():
            spans = [tuple(map(int, span.split("-"))) for span in ranges.split(",")]
            targets = np.concatenate([np.arange(first, last) for first, last in spans])
            start = None if start_token == NO_START_TOKEN else start_token
            yield (begin, start), StoredPass(end, targets, named)

    def _put_together(self, pass_: Pass, candidates: Sequence[StoredPass]) -> Columns | None:
        """Assemble the scores of a pass from stored passes; None if some are missing."""
        wanted = np.concatenate([np.arange(first, end) for first, end in pass_.targets])
        usable = [
            stored
            for stored in candidates
            if (self.prefixes_agree or stored.end == pass_.end)
            and self.names.keys() <= stored.columns.keys()
        ]
        for stored in usable:
            if stored.end == pass_.end and np.array_equal(stored.targets, wanted):
                return {name: stored.columns[name] for name in self.names}
        if not usable:
            return None
        targets, first_places = np.unique(
            np.concatenate([stored.targets for stored in usable]), return_index=True
        )
        places = np.searchsorted(targets, wanted)
        if places[-1] >= len(targets) or not np.array_equal(targets[places], wanted):
            return None
        return {
            name: np.concatenate([s.columns[name] for s in usable])[first_places[places]]
            for name in self.names
        }


@contextmanager
def open_checkpoint(path: str | Path | None) -> Iterator[Checkpoint | None]:
    """Open the checkpoint at a path for the time of the context; yield None without a path."""
    if path is None:
        yield None
        return
    checkpoint = Checkpoint(path)
    try:
        yield checkpoint
    finally:
        checkpoint.close()


def is_locked(error: Exception) -> bool:
    """Check whether an SQLite error means that another connection has locked the file."""
    return isinstance(error, sqlite3.OperationalError) and "locked" in str(error)


def checksum(row: Sequence[object]) -> bytes:
    """Digest the values of a row, and by their repr their types."""
    return xxhash.xxh3_64(repr(tuple(row)).encode()).digest()


def _packed(values: np.ndarray) -> tuple[str, int, bytes]:
    width = 0 if values.ndim == 1 else values.shape[1]
    return values.dtype.str, width, np.ascontiguousarray(values).tobytes()


def _unpacked(dtype: str, width: int, scores: bytes) -> np.ndarray:
    values = np.frombuffer(scores, dtype=dtype)
    return values.reshape(-1, width) if width else values
