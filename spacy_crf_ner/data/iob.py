"""Sentences from rows of a token and a tag in IOB1, IOB2, BILUO, BIOES or BMES."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby, pairwise
from pathlib import Path
from typing import NamedTuple

from spacy.language import Language
from spacy.tokens import Doc, Span

from ..docbin import copy_norms
from ..tags import SpanOffsets
from .lines import Problem
from .offsets import trim_whitespace
from .repair_log import ConversionLog, error

# Key of user_data, for `group_sentences` only: the number of a sentence's document, from 1.
DOCUMENT = "spacy_crf_ner.document"
InvalidTag = tuple[int, str]  # its token, and the tags that a closed scheme allows

TAG = re.compile(r"O|[BIMLUES]-\S(?:.*\S)?")
# Closed schemes mark the end of an entity; each has prefixes that no other scheme has.
CLOSED = {"BILUO": "LU", "BIOES": "ES", "BMES": "M"}
CLOSED_SCHEMES = "BILUO (BIOES, BMES) has B- I- L- (B- I- E-, B- M- E-), or U- (S-) for one token"


class TaggedToken(NamedTuple):
    """A token and its tag, their place, and the numbers of the sentence and document.

    missing: The token is not annotated; `tag` is "O".
    space: Whether a space follows the token; None if that is unknown, as in columns.

    If a row cannot be read, `tag` is "O", and `problem` is the reason.
    """

    where: str
    word: str
    tag: str
    sentence: int
    document: int = 0  # before the first document boundary, and in formats without documents
    problem: Problem | None = None
    missing: bool = False
    space: bool | None = None


def tagged_docs(
    path: Path,
    nlp: Language,
    log: ConversionLog,
    read: Callable[[ConversionLog], Iterator[TaggedToken]],
) -> Iterator[Doc]:
    """Make a Doc of each sentence.

    Where spaces are unknown, whitespace at the ends of a token is removed, unless it has nothing
    else.

    path: The file, for `log.tag_schemes`, which may have its scheme from an earlier pass.
    nlp: Pipeline whose vocabulary the Docs share. Where spaces are known, and its tokenizer
        makes the same tokens, they have the norms of the tokenizer.
    log: Decides what happens to a row that cannot be read (its sentence is left out), an invalid
        tag sequence (decoded as IOB), and whitespace at an edge of an entity (trimmed).
    read: Yields the rows, and counts other lines in a log. It is called twice: the first pass
        detects the tag scheme, which depends on all tags of the file.
    """
    if str(path) not in log.tag_schemes:
        tags = ([row.tag for row in rows] for rows, _ in _sentences(read(ConversionLog())))
        log.tag_schemes[str(path)] = detect_scheme(tags)
    closed = is_closed(log.tag_schemes[str(path)])
    for rows, problem in _sentences(read(log)):
        found, invalid = decode_tags([row.tag for row in rows], closed)
        log.read(entities=len(found))
        if problem:
            log.rejected(*problem, records=1, entities=len(found))
            continue
        end = rows[-1]._replace(word="the end of the sentence", tag="O")
        for token, expected in invalid:
            row = [*rows, end][token]
            got = f"{row.tag} ({row.word})"
            log.repaired("tags", error(row.where, expected, got, CLOSED_SCHEMES))
        # If spaces are unknown, spaCy trains on these tokens instead of tokenizing again.
        doc = Doc(
            nlp.vocab,
            [(row.space is None and row.word.strip()) or row.word for row in rows],
            spaces=None if end.space is None else [bool(row.space) for row in rows],
            user_data={DOCUMENT: end.document} if end.document else {},
            sent_starts=[row is rows[0] for row in rows],
        )
        if not doc.has_unknown_spaces:
            _set_norms(doc, nlp)
        spans = filter(None, (_trim(rows, span, log) for span in found))
        missing = [doc[i : i + 1] for i, row in enumerate(rows) if row.missing]
        doc.set_ents([Span(doc, *span) for span in spans], missing=missing, default="outside")
        yield doc


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
    for _, group in groupby(map(_check, rows), lambda row: (row.document, row.sentence)):
        sentence = list(group)
        yield sentence, next(filter(None, (row.problem for row in sentence)), None)


def _check(row: TaggedToken) -> TaggedToken:
    if row.problem or (row.word and TAG.fullmatch(row.tag)):
        return row
    got = f"{row.word!r} and {row.tag!r}"
    fix = "A tag is O, or one of B, I, L, U, E, S, M with a hyphen and a label"
    problem = error(row.where, "a token and a tag, as O or B-PER", got, fix)
    return row._replace(tag="O", problem=("tag" if row.word else "token", problem))


def _trim(rows: list[TaggedToken], span: SpanOffsets, log: ConversionLog) -> SpanOffsets | None:
    """Trim whitespace tokens from an entity; return None if nothing is left."""
    start, end = trim_whitespace([row.word for row in rows], *span[:2])
    if (start, end) != span[:2]:
        edge = rows[span[0] if start > span[0] else span[1] - 1]
        got, fix = repr(edge.word), "Tag it O"
        problem = error(edge.where, "no whitespace at an entity's edge", got, fix)
        if start == end:
            log.rejected("whitespace", problem, entities=1)
            return None
        log.repaired("whitespace", problem)
    return start, end, span[2]


# Tag schemes


def detect_scheme(sentences: Iterable[Sequence[str]]) -> str:
    """Detect the scheme of a file from all of its tags.

    sentences: Tags of each sentence, each a match of `TAG`.

    IOB1 and IOB2 are decoded in the same way: an I- that does not continue an entity begins one, as
    in conlleval, and a B- always begins one. In IOB1, a B- follows a tag of the same label; in
    IOB2, every entity begins with B-. "IOB1, IOB2" breaks both rules.

    Returns "IOB1", "IOB2", "BILUO", "BIOES", "BMES", two of these, or "none".
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

    tags: A match of `TAG` for each token. M- is read as I-, E- as L-, S- as U-.
    closed: Whether the scheme is closed, see `is_closed`.

    Returns the entities, and the tags that are invalid in a closed scheme. These are decoded as
    IOB: an I- or L- that continues no entity begins one, and an open entity ends.
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
