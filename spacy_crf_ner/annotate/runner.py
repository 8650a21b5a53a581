"""Texts through a pipeline: in batches of similar length, long ones in pieces, bad ones alone."""

from typing import Any, Iterator, List, NamedTuple, Tuple, Union

from spacy.language import Language
from spacy.tokens import Doc, Span

from .chunking import Found, Piece, cut, join

# Characters, and documents, that go through the pipeline together.
BATCH_CHARACTERS = 50_000
BATCH_DOCS = 256

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


class Texts:
    """Documents, and what a pipeline finds in them.

    nlp: The pipeline.
    texts: Strings, or Docs as bytes, whose texts take their place here. What is neither is an
        error of its own.
    batch_size, max_characters, docs: As of `annotate_frames`.

    errors: Why a document could not be annotated, or None. words: Number of tokens.
    """

    def __init__(
        self, nlp: Language, texts: List[Any], batch_size: int, max_characters: int, docs: bool
    ) -> None:
        self.nlp, self.texts = nlp, texts
        self.batch_size, self.max_characters, self.docs = batch_size, max_characters, docs
        self.errors: List[str | None] = [None] * len(texts)
        self.words = 0
        self._annotated: List[List[Annotated]] = [[] for _ in texts]

    def annotate(self) -> None:
        """Find the entities."""
        parts = [part for i in range(len(self.texts)) for part in self._parts(i)]
        parts.sort(key=_length)
        for batch in self._batches(parts):
            self._pipe(batch)

    def results(self) -> Iterator[Tuple[List[Found], bytes | None]]:
        """Yield the entities of each document, and with `docs` its tokens and them as a Doc."""
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
