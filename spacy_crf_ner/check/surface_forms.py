"""The rules of surfaces, the words of an entity: annotated one way here, and another way there."""

from collections import Counter
from typing import Dict, Iterator, List, NamedTuple, Set, Tuple

import numpy as np
from numpy.typing import NDArray

from .doc_view import OUTSIDE, Reading
from .finding import Finding, Place
from .rule import ALL, Tally, listed

OFTEN = 5  # a surface that is in entities and outside of them at least so often, each
Surface = Tuple[int, ...]


class Words(NamedTuple):
    """The words of a doc, T of them.

    orth: (T,) spaCy's hashes of them.
    outside: (T,) bool, whether they are annotated as outside of entities.
    offsets: (T,) their first characters.
    """

    part: str
    doc: int
    orth: NDArray[np.uint64]
    outside: NDArray[np.bool_]
    offsets: NDArray[np.uint64]


class Surfaces:
    """Compare the entities, and what is outside of them, by their words, case included."""

    def __init__(self) -> None:
        self.labels: Dict[Surface, Counter[str]] = {}
        self.first: Dict[Tuple[Surface, str], Place] = {}
        self.words: List[Words] = []

    def see(self, reading: Reading) -> None:
        """Note the words of a doc and of its entities."""
        for ent in reading.ents:
            surface = tuple(reading.orth[ent.start : ent.end].tolist())
            self.labels.setdefault(surface, Counter())[ent.label_] += 1
            if (surface, ent.label_) not in self.first:
                self.first[surface, ent.label_] = reading.place(ent)
        # What is outside of entities is searched when the frequent surfaces are known.
        outside = reading.iob == OUTSIDE
        if outside.any():
            orth, offsets = reading.orth.copy(), reading.offsets.copy()
            self.words.append(Words(reading.part, reading.number, orth, outside, offsets))

    def findings(self, limit: int) -> Iterator[Finding]:
        """Yield surfaces of several labels, and frequent ones that are outside as well."""
        yield from self._conflicts(limit)
        yield from self._outside(limit)

    def _conflicts(self, limit: int) -> Iterator[Finding]:
        tally = Tally(
            "warning",
            "conflicting-labels",
            (
                "text has entities of different labels",
                "texts have entities of different labels, each",
            ),
            "See if the context tells them apart; correct those that are mistakes.",
        )
        minority = {
            surface: labels.total() - max(labels.values())
            for surface, labels in self.labels.items()
            if len(labels) > 1
        }
        for surface in sorted(minority, key=minority.__getitem__, reverse=True):
            labels = dict(self.labels[surface].most_common())
            rarest = list(labels)[-1]
            tally.add(self.first[surface, rarest]._replace(note=listed(labels)))
        yield from _together(tally.findings(limit))

    def _outside(self, limit: int) -> Iterator[Finding]:
        tally = Tally(
            "note",
            "sometimes-outside",
            (
                f"text is an entity {OFTEN} times or more, and outside as often or more",
                f"texts are entities {OFTEN} times or more, and outside {OFTEN} times or more",
            ),
            "See if the context tells them apart; annotate those that were overlooked.",
        )
        frequent = {s for s, labels in self.labels.items() if labels.total() >= OFTEN}
        found = {s: at for s, at in self._search(frequent).items() if len(at) >= OFTEN}
        rank = {s: min(len(at), self.labels[s].total()) for s, at in found.items()}
        for surface in sorted(rank, key=rank.__getitem__, reverse=True):
            words, i = found[surface][0]
            (label, _), *_ = self.labels[surface].most_common()
            text = self.first[surface, label].text
            counts = {**self.labels[surface], "outside": len(found[surface])}
            offset = int(words.offsets[i])
            tally.add(Place(words.part, words.doc, offset, text, listed(counts)))
        yield from _together(tally.findings(limit))

    def _search(self, surfaces: Set[Surface]) -> Dict[Surface, List[Tuple[Words, int]]]:
        """Find where surfaces are outside of entities, as docs and first tokens."""
        by_first: Dict[int, List[Surface]] = {}
        for surface in surfaces:
            by_first.setdefault(surface[0], []).append(surface)
        firsts = np.array(list(by_first), dtype=np.uint64)
        found: Dict[Surface, List[Tuple[Words, int]]] = {}
        for words in self.words:
            for i in np.flatnonzero(words.outside & np.isin(words.orth, firsts)).tolist():
                for surface in by_first[int(words.orth[i])]:
                    here = slice(i, i + len(surface))
                    if words.outside[here].all() and (*words.orth[here].tolist(),) == surface:
                        found.setdefault(surface, []).append((words, i))
        return found


def _together(findings: Iterator[Finding]) -> Iterator[Finding]:
    """A text is of both parts, wherever the place of it that is shown."""
    for finding in findings:
        yield finding._replace(counts={ALL: sum(finding.counts.values())})
