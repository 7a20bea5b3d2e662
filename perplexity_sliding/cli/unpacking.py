"""Bytes of files as text: unpacked, decoded, and refused where they are those of something else."""

import codecs
import io
import re
import sys
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from gzip import BadGzipFile, GzipFile
from itertools import chain
from typing import BinaryIO

from .sources import STANDARD_INPUT, Source

GZIP_MAGIC = b"\x1f\x8b"
# The longer ones first: that of UTF-32 begins with that of UTF-16.
BYTE_ORDER_MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
PIECE_BYTES = 2**20
# No text is packed better: what gets this many times as large, and larger than this, is a bomb.
LARGEST_EXPANSION = 200
HARMLESS_BYTES = 10 * PIECE_BYTES
# What files begin with that hold no text as it stands.
KINDS = {
    rb"\s*%PDF-": "a PDF: extract its text first, with pdftotext for example",
    rb"PK\x03\x04": "a zip archive, as the files of Word and other programs are: save a document as .txt, "
    "a table as CSV UTF-8, or unpack it",
    rb"\xd0\xcf\x11\xe0": "a file of an old Office program: save a document as .txt, a table as CSV UTF-8",
    rb"\{\\rtf": "an RTF document: save it as .txt",
    rb"\x89PNG|\xff\xd8\xff|GIF8[79]a|II\*\x00|MM\x00\*": "a picture",
    rb"RIFF....(?:WAVE|WEBP|AVI )|OggS|ID3|fLaC|....ftyp": "a picture, a sound or a film",
    rb"BZh\d1AY&SY|\xfd7zXZ|7z\xbc\xaf|\x28\xb5\x2f\xfd|Rar!": "packed otherwise than by gzip: unpack it",
    rb"PAR1": "a Parquet table: let its name end in .parquet",
    rb"\x7fELF|SQLite format 3|GGUF|\x93NUMPY|ARROW1": "a binary file",
}


@contextmanager
def opened(source: Source) -> Iterator[BinaryIO]:
    """Open a file or standard input, unpacked if it is gzipped.

    Raises:
        ValueError: what is gzipped is broken.
    """
    is_pipe = source.name == STANDARD_INPUT
    with nullcontext(sys.stdin.buffer) if is_pipe else open(source.name, "rb") as file:
        if not file.peek(len(GZIP_MAGIC)).startswith(GZIP_MAGIC):
            yield file
            return
        try:
            yield Unpacked(source, file)
        except (EOFError, BadGzipFile, zlib.error) as error:
            raise ValueError(f"{source.shown} is gzipped, but broken: {error}.") from None


class Counted:
    """A file of which the bytes are counted that were read: a pipe does not say how many there are."""

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.num_bytes = file, 0

    def read(self, size: int = -1) -> bytes:
        piece = self.file.read(size)
        self.num_bytes += len(piece)
        return piece


class Unpacked(GzipFile):
    """A gzipped file that is read as long as it unpacks to what a text may be."""

    def __init__(self, source: Source, file: BinaryIO) -> None:
        self.source, self.packed = source, Counted(file)
        super().__init__(fileobj=self.packed, mode="rb")

    def read1(self, size: int = -1) -> bytes:
        return self._checked(super().read1(size))

    def read(self, size: int | None = -1) -> bytes:
        return self._checked(super().read(size))

    def _checked(self, piece: bytes) -> bytes:
        """Hand on what was unpacked, unless it is too much."""
        packed = max(self.source.size, self.packed.num_bytes)
        if self.tell() > max(HARMLESS_BYTES, LARGEST_EXPANSION * packed):
            raise ValueError(
                f"{self.source.shown} unpacks to more than {LARGEST_EXPANSION} times its size, which "
                "no text does. Unpack it, and look what it is."
            )
        return piece


