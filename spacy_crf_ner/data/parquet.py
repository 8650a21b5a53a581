"""Write Docs as a dataset of Hugging Face, in Parquet."""

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from spacy.tokens import Doc

from ..docbin import META
from ..extras import required
from ..pipeline.annotated_labels import KEY, annotated_labels
from .hugging_face import BATCH_ROWS, SPACES, TAGS, TOKENS

SUFFIX = ".parquet"


def write_parquet(docs: Iterable[Doc], path: Path, labels: Iterable[str]) -> "Counter[str]":
    """Write Docs as a dataset, which `datasets.load_dataset` and `read_hugging_face` read.

    Args:
        docs: Docs with entities in doc.ents. A row has the columns "tokens"; "ner_tags", a
            ClassLabel of O, B-X and I-X for each label, -1 where a token is not annotated for all
            of the labels; and "spaces", whether a space follows each token, null if that is
            unknown.
        labels: Labels of all entities; the same ones for all parts of a corpus.

    Returns:
        How many ids of entities, spans, sentence starts and so on were not written. Annotation for
        other tasks, such as tags, is not counted.
    """
    with required("datasets"):
        import pyarrow
        from pyarrow.parquet import ParquetWriter

    labels = sorted(labels)
    names = ["O", *(f"{prefix}-{label}" for label in labels for prefix in "BI")]
    kinds = {
        TOKENS: {"dtype": "string", "_type": "Value"},
        TAGS: {"names": names, "_type": "ClassLabel"},
        SPACES: {"dtype": "bool", "_type": "Value"},
    }
    features = {column: {"feature": kind, "_type": "Sequence"} for column, kind in kinds.items()}
    types = pyarrow.string(), pyarrow.int64(), pyarrow.bool_()
    schema = pyarrow.schema(
        [(column, pyarrow.list_(kind)) for column, kind in zip(kinds, types)],
        metadata={"huggingface": json.dumps({"info": {"features": features}})},
    )
    unwritten = Counter[str]()
    ids = {name: number for number, name in enumerate(names)}
    with ParquetWriter(path, schema) as writer:
        rows: list[dict[str, Any]] = []
        for doc in docs:
            some = annotated_labels(doc)
            is_limited = some is not None and not some.issuperset(labels)
            unwritten.update(_other_annotation(doc, is_limited))
            rows.append(_to_row(doc, ids, is_limited))
            if len(rows) == BATCH_ROWS:
                writer.write_batch(pyarrow.RecordBatch.from_pylist(rows, schema))
                rows.clear()
        writer.write_batch(pyarrow.RecordBatch.from_pylist(rows, schema))
    return unwritten


def _to_row(doc: Doc, ids: dict[str, int], is_limited: bool) -> dict[str, Any]:
    """is_limited: Whether the tokens outside of entities may be in entities of other labels."""
    tags = (f"{token.ent_iob_}-{token.ent_type_}" if token.ent_type else "O" for token in doc)
    return {
        TOKENS: [token.text for token in doc],
        TAGS: [
            ids[tag] if token.ent_type or (token.ent_iob and not is_limited) else -1
            for token, tag in zip(doc, tags)
        ],
        SPACES: None if doc.has_unknown_spaces else [bool(token.whitespace_) for token in doc],
    }


def _other_annotation(doc: Doc, is_limited: bool) -> dict[str, int]:
    return {
        "ids of entities": sum(bool(ent.kb_id or ent.id) for ent in doc.ents),
        "sentence starts in a row": sum(bool(token.is_sent_start) for token in doc[1:]),
        "docs with metadata": int(META in doc.user_data),
        "annotated labels of docs that annotate some labels only": int(KEY in doc.spans),
        "tokens outside of entities of some labels, which may have others": is_limited
        * sum(bool(token.ent_iob) and not token.ent_type for token in doc),
        **{
            f"spans of doc.spans[{key!r}]": len(spans)
            for key, spans in doc.spans.items()
            if key != KEY
        },
    }
