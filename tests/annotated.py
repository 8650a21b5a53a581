"""What runs over a corpus have written, and what the pipeline itself finds."""

import json
from pathlib import Path
from typing import Any

from spacy.tokens import Doc


def read_lines(path: Path) -> list[Any]:
    """Read the JSON of each line."""
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def records(output: Path) -> list[Any]:
    """Read the records of all shards, in the order of their names."""
    return [record for path in sorted(output.glob("part-*.jsonl")) for record in read_lines(path)]


def errors(output: Path) -> list[Any]:
    """Read the errors."""
    return read_lines(output / "errors.jsonl")


def entities(doc: Doc) -> list[dict[str, Any]]:
    """Return the entities of a pipeline without confidences, as records have them."""
    return [
        {"start": ent.start_char, "end": ent.end_char, "label": ent.label_, "confidence": None}
        for ent in doc.ents
    ]
