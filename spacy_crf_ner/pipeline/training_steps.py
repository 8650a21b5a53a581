"""How long a training over a transformer takes for its corpus: docs/training.md, "Number of steps".

A corpus has `words` in its training part, and a step learns from about `step_words` of them.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

PADDED = "spacy.batch_by_padded.v1"
NOT_PADDING = 0.77  # the share of words in batches of sentences of similar length
# A small corpus is learned by heart after the most epochs; a large one needs the least.
LEAST_EPOCHS, MOST_EPOCHS = 3, 20
LEAST_STEPS = 200
WARM_UP, LEAST_WARM_UP = 0.05, 50  # of the steps
EVALUATIONS = 10


class TrainingSteps(NamedTuple):
    """The number of steps, the epochs that these are, and what else depends on it."""

    steps: int
    epochs: float
    warmup_steps: int
    eval_frequency: int


def training_steps(words: int, step_words: float, steps: int) -> TrainingSteps:
    """Fit the steps of a config to a corpus: as many, within what its epochs allow."""
    epoch = max(words, 1) / step_words
    fitted = min(max(steps, LEAST_EPOCHS * epoch), MOST_EPOCHS * epoch)
    fitted = round(max(fitted, LEAST_STEPS))
    every = max(1, round(fitted / EVALUATIONS))
    warm_up = max(LEAST_WARM_UP, round(WARM_UP * fitted))
    return TrainingSteps(fitted, fitted / epoch, warm_up, every)


def words_of_a_step(training: Mapping[str, Any]) -> int | None:
    """Return the words that a step learns from, by the batcher of a block [training].

    None if its batches do not have a number of words with padding.
    """
    batcher = training.get("batcher") or {}
    size = batcher.get("size")
    if batcher.get("@batchers") != PADDED or not isinstance(size, int):
        return None
    return max(1, round(NOT_PADDING * size))
