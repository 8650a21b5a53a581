"""Entities given by offsets in characters, set on the tokens of a Doc.

Offsets count Unicode code points, from 0; the end is exclusive.
"""

from bisect import bisect_left, bisect_right
from typing import Any, Iterable, List, NamedTuple, Optional, Sequence, Set, Tuple, cast

from spacy.language import Language
from spacy.tokens import Doc, Span

from .json_records import is_text, shown
from .repair_log import CorpusError, Journal, error

# Of doc.spans: what is known to be no entity; the component's incorrect_spans_key is to name it.
INCORRECT = "incorrect_spans"


class Mark(NamedTuple):
    """A span as a file gives it: of what type its parts are, is not known yet."""

    start: object
    end: object
    label: object
    kb_id: object = None
    id: object = None
    where: Any = None  # its place, if it has another one than the text


def triple(span: object) -> Mark:
    """Read [0, 8, "PER"]; what is anything else has no offsets, and is refused for that."""
    return Mark(*span) if isinstance(span, list) and len(span) == 3 else Mark(span, None, None)


class _Chars(NamedTuple):
    """A span of characters within a text, without whitespace at its edges."""

    start: int
    end: int
    label: str
    kb_id: str
    id: str
    where: str
    text: str

    def __str__(self) -> str:
        return f"{shown(self.text)} ({self.label}, {self.start}:{self.end})"


def annotate(
    text: object, nlp: Language, spans: Iterable[Sequence[object]], journal: Journal, where: str
) -> Doc:
    """Tokenise a text and set its entities; the tokens that none of them has are outside.

    text: The text, which must be a string.
    nlp: Pipeline whose tokenizer is used.
    spans: (start, end, label) of each entity, or these, kb_id and id: see `mark`.
    journal: Decides what becomes of entities that are wrong, and counts them.
    where: The place of the text, for messages.

    Returns the Doc; where sentences start in it is unknown.
    Raises CorpusError for a text that cannot be tokenised, and as `mark` does.
    """
    return mark(tokenize(text, nlp, where), spans, journal, where)


def tokenize(text: object, nlp: Language, where: str) -> Doc:
    """Tokenise a text. Raises CorpusError unless it is a string that the pipeline can take."""
    if not is_text(text):
        raise error(where, "a text, in Unicode", shown(text), "Correct or remove the record")
    text = cast(str, text)
    if len(text) > nlp.max_length:
        fix = "Divide the text"
        raise error(where, f"at most {nlp.max_length:,} characters", f"{len(text):,}", fix)
    doc = nlp.make_doc(text)
    # A tokenizer that splits at spaces may add one at the end, which moves nothing.
    if not doc.text.startswith(text):
        fix = "Use a tokenizer that keeps all characters of the text"
        raise error(where, f"tokens of the text {shown(text)}", shown(doc.text), fix)
    return doc


def mark(
    doc: Doc,
    spans: Iterable[Sequence[object]],
    journal: Journal,
    where: str,
    partial: bool = False,
    missing: Iterable[Tuple[int, int]] = (),
) -> Doc:
    """Set the entities of a Doc.

    doc: Doc without entities; it is changed.
    spans: (start, end, label) of each entity, or these, kb_id and id, of any types.
    journal: Decides what becomes of these, and counts them:
        "offsets": not two whole numbers within the text, the start before the end,
        "label": not a string, or an empty one,
        "whitespace": at an edge, from where it is trimmed; or nothing else is in it,
        "duplicate": the same offsets and label again, of which one is kept,
        "overlap": a token is in an entity that the file gives before,
        "alignment": an edge within a token; `journal.alignment` says what becomes of it.
    where: The place of the text, for messages.
    partial: The tokens that no entity has are not annotated, and not outside.
    missing: (start, end) of the texts that are not annotated; what an entity has is annotated.

    Returns the same Doc. Raises CorpusError for the first mistake, unless the journal repairs.
    """
    text = doc.text  # made anew each time that it is asked for
    ents: List[Span] = []
    known: Set[Tuple[int, int, str]] = set()
    taken: Set[int] = set()
    unknown = {i for start, end in missing for i in touched(doc, start, end)}
    for span in spans:
        chars = _check(text, Mark(*span), journal, where, entities=1)
        if chars and chars[:3] in known:
            journal.repaired("duplicate", _problem(chars, "an entity once", "it again"))
            continue
        journal.read(records=0, entities=1)
        if not chars:
            continue
        known.add(chars[:3])
        tokens = _align(doc, chars, journal, unknown)
        if taken.intersection(tokens):
            problem = _problem(chars, "entities without a common token", "another's")
            journal.rejected("overlap", problem, entities=1)
        elif tokens:
            taken.update(tokens)
            ents.append(_span(doc, tokens, chars))
    unannotated = [doc[i : i + 1] for i in sorted(unknown - taken)]
    doc.set_ents(ents, missing=unannotated, default="missing" if partial else "outside")
    return doc


