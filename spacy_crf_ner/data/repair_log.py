"""Mistakes in a corpus: raised as errors, or repaired and counted."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from ..input_error import CorpusError, InputError

MAX_MESSAGES = 20
MAX_FILES = 5  # named ones
MAX_SHOWN = 1000  # characters of the found text; a line may have millions
ALIGNMENTS = ("strict", "expand", "contract", "missing")


def error(
    where: str, expected: str, got: str, fix: str = "Correct it, or remove it"
) -> CorpusError:
    """Make the error for a place, which is a file, a line or a record."""
    got = got if len(got) <= MAX_SHOWN else f"{got[:MAX_SHOWN]} ..."
    return CorpusError(f"{where}: expected {expected}, got {got}. {fix}.")


class ConversionLog:
    """Decide what happens to mistakes in a corpus, and count them.

    repair: Fix what can be fixed and leave out the rest; otherwise the first mistake is raised.
    alignment: What happens to an entity with an edge inside a token: "strict" (an error; with
        `repair`, it is left out), "expand" to all tokens that it overlaps, "contract" to the tokens
        that it covers, or "missing": its tokens are not annotated, and that is no error.
    spans_key: Entities may overlap and are all in `doc.spans[spans_key]`; doc.ents is not
        annotated. None: they are in doc.ents, and an overlap is a mistake.

    counts: Number of events of each kind: "repaired.whitespace", "rejected.overlap",
        "aligned.expand", "skipped.comment".
    totals: Numbers of "records" and "entities" read, and of "rejected.records" and
        "rejected.entities". The readers yield the difference.
    parts: The totals of each part of the corpus, by name.
    tag_schemes: The tag scheme of each file that has tags.
    merged: Numbers of answers, and of docs that these changed, see `merging.merge_answers`.
    messages: The first `MAX_MESSAGES` mistakes, as error messages.
    notes: Decisions of `convert`, as sentences for the user.

    Raises InputError for an unknown alignment, and for "missing" with a spans_key.
    """

    def __init__(
        self, repair: bool = False, alignment: str = "strict", spans_key: str | None = None
    ) -> None:
        if alignment not in ALIGNMENTS:
            expected = ", ".join(ALIGNMENTS)
            raise InputError(f"alignment: expected one of {expected}, got {alignment!r}.")
        if alignment == "missing" and spans_key is not None:
            raise InputError(
                "alignment: expected strict, expand or contract with a spans key, got 'missing'. "
                "Only doc.ents can have tokens without annotation."
            )
        self.repair, self.alignment, self.spans_key = repair, alignment, spans_key
        self.counts: Counter[str] = Counter()
        self.totals: Counter[str] = Counter()
        self.parts: dict[str, Counter[str]] = {}
        self.tag_schemes: dict[str, str] = {}
        self.merged: Counter[str] = Counter()
        self.messages: list[str] = []
        self.notes: list[str] = []
        self._counted = [self.totals]

    def start_part(self, name: str) -> None:
        """From now on, count for this part of the corpus too."""
        self._counted = [self.totals, self.parts.setdefault(name, Counter())]

    def read(self, records: int = 1, entities: int = 0) -> None:
        """Count records and entities of the corpus, before any is rejected."""
        for counter in self._counted:
            counter.update({"records": records, "entities": entities})

    def repaired(self, kind: str, problem: CorpusError) -> None:
        """Count a mistake that the caller fixes. Raises it unless `repair` is set."""
        self._count(f"repaired.{kind}", problem)

    def rejected(
        self, kind: str, problem: CorpusError, records: int = 0, entities: int = 0
    ) -> None:
        """Count a mistake that the caller leaves out. Raises it unless `repair` is set.

        records, entities: Numbers left out, of those that `read` has counted; for a record,
            include its entities.
        """
        self._count(f"rejected.{kind}", problem, records, entities)

    def aligned(self, problem: CorpusError, entities: int = 0) -> None:
        """Count an entity that was aligned according to `alignment`; this is never an error.

        entities: 1 if the entity is lost because its tokens are not annotated, else 0.
        """
        self._count(f"aligned.{self.alignment}", problem, entities=entities)

    def skipped(self, kind: str, number: int = 1) -> None:
        """Count input that is not annotation; this is never an error."""
        if number:
            self.counts[f"skipped.{kind}"] += number

    def skipped_files(self, paths: Sequence[Path]) -> None:
        """Count files of a folder that no part of the corpus is in, and name some of them."""
        self.skipped("file", len(paths))
        if paths:
            names = ", ".join(path.name for path in paths[:MAX_FILES])
            self.notes.append(f"Skipped: {names}{', ...' * (len(paths) > MAX_FILES)}.")

    def _count(self, kind: str, problem: CorpusError, records: int = 0, entities: int = 0) -> None:
        if not self.repair and not kind.startswith("aligned."):
            raise problem
        self.counts[kind] += 1
        for counter in self._counted:
            counter.update({"rejected.records": records, "rejected.entities": entities})
        if len(self.messages) < MAX_MESSAGES:
            self.messages.append(str(problem))
