"""Views of scored texts as HTML, shared by the page, reports and notebooks.

They know results of the metric, and neither gradio nor the command line.  This module has what they
show, and needs no library.
"""

import errno
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

SHOWN = 200_000  # characters of all texts that are coloured


@dataclass(frozen=True)
class Reading:
    """A tokenized text with its result; the page's own result has the same attributes.

    Attributes:
        whole: all that was read: the context, then the text.
        tokens: the metric's token scores of it.
        result: the metric's result, of this text or of all texts together.
        begin: characters of the context.
        perplexity: the text's own; None where texts were joined.
    """

    whole: str
    tokens: dict
    result: dict
    model: str
    begin: int = 0
    name: str = ""
    perplexity: float | None = None

    @property
    def num_context_tokens(self) -> int:
        ends = [offset[1] for offset in self.tokens["offsets"] if offset is not None]
        return sum(end <= self.begin for end in ends) if self.begin else 0

    @property
    def window(self) -> int:
        return self.result["max_length"]

    def beginning(self, length: int) -> "Reading":
        """Truncate to a number of characters; drop a token across the end."""
        offsets = self.tokens["offsets"]
        if None in offsets or len(self.whole) <= length:
            return self
        kept = next((n for n, (_, end) in enumerate(offsets) if end > length), len(offsets))
        columns = {name: column[:kept] for name, column in self.tokens.items() if name != "windows"}
        windows = [
            window | {"first": min(window["first"], kept), "end": min(window["end"], kept)}
            for window in self.tokens["windows"]
            if window["begin"] < kept
        ]
        text = self.whole[: offsets[kept - 1][1]] if kept else ""
        return replace(self, whole=text, tokens=columns | {"windows": windows})


def within(readings: Iterable[Reading], most: int = SHOWN) -> Iterator[Reading]:
    """Truncate texts to the maximum number of coloured characters."""
    for reading in readings:
        if most <= 0:
            return
        yield reading.beginning(most)
        most -= len(reading.whole)


def own_perplexities(result: dict, num_texts: int) -> list[float | None]:
    """Return the perplexity of each text shown; None for joined texts."""
    own = result["perplexities"]
    return own if len(own) == num_texts else [None] * num_texts


@contextmanager
def replaced(path: str) -> Iterator[str]:
    """Yield a path to write to; on success, the file replaces `path`.

    Pipes, devices and standard streams are written directly, never replaced or removed.

    Raises:
        OSError: writing fails; its filename is `path`, and an existing file is unchanged.
    """
    target = os.path.realpath(path)
    folder, ending = os.path.dirname(target), os.path.splitext(target)[1]
    is_stream = os.path.abspath(path).startswith(("/dev/", "/proc/"))
    is_stream = is_stream or (os.path.exists(path) and not os.path.isfile(path))
    if is_stream or not os.access(folder, os.W_OK):
        yield path
        return
    place = os.path.join(folder, f".{secrets.token_hex(8)}{ending}")
    try:
        yield place
        if os.path.exists(target):
            shutil.copymode(target, place)
        try:
            os.replace(place, target)
        except OSError as error:
            # a mount point, or another user's file in a folder such as /tmp: written, not replaced
            if error.errno not in (errno.EBUSY, errno.EPERM, errno.EACCES):
                raise
            shutil.copyfile(place, target)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), path) from error
    finally:
        with suppress(FileNotFoundError):
            os.unlink(place)