def mark_incorrect(
    doc: Doc, spans: Iterable[Sequence[object]], journal: Journal, where: str
) -> None:
    """Set spans that are known to be no entities, as `doc.spans["incorrect_spans"]`.

    doc: Doc whose entities are set; it is changed.
    spans: As for `mark`, but that they may overlap, and have no label: then they are no entity of
        any. One that is not of whole tokens is never moved: of its neighbours nothing is known.
    journal, where: As for `mark`.

    Raises CorpusError as `mark` does, and for a span that is also an entity.
    """
    text = doc.text
    ents = {(ent.start, ent.end, ent.label_) for ent in doc.ents}
    places = {place[:2] for place in ents}
    incorrect: List[Span] = []
    known: Set[Tuple[int, int, str]] = set()
    for given in spans:
        chars = _check(text, Mark(*given), journal, where, entities=0)
        if not chars:
            continue
        if chars[:3] in known:
            journal.repaired("duplicate", _problem(chars, "a span once", "it again"))
            continue
        known.add(chars[:3])
        tokens = touched(doc, chars.start, chars.end)
        place = (tokens.start, tokens.stop)
        if not _is_whole(doc, tokens, chars):
            journal.rejected("alignment", _misaligned(doc, chars, tokens))
        elif (*place, chars.label) in ents or (not chars.label and place in places):
            expected = "a span that is an entity or is none"
            journal.rejected("contradiction", _problem(chars, expected, "it as both"))
        else:
            incorrect.append(_span(doc, tokens, chars))
    doc.spans[INCORRECT] = incorrect


def touched(doc: Doc, start: int, end: int) -> range:
    """Tell the tokens that have any of the characters from start to end."""
    tokens = cast(Sequence[Any], doc)
    first = bisect_right(tokens, start, key=lambda token: token.idx + len(token))
    return range(first, bisect_left(tokens, end, key=lambda token: token.idx))


def _check(text: str, mark: Mark, journal: Journal, where: str, entities: int) -> Optional[_Chars]:
    """Check the parts of a span and trim it; None if it is left out.

    entities: How many are lost then: 0 where the span is known to be no entity, whose label may
        be left out.
    """
    start, end = mark.start, mark.end
    where = mark.where or where
    if not (type(start) is int and type(end) is int and 0 <= start < end <= len(text)):
        expected = f"whole numbers, 0 <= start < end <= {len(text)}"
        fix = "Correct the offsets, which count the characters of the text"
        problem = error(where, expected, f"start={shown(start)}, end={shown(end)}", fix)
        journal.rejected("offsets", problem, entities=entities)
        return None
    label, *ids = ("" if part is None else part for part in mark[2:5])
    named = isinstance(label, str) and (label.strip() or (label == "" and not entities))
    if not named or not all(map(is_text, [label, *ids])):
        got = f"{shown(mark[2:5])} for {shown(text[start:end])}"
        fix = "Label the span, or remove it"
        problem = error(where, "a label, and kb_id and id if any, that are strings", got, fix)
        journal.rejected("label", problem, entities=entities)
        return None
    covered = text[start:end]
    trimmed = start + len(covered) - len(covered.lstrip()), start + len(covered.rstrip())
    if trimmed != (start, end):
        got, fix = shown(covered), "Trim the whitespace off its ends"
        problem = error(where, "an entity that begins and ends in a word", got, fix)
        if not covered.strip():
            journal.rejected("whitespace", problem, entities=entities)
            return None
        journal.repaired("whitespace", problem)
    kb_id, span_id = map(str, ids)
    return _Chars(*trimmed, str(label), kb_id, span_id, where, covered.strip())


def _align(doc: Doc, chars: _Chars, journal: Journal, unknown: Set[int]) -> range:
    """Tell the tokens of a span, none if it is left out, as the journal has it.

    unknown: Tokens that are not annotated; it is changed.
    """
    tokens = touched(doc, chars.start, chars.end)
    if _is_whole(doc, tokens, chars):
        return tokens
    problem = _misaligned(doc, chars, tokens)
    covered = _covered(doc, tokens, chars)
    if journal.alignment == "strict" or (journal.alignment == "contract" and not covered):
        journal.rejected("alignment", problem, entities=1)
        return range(0)
    if journal.alignment == "missing":
        journal.aligned(problem, entities=1)
        unknown.update(tokens)
        return range(0)
    journal.aligned(problem)
    return covered if journal.alignment == "contract" else tokens


def _is_whole(doc: Doc, tokens: range, chars: _Chars) -> bool:
    first, last = doc[tokens[0]], doc[tokens[-1]]
    return first.idx == chars.start and last.idx + len(last) == chars.end


def _covered(doc: Doc, tokens: range, chars: _Chars) -> range:
    """The tokens that lie within a span, without those of whitespace at its edges."""
    whole = [
        i
        for i in tokens
        if chars.start <= doc[i].idx
        and doc[i].idx + len(doc[i]) <= chars.end
        and not doc[i].is_space
    ]
    return range(whole[0], whole[-1] + 1) if whole else range(0)


def _span(doc: Doc, tokens: range, chars: _Chars) -> Span:
    return Span(doc, tokens.start, tokens.stop, chars.label, kb_id=chars.kb_id, span_id=chars.id)


def _problem(chars: _Chars, expected: str, got: str) -> CorpusError:
    fix = "Remove one of the two from the corpus"
    return error(chars.where, expected, f"{got}: {chars}", fix)


def _misaligned(doc: Doc, chars: _Chars, tokens: range) -> CorpusError:
    words = shown([doc[i].text for i in tokens])
    fix = "Correct the offsets, use the tokenizer of the corpus, or choose an alignment"
    got = f"{chars} in the tokens {words}"
    return error(chars.where, "an entity that begins and ends where tokens do", got, fix)
