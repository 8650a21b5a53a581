"""Syllables and words: the two ways to write Vietnamese as tokens, `Hà` `Nội` and `Hà_Nội`.

Vietnamese puts a space between syllables, not between words. Corpora that are segmented into words
write the syllables of a word as one token, with underscores. To go from one to the other replaces
spaces by underscores or the reverse, so that each character keeps its place, and with it all that
is annotated by characters.
"""

import re
import string
from itertools import groupby, pairwise
from typing import Any, Callable, Dict, Iterable, Iterator, List, Sequence
from unicodedata import normalize

from spacy.tokens import Doc, Span, Token

# Says of neighbours in a sentence, for each but the first, whether it continues the word before.
Segmenter = Callable[[Sequence[str]], List[bool]]


def keep(docs: Iterable[Doc]) -> Iterator[Doc]:
    """Leave the tokens as they are."""
    yield from docs


def split(docs: Iterable[Doc]) -> Iterator[Doc]:
    """Make a token of each syllable of a word.

    docs: Docs whose words may hold several syllables, with an underscore or a space between two. A
        word with an @ or a slash is an address and stays whole, as does one with a part that is
        empty: an underscore alone, or at an edge.

    Yields new Docs with the same entities, sentence starts and user_data; what is missing stays so.
    """
    return _split(docs, "_ ")


def join(docs: Iterable[Doc]) -> Iterator[Doc]:
    """Make a token of each word, with underscores between its syllables, as pyvi segments them.

    docs: Docs of syllables. A token that has an underscore is a word already, and stays; one that
        has spaces, as spaCy's Vietnamese tokenizer makes them, is split first. No word crosses the
        edge of an entity, the start of a sentence, or the edge of what is annotated, and none is
        made of syllables that have no space between them.

    Yields new Docs, as `split`, of which `split` makes those of syllables again.
    Raises ValueError where pyvi is not installed.
    """
    return _join(_split(docs, " "), _pyvi_segmenter())


SYLLABLES: Dict[str, Callable[[Iterable[Doc]], Iterator[Doc]]] = {
    "keep": keep,
    "split": split,
    "join": join,
}


def _split(docs: Iterable[Doc], separators: str) -> Iterator[Doc]:
    for doc in docs:
        words: List[str] = []
        spaces: List[bool] = []
        for token in doc:
            parts = _parts(token.text, separators)
            words += parts
            spaces += [True] * (len(parts) - 1) + [bool(token.whitespace_)]
        yield _respell(doc, words, spaces)


def _parts(word: str, separators: str) -> List[str]:
    parts = re.split(f"[{separators}]", word)
    return [word] if not all(parts) or set("@/") & set(word) else parts


def _join(docs: Iterable[Doc], segment: Segmenter) -> Iterator[Doc]:
    for doc in docs:
        words: List[str] = []
        spaces: List[bool] = []
        for _, group in groupby(doc, key=_stretches(doc)):
            tokens = list(group)
            continues = segment([token.text for token in tokens])
            for i, token in enumerate(tokens):
                if i and continues[i - 1] and _joinable(tokens[i - 1], token):
                    words[-1] += "_" + token.text
                    spaces[-1] = bool(token.whitespace_)
                else:
                    words.append(token.text)
                    spaces.append(bool(token.whitespace_))
        yield _respell(doc, words, spaces)


def _stretches(doc: Doc) -> Callable[[Token], int]:
    """Number the sentences; pyvi reads one at a time."""
    numbers: List[int] = []
    for token in doc:
        numbers.append((numbers[-1] if numbers else 0) + bool(token.is_sent_start))
    return lambda token: numbers[token.i]


def _joinable(left: Token, right: Token) -> bool:
    """Can `split` undo it, and does nothing that is annotated lie between the two?"""
    starts = None if left.is_sent_start is None else False
    return (
        left.whitespace_ == " "
        and not any(token.is_space or set("_ @/") & set(token.text) for token in (left, right))
        and right.is_sent_start is starts
        # I continues what the token before is; two that are O, or missing, are alike.
        and (right.ent_iob_ == "I" or (_annotation(left) == _annotation(right) != "entity"))
    )


def _annotation(token: Token) -> str:
    if token.ent_type or token.ent_iob_ == "I":
        return "entity"
    return {"": "missing", "O": "outside", "B": "blocked"}[token.ent_iob_]


def _respell(doc: Doc, words: List[str], spaces: List[bool]) -> Doc:
    """Make a Doc of these words, whose characters have the places of those of the doc."""
    old = {token.idx: token for token in doc}
    owners: List[Token] = []  # of each word, the token that it is, begins with, or is a part of
    starts: List[Any] = []
    at = 0
    for word, space in zip(words, spaces):
        first = at in old
        owners.append(old[at] if first else owners[-1])
        start = owners[-1].is_sent_start
        starts.append(start if first or start is None else False)
        at += len(word) + space
    new = Doc(
        doc.vocab, words, spaces=spaces, user_data=dict(doc.user_data), sent_starts=starts or None
    )
    new.has_unknown_spaces = doc.has_unknown_spaces
    other: Dict[str, List[Span]] = {"missing": [], "blocked": [], "outside": []}
    for token, owner in zip(new, owners):
        kind = _annotation(owner)
        if kind != "entity":
            other[kind].append(new[token.i : token.i + 1])
    new.set_ents(
        [_same_span(new, ent) for ent in doc.ents],
        missing=other["missing"],
        blocked=other["blocked"],
        outside=other["outside"],
    )
    return new


def _same_span(new: Doc, ent: Span) -> Span:
    span = new.char_span(ent.start_char, ent.end_char, ent.label, kb_id=ent.kb_id, span_id=ent.id)
    assert span is not None, "an entity's edges stay edges of tokens"
    return span


def _pyvi_segmenter() -> Segmenter:
    try:
        from pyvi.ViTokenizer import ViTokenizer
    except ImportError as error:
        raise ValueError(
            "syllables: expected pyvi, to join syllables to words, got an environment without it. "
            'Install it with `pip install "spacy-crf-ner[vi]"`, or keep or split the syllables.'
        ) from error

    def segment(tokens: Sequence[str]) -> List[bool]:
        # pyvi knows composed letters only. What it is shown is composed, the tokens stay.
        shown = [normalize("NFC", token) for token in tokens]
        (labels,) = ViTokenizer.model.predict([ViTokenizer.sent2features(shown, False)])
        pairs = zip(labels[1:], pairwise(shown))
        return [label == "I_W" and _may_continue(*pair) for label, pair in pairs]

    return segment


def _may_continue(left: str, right: str) -> bool:
    """The rules of pyvi on top of its labels: no punctuation, no figures, no new capital."""
    return (
        left not in string.punctuation
        and right not in string.punctuation
        and not left[0].isdigit()
        and not right[0].isdigit()
        and (left[0].istitle() or not right[0].istitle())
    )
