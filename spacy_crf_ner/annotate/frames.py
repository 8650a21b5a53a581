"""Frames of documents in, the same frames with their entities out: what every engine runs.

A frame is a pandas.DataFrame, a document a row.
"""

from contextlib import nullcontext
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Dict, Iterable, Iterator, List, NamedTuple, Tuple, Union

import spacy
from spacy.cli._util import setup_gpu
from spacy.language import Language
from spacy.tokens import Doc, Span

from .pieces import SIZE, Found, Piece, cut, join

if TYPE_CHECKING:
    from pandas import DataFrame

# Characters, and documents, that go through the pipeline together.
BATCH_CHARACTERS = 50_000
BATCH_DOCS = 256
# A pipeline keeps as many words that it has not known, as it is faster with words that it knows. Of
# more it keeps none, or memory would grow without end.
NEW_WORDS = 50_000
ENTITIES, ERROR, DOC = "entities", "error", "doc"
ADDED = (ENTITIES, ERROR, DOC)

Entity = Dict[str, Any]  # start, end, label, confidence
Tokens = List[Tuple[str, bool]]  # the text of each, and whether a space follows


class Part(NamedTuple):
    """A document, or a piece of one, on its way through the pipeline."""

    row: int
    piece: Piece
    text: Union[str, Doc]


class Annotated(NamedTuple):
    """What the pipeline found in a part. Offsets are those of the whole document.

    tokens: Those that begin in the piece; empty where they are not asked for.
    """

    piece: Piece
    entities: List[Found]
    tokens: Tokens


def annotate_frames(
    frames: Iterable["DataFrame"],
    model: Union[str, Language],
    *,
    text_column: str = "text",
    batch_size: int = 0,
    max_characters: int = SIZE,
    docs: bool = False,
    gpu_id: int = -1,
) -> Iterator["DataFrame"]:
    """Find the entities of the documents in frames, and add them as a column.

    The documents of a frame go through the pipeline sorted by their length; longer ones than
    `max_characters` in pieces. One that makes the pipeline raise stops no other.

    frames: Each with a column of texts: strings, or Docs as bytes, as `Doc.to_bytes` makes them,
        whose tokens are kept.
    model: A pipeline, or the folder or package of one, which is loaded once a process.
    text_column: Name of that column.
    batch_size: Documents that go through the pipeline together; 0 for as many as their length
        lets do.
    max_characters: Longest text that goes through the pipeline at once.
    docs: Add the tokens and entities as a Doc too.
    gpu_id: GPU that a pipeline is loaded on; -1 for the CPU.

    Yields each frame with its rows, index and columns as they were, Docs as their text, and the
    columns "entities", a list of {"start", "end", "label", "confidence"} in characters of the text;
    "error", why the document could not be annotated, or None; with `docs` "doc", bytes. Its
    `.attrs["words"]` is the number of tokens.
    Raises ValueError for a frame without texts, or with columns of these names.
    """
    nlp = model if isinstance(model, Language) else load(model, gpu_id)
    most = len(nlp.vocab.strings) + NEW_WORDS
    for frame in frames:
        _require_columns(frame, text_column)
        rows = _Rows(nlp, list(frame[text_column]), batch_size, max_characters, docs)
        with nlp.memory_zone() if len(nlp.vocab.strings) > most else nullcontext():
            rows.annotate()
            annotated = _with_columns(frame, text_column, rows)
        yield annotated


