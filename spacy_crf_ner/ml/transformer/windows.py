"""The wordpieces of windows of docs: batches of similar length, and alignment with tokens.

Axes: W windows of all docs, P their wordpieces, one window after the other, N tokens of all docs,
A pairs of a token and one of its wordpieces, B windows of a batch.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray
from spacy.attrs import IDX, LENGTH
from spacy.tokens import Doc, Span
from thinc.types import Ragged

Ints = NDArray[np.int64]


class Wordpieces(NamedTuple):
    """The wordpieces of windows, special ones included."""

    lengths: Ints  # (W,), the number of wordpieces of each window
    ids: Ints  # (P,)
    types: Ints  # (P,), the token types
    starts: Ints  # (P,), the first character of each in its window
    ends: Ints  # (P,), the character after its last; for a special one, its start
    strings: Sequence[list[str]] = ()  # of each window, for spacy-transformers


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


def batches(lengths: Ints, limits: BatchLimits) -> Iterator[Ints]:
    """Divide windows of (W,) wordpieces into batches of similar length, the longest first.

    Yields:
        The windows of each batch, the longest first.
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


def align(
    docs: Sequence[Doc], windows: Sequence[Sequence[Span]], wordpieces: Wordpieces
) -> tuple[Ints, Ints]:
    """Pair each token with the wordpieces that overlap it.

    A space belongs to the token before it. A token in several windows has wordpieces in each.

    Returns:
        Token (A,) and wordpiece (A,) of each pair, ordered by token.
    """
    # Characters are numbered across all docs; each doc ends with an additional space.
    columns = [doc.to_array([IDX, LENGTH]).astype(np.int64) for doc in docs]
    sizes = [int(of_doc[-1].sum()) + 1 if len(of_doc) else 0 for of_doc in columns]
    first_chars, first_tokens = edges(sizes), edges([len(doc) for doc in docs])
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
    tokens = np.repeat(first - edges(counts)[:-1], counts) + np.arange(len(aligned))
    order = np.argsort(tokens, kind="stable")
    return tokens[order], aligned[order]


def pad(flat: Ints, mask: NDArray[np.bool_], fill: int) -> Ints:
    """Put numbers where a mask is True, and `fill` elsewhere."""
    padded = np.full(mask.shape, fill)
    padded[mask] = flat
    return padded


def ragged(aligned: Ints, tokens: Ints, N: int) -> Ragged:
    """Group wordpieces by token, N tokens in all."""
    lengths = np.bincount(tokens, minlength=N)
    return Ragged(cast(Any, aligned.astype(np.int32)), cast(Any, lengths.astype(np.int32)))


def edges(lengths: Any) -> Ints:
    """Return the starts of consecutive parts, and the end of the last one."""
    return np.append(0, np.cumsum(lengths)).astype(np.int64)
