"""WebAnno TSV 3, which INCEpTION and WebAnno export: tokens with offsets, and columns of layers."""

import re
from collections.abc import Iterator
from functools import partial
from itertools import groupby
from pathlib import Path

from spacy.language import Language
from spacy.tokens import Doc

from .docs import make_docs
from .json_records import shorten
from .lines import Line, read_lines
from .record import RawSpan, Record
from .repair_log import ConversionLog, error

FORMAT = "#FORMAT=WebAnno TSV 3"
LAYER = re.compile(r"#T_(SP|CH|RL)=(.*)")  # spans, chains and relations, and their features
TOKEN = re.compile(r"\d+-\d+(?P<part>\.\d+)?\t(?P<start>\d+)-(?P<end>\d+)\t(?P<word>[^\t]*)\t")
VALUE = re.compile(r"(.*?)(?:(?<!\\)\[(\d+)\])?")  # PER, or PER[1] in each token of an entity
ESCAPED = re.compile(r"\\(.)")
NO_LABEL = "*"
NAMED_ENTITY, BUILT_IN = "NamedEntity", "de.tudarmstadt.ukp.dkpro.core."
N_BEFORE = 3  # columns before those of the layers


def is_webanno(lines: list[str]) -> bool:
    """Return whether the first line names the format."""
    return bool(lines) and lines[0].startswith(FORMAT)


def read_webanno(path: Path, nlp: Language, log: ConversionLog | None = None) -> Iterator[Doc]:
    """Read sentences of WebAnno TSV 3, with their tokens.

    Args:
        path: File, UTF-8. The entities are the values of the layer NamedEntity or, without it, of
            the only layer of spans, if this is not a built-in layer. Its feature is `value`, or its
            only one. Other layers are skipped.
    """
    column = _column(path)
    return make_docs(path, nlp, log, partial(_records, path, column))


def _column(path: Path) -> int:
    column, layers = N_BEFORE, dict[str, tuple[int, list[str]]]()
    for line in read_lines(path):
        if TOKEN.match(line.text):
            break
        if layer := LAYER.fullmatch(line.text):
            name, *features = layer[2].split("|")
            if layer[1] == "SP":
                layers[name] = column, features
            column += len(features)
    named = [name for name in layers if name.endswith(NAMED_ENTITY)] or [*layers]
    is_other = named and named[0].startswith(BUILT_IN) and not named[0].endswith(NAMED_ENTITY)
    if len(named) != 1 or is_other:
        fix = "Export the project with the layer Named entity"
        raise error(str(path), f"one layer of entities, {NAMED_ENTITY}", shorten(named), fix)
    column, features = layers[named[0]]
    if len(features) > 1 and "value" not in features:
        expected, fix = f"a feature 'value' of {named[0]}", "Name the feature of the labels so"
        raise error(str(path), expected, shorten(features), fix)
    return column + ("value" in features and features.index("value"))


def _records(path: Path, column: int, log: ConversionLog) -> Iterator[Record]:
    for is_sentence, rows in groupby(read_lines(path), key=_is_row):
        if is_sentence:
            yield _record([*rows], column)


def _is_row(line: Line) -> bool:
    return bool(line.problem) or not (line.text.startswith("#") or not line.text)


def _record(rows: list[Line], column: int) -> Record:
    problem = next((row.problem for row in rows if row.problem), None)
    others = [row for row in rows if not TOKEN.match(row.text)]
    if others and not problem:
        expected, fix = "a token of WebAnno TSV 3", "Export the file again"
        bad = error(others[0].where, expected, others[0].text[:60], fix)
        problem = "columns", bad
    words, spaces = list[str](), list[bool]()
    spans: dict[str, RawSpan] = {}
    begin = end = file_begin = file_end = 0  # of the last token, in the sentence and in the file
    for row in rows if not problem else ():
        token = TOKEN.match(row.text)
        assert token
        first, last = int(token["start"]), int(token["end"])
        if not token["part"]:
            spaces += [first > file_end] * bool(words)
            begin = end + (first > file_end and bool(words))
            end = begin + len(token["word"])
            file_begin, file_end = first, last
            words.append(token["word"])
        cells = row.text.split("\t")
        for value in re.split(r"(?<!\\)\|", cells[column] if column < len(cells) else ""):
            match = VALUE.fullmatch(value)
            if not match or match[1] in ("_", ""):
                continue
            start, stop = begin, end
            if token["part"]:
                start, stop = first - file_begin + begin, last - file_begin + begin
            if match[1] == NO_LABEL and not problem:
                fix = "Label the entity, and export the file again"
                bad = error(row.where, "a label for each entity", shorten(value), fix)
                problem = "record", bad
            key = match[2] or f"{row.where} {match[1]}"
            label = ESCAPED.sub(r"\1", match[1])
            known = spans.get(key, RawSpan(start, stop, label, where=row.where))
            spans[key] = known._replace(end=stop)
    return Record(
        rows[0].where,
        words=words,
        spaces=[*spaces, False] if words else [],
        spans=[*spans.values()],
        sent_starts=[0] if words else [],
        problem=problem,
    )
