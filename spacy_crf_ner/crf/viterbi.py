"""Viterbi decoding, its trellis, and the n best tag sequences.

Axes: B docs, D of them with tokens, N tokens of the batch, C tags.
"""

import numpy as np
from numpy.typing import NDArray

from .chain import FORBIDDEN, Chain, Ints, TimeMajor

Floats = NDArray[np.floating]

# Large sums of float32 lose small differences. So Viterbi subtracts the best score of a doc every
# few tokens, and the trellis, which has all scores, uses float64 for docs of more tokens than LONG.
RESCALE = 16
LONG = 1000


def viterbi(chain: Chain) -> Ints:
    """Find the best tag sequence of each doc.

    Ties are broken towards the lower tag index: first of the last tag, and so on backwards. The
    search stores no back-pointers; it computes them along the best path.

    Args:
        chain: Potentials of B docs.

    Returns:
        Tags of all tokens, (N,) int64. A doc without a legal path gets some other one.
    """
    order, (E, _, A, start, end) = TimeMajor(chain.lengths), chain
    result = np.zeros(len(E), dtype=np.int64)
    if not len(E):
        return result
    if chain.per_doc:
        A, start, end = (x[order.docs] for x in chain.transition_scores)
    best = E[order.rows]  # becomes the scores of the best path to each tag
    best[order.steps[0]] += start
    reached, of_step = best[order.steps[0]].T, [best[now].T for now in order.steps]
    allocated = running = 0
    # Function calls cost more than the additions for a token. So there are few calls, all in place,
    # and docs that have ended are computed until a fifth of those in memory has. Arrays are
    # tag-major: `reached` (C, docs) has the best scores so far, and `moved` (C, C, docs), indexed
    # [from, to, doc], these plus the scores of transitions.
    for t, (here, n) in enumerate(zip(of_step[1:], order.n_docs[1:])):
        if n != running:
            if not 0.8 * allocated <= n <= allocated:
                allocated, (leave, moved, memory) = n, _scratch(A, n)
                memory[:] = reached[:, :n]
                reached, leaving = memory, memory[:, None]
            running, of_running = n, reached[:, :n]
        np.copyto(moved, leaving)
        np.add(moved, leave, moved)
        np.maximum.reduce(moved, axis=0, out=reached)
        np.add(of_running, here, of_running)
        if t % RESCALE == 0:
            reached -= reached.max(axis=0)
        here[:] = of_running

    final = best[order.last] + end  # (D, C)
    tags = np.empty(len(E), dtype=np.int64)
    tags[order.last] = final.argmax(axis=1)
    # [to, from], of one doc after the other
    arrive = np.ascontiguousarray(A.swapaxes(-1, -2)).reshape(-1, A.shape[-1])
    of_doc = np.arange(len(final)) * A.shape[-1]
    scratch = np.empty_like(final)
    for before, now, n in reversed([*zip(order.steps, order.steps[1:], order.n_docs[1:])]):
        after = tags[now] + of_doc[:n] if chain.per_doc else tags[now]
        came = arrive.take(after, axis=0, out=scratch[:n], mode="clip")
        came += best[before][:n]
        came.argmax(axis=1, out=tags[before][:n])
    result[order.rows] = tags
    return result


def _scratch(A: Floats, n: int) -> tuple[Floats, Floats, Floats]:
    """Return the transitions of n docs in full size, (C, C, n), and memory of (C, C, n), (C, n).

    To add broadcast operands takes twice as long. The longer one of the axes "to" and "doc" is the
    innermost one.
    """
    C = A.shape[-1]
    leave = np.broadcast_to(A[:n] if A.ndim == 3 else A, (n, C, C)).transpose(1, 2, 0)
    if 2 * n > C:
        return leave.copy(), np.empty((C, C, n), A.dtype), np.empty((C, n), A.dtype)
    full = leave.transpose(0, 2, 1).copy()
    return (
        full.transpose(0, 2, 1),
        np.empty_like(full).transpose(0, 2, 1),
        np.empty((n, C), A.dtype).T,
    )


