"""Lines of text files, each with its place."""

from codecs import BOM_UTF8
from pathlib import Path
from typing import BinaryIO, Iterator, NamedTuple, Optional, Tuple

from .repair_log import CorpusError, error

MAX_LINE_BYTES = 16 * 2**20  # a line is in memory as a whole

Problem = Tuple[str, CorpusError]  # the kind that a ConversionLog counts, and the error


class RawLine(NamedTuple):
    """A line of an open file.

    number: From 1.
    text: Without its line end, "\n" or "\r\n". Bytes that cannot be decoded are lone surrogates;
        "" if the line is too long.
    kind: "" for a line that can be used, "length" or "encoding" for one that cannot.
    expected, got: The reason, for a message.
    """

    number: int
    text: str
    kind: str = ""
    expected: str = ""
    got: str = ""


class Line(NamedTuple):
    """A line with its file and number, and with the problem if it cannot be used."""

    where: str
    text: str
    problem: Optional[Problem] = None


def split_lines(
    file: BinaryIO, max_bytes: int = MAX_LINE_BYTES, encoding: str = "utf-8"
) -> Iterator[RawLine]:
    """Read lines, which end at line feeds only (not at U+2028), one at a time.

    file: Open binary file. A byte order mark of UTF-8 at its beginning is not text.
    max_bytes: Longest line, with its end. The rest of a longer one is skipped.

    Yields all lines, including those that cannot be decoded or are too long.
    """
    number = 0
    while content := file.readline(max_bytes + 1):
        number += 1
        if len(content) > max_bytes:
            while content and not content.endswith(b"\n"):
                content = file.readline(max_bytes)
            yield RawLine(number, "", "length", f"a line of at most {max_bytes:,} bytes", "more")
            continue
        if number == 1 and encoding == "utf-8":
            content = content.removeprefix(BOM_UTF8)
        content = content.removesuffix(b"\n").removesuffix(b"\r")
        try:
            yield RawLine(number, content.decode(encoding))
        except UnicodeDecodeError as bad:
            text = content.decode(encoding, "surrogateescape")
            yield RawLine(number, text, "encoding", encoding.upper(), str(bad))


def read_lines(path: Path, encoding: str = "utf-8") -> Iterator[Line]:
    """Read the lines of a corpus; a line with a NUL character is not text."""
    fixes = {
        "length": "Break it into lines, or name another format",
        "encoding": "Save the file as UTF-8",
        "nul": "Save the file as text, in UTF-8",
    }
    with path.open("rb") as file:
        for number, text, kind, expected, got in split_lines(file, MAX_LINE_BYTES, encoding):
            where = f"{path}, line {number}"
            if not kind and "\0" in text:
                kind, expected = "nul", "text"
                got = f"a NUL character at position {text.index(chr(0)) + 1}"
            problem = (kind, error(where, expected, got, fixes[kind])) if kind else None
            yield Line(where, text, problem)
