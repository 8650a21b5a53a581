"""Split a corpus into train, dev and test, by whole documents where they are known."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby, pairwise
from pathlib import Path

from ..input_error import InputError
from .files import SPLITS

WAYS = ("documents", "sentences")
# Neighboring sentences are often from one document: where a corpus does not mark documents, blocks
# of them are kept together, as long as there are some blocks to draw from.
BLOCK, BLOCKS = 50, 20


@dataclass(frozen=True)
class Split:
    """How a corpus without parts is split.

    Attributes:
        shares: Fraction of the docs for train, dev and test.
        seed: The same one gives the same split.
        by: "documents": the sentences of a document are in one part; where a corpus does not mark
            documents, blocks of neighboring ones are. "sentences": each one by itself, so that
            documents may be in several parts, and scores too high. Docs with equal texts are
            always in one part.

    Raises:
        InputError: For an unknown `by`, and for shares that are negative or do not sum to 1.
    """

    shares: Sequence[float] = (0.8, 0.1, 0.1)
    seed: int = 0
    by: str = WAYS[0]

    def __post_init__(self) -> None:
        if self.by not in WAYS:
            raise InputError(f"split: expected one of {', '.join(WAYS)}, got {self.by!r}.")
        if len(self.shares) > len(SPLITS):
            got = f"got {len(self.shares)}"
            raise InputError(f"shares: expected at most 3 ({', '.join(SPLITS)}), {got}.")
        if min(self.shares, default=0) < 0 or not abs(sum(self.shares) - 1) < 1e-9:
            got = ",".join(map(str, self.shares))
            raise InputError(
                f"shares: expected fractions that sum to 1, such as 0.8,0.1,0.1, got {got}."
            )

    def plan(self, files: Mapping[str, list[Path]]) -> dict[str, dict[str, float]]:
        """Return the parts to write from each part that is read, with their shares."""
        wanted = {name: share for name, share in zip(SPLITS, self.shares) if share}
        if "corpus" in files:
            return {"corpus": wanted}
        plan = {name: {name: 1.0} for name in files}
        if "dev" not in files and {"train", "dev"} <= wanted.keys():
            total = wanted["train"] + wanted["dev"]
            plan["train"] = {name: wanted[name] / total for name in ("train", "dev")}
        return plan

    def assign(
        self,
        documents: Sequence[str | None],
        shares: Mapping[str, float],
        where: str = "corpus",
        texts: Sequence[object] = (),
    ) -> tuple[list[str], str]:
        """Return the part of each doc, by its document, if known, and how they were split.

        Docs with equal `texts` are in the part of the first of them, whatever document they are
        from. Without `texts`, all are different.
        """
        known: dict[object, int] = {}
        numbers = [known.setdefault(text, len(known)) for text in texts or range(len(documents))]
        if len(known) < len(shares):
            what = "docs with different texts" if len(known) < len(documents) else "docs"
            raise InputError(
                f"{where}: expected at least {len(shares)} {what} to split into "
                f"{', '.join(shares)}, got {len(known)}. Add some, set other shares, as "
                "--split 1.0, or name a file as the output, as all.spacy."
            )
        first: dict[int, str | None] = {}
        for number, document in zip(numbers, documents):
            first.setdefault(number, document)
        units, how = self._units([*first.values()], len(shares))
        sizes = [0] * (max(units) + 1)
        for number in numbers:
            sizes[units[number]] += 1
        names, parts = [*shares], split_units(sizes, [*shares.values()], self.seed)
        if repeated := len(documents) - len(known):
            how += f"; {repeated} docs that repeat a text in the part of the first one"
        return [names[parts[units[number]]] for number in numbers], how

    def _units(self, documents: Sequence[str | None], n_parts: int) -> tuple[list[int], str]:
        """Number the units that are not divided, for each doc; and say what they are."""
        if self.by == "sentences":
            return [*range(len(documents))], "doc by doc at random, whatever document they are from"
        named = {*documents} - {None}
        too_few = f"(of the {len(named)} marked, too few to split) " if named else ""
        if len(named) + documents.count(None) < n_parts:
            documents, named = [None] * len(documents), set()
        unmarked = documents.count(None)
        block = max(1, min(BLOCK, unmarked // BLOCKS))
        units: dict[object, int] = {}
        numbers: list[int] = []
        for run, (document, group) in enumerate(groupby(documents)):
            for i, _ in enumerate(group):
                unit = (run, i // block) if document is None else document
                numbers.append(units.setdefault(unit, len(units)))
        whole = f"by whole documents, {len(named)}"
        blocks = f"blocks of {block} neighboring docs"
        if not unmarked:
            return numbers, whole
        if named:
            return numbers, f"{whole}; {unmarked} docs without a document in {blocks}"
        return numbers, f"in {blocks}, as no documents {too_few}are marked"


DEFAULT = Split()


def split_units(sizes: Sequence[int], shares: Sequence[float], seed: int = 0) -> list[int]:
    """Return the number of a part for each unit, at random; the same seed gives the same split.

    Sizes are the docs of a unit, shares those of the parts. Each part has a unit, if there are
    enough, and as many docs as its share, up to the size of the largest unit.
    """
    draw = random.Random(seed).random  # Python guarantees this sequence in all versions
    order = sorted(range(len(sizes)), key=lambda _: draw())
    if max(sizes, default=0) > min(shares) * sum(sizes):
        return _largest_first(order, sizes, shares)
    return _in_order(order, sizes, shares)


def _largest_first(order: list[int], sizes: Sequence[int], shares: Sequence[float]) -> list[int]:
    """Put each unit, the largest one first, in the part that lacks most docs."""
    lacking = [share * sum(sizes) for share in shares]
    parts = [0] * len(sizes)
    empty = {*range(len(shares))}
    for done, unit in enumerate(sorted(order, key=lambda unit: -sizes[unit])):
        must_fill = len(sizes) - done <= len(empty)
        part = max(sorted(empty) if must_fill else range(len(shares)), key=lacking.__getitem__)
        empty.discard(part)
        lacking[part] -= sizes[unit]
        parts[unit] = part
    return parts


def _in_order(order: list[int], sizes: Sequence[int], shares: Sequence[float]) -> list[int]:
    """End part k at the unit of this order that is nearest to the sum of the first k shares."""
    ends = [*accumulate((sizes[unit] for unit in order), initial=0)]
    cuts = [0]
    for part, total in enumerate(accumulate(shares), 1):
        wanted, last = total * ends[-1], len(sizes) - (len(shares) - part)
        first = min(cuts[-1] + 1, len(sizes))
        choices = range(first, max(first, last) + 1)
        cuts.append(min(choices, key=lambda cut: abs(ends[cut] - wanted)))
    cuts[-1] = len(sizes)
    parts = [0] * len(sizes)
    for part, (start, end) in enumerate(pairwise(cuts)):
        for unit in order[start:end]:
            parts[unit] = part
    return parts
