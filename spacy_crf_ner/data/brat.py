"""brat's standoff format: text in name.txt, annotation in name.ann."""

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from spacy.language import Language
from spacy.tokens import Doc

from ..docbin import DOCUMENT, document_name
from ..input_error import CorpusError
from .docs import make_docs
from .json_records import is_text, shorten
from .lines import Line, read_lines
from .record import RawSpan, Record
from .repair_log import ConversionLog, error

# An id, a label, one or more pairs of offsets, the text.
SPAN = re.compile(r"(T[^\t]*)\t(\S+) ([0-9]{1,9} [0-9]{1,9}(?:;[0-9]{1,9} [0-9]{1,9})*)\t(.*)")
# Relations, equivalences, events, attributes, modifications, normalizations, notes.
OTHER = tuple("R*EAMN#")
TEXT, ANNOTATION = ".txt", ".ann"
EXPECTED = "id, label and offsets, and text, with tabs between, as T1<TAB>PER 0 8<TAB>Tim Cook"


def is_brat(path: Path) -> bool:
    """Return whether a path is a brat annotation file, its text file, or a folder of them."""
    if path.is_dir():
        return any(file.suffix == ANNOTATION for file in path.iterdir() if file.name[0] != ".")
    return path.suffix == ANNOTATION or (
        path.suffix == TEXT and path.with_suffix(ANNOTATION).is_file()
    )


def read_brat(path: Path, nlp: Language, log: ConversionLog | None = None) -> Iterator[Doc]:
    """Read text and text-bound annotations of brat.

    Relations, events, attributes, normalizations and notes are skipped; the trigger of an event is
    an entity with the type of the event.

    Args:
        path: A folder with name.txt and name.ann for each document, in UTF-8 (others and hidden
            ones are skipped); or one of the two files of a document.

    Yields:
        A Doc for each document, ordered by name. `doc.user_data["meta"]["file"]` is the name of its
        text file; "document" is that of the document, with two folders.
    """
    log = log or ConversionLog()
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    seen = [file for file in files if file == path or file.name[0] != "."]
    used = [file for file in seen if file.is_file() and file.suffix in (TEXT, ANNOTATION)]
    stems = sorted({file.with_suffix("") for file in used})
    if not stems:
        fix = "Use a folder with both files, or one of the two"
        raise error(str(path), f"documents as name{TEXT} and name{ANNOTATION}", "none", fix)
    log.skipped_files(sorted({*files}.difference(used)))
    return make_docs(path, nlp, log, partial(_records, stems), one_pass=True)


def _records(stems: list[Path], log: ConversionLog) -> Iterator[Record]:
    for stem in stems:
        try:
            yield _record(stem, log)
        except CorpusError as problem:
            yield Record(str(stem), problem=("record", problem))


def _record(stem: Path, log: ConversionLog) -> Record:
    text, annotation = (stem.with_name(stem.name + suffix) for suffix in (TEXT, ANNOTATION))
    if not is_text(text.name):
        fix = "Rename both files"
        raise error(str(stem.parent), "a file name in UTF-8", shorten(text.name), fix)
    for file in (text, annotation):
        if not file.is_file():
            fix = "Add it, perhaps as an empty file, or remove the other"
            raise error(str(stem), f"a {TEXT} and a {ANNOTATION}", f"no {file.name}", fix)
    try:
        # With line ends and byte order mark, because the offsets count them.
        content = text.read_bytes().decode("utf-8")
    except UnicodeDecodeError as problem:
        raise error(str(text), "UTF-8", str(problem), "Save the file as UTF-8") from problem
    lines = list(read_lines(annotation))
    if unreadable := next((line.problem for line in lines if line.problem), None):
        raise unreadable[1]
    given = [line for line in lines if line.text.strip()]
    annotated = [line for line in given if not line.text.startswith(OTHER)]
    log.skipped("line", len(given) - len(annotated))
    ids: set[str] = set()
    spans = [_span(line, ids) for line in annotated]
    meta = {"file": text.name, DOCUMENT: document_name(stem)}
    return Record(str(text), content, spans=spans, meta=meta)


def _span(line: Line, ids: set[str]) -> RawSpan:
    match = SPAN.fullmatch(line.text)
    if not match:
        problem = error(line.where, EXPECTED, shorten(line.text), "Correct or remove the line")
        return RawSpan(None, None, None, where=line.where, problem=("line", problem))
    pairs = (pair.split() for pair in match[3].split(";"))
    parts = [(int(start), int(end)) for start, end in pairs]
    span = RawSpan(*parts[0], match[2], where=line.where, text=match[4], parts=tuple(parts))
    if match[1] in ids:
        fix = "Give each annotation another id"
        problem = error(line.where, "an id that is new", shorten(match[1]), fix)
        return span._replace(problem=("id", problem))
    ids.add(match[1])
    return span