class _Rows:
    """The documents of a frame, and what is found in them: see `annotate_frames`."""

    def __init__(
        self, nlp: Language, texts: List[Any], batch_size: int, max_characters: int, docs: bool
    ) -> None:
        self.nlp, self.texts = nlp, texts
        self.batch_size, self.max_characters, self.docs = batch_size, max_characters, docs
        self.words = 0
        self.errors: List[str | None] = [None] * len(texts)
        self._annotated: List[List[Annotated]] = [[] for _ in texts]

    def annotate(self) -> None:
        """Find the entities."""
        parts = [part for i in range(len(self.texts)) for part in self._parts(i)]
        parts.sort(key=_length)
        for batch in self._batches(parts):
            self._pipe(batch)

    def results(self) -> Iterator[Tuple[List[Found], bytes | None]]:
        """Yield the entities of each document, and with `docs` it and them as a Doc."""
        for row, parts in enumerate(self._annotated):
            parts.sort()
            found = join([(part.piece, part.entities) for part in parts])
            doc = None
            if self.docs and self.errors[row] is None:
                try:
                    doc = self._doc(row, found).to_bytes()
                except ValueError as error:
                    self._fail(row, error)
                    found = []
            yield found, doc

    def _parts(self, row: int) -> List[Part]:
        text = self.texts[row]
        doc = None
        try:
            if isinstance(text, bytes):
                doc = Doc(self.nlp.vocab).from_bytes(text)
                text = self.texts[row] = doc.text
            if not isinstance(text, str):
                # NaN is how pandas says that there is nothing.
                got = "none" if text is None or text != text else type(text).__name__
                raise TypeError(f"expected a text, got {got}")
        except Exception as error:  # whatever bytes that are no Doc make of it
            self._fail(row, error)
            return []
        pieces = list(cut(text, self.max_characters))
        if len(pieces) == 1:
            return [Part(row, pieces[0], text if doc is None else doc)]
        if doc is None:
            return [Part(row, piece, text[piece.left : piece.right]) for piece in pieces]
        return [_part_of_doc(row, piece, doc) for piece in pieces]

    def _batches(self, parts: List[Part]) -> Iterator[List[Part]]:
        """Divide parts, sorted by length, into batches."""
        batch: List[Part] = []
        size = 0
        for part in parts:
            full = len(batch) >= (self.batch_size or BATCH_DOCS)
            if not self.batch_size and size + _length(part) > BATCH_CHARACTERS:
                full = True
            if batch and full:
                yield batch
                batch, size = [], 0
            batch.append(part)
            size += _length(part)
        if batch:
            yield batch

    def _pipe(self, batch: List[Part]) -> None:
        """Annotate a batch; where it raises, its halves, down to the one document that does."""
        batch = [part for part in batch if self.errors[part.row] is None]
        try:
            # A Doc that was in a batch that failed may be half annotated: a copy goes in.
            texts = [p.text.copy() if isinstance(p.text, Doc) else p.text for p in batch]
            docs = list(self.nlp.pipe(texts, batch_size=max(1, len(batch))))
            found = [_annotated(part, doc, self.docs) for part, doc in zip(batch, docs)]
        except Exception as error:  # whatever a component raises
            if len(batch) == 1:
                self._fail(batch[0].row, error)
                return
            middle = len(batch) // 2
            self._pipe(batch[:middle])
            self._pipe(batch[middle:])
            return
        for part, doc, annotated in zip(batch, docs, found):
            self._annotated[part.row].append(annotated)
            self.words += _own_words(part, doc)

    def _fail(self, row: int, error: Exception) -> None:
        self.errors[row] = f"{type(error).__name__}: {error}"
        self._annotated[row] = []

    def _doc(self, row: int, entities: List[Found]) -> Doc:
        """The document with the tokens of its parts, and its entities, and nothing else."""
        tokens = [token for part in sorted(self._annotated[row]) for token in part.tokens]
        words, spaces = [word for word, _ in tokens], [space for _, space in tokens]
        doc = Doc(self.nlp.vocab, words, spaces)
        if doc.text != self.texts[row]:
            raise ValueError(
                f"expected a space somewhere in {self.max_characters // 4:,} characters, got none: "
                "the text cannot be cut between its tokens"
            )
        ents = []
        for start, end, label, confidence in entities:
            ent = doc.char_span(start, end, label)
            assert ent is not None  # the tokens are those in which it was found
            if confidence is not None:
                ent._.confidence = confidence
            ents.append(ent)
        doc.set_ents(ents)
        return doc


def require_annotate() -> None:
    """Raise ValueError where pandas or pyarrow is not installed."""
    try:
        import pandas  # noqa: F401
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise ValueError(
            f"annotate: expected pandas and pyarrow, got no package {error.name}. "
            'Install them: pip install "spacy-crf-ner[annotate]".'
        ) from error


@lru_cache(maxsize=1)
def load(model: str, gpu_id: int = -1) -> Language:
    """Load a pipeline, once a process, on a GPU or, with -1, on the CPU."""
    setup_gpu(gpu_id, silent=True)
    return spacy.load(model)


def _require_columns(frame: "DataFrame", text_column: str) -> None:
    columns = [str(name) for name in frame.columns]
    if text_column not in columns:
        raise ValueError(
            f"text_column: expected a column of the frame, which has {columns}, got "
            f"{text_column!r}. Name the one with the texts."
        )
    taken = [name for name in columns if name in ADDED]
    if taken:
        raise ValueError(
            f"expected a frame without the columns {[*ADDED]}, which are added, got {taken}. "
            "Rename them."
        )


def _with_columns(frame: "DataFrame", text_column: str, rows: _Rows) -> "DataFrame":
    """Add what was found to a frame; what is there stays, and is not copied."""
    from pandas import Series

    found, docs = zip(*rows.results()) if len(frame) else ((), ())
    frame = frame.copy(deep=False)
    columns: Dict[str, Any] = {ENTITIES: [[_entity(*each) for each in row] for row in found]}
    if any(isinstance(text, bytes) for text in frame[text_column]):
        columns = {text_column: rows.texts, **columns}
    if rows.docs:
        columns[DOC] = docs
    for name, values in columns.items():
        frame[name] = Series(values, index=frame.index, dtype=object)
    frame[ERROR] = Series(rows.errors, index=frame.index, dtype="string")
    frame.attrs = {**frame.attrs, "words": rows.words}
    return frame


def _length(part: Part) -> int:
    return part.piece.right - part.piece.left


def _part_of_doc(row: int, piece: Piece, doc: Doc) -> Part:
    """Take a piece of a Doc with whole tokens."""
    span = doc.char_span(piece.left, piece.right, alignment_mode="expand")
    assert span is not None
    around = piece._replace(left=span.start_char, right=span.end_char)
    return Part(row, around, span.as_doc())


def _own_words(part: Part, doc: Doc) -> int:
    piece = part.piece
    if (piece.start, piece.end) == (piece.left, piece.right):
        return len(doc)
    return sum(piece.start <= token.idx + piece.left < piece.end for token in doc)


def _annotated(part: Part, doc: Doc, docs: bool) -> Annotated:
    piece = part.piece
    entities: List[Found] = [
        (ent.start_char + piece.left, ent.end_char + piece.left, ent.label_, _confidence(ent))
        for ent in doc.ents
    ]
    tokens = [
        (token.text, bool(token.whitespace_))
        for token in (doc if docs else ())
        if piece.start <= token.idx + piece.left < piece.end
    ]
    return Annotated(piece, entities, tokens)


def _confidence(ent: Span) -> float | None:
    value = ent._.confidence if ent.has_extension("confidence") else None
    return None if value is None else float(value)


def _entity(start: int, end: int, label: str, confidence: float | None) -> Entity:
    return {"start": start, "end": end, "label": label, "confidence": confidence}
