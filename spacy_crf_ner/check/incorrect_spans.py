"""The rules of spans that are known to be wrong."""

from typing import Dict, Iterator, List, Set

from spacy.tokens import Span

from .doc_view import Reading
from .finding import Finding, Place
from .rule import TRAIN, Tally

ANY = ("", "O")  # labels of wrong spans that are no entity labels: of none, and not outside


class WrongSpans:
    """Compare the spans known to be wrong with the entities and their labels.

    key: Of these spans in `doc.spans`.
    """

    def __init__(self, key: str) -> None:
        self.key = key
        self.spans = 0
        self.labels: Set[str] = set()
        self.by_label: Dict[str, List[Place]] = {}
        where = f"incorrect spans of doc.spans[{key!r}]"
        self.both = Tally(
            "error",
            "right-and-wrong",
            (f"entity is among the {where} too", f"entities are among the {where} too"),
            "Take it out of one of the two: training refuses it.",
        )
        self.unknown = Tally(
            "error",
            "unknown-incorrect",
            (
                f"span among the {where} has a label that no entity in train has",
                f"spans among the {where} have labels that no entity in train has",
            ),
            "Rename the label, or leave it empty for any: training refuses it.",
        )

    def see(self, reading: Reading) -> None:
        """Look at the wrong spans of a doc."""
        wrong: List[Span] = list(reading.doc.spans.get(self.key, []))
        keys = {(span.start, span.end, span.label_) for span in wrong}
        self.spans += len(wrong)
        for ent in reading.ents:
            if keys & {(ent.start, ent.end, label) for label in ("", ent.label_)}:
                self.both.add(reading.place(ent, ent.label_))
        # The labels of the component are those of train, and it learns from no other part.
        if reading.part == TRAIN:
            self.labels.update(ent.label_ for ent in reading.ents)
            for span in wrong:
                self.by_label.setdefault(span.label_, []).append(reading.place(span, span.label_))

    def findings(self, limit: int) -> Iterator[Finding]:
        """Yield what does not go together."""
        for label, places in self.by_label.items():
            if label not in ANY and label not in self.labels:
                for place in places:
                    self.unknown.add(place)
        yield from self.both.findings(limit)
        yield from self.unknown.findings(limit)
        if not self.spans:
            found = f"No doc has spans in doc.spans[{self.key!r}], which incorrect_spans_key names."
            fix = "Correct the key, or set it to null."
            yield Finding("warning", "no-incorrect", found, {}, [], fix)
