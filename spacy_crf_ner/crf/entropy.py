"""The entropy of the distribution over tag sequences.

A chain is Markov, so H(y_1..y_T) = H(y_1) + sum_t H(y_t | y_t-1), and with the pair marginals
p(i, j) = a(i) K(i, j) b(j) / D, where a = exp(alpha_t-1), K = exp(A) and b = exp(E_t + beta_t),

H(y_t-1, y_t) = log D - E[log a] - E[A] - E[log b]

Axes: B docs, T tokens, C tags, R pairs of tokens. Source: Hernando, Crespi and Cybenko (2005), IEEE
Transactions on Information Theory, for a hidden Markov model.
"""

import numpy as np
from numpy.typing import NDArray

from .chain import FORBIDDEN, Chain
from .forward_backward import forward_backward

Floats = NDArray[np.float64]

SMALLEST = 1e-200  # a sum over pairs of tags that is at least this large has lost nothing


def entropy(chain: Chain) -> Floats:
    """Compute the entropy of the distribution over the tag sequences of each doc.

    Returns (B,) in nats, 0 for an empty doc; undefined for a doc without a legal path.
    """
    chain = chain.arrays()
    messages = forward_backward(chain).log_messages()
    # Forbidden scores become -inf, so that they are not subtracted from each other.
    alpha, beta, E, A = (
        np.where(x < FORBIDDEN / 2, -np.inf, x)
        for x in (each.astype(np.float64) for each in (*messages, *chain[:2]))
    )
    mask = chain.mask
    p = _softmax(np.where(mask[..., None], alpha + beta, 0.0))
    here = np.where(mask, _of_distribution(p), 0.0)  # H(y_t), (B, T)
    if mask.shape[1] < 2:
        return np.asarray(here.sum(1))
    docs, second = np.nonzero(mask[:, 1:])  # (R,), the pairs of tokens
    left, right = p[docs, second], p[docs, second + 1]
    a, log_a = _scaled(alpha[docs, second])
    b, log_b = _scaled((E + beta)[docs, second + 1])
    K, log_K = _scaled(A.reshape(*A.shape[:-2], -1))
    K, log_K = K.reshape(A.shape), log_K.reshape(A.shape)
    weighted = K * np.where(K > 0, log_K, 0.0)
    if A.ndim == 3:  # the docs have transitions of their own
        moved, moved_A = (np.einsum("ri,rij->rj", a, each[docs]) for each in (K, weighted))
    else:
        moved, moved_A = a @ K, a @ weighted
    D = (moved * b).sum(1)
    with np.errstate(all="ignore"):  # such sums are computed again below
        pair = np.log(D) - (moved_A * b).sum(1) / D
        pair -= _mean(left, log_a) + _mean(right, log_b)
    lost = np.flatnonzero(~(D >= SMALLEST))
    own = log_K[docs[lost]] if A.ndim == 3 else log_K
    scores = log_a[lost, :, None] + own + log_b[lost, None, :]
    pair[lost] = _of_distribution(_softmax(scores.reshape(len(lost), A.shape[-1] ** 2)))
    conditional = np.maximum(pair - here[docs, second], 0.0)  # below 0 by rounding
    return here[:, 0] + np.bincount(docs, conditional, len(mask))


def _softmax(scores: Floats) -> Floats:
    p, _ = _scaled(scores)
    p /= p.sum(-1, keepdims=True).clip(min=SMALLEST)
    return p


def _scaled(scores: Floats) -> tuple[Floats, Floats]:
    """Subtract the highest score of each row; return exp of the result, and the result."""
    # In a row without a legal path, all scores stay -inf.
    scaled = scores - scores.max(-1, keepdims=True, initial=FORBIDDEN)
    return np.exp(scaled), scaled


def _mean(p: Floats, values: Floats) -> Floats:
    """Return the means of the rows of values; those with p = 0 do not count."""
    mean: Floats = (p * np.where(p > 0, values, 0.0)).sum(-1)
    return mean


def _of_distribution(p: Floats) -> Floats:
    with np.errstate(divide="ignore"):
        return -_mean(p, np.log(p))
