"""Run texts through a pipeline: in batches of similar length, long ones in chunks."""

import re
from contextlib import contextmanager, nullcontext
from typing import (
    Any,
    Dict,
    Iterable,
    Iterator,
    List,
    MutableMapping,
    NamedTuple,
    Optional,
    Tuple,
    Union,
)
from weakref import WeakKeyDictionary

from spacy.language import Language
from spacy.tokens import Doc, Span
from spacy.util import raise_error

from .chunking import MAX_CHARACTERS, Chunk, FoundEntity, chunk_text, merge_entities

# Characters, and documents, that go through the pipeline together.
BATCH_CHARACTERS = 50_000
BATCH_DOCS = 256
# New strings that the vocabulary of a pipeline keeps, because known words are faster. Beyond that
# number it keeps none, as memory would grow with the corpus.
MAX_NEW_WORDS = 50_000

_max_words: MutableMapping[Language, int] = WeakKeyDictionary()
# How messages of torch begin where a GPU, or the memory, fails.
_DEVICE_ERROR = re.compile(r"(CUDA|HIP|cuDNN|cuBLAS) |.*can't allocate memory", re.DOTALL)


class DocPart(NamedTuple):
    """A document, or a chunk of one. `row` is its position among the texts."""

    row: int
    chunk: Chunk
    text: Union[str, Doc]

    @property
    def length(self) -> int:
        """Characters that go through the pipeline."""
        return self.chunk.right - self.chunk.left


class AnnotatedPart(NamedTuple):
    """What the pipeline found in a part. Offsets are those of the whole document.

    words: Number of tokens that begin in the chunk. tokens: Their texts, and whether a space
        follows; empty unless Docs are wanted.
    """

    chunk: Chunk
    entities: List[FoundEntity]
    words: int
    tokens: List[Tuple[str, bool]]


class AnnotatedText(NamedTuple):
    """What a pipeline found in a document.

    text: Of a Doc, its text.
    entities: "start", "end", "label" and "confidence" of each, in characters of the text.
    doc: If Docs are wanted, one with its tokens and entities, as bytes.
    error: Why it could not be annotated, or None.
    words: Number of its tokens.
    """

    text: Any
    entities: List[Dict[str, Any]]
    doc: Optional[bytes]
    error: Optional[str]
    words: int


def annotate_texts(
    nlp: Language,
    texts: Iterable[Any],
    batch_size: int = 0,
    max_characters: int = MAX_CHARACTERS,
    docs: bool = False,
) -> List[AnnotatedText]:
    """Find the entities of documents. Arguments and errors are those of `annotate_frames`."""
    max_words = _max_words.setdefault(nlp, len(nlp.vocab.strings) + MAX_NEW_WORDS)
    runner = _Runner(nlp, [*texts], max_characters, docs)
    with nlp.memory_zone() if len(nlp.vocab.strings) > max_words else nullcontext():
        with _errors_raised(nlp):
            parts = [part for row in range(len(runner.texts)) for part in runner.parts(row)]
            for batch in _batches(sorted(parts, key=lambda part: part.length), batch_size):
                runner.pipe(batch)
        return [runner.result(row) for row in range(len(runner.texts))]


