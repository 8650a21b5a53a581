"""How a corpus is annotated: what the result follows from, beside model and input."""

from typing import NamedTuple, Optional

from .chunking import SIZE

FORMATS = ("jsonl", "parquet", "spacy")


class Settings(NamedTuple):
    """How documents are read, annotated and written.

    format: Of the shards, one of FORMATS.
    text_column, id_column: Columns of the input; an id that it has not is file and line.
    whole_files: A .txt file is a document, not each of its lines.
    keep_text: Write the text, too. Docs of spaCy always have theirs.
    shard_size: The most documents of a shard.
    batch_size: Documents that go through the pipeline together; 0 for what their length allows.
    max_characters: Longest text that goes through the pipeline at once.
    precision: As `spacy_crf_ner.accelerate` has it; None for what the pipeline was saved with.
    """

    format: str = "jsonl"
    text_column: str = "text"
    id_column: str = "id"
    whole_files: bool = False
    keep_text: bool = True
    shard_size: int = 2000
    batch_size: int = 0
    max_characters: int = SIZE
    precision: Optional[str] = None


def require_settings(settings: Settings) -> None:
    """Raise ValueError for settings that cannot be."""
    if settings.format not in FORMATS:
        raise ValueError(
            f"format: expected one of {', '.join(FORMATS)}, got {settings.format!r}. Choose one."
        )
    least = {"shard_size": 1, "batch_size": 0, "max_characters": 1}
    for name, lowest in least.items():
        value = getattr(settings, name)
        if value < lowest:
            raise ValueError(f"{name}: expected {lowest} or more, got {value}. Give a larger one.")
