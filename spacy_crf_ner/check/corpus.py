"""Docs from the files that `spacy train` reads; those without words, which it skips, as well."""

from pathlib import Path
from typing import Iterator, List, Tuple

from spacy.tokens import Doc, DocBin
from spacy.vocab import Vocab

ENDING = ".spacy"


def open_corpus(path: Path, vocab: Vocab) -> Tuple[int, Iterator[Doc]]:
    """Open a corpus.

    path: A .spacy file, or a folder with such, read in the order of their names.
    vocab: Of the docs.

    Returns how many docs there are, and these.
    Raises ValueError for a file that is of another format, and a folder without any; OSError for
    one that is not there.
    """
    files = sorted(path.rglob(f"*{ENDING}")) if path.is_dir() else [path]
    if not files:
        raise ValueError(
            f"{path}: expected a file {ENDING} in the folder, got none. Convert the corpus with "
            "spacy-crf-ner convert."
        )
    bins: List[DocBin] = [_open(file) for file in files]
    return sum(map(len, bins)), (doc for docs in bins for doc in docs.get_docs(vocab))


def _open(file: Path) -> DocBin:
    try:
        return DocBin().from_disk(file)
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{file}: expected spaCy's binary format, got another, or a part of a file. Convert "
            "the corpus with spacy-crf-ner convert."
        ) from error
