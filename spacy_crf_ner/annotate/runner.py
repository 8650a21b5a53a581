"""Annotate texts with a pipeline: in batches of similar length, long texts in chunks."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Protocol, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
from spacy.language import Language
from spacy.tokens import Doc, SpanGroup
from spacy.util import raise_error
from spacy.vocab import Vocab

from ..pipeline.given_text import CHANGED, changes_text
from .chunking import MAX_CHARACTERS, Chunk, chunk_text, merge_entities
from .entities import Groups, group_entities, join_groups, overlapping_keys
from .settings import check_sizes

# Maximum numbers of characters and of documents in a batch.
BATCH_CHARACTERS = 50_000
BATCH_DOCS = 256
# A pipeline's vocabulary keeps this many new strings, because known words are faster. After that it
# keeps none: memory would grow with the corpus.
MAX_NEW_WORDS = 50_000

_max_words: WeakKeyDictionary[Language, int] = WeakKeyDictionary()
# The start of torch's messages when a GPU or memory allocation fails.
_DEVICE_ERROR = re.compile(r"(CUDA|HIP|cuDNN|cuBLAS) |.*can't allocate memory", re.DOTALL)


class HasLength(Protocol):
    """Something of a number of characters."""

    @property
    def length(self) -> int:
        """The number of characters."""


Item = TypeVar("Item", bound=HasLength)


@dataclass
class AnnotatedText:
    """A document and its annotation.

    Attributes:
        text: The text; for a Doc, the text of the Doc.
        entities: "start", "end", "label" and "confidence" of each, in characters of the text.
        doc: If requested, a Doc with tokens and entities, as bytes.
        error: Why it could not be annotated, or None.
        words: Number of tokens.
    """

    text: Any
    entities: list[dict[str, Any]] = field(default_factory=list)
    doc: bytes | None = None
    error: str | None = None
    words: int = 0

    def fail(self, error: Exception) -> None:
        """Store why it could not be annotated."""
        self.error = f"{type(error).__name__}: {error}"


@dataclass
class Part:
    """A document, or a chunk of one, and its annotation.

    Attributes:
        text: The text for the pipeline: the chunk with its context.
        entities: Entities, with offsets in the document.
        words: Number of tokens that begin in the chunk.
        tokens: Their texts, and whether a space follows; empty unless Docs are requested.
        result: What other work than annotation finds in the part.
    """

    document: AnnotatedText
    chunk: Chunk
    text: str | Doc
    entities: Groups = field(default_factory=dict)
    words: int = 0
    tokens: list[tuple[str, bool]] = field(default_factory=list)
    result: Any = None

    @property
    def length(self) -> int:
        """Number of characters for the pipeline."""
        return self.chunk.right - self.chunk.left

    def store(self, doc: Doc, docs: bool, keys: Sequence[str]) -> None:
        """Store the annotation of a Doc, with overlapping entities under keys in `doc.spans`."""
        start, end, left, right = self.chunk
        self.entities = group_entities(doc, keys, left)
        whole = (start, end) == (left, right)
        own = doc if whole else [token for token in doc if start <= token.idx + left < end]
        self.words = len(own)
        self.tokens = [(token.text, bool(token.whitespace_)) for token in own] if docs else []


def annotate_texts(
    nlp: Language,
    texts: Iterable[Any],
    batch_size: int = 0,
    max_characters: int = MAX_CHARACTERS,
    docs: bool = False,
) -> list[AnnotatedText]:
    """Find the entities of documents.

    Args:
        texts: Strings, or Docs as bytes, whose tokens are kept.
        batch_size: Documents per batch; 0 chooses it by their length.
        max_characters: Maximum length of a chunk.
        docs: Also make a Doc of each, with tokens and entities.

    Raises:
        InputError: For sizes that are too small.
        OSError: For an error of the machine, not of a document; also MemoryError, and errors of a
            GPU.
    """
    documents, keys = [AnnotatedText(text) for text in texts], overlapping_keys(nlp)

    def store(batch: Sequence[Part]) -> None:
        for part, doc in zip(batch, pipe_docs(nlp, batch)):
            part.store(doc, docs, keys)

    with limited_memory(nlp):
        parts = process(nlp, documents, store, batch_size, max_characters)
        for document, own in zip(documents, parts):
            if document.error is None:
                _merge(document, own, nlp.vocab, docs)
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
    work: Callable[[Sequence[Part]], None],
    batch_size: int = 0,
    max_characters: int = MAX_CHARACTERS,
) -> list[list[Part]]:
    """Split documents into parts, and work on batches of them, sorted by length.

    Args:
        work: Stores its result in the parts of a batch. A document for which it fails gets the
            error.

    Returns:
        The parts of each document.

    Raises:
        InputError: For sizes that are too small.
        OSError: For an error of the machine, not of a document; also MemoryError, and errors of a
            GPU.
    """
    check_sizes(batch_size=batch_size, max_characters=max_characters)

    def work_on_rest(batch: Sequence[Part]) -> None:
        # Another chunk of the document may have failed.
        if rest := [part for part in batch if part.document.error is None]:
            work(rest)

    with errors_raised(nlp):
        parts = [_split(document, nlp.vocab, max_characters) for document in documents]
        by_length = sorted(chain.from_iterable(parts), key=lambda part: part.length)
        for batch in batches(by_length, batch_size):
            in_halves(batch, work_on_rest, lambda part, error: part.document.fail(error))
    return parts


def pipe_docs(nlp: Language, batch: Sequence[Part]) -> list[Doc]:
    """Make and annotate the Doc of each part.

    Raises:
        ValueError: If the pipeline drops a Doc, or changes its text.
    """
    # Annotate a copy: a failure can leave a Doc partly annotated.
    texts = [part.text.copy() if isinstance(part.text, Doc) else part.text for part in batch]
    docs = list(nlp.pipe(texts, batch_size=len(batch)))
    if len(docs) != len(batch):
        raise ValueError(f"expected {len(batch)} Docs from the pipeline, got {len(docs)}")
    for part, doc in zip(batch, docs):
        if changes_text(doc, part.text.text if isinstance(part.text, Doc) else part.text):
            raise ValueError(CHANGED)
    return docs


def _split(document: AnnotatedText, vocab: Vocab, max_characters: int) -> list[Part]:
    """Split a document into parts for the pipeline; replace a Doc by its text."""
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
        if is_machine_error(error):
            raise
        document.fail(error)
        return []
    chunks = list(chunk_text(text, max_characters))
    if doc is None:
        return [Part(document, chunk, text[chunk.left : chunk.right]) for chunk in chunks]
    if len(chunks) == 1:
        return [Part(document, chunks[0], doc)]
    parts = []
    for chunk in chunks:
        span = doc.char_span(chunk.left, chunk.right, alignment_mode="expand")  # whole tokens
        assert span is not None
        chunk = chunk._replace(left=span.start_char, right=span.end_char)
        parts.append(Part(document, chunk, span.as_doc()))
    return parts


def batches(items: Iterable[Item], batch_size: int = 0) -> Iterator[list[Item]]:
    """Divide items, sorted by length, into batches.

    Args:
        batch_size: Items per batch; 0 limits their characters and their number.
    """
    batch: list[Item] = []
    size = 0
    for item in items:
        size += item.length
        too_long = not batch_size and size > BATCH_CHARACTERS
        if batch and (too_long or len(batch) >= (batch_size or BATCH_DOCS)):
            yield batch
            batch, size = [], item.length
        batch.append(item)
    if batch:
        yield batch


def in_halves(
    batch: Sequence[Item], work: Callable[[Sequence[Item]], None], fail: Callable[..., None]
) -> None:
    """Do the work on a batch; if it fails, on its halves, to isolate the item that fails.

    Args:
        fail: Called with an item and the error.

    Raises:
        OSError: For an error of the machine, not of an item; also MemoryError, and errors of a GPU.
    """
    try:
        work(batch)
    except Exception as error:  # components raise errors of all types
        if len(batch) > 1:
            middle = len(batch) // 2
            in_halves(batch[:middle], work, fail)
            in_halves(batch[middle:], work, fail)
        elif is_machine_error(error):
            raise
        else:
            fail(batch[0], error)


def _merge(document: AnnotatedText, parts: list[Part], vocab: Vocab, docs: bool) -> None:
    """Merge the annotation of the parts of a document."""
    found = {
        key: merge_entities([(part.chunk, part.entities[key]) for part in parts], key is not None)
        for key in parts[0].entities
    }
    if docs:
        tokens = [token for part in parts for token in part.tokens]
        try:
            document.doc = _make_doc(vocab, document.text, tokens, found).to_bytes()
        except ValueError as error:
            document.fail(error)
            return
    document.entities = [entity._asdict() for entity in join_groups(found)]
    document.words = sum(part.words for part in parts)


def _make_doc(vocab: Vocab, text: str, tokens: list[tuple[str, bool]], groups: Groups) -> Doc:
    """Make a Doc with only tokens and entities."""
    doc = Doc(vocab, [word for word, _ in tokens], [space for _, space in tokens])
    if changes_text(doc, text):
        raise ValueError(
            "expected spaces in a long text, got none: it cannot be split between tokens"
        )
    for key, entities in groups.items():
        spans = []
        for start, end, label, _ in entities:
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
    # spaCy's `ner` and `parser` always raise errors, and take no handler.
    before = [(pipe, pipe.get_error_handler()) for pipe in pipes]
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
