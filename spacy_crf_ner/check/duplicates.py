"""Docs that occur twice: within a part, or in both train and dev."""

from itertools import accumulate
from typing import Dict, Iterator, Optional, Tuple

from spacy.tokens import Doc

from .findings import CorpusDoc, Problem

# By part and hash of the text: the number of the first such doc, and the hash of its entities.
Seen = Dict[Tuple[str, int], Tuple[int, Optional[int]]]


def duplicate_problems(at: CorpusDoc, seen: Seen) -> Iterator[Problem]:
    """Compare a doc with the docs before it, by text with whitespace normalized.

    seen: The docs before it; this doc is added. It holds hashes of 64 bits, so that its memory does
        not depend on the length of the texts.
    """
    words = at.doc.text.split()
    if not words:
        return
    text, entities = hash(" ".join(words)), _hash_entities(at.doc)
    if (at.part, text) in seen:
        yield "duplicate", at.doc_place(f"as {at.part} doc {seen[at.part, text][0]}")
    if at.part == "dev" and ("train", text) in seen:
        yield "leak", at.doc_place(f"as train doc {seen['train', text][0]}")
    for part in dict.fromkeys(("train", at.part)):
        number, earlier = seen.get((part, text), (0, None))
        if earlier is not None and entities is not None and earlier != entities:
            yield "annotated-differently", at.doc_place(f"not as {part} doc {number}")
            break
    seen.setdefault((at.part, text), (at.number, entities))


def _hash_entities(doc: Doc) -> Optional[int]:
    """Hash the entities, located in characters without whitespace; None without annotation."""
    if not doc.has_annotation("ENT_IOB"):
        return None
    ends = list(accumulate((len("".join(token.text.split())) for token in doc), initial=0))
    return hash(tuple((ends[ent.start], ends[ent.end], ent.label_) for ent in doc.ents))
