"""The report in Markdown, with texts and labels escaped."""

import re
from collections.abc import Iterable
from typing import Any

from ..templates import made
from . import tables
from .tables import Cell

MAX_ERRORS = 20
# Characters that may begin markup in a line; an underscore in a word does not.
MARKUP = re.compile(r"[&<>|`*#\[\]\\~$:@]|(?<![^\W_])_|_(?![^\W_])|(?<=www)\.", re.IGNORECASE)


def markdown(results: dict[str, Any]) -> str:
    """Render the result of `evaluation.evaluate` or `compare` as short Markdown tables."""
    facts = [*tables.facts(results), ("Made", made())]
    headline = [
        f"{escape(name)} **{escape(_text(cell))}**" for name, cell in tables.headline(results)
    ]
    parts = [
        "# Evaluation report",
        "; ".join(f"{name}: {escape(value)}" for name, value in facts),
        "; ".join(headline),
        tables.method(results),
    ]
    for section in tables.sections(results):
        if not section.tables:
            continue
        parts.append(f"## {section.title}")
        if section.meaning:
            parts.append(section.meaning)
        for table in section.tables:
            rows = (table.header, *table.rows, *table.foot)
            cells = ([_cell(cell) for cell in row if cell.kind != "bar"] for row in rows)
            parts += [f"{table.title}:", _rows(cells)]
        if section.title == "Errors" and results["errors"]["list"]:
            parts += _errors(results["errors"]["list"])
    return "\n\n".join(parts) + "\n"


def escape(text: str) -> str:
    """Escape text for Markdown, on one line, also for a table cell."""
    line = re.sub(r"\s+", " ", text)
    return MARKUP.sub(lambda found: f"&#{ord(found[0])};", line).strip()


def _errors(errors: list[dict[str, Any]]) -> list[str]:
    shown = errors[:MAX_ERRORS]
    rows = [["Error", "Probability", "Gold", "Predicted", "Text", "Document"]]
    for error in shown:
        p = error["confidence" if error["predicted"] else "gold_probability"]
        # Two asterisks are not markup beside some punctuation.
        before, text, after = (error[part] for part in ("before", "text", "after"))
        context = f"{_part(before)}<b>{_part(text)}</b>{_part(after)}".strip()
        probability = tables.UNDEFINED if p is None else f"{p:.3f}"
        ents = (_entity(error[side]) for side in ("gold", "predicted"))
        rows.append([error["kind"], probability, *ents, context, str(error["doc"])])
    about = (
        f"The {len(shown)} most certain of {tables.count(len(errors), 'error')}, with the "
        "probability of the predicted entity, or that of the gold one if it is missed:"
    )
    return [about, _rows(rows)]


def _rows(rows: Iterable[list[str]]) -> str:
    """Render rows of escaped cells; the first is the header."""
    header, *body = rows
    lines = [header, ["---"] * len(header), *body]
    return "\n".join(f"| {' | '.join(row)} |" for row in lines)


def _cell(cell: Cell) -> str:
    text = escape(_text(cell))
    return f"<b>{text}</b>" if cell.kind == "significant" else text


def _text(cell: Cell) -> str:
    return f"{cell.text} ({cell.detail})" if cell.detail else cell.text


def _entity(ent: dict[str, Any] | None) -> str:
    return tables.UNDEFINED if ent is None else escape(f"{ent['text']} ({ent['label']})")


def _part(text: str) -> str:
    """Escape a part of a line, and keep spaces at its ends."""
    return f"{' ' * text[:1].isspace()}{escape(text)}{' ' * text[-1:].isspace()}"
