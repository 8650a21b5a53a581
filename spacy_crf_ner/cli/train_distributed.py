"""The command `train-distributed`."""

from pathlib import Path
from typing import Annotated

import typer
from click import UsageError

from ..input_error import InputError
from .options import Resume


def train_distributed(
    context: typer.Context,
    config: Annotated[
        Path,
        typer.Argument(
            metavar="CONFIG", exists=True, dir_okay=False, help="Config for `spacy train`."
        ),
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder of the trained pipelines.")
    ] = None,
    gpu: Annotated[bool, typer.Option("--gpu", help="Use one GPU per process.")] = False,
    resume: Resume = False,
    timeout: Annotated[
        float, typer.Option(min=0.1, help="Minutes that a process waits for another one.")
    ] = 30,
    code: Annotated[
        Path | None,
        typer.Option(
            "--code", "-c", exists=True, dir_okay=False, help="Python file to import first."
        ),
    ] = None,
) -> None:
    """Train a pipeline on several GPUs or machines.

    Start it with torchrun, once per machine. Without torchrun, one process trains as `spacy train`
    does. Options can override settings of the config, as in `spacy train`. The batch size of the
    config is per process.

    \b
    Example, on a machine with four GPUs:
      torchrun --nproc-per-node 4 -m spacy_crf_ner train-distributed config.cfg \\
          --output training --gpu --paths.train train.spacy --paths.dev dev.spacy
    """
    from spacy.cli._util import parse_config_overrides, show_validation_error
    from spacy.util import import_file

    from ..training.config_file import check_corpora, read_config
    from ..training.distributed.loop import train
    from ..training.distributed.process_group import RankError

    try:
        overrides = parse_config_overrides(context.args)
    except UsageError as error:  # which newer versions of typer do not print
        raise InputError(
            f"{error.format_message()} Settings of the config have a dot, such as --paths.train."
        ) from error
    if code is not None:
        import_file("python_code", code)
    try:
        with show_validation_error(config):
            loaded = read_config(config, overrides)
            check_corpora(loaded)
            saved = train(loaded, output, gpu=gpu, resume=resume, timeout=timeout)
    except RankError as error:
        raise typer.Exit(1) from error  # its message is already printed
    if saved is not None:
        typer.echo(f"Pipeline: {saved}")
