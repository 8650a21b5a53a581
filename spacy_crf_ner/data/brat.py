"""Annotated text in standoff, as brat has it: text in name.txt, its annotation in name.ann."""

import re
from pathlib import Path
from typing import Iterator, Match, Optional, Set, Tuple

from spacy.language import Language
from spacy.tokens import Doc

from .json_records import META, docs_of, shown
from .lines import Problem, read_lines
from .offsets import Mark, mark, tokenize
from .repair_log import Journal, error

# An id, a label, one or more pairs of offsets, the text.
SPAN = re.compile(r"(T[^\t]*)\t(\S+) ([0-9]{1,9} [0-9]{1,9}(?:;[0-9]{1,9} [0-9]{1,9})*)\t(.*)")
# Relations, equivalences, events, attributes, modifications, normalizations, notes.
OTHER = tuple("R*EAMN#")
TEXT, ANNOTATION = ".txt", ".ann"
EXPECTED = "an id, a label and offsets, and the text, between tabs, as T1<TAB>PER 0 8<TAB>Tim Cook"


def looks_like_brat(path: Path) -> bool:
    """Tell whether a path is an annotation file of brat, a text beside one, or a folder of them."""
    if path.is_dir():
        return any(file.suffix == ANNOTATION for file in path.iterdir())
    return path.suffix == ANNOTATION or (
        path.suffix == TEXT and path.with_suffix(ANNOTATION).is_file()
    )


def read_brat(path: Path, nlp: Language, journal: Optional[Journal] = None) -> Iterator[Doc]:
    """Read text and the text-bound annotations of brat.

    path: A folder with name.txt and name.ann for each document, in UTF-8, not those of folders in
        it; or one of the two files of one document. Relations, events, attributes, normalizations
        and notes are left out; the trigger of an event is an entity with the type of the event.
    nlp: Pipeline whose tokenizer is used.
    journal: What becomes of mistakes; without one, the first is raised. Those of spans are as for
        `mark`, and "discontinuous", "text" for an annotation that says another text than it has,
        but for whitespace, "id" for one whose id was there before, and "line" for what is no
        annotation. A document whose files cannot be read, or of which one is not there, is left
        out.

    Yields a Doc a document, in the order of their names; where sentences start in it is unknown.
    `doc.user_data["meta"]["file"]` is the name of its text. Raises CorpusError for what is not as
    above, and for a path without any document.
    """
    journal = journal or Journal()
    return docs_of(_documents(path), lambda _, stem: _to_doc(stem, nlp, journal), journal)


def _documents(path: Path) -> Iterator[Tuple[str, Path]]:
    """Yield the path of each document without the suffixes of its files, behind its place."""
    files = filter(Path.is_file, path.iterdir()) if path.is_dir() else [path]
    stems = sorted({file.with_suffix("") for file in files if file.suffix in (TEXT, ANNOTATION)})
    if not stems:
        fix = "Name a folder with both, or one of the two"
        raise error(str(path), f"documents as name{TEXT} and name{ANNOTATION}", "none", fix)
    return ((str(stem), stem) for stem in stems)


def _to_doc(stem: Path, nlp: Language, journal: Journal) -> Doc:
    text, annotation = (stem.with_name(stem.name + suffix) for suffix in (TEXT, ANNOTATION))
    for file in (text, annotation):
        if not file.is_file():
            fix = "Add it, if with nothing in it, or remove the other"
            raise error(str(stem), f"a {TEXT} and a {ANNOTATION}", f"no {file.name}", fix)
    content = _read(text, nlp.max_length)
    doc = tokenize(content, nlp, str(text))
    doc.user_data[META] = {"file": text.name}
    # All lines, before an entity is counted: a document is read, or it is left out.
    lines = list(read_lines(annotation))
    ids: Set[str] = set()
    marks = [_mark(where, line, content, ids, journal) for where, line in lines]
    return mark(doc, filter(None, marks), journal, str(annotation))


def _read(path: Path, longest: int) -> str:
    """Read a text with the line ends and the byte order mark that it has: offsets count them."""
    where, most = str(path), 4 * longest  # a character has four bytes at most
    with path.open("rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise error(where, f"at most {longest:,} characters", "more", "Divide the text")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as problem:
        raise error(where, "UTF-8", str(problem), "Save the file as UTF-8") from problem


def _mark(where: str, line: str, text: str, ids: Set[str], journal: Journal) -> Optional[Mark]:
    """Read a line of annotation; None if it is no span, or is left out."""
    if not line.strip():
        return None
    if line.startswith(OTHER):
        journal.left_out("line")
        return None
    match = SPAN.fullmatch(line)
    problem = _problem(where, match, text, ids) if match else _no_span(where, line)
    if match and not problem:
        start, end = map(int, match[3].split())
        ids.add(match[1])
        return Mark(start, end, match[2], where=where)
    if problem:
        journal.read(records=0, entities=1)
        journal.rejected(*problem, entities=1)
    return None


def _no_span(where: str, line: str) -> Problem:
    return "line", error(where, EXPECTED, shown(line), "Correct the line, or remove it")


def _problem(where: str, match: Match[str], text: str, ids: Set[str]) -> Optional[Problem]:
    """Tell what is wrong with a span; offsets that are not of the text are told by `mark`."""
    if ";" in match[3]:
        fix = "An entity is continuous: annotate one part, or remove the line"
        return "discontinuous", error(where, "one pair of offsets", shown(match[3]), fix)
    if match[1] in ids:
        fix = "Give each annotation another id"
        return "id", error(where, "an id that is new", shown(match[1]), fix)
    start, end = map(int, match[3].split())
    if not start < end <= len(text) or text[start:end].split() == match[4].split():
        return None
    got = f"{shown(text[start:end])} at {start}:{end}"
    fix = "Correct the offsets, or take the text that was annotated"
    return "text", error(where, f"the text {shown(match[4])}", got, fix)
