"""The work of a worker process: annotate a shard, and write it."""

from typing import Optional

from .dataframes import load
from .output_folder import ShardReport, write_report
from .runner import annotate_texts
from .settings import ENTITIES, Settings
from .shards import Shard
from .storage import Location
from .writers import WRITERS


def annotate_shard(
    shard: Shard, model: str, settings: Settings, output: Location, gpu_id: int
) -> ShardReport:
    """Annotate the documents of a shard; write those without errors, and then the report.

    Raises OSError if a file cannot be written, and errors of the machine as `annotate_frames`.
    """
    column, items = settings.text_column, shard.items
    # By the positions in the shard.
    reasons = {i: item.reason for i, item in enumerate(items) if item.reason}
    rows = {i: item.row for i, item in enumerate(items) if item.row}
    for i in [i for i, row in rows.items() if ENTITIES in row]:
        del rows[i]
        reasons[i] = f"expected no column {ENTITIES!r}, which is added, got one: rename it"
    documents = len(rows) + len(reasons)
    texts = [row[column] for row in rows.values()]
    nlp, docs = load(model, gpu_id, settings.precision), settings.format == "spacy"
    found = annotate_texts(nlp, texts, settings.batch_size, settings.max_characters, docs)
    annotated = {i: each for i, each in zip(rows, found) if each.error is None}
    reasons |= {i: each.error for i, each in zip(rows, found) if each.error is not None}
    schema = shard.schema
    kept = [
        {**rows[i], column: each.text, ENTITIES: each.entities} for i, each in annotated.items()
    ]
    if docs or not settings.keep_text:
        kept = [{k: v for k, v in row.items() if k != column} for row in kept]
        if schema is not None:
            schema = schema.remove(schema.get_field_index(column))
    contents = [each.doc for each in annotated.values() if each.doc is not None]
    content, unwritten = WRITERS[settings.format](kept, contents, schema)
    positions = [*annotated]
    reasons |= {positions[k]: reason for k, reason in unwritten.items()}
    (output / f"{shard.name}.{settings.format}").write([content])
    errors = []
    for i in sorted(reasons):
        item = items[i]
        identity = (item.row or {}).get(settings.id_column)
        place = {"file": item.file, "line": item.line, "id": identity}
        errors.append({**place, "reason": reasons[i]})
    report = ShardReport(
        name=shard.name,
        documents=documents,
        blank=len(items) - documents,
        words=sum(each.words for each in annotated.values()),
        entities=sum(len(each.entities) for i, each in annotated.items() if i not in reasons),
        size=shard.size,
        errors=errors,
    )
    write_report(output, report)
    return report


def load_model(model: str, precision: Optional[str], gpu_id: int) -> None:
    """Load the pipeline of a run, before it is needed."""
    load(model, gpu_id, precision)


def resolve_precision(model: str, precision: Optional[str], gpu_id: int) -> Optional[str]:
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
