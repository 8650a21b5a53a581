"""The subwords of docs: windows of similar length in batches, and which subwords each token has.

Axes: W windows of all docs, P their subwords, one window after the other, N tokens of all docs,
A pairs of a token and one of its subwords, B windows of a batch, T subwords of the longest one.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from spacy.attrs import IDX, LENGTH
from spacy.tokens import Doc

from ...input_error import InputError
from .spans import SpanGetter

Ints = NDArray[np.int64]
POOLINGS = ("mean", "first", "last")


class Encoded(NamedTuple):
    """The subwords of a text, special ones included."""

    ids: NDArray[np.int32]  # (n,)
    types: NDArray[np.int32]  # (n,), the token types
    characters: NDArray[np.int32]  # (n, 2): first and last + 1; equal for a special subword


Encode = Callable[[Sequence[str]], list[Encoded]]


class Batch(NamedTuple):
    """Windows that a transformer reads together, as arrays or as tensors."""

    ids: Any  # (B, T) int64
    mask: Any  # (B, T) int64, 0 for padding; None for no padding
    types: Any  # (B, T) int64; None if all are 0


class Subwords(NamedTuple):
    """The subwords of docs.

    The states of all batches, one after the other and with padding, have a row for each subword.
    """

    batches: list[Batch]
    rows: Any  # (A,) int64, the rows of the subwords of each token, in the order of tokens
    firsts: Any  # (N,) int64, the first of the pairs of each token; it may have none


class BatchLimits(NamedTuple):
    """The maximum size of a batch, in subwords; a longer window is a batch of its own.

    Each batch reads all weights from memory, which takes as long as computing some padding.
    """

    subwords: int  # including padding
    padding: int


CPU = BatchLimits(2048, 85)  # a batch costs as much as 85 subwords
CPU_BF16 = BatchLimits(2048, 120)  # a batch costs 260, but then over a tenth would be padding
GPU = BatchLimits(32768, 1365)


class Texts(NamedTuple):
    """The texts of docs as one, each with a space after it, and the characters of their tokens."""

    text: str
    starts: Ints  # (N,), the first character of each token
    ends: Ints  # (N,), the character after its last


def read_texts(docs: Sequence[Doc]) -> Texts:
    """Read the texts of docs, and where their tokens are."""
    texts = [doc.text + " " for doc in docs]
    columns = [doc.to_array([IDX, LENGTH]).astype(np.int64).reshape(-1, 2) for doc in docs]
    within = np.concatenate([*columns, np.zeros((0, 2), dtype=np.int64)])
    firsts = edges([len(text) for text in texts])[:-1]
    starts = within[:, 0] + np.repeat(firsts, [len(doc) for doc in docs])
    return Texts("".join(texts), starts, starts + within[:, 1])


def divide(
    docs: Sequence[Doc],
    get_spans: SpanGetter,
    encode: Encode,
    longest: int,
    pad_id: int,
    limits: BatchLimits,
    pooling: str = "mean",
) -> Subwords:
    """Divide docs into subwords, in batches for a transformer.

    A window with more subwords than `longest` is divided into two, and a token with more is cut. A
    token has all of its subwords for the pooling "mean", else the "first" or the "last".
    """
    texts = read_texts(docs)
    windows = [
        (first + start, first + end)
        for doc, first in zip(docs, edges([len(doc) for doc in docs]).tolist())
        for start, end in _checked(get_spans(doc), doc)
        if end > start
    ]
    # Without special subwords, a window may have none.
    pairs = [pair for pair in _encode(texts, windows, encode, longest) if len(pair[1].ids)]
    lengths = np.array([len(encoded.ids) for _, encoded in pairs], dtype=np.int64)
    if not pairs:
        nothing = np.zeros(0, dtype=np.int64)
        return Subwords([], nothing, np.zeros(len(texts.starts), dtype=np.int64))
    ids, types, characters = (np.concatenate(each) for each in zip(*(each for _, each in pairs)))
    begins = np.repeat([texts.starts[first] for first, _ in pairs], lengths)
    cells, batches = _batch(lengths, ids, types if types.any() else None, pad_id, limits)
    tokens, subwords = align(texts, begins + characters[:, 0], begins + characters[:, 1])
    counts = np.bincount(tokens, minlength=len(texts.starts))
    firsts = edges(counts)
    if pooling != "mean":
        chosen = firsts[:-1] if pooling == "first" else firsts[1:] - 1
        subwords, counts = subwords[chosen[counts > 0]], np.minimum(counts, 1)
        firsts = edges(counts)
    return Subwords(batches, cells[subwords], firsts[:-1])


def _checked(spans: Any, doc: Doc) -> list[tuple[int, int]]:
    """Return the windows of a doc; raise InputError if they are none."""
    try:
        pairs = [(int(start), int(end)) for start, end in spans]
    except (TypeError, ValueError):
        pairs = [(-1, 0)]
    if not all(0 <= start <= end <= len(doc) for start, end in pairs):
        raise InputError(
            "get_spans: expected pairs (first token, last token + 1) within a doc of "
            f"{len(doc)} tokens, got {spans!r:.200}. Correct the function."
        )
    return pairs


def _encode(
    texts: Texts, windows: list[tuple[int, int]], encode: Encode, longest: int
) -> Iterator[tuple[int, Encoded]]:
    """Yield the first token of each window, and its subwords, at most `longest`."""
    found = encode([texts.text[texts.starts[i] : texts.ends[j - 1]] for i, j in windows])
    for (first, end), encoded in zip(windows, found):
        if len(encoded.ids) <= longest:
            yield first, encoded
        elif end - first == 1:
            yield first, Encoded(*(each[:longest] for each in encoded))
        else:
            middle = (first + end) // 2
            yield from _encode(texts, [(first, middle), (middle, end)], encode, longest)


def _batch(
    lengths: Ints, ids: Any, types: Any | None, pad_id: int, limits: BatchLimits
) -> tuple[Ints, list[Batch]]:
    """Return the row of each subword (P,) in the states of all batches, and the batches."""
    firsts, cells, made, size = edges(lengths), np.empty(len(ids), dtype=np.int64), [], 0
    for windows in batches(lengths, limits):
        steps = np.arange(lengths[windows[0]])
        mask = steps < lengths[windows, None]  # (B, T)
        places = np.where(mask, firsts[windows, None] + steps, 0)
        cells[places[mask]] = size + np.flatnonzero(mask)
        size += mask.size
        made.append(
            Batch(
                np.where(mask, ids[places], np.int64(pad_id)),
                None if mask.all() else mask.astype(np.int64),
                None if types is None else np.where(mask, types[places], np.int64(0)),
            )
        )
    return cells, made


def batches(lengths: Ints, limits: BatchLimits) -> Iterator[Ints]:
    """Divide windows of (W,) subwords into batches of similar length, the longest first."""
    if not len(lengths):
        return
    order = np.argsort(-lengths, kind="stable")
    begin, padding = 0, 0
    falling = lengths[order].tolist()
    for i, length in enumerate(falling):
        padding += falling[begin] - length
        if (i + 1 - begin) * falling[begin] > limits.subwords or padding > limits.padding:
            if i > begin:
                yield order[begin:i]
            begin, padding = i, 0
    yield order[begin:]


def align(texts: Texts, starts: Ints, ends: Ints) -> tuple[Ints, Ints]:
    """Pair each token with the subwords that overlap it: token (A,) and subword (A,), by token.

    Subwords have their first characters and last + 1, (P,), counted over all docs; equal ones if
    they are special. Some tokenizers add the space before a word to its first subword: spaces at
    the edges of a subword do not count, unless it has nothing else. So a token never gets its
    neighbour's.
    """
    codes = np.frombuffer(texts.text.encode("utf-32-le", "surrogatepass"), dtype="<u4")
    is_space = SPACES[np.minimum(codes, len(SPACES) - 1)]
    places = np.arange(len(codes))
    following = np.minimum.accumulate(np.where(is_space, len(codes), places)[::-1])[::-1]
    before = np.maximum.accumulate(np.where(is_space, -1, places))
    own = starts < ends
    seen = following[starts], before[ends - 1] + 1
    is_blank = seen[0] >= seen[1]
    starts, ends = np.where(own & ~is_blank, seen, (starts, ends))
    first = np.searchsorted(texts.ends, starts, side="right")
    last = np.searchsorted(texts.starts, ends, side="left")
    counts = np.where(own, (last - first).clip(0), 0)
    subwords = np.repeat(np.arange(len(counts)), counts)
    tokens = np.repeat(first - edges(counts)[:-1], counts) + np.arange(len(subwords))
    kept = (following[texts.starts] < texts.ends)[tokens] | is_blank[subwords]
    tokens, subwords = tokens[kept], subwords[kept]
    order = np.argsort(tokens, kind="stable")
    return tokens[order], subwords[order]


# Whether a character is a space, by its number; the last one stands for all after it.
SPACES = np.array([chr(code).isspace() for code in range(0x3002)])


def edges(lengths: Any) -> Ints:
    """Return the starts of consecutive parts, and the end of the last one."""
    return np.append(0, np.cumsum(lengths)).astype(np.int64)
