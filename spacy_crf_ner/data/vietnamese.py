"""Vietnamese syllables and words as tokens: `Hà` `Nội` and `Hà_Nội`.

Vietnamese text has spaces between syllables, not between words. Corpora that are segmented into
words join the syllables of a word with underscores. The conversion replaces spaces by underscores
or the reverse, so character offsets do not change.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate, groupby, pairwise
from typing import Any
from unicodedata import normalize

from spacy.attrs import ENT_ID, ENT_IOB, ENT_KB_ID, ENT_TYPE, SENT_START
from spacy.tokens import Doc, Span, SpanGroup, Token

from ..extras import required
from ..pipeline.annotated_labels import KEY, annotated_labels
from ..pipeline.preset import IOB_INSIDE
from .offsets import aligned

# For each token of a sentence except the first: whether it continues the previous word.
Segmenter = Callable[[list[str]], list[bool]]
# Text, whether a space follows, and the index of the first token of the word.
Word = tuple[str, bool, int]

ANNOTATION: list[int | str] = [ENT_IOB, SENT_START, ENT_TYPE, ENT_KB_ID, ENT_ID]


def split(docs: Iterable[Doc], separators: str = "_ ") -> Iterator[Doc]:
    """Make a token of each syllable of a word, and keep all annotation.

    A word with an @ or a slash is an address and is not split, nor is a word with an empty part: a
    lone underscore, or one at an edge.
    """
    for doc in docs:
        words: list[Word] = []
        for token in doc:
            parts = re.split(f"[{separators}]", token.text)
            if not all(parts) or set("@/") & set(token.text):
                parts = [token.text]
            words += [(part, True, token.i) for part in parts[:-1]]
            words.append((parts[-1], bool(token.whitespace_), token.i))
        yield _with_words(doc, words)


def join(docs: Iterable[Doc]) -> Iterator[Doc]:
    """Make a token of each word that pyvi finds, with underscores between its syllables.

    A token with an underscore is already a word, and is kept; a token with spaces, from spaCy's
    Vietnamese tokenizer, is split first. A word never crosses an edge of an entity, of another span
    or of annotation, or a sentence start, so that `split` makes the same Docs of syllables again.
    """
    return _join(split(docs, separators=" "), _pyvi_segmenter())


SYLLABLES: dict[str, Callable[[Iterable[Doc]], Iterable[Doc]]] = {
    "keep": iter,
    "split": split,
    "join": join,
}


def _join(docs: Iterable[Doc], segment: Segmenter) -> Iterator[Doc]:
    for doc in docs:
        spans = [span for group in doc.spans.values() for span in group]
        edges = {edge for span in spans for edge in (span.start, span.end)}
        words: list[Word] = []
        sentences = list(accumulate(bool(token.is_sent_start) for token in doc))
        for _, group in groupby(doc, key=lambda token: sentences[token.i]):
            tokens = list(group)
            continues = [False, *segment([token.text for token in tokens])]
            for token, continued in zip(tokens, continues):
                word, first = token.text, token.i
                if continued and token.i not in edges and _joinable(token.nbor(-1), token):
                    before, _, first = words.pop()
                    word = f"{before}_{word}"
                words.append((word, bool(token.whitespace_), first))
        yield _with_words(doc, words)


def _joinable(left: Token, right: Token) -> bool:
    """Return whether `split` can undo the join, and no token annotation differs between them."""
    return (
        left.whitespace_ == " "
        and not any(token.is_space or set("_ @/") & set(token.text) for token in (left, right))
        and right.is_sent_start is (None if left.is_sent_start is None else False)
        # Inside one entity, or both outside, missing or blocked.
        and (
            right.ent_iob_ == "I"
            or (left.ent_iob == right.ent_iob and not left.ent_type and not right.ent_type)
        )
    )


def _with_words(doc: Doc, words: list[Word]) -> Doc:
    """Make a Doc of these words, with the same characters and annotation."""
    owners = [owner for _, _, owner in words]
    annotation: Any = doc.to_array(ANNOTATION)
    annotation = annotation[owners]
    for row, (before, owner) in zip(annotation.view("int64")[1:], pairwise(owners)):
        if before == owner:  # a later part of a token begins no entity and no sentence
            row[0] = IOB_INSIDE if row[2] else row[0]
            row[1] = -abs(row[1])
    texts, spaces = [text for text, _, _ in words], [space for _, space, _ in words]
    new = Doc(doc.vocab, texts, spaces=spaces, user_data=dict(doc.user_data))
    new.has_unknown_spaces = doc.has_unknown_spaces
    new.from_array(ANNOTATION, annotation)
    for key, group in doc.spans.items():
        spans = aligned(new, group)  # all but empty ones
        attrs = dict(group.attrs) if len(spans) == len(group) else {}
        new.spans[key] = SpanGroup(new, name=group.name, attrs=attrs, spans=spans)
    if (labels := annotated_labels(doc)) is not None:  # also of a doc without tokens
        new.spans[KEY] = [Span(new, 0, len(new), label) for label in sorted(labels)]
    return new


def _pyvi_segmenter() -> Segmenter:
    with required("vi"):
        from pyvi import ViTokenizer

    def ends(texts: Iterable[str]) -> list[int]:
        return list(accumulate(len(re.sub(r"[_\s]", "", text)) for text in texts))

    def segment(tokens: list[str]) -> list[bool]:
        # pyvi is trained on composed letters (NFC) and has other tokens: compare letter counts.
        composed = [normalize("NFC", token) for token in tokens]
        words = set(ends(ViTokenizer.tokenize(" ".join(composed)).split()))
        return [end not in words for end in ends(composed)][:-1]

    return segment
