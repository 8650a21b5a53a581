"""A token and its tag a row: what is common to the formats that are tables."""

import re
from itertools import groupby
from typing import Callable, Iterator, List, NamedTuple, Tuple

from spacy.language import Language
from spacy.tokens import Doc, Span

from .journal import error

# In the user_data of a sentence, for `group_sentences` only: the number of its document, from 1.
DOCUMENT = "document"
TAG = re.compile(r"O|[BILUES]-\S+")


class Row(NamedTuple):
    """A token and its tag as written, where, and the numbers of its sentence and document."""

    where: str
    word: str
    tag: str
    sentence: int
    document: int = 0  # in front of the first boundary, and where the format has none


def tagged_docs(nlp: Language, read: Callable[[], Iterator[Row]]) -> Iterator[Doc]:
    """Make a Doc of each sentence; read twice, first to check the tags: are they BILUO?"""
    biluo = False
    for row in read():
        if not row.word or not TAG.fullmatch(row.tag):
            got = f"{row.word!r} and {row.tag!r}"
            fix = "A tag is O, or one of B, I, L, U, E, S with a hyphen and a label"
            raise error(row.where, "a token and a tag, as O or B-PER", got, fix)
        biluo = biluo or row.tag[0] in "LUES"
    for (document, _), sentence in groupby(read(), lambda row: (row.document, row.sentence)):
        rows = list(sentence)
        known = {DOCUMENT: document} if document else {}
        # No spaces: spaCy then trains on these tokens, not on those of its own tokenizer.
        doc = Doc(nlp.vocab, [row.word for row in rows], user_data=known)
        for token in doc:
            token.is_sent_start = token.i == 0
        doc.set_ents([Span(doc, *span) for span in _spans(rows, biluo)], default="outside")
        yield doc


def _spans(rows: List[Row], biluo: bool) -> List[Tuple[int, int, str]]:
    """Read (first token, last token + 1, label) of each entity off the tags of a sentence."""
    spans: List[Tuple[int, int, str]] = []
    inside = ""  # label of the entity that the next token may continue, and in BILUO must
    end = rows[-1]._replace(word="the end of the sentence", tag="O")
    for i, row in enumerate([*rows, end]):
        prefix, label = row.tag[0], row.tag[2:]
        continues = prefix in "ILE" and label == inside
        if biluo and not continues and (inside or prefix in "ILE"):
            expected = f"I-, L- or E-{inside}" if inside else f"B-{label} in front of {row.tag}"
            fix = "In BILUO (BIOES) an entity is B- I- L- (B- I- E-), of one token U- (S-)"
            raise error(row.where, expected, f"{row.tag} ({row.word})", fix)
        if continues:
            spans[-1] = (spans[-1][0], i + 1, label)
        elif row.tag != "O":
            spans.append((i, i + 1, label))
        inside = label if prefix in "BI" else ""
    for row in (rows[i] for start, stop, _ in spans for i in (start, stop - 1)):
        if row.word.isspace():
            raise error(row.where, "no whitespace at an entity's edge", repr(row.word), "Tag it O")
    return spans
