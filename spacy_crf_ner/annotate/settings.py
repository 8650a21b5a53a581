"""How a corpus is annotated: what the result follows from, beside model and input."""

from typing import NamedTuple

from ..input_error import InputError
from .chunking import MAX_CHARACTERS

FORMATS = ("jsonl", "parquet", "spacy")
ENTITIES = "entities"  # the column that is added


class Settings(NamedTuple):
    """How documents are read, annotated and written.

    format: Format of the shards, one of FORMATS.
    text_column, id_column: Columns of the input; an id that is missing becomes file and line.
    whole_files: A .txt file is one document, instead of one for each line.
    keep_text: Write the text, too. Docs of spaCy always have theirs.
    shard_size: Maximum number of documents in a shard.
    batch_size: Documents that go through the pipeline together; 0 for what their length allows.
    max_characters: Longest text that goes through the pipeline at once.
    precision: As in `spacy_crf_ner.accelerate`; None for what the pipeline was saved with.
    """

    format: str = "jsonl"
    text_column: str = "text"
    id_column: str = "id"
    whole_files: bool = False
    keep_text: bool = True
    shard_size: int = 2000
    batch_size: int = 0
    max_characters: int = MAX_CHARACTERS
    precision: str | None = None


def require_settings(settings: Settings) -> None:
    """Raise InputError for invalid settings."""
    if settings.format not in FORMATS:
        raise InputError(
            f"format: expected one of {', '.join(FORMATS)}, got {settings.format!r}. Choose one."
        )
    columns = settings.text_column, settings.id_column
    if len({*columns, ENTITIES}) < 3:
        raise InputError(
            f"text_column, id_column: expected two names other than {ENTITIES!r}, which is added, "
            f"got {columns[0]!r} and {columns[1]!r}. Name other columns."
        )
    for name, least in {"shard_size": 1, "batch_size": 0, "max_characters": 1}.items():
        value = getattr(settings, name)
        if value < least:
            raise InputError(f"{name}: expected {least} or more, got {value}. Give a larger one.")
