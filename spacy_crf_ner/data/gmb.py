"""The Groningen Meaning Bank as published on Kaggle: `ner_dataset.csv`, one token per row."""

import csv
from codecs import BOM_UTF8
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from spacy.language import Language
from spacy.tokens import Doc

from .iob import TaggedToken, label_of_words, tagged_docs
from .lines import read_lines
from .repair_log import ConversionLog, error

GMB_HEADER = ["Sentence #", "Word", "POS", "Tag"]


def read_gmb(path: Path, nlp: Language, log: ConversionLog | None = None) -> Iterator[Doc]:
    """Read Kaggle's export of the Groningen Meaning Bank; spaCy trains on its tokens.

    Args:
        path: CSV file with the header `Sentence #,Word,POS,Tag`. Its encoding is UTF-8, or Latin-1
            if it has no byte order mark and is not valid UTF-8. Cells contain no line feeds. A
            sentence begins at a first cell that is not empty and differs from the previous one.
        nlp: Pipeline with the vocabulary, and the tokenizer for formats without tokens.
        log: Decides what happens to mistakes, and counts them; None raises the first one.

    Yields:
        A Doc for each sentence.

    Raises:
        CorpusError: For another header, a row that cannot be read, an empty token and an unknown
            tag.
    """
    return tagged_docs(path, nlp, log or ConversionLog(), partial(_rows, path, _encoding(path)))


def _encoding(path: Path) -> str:
    with path.open("rb") as file:
        marked = file.read(len(BOM_UTF8)) == BOM_UTF8
    bad = any(problem and problem[0] == "encoding" for _, _, problem in read_lines(path))
    return "latin-1" if bad and not marked else "utf-8"


def _rows(path: Path, encoding: str, log: ConversionLog) -> Iterator[TaggedToken]:
    previous, sentence, header = "", 0, False
    for where, text, problem in read_lines(path, encoding):
        if not text and not problem:
            continue
        cells = text.split(",")
        if not problem and ('"' in text or "\r" in text):
            try:
                (cells,) = csv.reader([text], strict=True)
            except csv.Error as bad:
                problem = (
                    "csv",
                    error(where, "CSV", str(bad), 'Write a cell that is a quote as """"'),
                )
        if not problem and (len(cells) != len(GMB_HEADER) or not (header or cells == GMB_HEADER)):
            fix = "Put a cell that contains a comma in quotes"
            problem = "columns", error(where, ",".join(GMB_HEADER), str(cells), fix)
        if problem and not header:
            raise problem[1]
        if cells == GMB_HEADER:
            log.skipped("header", int(header))
            header = True
            continue
        # The first cell can be read even if the others cannot.
        first = cells[0] if cells else ""  # a line of "\r" alone has no cells
        if first not in ("", previous) and (not problem or first.startswith("Sentence")):
            previous, sentence = first, sentence + 1
        word, tag = ("", "O") if problem else (cells[1], cells[3])
        yield TaggedToken(
            where, word, tag, sentence, problem=problem or label_of_words(where, [tag])
        )
