"""Problems that a single Doc does not show."""

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from spacy.attrs import IDX, ORTH
from spacy.tokens import Span

from ..docbin import document_of
from ..ml.zero_width import is_blank
from ..pipeline.annotated_labels import annotated_labels
from ..pipeline.preset import IOB_MISSING, IOB_OUTSIDE
from .findings import CorpusDoc, Place, Problem, join_counts

FACTOR = np.uint64(6364136223846793005)  # of a hash of several words: Knuth's MMIX
# The least share of different words in a run: ruled lines and leaders are in many texts.
DIFFERENT = 1 / 3


class SeenText(NamedTuple):
    """The first doc with a text, and the first one that is completely annotated, if any."""

    first: int
    annotated: int
    entities: int | None  # the hash of those of the latter; None if there is none


Seen = dict[tuple[str, int], SeenText]  # by part and hash of the text
Form = tuple[int, ...]  # the words of a text as spaCy's hashes, case included
# Part, number of the doc, and for its T tokens the hash of the word (T,), or 0 if the token is not
# outside of entities, and the first character (T,).
OutsideWords = tuple[str, int, NDArray[np.uint64], NDArray[np.uint32]]


def duplicate_problems(at: CorpusDoc, seen: Seen) -> Iterator[Problem]:
    """Compare a doc with the docs before it, by text with whitespace normalized; add it to them.

    They are 64-bit hashes, so the memory does not depend on the length of the texts.
    """
    words = at.doc.text.split()
    if not words:
        return
    text, entities = hash(" ".join(words)), _hash_entities(at)
    if (at.part, text) in seen:
        yield "duplicate", at.doc_place(f"as {at.part} doc {seen[at.part, text].first}")
    if at.part == "dev" and ("train", text) in seen:
        yield "leak", at.doc_place(f"as train doc {seen['train', text].first}")
    for part in dict.fromkeys(("train", at.part)):
        earlier = seen.get((part, text))
        if earlier and None not in (earlier.entities, entities) and earlier.entities != entities:
            yield "annotated-differently", at.doc_place(f"not as {part} doc {earlier.annotated}")
            break
    known = seen.setdefault((at.part, text), SeenText(at.number, at.number, entities))
    if known.entities is None:
        seen[at.part, text] = SeenText(known.first, at.number, entities)


@dataclass
class TrainTexts:
    """What dev is compared with: the documents and the runs of tokens of train, as hashes."""

    length: int  # of a run, in tokens
    documents: set[int] = field(default_factory=set)
    documents_of_dev: set[int] = field(default_factory=set)
    divided: set[int] = field(default_factory=set)  # documents of both
    runs: list[NDArray[np.uint64]] = field(default_factory=list)  # of each doc

    def problems(self, at: CorpusDoc, duplicates: Collection[str]) -> Iterator[Problem]:
        """Add a doc of train, or compare one of dev.

        Of a "leak", the whole doc is in train. Where a "duplicate" is does not divide its document:
        `convert` keeps equal texts together.
        """
        document = None if "duplicate" in duplicates else document_of(at.doc)
        runs = self._runs(at)
        if at.part == "train":
            self.documents |= set() if document is None else {hash(document)}
            self.runs.append(runs)
            return
        if document is not None:
            self.documents_of_dev.add(hash(document))
            # Numbers that count the documents of each part say nothing about the other one.
            count = re.fullmatch(r"[0-9]{1,9}", document)
            is_count = count and int(count[0]) <= len(self.documents_of_dev)
            if not is_count and hash(document) in self.documents:
                self.divided.add(hash(document))
                yield "divided-document", at.doc_place(document)
        found = () if "leak" in duplicates else self._in_train(runs)
        for first, number in found:
            run = at.doc[first : first + self.length]
            if len({token.orth for token in run}) >= self.length * DIFFERENT:
                yield "shared-text", at.place(run, f"as in train doc {number}")
                break

    def _in_train(self, runs: NDArray[np.uint64]) -> list[tuple[int, int]]:
        """Find the runs of a doc that train has: number of the run, and of the first train doc."""
        hashes, numbers = self._of_train
        at = np.searchsorted(hashes, runs).clip(max=len(hashes) - 1)
        shared = np.flatnonzero(hashes[at] == runs) if len(hashes) else at[:0]
        return [*zip(shared.tolist(), numbers[at[shared]].tolist())]

    @cached_property
    def _of_train(self) -> tuple[NDArray[np.uint64], NDArray[np.int32]]:
        """All runs of train, sorted, and the doc of each; the first doc of equal ones is first."""
        hashes = np.concatenate([np.zeros(0, dtype=np.uint64), *self.runs])
        lengths = [len(runs) for runs in self.runs]
        order = np.argsort(hashes, kind="stable")
        return hashes[order], np.arange(len(lengths), dtype=np.int32).repeat(lengths)[order]

    def _runs(self, at: CorpusDoc) -> NDArray[np.uint64]:
        """Hash the runs of tokens, (T - length + 1,)."""
        words: NDArray[Any] = at.doc.to_array(ORTH)
        n = max(len(words) - self.length + 1, 0)
        found: NDArray[np.uint64] = np.zeros(n, dtype=np.uint64)
        for k in range(self.length):
            np.multiply(found, FACTOR, out=found)
            found += words[k : k + n]
        return found


