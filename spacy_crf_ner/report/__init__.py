"""The evaluation report, as HTML, Markdown and JSON."""

import json
from pathlib import Path
from typing import Any

from ..evaluation import require_nervaluate
from ..input_error import InputError
from .html import report_page
from .markdown import markdown
from .plots import require_matplotlib


def require_report(out: Path) -> None:
    """Raise InputError where no report can be written.

    out: Its folder. It must not be a file, or below one, and the extra `report` is needed.
    """
    require_nervaluate()
    require_matplotlib()
    for path in (out, *out.parents):
        if path.exists() and not path.is_dir():
            raise InputError(
                f"{path}: expected a folder, or nothing yet, got a file. Name another."
            )


def write_report(results: dict[str, Any], out: Path) -> list[Path]:
    """Write results as report.json, report.md and report.html, once all three are made.

    results: What `evaluation.evaluate` or `evaluation.compare` returns.
    out: Folder; a report in it is replaced.

    Returns the three paths. Raises InputError as `require_report`.
    """
    require_report(out)
    texts = {
        "report.json": json.dumps(results, ensure_ascii=False, allow_nan=False, indent=1) + "\n",
        "report.md": markdown(results),
        "report.html": report_page(results),
    }
    out.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        # The name of a folder may not be UTF-8.
        (out / name).write_bytes(text.encode("utf-8", "replace"))
    return [out / name for name in texts]
