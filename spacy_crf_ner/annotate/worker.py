"""What a worker does: it holds a model, and makes an annotated file of a shard."""

import os
from pathlib import Path
from typing import Any, Dict, NamedTuple, Tuple

from .dataframes import DOC, ENTITIES, ERROR, annotate_frames, load
from .output_folder import Report
from .readers import Item, Row
from .settings import Settings
from .shards import Shard
from .writers import WRITERS

# By their position in the shard.
Rows = Dict[int, Row]
Reasons = Dict[int, str]


class Task(NamedTuple):
    """A shard, and the file to write."""

    shard: Shard
    path: Path


class Annotator:
    """Annotate shards with a pipeline.

    model: Folder or package of it.
    gpu_id: GPU that it is loaded on; -1 for the CPU.
    settings: How documents are annotated and written.
    """

    def __init__(self, model: str, gpu_id: int, settings: Settings) -> None:
        self.nlp = load(model, gpu_id, settings.precision)
        self.settings = settings

    def __call__(self, task: Task) -> Report:
        """Annotate the documents of a shard, and write those that nothing is wrong with.

        Raises OSError where the file cannot be written.
        """
        shard = task.shard
        records = {i: item for i, item in enumerate(shard.items) if item.row or item.reason}
        reasons = {i: item.reason for i, item in records.items() if item.reason}
        rows = {i: item.row for i, item in records.items() if item.row}
        reasons |= _taken(rows)
        rows, errors, words = self._annotate(_without(rows, reasons))
        reasons |= errors
        reasons |= self._write(task, rows)
        return Report(
            number=shard.number,
            documents=len(records),
            blank=len(shard.items) - len(records),
            words=words,
            entities=sum(len(row[ENTITIES]) for row in _without(rows, reasons).values()),
            errors=[self._error(records[i], reasons[i]) for i in sorted(reasons)],
        )

    def _annotate(self, rows: Rows) -> Tuple[Rows, Reasons, int]:
        """Add the entities to rows. Returns those without errors, the errors, and the words."""
        from pandas import DataFrame

        settings = self.settings
        column, docs = settings.text_column, settings.format == "spacy"
        texts = {column: [row[column] for row in rows.values()]}
        (frame,) = annotate_frames(
            [DataFrame(texts, index=[*rows], dtype=object)],
            self.nlp,
            text_column=column,
            batch_size=settings.batch_size,
            max_characters=settings.max_characters,
            docs=docs,
        )
        errors = {i: str(reason) for i, reason in frame[ERROR].dropna().items()}
        columns = [column, ENTITIES, *([DOC] if docs else [])]
        found = frame[columns].to_dict("index")
        annotated = {i: {**row, **found[i]} for i, row in rows.items() if i not in errors}
        return annotated, errors, frame.attrs["words"]

    def _write(self, task: Task, rows: Rows) -> Reasons:
        """Write rows, so that they outlast a failure of the machine."""
        settings, schema = self.settings, task.shard.schema
        kept = [*rows.values()]
        if not settings.keep_text or settings.format == "spacy":
            kept = [{k: v for k, v in row.items() if k != settings.text_column} for row in kept]
            if schema is not None:
                schema = schema.remove(schema.get_field_index(settings.text_column))
        unwritten = WRITERS[settings.format](task.path, kept, schema)
        with task.path.open("rb") as file:
            os.fsync(file.fileno())
        positions = [*rows]
        return {positions[k]: reason for k, reason in unwritten.items()}

    def _error(self, item: Item, reason: str) -> Dict[str, Any]:
        row = item.row or {}
        return {**item.place._asdict(), "id": row.get(self.settings.id_column), "reason": reason}


def _without(rows: Rows, reasons: Reasons) -> Rows:
    return {i: row for i, row in rows.items() if i not in reasons}


def _taken(rows: Rows) -> Reasons:
    reason = f"expected no column {ENTITIES!r}, which is added, got one: rename it"
    return {i: reason for i, row in rows.items() if ENTITIES in row}
