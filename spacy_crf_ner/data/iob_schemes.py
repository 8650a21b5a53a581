"""Tag schemes: what the tags of a file say, and by which of the schemes they say it."""

import re
from typing import Iterable, List, NamedTuple, Sequence, Set, Tuple

Span = Tuple[int, int, str]  # first token, last token + 1, label

TAG = re.compile(r"O|[BIMLUES]-\S+")
# The closed schemes mark where an entity ends; each has prefixes that no other has.
CLOSED = {"BILUO": "LU", "BIOES": "ES", "BMES": "M"}


class Scheme(NamedTuple):
    """How the tags of a file are to be read.

    name: For people: "IOB1", "IOB2", "BILUO", "BIOES", "BMES", two of them, or "none".
    closed: Whether an entity must end by a tag of its own, as in BILUO, BIOES, and BMES.
    """

    name: str
    closed: bool


class Illegal(NamedTuple):
    """A tag that a closed scheme does not allow: of which token, and what it allows there."""

    token: int
    expected: str


def scheme_of(sentences: Iterable[Sequence[str]]) -> Scheme:
    """Tell the scheme of a file by all of its tags.

    sentences: Tags of each sentence, each a match of `TAG`.

    IOB1 and IOB2 need not be told apart to be read: an I- that follows no tag of its label begins
    an entity, as in conlleval, and a B- always does. The name is what the file keeps to: in IOB1 a
    B- follows a tag of its label, and in IOB2 every entity begins with B-. "IOB1, IOB2" keeps to
    neither.
    """
    prefixes: Set[str] = set()
    names: Set[str] = set()
    for tags in sentences:
        before = ""
        for tag in tags:
            prefix, label = tag[0], tag[2:]
            prefixes.add(prefix)
            if tag != "O" and label != before:
                names.add("IOB1" if prefix == "I" else "IOB2")
            before = label
    closed = [name for name, own in CLOSED.items() if prefixes & set(own)]
    if "BMES" in closed and not prefixes & set("ILU"):
        closed = ["BMES"]  # its E- and S- are those of BIOES
    return Scheme(", ".join(closed or sorted(names)) or "none", bool(closed))


def decode(tags: Sequence[str], closed: bool) -> Tuple[List[Span], List[Illegal]]:
    """Read the entities off the tags of a sentence.

    tags: Of each token, a match of `TAG`. M- is I-, E- is L-, S- is U-.
    closed: As in `Scheme`.

    Returns the entities, and what is not legal in a closed scheme, which is read as it is in the
    other two: I- and L- that continue nothing begin an entity, and what is open ends.
    """
    spans: List[Span] = []
    illegal: List[Illegal] = []
    inside = ""  # label of the entity that the next token may continue, and must if closed
    for i, tag in enumerate([*tags, "O"]):
        prefix, label = tag[0], tag[2:]
        middle = prefix in "IMLE"
        continues = middle and label == inside
        if closed and not continues and (inside or middle):
            expected = f"I-, L- or E-{inside}" if inside else f"B-{label} in front of {tag}"
            illegal.append(Illegal(i, expected))
        if continues:
            spans[-1] = (spans[-1][0], i + 1, label)
        elif tag != "O":
            spans.append((i, i + 1, label))
        inside = label if prefix in "BIM" else ""
    return spans, illegal
