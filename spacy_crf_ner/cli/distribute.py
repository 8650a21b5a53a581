"""The command `distribute`."""

from pathlib import Path
from typing import Annotated

import typer
from spacy.util import load_config

from ..training import init_config as configs
from ..training.distributed.config import spread
from .config_file import require_new, write_config


def distribute(
    config: Annotated[Path, typer.Argument(help="Config for `spacy train`, for one process.")],
    out: Annotated[Path, typer.Argument(help="Config file to write; - prints it.")],
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
) -> None:
    """Make a config for training on several GPUs or machines of one for one process.

    Its settings stay: reader, batcher, logger, optimizer and callbacks are wrapped in those
    that share the work out. Batches are those of each process.

    
    Example, on a machine with four GPUs:
      spacy-crf-ner distribute configs/transformer.cfg distributed.cfg
      torchrun --nproc-per-node 4 -m spacy train distributed.cfg --output training --gpu-id 0 ...
    """
    require_new(out, force)
    overlay = load_config(configs.shipped("distributed.cfg"))
    write_config(spread(load_config(config), overlay), out)
