"""Spans that are known to be incorrect, compared with the entities and their labels."""

from typing import Container, Dict, Iterator, List, Tuple

from .findings import CorpusDoc, Place, Problem

NO_LABEL = ("", "O")  # labels of incorrect spans that name no entity label: any, and not outside

IncorrectSpans = Dict[Tuple[str, str], List[Place]]  # by part and label


def incorrect_span_problems(
    at: CorpusDoc, key: str, incorrect: IncorrectSpans
) -> Iterator[Problem]:
    """Find entities that are also among the incorrect spans of a doc.

    key: Key of the incorrect spans in `doc.spans`.
    incorrect: Incorrect spans of the docs before; those of this doc are added.
    """
    spans = list(at.doc.spans.get(key, []))
    keys = {(span.start, span.end, span.label_) for span in spans}
    for ent in at.doc.ents:
        if keys & {(ent.start, ent.end, label) for label in ("", ent.label_)}:
            yield "right-and-wrong", at.place(ent, ent.label_)
    for span in spans:
        incorrect.setdefault((at.part, span.label_), []).append(at.place(span, span.label_))


def unknown_label_problems(incorrect: IncorrectSpans, labels: Container[str]) -> Iterator[Problem]:
    """Find the incorrect spans of train with a label that none of its entities has."""
    for (part, label), places in incorrect.items():
        if part == "train" and label not in NO_LABEL and label not in labels:
            yield from (("unknown-incorrect", place) for place in places)
