"""A rule: it sees all docs of a corpus, one after the other, and then says what it found."""

from collections import Counter
from typing import Dict, Iterator, List, Protocol, Tuple

from .doc_view import Reading
from .finding import Finding, Place

TRAIN, DEV = "train", "dev"
ALL = "all"  # in counts: what is of the parts together, and of none alone


class Rule(Protocol):
    """What is asked of a corpus."""

    def see(self, reading: Reading) -> None:
        """Look at a doc."""

    def findings(self, limit: int) -> Iterator[Finding]:
        """Say what was found in all of them, with so many places at most."""


class Tally:
    """Count what a rule finds, and note where."""

    def __init__(self, severity: str, kind: str, words: Tuple[str, str], fix: str) -> None:
        """Make a tally of nothing.

        words: What is said of one, and of several: "doc is empty", "docs are empty".
        """
        self.severity, self.kind, self.words, self.fix = severity, kind, words, fix
        self.counts: Counter[str] = Counter()
        self.places: List[Place] = []

    def add(self, place: Place) -> None:
        """Count one more, at a place."""
        self.counts[place.part] += 1
        self.places.append(place)

    def findings(self, limit: int, more: str = "") -> Iterator[Finding]:
        """Yield what was counted, if anything was.

        more: What the sentence says after it.
        """
        if total := self.counts.total():
            found = f"{number(total, *self.words)}{more}."
            counts = dict(self.counts)
            yield Finding(self.severity, self.kind, found, counts, self.places[:limit], self.fix)


def number(n: int, one: str, several: str) -> str:
    """Say how many there are: 1 doc is, 2 docs are."""
    return f"{n:,} {one if n == 1 else several}"


def listed(counts: Dict[str, int]) -> str:
    """List counts by name: ORG 5, PER 2."""
    return ", ".join(f"{name} {n:,}" for name, n in counts.items())
