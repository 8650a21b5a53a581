"""Prediction with a transformer in batches of windows of similar length, from all docs at once.

Axes: W windows of all docs, P their wordpieces, one window after the other, N tokens of all docs,
A pairs of a token and one of its wordpieces, B windows of a batch, T wordpieces of the longest
window, H width of the hidden states.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from spacy.tokens import Doc, Span
from torch import Tensor
from transformers.modeling_outputs import BaseModelOutput

from ..device import to_device
from ..torch_layer import to_array
from .spacy_transformers_internals import FullTransformerBatch, TransformerData, WordpieceBatch
from .windows import (
    BatchLimits,
    Ints,
    Padding,
    Wordpieces,
    align,
    batches,
    edges,
    pad,
    ragged,
)

# From ids (B, T), a mask (B, T), False for padding, and token types (B, T) or None, to the hidden
# states (B, T, H) on the device of the transformer.
ForwardFn = Callable[[Tensor, Tensor, Tensor | None], Tensor]


def encode_windows(
    docs: Sequence[Doc],
    windows: Sequence[Sequence[Span]],
    wordpieces: Wordpieces,
    padding: Padding,
    forward: ForwardFn,
    limits: BatchLimits,
) -> FullTransformerBatch:
    """Compute the hidden states of docs, aligned with their tokens.

    Args:
        windows: The windows of each doc, W in all, at least one; a doc may have none.
        wordpieces: The wordpieces of all windows.

    Returns:
        The hidden states and alignment of all docs; `cached_doc_data` has them for each doc.
    """
    hidden = _encode(wordpieces, padding, forward, limits)
    tokens, aligned = align(docs, windows, wordpieces)
    data = list(_split(docs, windows, wordpieces, padding, hidden, tokens, aligned))
    return FullTransformerBatch(
        spans=[list(of_doc) for of_doc in windows],
        # As one long window: spacy-transformers reads only cached_doc_data.
        wordpieces=_wordpiece_batch(
            [[string for row in wordpieces.strings for string in row]],
            wordpieces.ids[None],
            wordpieces.types[None],
            np.ones((1, len(wordpieces.ids)), dtype=bool),
        ),
        model_output=BaseModelOutput(last_hidden_state=cast(Any, hidden[None])),
        align=ragged(aligned, tokens, sum(map(len, docs))),
        cached_doc_data=data,
    )


def _encode(
    wordpieces: Wordpieces, padding: Padding, forward: ForwardFn, limits: BatchLimits
) -> Tensor:
    """Compute the hidden states of all wordpieces: (P, H)."""
    ids, types = torch.from_numpy(wordpieces.ids), torch.from_numpy(wordpieces.types)
    lengths = torch.from_numpy(wordpieces.lengths)
    firsts = lengths.cumsum(0) - lengths
    typed = bool(types.any())
    hidden: Tensor | None = None
    for batch in batches(wordpieces.lengths, limits):
        windows = torch.from_numpy(batch)
        steps = torch.arange(int(lengths[windows[0]]))
        mask = steps < lengths[windows, None]  # (B, T)
        places = (firsts[windows, None] + steps)[mask]
        padded = torch.full(mask.shape, padding.id).masked_scatter_(mask, ids[places])
        segments = torch.zeros_like(padded).masked_scatter_(mask, types[places]) if typed else None
        states = forward(padded, mask, segments).flatten(0, 1)  # (B * T, H)
        # Indices, not masks: the host would wait for the number of cells in a mask on a GPU.
        cells, places = (
            to_device(each, states.device) for each in (mask.view(-1).nonzero()[:, 0], places)
        )
        if hidden is None:
            hidden = states.new_empty((len(ids), states.shape[1]))
        hidden.index_copy_(0, places, states.index_select(0, cells))
    assert hidden is not None  # there is a window, and a window has a wordpiece
    return hidden


def _split(
    docs: Sequence[Doc],
    windows: Sequence[Sequence[Span]],
    wordpieces: Wordpieces,
    padding: Padding,
    hidden: Tensor,
    tokens: Ints,
    aligned: Ints,
) -> Iterator[TransformerData]:
    """Yield the wordpieces, hidden states and alignment of each doc, with a row for each window.

    Args:
        hidden: (P, H), the hidden states of all wordpieces.
        tokens: (A,), the token of each pair.
        aligned: (A,), the wordpiece of each pair.
    """
    sizes = [len(of_doc) for of_doc in windows]
    doc_of = np.repeat(np.arange(len(docs)), sizes)  # (W,)
    longest = np.zeros(len(docs), dtype=np.int64)
    np.maximum.at(longest, doc_of, wordpieces.lengths)
    # The cells of each window in arrays that are padded for each doc, and those of each wordpiece.
    padded_to = edges(longest[doc_of])
    unpadded = edges(wordpieces.lengths)
    cells = np.arange(unpadded[-1])
    cells += np.repeat(padded_to[:-1] - unpadded[:-1], wordpieces.lengths)
    if len(cells) < padded_to[-1]:
        rows = to_device(torch.from_numpy(cells), hidden.device)
        empty = hidden.new_zeros((int(padded_to[-1]), hidden.shape[1]))
        hidden = empty.index_copy_(0, rows, hidden)
    states: Any = to_array(hidden)
    of_docs = [edges(sizes), edges([len(doc) for doc in docs])]
    of_docs.append(unpadded[of_docs[0]])
    of_docs.append(np.searchsorted(tokens, of_docs[1]))
    for (begin, end), (token, next_token), (first, next_first), (pair, next_pair) in zip(
        *(pairwise(firsts.tolist()) for firsts in of_docs)
    ):
        if end == begin:
            yield TransformerData.empty()
            continue
        own = slice(first, next_first)
        lengths = wordpieces.lengths[begin:end]
        T = int(lengths.max())
        mask = np.arange(T) < lengths[:, None]
        places = cells[own] - padded_to[begin]
        own_states = states[padded_to[begin] : padded_to[end]]
        strings = wordpieces.strings[begin:end]
        yield TransformerData(
            wordpieces=_wordpiece_batch(
                [row + [padding.string] * (T - len(row)) for row in strings],
                pad(wordpieces.ids[own], mask, padding.id),
                pad(wordpieces.types[own], mask, 0),
                mask,
            ),
            model_output=BaseModelOutput(
                last_hidden_state=own_states.reshape(*mask.shape, hidden.shape[1])
            ),
            align=ragged(
                places[aligned[pair:next_pair] - first],
                tokens[pair:next_pair] - token,
                next_token - token,
            ),
        )


def _wordpiece_batch(
    strings: list[list[str]], ids: Ints, types: Ints, mask: NDArray[np.bool_]
) -> WordpieceBatch:
    return WordpieceBatch(
        strings=strings,
        input_ids=cast(Any, ids),
        attention_mask=cast(Any, mask.astype(np.float32)),
        lengths=mask.sum(1).tolist(),
        token_type_ids=cast(Any, types),
    )
