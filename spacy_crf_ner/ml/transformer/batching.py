"""What a transformer is fed when it predicts: the windows of all docs, in batches of like length.

Axes: W windows of all docs, P their subwords, one window after the other, N tokens of all docs,
A pairs of a token and a subword of it, B windows of a batch, T subwords of the longest of some
windows, H width of the hidden states.
"""

from typing import Any, Callable, Iterator, List, NamedTuple, Optional, Sequence, Tuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from spacy.attrs import IDX, LENGTH
from spacy.tokens import Doc, Span
from spacy_transformers.data_classes import FullTransformerBatch, TransformerData, WordpieceBatch
from thinc.types import Ragged
from torch import Tensor
from transformers.modeling_outputs import BaseModelOutput

from ..torch_layer import to_array

Ints = NDArray[np.int64]
# From ids (B, T), what is no padding (B, T), and token types (B, T) or None, to states (B, T, H).
Run = Callable[[Tensor, Tensor, Optional[Tensor]], Tensor]


class Subwords(NamedTuple):
    """The subwords of windows.

    strings: Those of each window, special ones among them.
    lengths: (W,), how many each has.
    ids: (P,).
    types: (P,), the token types.
    starts: (P,), the first character of each in its window.
    ends: (P,), the character after its last; of a special one, its first.
    """

    strings: List[List[str]]
    lengths: Ints
    ids: Ints
    types: Ints
    starts: Ints
    ends: Ints


class Limits(NamedTuple):
    """What bounds a batch.

    subwords: The most, padding included; a longer window is a batch alone.
    padding: The most subwords of padding. Another batch, for which all weights are read from memory
        again, takes as long as some of them, and so they may pay.
    """

    subwords: int
    padding: int


CPU = Limits(2048, 85)  # as many as another batch costs
CPU_BF16 = Limits(2048, 120)  # it costs 260 here; with so many, more than a tenth would be padding
GPU = Limits(32768, 1365)


class Padding(NamedTuple):
    """The subword that shorter windows are filled up with."""

    string: str
    id: int


def feed(
    docs: Sequence[Doc],
    windows: Sequence[Sequence[Span]],
    subwords: Subwords,
    padding: Padding,
    run: Run,
    limits: Limits,
) -> FullTransformerBatch:
    """Compute the hidden states of docs, aligned with their tokens.

    windows: Those of each doc.
    subwords: Of all windows.
    run: The transformer; its states are on its device.
    limits: Of its batches.
    """
    hidden = _hidden(subwords, padding, run, limits)
    tokens, pieces = _align(docs, windows, subwords)
    data = list(_split(docs, windows, subwords, padding, hidden, tokens, pieces))
    return FullTransformerBatch(
        spans=[list(of_doc) for of_doc in windows],
        # As one long window: whoever asks a batch asks for its docs, which are there.
        wordpieces=_wordpieces(
            [[string for row in subwords.strings for string in row]],
            subwords.ids[None],
            subwords.types[None],
            np.ones((1, len(subwords.ids)), dtype=bool),
        ),
        model_output=BaseModelOutput(last_hidden_state=cast(Any, hidden[None])),
        align=_ragged(pieces, tokens, sum(map(len, docs))),
        cached_doc_data=data,
    )


def _hidden(subwords: Subwords, padding: Padding, run: Run, limits: Limits) -> Tensor:
    """Compute the hidden states of all subwords: (P, H)."""
    ids, types = torch.from_numpy(subwords.ids), torch.from_numpy(subwords.types)
    lengths = torch.from_numpy(subwords.lengths)
    begins = lengths.cumsum(0) - lengths
    typed = bool(types.any())
    hidden: Optional[Tensor] = None
    for batch in batches(subwords.lengths, limits):
        windows = torch.from_numpy(batch)
        steps = torch.arange(int(lengths[windows[0]]))
        mask = steps < lengths[windows, None]  # (B, T)
        pieces = (begins[windows, None] + steps)[mask]
        padded = torch.full(mask.shape, padding.id).masked_scatter_(mask, ids[pieces])
        segments = None
        if typed:
            segments = torch.zeros_like(padded).masked_scatter_(mask, types[pieces])
        states = run(padded, mask, segments)
        states = states[mask.to(states.device)]
        if hidden is None:
            hidden = states.new_empty((len(ids), states.shape[1]))
        hidden[pieces.to(states.device)] = states
    assert hidden is not None  # a window has a subword, or there is none to be fed
    return hidden


def batches(lengths: Ints, limits: Limits) -> Iterator[Ints]:
    """Divide windows into batches of like length, the longest first.

    lengths: (W,), subwords of each window.

    Yields the windows of each batch, the longest first.
    """
    order = np.argsort(-lengths, kind="stable")
    begin, wasted = 0, 0
    falling = lengths[order].tolist()
    for i, length in enumerate(falling):
        wasted += falling[begin] - length
        if (i + 1 - begin) * falling[begin] > limits.subwords or wasted > limits.padding:
            if i > begin:
                yield order[begin:i]
            begin, wasted = i, 0
    yield order[begin:]


