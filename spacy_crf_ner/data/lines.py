"""Lines of text files, each with its place."""

from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Iterator
from io import BytesIO
from itertools import count
from pathlib import Path
from typing import BinaryIO, NamedTuple

from ..input_error import CorpusError
from .repair_log import error

MAX_LINE_BYTES = 16 * 2**20  # whole lines are in memory
SKIPPED_BYTES = 2**20  # read at once while skipping a longer line

NUL = "\0"
Problem = tuple[str, CorpusError]  # the kind that a ConversionLog counts, and the error


class Line(NamedTuple):
    """A line of a file.

    Attributes:
        where: File and number, for messages.
        text: The line without its end. Bytes that cannot be decoded are lone surrogates.
        problem: Why the line cannot be used: "length" (`text` is ""), "encoding" or "nul".
    """

    where: str
    text: str
    problem: Problem | None = None


def read_lines(path: Path, encoding: str = "utf-8") -> Iterator[Line]:
    """Read the lines of a file, see `split_lines`; one with the mark of UTF-16 is in memory."""
    with path.open("rb") as file:
        is_utf16 = file.read(2) in (BOM_UTF16_LE, BOM_UTF16_BE)
        file.seek(0)
        lines = BytesIO(_from_utf16(path, file.read())) if is_utf16 else file
        yield from split_lines(lines, str(path), MAX_LINE_BYTES, encoding)


def _from_utf16(path: Path, content: bytes) -> bytes:
    try:
        return content.decode("utf-16").encode()
    except UnicodeDecodeError as bad:
        raise error(str(path), "UTF-16, as its mark says", str(bad), "Save it as UTF-8") from None


def split_lines(
    file: BinaryIO, name: str, max_bytes: int = MAX_LINE_BYTES, encoding: str = "utf-8"
) -> Iterator[Line]:
    """Read lines one at a time. Only line feeds end a line, not U+2028.

    Args:
        file: Open binary file, with or without a byte order mark of UTF-8.
        name: Name of the file, for messages.
        max_bytes: Maximum length of a line, with its end; the rest of a longer one is skipped.

    Yields:
        All lines, including those that cannot be used.
    """
    for number in count(1):
        where = f"{name}, line {number}"
        content = file.readline(max_bytes + 1)
        if not content:
            return
        if len(content) > max_bytes:
            while content and not content.endswith(b"\n"):
                content = file.readline(min(max_bytes, SKIPPED_BYTES))
            expected = f"a line of at most {max_bytes:,} bytes"
            problem = "length", error(where, expected, "more", "Break it into lines")
            yield Line(where, "", problem)
            continue
        if number == 1 and encoding == "utf-8":
            content = content.removeprefix(BOM_UTF8)
        content = content.removesuffix(b"\n").removesuffix(b"\r")
        unusable: Problem | None = None
        try:
            text = content.decode(encoding)
        except UnicodeDecodeError as bad:
            text = content.decode(encoding, "surrogateescape")
            unusable = "encoding", error(where, "UTF-8", str(bad), "Save the file as UTF-8")
        if NUL in text and not unusable:
            got = f"a NUL character at position {text.index(NUL) + 1}"
            unusable = "nul", error(where, "text", got, "Save the file as text, in UTF-8")
        yield Line(where, text, unusable)
