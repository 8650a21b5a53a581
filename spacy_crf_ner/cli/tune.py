"""The command `tune`."""

import math
import sys
from pathlib import Path
from signal import SIGTERM, signal
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from ..input_error import InputError
from .console import print_table
from .options import (
    Code,
    ConfigFile,
    GpuId,
    Resume,
    config_overrides,
    resumable,
)

if TYPE_CHECKING:
    from ..training import tuning


def tune(
    context: typer.Context,
    config: ConfigFile,
    output: Annotated[Path, typer.Argument(metavar="OUTPUT", help="Folder of the search.")],
    trials: Annotated[
        int, typer.Option(min=1, help="Trainings, with those of an earlier call.")
    ] = 20,
    minutes: Annotated[
        float, typer.Option(min=0, help="After these, no training begins; 0 for no limit.")
    ] = 0,
    space: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="YAML file with the settings to search in."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the search.")] = 0,
    gpu_id: GpuId = -1,
    code: Code = None,
    resume: Resume = False,
) -> None:
    """Search for the settings with the best score on the dev corpus.

    Each trial trains with `spacy train`, with settings that Optuna proposes from the scores
    of the trials before; the first one has those of the config. By default, it searches in
    the learning rate and those of groups of parameters (a quarter to four times the
    config's), dropout (0 to 0.5), and with or without a recurrent encoder. Options can
    override settings of the config, as in `spacy train`.

    OUTPUT/trials.jsonl has a line for each trial; the folder of the best one has its config
    and its pipeline. Measure the pipeline on documents that are neither in train nor in dev:
    its score on dev is the best of many.

    \b
    A file for --space:
      training.dropout: {low: 0.0, high: 0.3}
      training.optimizer.learn_rate.initial_rate:
        {low: 5.0e-5, high: 4.0e-4, log: true}
      components.ner.model.hidden_width: [100, 200, 300]

    \b
    Examples:
      spacy-crf-ner tune configs/char.cfg tuned --minutes 60 \\
          --paths.train train.spacy --paths.dev dev.spacy
      spacy-crf-ner report tuned/7/model-best test.spacy report
    """
    from spacy.training.loop import DIR_MODEL_BEST

    from ..training import tuning
    from ..training.config_file import check_corpora, get_dotted, read_config

    loaded = read_config(config, config_overrides(context.args))
    check_corpora(loaded)
    settings = tuning.search_space(loaded) if space is None else _read_space(space)
    typer.echo(f"Searching in {', '.join(settings)}", err=True)
    signal(SIGTERM, lambda *_: sys.exit(128 + SIGTERM))  # which also ends the training
    with resumable(resume, False):
        found = tuning.tune(
            loaded,
            output,
            space=settings,
            trials=trials,
            minutes=minutes or math.inf,
            seed=seed,
            gpu_id=gpu_id,
            code=code,
            resume=resume,
            on_trial=lambda trial: typer.echo(_line(trial), err=True),
        )
    table = Table("setting", "config", "best trial")
    for name, value in found.settings.items():
        table.add_row(name, _short(get_dotted(loaded.interpolate(), name)), _short(value))
    print_table(table)
    typer.echo(_line(found))
    typer.echo(f"Pipeline: {output / f'{found.number}' / DIR_MODEL_BEST}")


def _read_space(path: Path) -> "tuning.Space":
    import srsly

    try:
        space = srsly.read_yaml(path)
    except ValueError as error:
        raise InputError(f"{path}: expected a YAML file, got {error}") from error
    if not isinstance(space, dict) or not space:
        raise InputError(f"{path}: expected settings by name, got {str(space)[:60]!r}.")
    return space


def _line(trial: "tuning.Trial") -> str:
    from ..training import tuning

    if trial.score is None:
        return f"Trial {trial.number}: failed after {trial.seconds:.0f} s, see its {tuning.LOG}"
    return f"Trial {trial.number}: {100 * trial.score:.1f} on dev, {trial.seconds:.0f} s"


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else f"{value}"
