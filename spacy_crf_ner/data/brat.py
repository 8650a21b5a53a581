"""brat's standoff format: text in name.txt, annotation in name.ann."""

import re
from collections.abc import Iterator
from pathlib import Path

from spacy.language import Language
from spacy.tokens import Doc

from ..docbin import DOCUMENT, META, document_name
from .json_records import is_text, records_to_docs, shorten
from .lines import Line, read_lines
from .offsets import RawSpan, set_entities, tokenize
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

    Args:
        path: A folder with name.txt and name.ann for each document, in UTF-8 (others and hidden
            ones are skipped); or one of the two files of a document. Relations, events, attributes,
            normalizations and notes are skipped; the trigger of an event is an entity with the type
            of the event.
        nlp: Pipeline with the vocabulary, and the tokenizer for formats without tokens.
        log: Decides what happens to mistakes, and counts them; None raises the first one. Kinds:
            those of `set_entities`, "discontinuous", "id" for a duplicate id, and "line" for a line
            that is not an annotation. A document is left out if one of its files cannot be read.

    Yields:
        A Doc for each document, ordered by name, with unknown sentence boundaries.
        `doc.user_data["meta"]["file"]` is the name of its text file; "document" is that of the
        document, with two folders.

    Raises:
        CorpusError: For invalid files, and for a path without any document.
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
    records = ((str(stem), {"stem": stem}) for stem in stems)
    return records_to_docs(records, lambda _, record: _to_doc(record["stem"], nlp, log), log)


def _to_doc(stem: Path, nlp: Language, log: ConversionLog) -> Doc:
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
    doc = tokenize(content, nlp, str(text))
    doc.user_data[META] = {"file": text.name, DOCUMENT: document_name(stem)}
    lines = list(read_lines(annotation))
    # Raise before any entity is counted: a document is read completely or left out.
    if unreadable := next((line.problem for line in lines if line.problem), None):
        raise unreadable[1]
    ids: set[str] = set()
    unknown: list[str] = []
    spans = [_span(line, ids, log, unknown) for line in lines if line.text.strip()]
    missing = [_place(each, len(content)) for each in unknown]
    if log.spans_key is not None:
        missing.clear()
    return set_entities(doc, filter(None, spans), log, str(annotation), missing=missing)


def _span(line: Line, ids: set[str], log: ConversionLog, unknown: list[str]) -> RawSpan | None:
    """Read a line of annotation; return None if it is not a span, or is left out.

    Args:
        unknown: Gets the offsets of an entity that is left out, "" if they are not known.
    """
    if line.text.startswith(OTHER):
        log.skipped("line")
        return None
    match = SPAN.fullmatch(line.text)
    kind, expected, got, fix = "line", EXPECTED, line.text, "Correct or remove the line"
    if match and ";" in match[3]:
        kind, expected, got = "discontinuous", "one pair of offsets", match[3]
        fix = "Entities must be continuous: annotate one part, or remove the line"
    elif match and match[1] in ids:
        kind, expected, got = "id", "an id that is new", match[1]
        fix = "Give each annotation another id"
    elif match:
        ids.add(match[1])
        return RawSpan(*_offsets(match[3]), match[2], where=line.where, text=match[4])
    log.read(records=0, entities=1)
    log.rejected(kind, error(line.where, expected, shorten(got), fix), entities=1)
    unknown += match[3].split(";") if match else [""]
    return None


def _place(pair: str, length: int) -> tuple[int, int]:
    """Return the offsets, or those of the whole text if they are not valid."""
    start, end = _offsets(pair) if pair else (0, 0)
    return (start, end) if start < end <= length else (0, length)


def _offsets(pair: str) -> tuple[int, int]:
    start, end = map(int, pair.split())
    return start, end
