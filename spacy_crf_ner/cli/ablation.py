"""The command `ablation`."""

from pathlib import Path
from typing import Annotated, List, Optional

import typer
from rich.markup import escape
from rich.progress import (
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TimeElapsedColumn,
)

from .. import ablation as family
from ..report.plots import require_matplotlib
from ..training import init_config as configs
from .options import numbers


def ablation(
    corpus: Annotated[Path, typer.Argument(help="Folder with train.spacy, dev.spacy, test.spacy.")],
    out: Annotated[Path, typer.Argument(help="Folder for the results.")],
    members: Annotated[
        Optional[List[str]], typer.Option("--member", help="One to run; repeat for several.")
    ] = None,
    definition: Annotated[
        Optional[Path],
        typer.Option(
            "--family",
            help="YAML file: the members, their configs and settings.",
            show_default="configs/family.yml",
        ),
    ] = None,
    transformer: Annotated[str, typer.Option(help="Local folder, or a name on the hub.")] = (
        "assets/minilm"
    ),
    steps: Annotated[int, typer.Option(min=1, help="Training steps of each run.")] = 200,
    seeds: Annotated[str, typer.Option(help="Seeds, with commas; a run of each member.")] = "0,1,2",
    small: Annotated[
        bool, typer.Option("--small", help="One seed, 10 steps: does it all run?")
    ] = False,
    gpu_id: Annotated[int, typer.Option(help="GPU to use, -1 for the CPU.")] = -1,
) -> None:
    """Train a family of models on a corpus, and compare them.

    All have the same steps, batches and seeds. A run whose result is known is not
    repeated: stop whenever you like, and go on with the same command.

    \b
    Writes into the folder:
      runs.jsonl  a line a run, as soon as it is measured
      table.md    mean and standard deviation over the seeds
      chart.svg   F1 of each model
    """
    require_matplotlib()
    if small:
        steps, seeds = 10, "0"
    runs = family.plan(
        definition or _shipped_family(),
        corpus,
        transformer=transformer,
        steps=steps,
        seeds=numbers("--seeds", seeds),
        members=members or (),
    )
    rows = []
    with Progress(
        SpinnerColumn(), *Progress.get_default_columns(), TimeElapsedColumn(), MofNCompleteColumn()
    ) as progress:
        task = progress.add_task("", total=len(runs))
        results = family.results(runs, out, gpu_id)
        for run in runs:
            progress.update(task, description=escape(f"{run.member}, seed {run.seed}"))
            rows.append(next(results))
            progress.advance(task)
    table = family.table(rows)
    (out / "table.md").write_text(table, encoding="utf-8")
    family.chart(rows, out / "chart.svg")
    typer.echo(table)
    typer.echo(f"Folder: {out}")


def _shipped_family() -> Path:
    """The one of the folder in which the command is run, or else that of the package."""
    here = Path("configs/family.yml")
    return here if here.exists() else configs.shipped("family.yml")
