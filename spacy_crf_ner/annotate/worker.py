"""The work of a worker process: annotate a shard, and write it."""

from typing import Any, Dict, List, Optional, Tuple

from .dataframes import DOC, ERROR, annotate_frames, load
from .output_folder import ShardReport, write_report
from .readers import Item, Row
from .settings import ENTITIES, Settings
from .shards import Shard
from .storage import Location
from .writers import WRITERS

# By their positions in a shard.
Rows = Dict[int, Row]
Reasons = Dict[int, str]


def annotate_shard(
    shard: Shard, model: str, gpu_id: int, settings: Settings, output: Location
) -> ShardReport:
    """Annotate the documents of a shard; write those without errors, and then the report.

    Raises OSError if a file cannot be written, and errors of the machine as `annotate_frames`.
    """
    records = {i: item for i, item in enumerate(shard.items) if item.row or item.reason}
    reasons = {i: item.reason for i, item in records.items() if item.reason}
    rows: Rows = {}
    for i, item in records.items():
        if item.row and ENTITIES in item.row:
            reasons[i] = f"expected no column {ENTITIES!r}, which is added, got one: rename it"
        elif item.row:
            rows[i] = item.row
    rows, docs, errors, words = _annotate(rows, model, gpu_id, settings)
    reasons |= errors
    schema, column = shard.schema, settings.text_column
    kept = [*rows.values()]
    if not settings.keep_text or settings.format == "spacy":
        kept = [{k: v for k, v in row.items() if k != column} for row in kept]
        if schema is not None:
            schema = schema.remove(schema.get_field_index(column))
    content, unwritten = WRITERS[settings.format](kept, docs, schema)
    positions = [*rows]
    reasons |= {positions[k]: reason for k, reason in unwritten.items()}
    (output / f"{shard.name}.{settings.format}").write([content])
    report = ShardReport(
        name=shard.name,
        documents=len(records),
        blank=len(shard.items) - len(records),
        words=words,
        entities=sum(len(row[ENTITIES]) for i, row in rows.items() if i not in reasons),
        size=shard.size,
        errors=[_error(records[i], reasons[i], settings) for i in sorted(reasons)],
    )
    write_report(output, report)
    return report


def resolve_precision(model: str, gpu_id: int, precision: Optional[str]) -> Optional[str]:
    """Load a pipeline, and say which precision "auto" is here; None without a transformer."""
    from ..ml.precision import PredictionShim

    nlp = load(model, gpu_id, precision)
    models = [pipe.model for _, pipe in nlp.pipeline if hasattr(pipe, "model")]
    shims = (shim for each in models for node in each.walk() for shim in node.shims)
    chosen = (
        s.resolved_precision
        for s in shims
        if isinstance(s, PredictionShim) and s.precision is not None
    )
    return next(chosen, None)


def _annotate(
    rows: Rows, model: str, gpu_id: int, settings: Settings
) -> Tuple[Rows, List[bytes], Reasons, int]:
    """Add the entities. Returns the rows without errors, their Docs, the errors, and the words."""
    from pandas import DataFrame

    # In a frame of its own, so that the columns of the corpus may have any names.
    column, docs = settings.text_column, settings.format == "spacy"
    texts = {"text": [row[column] for row in rows.values()]}
    (frame,) = annotate_frames(
        [DataFrame(texts, index=[*rows], dtype=object)],
        load(model, gpu_id, settings.precision),
        batch_size=settings.batch_size,
        max_characters=settings.max_characters,
        docs=docs,
    )
    errors = {i: str(reason) for i, reason in frame[ERROR].dropna().items()}
    frame = frame.drop(index=[*errors])
    found = frame[["text", ENTITIES]].to_dict("index")
    annotated = {
        i: {**rows[i], column: each["text"], ENTITIES: each[ENTITIES]} for i, each in found.items()
    }
    return annotated, [*frame[DOC]] if docs else [], errors, frame.attrs["words"]


def _error(item: Item, reason: str, settings: Settings) -> Dict[str, Any]:
    row = item.row or {}
    place = {"file": item.file, "line": item.line}
    return {**place, "id": row.get(settings.id_column), "reason": reason}
