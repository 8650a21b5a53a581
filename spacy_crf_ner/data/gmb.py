"""The Groningen Meaning Bank as Kaggle has it: `ner_dataset.csv`, a token a row."""

import csv
from collections import deque
from pathlib import Path
from typing import Iterator

from spacy.language import Language
from spacy.tokens import Doc

from .journal import CorpusError, error
from .lines import read_lines
from .tagged import Row, tagged_docs

GMB_HEADER = ["Sentence #", "Word", "POS", "Tag"]


def read_gmb(path: Path, nlp: Language) -> Iterator[Doc]:
    """Read Kaggle's export of the Groningen Meaning Bank; its tokens are kept, as `read_conll`'s.

    path: CSV file with the header `Sentence #,Word,POS,Tag`, in UTF-8 if it is valid as such, else
        in Latin-1. A sentence begins where the first cell is filled and is not the one before.
    nlp: Pipeline whose vocabulary the Docs share.

    Yields a Doc a sentence. Raises CorpusError as `read_conll` does.
    """
    encoding = "utf-8-sig"
    try:
        deque(read_lines(path), maxlen=0)
    except CorpusError:
        encoding = "latin-1"
    return tagged_docs(nlp, lambda: _gmb_rows(path, encoding))


def _gmb_rows(path: Path, encoding: str) -> Iterator[Row]:
    previous, sentence = "", 0
    with path.open(encoding=encoding, newline="") as file:
        rows = csv.reader(file, strict=True)
        try:
            for cells in filter(None, rows):
                where = f"{path}, line {rows.line_num}"
                if len(cells) != len(GMB_HEADER) or (rows.line_num == 1 and cells != GMB_HEADER):
                    fix = "Put a cell that holds a comma in quotes"
                    raise error(where, ",".join(GMB_HEADER), str(cells), fix)
                name, word, _, tag = cells
                if name not in ("", previous):
                    previous, sentence = name, sentence + 1
                if cells != GMB_HEADER:
                    yield Row(where, word, tag, sentence)
        except csv.Error as problem:
            where, fix = f"{path}, line {rows.line_num}", 'Write a cell that is a quote as """"'
            raise error(where, "CSV", str(problem), fix) from problem
