"""Problems that a single Doc shows."""

from collections.abc import Callable, Iterator

from spacy.tokens import Doc, Span, Token

from ..ml.zero_width import is_blank, without_marks
from ..pipeline.annotated_labels import annotated_labels
from ..pipeline.preset import IOB_MISSING
from .findings import CorpusDoc, Problem
from .settings import CheckSettings

# Symbols that may begin or end a name or quantity: 5 %, # 1, @ home, AT &; the last two are primes.
NAME_SYMBOLS = frozenset("%‰#@&*§°/\u2032\u2033")
# A full stop after one of these, or after a single letter, is part of the name.
ABBREVIATIONS = frozenset({"bros", "co", "corp", "dr", "inc", "jr", "ltd", "no", "sr", "st"})
# Of one character at most: the bytes of U+FDFA, normalized, are 33; and special ones.
SUBWORDS = 40
PAIRS = {"(": ")", "[": "]", "{": "}", "<": ">", "«": "»", "``": "''"}
PAIRS |= {"\u2018": "\u2019", "\u201c": "\u201d"}  # single and double quotation marks


def doc_problems(at: CorpusDoc, settings: CheckSettings) -> Iterator[Problem]:
    """Find the problems of a doc: its entities, its annotation, its length."""
    yield from _entity_problems(at, settings)
    yield from _length_problems(at, settings)
    if settings.make_doc is not None and not at.doc.has_unknown_spaces:
        yield from _token_problems(at, settings.make_doc)
    T, missing = len(at.doc), int((at.iob == IOB_MISSING).sum())
    if not at.doc.text.strip():
        yield "empty-doc", at.doc_place()
    elif missing == T and not at.doc.spans.get(settings.incorrect_spans_key):
        yield "no-annotation", at.doc_place()
    elif missing:
        yield "partly-annotated", at.doc_place(f"{missing} of {T} tokens not annotated")
    if at.ents and settings.spans_key is not None and settings.spans_key not in at.doc.spans:
        yield "other-key", at.doc_place()


def _entity_problems(at: CorpusDoc, settings: CheckSettings) -> Iterator[Problem]:
    """Find entities that cannot be learned or predicted, or are probably mistakes."""
    incorrect = at.doc.spans.get(settings.incorrect_spans_key, [])
    spans = {(span.start, span.end, span.label_) for span in incorrect}
    annotated = annotated_labels(at.doc)
    seen: dict[tuple[int, str], set[int]] = {}  # the starts of entities by end and label
    for ent in at.ents:
        place = at.place(ent, ent.label_)
        starts = seen.setdefault((ent.end, ent.label_), set())
        if ent.start == ent.end or ent.start in starts:
            yield "invalid-span", place
            continue
        starts.add(ent.start)
        edges = (ent[0], ent[-1])
        if any(is_blank(token.text) for token in edges):
            yield "whitespace-edge", place
        if settings.scheme != "biluo" and any(is_blank(token.text) for token in ent[1:-1]):
            yield "whitespace-inside", place
        if any(token.is_sent_start for token in ent[1:]):
            yield "crosses-sentence", place
        if ent.label_.startswith("!"):
            yield "label-mark", place
        if annotated is not None and ent.label_ not in annotated:
            yield "unknown-annotated", place
        if any(_is_stray_punctuation(token, ent) for token in edges):
            yield "punctuation-edge", place
        if spans & {(ent.start, ent.end, label) for label in ("", ent.label_)}:
            yield "right-and-wrong", place
        if len(ent) > settings.long_entity:
            yield "long-entity", place._replace(note=f"{ent.label_}, {len(ent)} tokens")
    for ent in at.ents if settings.scheme == "io" else ():
        if before := seen.get((ent.start, ent.label_)):
            yield "adjacent", at.place(at.doc[min(before) : ent.end], ent.label_)


def _length_problems(at: CorpusDoc, settings: CheckSettings) -> Iterator[Problem]:
    """Find docs and words that are too long for the transformer or the memory."""
    T, window, tokenizer = len(at.doc), settings.window, settings.tokenizer
    if window is not None and T > window:
        yield "cut-in-windows", at.doc_place(f"{T:,} tokens")
    if window is None and tokenizer is None and T > settings.long_doc:
        yield "long-doc", at.doc_place(f"{T:,} tokens")
    if tokenizer is not None:
        words = [t for t in without_marks(at.doc) if len(t) > tokenizer.longest // SUBWORDS]
        for token, each in zip(words, tokenizer.encode([token.text for token in words])):
            if len(each.ids) > tokenizer.longest:
                yield "long-word", at.place(at.doc[token.i : token.i + 1])


def _token_problems(at: CorpusDoc, make_doc: Callable[[str], Doc]) -> Iterator[Problem]:
    """Find tokens, and edges of entities, that the tokenizer of the pipeline does not make."""
    try:
        own = make_doc(at.doc.text)
    except ValueError:  # a text that is too long for it
        return
    edges = {(token.idx, token.idx + len(token)) for token in own}
    starts, ends = {start for start, _ in edges}, {end for _, end in edges}
    for token in at.doc:
        begin, end = token.idx, token.idx + len(token)
        if (begin, end) not in edges:
            covered = own.char_span(begin, end, alignment_mode="expand") or ()
            note = " ".join(repr(each.text) for each in covered)
            yield "other-tokens", at.place(at.doc[token.i : token.i + 1], f"as {note}")
    for ent in at.ents:
        if ent.start_char not in starts or ent.end_char not in ends:
            yield "misaligned-entity", at.place(ent, ent.label_)


def _is_stray_punctuation(token: Token, ent: Span) -> bool:
    """Guess whether a token at an edge of an entity is punctuation outside of the name."""
    if not (token.is_punct or token.is_quote or token.is_bracket) or token.text in NAME_SYMBOLS:
        return False
    if token.text == "." and token.i > ent.start:
        word = token.nbor(-1).lower_
        return len(word) > 1 and word not in ABBREVIATIONS
    # A bracket or quote is part of the name if its partner is in the entity.
    before = [other.text for other in ent if other.i < token.i]
    after = [other.text for other in ent if other.i > token.i]
    if token.text in PAIRS:
        return PAIRS[token.text] not in after
    if token.text in PAIRS.values():
        return token.text not in [PAIRS.get(word) for word in before]
    return not (token.is_quote and token.text in before + after)