class _Runner:
    """Documents, and what a pipeline has found in them. Docs as bytes are replaced by their texts.

    errors: Why documents could not be annotated, by their positions.
    """

    def __init__(self, nlp: Language, texts: List[Any], max_characters: int, docs: bool) -> None:
        self.nlp, self.texts, self.max_characters, self.docs = nlp, texts, max_characters, docs
        self.errors: Dict[int, str] = {}
        self._annotated: List[List[AnnotatedPart]] = [[] for _ in texts]

    def result(self, row: int) -> AnnotatedText:
        parts = sorted(self._annotated[row])
        found = merge_entities([(part.chunk, part.entities) for part in parts])
        content = None
        if self.docs and row not in self.errors:
            try:
                content = self._doc(row, found).to_bytes()
            except ValueError as error:
                self._fail(row, error)
        if row in self.errors:
            return AnnotatedText(self.texts[row], [], None, self.errors[row], 0)
        words = sum(part.words for part in parts)
        return AnnotatedText(self.texts[row], [e._asdict() for e in found], content, None, words)

    def parts(self, row: int) -> List[DocPart]:
        text = self.texts[row]
        doc = None
        try:
            if isinstance(text, bytes):
                doc = Doc(self.nlp.vocab).from_bytes(text)
                text = self.texts[row] = doc.text
            if not isinstance(text, str):
                # NaN is a missing value of pandas.
                got = "none" if text is None or text != text else type(text).__name__
                raise TypeError(f"expected a text, got {got}")
        except Exception as error:  # bytes that are no Doc raise errors of all types
            if is_machine_error(error):
                raise
            self._fail(row, error)
            return []
        chunks = list(chunk_text(text, self.max_characters))
        if len(chunks) == 1:
            return [DocPart(row, chunks[0], text if doc is None else doc)]
        if doc is None:
            return [DocPart(row, chunk, text[chunk.left : chunk.right]) for chunk in chunks]
        return [_part_of_doc(row, chunk, doc) for chunk in chunks]

    def pipe(self, batch: List[DocPart]) -> None:
        """Annotate a batch; if it fails, its halves, down to the one document that fails."""
        batch = [part for part in batch if part.row not in self.errors]
        if not batch:
            return
        try:
            # A Doc of a batch that failed may be half annotated, so a copy goes in.
            texts = [p.text.copy() if isinstance(p.text, Doc) else p.text for p in batch]
            docs = list(self.nlp.pipe(texts, batch_size=len(batch)))
            if len(docs) != len(batch):
                raise ValueError(f"expected {len(batch)} Docs from the pipeline, got {len(docs)}")
            annotated = [_annotated(part, doc, self.docs) for part, doc in zip(batch, docs)]
        except Exception as error:  # components raise errors of all types
            if len(batch) == 1:
                if is_machine_error(error):
                    raise
                self._fail(batch[0].row, error)
                return
            middle = len(batch) // 2
            self.pipe(batch[:middle])
            self.pipe(batch[middle:])
        else:
            for part, found in zip(batch, annotated):
                self._annotated[part.row].append(found)

    def _fail(self, row: int, error: Exception) -> None:
        self.errors[row] = f"{type(error).__name__}: {error}"

    def _doc(self, row: int, entities: List[FoundEntity]) -> Doc:
        """Build the document from the tokens of its parts, with its entities and nothing else."""
        tokens = [token for part in sorted(self._annotated[row]) for token in part.tokens]
        doc = Doc(self.nlp.vocab, [word for word, _ in tokens], [space for _, space in tokens])
        if doc.text != self.texts[row]:
            raise ValueError(
                f"expected a space somewhere in {self.max_characters // 4:,} characters, got none: "
                "the text cannot be cut between its tokens"
            )
        ents = []
        for start, end, label, confidence in entities:
            ent = doc.char_span(start, end, label)
            if ent is None:
                # Across a cut, its end is in the next chunk, whose tokens may differ.
                raise ValueError(
                    f"expected an entity of whole tokens at a cut of the text, got characters "
                    f"{start} to {end}: another format than spacy can hold it"
                )
            if confidence is not None:
                ent._.confidence = confidence
            ents.append(ent)
        doc.set_ents(ents)
        return doc


def _batches(parts: List[DocPart], batch_size: int) -> Iterator[List[DocPart]]:
    """Divide parts, sorted by length, into batches."""
    batch: List[DocPart] = []
    size = 0
    for part in parts:
        size += part.length
        too_long = not batch_size and size > BATCH_CHARACTERS
        if batch and (too_long or len(batch) >= (batch_size or BATCH_DOCS)):
            yield batch
            batch, size = [], part.length
        batch.append(part)
    if batch:
        yield batch


def is_machine_error(error: Exception) -> bool:
    """Whether the machine failed, and not the document: it may pass at another time."""
    if isinstance(error, (OSError, MemoryError)) or type(error).__module__.startswith("cupy"):
        return True
    return isinstance(error, RuntimeError) and bool(_DEVICE_ERROR.match(str(error)))


@contextmanager
def _errors_raised(nlp: Language) -> Iterator[None]:
    """Let components raise. Their error handlers would drop documents, and hide the reason."""
    handled: List[Any] = [pipe for _, pipe in nlp.pipeline if hasattr(pipe, "get_error_handler")]
    before = [(pipe, pipe.get_error_handler()) for pipe in handled]
    default = nlp.default_error_handler
    nlp.set_error_handler(raise_error)
    try:
        yield
    finally:
        nlp.default_error_handler = default
        for pipe, handler in before:
            pipe.set_error_handler(handler)


def _part_of_doc(row: int, chunk: Chunk, doc: Doc) -> DocPart:
    """Take a chunk of a Doc, in whole tokens."""
    span = doc.char_span(chunk.left, chunk.right, alignment_mode="expand")
    assert span is not None
    chunk = chunk._replace(left=span.start_char, right=span.end_char)
    return DocPart(row, chunk, span.as_doc())


def _annotated(part: DocPart, doc: Doc, docs: bool) -> AnnotatedPart:
    chunk = part.chunk
    entities = [
        FoundEntity(
            ent.start_char + chunk.left, ent.end_char + chunk.left, ent.label_, _confidence(ent)
        )
        for ent in doc.ents
    ]
    if not docs and (chunk.start, chunk.end) == (chunk.left, chunk.right):
        return AnnotatedPart(chunk, entities, len(doc), [])
    own = [token for token in doc if chunk.start <= token.idx + chunk.left < chunk.end]
    tokens = [(token.text, bool(token.whitespace_)) for token in own] if docs else []
    return AnnotatedPart(chunk, entities, len(own), tokens)


def _confidence(ent: Span) -> Optional[float]:
    value = ent._.confidence if ent.has_extension("confidence") else None
    return None if value is None else float(value)
