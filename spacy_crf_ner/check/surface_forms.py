"""Texts that are annotated in one way here and in another way there."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Dict, Iterator, List, Set, Tuple

import numpy as np
from numpy.typing import NDArray
from spacy.attrs import ENT_IOB, IDX, ORTH

from .findings import CorpusDoc, Place, Problem, join_counts
from .statistics import IOB_OUTSIDE

Form = Tuple[int, ...]  # the words of a text as spaCy's hashes, case included


# Part, number of the doc, and of its T tokens (T,) spaCy's hash of the word, or 0, the hash of no
# word, where it is not outside of entities; and (T,) the first character.
OutsideWords = Tuple[str, int, NDArray[np.uint64], NDArray[np.uint32]]


@dataclass
class SurfaceForms:
    """The texts of all entities, and the words outside of entities.

    labels: Number of entities by text and label.
    first: First entity by text and label.
    outside: By doc. These are searched once the frequent texts are known.
    """

    labels: Dict[Form, Counter[str]] = field(default_factory=dict)
    first: Dict[Tuple[Form, str], Place] = field(default_factory=dict)
    outside: List[OutsideWords] = field(default_factory=list)

    def add(self, at: CorpusDoc) -> None:
        """Add the words of a doc and of its entities."""
        orth, offsets, iob = at.doc.to_array([ORTH, IDX, ENT_IOB]).T
        for ent in at.doc.ents:
            form = tuple(orth[ent.start : ent.end].tolist())
            self.labels.setdefault(form, Counter())[ent.label_] += 1
            self.first.setdefault((form, ent.label_), at.place(ent))
        words = np.where(iob == IOB_OUTSIDE, orth, np.uint64(0))
        self.outside.append((at.part, at.number, words, offsets.astype(np.uint32)))


def conflicting_labels(forms: SurfaceForms) -> Iterator[Problem]:
    """Find texts with entities of several labels; most entities of minor labels first."""
    minor = {form: labels.total() - max(labels.values()) for form, labels in forms.labels.items()}
    for form in sorted(filter(minor.__getitem__, minor), key=minor.__getitem__, reverse=True):
        labels = dict(forms.labels[form].most_common())
        rarest = list(labels)[-1]
        yield "conflicting-labels", forms.first[form, rarest]._replace(note=join_counts(labels))


def sometimes_outside(forms: SurfaceForms, frequent: int) -> Iterator[Problem]:
    """Find texts that are frequent both as entities and outside; the most frequent first."""
    often = {form for form, labels in forms.labels.items() if labels.total() >= frequent}
    outside = _find_outside(forms.outside, often)
    rank = {
        form: min(len(found), forms.labels[form].total())
        for form, found in outside.items()
        if len(found) >= frequent
    }
    for form in sorted(rank, key=rank.__getitem__, reverse=True):
        part, number, offset = outside[form][0]
        labels = forms.labels[form]
        text = forms.first[form, labels.most_common(1)[0][0]].text
        note = join_counts({**labels, "outside": len(outside[form])})
        yield "sometimes-outside", Place(part, number, offset, text, note)


def _find_outside(
    docs: List[OutsideWords], forms: Set[Form]
) -> Dict[Form, List[Tuple[str, int, int]]]:
    """Find texts outside of entities: for each its parts, docs and first characters."""
    by_first: Dict[int, List[Form]] = {}
    for form in forms:
        by_first.setdefault(form[0], []).append(form)
    firsts = np.array(list(by_first), dtype=np.uint64)
    found: Dict[Form, List[Tuple[str, int, int]]] = {}
    for part, number, words, offsets in docs:
        for i in np.flatnonzero(np.isin(words, firsts)).tolist():
            for form in by_first[int(words[i])]:
                if tuple(words[i : i + len(form)].tolist()) == form:
                    found.setdefault(form, []).append((part, number, int(offsets[i])))
    return found
