"""Annotated text in JSON lines, as spaCy, Prodigy and this project write it: a record a line."""

import json
from pathlib import Path
from typing import Any, Iterable, Iterator, List, Optional, Set, Tuple

from spacy.language import Language
from spacy.tokens import Doc, Span

from .atomic import whole
from .json_records import (
    META,
    Identities,
    Record,
    docs_of,
    json_lines,
    keep,
    parse,
    require_record,
    shown,
    take,
)
from .lines import Line
from .offsets import INCORRECT, Mark, mark, mark_incorrect, tokenize, triple
from .repair_log import Journal, error

ANNOTATION = ("spans", "entities", "answer", "missing", "incorrect")


def looks_like_jsonl(record: object) -> bool:
    """Tell whether a value of JSON, the first line of a file, is a record that `read_jsonl` reads.

    One of doccano may be too, if it has `entities`: ask `looks_like_doccano` before.
    """
    if isinstance(record, list):
        return len(record) == 2 and isinstance(record[0], str) and isinstance(record[1], dict)
    return (
        isinstance(record, dict) and "text" in record and not record.keys().isdisjoint(ANNOTATION)
    )


def read_jsonl(path: Path, nlp: Language, journal: Optional[Journal] = None) -> Iterator[Doc]:
    """Read JSON lines of spaCy, Prodigy, and `write_jsonl`.

    path: File, UTF-8, a record a line. Of its keys these are read:
        "text": the text,
        "spans": entities, {"start": 0, "end": 8, "label": "PER"}, with "kb_id" and "id" if known,
        "entities": entities, [0, 8, "PER"]; a record may also be ["text", {"entities": [...]}],
        "tokens": the tokens, {"text": "Tim", "ws": true}, in place of those of the tokenizer,
        "answer": "accept"; "ignore", and the record is left out; or "reject": its spans are known
            to be wrong, and nothing is annotated,
        "_is_binary" or, in its absence, "_view_id": whether the answer is about the spans alone
            (true, "ner"), so that an accepted record is annotated nowhere else, or about all of
            the text (false, "ner_manual"), so that a rejected one says of no span that it is wrong,
            and is left out. Without both it is about the text if accepted, and about the spans if
            rejected,
        "missing": [[9, 17]], where the text is not annotated,
        "incorrect": spans that are known to be wrong,
        "sent_starts": [0, 18], where sentences begin; else this is unknown,
        "has_unknown_spaces": true if the spaces between the tokens mean nothing,
        "id": no two records may have the same.
    nlp: Pipeline whose tokenizer is used.
    journal: What becomes of mistakes; without one, the first is raised. Those of spans are as for
        `mark`. A record that cannot be read is left out.

    Yields a Doc a record. All other keys, and those of "meta", are in `doc.user_data["meta"]`; if
    a key is in both, "meta" stays as it is in there.
    Spans known to be wrong are in `doc.spans["incorrect_spans"]`.
    Raises CorpusError for what is not as above, and for a record without any annotation.
    """
    journal = journal or Journal()
    identities = Identities()

    def to_doc(where: str, line: Line) -> Optional[Doc]:
        record = _record(where, parse(line))
        identities.require_new(where, record.get("id"))
        return _to_doc(where, record, nlp, journal)

    return docs_of(json_lines(path), to_doc, journal)


def _record(where: str, value: object) -> Record:
    if isinstance(value, list) and len(value) == 2 and isinstance(value[1], dict):
        return {**value[1], "text": value[0]}
    return require_record(where, value)


def _to_doc(where: str, record: Record, nlp: Language, journal: Journal) -> Optional[Doc]:
    if record.keys().isdisjoint(ANNOTATION):
        fix = "Annotate the text, or give it an empty list of spans"
        got = f"only {shown(sorted(record))}"
        raise error(where, f"annotation, one of the keys {', '.join(ANNOTATION)}", got, fix)
    answer = take(where, record, "answer", str, "accept")
    if answer not in ("accept", "reject", "ignore"):
        raise error(where, "the answer accept, reject or ignore", shown(answer), "Correct it")
    binary = _is_binary(where, record)
    if answer == "ignore" or (answer == "reject" and binary is False):
        journal.left_out("answer")
        return None
    spans = [_mark(span) for span in take(where, record, "spans", list, [])]
    spans += [triple(span) for span in take(where, record, "entities", list, [])]
    incorrect = [_mark(span) for span in take(where, record, "incorrect", list, [])]
    if answer == "reject":
        spans, incorrect = [], spans + incorrect
    doc = _tokens(where, record, nlp)
    length = len(doc.text)
    missing = [_range(where, length, part) for part in take(where, record, "missing", list, [])]
    starts = take(where, record, "sent_starts", list, [])
    keep(where, doc, _meta(where, record))
    mark(doc, spans, journal, where, partial=answer == "reject" or bool(binary), missing=missing)
    if incorrect:
        mark_incorrect(doc, incorrect, journal, where)
    if starts:
        _start_sentences(where, doc, starts, journal)
    return doc


def _is_binary(where: str, record: Record) -> Optional[bool]:
    """Tell whether the answer is about the spans alone; None if the record does not say so."""
    view, binary = record.get("_view_id"), record.get("_is_binary")
    if binary is not None:
        return take(where, {"_is_binary": binary}, "_is_binary", bool, False)
    return None if view is None else view == "ner"


def _mark(span: object) -> Mark:
    """A span of any type; one that is no object has no offsets, and is refused for that."""
    given = span if isinstance(span, dict) else {"start": span}
    return Mark(*(given.get(key) for key in ("start", "end", "label", "kb_id", "id")))


