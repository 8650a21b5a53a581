"""Undocumented names of transformers that this package uses, each one probed.

- The submodule `pooler`, a layer over the first subword that only classifiers read. If it has
  another name, it is computed too, and prediction is a little slower.
- `dense` and `intermediate_act_fn` of a feed-forward layer, as in BERT. If they have other names,
  GELU is a separate pass.
- `merges_file` and `bpe_ranks` of a slow tokenizer. Without them, a pipeline with such a tokenizer
  cannot be saved after it was loaded.
"""

from pathlib import Path
from typing import Any

import torch.nn.functional as F
from torch import nn


def drop_pooler(transformer: nn.Module) -> None:
    """Remove the pooler of a transformer, in place."""
    if "pooler" in transformer._modules:
        transformer._modules["pooler"] = None


def feed_forward_with_gelu(module: nn.Module) -> nn.Linear | None:
    """Return the first linear layer of a feed-forward layer if GELU follows it, else None."""
    activation = getattr(getattr(module, "intermediate_act_fn", None), "act", None)
    linear = getattr(module, "dense", None)
    return linear if activation is F.gelu and isinstance(linear, nn.Linear) else None


def restore_merges(tokenizer: Any, folder: Path) -> None:
    """Write the merges of a slow tokenizer into a folder if their file is gone.

    Args:
        tokenizer: A slow tokenizer; its `merges_file` is set to the new file.
    """
    file, ranks = (getattr(tokenizer, name, None) for name in ("merges_file", "bpe_ranks"))
    if file is None or ranks is None or Path(file).exists():
        return
    # The last column is a frequency, which the tokenizer does not read.
    lines = (f"{left} {right} 0\n" for left, right in sorted(ranks, key=ranks.get))
    tokenizer.merges_file = str(folder / Path(file).name)
    Path(tokenizer.merges_file).write_text("".join(lines), encoding="utf-8")
