"""The rules of a doc or an entity by itself."""

from typing import Callable, Iterable, Iterator, List, NamedTuple, Tuple

from spacy.tokens import Span, Token

from .doc_view import MISSING, Reading
from .finding import Finding, Place
from .rule import Tally

LONG_ENTITY = 10  # tokens
# At the edge of a name or a quantity these are as good as letters: 5 %, # 1, @ home, AT &.
LETTERS = frozenset("%‰#@&*§°/\u2032\u2033")  # the last two are prime and double prime
# A full stop after these, or after a single letter, is part of the name.
ABBREVIATED = frozenset({"bros", "co", "corp", "dr", "inc", "jr", "ltd", "no", "sr", "st"})
PAIRS = {
    "(": ")",
    "[": "]",
    "{": "}",
    "<": ">",
    "«": "»",
    "``": "''",
    "\u2018": "\u2019",  # single quotation marks
    "\u201c": "\u201d",  # double ones
}


class Question(NamedTuple):
    """What is asked of each doc, whatever the others are like.

    words: What is said of one place, and of several.
    find: The places in a doc.
    schemes: Those that it is asked for.
    """

    severity: str
    kind: str
    words: Tuple[str, str]
    fix: str
    find: Callable[[Reading], Iterable[Place]]
    schemes: Tuple[str, ...] = ("biluo", "bio", "io")


class Single:
    """Ask all questions of each doc.

    scheme: How tags spell entities: "biluo", "bio" or "io".
    """

    def __init__(self, scheme: str) -> None:
        self.asked = [
            (question.find, Tally(*question[:4]))
            for question in QUESTIONS
            if scheme in question.schemes
        ]

    def see(self, reading: Reading) -> None:
        """Note each place in a doc."""
        for find, tally in self.asked:
            for place in find(reading):
                tally.add(place)

    def findings(self, limit: int) -> Iterator[Finding]:
        """Yield a finding for each question that some doc answers."""
        for _, tally in self.asked:
            yield from tally.findings(limit)


def _whitespace_edges(reading: Reading) -> Iterator[Place]:
    for ent in reading.ents:
        if reading.space[ent.start] or reading.space[ent.end - 1]:
            yield reading.place(ent, ent.label_)


def _whitespace_inside(reading: Reading) -> Iterator[Place]:
    for ent in reading.ents:
        if reading.space[ent.start + 1 : ent.end - 1].any():
            yield reading.place(ent, ent.label_)


def _crossing(reading: Reading) -> Iterator[Place]:
    for ent in reading.ents:
        if reading.starts[ent.start + 1 : ent.end].any():
            yield reading.place(ent, ent.label_)


def _marked(reading: Reading) -> Iterator[Place]:
    for ent in reading.ents:
        if ent.label_.startswith("!"):
            yield reading.place(ent, ent.label_)


def _adjacent(reading: Reading) -> Iterator[Place]:
    for left, right in zip(reading.ents, reading.ents[1:]):
        if left.end == right.start and left.label == right.label:
            yield reading.place(reading.doc[left.start : right.end], left.label_)


def _punctuation_edges(reading: Reading) -> Iterator[Place]:
    for ent in reading.ents:
        if any(_is_punctuation(token, ent) for token in (ent[0], ent[-1])):
            yield reading.place(ent, ent.label_)


def _is_punctuation(token: Token, ent: Span) -> bool:
    """Whether an entity would rather be without the token at its edge, as far as can be told."""
    # Inc. and U.S. are no punctuation, though they end in it.
    if not (token.is_punct or token.is_quote or token.is_bracket) or token.text in LETTERS:
        return False
    if token.text == "." and token.i > ent.start:
        word = token.nbor(-1).lower_
        return len(word) > 1 and word not in ABBREVIATED
    return not _paired(token, ent)


def _paired(token: Token, ent: Span) -> bool:
    """Whether it is a bracket or quote whose partner is in the entity as well."""
    words = [other.text for other in ent]
    before, after = words[: token.i - ent.start], words[token.i - ent.start + 1 :]
    if token.text in PAIRS:
        return PAIRS[token.text] in after
    if token.text in PAIRS.values():
        return any(PAIRS.get(word) == token.text for word in before)
    return token.is_quote and token.text in before + after


def _long(reading: Reading) -> Iterator[Place]:
    for ent in reading.ents:
        if len(ent) > LONG_ENTITY:
            yield reading.place(ent, f"{ent.label_}, {len(ent)} tokens")


def _empty(reading: Reading) -> List[Place]:
    return [reading.beginning()] if reading.space.all() else []


def _unannotated(reading: Reading) -> List[Place]:
    return [] if reading.annotated or reading.space.all() else [reading.beginning()]


def _partly(reading: Reading) -> List[Place]:
    missing = int((reading.iob == MISSING).sum())
    if not missing or not reading.annotated:
        return []
    return [reading.beginning(f"{missing} of {len(reading.doc)} tokens not annotated")]


QUESTIONS = (
    Question(
        "error",
        "whitespace-edge",
        ("entity begins or ends in whitespace", "entities begin or end in whitespace"),
        "Trim it off: training refuses such a corpus.",
        _whitespace_edges,
    ),
    Question(
        "error",
        "whitespace-inside",
        ("entity has whitespace inside", "entities have whitespace inside"),
        'Set scheme = "biluo": in "bio" and "io" none like these is predicted.',
        _whitespace_inside,
        schemes=("bio", "io"),
    ),
    Question(
        "error",
        "crosses-sentence",
        ("entity crosses a sentence start", "entities cross a sentence start"),
        "Correct the sentences or the entities: training learns these, but none is predicted in a "
        "doc whose sentences are set.",
        _crossing,
    ),
    Question(
        "error",
        "label-mark",
        ("entity has a label that begins with !", "entities have a label that begins with !"),
        "Rename it; or move a span known to be wrong to doc.spans, under the key that "
        "incorrect_spans_key names. Training refuses such a corpus.",
        _marked,
    ),
    Question(
        "warning",
        "adjacent",
        ("entity directly follows one of its label", "entities directly follow one of their label"),
        'Set scheme = "biluo" or "bio": "io" reads the two as one.',
        _adjacent,
        schemes=("io",),
    ),
    Question(
        "warning",
        "punctuation-edge",
        ("entity begins or ends in punctuation", "entities begin or end in punctuation"),
        "Trim what is not part of the name, everywhere in the same way.",
        _punctuation_edges,
    ),
    Question(
        "warning",
        "empty-doc",
        ("doc has no words", "docs have no words"),
        "Remove it: there is nothing to learn or to find in it.",
        _empty,
    ),
    Question(
        "warning",
        "no-annotation",
        ("doc has no annotation at all", "docs have no annotation at all"),
        "Annotate or remove it; where it has no entities, say so: "
        'doc.set_ents([], default="outside").',
        _unannotated,
    ),
    Question(
        "note",
        "partly-annotated",
        ("doc is annotated in part", "docs are annotated in part"),
        "Nothing in train, if that is meant: tokens without annotation may carry any tag. In dev "
        "annotate all: there it decides what counts as wrong.",
        _partly,
    ),
    Question(
        "note",
        "long-entity",
        (
            f"entity is longer than {LONG_ENTITY} tokens",
            f"entities are longer than {LONG_ENTITY} tokens",
        ),
        "See whether it is a name at all, or several that were joined.",
        _long,
    ),
)