def _range(where: str, length: int, part: object) -> Tuple[int, int]:
    if isinstance(part, list) and len(part) == 2 and all(type(at) is int for at in part):
        start, end = part
        if 0 <= start < end <= length:
            return start, end
    expected = f"[start, end] within the {length} characters of the text for 'missing'"
    raise error(where, expected, shown(part), "Correct or remove it")


def _meta(where: str, record: Record) -> Record:
    """All that is left of a record, with what its "meta" says, unless a key is in both."""
    meta = take(where, record, "meta", dict, {})
    return {**record, **meta} if record.keys().isdisjoint(meta) else {**record, "meta": meta}


def _tokens(where: str, record: Record, nlp: Language) -> Doc:
    """Make the Doc of a record: of the tokens that it gives, or of the pipeline's."""
    text, given = record.pop("text", None), record.get("tokens") is not None
    tokens = take(where, record, "tokens", list, [])
    unknown = take(where, record, "has_unknown_spaces", bool, False)
    doc = tokenize(text, nlp, where)
    if not given:
        return doc
    words, spaces = _words(where, doc.text, tokens)
    doc = Doc(nlp.vocab, words, spaces=None if unknown else spaces)
    if doc.text != text:
        fix = "Correct the tokens, their 'ws' (a space comes after), or leave them out"
        raise error(where, f"tokens that make up {shown(text)}", shown(doc.text), fix)
    return doc


def _words(where: str, text: str, tokens: List[Any]) -> Tuple[List[str], List[bool]]:
    """Read the tokens of a text, and whether a space comes after each: the text says, or "ws"."""
    words: List[str] = []
    spaces: List[bool] = []
    at = 0
    for token in tokens:
        word = token.get("text") if isinstance(token, dict) else None
        if not isinstance(word, str) or not word or not text.startswith(word, at):
            got = f"{shown(token)} at the character {at}, {shown(text[at : at + 20])}"
            fix = "Correct the tokens, or leave them out"
            raise error(where, "tokens of the text, one after the other", got, fix)
        at += len(word)
        words.append(word)
        spaces.append(take(where, token, "ws", bool, text[at : at + 1] == " "))
        at += spaces[-1]
    return words, spaces


def _start_sentences(where: str, doc: Doc, starts: List[Any], journal: Journal) -> None:
    """Begin sentences at these characters, but at none where no token begins."""
    begins = {token.idx for token in doc}
    known: Set[int] = set()
    for start in starts:
        if type(start) is int and start in begins:
            known.add(start)
        else:
            fix = "Correct 'sent_starts', or use the tokenizer of the corpus"
            problem = error(where, "a sentence that begins where a token does", shown(start), fix)
            journal.repaired("sentence", problem)
    for token in doc:
        token.is_sent_start = token.idx in known


# Writing


def write_jsonl(docs: Iterable[Doc], path: Path, tokens: bool = False) -> int:
    """Write Docs as JSON lines that `read_jsonl` makes the same Docs of.

    docs: Docs. Written are text, entities with kb_id and id, what is not annotated,
        `doc.spans["incorrect_spans"]`, where sentences start if that is known of all tokens, and
        `doc.user_data["meta"]`; a blocked token is written as outside.
    path: File to write; there is none, or the old one, until all Docs are written.
    tokens: Write the tokens of each Doc; else only of those whose spaces are unknown, and who reads
        the others with another tokenizer may have entities that do not align.

    Returns the number of Docs. Raises ValueError for metadata that are not of JSON.
    """
    number = 0
    with whole(path) as unfinished, unfinished.open("w", encoding="utf-8", newline="\n") as file:
        for number, doc in enumerate(docs, 1):
            try:
                line = json.dumps(_written(doc, tokens), ensure_ascii=False, allow_nan=False)
            except (TypeError, ValueError, RecursionError) as problem:
                where, fix = f"{path}, line {number}", f"Change doc.user_data[{META!r}]"
                got = shown(doc.user_data[META])
                raise error(where, "metadata of JSON", f"{got} ({problem})", fix) from problem
            file.write(line + "\n")
    return number


def _written(doc: Doc, tokens: bool) -> Record:
    record: Record = {"text": doc.text, "spans": [_span(ent) for ent in doc.ents]}
    if tokens or doc.has_unknown_spaces:
        record["tokens"] = [{"text": t.text, "ws": bool(t.whitespace_)} for t in doc]
    if doc.has_unknown_spaces:
        record["has_unknown_spaces"] = True
    if doc.has_annotation("SENT_START", require_complete=True):
        record["sent_starts"] = [token.idx for token in doc if token.is_sent_start]
    if missing := _unannotated(doc):
        record["missing"] = missing
    if incorrect := doc.spans.get(INCORRECT):
        record["incorrect"] = [_span(span) for span in incorrect]
    if META in doc.user_data:
        record["meta"] = doc.user_data[META]
    return record


def _span(span: Span) -> Record:
    record: Record = {"start": span.start_char, "end": span.end_char, "label": span.label_}
    ids = {"kb_id": span.kb_id_, "id": span.id_}
    return {**record, **{key: value for key, value in ids.items() if value}}


def _unannotated(doc: Doc) -> List[List[int]]:
    """The runs of tokens without annotation, in characters."""
    runs: List[List[int]] = []
    before = None
    for token in doc:
        if token.ent_iob == 0:
            if before != token.i - 1 or not runs:
                runs.append([token.idx, 0])
            runs[-1][1] = token.idx + len(token)
            before = token.i
    return runs
