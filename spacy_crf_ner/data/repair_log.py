"""What of a corpus cannot be kept as it is: an error, or, where that is asked for, counted."""

from collections import Counter
from typing import Dict, List

from ..input_error import InputError

NOTED = 20
SHOWN = 1000  # characters; a line may have millions
ALIGNMENTS = ("strict", "expand", "contract", "missing")


class CorpusError(InputError):
    """A corpus that cannot be read; the message says where, what was expected, and what to do."""


def error(where: str, expected: str, got: str, fix: str) -> CorpusError:
    """Make the error of something at a place: a file and a line, or a record."""
    got = got if len(got) <= SHOWN else f"{got[:SHOWN]} ..."
    return CorpusError(f"{where}: expected {expected}, got {got}. {fix}.")


class Journal:
    """Decide what becomes of what is wrong, and count it.

    repair: Mend what can be mended and leave out what cannot; else the first of either is raised.
    alignment: What becomes of an entity whose edges in characters are not edges of tokens:
        "strict" (an error, or with `repair` left out), "expand" to all tokens that it touches,
        "contract" to those that it covers, or "missing": its tokens have no annotation.

    counts: How often each was done: "repaired.whitespace", "rejected.overlap", "left_out.comment".
    tally: What was found and what was lost: "records", "entities", "rejected.records",
        "rejected.entities". What readers yield is the difference, and all of it.
    parts: The tally of each part of the corpus, by its name.
    found: What a reader found out about a file, such as the scheme of its tags, by the file.
    notes: The first of the problems, as messages with their place.

    Raises ValueError for an alignment that there is not.
    """

    def __init__(self, repair: bool = False, alignment: str = "strict") -> None:
        if alignment not in ALIGNMENTS:
            expected = ", ".join(ALIGNMENTS)
            raise ValueError(f"alignment: expected one of {expected}, got {alignment!r}.")
        self.repair, self.alignment = repair, alignment
        self.counts: Counter[str] = Counter()
        self.tally: Counter[str] = Counter()
        self.parts: Dict[str, Counter[str]] = {}
        self._part: Counter[str] = Counter()
        self.found: Dict[str, str] = {}
        self.notes: List[str] = []

    def begin(self, part: str) -> None:
        """Say that what follows is of this part of the corpus."""
        self._part = self.parts.setdefault(part, Counter())

    def read(self, records: int = 1, entities: int = 0) -> None:
        """Count what is found in the corpus, whatever becomes of it."""
        self._add({"records": records, "entities": entities})

    def repaired(self, kind: str, problem: CorpusError) -> None:
        """Count what the caller mends. Raises the problem where nothing is to be mended."""
        self._require_repair(problem)
        self._count(f"repaired.{kind}", problem)

    def rejected(
        self, kind: str, problem: CorpusError, records: int = 0, entities: int = 0
    ) -> None:
        """Count what the caller leaves out. Raises the problem where nothing may be left out.

        records, entities: How many are lost by it, of those that `read` counts. A record takes its
            entities with it.
        """
        self._require_repair(problem)
        self._count(f"rejected.{kind}", problem)
        self._add({"rejected.records": records, "rejected.entities": entities})

    def aligned(self, problem: CorpusError, entities: int = 0) -> None:
        """Count an entity whose edges become what `alignment` says: never an error.

        entities: How many are lost by it: 1 where its tokens have no annotation.
        """
        self._count(f"aligned.{self.alignment}", problem)
        self._add({"rejected.entities": entities})

    def left_out(self, kind: str) -> None:
        """Count what is no annotation, or is marked as none, and never an error."""
        self.counts[f"left_out.{kind}"] += 1

    def _add(self, found: Dict[str, int]) -> None:
        self.tally.update(found)
        self._part.update(found)

    def _require_repair(self, problem: CorpusError) -> None:
        if not self.repair:
            raise problem

    def _count(self, kind: str, problem: CorpusError) -> None:
        self.counts[kind] += 1
        if len(self.notes) < NOTED:
            self.notes.append(str(problem))
