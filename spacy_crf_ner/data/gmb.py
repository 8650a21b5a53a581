"""The Groningen Meaning Bank as published on Kaggle: `ner_dataset.csv`, a token a row."""

import csv
from codecs import BOM_UTF8
from functools import partial
from pathlib import Path
from typing import Iterator

from spacy.language import Language
from spacy.tokens import Doc

from ..input_error import CorpusError
from .iob import TaggedToken, tagged_docs
from .lines import Line, Problem, read_lines
from .repair_log import ConversionLog, error

GMB_HEADER = ["Sentence #", "Word", "POS", "Tag"]


def read_gmb(path: Path, nlp: Language, log: ConversionLog | None = None) -> Iterator[Doc]:
    """Read Kaggle's export of the Groningen Meaning Bank; its tokens are kept, as in `read_conll`.

    path: CSV file with the header `Sentence #,Word,POS,Tag`. Its encoding is UTF-8, or Latin-1 if
        it has no byte order mark and is not valid UTF-8. No cell contains a line feed. A sentence
        begins where the first cell is filled and differs from the one before.
    nlp, log: As for all readers, see `format_detection.Reader`.

    Yields a Doc for each sentence. Raises CorpusError as `read_conll` does, and for another header.
    """
    rows = partial(_rows, path, _detect_encoding(path))
    return tagged_docs(path, nlp, log or ConversionLog(), rows)


def _detect_encoding(path: Path) -> str:
    with path.open("rb") as file:
        marked = file.read(len(BOM_UTF8)) == BOM_UTF8
    bad = any(line.problem and line.problem[0] == "encoding" for line in read_lines(path))
    return "latin-1" if bad and not marked else "utf-8"


def _rows(path: Path, encoding: str, log: ConversionLog) -> Iterator[TaggedToken]:
    previous, sentence, header = "", 0, False
    for line in read_lines(path, encoding):
        if not line.text and not line.problem:
            continue
        cells, problem = _cells(line)
        if cells == GMB_HEADER:
            log.skipped("header", int(header))
            header = True
            continue
        if not header:
            raise line.problem[1] if line.problem else _wrong_columns(line, cells)
        # The first cell can be read even where the others cannot.
        name = cells[0] if cells else line.text.partition(",")[0]
        if name not in ("", previous) and (not problem or name.startswith("Sentence")):
            previous, sentence = name, sentence + 1
        word, tag = ("", "O") if problem else (cells[1], cells[3])
        yield TaggedToken(line.where, word, tag, sentence, problem=problem)


def _cells(line: Line) -> tuple[list[str], Problem | None]:
    """Return the cells of a line, or its problem."""
    if line.problem:
        return [], line.problem
    cells = line.text.split(",")
    if '"' in line.text or "\r" in line.text:
        try:
            (cells,) = csv.reader([line.text], strict=True)
        except csv.Error as bad:
            fix = 'Write a cell that is a quote as """"'
            return [], ("csv", error(line.where, "CSV", str(bad), fix))
    if len(cells) != len(GMB_HEADER):
        return cells, ("columns", _wrong_columns(line, cells))
    return cells, None


def _wrong_columns(line: Line, cells: list[str]) -> CorpusError:
    fix = "Put a cell that contains a comma in quotes"
    return error(line.where, ",".join(GMB_HEADER), str(cells), fix)
