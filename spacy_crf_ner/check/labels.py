"""Labels that are rare, that only one part has, or that look alike."""

import re
from typing import Dict, Iterator, List, Mapping, Set, Tuple

from .findings import Place, Problem, join_counts


def label_problems(
    counts: Mapping[str, Mapping[str, int]], first: Mapping[Tuple[str, str], Place], rare: int
) -> Iterator[Problem]:
    """Compare the labels of the parts.

    counts: Number of entities by part and label.
    first: First entity by part and label.
    rare: A label with fewer entities in train is rare.
    """
    train = counts["train"]
    dev = counts.get("dev", train)
    found: List[Tuple[str, str, str]] = []  # kind, part, label
    if train and dev:
        found += [("rare-label", "train", label) for label, n in train.items() if n < rare]
        found += [("unseen-label", "dev", label) for label in dev if label not in train]
        found += [("absent-label", "train", label) for label in train if label not in dev]
    similar = _similar_labels({*train, *dev})
    found += [("similar-labels", "train", label) for label in similar if label in train]
    found += [("similar-labels", "dev", label) for label in similar if label not in train]
    for kind, part, label in found:
        note = join_counts({label: counts[part][label]})
        yield kind, first[part, label]._replace(note=note)


def _similar_labels(labels: Set[str]) -> List[str]:
    """List labels that equal another one but for case, whitespace and underscores."""
    groups: Dict[str, List[str]] = {}
    for label in sorted(labels):
        groups.setdefault(re.sub(r"[\s_]+", "", label).casefold(), []).append(label)
    return [label for group in groups.values() if len(group) > 1 for label in group]
