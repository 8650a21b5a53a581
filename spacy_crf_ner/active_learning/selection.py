"""The best candidates for annotation, of any number, in memory for as many as are chosen."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..tags import SpanOffsets

BUFFER = 1000  # units that are not chosen, but kept until the next time that all are sorted


@dataclass(slots=True)
class Unit:
    """A text, or a question about a span of it, that can be annotated.

    Attributes:
        id: A hash of the text and the question, the same in every run.
        tokens: The texts of the tokens, and whether a space follows.
        entities: The predicted entities, in order: start, end and label in characters, and
            probability; gold ones have none.
        score: How much annotating it is expected to teach; comparable for one strategy.
        surface: The text of the most uncertain span, without case, numbers as 0; "" for none.
        source: "file", "line", "id" and "offset": where the text begins, in characters.
        question: The span to ask about; None for all entities of the text.
        limits: What gold annotates of the text: the keys "missing" and "annotated_labels" of
            `data.jsonl`.
    """

    id: str
    text: str
    tokens: list[tuple[str, bool]]
    entities: Sequence[tuple[SpanOffsets, float | None]]
    score: float
    surface: str
    source: dict[str, Any] = field(default_factory=dict)
    question: SpanOffsets | None = None
    limits: dict[str, Any] = field(default_factory=dict)

    @property
    def rank(self) -> tuple[float, str, str]:
        """Sort key: the highest score first. Equal texts differ in their source."""
        return -self.score, self.id, str(self.source)


class Selection:
    """The n units with the highest scores, and a random sample, `aside`, of the others.

    The result is the same as if all units were sorted: it does not depend on the order in which
    they are added, or on the division of a corpus into parts whose selections are added. At most
    `max_per_surface` units (0 for no limit) have the same surface, so that similar ones are not all
    chosen; this is a matroid, for which dropping the worst unit that breaks a limit is optimal.
    Units with the same id are expected to have the same surface; `duplicates` counts those that
    were not added because an equal one is known.
    """

    def __init__(self, n: int, aside: int = 0, max_per_surface: int = 0, seed: int = 0) -> None:
        self._n, self._aside, self._max_per_surface, self._seed = n, aside, max_per_surface, seed
        self._units: dict[str, Unit] = {}  # by id; more than are chosen, but not many more
        self.duplicates = 0

    @property
    def ranked(self) -> list[Unit]:
        """The units with the highest scores, the best first."""
        return self._choose()[0]

    @property
    def sample(self) -> list[Unit]:
        """The random sample, in random order; no unit is also in `ranked`."""
        return self._choose()[1]

    def add(self, units: Iterable[Unit]) -> None:
        """Add units."""
        for unit in units:
            known = self._units.get(unit.id)
            self.duplicates += known is not None
            if known is None or unit.rank < known.rank:
                self._units[unit.id] = unit
            if len(self._units) > BUFFER + 2 * (self._n + self._aside):
                ranked, sample = self._choose()
                self._units = {each.id: each for each in (*ranked, *sample)}

    def balance(self, share: float) -> None:
        """Limit the sample to a share of all, after the last `add`, if there are too few units."""
        self.limit_sample(round(share * sum(map(len, self._choose()))))

    def limit_sample(self, size: int) -> None:
        """Limit the sample to its first units; the others are ranked as other units are."""
        self._aside = min(self._aside, size)

    def _choose(self) -> tuple[list[Unit], list[Unit]]:
        drawn = sorted(self._units.values(), key=lambda unit: random_key(self._seed, unit.id))
        surfaces = Counter[str]()
        ranked = []
        for unit in sorted(drawn[self._aside :], key=lambda unit: unit.rank):
            surfaces[unit.surface] += bool(unit.surface and self._max_per_surface)
            if surfaces[unit.surface] <= self._max_per_surface:
                ranked.append(unit)
        return ranked[: self._n], drawn[: self._aside]


def random_key(seed: int, identity: str) -> str:
    """Return a random number, as text, that depends only on a seed and a unit."""
    return hashlib.sha256(f"{seed} {identity}".encode()).hexdigest()


def within_budget(units: Iterable[Unit], budget: int) -> list[Unit]:
    """Return the units, in order, that fit into a number of tokens together."""
    chosen = []
    for unit in units:
        if len(unit.tokens) <= budget:
            chosen.append(unit)
            budget -= len(unit.tokens)
    return chosen


def until_enough(units: Iterable[Unit], enough: int, most: int) -> list[Unit]:
    """Return the first units, until they have enough tokens together, but not too many.

    The last unit may exceed `enough`: without this one, or with shorter ones in its place, long
    texts would be rarer than among all units (Wald's equation). `most` is never exceeded.
    """
    chosen: list[Unit] = []
    tokens = 0
    for unit in units:
        if tokens >= enough or tokens + len(unit.tokens) > most:
            break
        chosen.append(unit)
        tokens += len(unit.tokens)
    return chosen
