"""Set entities given by character offsets on the tokens of a Doc.

Offsets count Unicode code points, from 0; the end is exclusive.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise

from spacy.language import Language
from spacy.tokens import Doc, Span
from spacy.util import get_words_and_spaces

from ..input_error import CorpusError, did_you_mean
from ..ml.zero_width import is_blank
from ..pipeline.annotated_labels import mark_annotated_labels
from ..pipeline.gold import gold_entities
from ..tags import SpanOffsets
from .json_records import is_text, shorten
from .lines import Problem
from .record import RawSpan
from .repair_log import ConversionLog, error
from .token_rules import places_inside

# Key of doc.spans for spans that are not entities, for the component's incorrect_spans_key.
INCORRECT = "incorrect_spans"

WHITESPACE = (
    "an entity that has characters beside whitespace",
    "Move its edges to its words, or tag it O",
)
LABEL = "a label without whitespace at its edges and line breaks", "Correct the label"
DUPLICATE = "a span once", "Remove one of the two"
MOVED = "expand", "contract"  # choices of `log.alignment` that move the edges of an entity
CONFLICT = "Remove this span or the other one, or move its edges"
OVERLAP = "entities without a common token", f"{CONFLICT}, or keep both with --spans-key"


def aligned(doc: Doc, spans: Iterable[Span], shift: int = 0) -> list[Span]:
    """Find spans of another doc, moved by some characters; those that do not align are left out."""
    found = []
    for span in spans:
        at = span.start_char + shift, span.end_char + shift, span.label_
        found.append(doc.char_span(*at, kb_id=span.kb_id_, span_id=span.id_))
    return [span for span in found if span is not None]


def tokenize(text: object, nlp: Language, where: str) -> Doc:
    """Tokenize a text. Raises CorpusError unless it is a string that the pipeline accepts."""
    if not isinstance(text, str) or not is_text(text):
        raise error(where, "a text, in Unicode", shorten(text))
    if len(text) > nlp.max_length:
        expected = f"a text of at most {nlp.max_length:,} characters"
        raise error(where, expected, f"{len(text):,}", "Split the text")
    doc = nlp.make_doc(text)
    # A tokenizer that splits at spaces may add one at the end, which changes no offset.
    if not doc.text.startswith(text):
        fix = "Use a tokenizer that keeps all characters of the text"
        raise error(where, f"tokens of the text {shorten(text)}", shorten(doc.text), fix)
    return doc


def set_entities(
    doc: Doc,
    spans: Iterable[RawSpan],
    log: ConversionLog,
    where: str,
    partial: bool = False,
    missing: Iterable[tuple[int, int]] = (),
) -> Doc:
    """Set the entities of a Doc: doc.ents, or `doc.spans[log.spans_key]` in text order.

    Tokens of an entity that is left out are not annotated: they are not outside. If its place is
    unknown, because of its offsets or its text, only the tokens of other entities are annotated.
    With a spans key, all of a text counts as annotated.

    Args:
        log: Decides what happens to mistakes, and counts them:
            - "offsets": not two integers within the text, start before end,
            - "label": not a string, or an empty one; whitespace at its edges and line breaks, which
                are removed,
            - "text": the text of the span differs from the one in the file, ignoring whitespace,
            - "whitespace": a span of nothing else; at an edge, it is trimmed, which is no mistake,
            - "duplicate": the same offsets and label again; one is kept,
            - "discontinuous": a span of several parts, see `log.discontinuous`,
            - "overlap": a token is already in another entity, unless there is a spans key,
            - "alignment": an edge lies inside a token, see `log.alignment`. Of spans that are equal
                after that, one is kept, which is no mistake.
        partial: Tokens that are not in entities are not annotated, instead of outside.
        missing: (start, end) of the parts of the text that are not annotated, except entities in
            them.
    """
    ents: dict[SpanOffsets, Span] = {}
    taken: set[int] = set()
    parts = (doc.char_span(start, end, alignment_mode="expand") for start, end in missing)
    unknown = {token.i for part in parts for token in part or ()}
    for span in _valid_spans(doc, spans, log, where, unknown):
        ent = _align(doc, span, log, unknown)
        if ent is None:
            continue
        place, tokens = (ent.start, ent.end, ent.label_), {token.i for token in ent}
        if place in ents:
            became = f"{_shown(doc.text, span)} became one with another."
            log.aligned("aligned.duplicate", became, entities=1)
        elif log.spans_key is None and taken & tokens:
            log.rejected("overlap", _error(doc.text, span, *OVERLAP), entities=1)
            unknown |= tokens
        else:
            taken |= tokens
            ents[place] = ent
    if log.spans_key is not None:
        doc.spans[log.spans_key] = sorted(ents.values(), key=lambda ent: (ent.start, -ent.end))
        return doc
    blank = [doc[i : i + 1] for i in sorted(unknown.difference(taken))]
    doc.set_ents([*ents.values()], missing=blank, default="missing" if partial else "outside")
    return doc


def set_incorrect_spans(doc: Doc, spans: Iterable[RawSpan], log: ConversionLog, where: str) -> None:
    """Set `doc.spans[INCORRECT]`: spans that are no entities, without a label not of any."""
    gold = gold_entities(doc, log.spans_key)
    entities = {(ent.start, ent.end, label) for ent in gold for label in (ent.label_, "")}
    incorrect: list[Span] = []
    for span in _valid_spans(doc, spans, log, where):
        aligned = _char_span(doc, span)
        if not aligned:
            log.rejected("alignment", _misaligned(doc, span))
        elif (aligned.start, aligned.end, span.label) in entities:
            problem = _error(doc.text, span, "a span that is an entity or is none", CONFLICT)
            log.rejected("contradiction", problem)
        else:
            incorrect.append(aligned)
    doc.spans[INCORRECT] = incorrect


def set_annotated_labels(doc: Doc, labels: Sequence[str], log: ConversionLog, where: str) -> Doc:
    """Mark a doc as annotated with these labels only; entities of other labels are rejected."""
    gold = gold_entities(doc, log.spans_key)
    outside = [ent for ent in gold if ent.label_ not in labels]
    for ent in outside:
        span = f"the entity {ent.text[:60]!r} of the label {ent.label_!r}"
        fix = "Add the label to the annotated ones, or remove the entity"
        hints = (did_you_mean(label, [ent.label_]) for label in labels)
        expected, hint = f"entities of the annotated labels {[*labels]}", max(hints, default="")
        problem = error(where, expected, span, fix, hint)
        log.rejected("label", problem, entities=1)
    if outside and log.spans_key is not None:
        doc.spans[log.spans_key] = [ent for ent in gold if ent.label_ in labels]
    elif outside:
        for token in (token for ent in outside for token in ent):
            token.ent_id, token.ent_kb_id = 0, 0  # set_ents keeps them
        doc.set_ents([], outside=outside, default="unmodified")
    mark_annotated_labels(doc, labels, log.spans_key)
    return doc


def trim_whitespace(
    pieces: Sequence[str], start: int, end: int, is_space: Callable[[str], bool] = str.isspace
) -> tuple[int, int]:
    """Trim whitespace from a span of characters of a text, or of tokens of a list of words."""
    while start < end and is_space(pieces[start]):
        start += 1
    while start < end and is_space(pieces[end - 1]):
        end -= 1
    return start, end


def _trim(doc: Doc, span: RawSpan) -> tuple[int, int]:
    """Trim whitespace, and tokens that are marks of no width, from a span with visible text."""
    start, end = span.start, span.end
    tokens = doc.char_span(start, end)
    if tokens is None:
        start, end = trim_whitespace(doc.text, start, end)
        tokens = doc.char_span(start, end)
    if tokens is not None:
        words = [token.text for token in tokens]
        first, last = trim_whitespace(words, 0, len(words), is_blank)
        start, end = tokens[first].idx, tokens[last - 1].idx + len(words[last - 1])
    return start, end


def _valid_spans(
    doc: Doc,
    spans: Iterable[RawSpan],
    log: ConversionLog,
    where: str,
    unknown: set[int] | None = None,
) -> Iterator[RawSpan]:
    """Check and trim spans; `unknown` gets the tokens of rejected entities, if they are some."""
    text, entities = doc.text, int(unknown is not None)
    seen: set[RawSpan] = set()
    for span in _continuous(doc, spans, log, where, unknown):
        if found := problem_of(text, span, entities):
            log.read(records=0, entities=entities)
            log.rejected(*found, entities=entities)
            if unknown is not None:
                unknown.update(_possible_tokens(doc, span, found[0]))
            continue
        start, end = _trim(doc, span)
        if (start, end) != (span.start, span.end):
            log.counts["trimmed.whitespace"] += 1  # nothing is lost
        lines = (line.strip() for line in (span.label or "").splitlines())
        label = " ".join(filter(None, lines))
        if label != (span.label or ""):
            became = f"{_shown(text, span)} became {label!r}."
            log.repaired("label", _error(text, span, *LABEL), became)
        span = span._replace(start=start, end=end, label=label)
        if (key := RawSpan(*span[:3])) in seen:
            log.repaired("duplicate", _error(text, span, *DUPLICATE))
            continue
        seen.add(key)
        log.read(records=0, entities=entities)
        yield span


def _continuous(
    doc: Doc, spans: Iterable[RawSpan], log: ConversionLog, where: str, unknown: set[int] | None
) -> Iterator[RawSpan]:
    """Yield spans with their places; a discontinuous one as `log.discontinuous` says."""
    text, kind = doc.text, f"discontinuous.{log.discontinuous}"
    for span in spans:
        span = span._replace(where=span.where or where)
        if len(span.parts) < 2 or span.problem:
            yield span
            continue
        within = all(0 <= start < end <= len(text) for start, end in span.parts)
        found = " ".join(text[start:end] for start, end in span.parts)
        hull = span._replace(
            start=span.parts[0][0], end=max(end for _, end in span.parts), text=None
        )
        if log.discontinuous == "strict" or not within:
            got = f"{len(span.parts)} parts, {shorten(found)}"
            fix = "Use --discontinuous hull, parts or skip, or annotate one part"
            problem = error(span.where, "one pair of offsets", got, fix)
            yield span._replace(problem=("discontinuous", problem))
        elif span.text is not None and not same_text(found, span.text):
            yield hull._replace(text=span.text)  # which is a mistake
        elif log.discontinuous == "hull":
            log.aligned(kind, f"{_shown(text, hull)} is the hull of {shorten(found)}.")
            yield hull
        elif log.discontinuous == "parts":
            log.aligned(kind, f"{span.where}: {shorten(found)} became {len(span.parts)} entities.")
            yield from (span._replace(start=a, end=b, text=None, parts=()) for a, b in span.parts)
        else:
            log.read(records=0, entities=1)
            log.aligned(kind, f"{span.where}: {shorten(found)} became not annotated.", entities=1)
            if unknown is not None:
                unknown.update(_possible_tokens(doc, span, "discontinuous"))


def same_text(found: str, said: str) -> bool:
    """Whether a text is what a file says, but for whitespace; line feeds may be escaped there."""
    return found.split() in (said.split(), said.replace("\\n", " ").split())


def problem_of(text: str, span: RawSpan, entities: int = 1) -> Problem | None:
    """Return why a span is invalid, or None. `entities` is 0 for one that is not an entity."""
    start, end, label = span[:3]
    if span.problem:
        return span.problem
    if not (type(start) is int and type(end) is int and 0 <= start < end <= len(text)):
        expected = f"whole numbers, 0 <= start < end <= {len(text)}"
        fix = "Correct the offsets, which count the characters of the text"
        got = f"start={shorten(start)}, end={shorten(end)}"
        return "offsets", error(span.where, expected, got, fix)
    named = (isinstance(label, str) and label.strip()) or (label in ("", None) and not entities)
    if not named or not all(value is None or is_text(value) for value in span[2:5]):
        got = f"{shorten(span[2:5])} for {shorten(text[start:end])}"
        fix = "Give the span one label, or remove it"
        return "label", error(span.where, "strings for the label and the ids", got, fix)
    if span.text is not None and not same_text(text[start:end], span.text):
        fix = "Correct the offsets, which count characters, or use the text that was annotated"
        return "text", _error(text, span, f"the text {shorten(span.text)}", fix)
    return ("whitespace", _error(text, span, *WHITESPACE)) if is_blank(text[start:end]) else None


def _possible_tokens(doc: Doc, span: RawSpan, problem: str) -> Iterable[int]:
    """Return the tokens that a rejected entity may have."""
    if problem == "whitespace":
        return ()
    parts = span.parts or ((span.start, span.end),)
    is_known = problem in ("label", "id", "discontinuous")
    if not is_known or not all(0 <= start < end <= len(doc.text) for start, end in parts):
        return range(len(doc))
    places = (doc.char_span(start, end, alignment_mode="expand") for start, end in parts)
    return (token.i for place in places for token in place or ())


def divide_tokens(
    doc: Doc,
    spans: Sequence[RawSpan],
    may_divide: Callable[[str, int], bool] | None,
    log: ConversionLog,
    where: str,
) -> Doc:
    """Divide tokens where an entity begins or ends, and may: any, if `log.alignment` is "split"."""
    if not spans or (not may_divide and log.alignment != "split"):
        return doc
    text, edges = doc.text, set[int]()
    for span in spans:
        if problem_of(text, span):
            continue
        span = span._replace(where=span.where or where)
        own = trim_whitespace(text, span.start, span.end)
        if log.alignment == "split" and (cut := places_inside(doc, own)):
            log.cut(cut)
            tokens = [token.text for token in _char_span(doc, span, "expand") or ()]
            became = f"{_shown(text, span)} was cut out of the tokens {shorten(tokens)}."
            log.aligned("aligned.split", became)
        edges.update(own)
    words: list[str] = []
    for token in doc:
        begin, end = token.idx, token.idx + len(token)
        inside = {
            at
            for at in edges
            if begin < at < end
            and (log.alignment == "split" or (may_divide and may_divide(token.text, at - begin)))
        }
        parts = [text[i:j].strip() for i, j in pairwise(sorted({begin, end} | inside))]
        words += filter(None, parts) if inside else [token.text]
    if len(words) == len(doc):
        return doc
    words, spaces = get_words_and_spaces(words, text)
    divided = Doc(doc.vocab, words, spaces)
    divided.has_unknown_spaces = doc.has_unknown_spaces
    return divided


def _align(doc: Doc, span: RawSpan, log: ConversionLog, unknown: set[int]) -> Span | None:
    """Align an entity as `log.alignment` says; None, and its tokens are unknown, if left out."""
    if aligned := _char_span(doc, span):
        return aligned
    log.cut(places_inside(doc, (span.start, span.end)))
    kind, became = f"aligned.{log.alignment}", f"{_shown(doc.text, span)} became"
    kept = _moved(doc, span, log.alignment) if log.alignment in MOVED else None
    if kept:
        log.aligned(kind, f"{became} {shorten(kept.text)}.")
        return kept
    if log.alignment == "missing":
        log.aligned(kind, f"{became} not annotated.", entities=1)
    else:
        log.rejected("alignment", _misaligned(doc, span), entities=1)
    unknown.update(token.i for token in _moved(doc, span, "expand") or ())
    return None


def _moved(doc: Doc, span: RawSpan, mode: str) -> Span | None:
    """Expand or contract a span to whole tokens, without whitespace at its edges."""
    kept = _char_span(doc, span, mode)
    if kept is None or mode == "expand":
        return kept
    start, end = trim_whitespace(doc.text, kept.start_char, kept.end_char)
    return _char_span(doc, span._replace(start=start, end=end), "expand")


def _char_span(doc: Doc, span: RawSpan, mode: str = "strict") -> Span | None:
    kb_id, span_id = span.kb_id or "", span.id or ""
    at = span.start, span.end, span.label
    return doc.char_span(*at, kb_id=kb_id, alignment_mode=mode, span_id=span_id)


def _error(text: str, span: RawSpan, expected: str, fix: str) -> CorpusError:
    return error(span.where, expected, _name(text, span), fix)


def _shown(text: str, span: RawSpan) -> str:
    return f"{span.where}: {_name(text, span)}"


def _name(text: str, span: RawSpan) -> str:
    return f"{shorten(text[span.start : span.end])} ({span.label}, {span.start}:{span.end})"


def _misaligned(doc: Doc, span: RawSpan) -> CorpusError:
    words = [token.text for token in _char_span(doc, span, "expand") or ()]
    moved = {mode: _moved(doc, span, mode) for mode in MOVED}
    became = [f"{shorten(kept.text)} with {mode}" for mode, kept in moved.items() if kept]
    own = shorten(doc.text[span.start : span.end])
    fix = (
        "Move its edges, use the tokenizer of the corpus, or choose --alignment: it becomes "
        f"{', '.join(became)}, {own} with split"
    )
    got = f"{_name(doc.text, span)} in the tokens {shorten(words)}"
    return error(span.where, "an entity of whole tokens", got, fix)