def _align(
    docs: Sequence[Doc], windows: Sequence[Sequence[Span]], subwords: Subwords
) -> Tuple[Ints, Ints]:
    """Pair each token with the subwords that have a character of it: (A,) and (A,), by token.

    A space belongs to the token before it. A token in several windows has subwords in each.
    """
    # Characters are counted through all docs, each of which ends with a space more.
    columns = [doc.to_array([IDX, LENGTH]).astype(np.int64) for doc in docs]
    sizes = [int(of_doc[-1].sum()) + 1 if len(of_doc) else 0 for of_doc in columns]
    first_chars = _begins(sizes)
    first_tokens = _begins([len(doc) for doc in docs])
    starts = np.concatenate([of_doc[:, 0] + c for of_doc, c in zip(columns, first_chars)])  # (N,)
    of_window = np.array(
        [
            (c + span.start_char, t + span.start, t + span.end - 1)
            for of_doc, c, t in zip(windows, first_chars.tolist(), first_tokens.tolist())
            for span in of_doc
        ]
    )
    offset, lowest, highest = np.repeat(of_window, subwords.lengths, axis=0).T  # each (P,)
    first = np.searchsorted(starts, offset + subwords.starts, side="right") - 1
    last = np.searchsorted(starts, offset + subwords.ends - 1, side="right") - 1
    first, last = first.clip(lowest, highest), last.clip(lowest, highest)
    counts = np.where(subwords.starts < subwords.ends, last + 1 - first, 0)
    pieces = np.repeat(np.arange(len(counts)), counts)
    tokens = np.repeat(first - _begins(counts), counts) + np.arange(len(pieces))
    order = np.argsort(tokens, kind="stable")
    return tokens[order], pieces[order]


def _split(
    docs: Sequence[Doc],
    windows: Sequence[Sequence[Span]],
    subwords: Subwords,
    padding: Padding,
    hidden: Tensor,
    tokens: Ints,
    pieces: Ints,
) -> Iterator[TransformerData]:
    """Yield what belongs to each doc: the subwords and states of its windows, a row a window."""
    ends_of_windows = np.cumsum([len(of_doc) for of_doc in windows])
    ends_of_tokens = np.cumsum([len(doc) for doc in docs])
    ends_of_pieces = np.cumsum(subwords.lengths)
    ends_of_pairs = np.searchsorted(tokens, ends_of_tokens)
    begin, token, piece, pair = 0, 0, 0, 0
    for end, next_token, next_pair in zip(
        ends_of_windows.tolist(), ends_of_tokens.tolist(), ends_of_pairs.tolist()
    ):
        if end == begin:
            yield TransformerData.empty()
            token = next_token
            continue
        next_piece = int(ends_of_pieces[end - 1])
        lengths = subwords.lengths[begin:end]
        T = int(lengths.max())
        mask = np.arange(T) < lengths[:, None]
        places = np.flatnonzero(mask)
        own = slice(piece, next_piece)
        states = hidden[own]
        if not mask.all():
            states = states.new_zeros((mask.size, states.shape[1]))
            states[torch.from_numpy(places).to(states.device)] = hidden[own]
        strings = subwords.strings[begin:end]
        yield TransformerData(
            wordpieces=_wordpieces(
                [row + [padding.string] * (T - len(row)) for row in strings],
                _pad(subwords.ids[own], mask, padding.id),
                _pad(subwords.types[own], mask, 0),
                mask,
            ),
            model_output=BaseModelOutput(
                last_hidden_state=to_array(states.view(*mask.shape, states.shape[1]))
            ),
            align=_ragged(
                places[pieces[pair:next_pair] - piece],
                tokens[pair:next_pair] - token,
                next_token - token,
            ),
        )
        begin, token, piece, pair = end, next_token, next_piece, next_pair


def _wordpieces(
    strings: List[List[str]], ids: Ints, types: Ints, mask: NDArray[np.bool_]
) -> WordpieceBatch:
    return WordpieceBatch(
        strings=strings,
        input_ids=cast(Any, ids),
        attention_mask=cast(Any, mask.astype(np.float32)),
        lengths=mask.sum(1).tolist(),
        token_type_ids=cast(Any, types),
    )


def _pad(flat: Ints, mask: NDArray[np.bool_], fill: int) -> Ints:
    padded = np.full(mask.shape, fill)
    padded[mask] = flat
    return padded


def _ragged(pieces: Ints, tokens: Ints, N: int) -> Ragged:
    """The subwords of each of N tokens."""
    lengths = np.bincount(tokens, minlength=N)
    return Ragged(cast(Any, pieces.astype(np.int32)), cast(Any, lengths.astype(np.int32)))


def _begins(lengths: Any) -> Ints:
    """Where each of some parts begins, where they follow each other."""
    begins: Ints = np.cumsum(lengths) - lengths
    return begins
