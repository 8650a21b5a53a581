r"""Sentences with entities in brackets, one per line: `[Tim Cook](PERSON) visited [Hanoi](GPE).`

`\[`, `\]` and `\\` are escapes; any other backslash is a literal backslash.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from unicodedata import category, is_normalized

from spacy.language import Language
from spacy.tokens import Doc
from spacy.util import get_words_and_spaces

from ..input_error import CorpusError
from .json_records import shorten
from .lines import read_lines
from .offsets import set_entities, tokenize
from .record import RawSpan
from .repair_log import ConversionLog, error

ESCAPED = re.compile(r"\\([\[\]\\])")
# An escaped character, an entity (text, label), or an unmatched bracket.
MARKUP = re.compile(
    r"\\[\[\]\\]|\[((?:\\[\[\]\\]|\\(?![\[\]\\])|[^\[\]\\])+)\]\(([^\s()\[\]\\]+)\)|[\[\]]"
)


LINK = re.compile(
    r"(?:[a-z]+:)?//.*|(?:www\.|mailto:|[#/.]).*|.*\.(?:html?|md|pdf|png|jpe?g|svg|com|org|net|php)"
)


def is_link(label: str) -> bool:
    """Return whether a label is the target of a link of Markdown."""
    return bool(LINK.fullmatch(label))


def read_inline(path: Path, nlp: Language, log: ConversionLog | None = None) -> Iterator[Doc]:
    """Read sentences with entities in brackets, tokenized by the pipeline.

    Args:
        path: File, UTF-8. Whitespace around a line is not part of the sentence.
        nlp: Pipeline with the vocabulary, and the tokenizer for formats without tokens.
        log: Decides what happens to mistakes, and counts them; None raises the first one. A line
            whose brackets do not match is left out; for entities, the kinds are those of
            `set_entities`.

    Yields:
        A Doc for each sentence. At an edge of an entity, a Vietnamese word of several syllables is
        split, and so is a word in decomposed letters (NFD) that still contains punctuation.

    Raises:
        CorpusError: For unmatched brackets, nested entities, an entity without a label or inside a
            token, and a link.
    """
    log = log or ConversionLog()
    for where, line, problem in read_lines(path):
        line = line.strip()
        if not line and not problem:
            continue
        try:
            if problem:
                raise problem[1]
            text, spans = _parse(where, line)
            doc = tokenize(text, nlp, where)
        except CorpusError as bad:
            entities = sum(bool(match[2]) for match in MARKUP.finditer(line))
            log.read(entities=entities)
            log.rejected("record", bad, records=1, entities=entities)
            continue
        log.read()
        doc = _divide_words(doc, [at for span in spans for at in span[:2]])
        for token in doc:
            token.is_sent_start = token.i == 0
        yield set_entities(doc, spans, log, where)


def _parse(where: str, line: str) -> tuple[str, list[RawSpan]]:
    """Remove the markup from a line."""
    text, at = "", 0
    spans = []
    for match in MARKUP.finditer(line):
        if match[0] in "[]":
            fix = r"Close and label each entity, without nesting, and write \[ or \] for a bracket"
            expected = "[text](LABEL), neither of them empty"
            raise error(where, expected, repr(line[match.start() :][:40]), fix)
        entity, label = match.groups()
        text += line[at : match.start()]
        at, start = match.end(), len(text)
        text += ESCAPED.sub(r"\1", entity or match[0])
        if label and is_link(label):
            fix = r"Remove the link, or write \[ for its bracket"
            raise error(where, "a label", f"the link {shorten(label)}", fix)
        if label:
            spans.append(RawSpan(start, len(text), label))
    return text + line[at:], spans


def _divide_words(doc: Doc, edges: Sequence[int]) -> Doc:
    """Split tokens at edges of entities where a word may end."""
    words: list[str] = []
    for token in doc:
        begin, end = token.idx, token.idx + len(token)
        inside = {at for at in edges if begin < at < end and _may_divide(token.text, at - begin)}
        parts = [doc.text[i:j].strip() for i, j in pairwise(sorted({begin, end} | inside))]
        words += filter(None, parts) if inside else [token.text]
    if len(words) == len(doc):
        return doc
    words, spaces = get_words_and_spaces(words, doc.text)
    return Doc(doc.vocab, words, spaces=spaces)


def _may_divide(word: str, at: int) -> bool:
    """Return whether the tokenizer would split here without pyvi and in composed letters."""
    sides = word[at - 1 : at + 1]
    if is_normalized("NFC", word):
        return any(side.isspace() for side in sides)
    return not all(side.isalnum() or category(side)[0] == "M" for side in sides)
