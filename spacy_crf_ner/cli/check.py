"""The command `check`."""

import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.padding import Padding
from rich.text import Text

from ..input_error import InputError
from .console import print_counts, table_console, tracked
from .startup import leave_out_torch

if TYPE_CHECKING:
    from spacy.tokens import Doc

    from .. import check as checking


STYLES = {"error": "bold red", "warning": "bold yellow", "note": "bold cyan"}
# Rows of entity lengths in tokens.
LENGTHS = {
    "  of 1 token": range(1, 2),
    "  of 2": range(2, 3),
    "  of 3": range(3, 4),
    "  of 4 to 10": range(4, 11),
    "  longer": range(11, sys.maxsize),
}
MAX_LABELS = 20  # rows; the other labels share one row


def check(
    train: Annotated[
        Path,
        typer.Argument(
            metavar="TRAIN",
            help="Training corpus: a .spacy file, a folder, any format of `convert`. A folder with "
            "train and dev is both, unless DEV is given.",
        ),
    ],
    dev: Annotated[
        Path | None,
        typer.Argument(
            metavar="DEV", help="Development corpus, compared with the training corpus."
        ),
    ] = None,
    config: Annotated[
        str | None,
        typer.Option(help="Config that you will train with: a file, or the name of a shipped one."),
    ] = None,
    transformer: Annotated[
        str | None,
        typer.Option(help="Local folder or hub name, instead of the one in the config."),
    ] = None,
    lang: Annotated[
        str | None, typer.Option(help="Language of the corpus.  [default: the config's, or en]")
    ] = None,
    spans_key: Annotated[
        str | None,
        typer.Option(
            metavar="KEY",
            help="Entities are in doc.spans[KEY], and may overlap.  [default: the config's]",
        ),
    ] = None,
    max_examples: Annotated[int, typer.Option(min=0, help="Examples shown per finding.")] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="Print only JSON.")] = False,
) -> None:
    """Find mistakes in a corpus before you train on it.

    Prints statistics of the corpus and the findings, errors first. The exit code is 1 if there is
    an error, and 0 otherwise.

    If entities may overlap (--spans-key, or a config with overlap = true), it also counts
    the levels of each label, outermost first: entities in one level do not overlap. A model with
    1, 2 or 3 levels learns the entities in these, whose share is printed.

    \b
    Examples:
      spacy-crf-ner check corpus --config transformer
      spacy-crf-ner check nested/train.spacy nested/dev.spacy --spans-key sc
    """
    import srsly

    if config is None:
        leave_out_torch()
    from .. import check as checking
    from .. import data

    settings = checking.CheckSettings()
    if transformer is not None and config is None:
        raise InputError("--transformer: expected --config too, which says how it reads docs.")
    if config is not None:
        from ..training.config_file import find_config

        settings = checking.read_settings(find_config(config), transformer)
    if dev is None and (found := data.find_parts(train)):
        train, dev = found["train"], found["dev"]
    if spans_key is not None:
        settings = settings._replace(spans_key=spans_key)
    nlp = data.blank_pipeline(lang or settings.lang)
    log = data.ConversionLog(spans_key=settings.spans_key)

    def read(corpus: Path) -> "Iterable[Doc]":
        total, docs = data.read_gold(corpus, nlp, log)
        return tracked(docs, f"Reading {corpus}", total)

    report = checking.check(read(train), None if dev is None else read(dev), settings, max_examples)
    for kind, number in sorted(log.counts.items()):
        typer.echo(f"{kind.replace('.', ' ').capitalize()}: {number}", err=True)
    if as_json:
        typer.echo(srsly.json_dumps(report.to_dict(), indent=2))
    else:
        overlapping, parts = settings.spans_key is not None, report.statistics
        print_counts({part: _overview(s, overlapping) for part, s in parts.items()})
        print_counts(_count_labels(parts, overlapping))
        _print_findings(report)
    if report.of("error"):
        raise typer.Exit(1)


def _overview(s: "checking.Statistics", overlapping: bool) -> dict[str, str]:
    """Format the counts of a part, except those of labels, by row name."""
    from .. import check as checking

    rows = {
        "docs": f"{s.docs:,}",
        "sentences": f"{s.sentences:,}",
        "  without entities": _with_share(s.empty_sentences, s.sentences),
        "tokens": f"{s.tokens:,}",
        "  not annotated": _with_share(s.missing, s.tokens),
        "entities": f"{s.entities:,}",
    }
    for name, lengths in LENGTHS.items():
        n = sum(count for length, count in s.lengths.items() if length in lengths)
        rows[name] = _with_share(n, s.entities)
    if overlapping:
        rows["  overlapping"] = _with_share(s.overlapping, s.entities)
        rows["  overlapping their label"] = _with_share(s.overlapping_same_label, s.entities)
        for n in range(1, checking.MAX_LEVELS + 1):
            rows[f"  in {n} level{'s'[: n - 1]} per label"] = f"{s.level_share(n):.1%}"
    return rows


def _with_share(n: int, total: int) -> str:
    return f"{n:,} ({n / total:.1%})" if n else "0"


def _count_labels(
    parts: "dict[str, checking.Statistics]", overlapping: bool
) -> dict[str, dict[str, str]]:
    """Count entities, tokens and levels of each part by label, the most frequent label first."""
    total = sum((s.labels for s in parts.values()), Counter[str]())
    labels = [label for label, _ in total.most_common()]
    groups = {label: [label] for label in labels[:MAX_LABELS]}
    if rest := labels[MAX_LABELS:]:
        groups[f"{len(rest)} more"] = rest
    columns: dict[str, Counter[str]] = {}
    for part, s in parts.items():
        columns |= {part: s.labels, f"{part} tokens": s.label_tokens}
    rows = {
        column: {
            name: f"{sum(counts[label] for label in group):,}" for name, group in groups.items()
        }
        for column, counts in columns.items()
    }
    for part, s in parts.items() if overlapping else ():
        rows[f"{part} levels"] = {
            name: str(max(len(s.levels.get(label, ())) for label in group))
            for name, group in groups.items()
        }
    return rows


def _print_findings(report: "checking.Report") -> None:
    """Print the findings by severity, with texts and labels not as markup."""
    console = table_console()
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
