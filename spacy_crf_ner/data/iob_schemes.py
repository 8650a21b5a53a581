"""Tag schemes: detection of IOB1, IOB2, BILUO, BIOES and BMES, and decoding to spans."""

import re
from itertools import pairwise
from typing import Iterable, List, Sequence, Set, Tuple

TokenSpan = Tuple[int, int, str]  # first token, last token + 1, label
InvalidTag = Tuple[int, str]  # its token, and the tags that a closed scheme allows there

TAG = re.compile(r"O|[BIMLUES]-\S+")
# Closed schemes mark where an entity ends, each by prefixes that no other scheme has.
CLOSED = {"BILUO": "LU", "BIOES": "ES", "BMES": "M"}


def detect_scheme(sentences: Iterable[Sequence[str]]) -> Tuple[str, bool]:
    """Detect the scheme of a file from all of its tags.

    sentences: Tags of each sentence, each a match of `TAG`.

    IOB1 and IOB2 are decoded alike: an I- that does not continue an entity begins one, as in
    conlleval, and a B- always does. In IOB1, a B- follows a tag of the same label; in IOB2, every
    entity begins with B-. "IOB1, IOB2" follows neither rule everywhere.

    Returns "IOB1", "IOB2", "BILUO", "BIOES", "BMES", two of these, or "none", and whether the
    scheme is closed: the last token of an entity has a prefix of its own (BILUO, BIOES, BMES).
    """
    prefixes: Set[str] = set()
    names: Set[str] = set()
    for tags in sentences:
        prefixes.update(tag[0] for tag in tags)
        for before, tag in pairwise(["O", *tags]):
            if tag[2:] not in ("", before[2:]):
                names.add("IOB1" if tag[0] == "I" else "IOB2")
    closed = [name for name, own in CLOSED.items() if prefixes & set(own)]
    if "BMES" in closed and not prefixes & set("ILU"):
        closed = ["BMES"]  # its E- and S- are shared with BIOES
    return ", ".join(closed or sorted(names)) or "none", bool(closed)


def decode_tags(tags: Sequence[str], closed: bool) -> Tuple[List[TokenSpan], List[InvalidTag]]:
    """Decode the entities of a sentence.

    tags: A match of `TAG` for each token. M- is read as I-, E- as L-, S- as U-.
    closed: Whether the scheme is closed, see `detect_scheme`.

    Returns the entities, and the tags that are invalid in a closed scheme, which are decoded as
    in IOB: I- and L- that continue nothing begin an entity, and an open entity ends.
    """
    spans: List[TokenSpan] = []
    invalid: List[InvalidTag] = []
    inside = ""  # label of the entity that the next token may continue, and must if closed
    for i, tag in enumerate([*tags, "O"]):
        prefix, label = tag[0], tag[2:]
        middle = prefix in "IMLE"
        continues = middle and label == inside
        if closed and not continues and (inside or middle):
            expected = f"I-, L- or E-{inside}" if inside else f"B-{label} in front of {tag}"
            invalid.append((i, expected))
        if continues:
            spans[-1] = (spans[-1][0], i + 1, label)
        elif label:
            spans.append((i, i + 1, label))
        inside = label if prefix in "BIM" else ""
    return spans, invalid
