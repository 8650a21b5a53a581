"""Mistakes in a corpus: raised as errors, or repaired and counted."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..input_error import CorpusError, InputError
from .token_rules import Boundary, Cut

MAX_MESSAGES = 20  # of each kind
MAX_LISTED = 5  # of each kind, in an error
MAX_LOSS = 0.05
UNITS = "records", "entities"  # that are counted
MISTAKES = ("repaired.", "rejected.")
MAX_FILES = 5  # named ones
MAX_SHOWN = 1000  # characters of the found text; a line may have millions
ALIGNMENTS = ("strict", "expand", "contract", "split", "missing")
DISCONTINUOUS = ("strict", "hull", "parts", "skip")


def error(
    where: str, expected: str, got: str, fix: str = "Correct it, or remove it", hint: str = ""
) -> CorpusError:
    """Make the error for a place, which is a file, a line or a record; see `did_you_mean`."""
    got = got if len(got) <= MAX_SHOWN else f"{got[:MAX_SHOWN]} ..."
    return CorpusError(f"{where}: expected {expected}, got {got}.{hint} {fix}.")


@dataclass(eq=False)
class ConversionLog:
    """Decide what happens to mistakes in a corpus, and count them.

    Args:
        repair: Fix what can be fixed and leave out the rest; otherwise the first mistake is raised,
            or all of them together if it `collects`.
        alignment: What happens to an entity with an edge inside a token: "strict" (an error; with
            `repair`, it is left out), "expand" to all tokens that it overlaps, "contract" to the
            tokens that it covers, "split" of the tokens, or "missing": its tokens are not
            annotated, and that is no error.
        discontinuous: What happens to an entity of several parts: "strict" (an error; with
            `repair`, it is left out), "hull": an entity from its first to its last character,
            "parts": an entity for each, or "skip": its tokens are not annotated.
        spans_key: Entities may overlap and are all in `doc.spans[spans_key]`; doc.ents is not
            annotated. None: they are in doc.ents, and an overlap is a mistake.
        max_loss: Largest share of the records, and of the entities, of a part that `repair` may
            leave out; see `check_kept`.

    Attributes:
        counts: Number of events of each kind: "repaired.label", "rejected.overlap",
            "aligned.expand", "trimmed.whitespace", "skipped.comment".
        collects: Count mistakes also if they are not repaired; see `check_no_mistakes`.
        totals: Numbers of "records" and "entities" read, and of "rejected.records" and
            "rejected.entities". The readers yield the difference. "aligned.entities" are those of
            the latter that `aligned` counted.
        parts: The totals of each part of the corpus, by name.
        tag_schemes: The tag scheme of each file that has tags.
        cuts: The number of places inside tokens where entities begin or end, and the first one, by
            the kinds of the characters beside them.
        merged: Numbers of answers, and of docs that these changed, see `merging.merge_answers`.
        examples: The first `MAX_MESSAGES` mistakes of each kind, as error messages; of an entity
            that was changed, what it became.
        notes: Decisions of `convert`, as sentences for the user.

    Raises:
        InputError: For an unknown alignment, for "missing" with a spans_key, and for a max_loss
            that is no share.
    """

    repair: bool = False
    alignment: str = ALIGNMENTS[0]
    spans_key: str | None = None
    max_loss: float = MAX_LOSS
    discontinuous: str = DISCONTINUOUS[0]
    collects: bool = field(default=False, init=False)
    counts: Counter[str] = field(default_factory=Counter, init=False)
    totals: Counter[str] = field(default_factory=Counter, init=False)
    parts: dict[str, Counter[str]] = field(default_factory=dict, init=False)
    tag_schemes: dict[str, str] = field(default_factory=dict, init=False)
    cuts: dict[Boundary, tuple[int, str]] = field(default_factory=dict, init=False)
    merged: Counter[str] = field(default_factory=Counter, init=False)
    examples: dict[str, list[str]] = field(default_factory=dict, init=False)
    notes: list[str] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        for name, value, choices in (
            ("alignment", self.alignment, ALIGNMENTS),
            ("discontinuous", self.discontinuous, DISCONTINUOUS),
        ):
            if value not in choices:
                raise InputError(f"{name}: expected one of {', '.join(choices)}, got {value!r}.")
        if self.alignment == "missing" and self.spans_key is not None:
            raise InputError(
                "alignment: expected strict, expand or contract with a spans key, got 'missing'. "
                "Only doc.ents can have tokens without annotation."
            )
        if not 0 <= self.max_loss <= 1:
            raise InputError(f"max_loss: expected a share from 0 to 1, got {self.max_loss}.")
        self._counted = [self.totals]

    @property
    def messages(self) -> list[str]:
        """All examples, by kind."""
        return [message for messages in self.examples.values() for message in messages]

    def check_no_mistakes(self, where: str) -> None:
        """Raise all collected mistakes together, as one CorpusError, unless `repair` is set."""
        found = {kind: n for kind, n in self.counts.items() if kind.startswith(MISTAKES)}
        if self.repair or not found:
            return
        number = sum(found.values())
        if number == 1:
            raise CorpusError(self.examples[next(iter(found))][0])
        left_out = " and ".join(
            f"{self.totals[f'rejected.{unit}']} of {self.totals[unit]} {unit}" for unit in UNITS
        )
        kinds = ", ".join(f"{kind.partition('.')[2]} {n}" for kind, n in found.items())
        raise CorpusError(
            f"{where}: expected no mistakes, got {number} ({kinds}). Correct them, or use "
            f"--repair, which leaves out {left_out}.{self.listed(found)}"
        )

    def check_kept(self, where: str) -> None:
        """Raise CorpusError if more than `max_loss` of a part was left out by `repair`.

        Entities that are not annotated because `alignment` is "missing" are no loss: it was chosen.
        """
        for part, totals in self.parts.items() if self.repair else ():
            for unit in UNITS:
                lost, total = totals[f"rejected.{unit}"] - totals[f"aligned.{unit}"], totals[unit]
                if lost > self.max_loss * total:
                    raise CorpusError(
                        f"{where}, {part}: expected at most {self.max_loss:.1%} of the {unit} to "
                        f"be left out, got {lost} of {total} ({lost / total:.1%}). Correct the "
                        "mistakes, or allow it, as --max-loss 1.0 does."
                        f"{self.listed(self.counts)}"
                    )

    def propose_rules(self) -> None:
        """Note the rules that make the tokenizer of a pipeline divide tokens as `split` did."""
        if self.alignment != "split" or not self.cuts:
            return
        infixes = [each.infix for each in self.cuts if each.infix]
        self.note(f"Tokens end where entities do: {self._where_cut()}.")
        if infixes:
            rule = "@callbacks = 'spacy-crf-ner.divide_tokens.v1'"
            self.note(
                "New texts are divided alike if the config has, in [initialize.before_init], "
                f"{rule} and infixes = {json.dumps(infixes)}."
            )
        if any(each.infix is None for each in self.cuts):
            self.note("No rule divides tokens between letters: correct these entities.")

    def _where_cut(self) -> str:
        found = sorted(self.cuts.items(), key=lambda item: -item[1][0])
        return ", ".join(f"{n} between {each} ({one})" for each, (n, one) in found[:MAX_LISTED])

    def listed(self, counts: Mapping[str, int]) -> str:
        """Return lines with the first mistakes of these kinds, for the end of an error."""
        lines = [""]
        for kind, messages in self.examples.items():
            lines += [f"{describe_kind(kind)} {counts[kind]}"] if kind in counts else []
            lines += [f"  {message}" for message in messages[:MAX_LISTED] if kind in counts]
            lines += ["  ..."] if kind in counts and counts[kind] > MAX_LISTED else []
            if kind == "rejected.alignment" and kind in counts and self.cuts:
                lines.append(f"  Their edges inside tokens: {self._where_cut()}")
        return "\n".join(lines)

    def start_part(self, name: str) -> None:
        """From now on, count for this part of the corpus too."""
        self._counted = [self.totals, self.parts.setdefault(name, Counter())]

    def read(self, records: int = 1, entities: int = 0) -> None:
        """Count records and entities of the corpus, before any is rejected."""
        for counter in self._counted:
            counter.update({"records": records, "entities": entities})

    def repaired(self, kind: str, problem: CorpusError, became: str = "") -> None:
        """Count a mistake that the caller fixes, after which an entity `became` another one."""
        self._add(f"repaired.{kind}", problem, became if self.repair else "")

    def rejected(
        self, kind: str, problem: CorpusError, records: int = 0, entities: int = 0
    ) -> None:
        """Count a mistake that the caller leaves out, with its numbers of records and entities."""
        self._add(f"rejected.{kind}", problem, records=records, entities=entities)

    def aligned(self, kind: str, became: str, entities: int = 0) -> None:
        """Count an entity that became what a choice says: no error. `entities`: 1 if it is gone."""
        self._add(kind, None, became, entities=entities)
        for counter in self._counted:
            counter["aligned.entities"] += entities

    def cut(self, places: Iterable[Cut]) -> None:
        """Count places inside tokens where entities begin or end."""
        for place in places:
            number, first = self.cuts.get(place.boundary, (0, place.example))
            self.cuts[place.boundary] = number + 1, first

    def skipped(self, kind: str, number: int = 1) -> None:
        """Count input that is not annotation; this is never an error."""
        if number:
            self.counts[f"skipped.{kind}"] += number

    def note(self, sentence: str) -> None:
        """Note a decision for the user, once."""
        if sentence not in self.notes:
            self.notes.append(sentence)

    def skipped_files(self, paths: Sequence[Path]) -> None:
        """Count files of a folder that no part of the corpus is in, and name some of them."""
        self.skipped("file", len(paths))
        if paths:
            names = ", ".join(path.name for path in paths[:MAX_FILES])
            self.notes.append(f"Skipped: {names}{', ...' * (len(paths) > MAX_FILES)}.")

    def _add(
        self,
        kind: str,
        problem: CorpusError | None,
        became: str = "",
        records: int = 0,
        entities: int = 0,
    ) -> None:
        if problem and not (self.repair or self.collects):
            raise problem
        self.counts[kind] += 1
        for counter in self._counted:
            counter.update({"rejected.records": records, "rejected.entities": entities})
        messages = self.examples.setdefault(kind, [])
        if len(messages) < MAX_MESSAGES:
            messages.append(became or str(problem))


def describe_kind(kind: str) -> str:
    """Write the kind of an event for the user: "Rejected: overlap"."""
    event, _, problem = kind.partition(".")
    return f"{event.capitalize()}: {problem}"
