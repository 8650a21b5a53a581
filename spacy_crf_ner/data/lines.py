"""Lines of text files, each with its place."""

from codecs import BOM_UTF8
from pathlib import Path
from typing import Iterator, NamedTuple, Optional, Tuple

from .repair_log import CorpusError, error

# Bytes. What is longer is no line of a corpus, and would be held in memory whole.
MAX_LINE = 16 * 2**20

Problem = Tuple[str, CorpusError]  # its kind, as a Journal counts it; what is wrong, and where


class Line(NamedTuple):
    """A line, its place, and, instead of its text, what is wrong with it."""

    where: str
    text: str
    problem: Optional[Problem] = None


def scan_lines(path: Path, encoding: str = "utf-8", errors: str = "strict") -> Iterator[Line]:
    """Read the lines of a file, which end at line feeds, not at U+2028, and go on after a bad one.

    path: File; a byte order mark and carriage returns at the ends of lines are not text.
    encoding, errors: As for `bytes.decode`.
    """
    name, number = str(path), 0
    with path.open("rb") as file:
        while line := file.readline(MAX_LINE + 1):
            number += 1
            where = f"{name}, line {number}"
            if len(line) > MAX_LINE:
                yield Line(where, "", ("line", _too_long(where)))
                while line and not line.endswith(b"\n"):
                    line = file.readline(MAX_LINE)
                continue
            if number == 1 and encoding == "utf-8":
                line = line.removeprefix(BOM_UTF8)
            try:
                text = line.decode(encoding, errors).removesuffix("\n").removesuffix("\r")
            except UnicodeDecodeError as bad:
                problem = error(where, "UTF-8", str(bad), "Save the file as UTF-8")
                yield Line(where, "", ("encoding", problem))
                continue
            if "\0" in text:
                yield Line(where, "", ("nul", _nul(where, text)))
            else:
                yield Line(where, text)


def read_lines(path: Path, errors: str = "strict") -> Iterator[Tuple[str, str]]:
    """Read (where, text) of the lines of a UTF-8 file. Raises CorpusError at the first bad one."""
    for where, text, problem in scan_lines(path, errors=errors):
        if problem:
            raise problem[1]
        yield where, text


def _too_long(where: str) -> CorpusError:
    expected = f"a line of at most {MAX_LINE:,} bytes"
    return error(where, expected, "a longer one", "Break it into lines, or name another format")


def _nul(where: str, text: str) -> CorpusError:
    got = f"a NUL character, the {text.index(chr(0)) + 1}. of the line"
    return error(where, "text", got, "Save the file as text, in UTF-8")
