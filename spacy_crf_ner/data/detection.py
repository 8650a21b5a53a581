"""The format of a corpus, told by its content."""

from itertools import islice
from pathlib import Path

from .files import find_files
from .gmb import GMB_HEADER
from .inline import MARKUP
from .journal import error
from .lines import read_lines
from .tagged import TAG


def detect_format(path: Path) -> str:
    """Tell the format of a corpus, a key of `CONVERTERS`, by its first lines.

    path: A file, or a folder as for `convert`, whose files must then be of one format.

    Raises CorpusError for content of no known format.
    """
    formats = {file.name: _detect_format_of_file(file) for file in find_files(path).values()}
    if len(set(formats.values())) > 1:
        found = ", ".join(f"{file} ({format})" for file, format in formats.items())
        raise error(str(path), "files of one format", found, "Convert each of them alone")
    return next(iter(formats.values()))


def _detect_format_of_file(path: Path) -> str:
    found = [line for _, line in islice(read_lines(path, errors="replace"), 200) if line.strip()]
    if found and found[0].replace('"', "").split(",") == GMB_HEADER:
        return "gmb"
    # Most of the lines, not all: a line with a mistake is for the converter to point out.
    rows = [line.split() for line in found]
    tagged = [row for row in rows if 2 <= len(row) <= 4 and TAG.fullmatch(row[-1])]
    if len(tagged) > len(found) / 2:
        return "conll"
    if any(match[2] for line in found for match in MARKUP.finditer(line)):
        return "inline"
    expected = "inline ([Tim Cook](PERSON) came.), conll (a token and a tag a line) or gmb (CSV)"
    got = repr(found[0][:60]) if found else "no text"
    raise error(str(path), expected, got, "If it is one of these, name the format")
