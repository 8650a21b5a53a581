"""Make a Doc of each record: the one place that checks, aligns, repairs and counts annotation."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from spacy.attrs import SENT_START
from spacy.language import Language
from spacy.tokens import Doc

from ..input_error import CorpusError
from ..tags import SpanOffsets
from . import iob
from .counting import (
    Offsets,
    OffsetSurvey,
    in_characters,
    including_end,
    matched_in_utf16,
    units_of,
)
from .json_records import is_text, shorten, store_meta
from .lines import Problem
from .offsets import (
    divide_tokens,
    set_annotated_labels,
    set_entities,
    set_incorrect_spans,
    tokenize,
)
from .record import RawSpan, Record
from .repair_log import ConversionLog, error

# Entities, incorrect spans, parts without annotation, and sentence starts.
InCharacters = tuple[list[RawSpan], list[RawSpan], list[tuple[int, int]], list[Any]]
Decoded = tuple[list[SpanOffsets], list[iob.InvalidTag]]
# Reads the records of a file, and counts in a log what it skips.
ReadRecords = Callable[[ConversionLog], Iterable[Record]]


def make_docs(
    path: Path,
    nlp: Language,
    log: ConversionLog | None,
    read: ReadRecords,
    one_pass: bool = False,
) -> Iterator[Doc]:
    """Make a Doc of each record of a file, one at a time.

    Args:
        path: The file, for `log.tag_schemes`.
        nlp: Pipeline with the vocabulary, and the tokenizer for records without words. Words whose
            spaces are known have its norms, if it makes the same tokens.
        log: Decides what happens to mistakes, and counts them: those of `set_entities`, "record" or
            the kind of `Record.problem` for a record that cannot be read (it is left out), "tags"
            for an invalid sequence of tags (read as IOB), and "sentence" for a sentence that begins
            inside a token.
        read: Yields the records. It is called twice: a first pass finds the scheme of the tags and
            what the offsets count, which depend on the whole file.
        one_pass: The records need no first pass: they have no tags, and their offsets count
            characters.
    """
    log = log or ConversionLog()
    scheme, offsets = ("", Offsets()) if one_pass else _survey(path, nlp, log, read)
    standard, closed = iob.spelled(scheme), iob.is_closed(scheme)
    places: dict[int, str] = {}  # for each id, a hash and the last part of its place: 150 bytes
    for record in read(log):
        record.tags = [[tag and standard(tag) for tag in tags] for tags in record.tags]
        bad_tags = _check_tags(record)
        problem = record.problem or bad_tags
        decoded = [iob.decode_tags([tag or "O" for tag in tags], closed) for tags in record.tags]
        try:
            if problem:
                raise problem[1]
            _check_new_id(record.where, record.id, places)
            doc = _to_doc(record, nlp, log, offsets, decoded)
        except CorpusError as bad:
            entities = len(record.spans) + sum(len(spans) for spans, _ in decoded)
            log.read(entities=entities)
            log.rejected(problem[0] if problem else "record", bad, records=1, entities=entities)
            continue
        log.read()
        yield doc


def _survey(
    path: Path, nlp: Language, log: ConversionLog, read: ReadRecords
) -> tuple[str, Offsets]:
    """Find what depends on the whole file: the scheme of its tags, and what its offsets count."""
    survey = OffsetSurvey(lambda record: _tokens(record, nlp))
    has_tags = False

    def tags() -> Iterator[list[str | None]]:
        nonlocal has_tags
        for record in read(replace(log, repair=True)):
            if record.spans or record.incorrect:
                survey.add(record)
            has_tags |= bool(record.tags)
            yield from record.tags

    scheme = iob.find_scheme(tags())
    if has_tags:
        log.tag_schemes[str(path)] = scheme
    found = survey.result(str(path))
    if found.inclusive:
        log.note(f"{path}: the offsets of the ends of spans are those of their last characters.")
    return scheme, found


def _check_new_id(where: str, identity: object, places: dict[int, str]) -> None:
    if identity is None:
        return
    if type(identity) not in (str, int):
        raise error(where, "a string or a whole number for 'id'", shorten(identity))
    place = where.rpartition(", ")[2]
    # Hash the repr, because hash(-1) == hash(-2).
    first = places.setdefault(hash(repr(identity)), place)
    if first != place:
        fix = "Keep one of the two, or give them different ids"
        raise error(where, "an id that is new", f"{shorten(identity)}, as in {first}", fix)


def _to_doc(
    record: Record, nlp: Language, log: ConversionLog, offsets: Offsets, decoded: list[Decoded]
) -> Doc:
    """Make the Doc of a record. It raises CorpusError, if at all, before it counts any entity."""
    where, doc = record.where, _tokens(record, nlp)
    if record.tags:
        record = _with_spans(record, doc, decoded, log)
    if log.spans_key is not None and (record.partial or record.missing):
        fix = "Annotate all of it, or convert it without --spans-key"
        raise error(where, "a completely annotated text", "parts without annotation", fix)
    spans, incorrect, missing, starts = _in_characters(record, doc.text, offsets, log)
    doc = divide_tokens(doc, spans, record.may_divide, log, where)
    if record.meta:
        store_meta(where, doc, record.meta)
    set_entities(doc, spans, log, where, partial=record.partial, missing=missing)
    if record.labels is not None:
        set_annotated_labels(doc, record.labels, log, where)
    if incorrect:
        set_incorrect_spans(doc, incorrect, log, where)
    if starts:
        _set_sentence_starts(where, doc, starts, log)
    return doc


def _in_characters(record: Record, text: str, offsets: Offsets, log: ConversionLog) -> InCharacters:
    """Convert what the offsets of a record count."""
    counting = record.counts_in or offsets.counting
    units = units_of(text, counting)
    parts = [_range(record.where, len(units) - 1, part) for part in record.missing]
    given = record.spans, record.incorrect, parts, [*record.sent_starts]
    spans, incorrect = (in_characters(each, units) for each in given[:2])
    missing = [(units[start], units[end]) for start, end in parts]
    starts = [units[at] if type(at) is int and 0 <= at < len(units) - 1 else at for at in given[3]]
    if record.counts_in is None and (spans, incorrect, missing, starts) != given:
        fix = f"The spans are whole tokens if they count in {counting}: convert them with --repair"
        problem = error(record.where, "offsets that count characters", counting, fix)
        log.repaired(counting.replace("-", "").lower(), problem)
    spans, incorrect = (
        [_by_its_text(record.where, text, span, log) for span in each]
        for each in (spans, incorrect)
    )
    if record.inclusive or (offsets.inclusive and record.counts_in is None):
        if not (record.inclusive or offsets.is_certain) and (spans or incorrect):
            fix = "The spans are whole words only with their last characters: convert with --repair"
            problem = error(record.where, "offsets with exclusive ends", "inclusive ones", fix)
            log.repaired("inclusive", problem)
        spans, incorrect = (
            [including_end(text, span) for span in each] for each in (spans, incorrect)
        )
    return spans, incorrect, missing, starts


def _by_its_text(where: str, text: str, span: RawSpan, log: ConversionLog) -> RawSpan:
    """Convert a span whose own text shows that it counts in UTF-16."""
    if (moved := matched_in_utf16(text, span)) is None:
        return span
    got, fix = f"offsets {span.start}:{span.end} in UTF-16", "Convert them with --repair"
    log.repaired("utf16", error(where, f"the text {shorten(span.text)}", got, fix))
    return moved


def _range(where: str, length: int, part: object) -> tuple[int, int]:
    if isinstance(part, (list, tuple)) and len(part) == 2 and all(type(at) is int for at in part):
        start, end = part
        if 0 <= start < end <= length:
            return start, end
    expected = f"[start, end] within the {length} characters of the text for 'missing'"
    raise error(where, expected, shorten(part))


def _tokens(record: Record, nlp: Language) -> Doc:
    """Make the Doc of a record, with its own tokens or those of the tokenizer."""
    if record.words is None:
        return tokenize(record.text, nlp, record.where)
    if record.text is not None and not is_text(record.text):
        raise error(record.where, "a text, in Unicode", shorten(record.text))
    doc = Doc(nlp.vocab, record.words, record.spaces)
    text = "" if record.text is record.spaces is None else doc.text
    if record.text not in (None, text):
        fix = "Correct the tokens, their 'ws' (a space comes after), or leave them out"
        expected = f"tokens that make up {shorten(record.text)}"
        raise error(record.where, expected, shorten(text), fix)
    if record.spaces is not None and len(text) <= nlp.max_length:
        tokenized = nlp.make_doc(text)
        same = [*zip(record.words, record.spaces)] == [
            (token.text, bool(token.whitespace_)) for token in tokenized
        ]
        if same and not tokenized.has_unknown_spaces:
            return tokenized  # it has the norms of exceptions
    return doc


def _set_sentence_starts(where: str, doc: Doc, starts: list[Any], log: ConversionLog) -> None:
    """Set sentence starts at these characters; remove those inside tokens."""
    tokens = {0: 0} if starts == [0] and len(doc) else {token.idx: token.i for token in doc}
    flags: Any = np.full((len(doc), 1), -1)
    for start in starts:
        if type(start) is int and start in tokens:
            flags[tokens[start]] = 1
        else:
            fix = "Correct 'sent_starts', or use the tokenizer of the corpus"
            problem = error(where, "a sentence that begins with a token", shorten(start), fix)
            log.repaired("sentence", problem)
    if len(doc):
        doc.from_array([SENT_START], flags.astype("uint64"))


# Tags


def _check_tags(record: Record) -> Problem | None:
    """Return the first mistake of the words and tags of a record; such tags become O."""
    words, first = record.words or [], None
    if any(len(tags) != len(words) for tags in record.tags):
        got = f"{len(words)} words and {' and '.join(str(len(tags)) for tags in record.tags)} tags"
        record.tags.clear()
        return "row", error(record.where, "a tag for each token", got, "Correct the row")
    if all(words) and all(map(iob.is_tag, {tag for tags in record.tags for tag in tags if tag})):
        return None
    for i, word in enumerate(words if record.tags else ()):
        bad = [tags[i] for tags in record.tags if tags[i] and not iob.is_tag(tags[i])]
        if (bad or not word) and not first:
            got = f"{word!r} and {(bad or [record.tags[0][i]])[0]!r}"
            fix = f"A tag is O, or one of {iob.PREFIXES} with a hyphen and one label"
            problem = error(_place(record, i), "a token and a tag, as O or B-PER", got, fix)
            first = "tag" if word else "token", problem
        for tags in record.tags if bad or not word else ():
            tags[i] = "O"
    return first


def _place(record: Record, word: int) -> str:
    return record.places[word] if record.places else record.where


def _with_spans(record: Record, doc: Doc, decoded: list[Decoded], log: ConversionLog) -> Record:
    """Give a record spans instead of its tags."""
    words = record.words or []
    for tags, (_, invalid) in zip(record.tags, decoded):
        for i, expected in invalid:
            got = "O (the end of the sentence)" if i == len(tags) else f"{tags[i]} ({words[i]})"
            place = _place(record, min(i, len(tags) - 1))
            log.repaired("tags", error(place, expected, got, iob.CLOSED_SCHEMES))
    edges = [(token.idx, token.idx + len(token)) for token in doc]
    spans = [
        RawSpan(edges[start][0], edges[end - 1][1], label, where=_place(record, start))
        for found, _ in decoded
        for start, end, label in found
    ]
    missing = [edges[i] for i, tag in enumerate(record.tags[0]) if tag is None]
    return replace(record, spans=spans, missing=missing)
