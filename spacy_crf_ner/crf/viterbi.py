"""Viterbi decoding, its trellis, and the n best tag sequences."""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from .chain import FORBIDDEN, Chain, is_empty
from .packed import Packed

# The overhead of one more chunk of tokens, in additions of scores.
CHUNK_COST = 100_000


def viterbi(chain: Chain) -> tuple[Tensor, Tensor]:
    """Find the best tag sequence of each doc.

    Ties are broken towards the lower tag index: first of the last tag, and so on backwards.

    Returns tags (B, T) int64, 0 where the mask is False, and their scores (B,).
    """
    chain = Chain(*(tensor.detach() for tensor in chain))
    if chain.emissions.device.type == "cpu" and chain.mask.any():
        return _viterbi_packed(chain)
    return _viterbi_padded(chain)


def trellis(chain: Chain) -> tuple[Tensor, Tensor]:
    """Score the best path to each tag at each token, with its back-pointer.

    Ties are broken as in `viterbi`. The back-pointers from the best last tag, end score included,
    give the path of `viterbi`.

    Returns best (B, T, C), the score of the best path to the tag, -inf if no legal path leads to
    it; and backpointers (B, T, C) int64, the previous tag on that path, -1 if there is none. Values
    in the padding are undefined.
    """
    chain = Chain(*(tensor.detach() for tensor in chain))
    scores = torch.empty_like(chain.emissions)
    pointers = torch.empty_like(scores, dtype=torch.int64)
    for t, (best, backpointers) in enumerate(_steps(chain)):
        scores[:, t], pointers[:, t] = best, backpointers
    unreached = scores <= FORBIDDEN / 2
    pointers[:, :1] = -1
    return scores.masked_fill(unreached, -torch.inf), pointers.masked_fill(unreached, -1)


def nbest(chain: Chain, n: int) -> tuple[Tensor, Tensor]:
    """Find the n best tag sequences of each doc, best first, all distinct.

    Viterbi with n scores for each tag instead of one. Source: Seshadri and Sundberg (1994), "List
    Viterbi decoding algorithms with applications".

    Returns tags (B, n, T) int64, 0 where the mask is False, and scores (B, n), -inf if a doc
    has fewer legal sequences. An empty doc has one, with score 0.
    Raises ValueError for n below 1.
    """
    if n < 1:
        raise ValueError(f"n: expected 1 or more, got {n}.")
    E, A, start, end = (x.detach() for x in chain[:4])
    B, T, C = E.shape
    tags = torch.zeros((B, n, T), dtype=torch.int64, device=E.device)
    scores = E.new_full((B, n), -torch.inf)
    scores[:, 0] = 0.0
    if T == 0:
        return tags, scores
    # best: (B, C, n); one path to each first tag.
    best = E.new_full((B, C, n), -torch.inf)
    best[:, :, 0] = start + E[:, 0]
    backpointers = []  # T - 1 times (B, C, n): previous tag and rank, as tag * n + rank
    stay = torch.arange(C * n, device=E.device).view(C, n).expand(B, C, n)
    for t in range(1, T):
        moved = best.view(B, 1, C * n) + A.mT.repeat_interleave(n, dim=-1)  # (B, C, C * n)
        ranked, previous = moved.sort(dim=2, descending=True, stable=True)
        real = chain.mask[:, t, None, None]
        best = torch.where(real, ranked[:, :, :n] + E[:, t, :, None], best)
        backpointers.append(torch.where(real, previous[:, :, :n], stay))
    final = (best + end.unsqueeze(-1)).view(B, C * n)
    ranked, state = final.sort(dim=1, descending=True, stable=True)
    legal = ranked[:, :n] > FORBIDDEN / 2
    empty = is_empty(chain.mask)[:, None]
    scores = torch.where(empty, scores, ranked[:, :n].masked_fill(~legal, -torch.inf))
    state = state[:, :n]  # (B, n)
    tags[:, :, -1] = state // n
    for t in range(T - 1, 0, -1):
        state = backpointers[t - 1].reshape(B, C * n).gather(1, state)
        tags[:, :, t - 1] = state // n
    return tags.masked_fill(~chain.mask[:, None, :], 0), scores


def _viterbi_packed(chain: Chain) -> tuple[Tensor, Tensor]:
    """Viterbi without back-pointers; it recomputes them along the best path.

    On a CPU, function calls cost more than the additions for a token. So there are few calls, all
    in place, on docs sorted by length, as the innermost axis. torch adds faster, numpy takes maxima
    faster.
    """
    packed = Packed(chain.mask)
    counts = packed.counts
    # (T, C, D); they become the scores of the best path to each tag.
    scores = packed.sort(chain.emissions).transpose(1, 2, 0).copy()
    A, start, end = (packed.own(x, dim) for x, dim in zip(chain[1:4], (2, 1, 1)))
    C = A.shape[-1]
    scores[0] += start.reshape(-1, C).T
    # (C, C, 1), or (C, C, D) if each doc has its own.
    leave = torch.from_numpy(A.reshape(-1, C, C).transpose(1, 2, 0).copy())
    for begin, stop in _chunks(counts, C * C):
        n = counts[begin]
        moved = leave.new_empty(C, C, n)
        moved_numpy, best = moved.numpy(), np.empty_like(scores[0, :, :n])
        before = torch.from_numpy(scores)[begin - 1 : stop - 1, :, None, :n].unbind(0)  # (C, 1, n)
        move = leave[:, :, :n]
        for left, here in zip(before, scores[begin:stop, :, :n]):
            torch.add(left, move, out=moved)
            here += np.maximum.reduce(moved_numpy, axis=0, out=best)

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


def _viterbi_padded(chain: Chain) -> tuple[Tensor, Tensor]:
    """Viterbi with back-pointers, on any device."""
    B, T, _ = chain.emissions.shape
    tags = torch.zeros((B, T), dtype=torch.int64, device=chain.emissions.device)
    if T == 0:
        return tags, chain.emissions.new_zeros(B)
    steps = list(_steps(chain))
    last = steps[-1][0] + chain.end
    tag = last.argmax(dim=1)
    tags[:, -1] = tag
    for t in range(T - 1, 0, -1):
        tag = steps[t][1].gather(1, tag.unsqueeze(1)).squeeze(1)
        tags[:, t - 1] = tag
    score = last.amax(dim=1).masked_fill(is_empty(chain.mask), 0.0)
    return tags.masked_fill(~chain.mask, 0), score


def _steps(chain: Chain) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield for each token the score of the best path to each tag, and its back-pointer: (B, C).

    At the first token, and after the end of its doc, a tag points to itself and keeps its score.
    """
    B, T, C = chain.emissions.shape
    if T == 0:
        return
    best = chain.start + chain.emissions[:, 0]
    stay = torch.arange(C, device=best.device).expand(B, C)
    yield best, stay
    for t in range(1, T):
        moved = best.unsqueeze(2) + chain.transitions  # (B, C, C)
        # Not max(dim=1): it starts all of torch's threads even for the smallest tensor.
        step, previous = moved.amax(dim=1), moved.argmax(dim=1)
        real = chain.mask[:, t, None]
        best = torch.where(real, step + chain.emissions[:, t], best)
        yield best, torch.where(real, previous, stay)
