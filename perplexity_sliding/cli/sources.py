"""List the sources of texts: files, folders, globs, tables, standard input.

This module lists files before slow imports; reading.py reads them.
"""

import glob
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from .messages import command_name, named, say

# Formats of tables by the ending of the file.
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
    """A file with a text, or with one text per row.

    Attributes:
        name: the path as given, or as found in a given folder.
        builder: format of a table: csv, json or parquet; None for a text.
    """

    name: str
    builder: str | None = None

    @property
    def shown(self) -> str:
        return "Standard input" if self.name == STANDARD_INPUT else self.name

    @property
    def size(self) -> int:
        """The size in bytes, at least 1; 1 if unknown, as for a pipe."""
        return max(1, os.stat(self.name).st_size) if os.path.isfile(self.name) else 1


def list_sources(names: list[str], warns: bool = True) -> list[Source]:
    """List the files of the names on the command line, in their order.

    Raises:
        ValueError: there is nothing to score.
        OSError: a file is missing or cannot be opened.
    """
    if not names:
        if sys.stdin is None or sys.stdin.closed or sys.stdin.isatty():
            raise ValueError(
                f"There is nothing to score: pass a FILE, as in `{command_name()} "
                "samples/story.txt`, pipe text in, or pass --dataset. See --help."
            )
        names = [STANDARD_INPUT]
    sources = [source for name in names for source in _behind(name)]
    if warns:
        warn_of_duplicates(sources)
    return sources


def _behind(name: str) -> list[Source]:
    if name == STANDARD_INPUT:
        if sys.stdin is None or sys.stdin.closed:
            raise ValueError("Standard input is closed: pass a FILE.")
        return [Source(name)]
    if re.match(r"\w+://", name):
        raise ValueError(
            f"FILE must be a local file, got the address {name}. Download it first: curl -LO {name}."
        )
    path = Path(name)
    if path.is_dir():
        return _in_folder(path)
    if not path.exists() and glob.has_magic(name):
        warn_of_unreadable(name)
        found = glob.glob(name, recursive=True)
        files = sorted(file for file in found if os.path.isfile(file) or not os.path.exists(file))
        if not files:
            raise ValueError(f"No file matches {name}.")
        return [Source(file, builder_of(file)) for file in files]
    if not path.is_fifo():  # a pipe can be opened only once
        open(name, "rb").close()
    return [Source(name, builder_of(name))]


def _in_folder(folder: Path) -> list[Source]:
    """List the texts and tables in a folder and its subfolders, except for hidden ones.

    Broken links are listed too, so that opening them reports the missing file.

    Raises:
        ValueError: the folder has no texts or tables.
        OSError: a folder cannot be read.
    """
    files, linked = _walk(folder)
    taken = [file for file in files if suffix(str(file)) in (*TEXTS, *TABLES)]
    if linked:
        say(
            f"warning: skipped in {folder}, as links to folders: {named(linked)}. Pass the folders "
            "themselves."
        )
    if not taken:
        raise ValueError(
            f"{folder} is a folder without {', '.join((*TEXTS, *TABLES))} files. Select other files "
            f"with a glob: '{folder}/*'."
        )
    left = [str(file) for file in files if file not in set(taken)]
    if left:
        say(
            f"warning: skipped in {folder}, as their endings are neither of texts nor of tables: "
            f"{named(left)}."
        )
    return [Source(str(file), builder_of(str(file))) for file in taken]


def _walk(folder: Path) -> tuple[list[Path], list[str]]:
    """Return the files in a folder and its subfolders, sorted, and the links to folders.

    Links to folders are not followed, because they could form a cycle.
    """
    files, linked = [], []
    for place, folders, names in os.walk(folder, onerror=_raise):
        folders[:] = [name for name in folders if not name.startswith(".")]
        linked += [os.path.join(place, name) for name in folders if Path(place, name).is_symlink()]
        files += [Path(place, name) for name in names if not name.startswith(".")]
    return sorted(file for file in files if file.is_file() or not file.exists()), sorted(linked)


def _raise(error: OSError) -> None:
    raise error


def warn_of_unreadable(pattern: str) -> None:
    """Warn about folders on the way of a glob that cannot be read: glob skips them silently."""
    steps = pattern.split(os.sep)
    found = set()
    for number, step in enumerate(steps):
        needed = os.X_OK | (os.R_OK if glob.has_magic(step) else 0)
        place = os.sep.join([*steps[:number], ""]) or os.curdir
        folders = glob.glob(place, recursive=True) if step else []
        found |= {os.path.normpath(folder) for folder in folders if not os.access(folder, needed)}
    if found:
        say(
            f"warning: skipped for {pattern}, as they are folders that cannot be read: "
            f"{named(sorted(found))}."
        )


def builder_of(name: str) -> str | None:
    """Return the format of a table by its ending; None for a text."""
    return TABLES.get(suffix(name))


def suffix(name: str) -> str:
    """Return the ending of a file's name in lower case, without that of gzip."""
    return Path(name.lower().removesuffix(".gz")).suffix


def warn_of_duplicates(sources: list[Source]) -> None:
    """Warn about a file that is given twice, and counts twice."""
    seen: dict[tuple[int, int], str] = {}
    for source in sources:
        if source.name == STANDARD_INPUT:
            continue
        state = os.stat(source.name)
        first = seen.setdefault((state.st_dev, state.st_ino), source.name)
        if first is not source.name:
            say(f"warning: {source.name} is the same file as {first}: it counts twice.")
