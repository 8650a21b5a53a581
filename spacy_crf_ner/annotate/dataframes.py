"""Add entities to pandas data frames."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from spacy.language import Language

from ..input_error import InputError
from .chunking import MAX_CHARACTERS
from .runner import annotate_texts
from .settings import ENTITIES, Settings
from .shards import load

if TYPE_CHECKING:
    from pandas import DataFrame

ERROR, DOC = "error", "doc"


def annotate_frames(
    frames: Iterable["DataFrame"],
    model: str | Language,
    *,
    text_column: str = "text",
    batch_size: int = 0,
    max_characters: int = MAX_CHARACTERS,
    docs: bool = False,
    gpu_id: int = -1,
    dtype: str | None = None,
) -> Iterator["DataFrame"]:
    """Find the entities of the documents in frames, and add them as a column.

    The pipeline processes the documents of a frame sorted by length, and documents longer than
    `max_characters` in chunks. If it raises an error for a document, the others are still
    annotated. The error handlers of the pipeline are not used.

    Args:
        frames: Each with a column of texts: strings, or Docs as bytes (`Doc.to_bytes`), whose
            tokens are kept.
        model: A pipeline, or its folder or package, which is loaded once per process.
        text_column: Name of the column with the texts.
        batch_size: Documents per batch; 0 chooses it by their length.
        max_characters: Maximum length of a chunk.
        docs: Also add the tokens and entities as a Doc.
        gpu_id: GPU to load the pipeline on; -1 for the CPU.
        dtype: "fp32", "bf16", "fp16", "int8" or "auto"; None for the dtype saved with the
            pipeline.

    Yields:
        Each frame with its rows, index and columns unchanged, but Docs replaced by their text, and
        these new columns: "entities", a list of {"start", "end", "label", "confidence"} in
        characters of the text, including all overlapping entities, sorted by start, end and label;
        "error", why the document could not be annotated, or None; with `docs` also "doc", bytes.
        Its `.attrs["words"]` is the number of tokens.

    Raises:
        InputError: For a frame without texts, or with columns of these names, and for sizes that
            are too small.
        OSError: For an error of the machine, not of a document; also MemoryError, and errors of a
            GPU.
    """
    from pandas import Series

    settings = Settings(batch_size=batch_size, max_characters=max_characters)
    nlp = model if isinstance(model, Language) else load(model, gpu_id, dtype)
    added = (ENTITIES, ERROR, DOC) if docs else (ENTITIES, ERROR)
    for frame in frames:
        _check_columns(frame, text_column, added)
        found = annotate_texts(nlp, frame[text_column], settings, docs)
        columns: dict[str, list[Any]] = {ENTITIES: [each.entities for each in found]}
        if any(isinstance(text, bytes) for text in frame[text_column]):
            columns[text_column] = [each.text for each in found]
        if docs:
            columns[DOC] = [each.doc for each in found]
        annotated = frame.copy(deep=False)
        for name, values in columns.items():
            annotated[name] = Series(values, index=frame.index, dtype=object)
        annotated[ERROR] = Series([each.error for each in found], frame.index, dtype="string")
        annotated.attrs = {**frame.attrs, "words": sum(each.words for each in found)}
        yield annotated


def _check_columns(frame: "DataFrame", text_column: str, added: Iterable[str]) -> None:
    columns = [*frame.columns]
    names = [name for name in columns if isinstance(name, str)]
    if names.count(text_column) != 1:
        raise InputError(
            f"text_column: expected a column that the frame has once, of {columns}, got "
            f"{text_column!r}. Set it to the column with the texts."
        )
    if taken := [name for name in names if name in added]:
        raise InputError(
            f"expected a frame without the columns {[*added]}, which are added, got {taken}. "
            "Rename them."
        )
