"""Lines of text files, each with its place."""

from codecs import BOM_UTF8
from itertools import count
from pathlib import Path
from typing import Iterator, NamedTuple, Optional, Tuple

from ..input_error import CorpusError
from .repair_log import error

MAX_LINE_BYTES = 16 * 2**20  # a line is in memory as a whole

Problem = Tuple[str, CorpusError]  # the kind that a ConversionLog counts, and the error


class Line(NamedTuple):
    """A line of a file.

    where: File and number, for messages.
    text: Without its end. Bytes that cannot be decoded are lone surrogates in it.
    problem: Why the line cannot be used: "length" (`text` is ""), "encoding" or "nul".
    """

    where: str
    text: str
    problem: Optional[Problem] = None


def read_lines(path: Path, encoding: str = "utf-8") -> Iterator[Line]:
    """Read the lines of a file one at a time. They end at line feeds only, not at U+2028.

    path: File, with or without a byte order mark of UTF-8.

    Yields all lines, including those that cannot be used; the rest of a line that is longer than
    `MAX_LINE_BYTES`, with its end, is skipped.
    """
    with path.open("rb") as file:
        for number in count(1):
            where = f"{path}, line {number}"
            content = file.readline(MAX_LINE_BYTES + 1)
            if not content:
                return
            if len(content) > MAX_LINE_BYTES:
                while content and not content.endswith(b"\n"):
                    content = file.readline(MAX_LINE_BYTES)
                expected = f"a line of at most {MAX_LINE_BYTES:,} bytes"
                problem = "length", error(where, expected, "more", "Break it into lines")
                yield Line(where, "", problem)
                continue
            if number == 1 and encoding == "utf-8":
                content = content.removeprefix(BOM_UTF8)
            yield _decode(where, content.removesuffix(b"\n").removesuffix(b"\r"), encoding)


def _decode(where: str, content: bytes, encoding: str) -> Line:
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError as bad:
        problem = "encoding", error(where, "UTF-8", str(bad), "Save the file as UTF-8")
        return Line(where, content.decode(encoding, "surrogateescape"), problem)
    if (nul := text.find("\0")) < 0:
        return Line(where, text)
    got, fix = f"a NUL character at position {nul + 1}", "Save the file as text, in UTF-8"
    return Line(where, text, ("nul", error(where, "text", got, fix)))
