"""Join sentences to longer Docs."""

from collections.abc import Iterable, Iterator
from itertools import groupby, islice

from spacy.tokens import Doc

from ..docbin import DOCUMENT, META, document_of
from ..input_error import InputError
from ..pipeline.annotated_labels import KEY, annotated_labels, mark_annotated_labels


def group_sentences(docs: Iterable[Doc], n_sents: int) -> Iterator[Doc]:
    """Join sentences to longer Docs, never across documents.

    Args:
        docs: They are changed.
        n_sents: Sentences per Doc; the last Doc of a document may have fewer. 1 joins none. 0 joins
            all sentences of a document, or none if the corpus does not mark documents, see
            `document_of`.

    Yields:
        Docs with sentence boundaries, and a space between sentences. If sentences have metadata,
        the joined Doc has a list of it as "sentences".
    """
    if n_sents < 0:
        raise InputError(f"n_sents: expected a number of sentences, 0 or more, got {n_sents}.")
    for document, sentences in groupby(docs, key=document_of):
        size = n_sents or (1 if document is None else None)
        while group := list(islice(sentences, size)):
            yield _join(group, document)


def _join(group: list[Doc], document: str | None) -> Doc:
    if len(group) == 1 or not any(map(len, group)):  # spaCy cannot join empty Docs
        return group[0]
    labels = {frozenset(annotated_labels(doc) or ()) for doc in group}
    marked = [KEY in doc.spans for doc in group]
    if len(labels) > 1 or len({*marked}) > 1:
        raise InputError(
            f"{group[0].text[:60]!r}: expected sentences with the same annotated labels to join, "
            f"got {' and '.join(str(sorted(each)) for each in labels)}. Use --n-sents 1."
        )
    for doc in group:
        doc.spans.pop(KEY, None)
    metas = [doc.user_data.pop(META, None) for doc in group]
    joined = Doc.from_docs(group)  # warns about other user data that cannot be joined
    assert joined is not None
    joined.has_unknown_spaces = group[0].has_unknown_spaces
    named = {} if document is None else {DOCUMENT: document}
    if any(meta not in (None, named) for meta in metas):
        joined.user_data[META] = {**named, "sentences": metas}
    elif named:
        joined.user_data[META] = named
    if any(marked):
        (annotated,) = labels
        mark_annotated_labels(joined, annotated)
    return joined
