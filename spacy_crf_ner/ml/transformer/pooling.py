"""Pooling of wordpieces to tokens for all docs of a batch at once, for GPUs.

spacy-transformers pools one doc after the other, each with several kernels and copies to the GPU,
and in training a wait; thinc's mean waits twice, to check lengths. The result is the same here.

Axes: P wordpieces of all docs, padding included, A pairs of a token and one of its wordpieces,
N tokens, H width of the hidden states.
"""

from collections.abc import Callable
from itertools import compress
from typing import Any, cast

import numpy as np
import torch
from thinc.api import Model, NumpyOps
from thinc.types import Floats2d, Ragged
from transformers.modeling_outputs import BaseModelOutput

from ..torch_layer import to_array, to_tensor
from .spacy_transformers_internals import FullTransformerBatch, TransformerData, pool_by_doc

POOLING = "trfs2arrays"  # the name of the layer


class DocData(list[TransformerData]):
    """The output of a transformer for each doc.

    Attributes:
        listeners: Number of layers that got it.
    """

    listeners = 0


class TransformerBatch(FullTransformerBatch):
    """The output of a transformer, which counts the listeners that get it."""

    @property
    def doc_data(self) -> DocData:
        """The output for each doc."""
        if not isinstance(self.cached_doc_data, DocData):
            self.cached_doc_data = DocData(super().doc_data)
        self.cached_doc_data.listeners += 1
        return self.cached_doc_data


def pool_at_once(model: Model[Any, Any]) -> None:
    """Let all listeners in a model pool a batch at once on a GPU, in place."""
    for layer in model.walk():
        if layer.name == POOLING:
            layer._func = _forward


def _forward(
    model: Model[list[TransformerData], list[Floats2d]], X: list[TransformerData], is_train: bool
) -> tuple[list[Floats2d], Callable[[list[Floats2d]], list[TransformerData]]]:
    """Compute the vectors of the tokens of each doc; as spacy-transformers' `trfs2arrays`."""
    is_full = ["last_hidden_state" in doc.model_output for doc in X]
    full = [*compress(X, is_full)]
    states = [cast(Any, doc.model_output).last_hidden_state for doc in full]
    on_cpu = isinstance(model.ops, NumpyOps)
    if on_cpu or not full or not all(doc.align.lengths.any() for doc in full):
        result: tuple[list[Floats2d], Any] = pool_by_doc(model, X, is_train)
        return result
    ops: Any = model.ops
    flat = ops.xp.concatenate([each.reshape(-1, each.shape[-1]) for each in states])  # (P, H)
    ends = np.cumsum([each.shape[0] * each.shape[1] for each in states])
    rows = [doc.align.dataXd + end for doc, end in zip(full, [0, *ends[:-1].tolist()])]
    indices = ops.asarray1i(np.concatenate(rows))  # (A,)
    lengths = ops.asarray1i(np.concatenate([doc.align.lengths for doc in full]))  # (N,)
    pool = _mean if model.layers[0].name == "reduce_mean" else model.layers[0]
    pooled, backprop_pooling = pool(Ragged(flat[indices], lengths), is_train)
    tokens = np.cumsum([len(doc.align.lengths) for doc in full])
    by_doc = iter(ops.xp.split(pooled, tokens[:-1].tolist()))
    Y = [next(by_doc) if each else ops.alloc2f(0, 0) for each in is_full]

    def backprop(dY: list[Floats2d]) -> list[TransformerData]:
        d_pooled = ops.xp.concatenate([*compress(dY, is_full)])
        d_flat = ops.alloc2f(*flat.shape)
        ops.scatter_add(d_flat, indices, backprop_pooling(d_pooled).dataXd)
        d_flat *= model.attrs["grad_factor"]
        if getattr(X, "listeners", 0) == 1 and len({each.shape[1] for each in states}) == 1:
            # The component waits for the norm of each gradient: one listener can give it one.
            T = states[0].shape[1]
            return [_with_states(full[0], d_flat.reshape(-1, T, flat.shape[1]))]
        parts = ops.xp.split(d_flat, ends[:-1].tolist())
        return [
            _with_states(doc, part.reshape(s.shape)) for doc, part, s in zip(full, parts, states)
        ]

    return Y, backprop


def _mean(X: Ragged, is_train: bool) -> tuple[Floats2d, Callable[[Floats2d], Ragged]]:
    """Compute the mean of the rows of each token, 0 for a token without rows, and do not wait."""
    rows = to_tensor(X.dataXd).requires_grad_(is_train)
    means = torch.segment_reduce(
        rows, "mean", lengths=to_tensor(X.lengths), unsafe=True, initial=0.0
    )

    def backprop(d_means: Floats2d) -> Ragged:
        (d_rows,) = torch.autograd.grad(means, rows, to_tensor(d_means), retain_graph=True)
        return Ragged(to_array(d_rows), X.lengths)

    return to_array(means), backprop


def _with_states(doc: TransformerData, states: Any) -> TransformerData:
    return TransformerData(doc.wordpieces, BaseModelOutput(last_hidden_state=states), doc.align)