def read_text(source: Source, encoding: str | None) -> str:
    """Read a text as it is, line ends included; only a byte order mark is dropped.

    Raises:
        ValueError: it is empty, in another encoding, or no text.
    """
    with opened(source) as file:
        pieces = [file.read(PIECE_BYTES)]
        encoding = encoding or encoding_of(pieces[0])
        while pieces[-1]:
            refuse_binary(source, pieces[-1], encoding, is_head=len(pieces) == 1)
            pieces.append(file.read(PIECE_BYTES))
    try:
        text = b"".join(pieces).decode(encoding).removeprefix("\ufeff")
    except UnicodeError:
        raise ValueError(wrong_encoding(source, encoding, pieces)) from None
    if not text:
        raise ValueError(f"{source.shown} is empty.")
    if "\0" in text:
        raise ValueError(holds_nul(source))
    return text


@contextmanager
def opened_lines(source: Source, encoding: str | None) -> Iterator[io.TextIOWrapper]:
    """Open a table that is a text; its lines end as they are written.

    Raises:
        ValueError: as `read_text` does.
    """
    with opened(source) as file:
        head = file.peek(PIECE_BYTES)
        if not head:
            raise ValueError(f"{source.shown} is empty.")
        encoding = encoding or encoding_of(head)
        refuse_binary(source, head, encoding, is_head=True)
        try:
            yield io.TextIOWrapper(file, encoding, newline="")
        except UnicodeError:
            with opened(source) as again:  # what was read ahead says nothing of the place
                pieces = iter(lambda: again.read(PIECE_BYTES), b"")
                raise ValueError(wrong_encoding(source, encoding, pieces)) from None


def refuse_binary(source: Source, piece: bytes, encoding: str, is_head: bool) -> None:
    """Refuse a piece of a file that is no text, whatever the encoding makes of it."""
    for beginning, kind in KINDS.items():
        if is_head and re.match(beginning, piece, re.DOTALL):
            raise ValueError(f"{source.shown} is {kind}.")
    if b"\0" in piece and b"\0" not in "a".encode(encoding):
        raise ValueError(holds_nul(source))


def holds_nul(source: Source) -> str:
    return (
        f"{source.shown} holds NUL characters, as binary files do. Name its --encoding if it is a "
        "text, such as utf-16-le."
    )


def wrong_encoding(source: Source, encoding: str, pieces: Iterable[bytes]) -> str:
    """Say where bytes are no text of an encoding, and what to do.

    A UTF-8 text that ends within a character was cut; what has other bytes that are no UTF-8 was
    written in another encoding, on Windows cp1252. The last letter of such a text may look like the
    first byte of a character, so a cut is sure only where characters of several bytes precede it,
    or several bytes of the last one are there.
    """
    name, codec = encoding.upper(), codecs.lookup(encoding).name
    decoder, num_read, is_utf8 = codecs.getincrementaldecoder(encoding)(), 0, False
    for piece in chain(pieces, [b""]):
        pending = len(decoder.getstate()[0])
        try:
            is_utf8 |= not decoder.decode(piece, final=not piece).isascii()
        except UnicodeDecodeError as error:
            place, reason = num_read - pending + error.start, error.reason
            is_cut = not piece and (is_utf8 or error.end - error.start > 1)
            break
        except UnicodeError as error:  # UTF-16 without its byte order mark
            return f"{source.shown} is not {name} text: {error}."
        num_read += len(piece)
    if is_cut and codec.startswith("utf-8"):
        return (
            f"{source.shown} ends within a character, at byte {place}: it was cut. Fetch or write it "
            "again, or drop its last bytes."
        )
    hint = " Name its --encoding, such as cp1252." if codec == "utf-8" else ""
    return f"{source.shown} is not {name} text: {reason} at byte {place}.{hint}"


def encoding_of(head: bytes) -> str:
    """Tell the encoding from the byte order mark at the head of a file; without one, UTF-8."""
    marks = (name for mark, name in BYTE_ORDER_MARKS.items() if head.startswith(mark))
    return next(marks, "utf-8")
