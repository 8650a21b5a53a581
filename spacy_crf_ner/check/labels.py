"""The rules of labels: those that are rare, that only one part has, or that look alike."""

import re
from typing import Dict, Iterator, List, Sequence

from .doc_view import Reading
from .finding import Finding, Place
from .rule import DEV, TRAIN, listed, number

RARE = 10  # entities; of a label that has fewer little is learned


class Labels:
    """Count labels in each part, and remember where each is first.

    parts: Names of the parts that there are.
    """

    def __init__(self, parts: Sequence[str]) -> None:
        self.counts: Dict[str, Dict[str, int]] = {part: {} for part in parts}
        self.first: Dict[str, Dict[str, Place]] = {part: {} for part in parts}

    def see(self, reading: Reading) -> None:
        """Count the labels of a doc."""
        counts, first = self.counts[reading.part], self.first[reading.part]
        for ent in reading.ents:
            counts[ent.label_] = counts.get(ent.label_, 0) + 1
            if ent.label_ not in first:
                first[ent.label_] = reading.place(ent)

    def findings(self, limit: int) -> Iterator[Finding]:
        """Yield what is wrong with the labels of the parts."""
        for part, counts in self.counts.items():
            if not counts:
                found = f"No doc in {part} has an entity."
                fix = "Check that this is the right file, and that its docs have doc.ents."
                yield Finding("error", "no-entities", found, {part: 0}, [], fix)
        if all(self.counts.values()):
            yield from self._rare(limit)
            yield from self._one_sided(limit)
        yield from self._similar(limit)

    def _rare(self, limit: int) -> Iterator[Finding]:
        rare = [label for label, n in self.counts[TRAIN].items() if n < RARE]
        if rare:
            yield self._finding(
                "warning",
                "rare-label",
                f"{number(len(rare), 'label has', 'labels have')} fewer than {RARE} entities in "
                "train.",
                {TRAIN: rare},
                "Annotate more of them, join them with another label, or leave them out.",
                limit,
            )

    def _one_sided(self, limit: int) -> Iterator[Finding]:
        if DEV not in self.counts:
            return
        unseen = [label for label in self.counts[DEV] if label not in self.counts[TRAIN]]
        absent = [label for label in self.counts[TRAIN] if label not in self.counts[DEV]]
        if unseen:
            yield self._finding(
                "error",
                "unseen-label",
                f"{number(len(unseen), 'label', 'labels')} of dev never in train.",
                {DEV: unseen},
                "Divide the corpus anew, or rename the label: what is not in train is never found.",
                limit,
            )
        if absent:
            yield self._finding(
                "note",
                "absent-label",
                f"{number(len(absent), 'label', 'labels')} of train never in dev.",
                {TRAIN: absent},
                "Divide the corpus anew, if you want to know how well they are found.",
                limit,
            )

    def _similar(self, limit: int) -> Iterator[Finding]:
        # Each label, and the first part that has it.
        parts = {e: part for part in reversed(self.counts) for e in self.counts[part]}
        spellings: Dict[str, List[str]] = {}
        for label in sorted(parts):
            spellings.setdefault(re.sub(r"[\s_]+", "", label).casefold(), []).append(label)
        alike = [label for group in spellings.values() if len(group) > 1 for label in group]
        if alike:
            yield self._finding(
                "warning",
                "similar-labels",
                f"{len(alike)} labels differ from another in case, whitespace or underscores only.",
                {part: [e for e in alike if parts[e] == part] for part in self.counts},
                "Rename them, if they mean the same.",
                limit,
            )

    def _finding(
        self,
        severity: str,
        kind: str,
        found: str,
        labels: Dict[str, List[str]],
        fix: str,
        limit: int,
    ) -> Finding:
        """Make a finding of labels by part, each with its count, at the first entity of each."""
        places = [
            self.first[part][label]._replace(note=listed({label: self.counts[part][label]}))
            for part, names in labels.items()
            for label in names
        ]
        counts = {part: len(names) for part, names in labels.items() if names}
        return Finding(severity, kind, found, counts, places[:limit], fix)
