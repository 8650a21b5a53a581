"""Prediction with a transformer in batches of windows of similar length, from all docs at once.

Axes: W windows of all docs, P their wordpieces, one window after the other, N tokens of all docs,
A pairs of a token and one of its wordpieces, B windows of a batch, T wordpieces of the longest
window, H width of the hidden states.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from spacy.attrs import IDX, LENGTH
from spacy.tokens import Doc, Span
from thinc.types import Ragged
from torch import Tensor
from transformers.modeling_outputs import BaseModelOutput

from ..torch_layer import to_array
from .spacy_transformers_internals import FullTransformerBatch, TransformerData, WordpieceBatch

Ints = NDArray[np.int64]
# From ids (B, T), a mask (B, T), False for padding, and token types (B, T) or None, to the hidden
# states (B, T, H) on the device of the transformer.
ForwardFn = Callable[[Tensor, Tensor, Tensor | None], Tensor]


class Wordpieces(NamedTuple):
    """The wordpieces of windows, special ones included."""

    strings: list[list[str]]  # of each window
    lengths: Ints  # (W,), the number of wordpieces of each window
    ids: Ints  # (P,)
    types: Ints  # (P,), the token types
    starts: Ints  # (P,), the first character of each in its window
    ends: Ints  # (P,), the character after its last; for a special one, its start


class BatchLimits(NamedTuple):
    """The maximum size of a batch, in wordpieces; a longer window is a batch of its own.

    Each batch reads all weights from memory, which takes as long as computing some padding.
    """

    wordpieces: int  # including padding
    padding: int


CPU = BatchLimits(2048, 85)  # a batch costs as much as 85 wordpieces
CPU_BF16 = BatchLimits(2048, 120)  # a batch costs 260, but then over a tenth would be padding
GPU = BatchLimits(32768, 1365)


class Padding(NamedTuple):
    """The wordpiece that fills up shorter windows."""

    string: str
    id: int


def encode_windows(
    docs: Sequence[Doc],
    windows: Sequence[Sequence[Span]],
    wordpieces: Wordpieces,
    padding: Padding,
    forward: ForwardFn,
    limits: BatchLimits,
) -> FullTransformerBatch:
    """Compute the hidden states of docs, aligned with their tokens.

    windows: The windows of each doc, W in all, at least one; a doc may have none.
    wordpieces: The wordpieces of all windows.

    Returns the hidden states and alignment of all docs; `cached_doc_data` has them for each doc.
    """
    hidden = _encode(wordpieces, padding, forward, limits)
    tokens, aligned = _align(docs, windows, wordpieces)
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
        align=_ragged(aligned, tokens, sum(map(len, docs))),
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
            each.to(states.device, non_blocking=True)
            for each in (mask.view(-1).nonzero()[:, 0], places)
        )
        if hidden is None:
            hidden = states.new_empty((len(ids), states.shape[1]))
        hidden.index_copy_(0, places, states.index_select(0, cells))
    assert hidden is not None  # there is a window, and a window has a wordpiece
    return hidden


def batches(lengths: Ints, limits: BatchLimits) -> Iterator[Ints]:
    """Divide windows of (W,) wordpieces into batches of similar length, the longest first.

    Yields the windows of each batch, the longest first.
    """
    order = np.argsort(-lengths, kind="stable")
    begin, padding = 0, 0
    falling = lengths[order].tolist()
    for i, length in enumerate(falling):
        padding += falling[begin] - length
        if (i + 1 - begin) * falling[begin] > limits.wordpieces or padding > limits.padding:
            if i > begin:
                yield order[begin:i]
            begin, padding = i, 0
    yield order[begin:]


def _align(
    docs: Sequence[Doc], windows: Sequence[Sequence[Span]], wordpieces: Wordpieces
) -> tuple[Ints, Ints]:
    """Pair each token with the wordpieces that overlap it.

    A space belongs to the token before it. A token in several windows has wordpieces in each.

    Returns token (A,) and wordpiece (A,) of each pair, ordered by token.
    """
    # Characters are numbered across all docs; each doc ends with an additional space.
    columns = [doc.to_array([IDX, LENGTH]).astype(np.int64) for doc in docs]
    sizes = [int(of_doc[-1].sum()) + 1 if len(of_doc) else 0 for of_doc in columns]
    first_chars, first_tokens = _edges(sizes), _edges([len(doc) for doc in docs])
    starts = np.concatenate([of_doc[:, 0] + c for of_doc, c in zip(columns, first_chars)])  # (N,)
    of_window = np.array(
        [
            (c + span.start_char, t + span.start, t + span.end - 1)
            for of_doc, c, t in zip(windows, first_chars.tolist(), first_tokens.tolist())
            for span in of_doc
        ]
    )
    char, lowest, highest = np.repeat(of_window, wordpieces.lengths, axis=0).T  # each (P,)
    first = np.searchsorted(starts, char + wordpieces.starts, side="right") - 1
    last = np.searchsorted(starts, char + wordpieces.ends - 1, side="right") - 1
    first, last = first.clip(lowest, highest), last.clip(lowest, highest)
    counts = np.where(wordpieces.starts < wordpieces.ends, last + 1 - first, 0)
    aligned = np.repeat(np.arange(len(counts)), counts)
    tokens = np.repeat(first - _edges(counts)[:-1], counts) + np.arange(len(aligned))
    order = np.argsort(tokens, kind="stable")
    return tokens[order], aligned[order]


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

    hidden: (P, H). tokens, aligned: (A,), as `_align` returns them.
    """
    sizes = [len(of_doc) for of_doc in windows]
    doc_of = np.repeat(np.arange(len(docs)), sizes)  # (W,)
    longest = np.zeros(len(docs), dtype=np.int64)
    np.maximum.at(longest, doc_of, wordpieces.lengths)
    # The cells of each window in arrays that are padded for each doc, and those of each wordpiece.
    padded_to = _edges(longest[doc_of])
    unpadded = _edges(wordpieces.lengths)
    cells = np.arange(unpadded[-1])
    cells += np.repeat(padded_to[:-1] - unpadded[:-1], wordpieces.lengths)
    if len(cells) < padded_to[-1]:
        rows = torch.from_numpy(cells).to(hidden.device, non_blocking=True)
        empty = hidden.new_zeros((int(padded_to[-1]), hidden.shape[1]))
        hidden = empty.index_copy_(0, rows, hidden)
    states: Any = to_array(hidden)
    of_docs = [_edges(sizes), _edges([len(doc) for doc in docs])]
    of_docs.append(unpadded[of_docs[0]])
    of_docs.append(np.searchsorted(tokens, of_docs[1]))
    for (begin, end), (token, next_token), (first, next_first), (pair, next_pair) in zip(
        *(pairwise(edges.tolist()) for edges in of_docs)
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
                _pad(wordpieces.ids[own], mask, padding.id),
                _pad(wordpieces.types[own], mask, 0),
                mask,
            ),
            model_output=BaseModelOutput(
                last_hidden_state=own_states.reshape(*mask.shape, hidden.shape[1])
            ),
            align=_ragged(
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


def _pad(flat: Ints, mask: NDArray[np.bool_], fill: int) -> Ints:
    """Put numbers where a mask is True, and `fill` elsewhere."""
    padded = np.full(mask.shape, fill)
    padded[mask] = flat
    return padded


def _ragged(aligned: Ints, tokens: Ints, N: int) -> Ragged:
    """Group wordpieces by token, N tokens in all."""
    lengths = np.bincount(tokens, minlength=N)
    return Ragged(cast(Any, aligned.astype(np.int32)), cast(Any, lengths.astype(np.int32)))


def _edges(lengths: Any) -> Ints:
    """Return the starts of consecutive parts, and the end of the last one."""
    return np.append(0, np.cumsum(lengths)).astype(np.int64)
