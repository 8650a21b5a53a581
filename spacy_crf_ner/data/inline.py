r"""Sentences with entities in brackets, one a line: `[Tim Cook](PERSON) visited [Hanoi](GPE).`

The three characters `\[`, `\]` and `\\` stand for themselves; any other backslash is a backslash.
"""

import re
from itertools import pairwise
from pathlib import Path
from typing import Iterator, List, Optional, Sequence, Set, Tuple
from unicodedata import category, is_normalized

from spacy.language import Language
from spacy.tokens import Doc, Span
from spacy.util import get_words_and_spaces

from .lines import Problem, scan_lines
from .repair_log import Journal, error

Entity = Tuple[int, int, str]  # first character, last character + 1, label

ESCAPED = re.compile(r"\\([\[\]\\])")
# An escaped character, an entity (its text, its label), or a bracket that is part of neither.
MARKUP = re.compile(
    r"\\[\[\]\\]|\[((?:\\[\[\]\\]|\\(?![\[\]\\])|[^\[\]\\])+)\]\(([^\s()\[\]\\]+)\)|[\[\]]"
)


def read_inline(path: Path, nlp: Language, journal: Optional[Journal] = None) -> Iterator[Doc]:
    """Read sentences with entities in brackets, tokenised by the pipeline.

    path: File, UTF-8. Whitespace around a line is not part of the sentence.
    nlp: Pipeline whose tokenizer is used.
    journal: What becomes of mistakes; without one, the first is raised. A line whose brackets do
        not match is left out, whitespace at an entity's edge is no part of the entity, and what
        becomes of one that begins or ends inside of a token, its `alignment` says.

    Yields a Doc a sentence. A word of several syllables ends where an entity begins or ends, and so
    does one that the rules of the tokenizer leave punctuation with, in decomposed letters (NFD).
    Raises CorpusError for brackets that do not match, nested entities, and an entity without a
    label or without a token, not of whitespace, at each of its edges.
    """
    journal = journal or Journal()
    for where, line, problem in scan_lines(path):
        line = line.strip()
        if not line and not problem:
            continue
        problem = problem or _problem(where, line, nlp)
        entities = sum(bool(match[2]) for match in MARKUP.finditer(line))
        journal.read(entities=entities)
        if problem:
            journal.rejected(*problem, records=1, entities=entities)
        else:
            yield _doc(where, line, nlp, journal)


def _problem(where: str, line: str, nlp: Language) -> Optional[Problem]:
    if len(line) > nlp.max_length:
        expected = f"a line of at most {nlp.max_length:,} characters"
        return "line", error(where, expected, f"{len(line):,}", "Break it into sentences")
    bad = next((match for match in MARKUP.finditer(line) if match[0] in "[]"), None)
    if not bad:
        return None
    fix = r"Close and label each entity, nest none, and write \[ or \] for a bracket"
    expected = "[text](LABEL), neither of them empty"
    return "brackets", error(where, expected, repr(line[bad.start() :][:40]), fix)


def _doc(where: str, line: str, nlp: Language, journal: Journal) -> Doc:
    text, entities = _parse(line)
    entities = list(filter(None, (_trim(where, text, each, journal) for each in entities)))
    doc = _cut(nlp.make_doc(text), [at for start, end, _ in entities for at in (start, end)])
    spans: List[Span] = []
    missing: Set[int] = set()
    for entity in entities:
        kept, unknown = _align(where, doc, entity, spans, journal)
        spans += kept
        missing.update(unknown)
    doc.set_ents(spans, missing=[doc[i : i + 1] for i in sorted(missing)], default="outside")
    for token in doc:
        token.is_sent_start = token.i == 0
    return doc


def _parse(line: str) -> Tuple[str, List[Entity]]:
    """Take the markup off a line."""
    text, at = "", 0
    entities = []
    for match in MARKUP.finditer(line):
        entity, label = match.groups()
        text += line[at : match.start()]
        at, start = match.end(), len(text)
        text += ESCAPED.sub(r"\1", entity or match[0])
        if label:
            entities.append((start, len(text), label))
    return text + line[at:], entities


def _trim(where: str, text: str, entity: Entity, journal: Journal) -> Optional[Entity]:
    """Take whitespace off an entity's edges, if that is to be mended; None if nothing is left."""
    start, end, label = entity
    inner = text[start:end].strip()
    if len(inner) == end - start:
        return entity
    expected = "an entity of whole tokens, without whitespace at an edge"
    problem = error(where, expected, repr(text[start:end]), "Move the brackets to its words")
    if not inner:
        journal.rejected("whitespace", problem, entities=1)
        return None
    journal.repaired("whitespace", problem)
    start += len(text[start:end]) - len(text[start:end].lstrip())
    return start, start + len(inner), label


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


def _align(
    where: str, doc: Doc, entity: Entity, before: List[Span], journal: Journal
) -> Tuple[List[Span], List[int]]:
    """Find the tokens of an entity: its span, if it has one, and those without annotation."""
    start, end, label = entity
    span = doc.char_span(start, end, label)
    if span is None:
        touched = [token for token in doc if token.idx < end and start < token.idx + len(token)]
        got = f"{doc.text[start:end]!r} in the tokens {[token.text for token in touched]}"
        fix = "Move the brackets to where tokens begin and end, or put spaces around the entity"
        problem = error(where, "an entity of whole tokens", got, fix)
        if journal.alignment == "missing":
            journal.aligned(problem, entities=1)
            return [], [token.i for token in touched]
        if journal.alignment != "strict":
            span = doc.char_span(start, end, label, alignment_mode=journal.alignment)
        if not span:
            journal.rejected("alignment", problem, entities=1)
            return [], []
        journal.aligned(problem)
    if before and span.start < before[-1].end:
        got = f"{span.text!r} and {before[-1].text!r}"
        fix = "Put spaces around the entities"
        problem = error(where, "entities without a token in common", got, fix)
        journal.rejected("overlap", problem, entities=1)
        return [], []
    return [span], []
