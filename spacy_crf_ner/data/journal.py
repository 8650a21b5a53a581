"""What of a corpus cannot be kept as it is: an error, or, where that is asked for, counted."""

from collections import Counter
from typing import List

NOTED = 20


class CorpusError(ValueError):
    """A corpus that cannot be read; the message says where, what was expected, and what to do."""


def error(where: str, expected: str, got: str, fix: str) -> CorpusError:
    """Make the error of something at a place: a file and a line, or a record."""
    return CorpusError(f"{where}: expected {expected}, got {got}. {fix}.")


class Journal:
    """Decide what becomes of what is wrong, and count it.

    repair: Mend what can be mended and leave out what cannot; else the first of either is raised.
    alignment: What becomes of an entity whose edges in characters are not edges of tokens:
        "strict" (an error, or with `repair` left out), "expand" to all tokens that it touches,
        "contract" to those that it covers, or "missing": its tokens have no annotation.

    counts: How often each was done: "repaired.whitespace", "rejected.overlap".
    notes: The first of them, as messages with their place.
    """

    def __init__(self, repair: bool = False, alignment: str = "strict") -> None:
        self.repair, self.alignment = repair, alignment
        self.counts: Counter[str] = Counter()
        self.notes: List[str] = []

    def repaired(self, kind: str, problem: CorpusError) -> None:
        """Count what the caller mends. Raises the problem where nothing is to be mended."""
        self._count(f"repaired.{kind}", problem)

    def rejected(self, kind: str, problem: CorpusError) -> None:
        """Count what the caller leaves out. Raises the problem where nothing may be left out."""
        self._count(f"rejected.{kind}", problem)

    def _count(self, kind: str, problem: CorpusError) -> None:
        if not self.repair:
            raise problem
        self.counts[kind] += 1
        if len(self.notes) < NOTED:
            self.notes.append(str(problem))
