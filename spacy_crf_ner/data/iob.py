"""Sentences from rows of a token and a tag in IOB1, IOB2, BILUO, BIOES or BMES."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import groupby, pairwise
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from spacy.language import Language
from spacy.tokens import Doc, Span

from ..docbin import DOCUMENT, META, copy_norms
from ..ml.zero_width import is_blank
from ..tags import SpanOffsets
from .lines import Problem
from .offsets import DUPLICATE, trim_whitespace
from .repair_log import ConversionLog, error

InvalidTag = tuple[int, str]  # its token, and the tags that a closed scheme allows

TAG = re.compile(r"O|[BIMLUES]-\S(?:.*\S)?")
SECOND_TAG = re.compile(r".*[\s|,;/](?:O|[BIMLUES]-\S+)(?:[\s|,;/].*)?")  # B-PER|B-ORG, B-PER O
PREFIXES = "B, I, L, U, E, S, M"
# Closed schemes mark the end of an entity; each has prefixes that no other scheme has.
CLOSED = {"BILUO": "LU", "BIOES": "ES", "BMES": "M"}
CLOSED_SCHEMES = "BILUO (BIOES, BMES) has B- I- L- (B- I- E-, B- M- E-), or U- (S-) for one token"


class TaggedToken(NamedTuple):
    """A token and its tag, their place, and its sentence and document.

    If a row cannot be read, `tag` is "O", and `problem` is the reason.

    Attributes:
        document: Its name; "" before the first document boundary, and in formats without documents.
        missing: The token is not annotated; `tag` is "O".
        space: Whether a space follows the token; None if that is unknown, as in columns.
        inner: More tags, of entities that may overlap those of `tag`.
    """

    where: str
    word: str
    tag: str
    sentence: int
    document: str = ""
    problem: Problem | None = None
    missing: bool = False
    space: bool | None = None
    inner: tuple[str, ...] = ()

    @property
    def tags(self) -> tuple[str, ...]:
        """All tags."""
        return (self.tag, *self.inner)


def tagged_docs(
    path: Path,
    nlp: Language,
    log: ConversionLog,
    read: Callable[[ConversionLog], Iterator[TaggedToken]],
) -> Iterator[Doc]:
    """Make a Doc of each sentence.

    Where spaces are unknown, whitespace at the ends of a token is removed, unless it has nothing
    else.

    Args:
        path: The file, for `log.tag_schemes`, which may have its scheme from an earlier pass.
        nlp: Pipeline whose vocabulary the Docs share. Where spaces are known, and its tokenizer
            makes the same tokens, they have the norms of the tokenizer.
        log: Decides what happens to a row that cannot be read (its sentence is left out), an
            invalid tag sequence (decoded as IOB), and an entity of whitespace (left out).
            Whitespace at an edge of an entity is trimmed, and counted.
        read: Yields the rows, and counts other lines in a log. It is called twice: the first pass
            detects the tag scheme, which depends on all tags of the file.
    """
    if str(path) not in log.tag_schemes:
        sentences = _sentences(read(ConversionLog()))
        tags = (layer for rows, _ in sentences for layer in _layers(rows))
        log.tag_schemes[str(path)] = detect_scheme(tags)
    closed = is_closed(log.tag_schemes[str(path)])
    for rows, problem in _sentences(read(log)):
        decoded = [decode_tags(tags, closed) for tags in _layers(rows)]
        found = [span for spans, _ in decoded for span in spans]
        log.read(entities=len(found))
        if problem:
            log.rejected(*problem, records=1, entities=len(found))
            continue
        for layer, (_, invalid) in enumerate(decoded):
            _count_invalid(rows, layer, invalid, log)
        doc = _make_doc(rows, nlp)
        words = [row.word for row in rows]
        trimmed = (_trim(rows, words, span, log) for span in found)
        spans = [Span(doc, *span) for span in trimmed if span]
        if log.spans_key is not None:
            doc.spans[log.spans_key] = _once(rows, spans, log)
        else:
            missing = [doc[i : i + 1] for i, row in enumerate(rows) if row.missing]
            doc.set_ents(spans, missing=missing, default="outside")
        yield doc


def _layers(rows: list[TaggedToken]) -> list[list[str]]:
    """Return the tags of a sentence, by column."""
    if not rows[0].inner:
        return [[row.tag for row in rows]]
    return [list(tags) for tags in zip(*(row.tags for row in rows))]


def _count_invalid(
    rows: list[TaggedToken], layer: int, invalid: list[InvalidTag], log: ConversionLog
) -> None:
    for token, expected in invalid:
        at_end = token == len(rows)
        row = rows[-1 if at_end else token]
        got = "O (the end of the sentence)" if at_end else f"{row.tags[layer]} ({row.word})"
        log.repaired("tags", error(row.where, expected, got, CLOSED_SCHEMES))


def _make_doc(rows: list[TaggedToken], nlp: Language) -> Doc:
    last = rows[-1]
    # If spaces are unknown, spaCy trains on these tokens instead of tokenizing again.
    doc = Doc(
        nlp.vocab,
        [(row.space is None and row.word.strip()) or row.word for row in rows],
        spaces=None if last.space is None else [bool(row.space) for row in rows],
        user_data={META: {DOCUMENT: last.document}} if last.document else {},
        sent_starts=[row is rows[0] for row in rows],
    )
    if not doc.has_unknown_spaces:
        _set_norms(doc, nlp)
    return doc


def _once(rows: list[TaggedToken], spans: list[Span], log: ConversionLog) -> list[Span]:
    """Sort spans that may overlap, each once."""
    found: dict[tuple[int, int, str], Span] = {}
    for span in spans:
        if found.setdefault((span.start, span.end, span.label_), span) is not span:
            expected, fix = DUPLICATE
            problem = error(rows[span.start].where, expected, f"{span.text!r} twice", fix)
            log.repaired("duplicate", problem)
    return sorted(found.values(), key=lambda span: (span.start, -span.end))


def _set_norms(doc: Doc, nlp: Language) -> None:
    """Give a Doc the norms of the tokenizer, if it has the tokens and spaces of the tokenizer."""
    if len(doc.text) > nlp.max_length:
        return
    tokenized = nlp.make_doc(doc.text)
    own, others = ([(token.text, token.whitespace_) for token in each] for each in (doc, tokenized))
    if own == others:
        copy_norms(tokenized, doc)


def _sentences(
    rows: Iterator[TaggedToken],
) -> Iterator[tuple[list[TaggedToken], Problem | None]]:
    """Yield the rows of each sentence, and the first problem among them."""
    for _, group in groupby(map(_check, rows), attrgetter("document", "sentence")):
        sentence = list(group)
        yield sentence, next((row.problem for row in sentence if row.problem), None)


def label_of_words(where: str, tags: Iterable[str]) -> Problem | None:
    """Return the problem of a label of several words in columns: it is often another cell."""
    if not (bad := [tag for tag in tags if not _is_word(tag)]):
        return None
    got, fix = repr(bad[0]), "Join its words, as in B-creative_work, or separate the columns"
    return "tag", error(where, "a tag whose label has no whitespace", got, fix)


@lru_cache
def _is_word(tag: str) -> bool:
    return len(tag.split()) == 1 or not TAG.fullmatch(tag)


@lru_cache
def is_tag(tag: str) -> bool:
    """Whether a cell is a tag, and not two of them."""
    return bool(TAG.fullmatch(tag) and not SECOND_TAG.fullmatch(tag))


def _check(row: TaggedToken) -> TaggedToken:
    if not (row.problem or row.inner) and row.word and is_tag(row.tag):
        return row  # as nearly all
    if not row.problem:
        bad = [tag for tag in row.tags if not is_tag(tag)]
        if row.word and not bad:
            return row
        got = f"{row.word!r} and {(bad or row.tags)[0]!r}"
        fix = f"A tag is O, or one of {PREFIXES} with a hyphen and one label"
        problem = error(row.where, "a token and a tag, as O or B-PER", got, fix)
        row = row._replace(problem=("tag" if row.word else "token", problem))
    return row._replace(tag="O", inner=("O",) * len(row.inner))


def _trim(
    rows: list[TaggedToken], words: list[str], span: SpanOffsets, log: ConversionLog
) -> SpanOffsets | None:
    """Trim whitespace tokens from an entity; return None if nothing is left."""
    start, end = trim_whitespace(words, *span[:2], is_blank)
    if (start, end) != span[:2]:
        edge = rows[span[0] if start > span[0] else span[1] - 1]
        got, fix = repr(edge.word), "Tag it O"
        problem = error(edge.where, "no whitespace at an entity's edge", got, fix)
        if start == end:
            log.rejected("whitespace", problem, entities=1)
            return None
        log.trimmed()
    return start, end, span[2]


# Tag schemes


def detect_scheme(sentences: Iterable[Sequence[str]]) -> str:
    """Detect the scheme of a file from all of its tags.

    IOB1 and IOB2 are decoded in the same way: an I- that does not continue an entity begins one, as
    in conlleval, and a B- always begins one. In IOB1, a B- follows a tag of the same label; in
    IOB2, every entity begins with B-. "IOB1, IOB2" breaks both rules.

    Args:
        sentences: Tags of each sentence, each a match of `TAG`.

    Returns:
        "IOB1", "IOB2", "BILUO", "BIOES", "BMES", two of these, or "none".
    """
    prefixes: set[str] = set()
    names: set[str] = set()
    for tags in sentences:
        prefixes.update(tag[0] for tag in tags)
        for before, tag in pairwise(["O", *tags]):
            if tag[2:] not in ("", before[2:]):
                names.add("IOB1" if tag[0] == "I" else "IOB2")
    closed = [name for name, own in CLOSED.items() if prefixes & set(own)]
    if "BMES" in closed and not prefixes & set("ILU"):
        closed = ["BMES"]  # its E- and S- are shared with BIOES
    return ", ".join(closed or sorted(names)) or "none"


def is_closed(scheme: str) -> bool:
    """Return whether the last token of an entity has a prefix of its own: BILUO, BIOES, BMES."""
    return not CLOSED.keys().isdisjoint(scheme.split(", "))


def decode_tags(tags: Sequence[str], closed: bool) -> tuple[list[SpanOffsets], list[InvalidTag]]:
    """Decode the entities of a sentence.

    Args:
        tags: A match of `TAG` for each token. M- is read as I-, E- as L-, S- as U-.
        closed: Whether the scheme is closed, see `is_closed`.

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
