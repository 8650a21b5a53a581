"""How many steps a training takes for its corpus: docs/training.md, "Number of steps"."""

import random
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from spacy.util import registry

# spaCy's batchers that read only how long a doc is.
BATCHERS = tuple(f"spacy.batch_by_{name}.v1" for name in ("padded", "words", "sequence"))
# A small corpus is learned by heart after the most epochs; a large one needs the least.
LEAST_EPOCHS, MOST_EPOCHS = 3, 20
LEAST_STEPS = 200
WARM_UP, LEAST_WARM_UP = 0.05, 50  # of the steps
EVALUATIONS = 10  # the last one is of the last step


class TrainingSteps(NamedTuple):
    """The number of steps, the epochs that these are, and what else depends on it."""

    steps: int
    epochs: float
    warmup_steps: int
    eval_frequency: int

    def __str__(self) -> str:
        return (
            f"{_steps(self.steps)}, {self.epochs:.1f} epochs; warm-up of "
            f"{_steps(self.warmup_steps)}, an evaluation every {self.eval_frequency}"
        )


def _steps(number: int) -> str:
    return f"{number:,} {'step' if number == 1 else 'steps'}"


def training_steps(batches: int, steps: int) -> TrainingSteps:
    """Fit the steps of a config to a corpus of B batches: as many, within what its epochs allow."""
    fitted = min(max(steps, LEAST_EPOCHS * batches), MOST_EPOCHS * batches)
    every = round(max(fitted, LEAST_STEPS) / EVALUATIONS)
    fitted = EVALUATIONS * every
    warm_up = max(LEAST_WARM_UP, round(WARM_UP * fitted))
    return TrainingSteps(fitted, fitted / batches, warm_up, every)


def given_steps(batches: int, steps: int) -> TrainingSteps:
    """Return what depends on a given number of steps, for a corpus of B batches."""
    warm_up = min(max(LEAST_WARM_UP, round(WARM_UP * steps)), steps // 2)
    return TrainingSteps(steps, steps / batches, warm_up, max(1, steps // EVALUATIONS))


def count_batches(batcher: Mapping[str, Any], lengths: Iterable[int]) -> int:
    """Count the batches of an epoch, of docs with these numbers of tokens, for one of BATCHERS."""
    docs = [range(length) for length in lengths if length]
    random.Random(0).shuffle(docs)  # as training does
    batches = registry.resolve({"batcher": dict(batcher)})["batcher"]
    return sum(1 for _ in batches(docs))
