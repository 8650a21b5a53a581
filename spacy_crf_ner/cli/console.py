"""Terminal output: tables and progress bars."""

from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from .. import data
from ..annotate import Progress as Run
from ..explain.trellis import entities_in_words, relevant_tags, visible


def print_counts(counts: Dict[str, Dict[str, int]]) -> None:
    """Print counts by name as a table, with a column for each part of a corpus."""
    table = Table("")
    for name in counts:
        table.add_column(name, justify="right")
    for row in dict.fromkeys(row for column in counts.values() for row in column):
        table.add_row(row, *(str(column.get(row, 0)) for column in counts.values()))
    print_table(table)


def print_conversion_log(log: data.ConversionLog) -> None:
    """Print what was read and lost, what was repaired, and the first mistakes."""
    table = Table("", "read", "left out", "kept")
    for part, totals in log.parts.items():
        for unit in ("records", "entities"):
            found, lost = totals[unit], totals[f"rejected.{unit}"]
            table.add_row(f"{part}, {unit}", *map(str, (found, lost, found - lost)))
    if log.repair or log.counts:
        print_table(table)
    schemes: Dict[str, List[str]] = {}
    for file, scheme in log.tag_schemes.items():
        schemes.setdefault(scheme, []).append(file)
    for scheme, files in schemes.items():
        typer.echo(f"Tags: {scheme} ({', '.join(files)})")
    for note in log.notes:
        typer.echo(note)
    for kind, number in sorted(log.counts.items()):
        event, _, problem = kind.partition(".")
        typer.echo(f"{event.capitalize()}: {problem} {number}")
    for message in log.messages:
        typer.echo(f"  {message}")
    if sum(log.counts.values()) > len(log.messages) == data.MAX_MESSAGES:
        typer.echo("  ...")


def print_trellis(explanation: Dict[str, Any]) -> None:
    """Print what `explain` returns: the relevant tags at each token, and the best analyses."""
    if not explanation["tokens"]:
        typer.echo("The text has no token, so there is nothing to search.")
        return
    tags, relevant = explanation["tags"], relevant_tags(explanation)
    table = Table("Token", "Tag")
    for name in ("Emission", "Score", "Backpointer", "Marginal"):
        table.add_column(name, justify="left" if name == "Backpointer" else "right")
    for t, shown in enumerate(relevant):
        for c in shown:
            score, before = explanation["scores"][t][c], explanation["backpointers"][t][c]
            table.add_row(
                visible(explanation["tokens"][t]) if c == shown[0] else "",
                ("* " if c == explanation["path"][t] else "  ") + tags[c],
                f"{explanation['emissions'][t][c]:.2f}",
                "none" if score is None else f"{score:.2f}",
                "" if before is None else tags[before],
                f"{explanation['marginals'][t][c]:.3f}",
                end_section=c == shown[-1],
            )
    print_table(table)
    left_out = len(tags) - len(set().union(*relevant))
    typer.echo(f"Score of the path, its end included: {explanation['score']:.2f}")
    typer.echo(f"Tags: {len(tags)}, of which {left_out} are left out: they matter at no token")
    analyses = Table("Probability", "Entities")
    for analysis in explanation["analyses"]:
        analyses.add_row(f"{analysis['probability']:.4f}", entities_in_words(analysis))
    print_table(analyses)


def print_table(table: Table) -> None:
    """Print a table whose texts and labels are the user's: not markup."""
    for column in table.columns:
        column.overflow = "fold"
    Console(markup=False, emoji=False, highlight=False).print(table)


def progress_callback(progress: Progress) -> Callable[[str, int, Optional[int]], None]:
    """Draw a bar for each part of a corpus; for a part that is read twice, one for each pass."""
    tasks: Dict[Tuple[str, bool], TaskID] = {}

    def on_progress(part: str, number: int, total: Optional[int]) -> None:
        key = part, total is None
        if key not in tasks:
            action = "Reading" if total is None else "Dividing"
            tasks[key] = progress.add_task(f"{action} {part}", total=total)
        if number % 100 == 0 or number == total:
            progress.update(tasks[key], completed=number)

    return on_progress


@contextmanager
def annotation_bar() -> Iterator[Callable[[Run], None]]:
    """Draw, on stderr, how far `annotate` is: the share of the input, and how fast it goes."""
    console = Console(stderr=True)
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[speed]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("Loading", total=None, speed="")
        began = None

        def watch(run: Run) -> None:
            nonlocal began
            began = run.seconds if began is None else began
            seconds = max(run.seconds - began, 1e-3)
            docs, words = run.documents / seconds, run.words / seconds
            bar.update(
                task,
                description="Annotating",
                completed=run.size,
                total=run.total,
                speed=f"{run.documents:,} docs, {docs:,.0f} docs/s, {words:,.0f} words/s, left",
            )

        yield watch
