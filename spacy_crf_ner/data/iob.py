"""A token and its tag a row: what is common to the formats that are tables."""

from itertools import groupby
from pathlib import Path
from typing import Callable, Iterable, Iterator, List, NamedTuple, Optional

from spacy.language import Language
from spacy.tokens import Doc, Span

from . import iob_schemes as schemes
from .iob_schemes import TAG
from .lines import Problem
from .repair_log import CorpusError, Journal, error

# In the user_data of a sentence, for `group_sentences` only: the number of its document, from 1.
DOCUMENT = "spacy_crf_ner.document"


class Row(NamedTuple):
    """A token and its tag as written, where, and the numbers of its sentence and document.

    Of a row that cannot be read, the token is empty, the tag O, and the problem says why.
    """

    where: str
    word: str
    tag: str
    sentence: int
    document: int = 0  # in front of the first boundary, and where the format has none
    problem: Optional[Problem] = None


def tagged_docs(
    path: Path, nlp: Language, journal: Journal, read: Callable[[Journal], Iterator[Row]]
) -> Iterator[Doc]:
    """Make a Doc of each sentence.

    path: The file, for the journal, which is told the scheme of its tags.
    nlp: Pipeline whose vocabulary the Docs share.
    journal: What becomes of a row that cannot be read (its sentence is left out), a sequence of
        tags that is not legal (an I- begins an entity, an open one ends), and of whitespace at an
        entity's edge (it is no part of the entity).
    read: Yields the rows. Called twice, the first time to tell the scheme, and each time with a
        journal, which counts what is no row.
    """
    scheme = schemes.scheme_of(_tags(_sentences(read(Journal())), journal))
    journal.found[str(path)] = scheme.name
    for rows in _sentences(read(journal)):
        spans, illegal = schemes.decode([row.tag for row in rows], scheme.closed)
        journal.read(entities=len(spans))
        if problem := next((row.problem for row in rows if row.problem), None):
            journal.rejected(*problem, records=1, entities=len(spans))
            continue
        for token, expected in illegal:
            journal.repaired("tags", _illegal(rows, token, expected))
        yield _doc(nlp, rows, [_trim(rows, span, journal) for span in spans])


def _sentences(rows: Iterable[Row]) -> Iterator[List[Row]]:
    for _, sentence in groupby(map(_check, rows), lambda row: (row.document, row.sentence)):
        yield list(sentence)


def _check(row: Row) -> Row:
    if row.problem or (row.word and TAG.fullmatch(row.tag)):
        return row
    got = f"{row.word!r} and {row.tag!r}"
    fix = "A tag is O, or one of B, I, L, U, E, S, M with a hyphen and a label"
    problem = error(row.where, "a token and a tag, as O or B-PER", got, fix)
    return row._replace(tag="O", problem=("tag" if row.word else "token", problem))


def _tags(sentences: Iterable[List[Row]], journal: Journal) -> Iterator[List[str]]:
    for rows in sentences:
        for row in rows:
            if row.problem and not journal.repair:
                raise row.problem[1]
        yield [row.tag for row in rows]


def _illegal(rows: List[Row], token: int, expected: str) -> CorpusError:
    end = rows[-1]._replace(word="the end of the sentence", tag="O")
    row = [*rows, end][token]
    fix = "In BILUO (BIOES, BMES) an entity is B- I- L- (B- I- E-, B- M- E-), of one token U- (S-)"
    return error(row.where, expected, f"{row.tag} ({row.word})", fix)


def _trim(rows: List[Row], span: schemes.Span, journal: Journal) -> Optional[schemes.Span]:
    """Take whitespace off an entity's edges, if that is to be mended; None if nothing is left."""
    start, end, label = span
    edge = next((row for row in (rows[start], rows[end - 1]) if row.word.isspace()), None)
    if not edge:
        return span
    expected = "no whitespace at an entity's edge"
    problem = error(edge.where, expected, repr(edge.word), "Tag it O")
    while start < end and rows[start].word.isspace():
        start += 1
    while start < end and rows[end - 1].word.isspace():
        end -= 1
    if start == end:
        journal.rejected("whitespace", problem, entities=1)
        return None
    journal.repaired("whitespace", problem)
    return start, end, label


def _doc(nlp: Language, rows: List[Row], spans: List[Optional[schemes.Span]]) -> Doc:
    document = rows[0].document
    # No spaces: spaCy then trains on these tokens, not on those of its own tokenizer.
    doc = Doc(
        nlp.vocab,
        [row.word for row in rows],
        user_data={DOCUMENT: document} if document else {},
        sent_starts=[i == 0 for i in range(len(rows))],
    )
    doc.set_ents([Span(doc, *span) for span in spans if span], default="outside")
    return doc
