"""Downloads of admitted models: outside the queue, shared, stoppable and with progress.

Who asks for a model that somebody else is fetching waits for the same download; it ends when the
last of them stops.
"""

import contextlib
import inspect
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from huggingface_hub import hf_hub_download
from tqdm import tqdm

from .gate import Admission, fetch
from .jobs import Job
from .line import Line

LOOK_AGAIN = 0.2  # seconds between two checks of the progress
TAKES_BAR = "tqdm_class" in inspect.signature(hf_hub_download).parameters


class Abandoned(Exception):
    """No request waits for this download any more."""


class Download:
    """One download, on its own thread.

    Attributes:
        folder: where its files lie once it is complete.
        waiting: how many requests want it.
        arrived: bytes so far.
    """

    def __init__(self, admission: Admission, keep: bool, endpoint: str | None):
        self.admission = admission
        self.folder: Path | None = None
        self.waiting = 0
        self.arrived = 0
        self._error: BaseException | None = None
        self._abandoned = False
        self._place = None if keep else tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self._endpoint = endpoint
        self._starting = threading.Lock()
        self._thread = threading.Thread(target=self._fetch, daemon=True)

    def wait(self, job: Job) -> None:
        """Wait until the download is complete and report its progress; start it if necessary."""
        size = self.admission.weight_bytes
        with self._starting:
            if self._thread.ident is None:
                self._thread.start()
        while self._thread.is_alive():
            share = min(1.0, self.arrived / size) if self.arrived else None
            job.say(
                f"Downloading {self.admission.name}: {min(self.arrived, size) / 1e6:,.0f} of "
                f"{size / 1e6:,.0f} MB.",
                share,
            )
            self._thread.join(LOOK_AGAIN)
        if self._error is not None:
            raise self._error

    def end(self) -> None:
        """Stop the download and remove its temporary files; keep the Hub's cache."""
        self._abandoned = True
        if not self._thread.is_alive():
            self._clean()

    def _fetch(self) -> None:
        try:
            folder = self._place and self._place.name
            bar = counting_bar(self._count) if TAKES_BAR else None
            self.folder = fetch(self.admission, folder, self._endpoint, bar)
        except BaseException as error:  # raised again in the waiting threads
            self._error = error
        if self._abandoned:
            self._clean()

    def _count(self, new_bytes: float) -> None:
        self.arrived += int(new_bytes)
        if self._abandoned:
            raise Abandoned

    def _clean(self) -> None:
        if self._place is not None:
            self._place.cleanup()


class Downloads:
    """All running downloads, a few at a time.

    Args:
        line: where those wait that begin one.
        kept: names whose files stay in the Hub's cache.
        endpoint: another Hub than huggingface.co.
    """

    def __init__(self, line: Line, kept: tuple[str, ...] = (), endpoint: str | None = None):
        self.line = line
        self.kept = kept
        self.endpoint = endpoint
        self._lock = threading.Lock()
        self._under_way: dict[tuple[str, str], Download] = {}

    @contextlib.contextmanager
    def folder(self, admission: Admission, job: Job) -> Iterator[Path]:
        """Yield the folder with a model's files, which exists while it is used."""
        download = self._join(admission)
        try:
            with self.line.turn(job):
                download.wait(job)
            yield download.folder
        finally:
            self._part(download)

    def _join(self, admission: Admission) -> Download:
        key = (admission.name, admission.commit)
        with self._lock:
            if key not in self._under_way:
                keep = admission.name in self.kept
                self._under_way[key] = Download(admission, keep, self.endpoint)
            download = self._under_way[key]
            download.waiting += 1
            return download

    def _part(self, download: Download) -> None:
        with self._lock:
            download.waiting -= 1
            if not download.waiting:
                del self._under_way[download.admission.name, download.admission.commit]
                download.end()


def counting_bar(count: Callable[[float], None]) -> type:
    """Make a progress bar for huggingface_hub that draws nothing and counts bytes."""

    class Bar(tqdm):
        def __init__(self, *args, **kwargs):
            # A chunked download has two bars: bytes received at position 0, bytes in place at 1.
            self.counts = kwargs.get("position") != 0
            super().__init__(disable=True)

        def update(self, n=1):
            if self.counts:
                count(n or 0)

    return Bar
