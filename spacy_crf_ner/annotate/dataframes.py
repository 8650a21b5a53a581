"""Frames of documents in, the same frames with their entities out: what every engine runs.

A frame is a pandas.DataFrame, a document a row.
"""

from contextlib import nullcontext
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Dict, Iterable, Iterator, MutableMapping, Optional, Union
from weakref import WeakKeyDictionary

from spacy.language import Language

from ..pipeline import load as loading
from .chunking import SIZE
from .runner import Texts

if TYPE_CHECKING:
    from pandas import DataFrame

# A pipeline keeps as many words that it has not known, as it is faster with words that it knows. Of
# more it keeps none, or memory would grow without end.
NEW_WORDS = 50_000
ENTITIES, ERROR, DOC = "entities", "error", "doc"
ADDED = (ENTITIES, ERROR, DOC)

Entity = Dict[str, Any]  # start, end, label, confidence

_most_words: MutableMapping[Language, int] = WeakKeyDictionary()


def annotate_frames(
    frames: Iterable["DataFrame"],
    model: Union[str, Language],
    *,
    text_column: str = "text",
    batch_size: int = 0,
    max_characters: int = SIZE,
    docs: bool = False,
    gpu_id: int = -1,
    precision: Optional[str] = None,
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
    precision: That a pipeline is loaded to predict in, as `spacy_crf_ner.accelerate` has it; None
        for what it was saved with.

    Yields each frame with its rows, index and columns as they were, Docs as their text, and the
    columns "entities", a list of {"start", "end", "label", "confidence"} in characters of the text;
    "error", why the document could not be annotated, or None; with `docs` "doc", bytes. Its
    `.attrs["words"]` is the number of tokens.
    Raises ValueError for a frame without texts, or with columns of these names.
    """
    nlp = model if isinstance(model, Language) else load(model, gpu_id, precision)
    # Of the pipeline, not of these frames: the next ones are for the same memory.
    most = _most_words.setdefault(nlp, len(nlp.vocab.strings) + NEW_WORDS)
    for frame in frames:
        _require_columns(frame, text_column)
        texts = Texts(nlp, list(frame[text_column]), batch_size, max_characters, docs)
        with nlp.memory_zone() if len(nlp.vocab.strings) > most else nullcontext():
            texts.annotate()
            annotated = _with_columns(frame, text_column, texts)
        yield annotated


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


# Once a process.
load = lru_cache(maxsize=1)(loading.load)


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


def _with_columns(frame: "DataFrame", text_column: str, texts: Texts) -> "DataFrame":
    """Add what was found to a frame; what is there stays, and is not copied."""
    from pandas import Series

    found, docs = zip(*texts.results()) if len(frame) else ((), ())
    frame = frame.copy(deep=False)
    columns: Dict[str, Any] = {ENTITIES: [[_entity(*each) for each in row] for row in found]}
    if any(isinstance(text, bytes) for text in frame[text_column]):
        columns = {text_column: texts.texts, **columns}
    if texts.docs:
        columns[DOC] = docs
    for name, values in columns.items():
        frame[name] = Series(values, index=frame.index, dtype=object)
    frame[ERROR] = Series(texts.errors, index=frame.index, dtype="string")
    frame.attrs = {**frame.attrs, "words": texts.words}
    return frame


def _entity(start: int, end: int, label: str, confidence: float | None) -> Entity:
    return {"start": start, "end": end, "label": label, "confidence": confidence}
