"""Terminal output: tables and progress bars."""

import os
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from colorsys import hsv_to_rgb
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    track,
)
from rich.style import Style
from rich.table import Column, Table
from rich.text import Text

if TYPE_CHECKING:
    from .. import annotate, data

Item = TypeVar("Item")
MERGED = ("answers", "unchanged", "changed", "added")
# Characters that control a terminal, but for tabs and ends of lines.
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
BAR = 8  # columns of the terminal for a confidence of 1
_is_quiet = False


def set_up(*, quiet: bool, no_color: bool) -> None:
    """Apply the options of all commands, also to spaCy's messages and to worker processes."""
    global _is_quiet
    _is_quiet = quiet
    if no_color or os.environ.get("NO_COLOR"):
        os.environ["NO_COLOR"] = os.environ["ANSI_COLORS_DISABLED"] = "1"


def progress_console() -> Console:
    """Make the console of progress bars: stderr; with --quiet, none are drawn."""
    return Console(stderr=True, quiet=_is_quiet)


def note(message: str) -> None:
    """Print what is good to know on stderr, unless --quiet is given."""
    if not _is_quiet:
        typer.echo(message, err=True)


def printable(text: str) -> str:
    """Replace the characters by which data could control the terminal."""
    return CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)


def print_error(message: str) -> None:
    """Print an error on stderr, in one line however long it is."""
    error = Text.assemble(("Error:", "bold red"), f" {printable(message)}")
    Console(stderr=True, soft_wrap=True).print(error)


def print_counts(counts: Mapping[str, Mapping[str, int | str]]) -> None:
    """Print counts by name as a table, with a column for each part of a corpus."""
    table = Table("", *right(*counts))
    for row in dict.fromkeys(row for column in counts.values() for row in column):
        table.add_row(row, *(str(column.get(row, 0)) for column in counts.values()))
    print_table(table)


def print_conversion_log(log: "data.ConversionLog") -> None:
    """Print the numbers of records read and left out, and the mistakes of each kind."""
    from ..data import describe_kind

    table = Table("", "read", "left out", "kept")
    for part, totals in log.parts.items():
        for unit in ("records", "entities"):
            found, lost = totals[unit], totals[f"rejected.{unit}"]
            table.add_row(f"{part}, {unit}", *map(str, (found, lost, found - lost)))
    if log.repair or log.counts:
        print_table(table)
    schemes: dict[str, list[str]] = {}
    for file, scheme in log.tag_schemes.items():
        schemes.setdefault(scheme, []).append(file)
    for scheme, files in schemes.items():
        typer.echo(f"Tags: {scheme} ({', '.join(files)})")
    if log.merged:
        merged = ", ".join(f"{log.merged[name]} {name}" for name in MERGED)
        typer.echo(f"Merged: {merged}")
    for note in log.notes:
        typer.echo(note)
    for kind, number in sorted(log.counts.items()):
        typer.echo(f"{describe_kind(kind)} {number}")
        messages = log.examples.get(kind, [])
        for message in messages:
            typer.echo(f"  {message}")
        if messages and number > len(messages):
            typer.echo("  ...")


def right(*titles: str) -> list[Column]:
    """Make columns of numbers for a table."""
    return [Column(title, justify="right") for title in titles]


def print_summary(
    summary: Mapping[str, Any],
    text: str,
    as_json: bool,
    errors: Path,
    written: Iterable[Path] = (),
) -> None:
    """Print the summary of a run over a corpus as a text with the written files, or as JSON alone.

    If documents failed, the text names the file that lists them, and it exits with 2.
    """
    import srsly

    typer.echo(srsly.json_dumps(summary, indent=2) if as_json else text.format(**summary))
    for path in () if as_json else written:
        typer.echo(path)
    if summary["errors"]:
        if not as_json:
            typer.echo(f"Failed: {summary['errors']:,}, see {errors}")
        raise typer.Exit(2)


def table_console() -> Console:
    """Make the console of tables: stdout, with texts and labels not as markup."""
    return Console(markup=False, emoji=False, highlight=False)


def print_table(table: Table) -> None:
    """Print a table; long words are folded."""
    for column in table.columns:
        column.overflow = "fold"
    table_console().print(table)


def bar(p: float, console: Console) -> Text:
    """Draw a probability as a number and a bar."""
    whole, half = ("-", "") if console.options.ascii_only else ("━", "╸")
    halves = round(2 * BAR * p)
    drawn = whole * (halves // 2) + half * (halves % 2)
    return Text.assemble(f"{p:.3f} ", (drawn, confidence_color(p)))


def confidence_color(p: float) -> Style:
    """Return the color of a confidence: red for 0, yellow for 0.5, green for 1."""
    red, green, blue = (round(255 * part) for part in hsv_to_rgb(p / 3, 0.8, 0.8))
    return Style(color=f"rgb({red},{green},{blue})")


def tracked(items: Iterable[Item], description: str, total: float | None = None) -> Iterable[Item]:
    """Pass items on, with a progress bar on a terminal's stderr."""
    console = progress_console()
    return track(
        items, escape(description), total, console=console, disable=not console.is_terminal
    )


@contextmanager
def reading_progress() -> Iterator[Callable[[str, int], None]]:
    """Draw a progress bar for each part of a corpus."""
    console = progress_console()
    columns = (*Progress.get_default_columns(), MofNCompleteColumn(), TimeElapsedColumn())
    tasks: dict[str, TaskID] = {}
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as progress:

        def on_progress(part: str, number: int) -> None:
            if part not in tasks:
                tasks[part] = progress.add_task(f"Reading {part}", total=None)
            if number % 100 == 0:
                progress.update(tasks[part], completed=number)

        yield on_progress


@contextmanager
def annotation_progress(description: str) -> Iterator[Callable[["annotate.Progress"], None]]:
    """Draw the progress bar of a run over a corpus on stderr, with the speed."""
    console = progress_console()
    *columns, time_left = Progress.get_default_columns()
    columns = [SpinnerColumn(), *columns, TextColumn("{task.fields[speed]}"), time_left]
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("Loading", total=None, speed="")
        first = None  # later calls show the speed since then, without the loading

        def on_progress(run: "annotate.Progress") -> None:
            nonlocal first
            first = first or run
            seconds = max(run.seconds - first.seconds, 1e-3)
            docs = (run.documents - first.documents) / seconds
            words = (run.words - first.words) / seconds
            bar.update(
                task,
                description=description,
                completed=run.size,
                total=run.total,
                speed=f"{run.documents:,} docs, {docs:,.0f} docs/s, {words:,.0f} words/s, left",
            )

        yield on_progress


@contextmanager
def plain_warnings() -> Iterator[None]:
    """Print each warning once, as one line, without the place in the code."""
    shown: set[str] = set()

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        # Python forgets what it has shown when something changes its filters.
        if str(message) not in shown:
            shown.add(str(message))
            typer.echo(f"Warning: {message}", err=True)

    with warnings.catch_warnings():
        warnings.simplefilter("default", UserWarning)
        warnings.showwarning = show
        yield
