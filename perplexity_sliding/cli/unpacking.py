"""Read files as text: decompress, decode, and refuse binary files."""

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
# Longer marks first: that of UTF-32 begins with that of UTF-16.
BYTE_ORDER_MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
PIECE_BYTES = 2**20
# A file that expands by more than this factor, to more than HARMLESS_BYTES, is a bomb.
LARGEST_EXPANSION = 200
HARMLESS_BYTES = 10 * PIECE_BYTES
# Beginnings of files that are not plain text.
KINDS = {
    rb"\s*%PDF-": "a PDF: extract its text first, with pdftotext for example",
    rb"PK\x03\x04": "a zip archive, such as a Word file: save a document as .txt, "
    "a table as CSV UTF-8, or unpack it",
    rb"\xd0\xcf\x11\xe0": "an old Office file: save a document as .txt, a table as CSV UTF-8",
    rb"\{\\rtf": "an RTF document: save it as .txt",
    rb"\x89PNG|\xff\xd8\xff|GIF8[79]a|II\*\x00|MM\x00\*": "a picture",
    rb"RIFF....(?:WAVE|WEBP|AVI )|OggS|ID3|fLaC|....ftyp": "a picture, an audio or a video file",
    rb"BZh\d1AY&SY|\xfd7zXZ|7z\xbc\xaf|\x28\xb5\x2f\xfd|Rar!": "compressed, but not by gzip: unpack it",
    rb"PAR1": "a Parquet table: give it a name that ends in .parquet",
    rb"\x7fELF|SQLite format 3|GGUF|\x93NUMPY|ARROW1": "a binary file",
}


@contextmanager
def opened(source: Source) -> Iterator[BinaryIO]:
    """Open a file or standard input, and decompress gzip.

    Raises:
        ValueError: the gzip data is broken.
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
    """A file that counts the bytes read, as the size of a pipe is unknown."""

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.num_bytes = file, 0

    def read(self, size: int = -1) -> bytes:
        piece = self.file.read(size)
        self.num_bytes += len(piece)
        return piece


class Unpacked(GzipFile):
    """A gzipped file that refuses to expand more than a text could."""

    def __init__(self, source: Source, file: BinaryIO) -> None:
        self.source, self.packed = source, Counted(file)
        super().__init__(fileobj=self.packed, mode="rb")

    def read1(self, size: int = -1) -> bytes:
        return self._checked(super().read1(size))

    def read(self, size: int | None = -1) -> bytes:
        return self._checked(super().read(size))

    def _checked(self, piece: bytes) -> bytes:
        """Return decompressed bytes, unless there are too many."""
        packed = max(self.source.size, self.packed.num_bytes)
        if self.tell() > max(HARMLESS_BYTES, LARGEST_EXPANSION * packed):
            raise ValueError(
                f"{self.source.shown} unpacks to more than {LARGEST_EXPANSION} times its size, unlike "
                "any text. Unpack and inspect it."
            )
        return piece


def read_text(source: Source, encoding: str | None) -> str:
    """Read a text with unchanged line ends; drop only a byte order mark.

    Raises:
        ValueError: it is empty, in another encoding, or not a text.
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
        raise ValueError(nothing_in(source))
    if "\0" in text:
        raise ValueError(contains_nul(source))
    return text


@contextmanager
def opened_lines(source: Source, encoding: str | None) -> Iterator[io.TextIOWrapper]:
    """Open a table in a text format, with unchanged line ends.

    Raises:
        ValueError: as for `read_text`.
    """
    with opened(source) as file:
        head = file.peek(PIECE_BYTES)
        if not head:
            raise ValueError(nothing_in(source))
        encoding = encoding or encoding_of(head)
        refuse_binary(source, head, encoding, is_head=True)
        try:
            yield io.TextIOWrapper(file, encoding, newline="")
        except UnicodeError:
            with opened(source) as again:  # the position is unknown after buffered reads
                pieces = iter(lambda: again.read(PIECE_BYTES), b"")
                raise ValueError(wrong_encoding(source, encoding, pieces)) from None


def nothing_in(source: Source) -> str:
    advice = " Pass the texts as FILEs, or pipe them in." if source.name == STANDARD_INPUT else ""
    return f"{source.shown} is empty.{advice}"


def refuse_binary(source: Source, piece: bytes, encoding: str, is_head: bool) -> None:
    """Refuse a piece of a binary file, even if it can be decoded."""
    for beginning, kind in KINDS.items():
        if is_head and re.match(beginning, piece, re.DOTALL):
            raise ValueError(f"{source.shown} is {kind}.")
    if b"\0" in piece and b"\0" not in "a".encode(encoding):
        raise ValueError(contains_nul(source))


def contains_nul(source: Source) -> str:
    return (
        f"{source.shown} contains NUL characters, like a binary file. If it is a text, pass its "
        "--encoding, such as utf-16-le."
    )


def wrong_encoding(source: Source, encoding: str, pieces: Iterable[bytes]) -> str:
    """Return a message with the position of invalid bytes, and advice.

    A UTF-8 text that ends within a character is truncated.  One with other invalid bytes has another
    encoding, on Windows cp1252.  The last letter of such a text may look like the first byte of a
    character, so the text is certainly truncated only if it has other multi-byte characters, or
    several bytes of the last one.
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
            f"{source.shown} ends within a character, at byte {place}: it is truncated. Download or "
            "write it again, or remove its last bytes."
        )
    hint = " Pass its --encoding, such as cp1252." if codec == "utf-8" else ""
    return f"{source.shown} is not {name} text: {reason} at byte {place}.{hint}"


def encoding_of(head: bytes) -> str:
    """Return the encoding of the byte order mark; UTF-8 without one."""
    marks = (name for mark, name in BYTE_ORDER_MARKS.items() if head.startswith(mark))
    return next(marks, "utf-8")
