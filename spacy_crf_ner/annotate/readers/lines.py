"""Lines of text of any length, of which one is in memory."""

from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from typing import Generator, NamedTuple, Tuple

from ..inputs import Source
from .compression import unpacked

# Bytes. What is longer is no document, and would be held in memory whole.
MAX_LINE = 256 * 2**20
CHUNK = 2**20  # bytes of what is left out that are read at once


class Line(NamedTuple):
    """A line, with its end.

    number: From 1.
    text: Bytes that are not UTF-8 are half surrogate pairs in it; "" of a line that is too long.
    reason: Why it cannot be used; "" where it can.
    position: As of an Item.
    """

    number: int
    text: str
    reason: str
    position: int


def read_lines(source: Source) -> Generator[Line, None, None]:
    """Read the lines of a file, which end at line feeds, not at U+2028, and go on after a bad one.

    A byte order mark is not text. Raises ValueError for UTF-16, and what `unpacked` raises.
    """
    number = 0
    with unpacked(source) as (file, position):
        while content := file.readline(MAX_LINE + 1):
            number += 1
            text, reason = decode(content, begins=number == 1)
            if not text and not reason:
                return  # there was nothing but the mark
            if len(content) > MAX_LINE:
                while content and not content.endswith(b"\n"):
                    content = file.readline(CHUNK)
            yield Line(number, text, reason, position())


def decode(content: bytes, begins: bool) -> Tuple[str, str]:
    """Make text of bytes: the text and the reason of a Line.

    begins: Whether the file begins with them, perhaps with a byte order mark.

    Raises ValueError for the mark of UTF-16.
    """
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
