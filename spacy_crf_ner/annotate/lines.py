"""Lines of text of any length, of which one is in memory."""

import gzip
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from contextlib import contextmanager
from io import BufferedReader
from typing import Any, BinaryIO, Callable, Generator, Iterator, NamedTuple, Tuple, cast

from .inputs import Source

MAX_LINE = 256 * 2**20  # bytes; a longer line is no document, and would be in memory whole
SKIPPED = 2**20  # bytes of a line that is too long which are read at once


class Line(NamedTuple):
    """A line with its end.

    text: Bytes that are not UTF-8 are half surrogate pairs in it; "" if the line is too long.
    reason: Why it cannot be used, or "". position: Bytes of the file,
        as stored, that have been read, about.
    """

    number: int
    text: str
    reason: str
    position: int


@contextmanager
def decompressed(source: Source) -> Iterator[Tuple[BinaryIO, Callable[[], int]]]:
    """Open a file, decompressed. Yields also a function for the position of a Line."""
    with source.location.open() as packed:
        file: Any = packed
        if source.compression == "gz":
            file = gzip.GzipFile(fileobj=packed)
        elif source.compression == "zst":
            from pyarrow import CompressedInputStream

            file = BufferedReader(CompressedInputStream(packed, "zstd"))
        yield cast(BinaryIO, file), lambda: min(packed.tell(), source.size)


def read_lines(source: Source) -> Generator[Line, None, None]:
    """Read the lines of a file, which end at line feeds, not at U+2028, and go on after a bad one.

    A byte order mark is not text. Raises ValueError for UTF-16, and OSError, EOFError or
    zlib.error for a damaged archive.
    """
    number = 0
    with decompressed(source) as (file, position):
        while content := file.readline(MAX_LINE + 1):
            number += 1
            text, reason = decode(content, begins=number == 1)
            if not text and not reason:
                return  # there was nothing but the mark
            if len(content) > MAX_LINE:
                while content and not content.endswith(b"\n"):
                    content = file.readline(SKIPPED)
            yield Line(number, text, reason, position())


def decode(content: bytes, begins: bool) -> Tuple[str, str]:
    """Decode bytes to the text and the reason of a Line. A file may begin with a mark."""
    if len(content) > MAX_LINE:
        return "", f"expected at most {MAX_LINE:,} bytes, got more"
    if begins:
        if content.startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
            raise ValueError("expected UTF-8, got UTF-16")
        content = content.removeprefix(BOM_UTF8)
    try:
        return content.decode(), ""
    except UnicodeDecodeError as problem:
        return content.decode(errors="surrogateescape"), f"expected UTF-8, got {problem}"
