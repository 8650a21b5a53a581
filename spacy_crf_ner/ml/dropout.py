"""Dropout whose masks a CPU draws quickly."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

BITS = 16  # of randomness per element


def fast_dropout(X: Tensor, rate: float, training: bool) -> Tensor:
    """Set each element to zero with a probability, and scale the others, to keep the mean.

    On a CPU, torch draws one number for each element, on one thread, which took a tenth of the
    training of MiniLM. Here 64 random bits decide about four elements, so the rate is a multiple of
    2^-16 there.
    """
    if not training:
        return X
    cut = round(rate * 2**BITS)
    if X.device.type != "cpu" or not 0 < cut < 2**BITS:
        return F.dropout(X, rate)
    drawn = torch.empty(-(-X.numel() * BITS // 64), dtype=torch.int64, device=X.device)
    drawn.random_(-(2**63), None)
    # int16 is signed.
    kept = drawn.view(torch.int16)[: X.numel()].view(X.shape) >= cut - 2 ** (BITS - 1)
    return X.mul(kept).mul_(2**BITS / (2**BITS - cut))


class FastDropout(nn.Dropout):
    """A layer of `fast_dropout`."""

    def forward(self, X: Tensor) -> Tensor:
        """(...) -> (...)."""
        return fast_dropout(X, self.p, self.training)


def use_fast_dropout(module: nn.Module) -> None:
    """Replace the dropout layers in a module."""
    for name, child in module.named_children():
        if type(child) is nn.Dropout:
            setattr(module, name, FastDropout(child.p))
        else:
            use_fast_dropout(child)
