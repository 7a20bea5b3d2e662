"""Where texts come from: files, folders, globs, tables, datasets, standard input.

The files are listed before anything is imported; what is in them is read one text after the other,
in reading.py.
"""

import glob
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from .messages import command_name, named, say

# How the files with one text a row are read.
TABLES = {
    ".csv": "csv",
    ".tsv": "csv",
    ".jsonl": "json",
    ".ndjson": "json",
    ".json": "json",
    ".parquet": "parquet",
}
TEXTS = (".txt", ".text")
STANDARD_INPUT = "-"


@dataclass(frozen=True)
class Source:
    """A file with a text, or with one text a row.

    Attributes:
        name: the path as it was given, or as it was found in a folder that was given.
        builder: how a table is read: csv, json or parquet; None for a text.
    """

    name: str
    builder: str | None = None

    @property
    def shown(self) -> str:
        return "Standard input" if self.name == STANDARD_INPUT else self.name

    @property
    def size(self) -> int:
        """Return the bytes on the disk; at least 1, also where nobody knows, as of a pipe."""
        return max(1, os.stat(self.name).st_size) if os.path.isfile(self.name) else 1


def list_sources(names: list[str], warns: bool = True) -> list[Source]:
    """List the files behind the names on the command line, in their order.

    Raises:
        ValueError: there is nothing to score.
        OSError: a file that is not there or cannot be opened.
    """
    if not names:
        if sys.stdin is None or sys.stdin.closed or sys.stdin.isatty():
            raise ValueError(
                f"There is nothing to score: name a FILE, as in `{command_name()} "
                "samples/story.txt`, pipe text in, or pass --dataset. --help says more."
            )
        names = [STANDARD_INPUT]
    sources = [source for name in names for source in _behind(name)]
    if warns:
        warn_of_twins(sources)
    return sources


def _behind(name: str) -> list[Source]:
    if name == STANDARD_INPUT:
        if sys.stdin is None or sys.stdin.closed:
            raise ValueError("Standard input is closed: name a FILE.")
        return [Source(name)]
    if re.match(r"\w+://", name):
        raise ValueError(
            f"FILE {name} is an address, which is not read. Download it first: curl -LO {name}."
        )
    path = Path(name)
    if path.is_dir():
        return _in_folder(path)
    if not path.exists() and glob.has_magic(name):
        files = sorted(file for file in glob.glob(name, recursive=True) if os.path.isfile(file))
        if not files:
            raise ValueError(f"No file matches {name}.")
        return [Source(file, builder_of(file)) for file in files]
    if not path.is_fifo():  # a pipe can be opened only once
        open(name, "rb").close()
    return [Source(name, builder_of(name))]


def _in_folder(folder: Path) -> list[Source]:
    """List the texts and tables in a folder and the folders in it, but for hidden ones.

    A link to nothing is listed too, so that opening it says what is missing.

    Raises:
        ValueError: it has no texts or tables.
        OSError: a folder in it cannot be read.
    """
    files, linked = _walk(folder)
    taken = [file for file in files if suffix(str(file)) in (*TEXTS, *TABLES)]
    if linked:
        say(
            f"warning: left out in {folder}, as links to folders: {named(linked)}. Name the folders "
            "themselves."
        )
    if not taken:
        raise ValueError(
            f"{folder} is a folder without {', '.join((*TEXTS, *TABLES))} files. Name others by a "
            f"glob: '{folder}/*'."
        )
    left = [str(file) for file in files if file not in set(taken)]
    if left:
        say(
            f"warning: left out in {folder}, as neither text nor table by its ending: {named(left)}."
        )
    return [Source(str(file), builder_of(str(file))) for file in taken]


def _walk(folder: Path) -> tuple[list[Path], list[str]]:
    """Return the files in a folder and the folders in it, sorted, and the links to folders.

    Links to folders are not followed: one that leads upwards would never end.
    """
    files, linked = [], []
    for place, folders, names in os.walk(folder, onerror=_raise):
        folders[:] = [name for name in folders if not name.startswith(".")]
        linked += [os.path.join(place, name) for name in folders if Path(place, name).is_symlink()]
        files += [Path(place, name) for name in names if not name.startswith(".")]
    return sorted(file for file in files if file.is_file() or not file.exists()), sorted(linked)


def _raise(error: OSError) -> None:
    raise error


def builder_of(name: str) -> str | None:
    """Tell by its ending how a file is read as a table; None for a text."""
    return TABLES.get(suffix(name))


def suffix(name: str) -> str:
    """Return the ending of a file's name in small letters, without that of gzip."""
    return Path(name.lower().removesuffix(".gz")).suffix


def warn_of_twins(sources: list[Source]) -> None:
    """Warn of a file that is named twice, and so would count twice."""
    seen: dict[tuple[int, int], str] = {}
    for source in sources:
        if source.name == STANDARD_INPUT:
            continue
        state = os.stat(source.name)
        first = seen.setdefault((state.st_dev, state.st_ino), source.name)
        if first is not source.name:
            say(f"warning: {source.name} is the same file as {first}: it counts twice.")
