"""Annotate texts with a pipeline: in batches of similar length, long texts in chunks."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import accumulate, chain, islice
from typing import Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
from spacy.language import Language
from spacy.tokens import Doc, SpanGroup
from spacy.util import raise_error
from spacy.vocab import Vocab

from ..pipeline.given_text import CHANGED, changes_text
from ..pipeline.lookup import recognizer, upstream_only
from .chunking import NO_SPACES, Chunk, chunk_text, merge_entities
from .entities import Alternatives, Groups, group_entities, join_groups, overlapping_keys
from .settings import Settings, check_settings

# Maximum numbers of characters and of documents in a batch.
BATCH_CHARACTERS = 50_000
BATCH_DOCS = 256
# A pipeline's vocabulary keeps this many new strings, because known words are faster. After that it
# keeps none: memory would grow with the corpus.
MAX_NEW_WORDS = 50_000

_max_words: WeakKeyDictionary[Language, int] = WeakKeyDictionary()
# The start of torch's messages when a GPU or memory allocation fails.
_DEVICE_ERROR = re.compile(r"(CUDA|HIP|cuDNN|cuBLAS) |.*can't allocate memory", re.DOTALL)

Item = TypeVar("Item")
Result = TypeVar("Result")
Token = tuple[str, bool]  # its text, and whether a space follows


class Failure(str):
    """Why an item failed: the type of the error, and its message."""


@dataclass
class AnnotatedText:
    """A document and its annotation; `entities` are as in the output, in characters of the text."""

    text: Any  # of a Doc, when it has been read, its text
    entities: list[dict[str, Any]] = field(default_factory=list)
    doc: bytes | None = None  # if requested, a Doc with tokens and entities
    error: str | None = None
    words: int = 0


class Piece(NamedTuple):
    """A document, or a chunk of one, and the text for the pipeline: the chunk with its context."""

    chunk: Chunk
    text: str | Doc


class _Found(NamedTuple):
    """The annotation of a piece: entities, and the tokens that begin in its chunk."""

    chunk: Chunk
    entities: Groups
    words: int
    tokens: list[Token]  # none unless Docs are requested


def annotate_texts(
    nlp: Language,
    texts: Iterable[Any],
    settings: Settings,
    docs: bool = False,
    component: str | None = None,
) -> list[AnnotatedText]:
    """Find the entities of strings, and Docs as bytes; with `docs`, also make a Doc of each.

    With a component, entities have "alternatives": what else their spans could be, or None for
    entities that it has not predicted.
    """
    documents, keys = [AnnotatedText(text) for text in texts], overlapping_keys(nlp)

    def find(batch: Sequence[Piece]) -> list[_Found]:
        found = []
        annotated = pipe_docs(nlp, batch)
        others: list[Alternatives] = [{} for _ in batch]
        if component is not None:
            others = _alternatives(nlp, component, batch, annotated)
        for (chunk, _), doc, alternatives in zip(batch, annotated, others):
            start, end, left, right = chunk
            whole = (start, end) == (left, right)
            own = doc if whole else [token for token in doc if start <= token.idx + left < end]
            tokens = [(token.text, bool(token.whitespace_)) for token in own] if docs else []
            entities = group_entities(doc, keys, left, alternatives)
            found.append(_Found(chunk, entities, len(own), tokens))
        return found

    with limited_memory(nlp):
        results = process(nlp, documents, find, settings)
        for document, found in zip(documents, results):
            if document.error is None:
                _merge(document, found, nlp.vocab, docs)
            for entity in document.entities if component is None else ():
                del entity["alternatives"]
    return documents


@contextmanager
def limited_memory(nlp: Language) -> Iterator[None]:
    """Free new words at the end, if the vocabulary has many already."""
    max_words = _max_words.setdefault(nlp, len(nlp.vocab.strings) + MAX_NEW_WORDS)
    with nlp.memory_zone() if len(nlp.vocab.strings) > max_words else nullcontext():
        yield


def process(
    nlp: Language,
    documents: Sequence[AnnotatedText],
    work: Callable[[Sequence[Piece]], Sequence[Result]],
    settings: Settings,
) -> list[list[Result]]:
    """Split documents into pieces; return the results of `work` for the pieces of each.

    A document for which it fails gets the error, and no results; an error of the machine is raised.
    """
    check_settings(settings)
    with errors_raised(nlp):
        split = [_split(document, nlp.vocab, settings.max_characters) for document in documents]
        pieces = [*chain.from_iterable(split)]
        lengths = [chunk.right - chunk.left for chunk, _ in pieces]
        results = iter(map_batches(work, pieces, lengths, settings.batch_size))
    found: list[list[Result]] = []
    for document, own in zip(documents, split):
        of_document = [*islice(results, len(own))]
        failures = (each for each in of_document if isinstance(each, Failure))
        document.error = document.error or next(failures, None)
        found.append([] if document.error else of_document)  # type: ignore[arg-type]
    return found


def pipe_docs(nlp: Language, batch: Sequence[Piece]) -> list[Doc]:
    """Make and annotate the Doc of each piece; none may be dropped, or change its text."""
    # Annotate a copy: a failure can leave a Doc partly annotated.
    texts = [text.copy() if isinstance(text, Doc) else text for _, text in batch]
    docs = list(nlp.pipe(texts, batch_size=len(batch)))
    if len(docs) != len(batch):
        raise ValueError(f"expected {len(batch)} Docs from the pipeline, got {len(docs)}")
    for (_, text), doc in zip(batch, docs):
        if changes_text(doc, text.text if isinstance(text, Doc) else text):
            raise ValueError(CHANGED)
    return docs


def _alternatives(
    nlp: Language, component: str, batch: Sequence[Piece], annotated: Sequence[Doc]
) -> list[Alternatives]:
    """Compute what the entities that a component has predicted could be."""
    pipe = recognizer(nlp, component)
    with upstream_only(nlp, component):  # its own entities would be preset ones
        docs = pipe_docs(nlp, batch)
    spans = [[ent for ent in doc.ents if ent._.confidence is not None] for doc in annotated]
    return [
        {
            (ent.start_char, ent.end_char): [each._asdict() for each in of_ent]
            for ent, of_ent in zip(ents, of_doc)
        }
        for ents, of_doc in zip(spans, pipe.alternatives(docs, spans))
    ]


def _split(document: AnnotatedText, vocab: Vocab, max_characters: int) -> list[Piece]:
    """Split a document into pieces for the pipeline; replace a Doc by its text."""
    doc = None
    try:
        if isinstance(document.text, bytes):
            doc = Doc(vocab).from_bytes(document.text)
            document.text = doc.text
        text = document.text
        if not isinstance(text, str):
            # NaN is a missing value of pandas.
            got = "none" if text is None or text != text else type(text).__name__
            raise TypeError(f"expected a text, got {got}")
    except Exception as error:  # bytes that are not a Doc raise errors of all types
        document.error = failure(error)
        return []
    chunks = list(chunk_text(text, max_characters))
    if doc is None:
        return [Piece(chunk, text[chunk.left : chunk.right]) for chunk in chunks]
    if len(chunks) == 1:
        return [Piece(chunks[0], doc)]
    pieces = []
    for chunk in chunks:
        span = doc.char_span(chunk.left, chunk.right, alignment_mode="expand")  # whole tokens
        assert span is not None
        chunk = chunk._replace(left=span.start_char, right=span.end_char)
        pieces.append(Piece(chunk, span.as_doc()))
    return pieces


def map_batches(
    work: Callable[[Sequence[Item]], Sequence[Result]],
    items: Sequence[Item],
    lengths: Sequence[int],
    batch_size: int = 0,
) -> list[Result | Failure]:
    """Return the results of `work`, which gets batches of items of similar length.

    An error of the machine is raised. A `batch_size` of 0 limits the characters of a batch, of
    which each item has one of `lengths`, and its number of items.
    """
    in_order = sorted(range(len(items)), key=lengths.__getitem__)
    results: dict[int, Result | Failure] = {}
    while batch := in_order[(done := len(results)) : done + (batch_size or BATCH_DOCS)]:
        if not batch_size:
            sizes = accumulate(lengths[i] for i in batch)
            batch = batch[: max(1, sum(size <= BATCH_CHARACTERS for size in sizes))]
        results.update(zip(batch, _in_halves(work, [items[i] for i in batch])))
    return [results[i] for i in range(len(items))]


def _in_halves(
    work: Callable[[Sequence[Item]], Sequence[Result]], batch: Sequence[Item]
) -> list[Result | Failure]:
    """Do the work on a batch; if it fails, on its halves, to isolate the item that fails."""
    try:
        return [*work(batch)]
    except Exception as error:  # components raise errors of all types
        if len(batch) == 1:
            return [failure(error)]
    middle = len(batch) // 2
    return [*_in_halves(work, batch[:middle]), *_in_halves(work, batch[middle:])]


def failure(error: Exception) -> Failure:
    """Describe an error of an item; raise an error of the machine."""
    if is_machine_error(error):
        raise error
    return Failure(f"{type(error).__name__}: {error}")


def _merge(document: AnnotatedText, pieces: list[_Found], vocab: Vocab, docs: bool) -> None:
    found = {
        key: merge_entities([(each.chunk, each.entities[key]) for each in pieces], key is not None)
        for key in pieces[0].entities
    }
    if docs:
        tokens = [token for each in pieces for token in each.tokens]
        try:
            document.doc = _make_doc(vocab, document.text, tokens, found).to_bytes()
        except ValueError as error:
            document.error = failure(error)
            return
    document.entities = [entity._asdict() for entity in join_groups(found)]
    document.words = sum(each.words for each in pieces)


def _make_doc(vocab: Vocab, text: str, tokens: list[Token], groups: Groups) -> Doc:
    """Make a Doc with only tokens and entities."""
    doc = Doc(vocab, [word for word, _ in tokens], [space for _, space in tokens])
    if changes_text(doc, text):
        raise ValueError(NO_SPACES)
    for key, entities in groups.items():
        spans = []
        for start, end, label, *_ in entities:
            span = doc.char_span(start, end, label)
            if span is None:
                # The end of an entity across a cut is in the next chunk, whose tokens may differ.
                raise ValueError(
                    f"expected an entity of whole tokens at a cut of the text, got characters "
                    f"{start} to {end}: use another format than spacy"
                )
            spans.append(span)
        if key is None:
            for span, entity in zip(spans, entities):
                if entity.confidence is not None:
                    span._.confidence = entity.confidence
            doc.set_ents(spans)
        else:
            scores = np.array([entity.confidence for entity in entities], dtype=np.float32)
            doc.spans[key] = SpanGroup(doc, name=key, spans=spans, attrs={"scores": scores})
    return doc


def is_machine_error(error: Exception) -> bool:
    """Whether the machine failed, not the document, so that another attempt may succeed."""
    if isinstance(error, (OSError, MemoryError)) or type(error).__module__.startswith("cupy"):
        return True
    return isinstance(error, RuntimeError) and bool(_DEVICE_ERROR.match(str(error)))


@contextmanager
def errors_raised(nlp: Language) -> Iterator[None]:
    """Make components raise errors: their error handlers would drop documents and reasons."""
    pipes: list[Any] = [pipe for _, pipe in nlp.pipeline if hasattr(pipe, "get_error_handler")]
    before = [(pipe, pipe.get_error_handler()) for pipe in pipes]
    # spaCy's `ner` and `parser` always raise errors, and take no handler.
    before = [(pipe, handler) for pipe, handler in before if handler is not raise_error]
    default = nlp.default_error_handler
    nlp.default_error_handler = raise_error
    for pipe, _ in before:
        pipe.set_error_handler(raise_error)
    try:
        yield
    finally:
        nlp.default_error_handler = default
        for pipe, handler in before:
            pipe.set_error_handler(handler)
