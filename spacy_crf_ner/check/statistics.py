"""Size and annotation of one part of a corpus."""

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray
from spacy.tokens import Doc, Span

from ..pipeline.interval_scheduling import nesting_levels
from ..pipeline.preset import IOB_MISSING

MAX_LEVELS = 3  # the shares of entities in 1 to 3 levels are reported


@dataclass
class Statistics:
    """Counts of one part of a corpus.

    Attributes:
        doc_lengths: Docs by number of tokens.
        sentences: Number of sentences; a doc without sentence starts is one.
        empty_sentences: Sentences without entities.
        missing: Tokens without annotation.
        labels: Entities by label.
        label_tokens: Tokens in entities, by label.
        lengths: Entities by number of tokens.
        overlapping: Entities that have a token of another entity.
        overlapping_same_label: Entities that have a token of another entity of their label.
        levels: Entities by label and level, from 0: those of a level do not overlap each other.
    """

    docs: int = 0
    doc_lengths: Counter[int] = field(default_factory=Counter)
    sentences: int = 0
    empty_sentences: int = 0
    tokens: int = 0
    missing: int = 0
    entities: int = 0
    labels: Counter[str] = field(default_factory=Counter)
    label_tokens: Counter[str] = field(default_factory=Counter)
    lengths: Counter[int] = field(default_factory=Counter)
    overlapping: int = 0
    overlapping_same_label: int = 0
    levels: dict[str, Counter[int]] = field(default_factory=dict)

    def add(self, doc: Doc, ents: Sequence[Span], iob: NDArray[np.uint64]) -> None:
        """Count a doc; see `CorpusDoc` for its entities and for iob."""
        sentence = [*accumulate(token.i == 0 or bool(token.is_sent_start) for token in doc)]
        self.docs += 1
        self.doc_lengths[len(doc)] += 1
        self.sentences += max(sentence, default=0)
        self.empty_sentences += len({*sentence}) - len(
            {sentence[i] for ent in ents for i in range(ent.start, ent.end)}
        )
        self.tokens += len(doc)
        self.missing += int((iob == IOB_MISSING).sum())
        by_label: dict[str, list[tuple[int, int]]] = {}
        for ent in ents:
            self.entities += 1
            self.lengths[len(ent)] += 1
            by_label.setdefault(ent.label_, []).append((ent.start, ent.end))
        for label, spans in by_label.items():
            self.labels[label] += len(spans)
            self.label_tokens[label] += len({i for span in spans for i in range(*span)})
            self.levels.setdefault(label, Counter()).update(nesting_levels(spans))
            self.overlapping_same_label += _count_overlapping(spans)
        self.overlapping += _count_overlapping([(ent.start, ent.end) for ent in ents])

    def level_share(self, n: int) -> float:
        """Return the share of the entities that are in the first n levels of their label.

        A model with n levels learns no others.
        """
        inside = sum(counts[k] for counts in self.levels.values() for k in range(n))
        return inside / self.entities if self.entities else 0.0

    @property
    def longest_doc(self) -> int:
        """Tokens of the longest doc."""
        return max(self.doc_lengths, default=0)

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON types; the most frequent labels first, the shortest entities first."""
        return {
            **{name: value for name, value in vars(self).items() if name != "doc_lengths"},
            "longest_doc": self.longest_doc,
            "labels": dict(self.labels.most_common()),
            "label_tokens": dict(self.label_tokens.most_common()),
            "lengths": {str(n): self.lengths[n] for n in sorted(self.lengths)},
            "levels": {k: [n[i] for i in range(len(n))] for k, n in sorted(self.levels.items())},
            "level_shares": [self.level_share(n) for n in range(1, MAX_LEVELS + 1)],
            "missing_share": self.missing / self.tokens if self.tokens else 0.0,
        }


def _count_overlapping(spans: list[tuple[int, int]]) -> int:
    """Count the spans that have a token of another one."""
    number, end = 0, 0  # the end of all spans before
    spans = sorted(spans)
    for (start, stop), (after, _) in zip_longest(spans, spans[1:], fillvalue=(sys.maxsize, 0)):
        number += start < end or after < stop
        end = max(end, stop)
    return number
