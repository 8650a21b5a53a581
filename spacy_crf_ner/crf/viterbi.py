"""Viterbi decoding, its trellis, and the n best tag sequences."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from .chain import FORBIDDEN, Chain
from .packed import Ints, Packed

Floats = NDArray[np.floating]

# The overhead of one more chunk of tokens, in additions of scores.
CHUNK_COST = 100_000
# The tokens of a doc whose scores float32 can still hold.
LONG = 1000


def viterbi(chain: Chain) -> tuple[Ints, Floats]:
    """Find the best tag sequence of each doc.

    Ties are broken towards the lower tag index: first of the last tag, and so on backwards. The
    search stores no back-pointers; it computes them along the best path.

    Returns tags (B, T) int64, 0 where the mask is False, and their scores (B,).
    """
    chain = _exact(chain.arrays())
    packed = Packed(chain.mask)
    counts = packed.counts
    if not counts:  # no doc has a token
        tags = np.zeros(chain.mask.shape, dtype=np.int64)
        return tags, np.zeros(len(tags), chain.emissions.dtype)
    # Function calls cost more than the additions for a token. So there are few calls, all in place,
    # on docs sorted by length, as the innermost axis: (T, C, D). They become the scores of the best
    # path to each tag.
    scores = packed.sort(chain.emissions).transpose(1, 2, 0).copy()
    A, start, end = (packed.own(x, dim) for x, dim in zip(chain[1:4], (2, 1, 1)))
    C = A.shape[-1]
    scores[0] += start.reshape(-1, C).T
    # (C, C, 1), or (C, C, D) if each doc has its own.
    leave = A.reshape(-1, C, C).transpose(1, 2, 0)
    for begin, stop in _chunks(counts, C * C):
        n = counts[begin]
        # Copies of all operands in full size: to add broadcast ones takes twice as long.
        move = np.broadcast_to(leave[:, :, :n], (C, C, n)).copy()
        moved, best = np.empty_like(move), np.empty_like(scores[0, :, :n])
        for left, here in zip(scores[begin - 1 : stop - 1], scores[begin:stop, :, :n]):
            np.copyto(moved, left[:, None, :n])
            moved += move
            here += np.maximum.reduce(moved, axis=0, out=best)

    last = packed.lengths - 1, slice(None), np.arange(len(packed.docs))
    final = scores[last] + end  # (D, C)
    tags = np.zeros((len(counts), len(final)), dtype=np.int64)
    tags[last[::2]] = final.argmax(axis=1)
    arrive = A.swapaxes(-1, -2).reshape(-1, C)  # [to, from], of one doc after the other
    of_doc = np.arange(len(final)) * C * (A.ndim == 3)
    scratch = np.empty_like(final)
    for n, after, here, best in zip(counts[:0:-1], tags[:0:-1], tags[-2::-1], scores[-2::-1]):
        came = scratch[:n]
        arrive.take(of_doc[:n] + after[:n], axis=0, out=came, mode="clip")
        came += best[:, :n].T
        came.argmax(axis=1, out=here[:n])
    return packed.unsort(tags.T), packed.unsort(final.max(axis=1))


def _exact(chain: Chain) -> Chain:
    """Use float64 for long docs: their scores are large sums, which round small differences."""
    if chain.mask.shape[1] <= LONG:
        return chain
    E, A, start, end = (scores.astype(np.float64) for scores in chain[:4])
    return Chain(E, A, start, end, chain.mask)


def _chunks(counts: list[int], sums: int) -> Iterator[tuple[int, int]]:
    """Divide all tokens but the first into chunks, each decoded for a constant number of docs.

    These are the docs that have the chunk's first token. Docs that have ended stay in the chunk
    until they have cost more than a new chunk does.

    counts: The number of docs that have each token. sums: Additions for a doc at a token.
    """
    begin, wasted = 1, 0
    for t, count in enumerate(counts[1:], 1):
        wasted += sums * (counts[begin] - count)
        if wasted > CHUNK_COST:
            yield begin, t
            begin, wasted = t, 0
    if begin < len(counts):
        yield begin, len(counts)


def trellis(chain: Chain) -> tuple[Floats, Ints]:
    """Score the best path to each tag at each token, with its back-pointer.

    Ties are broken as in `viterbi`. The back-pointers from the best last tag, end score included,
    give the path of `viterbi`.

    Returns best (B, T, C), the score of the best path to the tag, -inf if no legal path leads to
    it; and backpointers (B, T, C) int64, the previous tag on that path, -1 if there is none. Values
    in the padding are undefined.
    """
    E, A, start, _, _ = _exact(chain.arrays())
    best, pointers = E.copy(), np.full(E.shape, -1)
    best[:, :1] += start.reshape(-1, 1, E.shape[2])
    for t in range(1, E.shape[1]):
        moved = best[:, t - 1, :, None] + A  # (B, C, C)
        pointers[:, t] = moved.argmax(1)
        best[:, t] += moved.max(1)
    unreached = best <= FORBIDDEN / 2
    return np.where(unreached, -np.inf, best), np.where(unreached, -1, pointers)


def nbest(chain: Chain, n: int) -> tuple[Ints, Floats]:
    """Find the n best tag sequences of each doc, best first, all distinct.

    Viterbi with n scores for each tag instead of one. Source: Seshadri and Sundberg (1994), "List
    Viterbi decoding algorithms with applications".

    Returns tags (B, n, T) int64, 0 where the mask is False, and scores (B, n), -inf if a doc
    has fewer legal sequences. An empty doc has one, with score 0.
    Raises ValueError for n below 1.
    """
    if n < 1:
        raise ValueError(f"n: expected 1 or more, got {n}.")
    E, A, start, end, mask = _exact(chain.arrays())
    B, T, C = E.shape
    tags = np.zeros((B, n, T), dtype=np.int64)
    scores = np.full((B, n), -np.inf, E.dtype)
    scores[:, 0] = 0.0
    if T == 0:
        return tags, scores
    # best: (B, C, n); one path to each first tag.
    best = np.full((B, C, n), -np.inf, E.dtype)
    best[:, :, 0] = start + E[:, 0]
    arrive = A.swapaxes(-1, -2).repeat(n, axis=-1)  # ([B,] C, C * n)
    backpointers = []  # T - 1 times (B, C * n): previous tag and rank, as tag * n + rank
    stay = np.arange(C * n).reshape(C, n)
    for t in range(1, T):
        ranked, previous = _highest(best.reshape(B, 1, C * n) + arrive, n)
        real = mask[:, t, None, None]
        best = np.where(real, ranked + E[:, t, :, None], best)
        backpointers.append(np.where(real, previous, stay).reshape(B, C * n))
    ranked, state = _highest((best + end[..., None]).reshape(B, C * n), n)
    found = np.where(ranked > FORBIDDEN / 2, ranked, -np.inf)
    scores = np.where(mask.any(1)[:, None], found, scores)
    tags[:, :, -1] = state // n
    for t in range(T - 1, 0, -1):
        state = np.take_along_axis(backpointers[t - 1], state, 1)
        tags[:, :, t - 1] = state // n
    return np.where(mask[:, None, :], tags, 0), scores


def _highest(scores: Floats, n: int) -> tuple[Floats, Ints]:
    """Find the n highest scores in the last axis, and their indices, of ties the lower first."""
    order = np.argsort(-scores, axis=-1, kind="stable")[..., :n]
    return np.take_along_axis(scores, order, -1), order
