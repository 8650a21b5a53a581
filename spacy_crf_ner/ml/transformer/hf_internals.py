"""Undocumented names of transformers that this package uses, each one probed.

- `dense` and `intermediate_act_fn` of a feed-forward layer, as in BERT. If they have other names,
  GELU is a separate pass.
"""

import torch.nn.functional as F
from torch import nn


def feed_forward_with_gelu(module: nn.Module) -> nn.Linear | None:
    """Return the first linear layer of a feed-forward layer if GELU follows it, else None."""
    activation = getattr(getattr(module, "intermediate_act_fn", None), "act", None)
    linear = getattr(module, "dense", None)
    return linear if activation is F.gelu and isinstance(linear, nn.Linear) else None
