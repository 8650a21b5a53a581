"""Checkpoints that training can go on from: a pipeline with the state of its optimizer, whole."""

from pathlib import Path
from shutil import rmtree
from typing import Any, Union

from spacy.language import Language
from spacy.training.loop import DIR_MODEL_LAST

from .optimizer import DistributedAdam
from .state import run

OPTIMIZER = "optimizer.npz"


def write_checkpoints(nlp: Language) -> None:
    """Let `nlp.to_disk` write the state of the optimizer into model-last.

    The folder has another name until it is whole, as a job may be ended at any time.
    """
    write = nlp.to_disk

    def to_disk(path: Union[str, Path], **settings: Any) -> None:
        path = Path(path)
        if path.name != DIR_MODEL_LAST:
            return write(path, **settings)
        new, old = (path.with_name(f"{path.name}.{name}") for name in ("part", "old"))
        for left in (new, old):
            rmtree(left, ignore_errors=True)
        write(new, **settings)
        optimizer = run().optimizer
        if isinstance(optimizer, DistributedAdam):
            (new / OPTIMIZER).write_bytes(optimizer.state(nlp))
        if path.exists():
            path.rename(old)
        new.rename(path)
        rmtree(old, ignore_errors=True)

    nlp.to_disk = to_disk  # type: ignore[method-assign]


def read_checkpoint(nlp: Language, path: Path) -> bytes:
    """Load the weights of a checkpoint into a pipeline, and return the state of its optimizer.

    Raises ValueError where there is no such state.
    """
    state = path / OPTIMIZER
    if not state.is_file():
        raise ValueError(
            f"resume: expected a checkpoint with a file {OPTIMIZER}, such as model-last of a "
            f"distributed training, got {path}, which has none. Begin with its weights alone by "
            "[components.ner] source."
        )
    nlp.from_disk(path)
    return state.read_bytes()
