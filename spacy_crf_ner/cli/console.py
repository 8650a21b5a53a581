"""What a terminal shows: tables, findings, and bars of progress."""

from pathlib import Path
from time import perf_counter
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

import typer
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.progress import Progress, TaskID
from rich.table import Table
from rich.text import Text
from spacy.tokens import Doc
from spacy.vocab import Vocab

from .. import check as checking
from .. import data
from ..explain.trellis import relevant_tags, visible


def print_counts(counts: Dict[str, Dict[str, int]]) -> None:
    """Print counts by name as a table, with a column for each part of a corpus."""
    table = Table("")
    for name in counts:
        table.add_column(name, justify="right")
    for row in dict.fromkeys(row for column in counts.values() for row in column):
        table.add_row(row, *(str(column.get(row, 0)) for column in counts.values()))
    print_table(table)


def print_journal(journal: data.Journal) -> None:
    """Print what was read and what of it was lost, what was mended, and the first problems."""
    table = Table("", "read", "left out", "kept")
    for part, tally in journal.parts.items():
        for unit in ("records", "entities"):
            found, lost = tally[unit], tally[f"rejected.{unit}"]
            table.add_row(f"{part}, {unit}", *map(str, (found, lost, found - lost)))
    if journal.repair or journal.counts:
        print_table(table)
    schemes: Dict[str, List[str]] = {}
    for file, scheme in journal.found.items():
        schemes.setdefault(scheme, []).append(file)
    for scheme, files in schemes.items():
        typer.echo(f"Tags: {scheme} ({', '.join(files)})")
    for kind, number in sorted(journal.counts.items()):
        what, _, problem = kind.partition(".")
        typer.echo(f"{what.replace('_', ' ').capitalize()}: {problem} {number}")
    for note in journal.notes:
        typer.echo(f"  {note}")
    if sum(journal.counts.values()) > len(journal.notes) == data.NOTED:
        typer.echo("  ...")


def print_trellis(explanation: Dict[str, Any]) -> None:
    """Print what `explain` returns: at each token the tags that matter, and the best analyses."""
    if not explanation["tokens"]:
        typer.echo("The text has no token, so there is nothing to search.")
        return
    tags = explanation["tags"]
    table = Table("Token", "Tag")
    for name in ("Emission", "Score"):
        table.add_column(name, justify="right")
    table.add_column("Backpointer")
    table.add_column("Marginal", justify="right")
    relevant = relevant_tags(explanation)
    for t, kept in enumerate(relevant):
        token = visible(explanation["tokens"][t])
        for i, c in enumerate(kept):
            score, before = explanation["scores"][t][c], explanation["backpointers"][t][c]
            table.add_row(
                "" if i else token,
                ("* " if c == explanation["path"][t] else "  ") + tags[c],
                f"{explanation['emissions'][t][c]:.2f}",
                "none" if score is None else f"{score:.2f}",
                "" if before is None else tags[before],
                f"{explanation['marginals'][t][c]:.3f}",
                end_section=i == len(kept) - 1,
            )
    print_table(table)
    left_out = len(tags) - len(set().union(*relevant))
    typer.echo(f"Score of the path, its end included: {explanation['score']:.2f}")
    typer.echo(f"Tags: {len(tags)}, of which {left_out} are left out, as they matter at no token")
    analyses = Table("Probability", "Entities")
    for analysis in explanation["analyses"]:
        ents = [f"{ent['text']} ({ent['label']})" for ent in analysis["entities"]]
        analyses.add_row(f"{analysis['probability']:.4f}", ", ".join(ents) or "none")
    print_table(analyses)


def print_findings(report: checking.Report) -> None:
    """Print what `check` returns: the statistics, and the findings by their severity."""
    for rows in (checking.overview(report), checking.label_table(report)):
        header, *body = rows
        table = Table(header[0])
        for name in header[1:]:
            table.add_column(name, justify="right")
        for row in body:
            table.add_row(*row)
        print_table(table)
    # Texts and labels are the user's: not markup.
    console = Console(markup=False, emoji=False, highlight=False)
    for severity, style in zip(checking.SEVERITIES, ("bold red", "bold yellow", "bold cyan")):
        findings = report.of(severity)
        console.print(f"\n{severity.capitalize()}s: {len(findings)}", style=style)
        for finding in findings:
            parts = ", ".join(f"{n:,} in {part}" for part, n in finding.counts.items())
            found = f"{finding.found} ({parts})" if len(finding.counts) > 1 else finding.found
            console.print(Padding(Text(found, style="bold"), (0, 0, 0, 2)))
            for place in finding.places:
                console.print(Padding(Text(_place(place)), (0, 0, 0, 4)))
            console.print(Padding(Text(finding.fix, style="italic"), (0, 0, 0, 2)))


def _place(place: checking.Place) -> str:
    where = f"{place.part} doc {place.doc}, character {place.offset}: {place.text!r}"
    return f"{where} ({place.note})" if place.note else where


def print_table(table: Table) -> None:
    """Print a table whose texts and labels are the user's: not markup."""
    for column in table.columns:
        column.overflow = "fold"
    Console(markup=False, emoji=False, highlight=False).print(table)


def watcher(progress: Progress) -> Callable[[str, int, Optional[int]], None]:
    """Draw a bar for each part that is read; of one that is read twice, one for each time."""
    tasks: Dict[Tuple[str, bool], TaskID] = {}

    def watch(part: str, number: int, total: Optional[int]) -> None:
        key = part, total is None
        if key not in tasks:
            doing = "Reading" if total is None else "Dividing"
            tasks[key] = progress.add_task(f"{doing} {part}", total=total)
        if number % 100 == 0 or number == total:
            progress.update(tasks[key], completed=number)

    return watch


def read_docs(corpus: Path, vocab: Vocab) -> Iterator[Doc]:
    """Read docs, with a bar on stderr where it takes more than a second."""
    total, docs = checking.open_corpus(corpus, vocab)
    console = Console(stderr=True)
    patience = perf_counter() + 1.0
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(escape(f"Reading {corpus}"), total=total, visible=False)
        for i, doc in enumerate(docs):
            if perf_counter() > patience:
                progress.update(task, completed=i, visible=True)
                patience += 0.1
            yield doc
