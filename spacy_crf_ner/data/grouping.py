"""Sentences joined to longer Docs."""

from itertools import groupby, islice
from typing import Iterable, Iterator, List

from spacy.tokens import Doc

from .iob import DOCUMENT
from .json_records import META


def group_sentences(docs: Iterable[Doc], n: int) -> Iterator[Doc]:
    """Join sentences to longer Docs, never across the boundary of two documents.

    docs: Sentences, as the converters yield them. They are changed.
    n: Sentences a Doc; the last Doc of a document may have fewer. 1 keeps sentences apart. 0 joins
        all of a document, where the corpus marks documents, and keeps sentences apart elsewhere.

    Yields Docs in which each of the sentences begins a sentence, with a space between two; where
    they have metadata, that of a joined Doc is a list, with the metadata of each.
    Raises ValueError for a negative n.
    """
    if n < 0:
        raise ValueError(f"group: expected a number of sentences, 0 or more, got {n}.")
    for document, sentences in groupby(docs, key=lambda doc: doc.user_data.get(DOCUMENT, 0)):
        size = n or (None if document else 1)
        while group := list(islice(sentences, size)):
            yield _join(group)


def _join(group: List[Doc]) -> Doc:
    for doc in group:
        doc.user_data.pop(DOCUMENT, None)
    if len(group) == 1 or not any(map(len, group)):  # spaCy makes no Doc of empty ones
        return group[0]
    metas = [doc.user_data.pop(META, None) for doc in group]
    joined = Doc.from_docs(group)  # which says so where other user data cannot be joined
    assert joined is not None
    joined.has_unknown_spaces = group[0].has_unknown_spaces
    if any(meta is not None for meta in metas):
        joined.user_data[META] = metas
    return joined
