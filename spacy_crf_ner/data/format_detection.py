"""The formats that can be converted, and their detection by content."""

from pathlib import Path
from typing import Callable, Dict, Iterator, List, NamedTuple, Optional

from spacy.tokens import Doc

from .brat import looks_like_brat, read_brat
from .conll import looks_like_columns, read_conll
from .docbin import SUFFIX, looks_like_spacy, read_spacy
from .doccano import looks_like_doccano, read_doccano
from .files import find_files
from .gmb import GMB_HEADER, read_gmb
from .inline import MARKUP, read_inline
from .json_records import decode_json
from .jsonl import looks_like_jsonl, read_jsonl
from .label_studio import looks_like_label_studio, read_label_studio
from .lines import read_lines
from .repair_log import error

# The lines that decide: the first ones, up to these numbers of lines and characters.
DETECTION_LINES = 200
DETECTION_CHARACTERS = 2**16


class Format(NamedTuple):
    """A format: its reader, and what it looks like.

    read: Yields the Docs of a file (of brat also: a folder), given a pipeline and a ConversionLog.
    """

    read: Callable[..., Iterator[Doc]]
    example: str


FORMATS: Dict[str, Format] = {
    "inline": Format(read_inline, "[Tim Cook](PERSON) visited [Hanoi](GPE)."),
    "conll": Format(read_conll, "a token and its tag a line, a blank line after a sentence"),
    "gmb": Format(read_gmb, "CSV with the header Sentence #,Word,POS,Tag"),
    "jsonl": Format(
        read_jsonl, '{"text": "Hanoi.", "spans": [{"start": 0, "end": 5, "label": "GPE"}]}'
    ),
    "doccano": Format(read_doccano, '{"text": "Hanoi.", "label": [[0, 5, "GPE"]]}'),
    "label_studio": Format(
        read_label_studio, '[{"data": {"text": "Hanoi."}, "annotations": [...]}, ...]'
    ),
    "brat": Format(read_brat, "a folder of name.txt with name.ann"),
    "spacy": Format(read_spacy, "a .spacy file"),
}


def detect_format(*sources: Path) -> str:
    """Detect the format of a corpus, a key of `FORMATS`, by its first lines.

    sources: Files and folders as for `convert`, whose files must all have one format.

    Raises CorpusError for content of no known format.
    """
    files = [file for files in find_files(sources, as_one=True).parts.values() for file in files]
    formats = {file: _format_of(file) for file in files}
    if len(set(formats.values())) > 1:
        where = ", ".join(map(str, sources))
        found = ", ".join(f"{file.name} ({format})" for file, format in formats.items())
        raise error(where, "files of one format", found, "Convert each of them alone")
    return next(iter(formats.values()))


def _format_of(path: Path) -> str:
    if looks_like_brat(path):
        return "brat"
    if path.is_dir() and path.suffix == SUFFIX:
        return "spacy"
    with path.open("rb") as file:
        head = file.read(1000)
    if looks_like_spacy(head):
        return "spacy"
    if looks_like_label_studio(head.decode("utf-8-sig", errors="replace")):
        return "label_studio"
    lines = _first_lines(path)
    format = _format_of_lines(lines)
    if not format:
        expected = "; ".join(f"{name} ({each.example})" for name, each in FORMATS.items())
        got = repr(lines[0][:60]) if lines else "no text"
        raise error(str(path), expected, got, "If it is one of these, name the format")
    return format


def _first_lines(path: Path) -> List[str]:
    """Read lines that are not blank, each as a whole: the first record may be a long document."""
    lines: List[str] = []
    characters = 0
    for line in read_lines(path):
        if line.problem and line.problem[0] == "length" and not lines:
            raise line.problem[1]
        characters += len(line.text)
        lines += [line.text] if line.text.strip() else []
        if len(lines) == DETECTION_LINES or characters > DETECTION_CHARACTERS:
            break
    return lines


def _format_of_lines(lines: List[str]) -> Optional[str]:
    if lines and lines[0].replace('"', "").split(",") == GMB_HEADER:
        return "gmb"
    if looks_like_columns(lines):
        return "conll"
    for line in lines:  # the first record that has no mistake decides
        try:
            record = decode_json(line)
        except ValueError:
            continue
        if looks_like_doccano(record):
            return "doccano"
        if looks_like_jsonl(record):
            return "jsonl"
    if any(match[2] for line in lines for match in MARKUP.finditer(line)):
        return "inline"
    return None
