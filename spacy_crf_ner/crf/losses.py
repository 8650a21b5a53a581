"""The losses of training, with their gradients in closed form.

Each loss is a signed sum of log partitions, and the gradient of a log partition is the expected
counts of tags and transitions. So each gradient is the same signed sum of expected counts.

gold tags        logZ - logZ of the paths that agree with them, or - score(gold) if that is one path
negative span    logZ - log sum_r logZ_r, over disjoint sets r of the paths without the span
teacher p        logZ - <expected counts under p, potentials> - H(p) = KL(p || q)

Axes: B docs, N tokens of the batch, one doc after the other, C tags, S negative spans, R disjoint
sets of tag sequences, W tokens of a window.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .chain import Bools, Chain, Ints, clamp, ranges, sum_by
from .forward_backward import ForwardBackward, forward_backward

Floats = NDArray[np.float64]


class NegativeSpan(NamedTuple):
    """A span that is known not to be an entity.

    Attributes:
        doc: Its doc, 0 to B - 1.
        start: The first token of its window, in the doc.
        allowed: The tag sequences of the doc without this entity, as R disjoint sets, which differ
            only in the window: (R, W, C).
    """

    doc: int
    start: int
    allowed: Bools


def nll_with_gradient(
    chain: Chain, gold: Ints, negatives: Sequence[NegativeSpan] = (), ambiguous: Bools | None = None
) -> tuple[Floats, Chain]:
    """Compute the negative log likelihood of the gold tags, in nats, and its gradient.

    Args:
        chain: Potentials of B docs; illegal transitions are forbidden if they have no probability.
        gold: Tags of all tokens, negative where the annotation is missing: the loss sums over all
            tags there. (N,)
        negatives: Each adds -log(1 - P), where P is the probability of the span.
        ambiguous: The tags that the gold tag "O", 0, may stand for besides itself: the loss sums
            over them. (N, C), None for none.

    Returns:
        The loss of each doc, (B,), 0 without annotation; and the gradient of their sum for the
        chain, in the type of its scores.
    """
    annotated, agreeing = _gold_paths(chain, gold, ambiguous)
    weights = annotated.astype(np.float64)
    passes = forward_backward(chain)
    losses, gradient = passes.log_z, passes.expected_counts(weights)
    if agreeing is None:
        losses = losses - path_score(chain, gold)
        subtract_path(gradient, gold, weights)
    else:
        agree = forward_backward(agreeing)
        losses = losses - agree.log_z
        gradient = gradient.map(np.subtract, agree.expected_counts(weights))
    losses = np.where(annotated, np.maximum(losses, 0.0), 0.0)  # below 0 by rounding
    if negatives:
        more, d_more = _negative_spans(passes, negatives)
        losses, gradient = losses + more, gradient.map(np.add, d_more)
    return losses, gradient.astype_of(chain)


def negative_log_likelihood(chain: Chain, gold: Ints, ambiguous: Bools | None = None) -> Floats:
    """Compute the negative log likelihood of the gold tags, in nats.

    Args:
        chain: Potentials of B docs; illegal transitions are forbidden.
        gold: Tags of all tokens, negative where the annotation is missing: (N,).
        ambiguous: The tags that the gold tag "O", 0, may stand for besides itself: (N, C), None for
            none.

    Returns:
        The loss of each doc: (B,), 0 without annotation.
    """
    annotated, agreeing = _gold_paths(chain, gold, ambiguous)
    agree = path_score(chain, gold) if agreeing is None else forward_backward(agreeing).log_z
    losses = forward_backward(chain).log_z - agree
    return np.where(annotated, np.maximum(losses, 0.0), 0.0)  # below 0 by rounding


def nll_slope(chain: Chain, gold: Ints, ambiguous: Bools | None = None) -> float:
    """Differentiate the summed `negative_log_likelihood` by x, for scores times 1 + x."""
    _, gradient = nll_with_gradient(chain, gold, ambiguous=ambiguous)
    return _inner_product(gradient, chain)


def _gold_paths(chain: Chain, gold: Ints, ambiguous: Bools | None) -> tuple[Bools, Chain | None]:
    """Find the docs with annotation, (B,), and restrict a chain to the tags that agree with it.

    The chain is None if only the gold tags agree.
    """
    annotated = sum_by(chain.doc_of, gold >= 0, len(chain.lengths)) > 0
    missing = gold < 0
    if ambiguous is None and not missing.any():
        return annotated, None
    agree = (gold[:, None] == np.arange(chain.emissions.shape[1])) | missing[:, None]
    if ambiguous is not None:
        agree |= ambiguous & (gold == 0)[:, None]
    return annotated, chain._replace(emissions=clamp(chain.emissions, agree))


def path_score(chain: Chain, tags: Ints) -> Floats:
    """Score one tag sequence of each doc.

    Args:
        chain: Potentials of B docs.
        tags: Tags of all tokens: (N,).

    Returns:
        The scores: (B,), 0 for an empty doc.
    """
    B = len(chain.lengths)
    scores = (sum_by(doc, x[at], B) for x, (doc, at) in zip(chain.scores, _path(chain, tags)))
    return np.asarray(sum(scores))


def subtract_path(counts: Chain, tags: Ints, weights: Floats) -> None:
    """Subtract the counts of one tag sequence (N,) of each doc, times weights (B,), in place.

    They are the gradient of its score.
    """
    for x, (doc, at) in zip(counts.scores, _path(counts, tags)):
        np.subtract.at(x, at, weights[doc])


def _inner_product(counts: Chain, chain: Chain) -> float:
    """Sum the products of counts and scores."""
    return sum(float((p * x).sum()) for p, x in zip(counts.scores, chain.scores))


def _path(chain: Chain, tags: Ints) -> list[tuple[Ints, tuple[Ints, ...]]]:
    """Find the scores that a tag sequence has: for each array their docs, and their indices."""
    doc = chain.doc_of
    follow = np.flatnonzero(doc[1:] == doc[:-1])  # tokens that another one of their doc follows
    has_tokens = chain.lengths > 0
    first = chain.begins[has_tokens]
    last = first + chain.lengths[has_tokens] - 1
    kinds = (
        (follow, (tags[follow], tags[follow + 1])),
        (first, (tags[first],)),
        (last, (tags[last],)),
    )
    own = [((doc[rows], *at) if chain.per_doc else at) for rows, at in kinds]
    docs = doc, doc[follow], doc[first], doc[last]
    return [*zip(docs, ((np.arange(len(tags)), tags), *own))]


def _negative_spans(
    passes: ForwardBackward, negatives: Sequence[NegativeSpan]
) -> tuple[Floats, Chain]:
    """Sum -log(1 - P) over the negative spans of each doc: (B,), and its gradient.

    If P is close to 1, a float cannot hold 1 - P. So log(1 - P) is computed from the tag sequences
    without the span: logsumexp_r(logZ_r) - logZ. The sets r differ only in the window of the span:
    logZ_r runs from alpha at its first token to beta at its last.
    """
    chain, doc = passes.chain, np.array([span.doc for span in negatives])
    alpha, beta = passes.log_messages()
    widths = np.array([span.allowed.shape[1] for span in negatives])
    first = chain.begins[doc] + np.array([span.start for span in negatives])
    last, begins = first + widths - 1, widths.cumsum() - widths
    ends, tokens = begins + widths - 1, ranges(first, widths)
    E = chain.emissions[tokens].astype(np.float64)
    E[begins] = alpha[first]
    E[ends] += beta[last]
    zeros = np.zeros((len(widths), E.shape[1])[not chain.per_doc :])
    A = chain.transitions[doc] if chain.per_doc else chain.transitions
    windows = Chain(E, widths, A, zeros, zeros)
    span_of = np.repeat(np.arange(len(widths)), [len(span.allowed) for span in negatives])
    allowed = np.concatenate([span.allowed.reshape(-1, E.shape[1]) for span in negatives])
    parts = windows.select(span_of)
    parts = parts._replace(emissions=clamp(parts.emissions, allowed))
    whole, of_parts = forward_backward(windows), forward_backward(parts)
    # logsumexp over the sets of each span, around the largest of them.
    largest = np.full(len(widths), -np.inf)
    np.maximum.at(largest, span_of, of_parts.log_z)
    shares = np.exp(of_parts.log_z - largest[span_of])
    total = sum_by(span_of, shares, len(widths))
    losses = sum_by(doc, whole.log_z - largest - np.log(total), len(chain.lengths))

    d_whole, d_parts = whole.expected_counts(), of_parts.expected_counts(shares / total[span_of])
    d_windows = d_whole.emissions
    np.subtract.at(d_windows, ranges(begins[span_of], widths[span_of]), d_parts.emissions)
    d_alpha, d_beta, d_inner = (np.zeros(chain.emissions.shape) for _ in range(3))
    np.add.at(d_alpha, first, d_windows[begins])
    np.add.at(d_beta, last, d_windows[ends])
    d_windows[begins] = 0.0  # alpha has the emission of the first token
    np.add.at(d_inner, tokens, d_windows)
    gradient = passes.message_gradient(d_alpha, d_beta)
    gradient = gradient._replace(emissions=gradient.emissions + d_inner)
    if chain.per_doc:
        np.add.at(gradient.transitions, doc, d_whole.transitions)
        np.subtract.at(gradient.transitions, doc[span_of], d_parts.transitions)
    else:
        gradient.transitions[:] += d_whole.transitions - d_parts.transitions
    return losses, gradient


class ExpectedCounts(NamedTuple):
    """What a distribution over tag sequences says of the potentials of another one.

    Attributes:
        counts: The expected counts of tags and transitions, as a chain.
        entropy: Of the tag sequences, in nats, summed over docs. For a mixture, it is the mean of
            the entropies of its parts, not the entropy of the mixture.
    """

    counts: Chain
    entropy: float


def expected_counts(chain: Chain) -> ExpectedCounts:
    """Compute the expected counts of tags and transitions, and the entropy, of a batch."""
    passes = forward_backward(chain)
    return ExpectedCounts(passes.expected_counts(), float(passes.entropy().sum()))


def mixture(parts: Sequence[ExpectedCounts]) -> ExpectedCounts:
    """Average distributions over the tag sequences of the same docs, with equal weights."""
    first, *others = (part.counts for part in parts)
    counts = first.map(lambda *scores: sum(scores) / len(parts), *others)
    return ExpectedCounts(counts, float(np.mean([part.entropy for part in parts])))


def divergence(chain: Chain, teacher: ExpectedCounts) -> tuple[float, Chain]:
    """Compute the Kullback-Leibler divergence KL(teacher || chain), in nats, and its gradient.

    -sum_y p(y) log q(y) = logZ_q - sum of (expected counts under p * potentials of q), so the
    teacher's expected counts are enough, also for a mixture. For a mixture this is the mean
    divergence from its parts, which has the same gradient as the divergence from the mixture.

    Args:
        chain: Potentials of B docs, in float64; illegal transitions are forbidden.
        teacher: Expected counts of the same docs and tags.

    Returns:
        The divergence, summed over docs, and its gradient for the chain.

    Source: Hinton, Vinyals and Dean (2015), arXiv:1503.02531, for a softmax.
    """
    passes, counts = forward_backward(chain), teacher.counts
    if counts.per_doc and not chain.per_doc:
        summed = (x.sum(0) for x in counts.transition_scores)
        counts = Chain(counts.emissions, counts.lengths, *summed)
    loss = float(passes.log_z.sum()) - _inner_product(counts, chain) - teacher.entropy
    return loss, passes.expected_counts().map(np.subtract, counts)
