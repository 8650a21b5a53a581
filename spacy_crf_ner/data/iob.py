"""Tags of tokens in IOB1, IOB2, BILUO, BIOES or BMES, in several spellings."""

import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache, lru_cache
from itertools import pairwise

from ..tags import SpanOffsets

InvalidTag = tuple[int, str]  # its token, and the tags that a closed scheme allows

TAG = re.compile(r"O|[BIMLUES]-\S(?:.*\S)?")
SECOND_TAG = re.compile(r".*[\s|,;/](?:O|[BIMLUES]-\S+)(?:[\s|,;/].*)?")  # B-PER|B-ORG, B-PER O
PREFIXES = "B, I, L, U, E, S, M"
# Closed schemes mark the end of an entity; each has prefixes that no other scheme has.
CLOSED = {"BILUO": "LU", "BIOES": "ES", "BMES": "M"}
CLOSED_SCHEMES = "BILUO (BIOES, BMES) has B- I- L- (B- I- E-, B- M- E-), or U- (S-) for one token"
OUTSIDE = ("O", "0", "o")  # the first one is always outside
MISSING = ("", "nan", "NaN")  # no value, also as pandas writes it
# Other spellings of tags: each pattern has a group for the prefix, and one for the label.
SPELLINGS = {
    "B_PER": re.compile(r"(?P<prefix>[BIMLUES])[_.:](?P<label>\S+)"),
    "b-per": re.compile(r"(?P<prefix>[bimlues])[-_.:](?P<label>\S+)"),
    "PER-B": re.compile(r"(?P<label>\S+)[-_.:](?P<prefix>[BIMLUESbimlues])"),
    "PER": re.compile(r"(?P<prefix>)(?P<label>(?![A-Z]-|[A-Za-z][_.:]$)[^\W\d_][^|=]*)"),
}
NO_PREFIX = "PER"
WRITTEN = " written as "  # between a scheme and a spelling


def spelled(scheme: str) -> Callable[[str], str]:
    """Return the function that writes tags as B-PER, by the scheme of the file."""
    pattern = SPELLINGS.get(scheme.rpartition(WRITTEN)[2])
    outside = OUTSIDE if pattern else OUTSIDE[:2]

    @cache
    def standard(tag: str) -> str:
        if tag in outside:
            return "O"
        found = pattern and pattern.fullmatch(tag)
        return f"{found['prefix'].upper() or 'I'}-{found['label']}" if found else tag

    return standard


def find_spelling(tags: Iterable[str]) -> str:
    """Return the spelling of the tags of a file: a key of `SPELLINGS`, or "B-PER".

    Tags without a prefix are labels, if some tokens are outside, and none is in another spelling; B
    and I alone are not labels.
    """
    given = {*tags} - {""}
    names = given.difference(OUTSIDE)
    if not names or any(map(TAG.fullmatch, names)) or not names.isdisjoint(MISSING):
        return "B-PER"
    for name, pattern in SPELLINGS.items():
        found = [*map(pattern.fullmatch, names)]
        prefixes = {each["prefix"].upper() for each in found if each}
        if not all(found) or (name == NO_PREFIX and given == names):
            if not prefixes.isdisjoint("BIUS"):
                return "B-PER"
            continue
        if name == "PER-B" and len(prefixes) == 1:
            return "B-PER"  # perhaps the labels hepatitis-B and vitamin_b
        if not prefixes.isdisjoint({"B", "I", "U", "S", ""}):
            is_bare = names <= {*"BIbi"} or len({*"BI"} & {*map(str.upper, names)}) > 1
            return "B-PER" if name == NO_PREFIX and is_bare else name
    return "B-PER"


@lru_cache(4096)
def is_tag(tag: str) -> bool:
    """Return whether a cell is a tag, and not two of them."""
    return bool(TAG.fullmatch(tag) and not SECOND_TAG.fullmatch(tag))


def find_scheme(layers: Iterable[Sequence[str | None]]) -> str:
    """Return the scheme of all tags of a file, and their spelling, as "IOB2 written as PER-B".

    IOB1 and IOB2 are decoded in the same way: an I- that does not continue an entity begins one, as
    in conlleval, and a B- always begins one. In IOB1, a B- follows a tag of the same label; in
    IOB2, every entity begins with B-. "IOB1, IOB2" breaks both rules.

    Returns:
        "IOB1", "IOB2", "BILUO", "BIOES", "BMES", two of these, "IO" of labels alone, or "none".
    """
    pairs = {pair for tags in layers for pair in pairwise([None, *tags])}
    spelling = find_spelling(tag for pair in pairs for tag in pair if tag)
    standard = spelled(spelling)
    prefixes: set[str] = set()
    names: set[str] = set()
    for before, tag in ([standard(tag or "O") for tag in pair] for pair in pairs):
        if is_tag(tag):
            prefixes.add(tag[0])
            label = before[2:] if is_tag(before) else ""
            if tag[2:] not in ("", label):
                names.add("IOB1" if tag[0] == "I" else "IOB2")
    closed = [name for name, own in CLOSED.items() if prefixes & set(own)]
    if "BMES" in closed and not prefixes & set("ILU"):
        closed = ["BMES"]  # its E- and S- are shared with BIOES
    scheme = ", ".join(closed or sorted(names)) or "none"
    scheme = "IO" if spelling == NO_PREFIX else scheme
    return f"{scheme}{WRITTEN}{spelling}" if spelling in SPELLINGS else scheme


def is_closed(scheme: str) -> bool:
    """Return whether the last token of an entity has a prefix of its own: BILUO, BIOES, BMES."""
    return not CLOSED.keys().isdisjoint(scheme.split(", "))


def decode_tags(tags: Sequence[str], closed: bool) -> tuple[list[SpanOffsets], list[InvalidTag]]:
    """Decode the entities of a sentence.

    M- is read as I-, E- as L-, S- as U-.

    Returns:
        The entities, and the tags that are invalid in a closed scheme. These are decoded as IOB: an
        I- or L- that continues no entity begins one, and an open entity ends.
    """
    spans: list[SpanOffsets] = []
    invalid: list[InvalidTag] = []
    inside = ""  # label of the open entity; in a closed scheme the next token must continue it
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
