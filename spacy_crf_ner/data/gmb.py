"""The Groningen Meaning Bank as Kaggle has it: `ner_dataset.csv`, a token a row."""

import csv
from codecs import BOM_UTF8
from functools import partial
from pathlib import Path
from typing import Iterator, List, Optional, Tuple

from spacy.language import Language
from spacy.tokens import Doc

from .iob import Row, tagged_docs
from .lines import Line, Problem, scan_lines
from .repair_log import CorpusError, Journal, error

GMB_HEADER = ["Sentence #", "Word", "POS", "Tag"]


def read_gmb(path: Path, nlp: Language, journal: Optional[Journal] = None) -> Iterator[Doc]:
    """Read Kaggle's export of the Groningen Meaning Bank; its tokens are kept, as `read_conll`'s.

    path: CSV file with the header `Sentence #,Word,POS,Tag`, in UTF-8 if it is valid as such, or
        has a byte order mark, else in Latin-1; no cell holds a line feed. A sentence begins where
        the first cell is filled and is not the one before.
    nlp: Pipeline whose vocabulary the Docs share.
    journal: What becomes of mistakes; without one, the first is raised.

    Yields a Doc a sentence. Raises CorpusError as `read_conll` does, and for another header.
    """
    rows = partial(_rows, path, _encoding(path))
    return tagged_docs(path, nlp, journal or Journal(), rows)


def _encoding(path: Path) -> str:
    with path.open("rb") as file:
        marked = file.read(len(BOM_UTF8)) == BOM_UTF8
    bad = any(line.problem and line.problem[0] == "encoding" for line in scan_lines(path))
    return "latin-1" if bad and not marked else "utf-8"


def _rows(path: Path, encoding: str, journal: Journal) -> Iterator[Row]:
    previous, sentence, header = "", 0, False
    for line in scan_lines(path, encoding):
        if not line.text and not line.problem:
            continue
        cells, problem = _cells(line)
        if not header and cells != GMB_HEADER:
            raise line.problem[1] if line.problem else _columns(line, cells)
        if cells == GMB_HEADER:
            if header:
                journal.left_out("header")
            header = True
            continue
        name = cells[0] if cells else line.text.partition(",")[0]
        # Of a line that cannot be read, only this says that it begins a sentence.
        if name not in ("", previous) and (not problem or name.startswith("Sentence")):
            previous, sentence = name, sentence + 1
        word, tag = ("", "O") if problem else (cells[1], cells[3])
        yield Row(line.where, word, tag, sentence, problem=problem)


def _cells(line: Line) -> Tuple[List[str], Optional[Problem]]:
    """Read the cells of a line, or what is wrong with it."""
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
        return cells, ("columns", _columns(line, cells))
    return cells, None


def _columns(line: Line, cells: List[str]) -> CorpusError:
    fix = "Put a cell that holds a comma in quotes"
    return error(line.where, ",".join(GMB_HEADER), str(cells), fix)
