"""Print the entities of texts and files, as a table or as JSON lines."""

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice, zip_longest
from typing import TYPE_CHECKING, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from .console import BAR, bar, confidence_color, note, print_table, printable, table_console

if TYPE_CHECKING:
    from ..annotate import Settings

Document = tuple[str, list[dict[str, Any]]]  # a text, and its entities as JSON has them

PRINTED_TOGETHER = 256  # documents
OTHER_COLUMNS = BAR + 26  # confidence, decision and spaces; the text has half of what is left
MOST_LINES = 10  # of a text, if its entities take no more
SHOWN = 0.01  # lowest confidence of an alternative in the table
C1 = re.compile("[\x7f-\x9f]")  # which JSON does not escape, and terminals obey
NOTHING = "nothing"  # in place of the label that a span without an entity lacks


def print_predictions(
    model: str,
    inputs: list[str],
    settings: "Settings",
    gpu_id: int,
    as_json: bool,
    accept: float,
    alternatives: bool,
) -> int:
    """Print the entities of inputs, a shard at a time.

    Returns the number of documents that are left out, and named on stderr.
    """
    from ..annotate.entities import component_with_alternatives
    from ..annotate.inputs import cut_inputs
    from ..annotate.settings import check_settings
    from ..annotate.shards import annotate_rows
    from ..annotate.writers import json_line
    from ..pipeline.load import load
    from ..pipeline.lookup import calibrations

    check_settings(settings)
    shards, ignored = cut_inputs(inputs, settings, typer.get_binary_stream("stdin"))
    nlp = load(model, gpu_id, settings.dtype)
    component = component_with_alternatives(nlp) if alternatives else None
    total = failed = 0

    def annotated() -> Iterator[dict[str, Any]]:
        nonlocal total, failed
        for shard in shards:
            for _, row, _ in annotate_rows(nlp, shard, settings, component=component):
                yield row
            report = shard.report()
            total, failed = total + report.documents, failed + len(report.errors)
            for item in shard.items:
                if item.reason:
                    typer.echo(printable(f"{item.place}: {item.reason}"), err=True)

    if as_json or not table_console().is_terminal:
        for row in annotated():
            line = C1.sub(lambda each: f"\\u{ord(each[0]):04x}", json_line(row).decode())
            typer.echo(line, nl=False)
    else:
        # Texts cannot control the terminal.
        documents = ((printable(row[settings.text_column]), row["entities"]) for row in annotated())
        _print_tables(documents, accept)
    for line in calibrations(nlp):
        note(line)
    if ignored:
        note(f"Files of other kinds, not read: {len(ignored):,}, such as {ignored[0]}")
    if failed:
        typer.echo(f"Left out: {failed:,} of {total:,} documents, see above.", err=True)
    return failed


def _print_tables(documents: Iterator[Document], accept: float) -> None:
    """Print the entities of documents, and how many are accepted."""
    console = table_console()
    entities = accepted = 0
    while some := [*islice(documents, PRINTED_TOGETHER)]:
        print_table(_entity_table(some, accept, console))
        confidences = [each["confidence"] for _, found in some for each in found]
        entities += len(confidences)
        accepted += sum(_is_accepted(p, accept) for p in confidences)
    typer.echo(f"{entities:,} {'entity' if entities == 1 else 'entities'}; {accepted:,} to accept")


def _entity_table(documents: Iterable[Document], accept: float, console: Console) -> Table:
    table = Table(
        Column("Text", no_wrap=True),
        "Entity",
        "Label",
        Column("Confidence", no_wrap=True),
        Column("Decision", no_wrap=True),
        box=box.SIMPLE_HEAD,
        show_edge=False,
        padding=(0, 1, 0, 0),
    )
    width = max(20, (console.width - OTHER_COLUMNS) // 2)
    for text, entities in documents:
        rows = [row for entity in entities for row in _rows(text, entity, accept, console)]
        lines = [*Text(text).wrap(console, width, overflow="fold")]
        shown = max(len(rows), MOST_LINES)
        if len(lines) > shown:
            lines[shown:] = [Text("...")]
        for line, row in zip_longest(lines, rows or [("none",)], fillvalue=()):
            table.add_row(line or "", *row)
        table.add_section()
    return table


def _rows(
    text: str, entity: Mapping[str, Any], accept: float, console: Console
) -> Iterator[tuple[str | Text, ...]]:
    """Yield the cells of an entity, and of what else it could be."""
    label, p = entity["label"], entity["confidence"]
    name = text[entity["start"] : entity["end"]]
    if p is None:
        yield name, label
        return
    decision = "accept" if _is_accepted(p, accept) else "ask a person"
    yield name, label, bar(p, console), Text(decision, confidence_color(p))
    for each in entity.get("alternatives") or ():
        if each["label"] != label and each["confidence"] >= SHOWN:
            yield "", each["label"] or NOTHING, bar(each["confidence"], console)


def _is_accepted(p: float | None, accept: float) -> bool:
    return p is not None and p >= accept
