"""Annotated Docs in the binary files of spaCy: those that it trains on."""

from pathlib import Path
from typing import Iterator, Optional

from spacy.language import Language
from spacy.tokens import Doc, DocBin

from .repair_log import CorpusError, Journal, error

ZLIB = b"x"  # the first byte of what zlib has compressed; the next is no letter


def looks_like_spacy(head: bytes) -> bool:
    """Tell whether a file begins, with these bytes, two or more, as one of spaCy's."""
    return head.startswith(ZLIB) and not head[:2].isascii()


def read_spacy(path: Path, nlp: Language, journal: Optional[Journal] = None) -> Iterator[Doc]:
    """Read the Docs of a .spacy file, with tokens, annotation and user data as they are.

    path: File, as `spacy convert` writes it, or `DocBin.to_disk`. All of it is in memory, packed;
        the Docs are made one at a time.
    nlp: Pipeline whose vocabulary the Docs share.
    journal: It counts the Docs; there is nothing to be repaired.

    Yields the Docs. Raises CorpusError for a file that is truncated, or of another format.
    """
    journal = journal or Journal()
    content = path.read_bytes()
    try:
        docs = DocBin(store_user_data=True).from_bytes(content).get_docs(nlp.vocab)
    except Exception as problem:
        raise _unreadable(str(path), problem) from problem
    number = 0
    while True:
        number += 1
        # Whatever zlib, msgpack, numpy and spaCy raise for such bytes: the file is not theirs.
        try:
            doc = next(docs, None)
            entities = _entities(doc) if doc is not None else 0
        except Exception as problem:
            raise _unreadable(f"{path}, doc {number}", problem) from problem
        if doc is None:
            return
        journal.read(entities=entities)
        yield doc


def _entities(doc: Doc) -> int:
    """Count the entities. Raises ValueError or KeyError for words and labels without a string."""
    return len(doc.ents) if doc.text else 0


def _unreadable(where: str, problem: Exception) -> CorpusError:
    got = f"something else ({type(problem).__name__}: {problem})"
    fix = "Write it again, with spacy-crf-ner convert or DocBin.to_disk"
    return error(where, "a file of spaCy that is whole", got, fix)
