"""Checkpoints: scores of finished passes in a SQLite file, so that a killed run can be resumed.

Every batch is one transaction: the file has whole batches whenever the process dies.  The key of a
score is the model's signature and probe, the text's hash, and the tokens that the pass reads and
scores.  Another model, dtype or text never matches.  Several runs may share a file.
"""

import sqlite3
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np

from ..digests import digest_of_line, same_probe
from ..errors import Wording
from ..models.interface import ScoredModel, describe_model
from ..plan.measurement import Columns
from ..plan.windows import Pass
from .measures import Measure

# Identifies the program that owns a SQLite file: an arbitrary number in the header.
APPLICATION_ID = 0x50504C38
# Another run locks the file for moments; a stopped one, or another program, may never release it.
WAIT_S = 60.0
TABLE = """
CREATE TABLE IF NOT EXISTS scores (
    model TEXT, text TEXT, first_read INTEGER, start_token INTEGER, end INTEGER, targets TEXT,
    name TEXT, probes TEXT NOT NULL, dtype TEXT NOT NULL, scores BLOB NOT NULL, checksum INTEGER,
    PRIMARY KEY (model, text, first_read, start_token, end, targets, name)
) WITHOUT ROWID
"""
NO_START_TOKEN = -1


class Checkpoint:
    """Scores of passes under one model, in a file that is created if it is missing."""

    def __init__(self, path: str | Path) -> None:
        self.path = str(path)
        self.model = ""  # digest of its description
        self.names: dict[str, str] = {}  # stored name of each wanted column
        # description and probe of the models that each wanted column depends on
        self.identities: dict[str, list[tuple[str, float]]] = {}
        with self._explaining():
            self.connection = sqlite3.connect(self.path, timeout=WAIT_S, isolation_level=None)
            [tables] = self.connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
            [owner] = self.connection.execute("PRAGMA application_id").fetchone()
            if tables and owner != APPLICATION_ID:
                self.connection.close()
                raise sqlite3.DatabaseError(
                    "it is a database of another program, or of an earlier version of this one"
                )
            if not tables:  # else nothing is written: the file may lie on a read-only disk
                with self._writing():
                    self.connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                    self.connection.execute(TABLE)

    def use(
        self, models: Sequence[ScoredModel], measures: Sequence[Measure], key_prefix: str = ""
    ) -> None:
        """Set the identified models and the measures whose scores are looked up and stored.

        Args:
            key_prefix: separates scores that depend on more than the tokens that a pass reads.
        """
        identities = []
        for scored in models:
            with scored.as_scored():
                assert scored.probe is not None
                identities.append((describe_model(scored), scored.probe))
        digests = [digest_of_line(description) for description, _ in identities]
        self.model = digests[0]
        self.names, self.identities = {}, {}
        for measure in measures:
            beside = "".join(f"{digest}/" for digest in digests[1 : measure.num_models])
            for name in measure.columns:
                self.names[name] = f"{key_prefix}{beside}{measure.key}/{name}"
                self.identities[name] = identities[: measure.num_models]

    def load(self, wanted: Mapping[int, tuple[str, Pass]]) -> dict[int, Columns]:
        """Return the scores of the passes that earlier runs have finished, by number.

        Args:
            wanted: (hash of the text, pass) by number.
        """
        marks = ", ".join("?" * len(self.names))
        query = f"SELECT * FROM scores WHERE model = ? AND text = ? AND name IN ({marks})"
        column_of = {stored: column for column, stored in self.names.items()}
        stored: dict[tuple, Columns] = {}
        for text in {text for text, _ in wanted.values()}:
            with self._explaining():
                rows = self.connection.execute(query, (self.model, text, *column_of)).fetchall()
            whole = (row for *row, checksum in rows if checksum == checksum_of(row))
            for _, *key, name, probes, dtype, scores in whole:
                measured = zip(probes.split(), self.identities[column_of[name]])
                if all(same_probe(float(old), new, line) for old, (line, new) in measured):
                    columns = stored.setdefault(tuple(key), {})
                    columns[column_of[name]] = np.frombuffer(scores, dtype)
        found = {n: stored.get((text, *key_of(pass_)), {}) for n, (text, pass_) in wanted.items()}
        return {n: columns for n, columns in found.items() if columns.keys() == self.names.keys()}

    def save(self, scores: Iterable[tuple[tuple[str, Pass], Columns]]) -> None:
        """Store the passes of a batch, all of them or none."""
        rows = []
        for (text, pass_), columns in scores:
            for name, values in columns.items():
                probes = " ".join(repr(probe) for _, probe in self.identities[name])
                dtype = f"{values.shape[1:]}{values.dtype.str}"  # of a target's value, or its row
                packed = np.ascontiguousarray(values).tobytes()
                key = self.model, text, *key_of(pass_), self.names[name]
                row = *key, probes, dtype, packed
                rows.append((*row, checksum_of(row)))
        with self._explaining(), self._writing():
            marks = ", ".join("?" * 11)
            self.connection.executemany(f"INSERT OR REPLACE INTO scores VALUES ({marks})", rows)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        with self.connection:  # commits, or rolls back
            self.connection.execute("BEGIN IMMEDIATE")  # waits for another writer
            yield

    @contextmanager
    def _explaining(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise ValueError(
                Wording(
                    f"`checkpoint`={self.path!r} cannot be used: {error}. Where another run has it "
                    "locked, wait for that; where the disk is full, free space; and repeat the call to "
                    "resume. Otherwise remove it, or name another file."
                )
            ) from error


@contextmanager
def open_checkpoint(path: str | Path | None) -> Iterator[Checkpoint | None]:
    """Open the checkpoint at a path for the time of the context; yield None without a path."""
    if path is None:
        yield None
        return
    checkpoint = Checkpoint(path)
    with closing(checkpoint.connection):
        yield checkpoint


def key_of(pass_: Pass) -> tuple:
    start_token = NO_START_TOKEN if pass_.start_token is None else pass_.start_token
    targets = ",".join(f"{first}-{end}" for first, end in pass_.targets)
    return pass_.begin, start_token, pass_.end, targets


def checksum_of(row: Sequence[object]) -> int:  # disks flip bits; such a row is scored again
    return zlib.crc32(repr(tuple(row)).encode())
