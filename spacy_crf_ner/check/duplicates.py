"""The rules of docs that are there twice: inside a part, and in train and dev."""

from typing import Dict, Iterator, Optional, Tuple

from .doc_view import Reading
from .finding import Finding
from .rule import DEV, TRAIN, Tally

LEAK = 0.1  # the share of the dev docs from which on its scores say nothing
Annotation = Tuple[Tuple[int, int, str], ...]


class Duplicates:
    """Compare docs by their texts, in which all whitespace is a single space."""

    def __init__(self) -> None:
        # Of each text the first doc that has it, by part, and how it is annotated.
        self.known: Dict[str, Dict[str, Tuple[int, Optional[Annotation]]]] = {TRAIN: {}, DEV: {}}
        self.dev_docs = 0
        self.repeated = Tally(
            "warning",
            "duplicate",
            ("doc repeats an earlier one of its part", "docs repeat an earlier one of their part"),
            "Keep one of each, unless their number is meant to give them weight.",
        )
        self.leaked = Tally(
            "warning",
            "leak",
            ("dev doc is in train as well", "dev docs are in train as well"),
            "Take them out of one of the two: of what was learned by heart, scores are too good.",
        )
        self.contradicted = Tally(
            "warning",
            "annotated-differently",
            (
                "doc has the text of an earlier one, and other entities",
                "docs have the text of an earlier one, and other entities",
            ),
            "Decide which is right: one teaches what the other denies.",
        )

    def see(self, reading: Reading) -> None:
        """Compare a doc with those before it."""
        self.dev_docs += reading.part == DEV
        text = " ".join(reading.doc.text.split())
        if not text:
            return
        annotation = _annotation(reading)
        part, known = reading.part, self.known
        if text in known[part]:
            self.repeated.add(reading.beginning(f"as {part} doc {known[part][text][0]}"))
        if part == DEV and text in known[TRAIN]:
            self.leaked.add(reading.beginning(f"as train doc {known[TRAIN][text][0]}"))
        for other in dict.fromkeys((TRAIN, part)):
            earlier, theirs = known[other].get(text, (0, None))
            if theirs is not None and annotation is not None and theirs != annotation:
                self.contradicted.add(reading.beginning(f"not as {other} doc {earlier}"))
                break
        known[part].setdefault(text, (reading.number, annotation))

    def findings(self, limit: int) -> Iterator[Finding]:
        """Yield what is there twice."""
        share = self.leaked.counts.total() / max(self.dev_docs, 1)
        if share >= LEAK:
            self.leaked.severity = "error"
        yield from self.leaked.findings(limit, f", {share:.1%} of dev")
        yield from self.contradicted.findings(limit)
        yield from self.repeated.findings(limit)


def _annotation(reading: Reading) -> Optional[Annotation]:
    """The entities, counted in characters that are not whitespace; None without annotation."""
    if not reading.annotated:
        return None
    text = reading.doc.text

    def solid(end: int) -> int:
        return len("".join(text[:end].split()))

    return tuple((solid(ent.start_char), solid(ent.end_char), ent.label_) for ent in reading.ents)
