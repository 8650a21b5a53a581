"""A warning about a learning rate that ruins a pretrained transformer."""

import warnings
from typing import Any

from thinc.api import Optimizer

# Pretrained transformers are trained with 1e-5 to 3e-4.
HIGHEST = 5e-4


def warn_of_high_rate(name: str, optimizer: Any) -> bool:
    """Warn if the learning rate of an optimizer is too high for a transformer.

    Args:
        name: What trains it, for the message.
        optimizer: Only an Optimizer of thinc without groups of parameters is checked.

    Returns:
        Whether it is.
    """
    if not isinstance(optimizer, Optimizer) or getattr(optimizer, "groups", None):
        return False
    if optimizer.learn_rate <= HIGHEST:
        return False
    warnings.warn(
        f"[{name}] expected a learning rate of at most {HIGHEST} for a transformer, got "
        f"{optimizer.learn_rate:g}, which destroys what it has learned before. Use an optimizer "
        "with groups of parameters, as configs/transformer.cfg has it (documentation: "
        '"A transformer in Python").',
        stacklevel=2,
    )
    return True
