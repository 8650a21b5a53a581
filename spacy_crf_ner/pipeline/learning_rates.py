"""Warnings about learning rates at which nothing is learned, or a transformer is ruined."""

import warnings
from typing import Any

from thinc.api import Optimizer

from ..ml.learning_rate import warn_of_high_rate

UPDATES_AT_ZERO = 20


class LearningRateCheck:
    """Warns about the learning rate of an optimizer of thinc, once.

    It knows nothing of the groups of `spacy-crf-ner.Adam.v1`, which steps its own schedules.

    Args:
        name: The name of the component, for messages.
    """

    def __init__(self, name: str) -> None:
        self._name, self._at_zero, self._has_warned = name, 0, False

    def __call__(self, optimizer: Any, trains_transformer: bool) -> None:
        """Check the rate of an update.

        Args:
            optimizer: Only a thinc Optimizer is checked.
            trains_transformer: Whether it also updates a transformer of spacy-transformers; one of
                this package checks the rate itself.
        """
        if not isinstance(optimizer, Optimizer) or getattr(optimizer, "groups", None):
            return
        rate = optimizer.learn_rate
        if trains_transformer and not self._has_warned:
            self._has_warned = warn_of_high_rate(self._name, optimizer)
        self._at_zero = 0 if rate or hasattr(optimizer, "groups") else self._at_zero + 1
        if self._at_zero == UPDATES_AT_ZERO:
            self._warn(
                f"expected a learning rate above 0, got 0 in {UPDATES_AT_ZERO} updates, in which "
                "nothing was learned. Call optimizer.step_schedules() after each update, or set "
                "optimizer.learn_rate."
            )

    def _warn(self, message: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            warnings.warn(f"[{self._name}] {message}", stacklevel=4)