def _hash_entities(at: CorpusDoc) -> int | None:
    """Hash the entities, in characters without whitespace; None if not all is annotated."""
    missing = np.flatnonzero(at.iob == IOB_MISSING).tolist()
    if annotated_labels(at.doc) is not None or not all(is_blank(at.doc[i].text) for i in missing):
        return None
    ends = list(accumulate((len("".join(token.text.split())) for token in at.doc), initial=0))
    return hash(tuple(sorted((ends[ent.start], ends[ent.end], ent.label_) for ent in at.ents)))


def label_problems(
    counts: Mapping[str, Mapping[str, int]], first: Mapping[tuple[str, str], Place], rare: int
) -> Iterator[Problem]:
    """Find labels that are rare, that only one part has, or that look alike.

    `counts` has the number of entities by part and label, `first` the first one.
    """
    train = counts["train"]
    dev = counts.get("dev", train)
    found = [("rare-label", "train", label) for label, n in train.items() if n < rare]
    if train and dev:
        found += [("unseen-label", "dev", label) for label in dev if label not in train]
        found += [("absent-label", "train", label) for label in train if label not in dev]
    alike: dict[str, list[str]] = {}  # without case, whitespace and underscores
    for label in sorted({*train, *dev}):
        alike.setdefault(re.sub(r"[\s_]+", "", label).casefold(), []).append(label)
    similar = [label for group in alike.values() if len(group) > 1 for label in group]
    found += [("similar-labels", "train", label) for label in similar if label in train]
    found += [("similar-labels", "dev", label) for label in similar if label not in train]
    for kind, part, label in found:
        yield kind, first[part, label]._replace(note=join_counts({label: counts[part][label]}))


@dataclass
class SurfaceForms:
    """The texts of all entities, counted by label, and the words outside of entities."""

    labels: dict[Form, Counter[str]] = field(default_factory=dict)
    first: dict[tuple[Form, str], Place] = field(default_factory=dict)  # entity
    # By doc; searched when the frequent texts are known.
    outside: list[OutsideWords] = field(default_factory=list)

    def add(self, at: CorpusDoc) -> None:
        """Add the words of a doc and of its entities."""
        orth, offsets = at.doc.to_array([ORTH, IDX]).T
        by_span: dict[tuple[int, int], dict[str, Span]] = {}
        for ent in filter(len, at.ents):
            by_span.setdefault((ent.start, ent.end), {})[ent.label_] = ent
        for (start, end), ents in by_span.items():
            form = tuple(orth[start:end].tolist())
            label = " + ".join(sorted(ents))  # several, if entities overlap
            self.labels.setdefault(form, Counter())[label] += 1
            self.first.setdefault((form, label), at.place(next(iter(ents.values()))))
        # Where not all labels are annotated, a word may be an entity of another one.
        is_outside = (at.iob == IOB_OUTSIDE) & (annotated_labels(at.doc) is None)
        words = np.where(is_outside, orth, np.uint64(0))
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
    often = [form for form, labels in forms.labels.items() if labels.total() >= frequent]
    places = _find_outside(forms.outside, often)
    rank = {
        form: min(len(found), forms.labels[form].total())
        for form, found in places.items()
        if len(found) >= frequent
    }
    for form in sorted(rank, key=rank.__getitem__, reverse=True):
        part, number, offset = places[form][0]
        labels = forms.labels[form]
        text = forms.first[form, labels.most_common(1)[0][0]].text
        note = join_counts({**labels, "outside": len(places[form])})
        yield "sometimes-outside", Place(part, number, offset, text, note)


def _find_outside(
    docs: list[OutsideWords], forms: list[Form]
) -> dict[Form, list[tuple[str, int, int]]]:
    """Find texts outside of entities: the part, doc and first character of each occurrence."""
    by_first: dict[int, list[Form]] = {}
    for form in forms:
        by_first.setdefault(form[0], []).append(form)
    firsts = np.array(list(by_first), dtype=np.uint64)
    found: dict[Form, list[tuple[str, int, int]]] = {}
    for part, number, words, offsets in docs:
        for i in np.flatnonzero(np.isin(words, firsts)).tolist():
            for form in by_first[int(words[i])]:
                if tuple(words[i : i + len(form)].tolist()) == form:
                    found.setdefault(form, []).append((part, number, int(offsets[i])))
    return found
