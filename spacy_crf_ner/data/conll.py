"""Columns of tokens and tags, as of CoNLL-2003: a token a line, a blank line after a sentence."""

from pathlib import Path
from typing import Iterator

from spacy.language import Language
from spacy.tokens import Doc

from .journal import error
from .lines import read_lines
from .tagged import Row, tagged_docs


def read_conll(path: Path, nlp: Language) -> Iterator[Doc]:
    """Read columns of tokens and tags; spaCy trains on these tokens, not on its tokenizer's.

    path: File, UTF-8. If its first token line has a tab, columns are separated by single tabs,
        so that a token may hold spaces; else by runs of spaces.
    nlp: Pipeline whose vocabulary the Docs share.

    Yields a Doc a sentence. Raises CorpusError for a wrong number of columns, an empty token, an
    unknown tag, an entity that BILUO leaves open, or one with a whitespace token at an edge.
    """
    return tagged_docs(nlp, lambda: _conll_rows(path))


def _conll_rows(path: Path) -> Iterator[Row]:
    sentence = document = n_columns = tabs = 0
    for where, line in read_lines(path):
        if line.startswith("-DOCSTART-"):
            document += 1
        elif not line.strip():
            sentence += 1
        else:
            tabs = tabs if n_columns else "\t" in line
            cells = line.split("\t") if tabs else [cell for cell in line.split(" ") if cell]
            n_columns = n_columns or min(max(len(cells), 2), 4)
            if len(cells) != n_columns:
                expected = f"{n_columns} columns (2 to 4, as in the first line)"
                fix = "Separate all columns by tabs, or all by spaces; the last one is the tag"
                raise error(where, expected, f"{len(cells)}: {cells}", fix)
            yield Row(where, cells[0], cells[-1], sentence, document)
