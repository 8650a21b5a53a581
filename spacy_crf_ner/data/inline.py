r"""Sentences with entities in brackets, one a line: `[Tim Cook](PERSON) visited [Hanoi](GPE).`

The three characters `\[`, `\]` and `\\` stand for themselves; any other backslash is a backslash.
"""

import re
from itertools import pairwise
from pathlib import Path
from typing import Iterator, List, Sequence, Tuple
from unicodedata import category, is_normalized

from spacy.language import Language
from spacy.tokens import Doc, Span
from spacy.util import get_words_and_spaces

from .journal import error
from .lines import read_lines

ESCAPED = re.compile(r"\\([\[\]\\])")
# An escaped character, an entity (its text, its label), or a bracket that is part of neither.
MARKUP = re.compile(
    r"\\[\[\]\\]|\[((?:\\[\[\]\\]|\\(?![\[\]\\])|[^\[\]\\])+)\]\(([^\s()\[\]\\]+)\)|[\[\]]"
)


def read_inline(path: Path, nlp: Language) -> Iterator[Doc]:
    """Read sentences with entities in brackets, tokenised by the pipeline.

    path: File, UTF-8. Whitespace around a line is not part of the sentence.
    nlp: Pipeline whose tokenizer is used.

    Yields a Doc a sentence. A word of several syllables ends where an entity begins or ends, and so
    does one that the rules of the tokenizer leave punctuation with, in decomposed letters (NFD).
    Raises CorpusError for brackets that do not match, nested entities, and an entity without a
    label or without a token, not of whitespace, at each of its edges.
    """
    for where, line in read_lines(path):
        if line.strip():
            text, entities = _parse_inline(where, line.strip())
            doc = _cut(
                nlp.make_doc(text), [at for start, end, _ in entities for at in (start, end)]
            )
            spans = [_whole_tokens(where, doc, *entity) for entity in entities]
            doc.set_ents(spans, default="outside")
            for token in doc:
                token.is_sent_start = token.i == 0
            yield doc


def _parse_inline(where: str, line: str) -> Tuple[str, List[Tuple[int, int, str]]]:
    """Take the markup off a line: its text, and (start, end, label) of entities, in characters."""
    text, at = "", 0
    entities = []
    for match in MARKUP.finditer(line):
        if match[0] in "[]":
            got = repr(line[match.start() :][:40])
            fix = r"Close and label each entity, nest none, and write \[ or \] for a bracket"
            raise error(where, "[text](LABEL), neither of them empty", got, fix)
        entity, label = match.groups()
        text += line[at : match.start()]
        at, start = match.end(), len(text)
        text += ESCAPED.sub(r"\1", entity or match[0])
        if label:
            entities.append((start, len(text), label))
    return text + line[at:], entities


def _cut(doc: Doc, edges: Sequence[int]) -> Doc:
    """Cut the tokens in which entities begin or end, at these characters, where words may end."""
    words: List[str] = []
    for token in doc:
        begin, end = token.idx, token.idx + len(token)
        inside = {at for at in edges if begin < at < end and _may_cut(token.text, at - begin)}
        parts = [doc.text[i:j].strip() for i, j in pairwise(sorted({begin, end} | inside))]
        words += filter(None, parts) if inside else [token.text]
    if len(words) == len(doc):
        return doc
    words, spaces = get_words_and_spaces(words, doc.text)
    return Doc(doc.vocab, words, spaces=spaces)


def _may_cut(word: str, at: int) -> bool:
    """Tell whether the tokenizer was to cut here, were there no pyvi, and all letters composed."""
    sides = word[at - 1 : at + 1]
    if is_normalized("NFC", word):
        return any(side.isspace() for side in sides)
    return not all(side.isalnum() or category(side)[0] == "M" for side in sides)


def _whole_tokens(where: str, doc: Doc, start: int, end: int, label: str) -> Span:
    span = doc.char_span(start, end, label)
    if span is None or span[0].is_space or span[-1].is_space:
        tokens = [t.text for t in doc if t.idx < end and start < t.idx + len(t)]
        got = f"{doc.text[start:end]!r} in the tokens {tokens}"
        fix = "Move the brackets to where tokens begin and end, or put spaces around the entity"
        raise error(where, "an entity of whole tokens, without whitespace at an edge", got, fix)
    return span
