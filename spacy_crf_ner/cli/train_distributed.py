"""The command `train-distributed`."""

from pathlib import Path
from typing import Annotated

import typer

from .options import Code, ConfigFile, Resume, config_overrides


def train_distributed(
    context: typer.Context,
    config: ConfigFile,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder of the trained pipelines.")
    ] = None,
    gpu: Annotated[bool, typer.Option("--gpu", help="Use one GPU per process.")] = False,
    resume: Resume = False,
    timeout: Annotated[
        float, typer.Option(min=0.1, help="Minutes that a process waits for another one.")
    ] = 30,
    code: Code = None,
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
    from spacy.cli._util import show_validation_error
    from spacy.util import import_file

    from ..training.config_file import check_corpora, read_config
    from ..training.distributed.loop import train
    from ..training.distributed.process_group import RankError

    overrides = config_overrides(context.args)
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
