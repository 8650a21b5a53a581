"""Settings for annotating a corpus."""

from typing import NamedTuple

from ..input_error import InputError
from .chunking import MAX_CHARACTERS

FORMATS = ("jsonl", "parquet", "spacy")
ENTITIES = "entities"  # the new column


class Settings(NamedTuple):
    """How documents are read, annotated and written.

    Attributes:
        format: Format of the shards, one of FORMATS.
        text_column: Column of the texts.
        id_column: Column of the ids. A missing id, or null, becomes file and line; in the format
            "parquet", null stays.
        doc_per_file: Read a .txt file as one document, instead of one per line.
        keep_text: Also write the texts; the format "spacy" always has them.
        shard_size: Maximum number of documents in a shard.
        batch_size: Documents per batch; 0 chooses it by their length.
        max_characters: Maximum length of a chunk; longer texts are split.
        dtype: "fp32", "bf16", "fp16", "int8" or "auto"; None for the dtype saved with the
            pipeline.
    """

    format: str = "jsonl"
    text_column: str = "text"
    id_column: str = "id"
    doc_per_file: bool = False
    keep_text: bool = True
    shard_size: int = 2000
    batch_size: int = 0
    max_characters: int = MAX_CHARACTERS
    dtype: str | None = None


def check_settings(settings: Settings) -> None:
    """Raise InputError for invalid settings."""
    if settings.format not in FORMATS:
        raise InputError(
            f"format: expected one of {', '.join(FORMATS)}, got {settings.format!r}. Choose one."
        )
    columns = settings.text_column, settings.id_column
    if len({*columns, ENTITIES}) < 3:
        raise InputError(
            f"text_column, id_column: expected two names other than {ENTITIES!r}, which is added, "
            f"got {columns[0]!r} and {columns[1]!r}. Choose other columns."
        )
    for name, least in {"shard_size": 1, "batch_size": 0, "max_characters": 1}.items():
        if (value := getattr(settings, name)) < least:
            raise InputError(f"{name}: expected {least} or more, got {value}. Use a larger one.")
