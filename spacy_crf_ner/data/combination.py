"""Several annotations of the same texts, joined: what they agree on is gold, the rest missing.

Sources may differ in their tokens and spaces. They are compared by the characters of the text that
are not whitespace.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path

from spacy.language import Language
from spacy.tokens import Doc, Span

from ..input_error import InputError
from ..pipeline.annotated_labels import KEY
from ..tags import SpanOffsets
from .conversion import read_corpus
from .docbin import check_new_docbin, write_docbin
from .json_records import shorten
from .repair_log import ConversionLog

# What is said about tokens: in which entity they are, None for outside; others are not annotated.
Tags = dict[int, SpanOffsets | None]
Counts = dict[str, Counter[str]]


def combine(
    sources: Sequence[Path],
    target: Path,
    *,
    nlp: Language,
    min_agree: int | None = None,
    log: ConversionLog | None = None,
) -> Counts:
    """Join annotations of the same texts, and write them as one corpus.

    Args:
        sources: Two or more, each a file or folder in any format; the parts of a folder are one.
            Documents are matched by their text without whitespace, and equal ones by their order.
            All are in memory.
        target: A new .spacy file. It has the documents of the first source, then the other ones of
            the second, and so on; the first source that has a document gives its tokens and
            metadata.
        nlp: Pipeline with the vocabulary, and the tokenizer for formats without tokens.
        min_agree: Number of sources that have to say the same about a token: that it is in the same
            entity, or outside; and more have to than say anything else. Other tokens are not
            annotated. An entity is agreed if all of its tokens are. None: more than half of the
            sources.
        log: Decides what happens to mistakes, and counts them; it has no spans_key. None: the
            tokens of an entity that begins or ends inside a token are not annotated, and all other
            mistakes are errors.

    Returns:
        The counts of each source and of the target, by their paths.

    Raises:
        InputError: For fewer than two different sources, a target that is not a new .spacy file,
            and a `min_agree` that is not between 1 and the number of sources.
        CorpusError: For a source that cannot be read, and if repairs leave out more of a source
            than the `max_loss` of the log.
    """
    names = [str(source) for source in sources]
    if len({source.resolve() for source in sources}) < max(len(sources), 2):
        raise InputError(
            f"Agreement needs two or more different inputs, got {', '.join(names)}. Name others, "
            "or the corpus that answers belong to, as --into CORPUS."
        )
    check_new_docbin(target, sources)
    needed = len(names) // 2 + 1 if min_agree is None else min_agree
    if not 1 <= needed <= len(names):
        raise InputError(f"min_agree: expected 1 to {len(names)}, all sources, got {needed}.")
    log = log or ConversionLog(alignment="missing")
    found: dict[tuple[str, int], dict[str, Doc]] = {}  # the docs of each text, by source
    for name, source in zip(names, sources):
        log.start_part(name)
        repeated = Counter[str]()
        for doc in read_corpus([source], nlp, log):
            text = _without_whitespace(doc.text)
            found.setdefault((text, repeated[text]), {})[name] = doc
            repeated[text] += 1
    total = str(target)
    log.check_kept(total)
    counts: Counts = {name: Counter() for name in (*names, total)}

    def combined() -> Iterator[Doc]:
        for docs in found.values():
            for name in (*docs, total):
                counts[name].update({"docs": 1, "docs, not in all": int(len(docs) < len(names))})
            if len(docs) < len(names) and not log.notes:
                text = next(iter(docs.values())).text
                log.notes.append(f"Not in all: {shorten(text)}, which is in {' and '.join(docs)}.")
            yield _combine(docs, needed, counts, total)

    write_docbin(combined(), target)
    return counts


def _without_whitespace(text: str) -> str:
    return "".join(text.split())


def _combine(docs: dict[str, Doc], needed: int, counts: Counts, total: str) -> Doc:
    """Join the annotations of a text on the Doc of the first source, which is changed."""
    doc = next(iter(docs.values()))
    owners = [token.i for token in doc for _ in _without_whitespace(token.text)]
    tokens = {*owners}
    ids: dict[SpanOffsets, tuple[str, str]] = {}
    tags = {name: _tags(each, owners, ids, counts[name]) for name, each in docs.items()}
    chosen: Tags = {}
    for i in tokens:
        ranking = Counter(each[i] for each in tags.values() if i in each).most_common(2)
        numbers = [number for _, number in ranking]
        if numbers and numbers[0] >= needed and numbers[0] not in numbers[1:]:
            chosen[i] = ranking[0][0]
    rejected = {
        entity
        for entity in ids
        if any(chosen.get(i) != entity for i in tokens.intersection(range(*entity[:2])))
    }
    chosen = {i: entity for i, entity in chosen.items() if entity not in rejected}
    for name, each in {**tags, total: chosen}.items():
        said = {*ids} if name == total else {*each.values()} - {None}
        counts[name].update(
            {
                "tokens": len(tokens),
                "tokens, missing": len(tokens) - len(each),
                "entities, agreed": len(said - rejected),
                "entities, not agreed": len(said & rejected),
            }
        )
    for token in doc:
        token.ent_id, token.ent_kb_id = 0, 0  # set_ents keeps them
    doc.spans.clear()
    ents = [
        Span(doc, *entity, kb_id=ids[entity][0], span_id=ids[entity][1])
        for entity in {*ids} - rejected
    ]
    outside = [doc[i : i + 1] for i, entity in chosen.items() if entity is None]
    # A text whose words are all annotated is complete: its whitespace is outside.
    default = "missing" if len(chosen) < len(tokens) else "outside"
    doc.set_ents(ents, outside=outside, default=default)
    return doc


def _tags(
    doc: Doc, owners: list[int], ids: dict[SpanOffsets, tuple[str, str]], counts: Counter[str]
) -> Tags:
    """Return what a source says about the tokens of another Doc, whose characters have `owners`."""
    ends = [0, *accumulate(len(_without_whitespace(token.text)) for token in doc)]
    tags: Tags = {}
    unknown: set[int] = set()
    for token in doc:
        own = owners[ends[token.i] : ends[token.i + 1]]
        if token.ent_iob and not token.ent_type and KEY not in doc.spans:
            tags.update(dict.fromkeys(own, None))
        else:
            unknown.update(own)
    entities: Tags = {}
    for ent in doc.ents:
        start, end = ends[ent.start], ends[ent.end]
        own = owners[start:end]
        # Whether its edges are edges of tokens.
        before, after = owners[max(start - 1, 0) : start], owners[end : end + 1]
        aligned = bool(own) and own[:1] != before and own[-1:] != after
        if not aligned:
            counts["entities, not aligned"] += 1
            continue
        entity = own[0], own[-1] + 1, ent.label_
        entities.update(dict.fromkeys(own, entity))
        if not any(ids.get(entity, ())):
            ids[entity] = ent.kb_id_, ent.id_
    if others := sum(len(doc.spans[key]) for key in doc.spans.keys() - {KEY}):
        counts["doc.spans, not used"] += others
    return {i: each for i, each in tags.items() if i not in unknown} | entities
