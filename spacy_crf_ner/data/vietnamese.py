"""Vietnamese syllables and words as tokens: `Hà` `Nội` and `Hà_Nội`.

Vietnamese puts a space between syllables, not between words. Corpora that are segmented into words
write the syllables of a word as one token, with underscores. Conversion replaces spaces with
underscores or the reverse, so each character, and all annotation by characters, keeps its place.
"""

import re
import string
from itertools import accumulate, groupby, pairwise
from typing import Any, Callable, Dict, Iterable, Iterator, List, Sequence, Tuple
from unicodedata import normalize

from spacy.tokens import Doc, Token

from ..input_error import InputError

# For each token of a sentence but the first: whether it continues the word of the one before.
Segmenter = Callable[[Sequence[str]], List[bool]]


def split(docs: Iterable[Doc], separators: str = "_ ") -> Iterator[Doc]:
    """Make a token of each syllable of a word.

    docs: Docs whose words may contain several syllables, with a separator between two: an
        underscore or a space. A word with an @ or a slash is an address and stays whole, as does
        one with an empty part: an underscore alone, or at an edge.

    Yields new Docs with the same entities, missing annotation, sentence starts and user_data.
    """
    for doc in docs:
        words: List[Tuple[str, bool]] = []
        for token in doc:
            parts = re.split(f"[{separators}]", token.text)
            if not all(parts) or set("@/") & set(token.text):
                parts = [token.text]
            words += [(part, True) for part in parts[:-1]]
            words.append((parts[-1], bool(token.whitespace_)))
        yield _with_words(doc, words)


def join(docs: Iterable[Doc]) -> Iterator[Doc]:
    """Make a token of each word, with underscores between its syllables, as pyvi segments them.

    docs: Docs of syllables. A token with an underscore is already a word, and stays; one with
        spaces, as spaCy's Vietnamese tokenizer makes them, is split first. A word never crosses
        the edge of an entity or of what is annotated, or the start of a sentence, and there is a
        space between all of its syllables.

    Yields new Docs, from which `split` makes the Docs of syllables again.
    Raises InputError if pyvi is not installed.
    """
    return _join(split(docs, separators=" "), _pyvi_segmenter())


SYLLABLES: Dict[str, Callable[[Iterable[Doc]], Iterable[Doc]]] = {
    "keep": iter,
    "split": split,
    "join": join,
}


def _join(docs: Iterable[Doc], segment: Segmenter) -> Iterator[Doc]:
    for doc in docs:
        words: List[Tuple[str, bool]] = []
        sentences = list(accumulate(bool(token.is_sent_start) for token in doc))
        for _, group in groupby(doc, key=lambda token: sentences[token.i]):
            tokens = list(group)
            continues = [False, *segment([token.text for token in tokens])]
            for token, continued in zip(tokens, continues):
                word = token.text
                if continued and _joinable(token.nbor(-1), token):
                    word = f"{words.pop()[0]}_{word}"
                words.append((word, bool(token.whitespace_)))
        yield _with_words(doc, words)


def _joinable(left: Token, right: Token) -> bool:
    """Return whether `split` can undo it, and no annotation has an edge between the two."""
    starts = None if left.is_sent_start is None else False
    return (
        left.whitespace_ == " "
        and not any(token.is_space or set("_ @/") & set(token.text) for token in (left, right))
        and right.is_sent_start is starts
        # Inside of one entity, or both without one: outside, missing or blocked.
        and (right.ent_iob_ == "I" or (_annotation(left) == _annotation(right) != "entity"))
    )


def _annotation(token: Token) -> str:
    if token.ent_type or token.ent_iob_ == "I":
        return "entity"
    return {"": "missing", "O": "outside", "B": "blocked"}[token.ent_iob_]


def _with_words(doc: Doc, words: List[Tuple[str, bool]]) -> Doc:
    """Make a Doc of these words, each with a space or not, at the same characters."""
    old = {token.idx: token for token in doc}
    owners: List[Token] = []  # the token that each word is, begins with, or is a part of
    starts: List[Any] = []
    at = 0
    for word, space in words:
        owners.append(old[at] if at in old else owners[-1])
        start = owners[-1].is_sent_start
        starts.append(start if at in old or start is None else False)
        at += len(word) + space
    new = Doc(
        doc.vocab,
        [word for word, _ in words],
        spaces=[space for _, space in words],
        user_data=dict(doc.user_data),
        sent_starts=starts or None,
    )
    new.has_unknown_spaces = doc.has_unknown_spaces
    kinds = [_annotation(owner) for owner in owners]
    missing, blocked, outside = (
        [new[i : i + 1] for i, each in enumerate(kinds) if each == kind]
        for kind in ("missing", "blocked", "outside")
    )
    spans = (
        new.char_span(ent.start_char, ent.end_char, ent.label, kb_id=ent.kb_id, span_id=ent.id)
        for ent in doc.ents
    )
    ents = [span for span in spans if span]
    assert len(ents) == len(doc.ents), "an entity's edges stay edges of tokens"
    new.set_ents(ents, missing=missing, blocked=blocked, outside=outside)
    return new


def _pyvi_segmenter() -> Segmenter:
    try:
        from pyvi.ViTokenizer import ViTokenizer
    except ImportError as error:
        raise InputError(
            "syllables: expected pyvi, to join syllables to words, got an environment without it. "
            'Install it with `pip install "spacy-crf-ner[vi]"`, or keep or split the syllables.'
        ) from error

    def segment(tokens: Sequence[str]) -> List[bool]:
        # pyvi was trained on composed letters (NFC); the tokens stay as they are.
        composed = [normalize("NFC", token) for token in tokens]
        (labels,) = ViTokenizer.model.predict([ViTokenizer.sent2features(composed, False)])
        pairs = zip(labels[1:], pairwise(composed))
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