def trellis(chain: Chain) -> tuple[Floats, Ints]:
    """Score the best path to each tag at each token, with its back-pointer.

    Ties are broken as in `viterbi`. The back-pointers from the best last tag, end score included,
    give the path of `viterbi`.

    Args:
        chain: Potentials of B docs.

    Returns:
        The score of the best path to each tag, (N, C), -inf if no legal path leads to it; and the
        previous tag on that path, (N, C) int64, -1 if there is none.
    """
    if chain.lengths.max(initial=0) > LONG:
        chain = chain.to_float64()
    order = TimeMajor(chain.lengths)
    A, start = (x[order.docs] if chain.per_doc else x for x in chain[2:4])
    best = chain.emissions[order.rows]
    pointers = np.full(best.shape, -1)
    best[: len(order.docs)] += start
    for before, now, n in zip(order.steps, order.steps[1:], order.n_docs[1:]):
        moved = best[before][:n, :, None] + (A[:n] if chain.per_doc else A)  # (n, C, C)
        pointers[now] = moved.argmax(1)
        best[now] += moved.max(1)
    unreached = best <= FORBIDDEN / 2
    best, pointers = np.where(unreached, -np.inf, best), np.where(unreached, -1, pointers)
    return best[order.position], pointers[order.position]


def nbest(chain: Chain, n: int) -> tuple[Ints, Floats]:
    """Find the n best tag sequences of each doc, best first, all distinct, in float64.

    Viterbi with n scores for each tag instead of one.

    Args:
        chain: Potentials of B docs.
        n: The number of sequences, at least 1.

    Returns:
        Tags of all tokens in each sequence, (n, N) int64, and the scores of the sequences, (B, n),
        -inf if a doc has fewer legal ones. An empty doc has one, with score 0.

    Raises:
        ValueError: For n below 1.

    Source: Seshadri and Sundberg (1994), "List Viterbi decoding algorithms with applications".
    """
    if n < 1:
        raise ValueError(f"n: expected 1 or more, got {n}.")
    chain = chain.to_float64()
    order, C = TimeMajor(chain.lengths), chain.emissions.shape[1]
    E = chain.emissions[order.rows]
    A, start, end = (x[order.docs] if chain.per_doc else x[None] for x in chain.transition_scores)
    arrive = A.swapaxes(-1, -2).repeat(n, axis=-1)  # (D or 1, C, C * n), [doc, to, from]
    best = np.full((len(order.docs), C, n), -np.inf, E.dtype)
    best[:, :, 0] = start  # one path to each first tag
    backpointers = []  # previous tag and rank, as tag * n + rank: (docs, C * n) for each token
    for t, (now, docs) in enumerate(zip(order.steps, order.n_docs)):
        if t:
            reached = best[:docs].reshape(docs, 1, C * n) + arrive[:docs]
            best[:docs], previous = _highest(reached, n)
            backpointers.append(previous.reshape(docs, C * n))
        best[:docs] += E[now][:, :, None]
    ranked, state = _highest((best + end[:, :, None]).reshape(-1, C * n), n)
    tags = np.zeros((n, len(E)), dtype=np.int64)
    for t in range(len(order.steps) - 1, -1, -1):
        here = state[: order.n_docs[t]]
        tags[:, order.rows[order.steps[t]]] = here.T // n
        if t:
            here[:] = np.take_along_axis(backpointers[t - 1], here, 1)
    scores = np.full((len(chain.lengths), n), -np.inf, E.dtype)
    scores[:, 0] = 0.0
    scores[order.docs] = np.where(ranked > FORBIDDEN / 2, ranked, -np.inf)
    return tags, scores


def _highest(scores: Floats, n: int) -> tuple[Floats, Ints]:
    """Find the n highest scores in the last axis, and their indices, of ties the lower first."""
    order = np.argsort(-scores, axis=-1, kind="stable")[..., :n]
    return np.take_along_axis(scores, order, -1), order
