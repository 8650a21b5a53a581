r"""Sentences with entities in brackets, one per line: `[Tim Cook](PERSON) visited [Hanoi](GPE).`

`\[`, `\]` and `\\` are escapes; any other backslash is a literal backslash.
"""

import re
from collections.abc import Callable, Iterator
from functools import partial
from html import unescape
from itertools import islice
from pathlib import Path
from unicodedata import category, is_normalized

from spacy.language import Language
from spacy.tokens import Doc

from ..input_error import CorpusError
from .docs import make_docs
from .json_records import shorten
from .lines import read_lines
from .record import RawSpan, Record
from .repair_log import ConversionLog, error
from .rows import LAYOUT_LINES

ESCAPED = re.compile(r"\\([\[\]\\])")
# An escaped character, an entity (text, label), or an unmatched bracket.
MARKUP = re.compile(
    r"\\[\[\]\\]|\[((?:\\[\[\]\\]|\\(?![\[\]\\])|[^\[\]\\])+)\]\(([^\s()\[\]\\]+)\)|[\[\]]"
)
HTML = re.compile(r"(?i)a|b|body|br|div|doc|em|html|i|p|s|sent|sentence|span|text|title|u")
LINK = re.compile(
    r"(?:[a-z]+:)?//.*|(?:www\.|mailto:|[#/.]).*|.*\.(?:html?|md|pdf|png|jpe?g|svg|com|org|net|php)"
)

# An element, as <PER> or <ENAMEX TYPE="PER">, or its end.
ELEMENT = re.compile(r'<(/?)([A-Za-z][\w.-]*)(?:\s+(?:TYPE|type)="([^"]+)")?\s*>')
Parse = Callable[[str, str], tuple[str, list[RawSpan]]]


def is_inline(lines: list[str]) -> bool:
    """Return whether lines have entities in brackets, or in elements."""
    return any(match[2] for line in lines for match in MARKUP.finditer(line)) or has_elements(lines)


def has_elements(lines: list[str]) -> bool:
    """Return whether some lines have entities in elements, as <PER>Tim</PER>, and none brackets."""
    if any(match[2] for line in lines for match in MARKUP.finditer(line)):
        return False
    return any(map(_element_in, lines))


def _element_in(line: str) -> str:
    """Return the name of an element that a line has from begin to end, or ""."""
    names = (match[2] for match in ELEMENT.finditer(line) if match[1])
    return next((name for name in names if f"<{name}" in line), "")


def is_link(label: str) -> bool:
    """Return whether a label is the target of a link of Markdown."""
    return bool(LINK.fullmatch(label))


def read_inline(path: Path, nlp: Language, log: ConversionLog | None = None) -> Iterator[Doc]:
    """Read sentences with entities in brackets, tokenized by the pipeline.

    Args:
        path: File, UTF-8. Whitespace around a line is not part of the sentence. Without brackets,
            entities may be in elements: `<PER>Tim</PER>`, `<ENAMEX TYPE="PER">Tim</ENAMEX>`.
        nlp: Pipeline with the vocabulary, and the tokenizer for formats without tokens.
        log: None raises the first mistake. A line whose brackets do not match is left out.

    Yields:
        A Doc for each sentence. At an edge of an entity, a Vietnamese word of several syllables is
        split, and so is a word in decomposed letters (NFD) that still contains punctuation.

    Raises:
        CorpusError: For unmatched brackets, nested entities, an entity without a label or inside a
            token, a link, and for entities in brackets beside some in elements.
    """
    first = [line.text for line in islice(read_lines(path), LAYOUT_LINES)]
    parse = _parse_elements if has_elements(first) else _parse
    return make_docs(path, nlp, log, partial(_records, path, parse), one_pass=True)


def _records(path: Path, parse: Parse, log: ConversionLog) -> Iterator[Record]:
    for where, line, problem in read_lines(path):
        line = line.strip()
        if not line and not problem:
            continue
        record = Record(where, sent_starts=[0], may_divide=_may_divide)
        try:
            if problem:
                raise problem[1]
            record.text, record.spans = parse(where, line)
        except CorpusError as bad:
            record.problem = "record", bad
            pattern, group = (MARKUP, 2) if parse is _parse else (ELEMENT, 1)
            lost = sum(bool(match[group]) for match in pattern.finditer(line))
            record.spans = [RawSpan(0, 0, "")] * lost
        yield record


def _parse(where: str, line: str) -> tuple[str, list[RawSpan]]:
    if (name := _element_in(line)) and not HTML.fullmatch(name):
        raise _mixed(where, f"<{name}>", "Write them all as [Tim](PER)")
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


def _parse_elements(where: str, line: str) -> tuple[str, list[RawSpan]]:
    if found := next((match[0] for match in MARKUP.finditer(line) if match[2]), ""):
        raise _mixed(where, found, "Write them all so, or &#91; for the bracket of a text")
    text, at = "", 0
    spans: list[RawSpan] = []
    opened: list[tuple[str, str, int]] = []
    for match in ELEMENT.finditer(line):
        ends, name, kind = match.groups()
        text += unescape(line[at : match.start()])
        at = match.end()
        if HTML.fullmatch(name):
            fix = "Remove it: elements are entities, as <PER>Tim</PER>"
            raise error(where, "an element that names a label", match[0], fix)
        if not ends:
            opened.append((name, kind or name, len(text)))
        elif opened and opened[-1][0] == name:
            _, label, start = opened.pop()
            spans.append(RawSpan(start, len(text), label))
        else:
            opened.append((name, "", -1))
            break
    if opened:
        fix = "Close each element, in the order of their beginnings, or write &lt; for <"
        raise error(where, f"<{opened[-1][0]}>text</{opened[-1][0]}>", repr(line[:40]), fix)
    return text + unescape(line[at:]), sorted(spans, key=lambda span: (span.start, -span.end))


def _mixed(where: str, got: str, fix: str) -> CorpusError:
    return error(where, "all entities in brackets, or all in elements, as <PER>Tim</PER>", got, fix)


def _may_divide(word: str, at: int) -> bool:
    """Return whether the tokenizer would split here without pyvi and in composed letters."""
    sides = word[at - 1 : at + 1]
    if is_normalized("NFC", word):
        return any(side.isspace() for side in sides)
    return not all(side.isalnum() or category(side)[0] == "M" for side in sides)
