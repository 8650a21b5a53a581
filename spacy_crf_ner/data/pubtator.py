"""PubTator: a title and an abstract, and the entities in them by offsets."""

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from spacy.language import Language
from spacy.tokens import Doc

from .docs import make_docs
from .json_records import shorten
from .lines import Line, read_lines
from .record import RawSpan, Record
from .repair_log import ConversionLog, error

PART = re.compile(r"(\S+?)\|([ta])\|(.*)")  # 123|t|The title
TITLE = re.compile(r"\S+?\|t\|")
RELATION = 4  # number of columns: id, kind, and two concepts


def is_pubtator(lines: list[str]) -> bool:
    """Return whether the first line is that of a title."""
    return bool(lines and (match := PART.fullmatch(lines[0])) and match[2] == "t")


def read_pubtator(path: Path, nlp: Language, log: ConversionLog | None = None) -> Iterator[Doc]:
    """Read the documents of PubTator, tokenized by the pipeline.

    Args:
        path: File, UTF-8, where each document has a title, `1|t|The title`, an abstract,
            `1|a|The abstract`, and a line for each entity, with tabs: `1 0 3 The LABEL concept`.
            Other lines, of relations, are skipped.

    Yields:
        A Doc for each title and abstract, with a space between them. The concept is `kb_id_`, and
        the id of the document in `doc.user_data["meta"]`.
    """
    return make_docs(path, nlp, log, partial(_records, path))


def _records(path: Path, log: ConversionLog) -> Iterator[Record]:
    lines: list[Line] = []
    for line in read_lines(path):
        is_blank = not (line.text or line.problem)
        if lines and (is_blank or TITLE.match(line.text)):
            yield _record(lines, log)
            lines = []
        if not is_blank:
            lines.append(line)
    if lines:
        yield _record(lines, log)


def _record(lines: list[Line], log: ConversionLog) -> Record:
    record = Record(lines[0].where)
    record.problem = next((line.problem for line in lines if line.problem), None)
    parts: dict[str, str] = {}
    for line in lines:
        cells = line.text.split("\t")
        part = PART.fullmatch(line.text)
        record.id = record.id or (part[1] if part else None)
        if not record.problem and (
            (part and part[2] in parts) or (part[1] if part else cells[0]) != record.id
        ):
            expected = f"one title, one abstract and the entities of document {record.id}"
            fix = "Begin each document with its title, as 1|t|The title"
            record.problem = "record", error(line.where, expected, shorten(line.text), fix)
        if part:
            parts[part[2]] = part[3]
        elif len(cells) == RELATION and not cells[1].isdecimal():
            log.skipped("relation")
        else:
            start, end, text, label, concept = [*cells[1:], *[""] * 5][:5]
            first, last = (int(each) if each.isdecimal() else each for each in (start, end))
            span = RawSpan(first, last, label, concept, where=line.where, text=text)
            record.spans.append(span)
    if "t" in parts:
        record.text = " ".join(parts[kind] for kind in "ta" if kind in parts)
        record.meta = {"id": record.id}
    elif not record.problem:
        expected, fix = "a title, as 1|t|The title", "Put blank lines between documents"
        got = shorten(lines[0].text)
        record.problem = "record", error(record.where, expected, got, fix)
    return record
