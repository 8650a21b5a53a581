"""The evaluation report, as HTML, Markdown and JSON."""

import json
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from spacy.training import Example

from ..atomic import atomic_write, check_folder_name
from ..extras import require
from ..input_error import InputError
from .documents import documents_page
from .html import report_page
from .markdown import markdown


def check_report(out: Path) -> None:
    """Raise InputError if a report cannot be in a folder, or the extra `report` is missing."""
    require("report")
    check_folder_name(out)
    for path in (out, *out.parents):
        if path.exists() and not path.is_dir():
            raise InputError(
                f"{path}: expected a new or an existing folder, got a file. Choose another."
            )


def write_report(results: dict[str, Any], out: Path, *examples: Sequence[Example]) -> list[Path]:
    """Write report.html, with the documents in documents.html, report.md and report.json.

    An earlier report is replaced when all are complete. Raises InputError if the report cannot be
    written, or the extra `report` is missing.

    Args:
        results: The result of `evaluation.evaluate`, or of `compare`.
        out: A folder.
        examples: The examples that were evaluated; for `compare`, those of both pipelines.
    """
    check_report(out)
    texts = {
        "report.html": report_page(results),
        "documents.html": documents_page(results, *examples),
        "report.md": markdown(results),
        "report.json": json.dumps(results, ensure_ascii=False, allow_nan=False, indent=1) + "\n",
    }
    with ExitStack() as stack:  # at its end, all are renamed
        for name, text in texts.items():
            unfinished = stack.enter_context(atomic_write(out / name))
            # The name of a folder may not be UTF-8.
            unfinished.write_bytes(text.encode("utf-8", "replace"))
    return [out / name for name in texts]
