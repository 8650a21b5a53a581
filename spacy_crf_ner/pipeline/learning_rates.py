"""A warning about a learning rate at which nothing is learned."""

import warnings
from typing import Any

from thinc.api import Optimizer

UPDATES_AT_ZERO = 20


class LearningRateCheck:
    """Warns about a learning rate of 0, once; `spacy-crf-ner.Adam.v1` warns itself."""

    def __init__(self, name: str) -> None:
        self._name, self._at_zero = name, 0

    def __call__(self, optimizer: Any) -> None:
        """Check the rate of an update; only that of an Optimizer of thinc."""
        if not isinstance(optimizer, Optimizer) or hasattr(optimizer, "groups"):
            return
        self._at_zero = 0 if optimizer.learn_rate else self._at_zero + 1
        if self._at_zero == UPDATES_AT_ZERO:
            warnings.warn(
                f"[{self._name}] expected a learning rate above 0, got 0 in {UPDATES_AT_ZERO} "
                "updates, in which nothing was learned. Call optimizer.step_schedules() after each "
                "update, or set optimizer.learn_rate.",
                stacklevel=3,
            )
