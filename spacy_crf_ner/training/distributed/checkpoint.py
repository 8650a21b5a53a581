"""Checkpoints of the training state: all that the next step depends on."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from spacy.language import Language
from thinc.api import Optimizer, get_current_ops

from ...atomic import atomic_write
from ...input_error import InputError
from ...pipeline.lookup import recognizer, recognizer_names
from .sync import get_weights, parameters, set_weights

STATE = "training_state.pt"
# The state of thinc's optimizers for each weight matrix: moments, average, number of updates.
_KEPT = ("mom1", "mom2", "averages", "nr_update")


@dataclass
class Progress:
    """The number of processes and of complete steps, and score and step of each evaluation."""

    size: int
    steps: int = 0
    results: list[tuple[float, int]] = field(default_factory=list)


def save_state(nlp: Language, optimizer: Optimizer, progress: Progress, output: Path) -> None:
    """Write the weights, the optimizer's moments, the progress, and what recognizers have learned.

    That is which labels are not trained yet, and the hashes of texts, as the pipeline was saved.
    """
    kept = {kind: getattr(optimizer, kind) or {} for kind in _KEPT}
    moments = {
        name: {kind: torch.as_tensor(of[key]) for kind, of in kept.items() if key in of}
        for name, key, *_ in parameters(nlp)
    }
    pipes = {name: recognizer(nlp, name) for name in recognizer_names(nlp)}
    state = {
        "progress": vars(progress),
        "weights": get_weights(nlp),
        "moments": moments,
        "untrained": {name: pipe.cfg["untrained"] for name, pipe in pipes.items()},
        "seen": {name: pipe.cfg["seen"] for name, pipe in pipes.items()},
    }
    with atomic_write(output / STATE) as part:
        torch.save(state, part)


def read_state(output: Path | None) -> dict[str, Any]:
    """Read the file of `save_state`; raise InputError if there is none."""
    if output is None or not (output / STATE).is_file():
        raise InputError(
            f"--resume: expected a file {STATE} in the output folder, got none in {output}. Give "
            "the folder of the training to continue. To start from the weights of a pipeline, use "
            "[components.ner] source."
        )
    state: dict[str, Any] = torch.load(output / STATE, map_location="cpu", weights_only=True)
    return state


def restore(nlp: Language, optimizer: Optimizer, state: dict[str, Any]) -> None:
    """Restore a pipeline and the moments of its optimizer; raise InputError for other weights."""
    set_weights(nlp, state["weights"])
    for name in recognizer_names(nlp):
        pipe = recognizer(nlp, name)
        pipe.cfg["untrained"] = [*state["untrained"][name]]
        pipe.seen_texts.inherit(state["seen"][name])
    ops: Any = get_current_ops()
    for name, key, *_ in parameters(nlp):
        for kind, values in state["moments"][name].items():
            kept = ops.asarray(values.numpy()) if values.ndim else values.item()
            getattr(optimizer, kind)[key] = kept
