"""Merge answers: an answer overwrites the corpus annotation of its tokens.

Answers are Docs. Each says something of its annotated tokens, and of its incorrect spans, and
nothing of other tokens. They are about all labels, unless they have annotated labels themselves.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from spacy.language import Language
from spacy.tokens import Doc, Span

from ..input_error import CorpusError
from ..ml.zero_width import is_blank
from ..pipeline.annotated_labels import KEY, annotated_labels, mark_annotated_labels
from ..tags import SpanOffsets
from .conversion import read_corpus, read_gold
from .docbin import check_new_docbin, write_docbin
from .json_records import shorten
from .offsets import INCORRECT, aligned
from .repair_log import ConversionLog, error

NO_ENTITIES = KEY, INCORRECT  # keys in doc.spans
ALL = ""  # labels
# The tokens of a doc that answers annotate, by the labels that they are about: (T,).
Known = dict[str, NDArray[np.bool_]]


class AnswerSpans(NamedTuple):
    """What an answer says, in the tokens of a doc with its text."""

    ents: list[Span]  # of whole tokens of the doc
    incorrect: list[Span]  # the same
    given: list[Span]  # all of its spans
    now: NDArray[np.bool_]  # whether it annotates a token: (T,)
    labels: set[str] | None  # that it is about; None for all

    def covers(self, doc: Doc) -> bool:
        """Whether it annotates all words of the doc."""
        return all(self.now[token.i] or is_blank(token.text) for token in doc)


def merge(
    answers: Sequence[Path],
    corpus: Path,
    target: Path,
    *,
    nlp: Language,
    log: ConversionLog | None = None,
) -> Counter[str]:
    """Merge answers into a corpus, see `merge_answers`, and write the result.

    Args:
        answers: Files or folders in any format.
        corpus: A file or folder in any format, without mistakes; the parts of a folder are one.
        target: A new .spacy file.
        nlp: Pipeline with the vocabulary, and the tokenizer for formats without tokens.
        log: Decides what happens to mistakes in answers, and counts them; it has no spans_key.
            None: all mistakes are raised together.

    Returns:
        The numbers of docs, sentences, tokens and entities that were written, and of the entities
        of each label, as "entities.PERSON".

    Raises:
        InputError: For a target that is not a new .spacy file, or is in a folder that is read.
        CorpusError: For a corpus or answers that cannot be read, and if repairs leave out more of
            the answers than the `max_loss` of the log.
    """
    check_new_docbin(target, [*answers, corpus])
    log = log or ConversionLog()
    where = ", ".join(map(str, answers))
    log.start_part("answers")
    log.collects = True
    given = [doc for path in answers for doc in read_corpus([path], nlp, log)]

    def merged() -> Iterator[Doc]:
        yield from merge_answers(read_gold(corpus, nlp, ConversionLog())[1], given, log)
        log.check_no_mistakes(where)
        log.check_kept(where)

    return write_docbin(merged(), target)


def merge_answers(
    corpus: Iterable[Doc], answers: Iterable[Doc], log: ConversionLog
) -> Iterator[Doc]:
    """Merge answers into the docs with the same text, up to whitespace at its ends.

    Args:
        corpus: Docs; they are changed. Their tokens are kept.
        answers: Docs with the same vocabulary; all are in memory. A later one that contradicts an
            earlier one is an error, or left out: an entity or outside token against another entity,
            or an entity against an incorrect span.
        log: Decides about contradictions, "contradiction", entities that do not align with the
            tokens of the corpus, "alignment", answers whose annotated labels lack some of the
            doc's, "label", and docs whose entities are in `doc.spans`, "spans". It counts in
            `merged`: "answers", "unchanged" docs of the corpus, "changed" docs, and "added" ones,
            whose texts the corpus does not have.

    Yields:
        The docs of the corpus in order, then the added ones.
    """
    by_text: dict[str, list[Doc]] = {}
    for answer in answers:
        log.merged["answers"] += 1
        by_text.setdefault(answer.text.strip(), []).append(answer)
    unused = dict.fromkeys(by_text)
    left_out: set[int] = set()
    for doc in corpus:
        text = doc.text.strip()  # converters write whitespace, and annotation tools drop it
        unused.pop(text, None)
        changed = _merge(doc, by_text.get(text, ()), log, left_out)
        log.merged["changed" if changed else "unchanged"] += 1
        yield doc
    for text in unused:
        blank = by_text[text][0].copy()
        blank.set_ents([], default="missing")
        blank.spans.pop(INCORRECT, None)
        others = {key: blank.spans.pop(key) for key in [*blank.spans] if key != KEY}
        _merge(blank, by_text[text], log, left_out)
        blank.spans.update(others)
        log.merged["added"] += 1
        yield blank


def _merge(doc: Doc, answers: Iterable[Doc], log: ConversionLog, left_out: set[int]) -> bool:
    """Merge answers into a doc; `left_out` gets the ids of those that cannot be used."""
    before, labels = _content(doc), annotated_labels(doc)
    known: Known = {}
    denied: set[SpanOffsets] = set()  # the incorrect spans of answers
    for answer in answers:
        said = _in_tokens_of(doc, answer)
        if found := _problem(doc, said, labels, known, denied):
            if id(answer) not in left_out:
                log.rejected(*found, records=1, entities=len(answer.ents))
            left_out.add(id(answer))
            continue
        _apply(doc, said)
        for label in [ALL] if said.labels is None else said.labels:
            known[label] = said.now | known.get(label, False)
        denied |= {_key(span) for span in said.incorrect}
    return _content(doc) != before


def _in_tokens_of(doc: Doc, answer: Doc) -> AnswerSpans:
    shift = _leading_whitespace(doc.text) - _leading_whitespace(answer.text)
    incorrect = answer.spans.get(INCORRECT, ())
    places = np.arange(len(doc.text) + 1) - shift
    characters = (places >= 0) & (places < len(answer.text))
    for token, is_known in zip(answer, _annotated(answer)):
        start, end = (max(at + shift, 0) for at in (token.idx, token.idx + len(token)))
        characters[start:end] &= is_known
    covered = [characters[token.idx : token.idx + len(token)].all() for token in doc]
    return AnswerSpans(
        aligned(doc, answer.ents, shift),
        aligned(doc, incorrect, shift),
        [*answer.ents, *incorrect],
        np.array(covered, dtype=bool),
        annotated_labels(answer),
    )


def _leading_whitespace(text: str) -> int:
    return len(text) - len(text.lstrip())


def _problem(
    doc: Doc, said: AnswerSpans, labels: set[str] | None, known: Known, denied: set[SpanOffsets]
) -> tuple[str, CorpusError] | None:
    """Return why an answer cannot be used, with the labels of the doc before all answers."""
    in_spans = sorted(key for key, spans in doc.spans.items() if spans and key not in NO_ENTITIES)
    if in_spans and not _annotated(doc).any():
        kind, expected = "spans", "a doc of the corpus with entities in doc.ents"
        got = "only " + ", ".join(f"doc.spans[{key!r}]" for key in in_spans)
        fix = "Convert the answers with --spans-key to a corpus of their own"
    elif said.labels is not None and (labels is None or not said.labels.issuperset(labels)):
        kind, got = "label", f"the annotated labels {sorted(said.labels)}"
        expected = "one about all labels" + (f", or at least {sorted(labels)}" if labels else "")
        fix = "Convert it with the same --labels"
    elif len(said.ents) + len(said.incorrect) < len(said.given):
        kind, expected = "alignment", "spans of whole tokens of the corpus"
        got, fix = shorten(said.given), "Use the tokenizer of the corpus, or leave the answer out"
    elif contested := _contested(doc, said, known, denied):
        start, end, label = min(contested)
        kind, expected = "contradiction", "answers that agree"
        got = f"two that differ in {shorten(doc[start:end].text)} ({label})"
        fix = "Correct one of them, or keep the first with --repair"
    else:
        return None
    return kind, error(f"the answer about {shorten(doc.text)}", expected, got, fix)


def _contested(
    doc: Doc, said: AnswerSpans, known: Known, denied: set[SpanOffsets]
) -> set[SpanOffsets]:
    """Find the entities about which an answer differs from earlier ones."""
    now, own = said.now, said.labels
    # Only an answer about the whole text, and more labels, adds to what earlier ones say.
    adds = own is not None and own.union([ALL]).issuperset(known) and said.covers(doc)

    def told(ent: SpanOffsets) -> NDArray[np.bool_]:
        start, end, label = ent
        found = np.zeros(end - start, dtype=bool)
        for each in (ALL, label) if adds else [*known]:
            if each in known:
                found |= known[each][start:end]
        return found

    ents = {_key(ent) for ent in said.ents}
    before = {_key(ent) for ent in doc.ents if told(_key(ent)).all()}
    no = {_key(span) for span in said.incorrect}
    return (
        {ent for ent in before - ents if now[ent[0] : ent[1]].any()}
        | {ent for ent in ents - before if told(ent).any()}
        | {ent for ent in ents if _is_among(ent, denied)}
        | {ent for ent in before if _is_among(ent, no)}
    )


def _apply(doc: Doc, said: AnswerSpans) -> None:
    """Replace the annotation of a doc where an answer has one.

    A doc with annotated labels has all labels annotated after an answer about all of its tokens,
    or those of the answer. After one about an entity of another label, all too; then, its tokens
    that were outside of entities of the annotated labels are unknown.
    """
    now = said.now.copy()
    ids = {_key(ent): (ent.kb_id_, ent.id_) for ent in doc.ents}
    denied = {_key(span) for span in said.incorrect}
    unknown = {token.i for token in doc if not token.ent_iob}
    kept = []
    for ent in doc.ents:
        if not now[ent.start : ent.end].any() and not _is_among(_key(ent), denied):
            kept.append(ent)
            continue
        for token in ent:  # nothing is known about them; set_ents keeps old ids
            unknown.add(token.i)
            token.ent_id, token.ent_kb_id = 0, 0
    given = [*said.ents]
    labels, own = annotated_labels(doc), said.labels
    is_whole = said.covers(doc)
    is_other = labels is not None and not labels.issuperset(ent.label_ for ent in given)
    if is_other and not (is_whole and own):
        unknown.update(token.i for token in doc if not token.ent_type)
        if own:  # its tokens outside of entities may be in entities of further labels
            now[:] = False
            for ent in given:
                now[ent.start : ent.end] = True
    if is_whole or is_other:
        doc.spans.pop(KEY, None)
    for i, ent in enumerate(given):  # annotation tools drop the ids
        if not ent.kb_id and not ent.id:
            kb_id, span_id = ids.get(_key(ent), ("", ""))
            given[i] = Span(doc, *_key(ent), kb_id=kb_id, span_id=span_id)
    blank = [doc[i : i + 1] for i in sorted(unknown.difference(np.flatnonzero(now).tolist()))]
    doc.set_ents([*kept, *given], missing=blank, default="outside")
    if own is not None and is_whole:
        mark_annotated_labels(doc, sorted(own | (labels or set())))
    found = {_key(span): span for span in (*doc.spans.get(INCORRECT, ()), *said.incorrect)}
    for ent in doc.ents:
        for label in (ent.label_, ""):
            found.pop((ent.start, ent.end, label), None)
    if found or INCORRECT in doc.spans:
        doc.spans[INCORRECT] = [found[key] for key in sorted(found)]


def _is_among(ent: SpanOffsets, incorrect: set[SpanOffsets]) -> bool:
    """Whether an entity is denied, under its label or under any."""
    return ent in incorrect or (*ent[:2], "") in incorrect


def _annotated(doc: Doc) -> NDArray[np.bool_]:
    return np.array([token.ent_iob != 0 for token in doc], dtype=bool)


def _key(span: Span) -> SpanOffsets:
    return span.start, span.end, span.label_


def _content(doc: Doc) -> object:
    incorrect = sorted(_key(span) for span in doc.spans.get(INCORRECT, ()))
    ents = [(each.ent_iob, each.ent_type_, each.ent_kb_id_, each.ent_id_) for each in doc]
    return ents, incorrect, annotated_labels(doc)
