"""The format of a corpus, told by its content."""

import json
from pathlib import Path
from typing import Dict, List, Optional

from .brat import looks_like_brat
from .conll import looks_like_columns
from .docbin import looks_like_spacy
from .doccano import looks_like_doccano
from .files import find_files
from .gmb import GMB_HEADER
from .inline import MARKUP
from .jsonl import looks_like_jsonl
from .label_studio import looks_like_label_studio
from .repair_log import error

# Bytes of a file that tell its format.
HEAD = 2**16
LINES = 200

# Of each format, what it looks like.
FORMATS: Dict[str, str] = {
    "inline": "[Tim Cook](PERSON) visited [Hanoi](GPE).",
    "conll": "a token and its tag a line, a blank line after a sentence",
    "gmb": "CSV with the header Sentence #,Word,POS,Tag",
    "jsonl": '{"text": "Hanoi.", "spans": [{"start": 0, "end": 5, "label": "GPE"}]}',
    "doccano": '{"text": "Hanoi.", "label": [[0, 5, "GPE"]]}',
    "label_studio": '[{"data": {"text": "Hanoi."}, "annotations": [...]}, ...]',
    "brat": "a folder of name.txt with name.ann",
    "spacy": "a .spacy file",
}


def detect_format(*sources: Path) -> str:
    """Tell the format of a corpus, a key of `CONVERTERS`, by its first lines.

    sources: Files and folders as for `convert`, whose files must then be of one format.

    Raises CorpusError for content of no known format.
    """
    files = [file for files in find_files(sources, whole=True).parts.values() for file in files]
    formats = {file: _format_of(file) for file in files}
    if len(set(formats.values())) > 1:
        where = ", ".join(map(str, sources))
        found = ", ".join(f"{file.name} ({format})" for file, format in formats.items())
        raise error(where, "files of one format", found, "Convert each of them alone")
    return next(iter(formats.values()))


def _format_of(path: Path) -> str:
    if looks_like_brat(path):
        return "brat"
    with path.open("rb") as file:
        head = file.read(HEAD)
    if looks_like_spacy(head):
        return "spacy"
    text = head.decode("utf-8-sig", errors="replace")
    if looks_like_label_studio(text):
        return "label_studio"
    lines = text.split("\n")
    if len(head) == HEAD and len(lines) > 1:
        lines.pop()  # it is only begun
    lines = [line.removesuffix("\r") for line in lines if line.strip()][:LINES]
    format = _format_of_lines(lines)
    if not format:
        expected = "; ".join(f"{name} ({example})" for name, example in FORMATS.items())
        got = repr(lines[0][:60]) if lines else "no text"
        raise error(str(path), expected, got, "If it is one of these, name the format")
    return format


def _format_of_lines(lines: List[str]) -> Optional[str]:
    if lines and lines[0].replace('"', "").split(",") == GMB_HEADER:
        return "gmb"
    if looks_like_columns(lines):
        return "conll"
    for record in filter(None, map(_record, lines)):  # of the first that has no mistake
        return "doccano" if looks_like_doccano(record) else "jsonl"
    if any(match[2] for line in lines for match in MARKUP.finditer(line)):
        return "inline"
    return None


def _record(line: str) -> Optional[object]:
    """Parse a line, if it is one of a format of JSON lines."""
    try:
        record: object = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if looks_like_doccano(record) or looks_like_jsonl(record) else None
