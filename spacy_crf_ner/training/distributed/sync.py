"""Equal weights in all ranks: the same start, and the same step everywhere."""

import torch
from spacy.language import Language
from torch import Tensor

from ...input_error import InputError
from .parameters import grad_scalers, parameters, update_scale
from .process_group import ProcessGroup


def get_weights(nlp: Language) -> dict[str, Tensor]:
    """Find all weights by their names, without a copy."""
    return {parameter.name: parameter.tensor for parameter in parameters(nlp)}


def set_weights(nlp: Language, weights: dict[str, Tensor]) -> None:
    """Give a pipeline the weights of another one, bit for bit.

    weights: As `get_weights` returns them.

    Raises InputError where the pipeline has weights of other names or shapes.
    """
    own = get_weights(nlp)
    for name in {**own, **weights}:
        got, expected = (tensors.get(name, torch.empty(0)).shape for tensors in (own, weights))
        if got != expected:
            raise InputError(
                f"{name}: expected weights of shape {[*expected]}, as rank 0 or the checkpoint "
                f"has them, got {[*got]}. Use the same config and corpus in all ranks, and those "
                "of the checkpoint to resume."
            )
        own[name].copy_(weights[name])


def broadcast_weights(nlp: Language, group: ProcessGroup) -> None:
    """Give all ranks the weights of rank 0, bit for bit.

    Raises InputError in a rank whose weights have other names or shapes.
    """
    if group.size > 1:
        weights = {name: tensor.cpu() for name, tensor in get_weights(nlp).items()}
        set_weights(nlp, group.broadcast(weights))


def sum_gradients(nlp: Language, group: ProcessGroup) -> bool:
    """Replace all gradients by their sums over ranks, in two collective calls.

    The loss of a batch is a sum over its docs, so N ranks with batches of b docs learn as one
    process with batches of N * b docs. A rank without a gradient for some weights adds zeros.

    Where the gradients of a mixed precision module overflowed in any rank, all ranks skip the
    step: otherwise the step would lack the docs of that rank, and the scales would drift apart.
    torch.amp does the same with gradients that DistributedDataParallel has summed.

    Returns whether to update the weights. If not, all gradients are zero.
    """
    found, scalers = parameters(nlp), grad_scalers(nlp)
    flags = [parameter.gradient is not None for parameter in found]
    flags += [bool(scaler.found_inf) for scaler in scalers]
    counts = torch.tensor(flags, dtype=torch.float32, device=group.device)
    group.all_reduce(counts)
    in_any_rank = [count > 0 for count in counts.tolist()]
    learning = [parameter for parameter, has in zip(found, in_any_rank) if has]
    overflowed = in_any_rank[len(found) :]
    if any(overflowed):
        for parameter in learning:
            parameter.set_gradient(torch.zeros_like(parameter.tensor))
        for scaler, flag in zip(scalers, overflowed):
            update_scale(scaler, flag)
    elif learning and group.size > 1:
        parts = []
        for parameter in learning:
            gradient = parameter.gradient
            part = torch.zeros_like(parameter.tensor) if gradient is None else gradient.to_dense()
            parts.append(part.reshape(-1).to(group.device))
        flat = torch.cat(parts)
        group.all_reduce(flat)
        for parameter, part in zip(learning, torch.split(flat, [len(part) for part in parts])):
            weights = parameter.tensor
            parameter.set_gradient(part.view(weights.shape).to(weights.device))
    return not any(overflowed)
