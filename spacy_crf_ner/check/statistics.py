"""How large a part of a corpus is, and what is annotated in it."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Dict

from .doc_view import MISSING, Reading


@dataclass
class Statistics:
    """Counts of a part of a corpus.

    sentences: A doc without sentence starts is one.
    empty_sentences: Sentences without entities.
    missing: Tokens without annotation.
    labels: Entities by label.
    label_tokens: Tokens in entities, by label.
    lengths: Entities by their number of tokens.
    """

    docs: int = 0
    sentences: int = 0
    empty_sentences: int = 0
    tokens: int = 0
    missing: int = 0
    entities: int = 0
    labels: Counter[str] = field(default_factory=Counter)
    label_tokens: Counter[str] = field(default_factory=Counter)
    lengths: Counter[int] = field(default_factory=Counter)

    def add(self, reading: Reading) -> None:
        """Count a doc."""
        sentence_of = reading.starts.cumsum()
        sentences = int(sentence_of[-1]) if len(sentence_of) else 0
        occupied = {int(i) for ent in reading.ents for i in sentence_of[ent.start : ent.end]}
        self.docs += 1
        self.sentences += sentences
        self.empty_sentences += sentences - len(occupied)
        self.tokens += len(reading.doc)
        self.missing += int((reading.iob == MISSING).sum())
        self.entities += len(reading.ents)
        for ent in reading.ents:
            self.labels[ent.label_] += 1
            self.label_tokens[ent.label_] += len(ent)
            self.lengths[len(ent)] += 1

    @property
    def missing_share(self) -> float:
        """The share of tokens without annotation, 0 to 1."""
        return self.missing / self.tokens if self.tokens else 0.0

    def to_dict(self) -> Dict[str, Any]:
        """Write it as what JSON has; the most frequent labels first, the shortest entities."""
        counts: Dict[str, Any] = dict(vars(self))
        for name in ("labels", "label_tokens"):
            counts[name] = dict(counts[name].most_common())
        counts["lengths"] = {str(n): self.lengths[n] for n in sorted(self.lengths)}
        return {**counts, "missing_share": self.missing_share}
