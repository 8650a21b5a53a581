"""The evaluation report, as HTML, Markdown and JSON."""

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from ..atomic import atomic_write, check_folder_name
from ..extras import require
from ..input_error import InputError
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


def write_report(results: dict[str, Any], out: Path) -> list[Path]:
    """Write the results of `evaluate` or `compare` as report.json, report.md and report.html.

    An earlier report is replaced when all three are complete. Raises InputError if the report
    cannot be written, or the extra `report` is missing.
    """
    check_report(out)
    texts = {
        "report.json": json.dumps(results, ensure_ascii=False, allow_nan=False, indent=1) + "\n",
        "report.md": markdown(results),
        "report.html": report_page(results),
    }
    with ExitStack() as stack:  # at its end, all three are renamed
        for name, text in texts.items():
            unfinished = stack.enter_context(atomic_write(out / name))
            # The name of a folder may not be UTF-8.
            unfinished.write_bytes(text.encode("utf-8", "replace"))
    return [out / name for name in texts]
