"""The command `check`."""

from collections import Counter
from pathlib import Path
from time import perf_counter
from typing import Annotated, Dict, Iterator, List, Optional

import srsly
import typer
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.progress import Progress
from rich.table import Table
from rich.text import Text
from spacy.tokens import Doc
from spacy.vocab import Vocab

from .. import check as checking
from .. import data
from ..docbin import read_docbin
from .console import print_table

STYLES = {"error": "bold red", "warning": "bold yellow", "note": "bold cyan"}
# Rows of entity lengths: the name, and the longest length of the row in tokens.
LENGTHS = {"  of 1 token": 1, "  of 2": 2, "  of 3": 3, "  of 4 to 10": 10, "  longer": 10**9}
MAX_LABELS = 20  # rows; the other labels share one row


def check(
    train: Annotated[Path, typer.Argument(help="Training corpus: a .spacy file or a folder.")],
    dev: Annotated[
        Optional[Path],
        typer.Argument(help="Development corpus, compared with the training corpus."),
    ] = None,
    config: Annotated[Optional[Path], typer.Option(help="Config that you will train with.")] = None,
    transformer: Annotated[
        Optional[str],
        typer.Option(help="Local folder, or a name on the hub, in place of the config's."),
    ] = None,
    lang: Annotated[
        Optional[str], typer.Option(help="Language of the corpus.  [default: the config's, or en]")
    ] = None,
    max_examples: Annotated[int, typer.Option(min=0, help="Examples shown per finding.")] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="Print only JSON.")] = False,
) -> None:
    """Find mistakes in a corpus before you train on it.

    Prints statistics of the corpus and the findings, errors first. The exit code is 1 if there is
    an error, and 0 otherwise.

    \b
    Example:
      spacy-crf-ner check corpus/train.spacy corpus/dev.spacy --config configs/cnn.cfg
    """
    settings = checking.CheckSettings()
    if config is not None:
        settings = checking.read_settings(config, transformer)
    vocab = data.blank_pipeline(lang or settings.lang).vocab
    train_docs = _read_docs(train, vocab)
    dev_docs = None if dev is None else _read_docs(dev, vocab)
    report = checking.check(train_docs, dev_docs, settings, max_examples)
    if as_json:
        typer.echo(srsly.json_dumps(report.to_dict(), indent=2))
    else:
        _print_table(_overview(report.statistics))
        _print_table(_label_table(report.statistics))
        _print_findings(report)
    if report.of("error"):
        raise typer.Exit(1)


def _read_docs(corpus: Path, vocab: Vocab) -> Iterator[Doc]:
    """Read docs, with a progress bar on stderr after one second."""
    total, docs = read_docbin(corpus, vocab)
    console = Console(stderr=True)
    next_update = perf_counter() + 1.0
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(escape(f"Reading {corpus}"), total=total, visible=False)
        for i, doc in enumerate(docs):
            if perf_counter() > next_update:
                progress.update(task, completed=i, visible=True)
                next_update += 0.1
            yield doc


def _overview(parts: Dict[str, checking.Statistics]) -> List[List[str]]:
    """Tabulate all counts except those of labels, with one column per part."""
    columns = [_column(statistics) for statistics in parts.values()]
    rows = [[name, *(column[name] for column in columns)] for name in columns[0]]
    return [["", *parts], *rows]


def _column(s: checking.Statistics) -> Dict[str, str]:
    column = {
        "docs": f"{s.docs:,}",
        "sentences": f"{s.sentences:,}",
        "  without entities": _with_share(s.empty_sentences, s.sentences),
        "tokens": f"{s.tokens:,}",
        "  not annotated": _with_share(s.missing, s.tokens),
        "entities": f"{s.entities:,}",
    }
    shortest = 1
    for name, longest in LENGTHS.items():
        n = sum(s.lengths[length] for length in s.lengths if shortest <= length <= longest)
        column[name] = _with_share(n, s.entities)
        shortest = longest + 1
    return column


def _with_share(n: int, total: int) -> str:
    return f"{n:,} ({n / total:.1%})" if n else "0"


def _label_table(parts: Dict[str, checking.Statistics]) -> List[List[str]]:
    """Tabulate entities and tokens by label, the most frequent label first."""
    total: Counter[str] = sum((s.labels for s in parts.values()), Counter())
    labels = [label for label, _ in total.most_common()]
    groups = {label: [label] for label in labels[:MAX_LABELS]}
    if rest := labels[MAX_LABELS:]:
        groups[f"{len(rest)} more"] = rest
    header = ["", *(name for part in parts for name in (part, "tokens"))]
    columns = [counts for s in parts.values() for counts in (s.labels, s.label_tokens)]
    rows = [
        [name, *(f"{sum(counts[label] for label in group):,}" for counts in columns)]
        for name, group in groups.items()
    ]
    return [header, *rows]


def _print_table(rows: List[List[str]]) -> None:
    header, *body = rows
    table = Table(header[0])
    for name in header[1:]:
        table.add_column(name, justify="right")
    for row in body:
        table.add_row(*row)
    print_table(table)


def _print_findings(report: checking.Report) -> None:
    """Print the findings by severity. Texts and labels are the user's: not markup."""
    console = Console(markup=False, emoji=False, highlight=False)
    for severity, style in STYLES.items():
        findings = report.of(severity)
        console.print(f"\n{severity.capitalize()}s: {len(findings)}", style=style)
        for finding in findings:
            parts = ", ".join(f"{n:,} in {part}" for part, n in finding.counts.items())
            found = f"{finding.found} ({parts})" if len(finding.counts) > 1 else finding.found
            console.print(Padding(Text(found, style="bold"), (0, 0, 0, 2)))
            for place in finding.places:
                where = f"{place.part} doc {place.doc}, character {place.offset}: {place.text!r}"
                note = f" ({place.note})" if place.note else ""
                console.print(Padding(Text(where + note), (0, 0, 0, 4)))
            console.print(Padding(Text(finding.fix, style="italic"), (0, 0, 0, 2)))
