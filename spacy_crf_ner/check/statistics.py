"""Size and annotation of one part of a corpus."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from spacy.tokens import Doc

# Values of Token.ent_iob.
IOB_MISSING = 0
IOB_OUTSIDE = 2


@dataclass
class Statistics:
    """Counts of one part of a corpus.

    longest_doc: Tokens of the longest doc.
    sentences: Number of sentences; a doc without sentence starts is one.
    empty_sentences: Sentences without entities.
    missing: Tokens without annotation.
    labels: Entities by label.
    label_tokens: Tokens in entities, by label.
    lengths: Entities by number of tokens.
    """

    docs: int = 0
    longest_doc: int = 0
    sentences: int = 0
    empty_sentences: int = 0
    tokens: int = 0
    missing: int = 0
    entities: int = 0
    labels: Counter[str] = field(default_factory=Counter)
    label_tokens: Counter[str] = field(default_factory=Counter)
    lengths: Counter[int] = field(default_factory=Counter)

    def add(self, doc: Doc) -> None:
        """Count a doc."""
        sentences, occupied = 0, set()
        for token in doc:
            sentences += token.i == 0 or bool(token.is_sent_start)
            self.missing += token.ent_iob == IOB_MISSING
            if token.ent_type:
                occupied.add(sentences)
        self.docs += 1
        self.longest_doc = max(self.longest_doc, len(doc))
        self.sentences += sentences
        self.empty_sentences += sentences - len(occupied)
        self.tokens += len(doc)
        for ent in doc.ents:
            self.entities += 1
            self.labels[ent.label_] += 1
            self.label_tokens[ent.label_] += len(ent)
            self.lengths[len(ent)] += 1

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON types; the most frequent labels first, the shortest entities first."""
        return {
            **vars(self),
            "labels": dict(self.labels.most_common()),
            "label_tokens": dict(self.label_tokens.most_common()),
            "lengths": {str(n): self.lengths[n] for n in sorted(self.lengths)},
            "missing_share": self.missing / self.tokens if self.tokens else 0.0,
        }
