"""A finding: what is wrong with a corpus, how badly, and where."""

from typing import Dict, List, NamedTuple

SEVERITIES = ("error", "warning", "note")


class Place(NamedTuple):
    """Where something was found.

    part: "train" or "dev".
    doc: Number of the doc in its part, from 0.
    offset: Of the first character in the text of the doc.
    text: What stands there; the beginning of it, where it is long.
    note: What there is to say of this place; empty for nothing.
    """

    part: str
    doc: int
    offset: int
    text: str
    note: str = ""


class Finding(NamedTuple):
    """Something that is, or may be, wrong with a corpus.

    severity: "error": training fails, or learns or measures what it should not; "warning": look
        at it; "note": good to know.
    kind: A short name, always the same for what is found by the same rule.
    found: One sentence, with the number.
    counts: The number, by part; of texts, which both parts may have, under "all".
    places: The first of them, or of several kinds the most telling.
    fix: One sentence: what to do.
    """

    severity: str
    kind: str
    found: str
    counts: Dict[str, int]
    places: List[Place]
    fix: str
