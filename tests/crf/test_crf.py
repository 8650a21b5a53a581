"""CRF arithmetic: the recursions match the enumeration of all paths."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
import torchcrf
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from torch import Tensor

from enumeration import SCORES, SMALL_SCORES, TIES, Case, best_path, cases, scored_paths, tolerance
from spacy_crf_ner import crf
from spacy_crf_ner.crf import (
    FORBIDDEN,
    Chain,
    constrain,
    forward_backward,
    nbest,
    negative_log_likelihood,
    nll_with_gradient,
    path_score,
    trellis,
    viterbi,
)
from spacy_crf_ner.crf.forward_backward import CHUNK, ForwardBackward, Scaled
from spacy_crf_ner.tags import TagScheme


def marginals(chain: Chain) -> np.ndarray:
    return forward_backward(chain).marginals()


def by_doc(values: np.ndarray, chain: Chain) -> list[np.ndarray]:
    return np.split(values, np.cumsum(chain.lengths)[:-1]) if len(chain.lengths) else []


def one(chain: Chain, b: int) -> Chain:
    """The chain of one doc, by slicing."""
    end = int(chain.lengths[: b + 1].sum())
    begin = end - int(chain.lengths[b])
    kinds = [x[b] if chain.start.ndim == 2 else x for x in chain[2:]]
    return Chain(chain.emissions[begin:end], chain.lengths[b : b + 1], *kinds)


# Against the enumeration of all paths


@given(cases())
def test_log_partition_sums_over_the_legal_paths(case: Case) -> None:
    log_z = forward_backward(case.chain).log_z
    assert log_z.shape == (len(case.lengths),)
    for b in range(len(log_z)):
        _, scores = case.legal_paths(b)
        if len(scores):
            expected = torch.logsumexp(scores, 0).item()
            assert log_z[b] == pytest.approx(expected, rel=1e-9, abs=1e-9)
        else:
            assert log_z[b] <= FORBIDDEN / 2


@given(cases(), st.data())
def test_path_score_sums_the_potentials_of_its_path(case: Case, data: st.DataObject) -> None:
    C = case.free.emissions.shape[1]
    tags = np.array([data.draw(st.integers(0, C - 1)) for _ in case.free.emissions], dtype=np.int64)
    score, log_z = path_score(case.chain, tags), forward_backward(case.chain).log_z
    for b, path in enumerate(by_doc(tags, case.free)):
        paths, scores = case.legal_paths(b)
        (match,) = torch.where((paths == torch.from_numpy(path)).all(1))
        if len(match):
            assert score[b] == pytest.approx(scores[match].item(), rel=1e-9, abs=1e-9)
        else:
            assert score[b] <= FORBIDDEN / 2
        # No path weighs more than all of them.
        assert score[b] <= log_z[b] + 1e-9 * (1 + abs(log_z[b]))


@given(cases())
def test_viterbi_finds_a_best_legal_path(case: Case) -> None:
    for b, path in enumerate(by_doc(viterbi(case.chain), case.free)):
        paths, scores = case.legal_paths(b)
        if len(scores):
            (match,) = torch.where((paths == torch.from_numpy(path)).all(1))
            best = scores.max().item()
            assert scores[match].item() == pytest.approx(best, abs=tolerance(case.free))


@given(cases(TIES))
def test_viterbi_ties_choose_lowest_tag(case: Case) -> None:
    """The last tag is the lowest that ends a best path, and each one before it likewise."""
    tags = viterbi(case.chain)
    assert tags.dtype == np.int64
    for b, path in enumerate(by_doc(tags, case.free)):
        paths, scores = case.legal_paths(b)
        if len(scores):
            assert path.tolist() == best_path(paths, scores)


def enumerated_counts(
    case: Case, weights: np.ndarray, gold: np.ndarray | None = None
) -> tuple[Tensor, ...]:
    """Differentiate the enumerated log partitions of docs, of the legal paths that fit a gold."""
    leaves = [torch.from_numpy(x).double().requires_grad_() for x in case.free.scores]
    total = torch.zeros((), dtype=torch.float64)
    for b, rows in enumerate(case.rows):
        paths, scores = scored_paths(leaves[0][rows], *leaves[1:])
        legal = case.legal_paths(b)[0]
        if gold is not None:
            legal = legal[fits(legal, gold[rows])]
        legal = {tuple(path) for path in legal.tolist()}
        kept = [i for i, path in enumerate(paths.tolist()) if tuple(path) in legal]
        if kept and case.lengths[b]:
            total = total + weights[b] * torch.logsumexp(scores[kept], 0)
    if not total.requires_grad:
        return tuple(torch.zeros_like(leaf) for leaf in leaves)
    return torch.autograd.grad(total, leaves, materialize_grads=True, allow_unused=True)


def fits(paths: Tensor, gold: np.ndarray) -> Tensor:
    """Find the paths (P, T) with the gold tags (T,), negative where they are missing."""
    tags = torch.from_numpy(gold)
    return ((paths == tags) | (tags < 0)).all(1)


@pytest.mark.parametrize("missing", [0.0, 0.2, 0.4, 0.6, 0.8])
def test_loss_with_missing_tags_and_its_gradient_match_enumeration(missing: float) -> None:
    """-log p(gold) = log sum over legal paths - log sum over those of them that fit the gold."""

    @given(cases(SMALL_SCORES), st.integers(0, 2**32))
    def check(case: Case, seed: int) -> None:
        rng, gold = np.random.default_rng(seed), np.full(len(case.free.emissions), -1)
        expected = np.zeros(len(case.lengths))
        for b, rows in enumerate(case.rows):
            paths, scores = case.legal_paths(b)
            if len(paths):
                path = paths[rng.integers(len(paths))].numpy()
                gold[rows] = np.where(rng.random(len(path)) < missing, -1, path)
                of_gold = torch.logsumexp(scores[fits(paths, gold[rows])], 0)
                expected[b] = torch.logsumexp(scores, 0) - of_gold
        losses, gradient = nll_with_gradient(case.chain, gold)
        assert_allclose(losses, expected, atol=1e-9)
        assert_allclose(negative_log_likelihood(case.chain, gold), losses, atol=1e-9)
        weights = np.array([(gold[rows] >= 0).any() for rows in case.rows], dtype=np.float64)
        counts, of_gold = enumerated_counts(case, weights), enumerated_counts(case, weights, gold)
        for found, whole, part in zip(gradient.scores, counts, of_gold, strict=True):
            assert found.dtype == np.float32
            assert_allclose(found, whole - part, atol=1e-6)

    check()


@pytest.mark.parametrize("scores", [SMALL_SCORES, SCORES])
def test_expected_counts_match_gradients_of_the_enumeration(
    scores: st.SearchStrategy[float],
) -> None:
    @given(cases(scores), st.integers(0, 2**32))
    def check(case: Case, seed: int) -> None:
        weights = np.random.default_rng(seed).normal(size=len(case.lengths))
        legal = [len(case.legal_paths(b)[1]) > 0 for b in range(len(case.lengths))]
        weights *= legal
        found = forward_backward(case.chain).expected_counts(weights).scores
        for counts, expected in zip(found, enumerated_counts(case, weights), strict=True):
            assert_allclose(counts, expected, atol=1e-7, rtol=1e-7)

    check()


# Against torchcrf


def chain_of(oracle: torchcrf.CRF, emissions: Tensor, lengths: Tensor) -> Chain:
    kinds = oracle.transitions, oracle.start_transitions, oracle.end_transitions
    E, n, *scores = (x.detach().numpy() for x in (emissions, lengths, *kinds))
    return Chain(E, n, *scores)


def padded(chain: Chain, values: np.ndarray) -> tuple[Tensor, Tensor]:
    """(N, ...) -> (B, T, ...) as torchcrf takes it, and the mask (B, T)."""
    parts = [torch.from_numpy(part) for part in by_doc(values, chain)]
    mask = torch.arange(int(chain.lengths.max())) < torch.from_numpy(chain.lengths)[:, None]
    return torch.nn.utils.rnn.pad_sequence(parts, batch_first=True), mask


def torchcrf_loss(
    oracle: torchcrf.CRF, chain: Chain, tags: np.ndarray
) -> tuple[Tensor, list[Tensor]]:
    """Return the losses of the docs, and the gradient of their sum for the chain's scores."""
    E = torch.from_numpy(chain.emissions).requires_grad_()
    parts = E.split(chain.lengths.tolist())
    mask = padded(chain, tags)[1]
    batch = torch.nn.utils.rnn.pad_sequence(parts, batch_first=True)
    losses = -oracle(batch, padded(chain, tags)[0], mask, reduction="none")
    kinds = [E, oracle.transitions, oracle.start_transitions, oracle.end_transitions]
    # Of single tokens no transition is in the graph: its gradient is a zero made up here.
    return losses.detach(), torch.autograd.grad(losses.sum(), kinds, materialize_grads=True)


def test_a_large_batch_agrees_with_torchcrf() -> None:
    """With more tokens than are counted at once, of docs of all lengths up to 60, and 17 tags."""
    torch.manual_seed(0)
    lengths = torch.randint(1, 61, (160,))
    oracle = torchcrf.CRF(17, batch_first=True).double()
    N = int(lengths.sum())
    chain = chain_of(oracle, 3 * torch.randn(N, 17, dtype=torch.float64), lengths)
    tags = torch.randint(0, 17, (N,)).numpy()
    assert N - len(lengths) > CHUNK
    expected, expected_gradients = torchcrf_loss(oracle, chain, tags)
    losses, gradient = nll_with_gradient(chain, tags)
    assert_allclose(losses, expected, rtol=1e-10, atol=1e-8)
    for found, grad in zip(gradient.scores, expected_gradients, strict=True):
        assert_allclose(found, grad, rtol=1e-8, atol=1e-10)
    with torch.no_grad():
        best = oracle.decode(*padded(chain, chain.emissions))
    assert [path.tolist() for path in by_doc(viterbi(chain), chain)] == best


def results_of(chain: Chain) -> list[list[float]]:
    """Return for each doc: logZ, score of the best path, best path."""
    tags = viterbi(chain)
    rows = zip(forward_backward(chain).log_z, path_score(chain, tags), by_doc(tags, chain))
    return [[log_z, score, *path.tolist()] for log_z, score, path in rows]


@given(cases(TIES), st.data())
def test_select_gives_the_docs_in_this_order(case: Case, data: st.DataObject) -> None:
    B = len(case.lengths)
    docs = data.draw(st.lists(st.integers(0, B - 1), max_size=4)) if B else []
    chosen = case.chain.select(np.array(docs, dtype=np.int64))
    together = results_of(case.chain)
    assert results_of(chosen) == [pytest.approx(together[b], rel=1e-9, abs=1e-9) for b in docs]


@pytest.mark.parametrize("T", [300, 8000])
def test_long_doc_scores_match_float64_recursion(T: int) -> None:
    C = 9
    rng = np.random.default_rng(0)
    E, A, start, end = (rng.uniform(-5, 5, size).astype("f") for size in [(T, C), (C, C), C, C])
    # The forward and the Viterbi recursion in float64.
    alpha = best = start.astype("d") + E[0]
    for t in range(1, T):
        alpha = np.logaddexp.reduce(alpha[:, None] + A, axis=0) + E[t]
        best = (best[:, None] + A).max(axis=0) + E[t]
    chain = Chain(E, np.array([T]), A, start, end)
    tags = viterbi(chain)
    log_z, highest = float(np.logaddexp.reduce(alpha + end)), float((best + end).max())
    assert forward_backward(chain).log_z == pytest.approx(log_z, rel=1e-11)
    assert path_score(chain, tags) == pytest.approx(highest, rel=1e-11)
    assert negative_log_likelihood(chain, tags) == pytest.approx(log_z - highest, rel=1e-8)


# Posteriors


@given(cases())
def test_marginals_match_enumeration(case: Case) -> None:
    for b, posterior in enumerate(by_doc(marginals(case.chain), case.free)):
        paths, scores = case.legal_paths(b)
        if not len(scores):
            assert np.isfinite(posterior).all()
            continue
        weights = torch.softmax(scores, 0)
        one_hot = torch.nn.functional.one_hot(paths, posterior.shape[1])  # (P, T, C)
        expected = (weights[:, None, None] * one_hot).sum(0)
        assert_allclose(posterior, expected, atol=1e-9, rtol=1e-8)


@pytest.mark.parametrize("scores, atol", [(SMALL_SCORES, 1e-9), (SCORES, 1e-6)])
def test_entropy_matches_enumeration(scores: st.SearchStrategy[float], atol: float) -> None:
    @given(cases(scores))
    def check(case: Case) -> None:
        for b, found in enumerate(forward_backward(case.chain).entropy()):
            if len(case.legal_paths(b)[1]):
                assert found == pytest.approx(enumerated_entropy(case, b), abs=atol)

    check()


def enumerated_entropy(case: Case, b: int) -> float:
    p = case.legal_paths(b)[1].softmax(0)
    return float(-(p * p.clamp(min=1e-300).log()).sum())


def test_entropy_is_exact_where_sums_underflow() -> None:
    """Two paths, whose tags at the second token are far below the best ones at each side."""
    E = np.array([[0.0, -800.0], [0.0, 0.0], [0.0, -800.0]])
    A, zero = np.array([[-1600.0, -1600.0], [-800.0, 0.0]]), np.zeros(2)
    chain = Chain(E, np.array([3]), A, zero, zero)
    case = Case(chain, *(np.ones(shape, dtype=bool) for shape in ((2, 2), 2, 2, (3, 2))))
    expected = enumerated_entropy(case, 0)
    assert forward_backward(chain).entropy()[0] == pytest.approx(expected, abs=1e-9)
    # The second doc with these transitions, and the first one with others of its own.
    kinds = (np.stack([np.zeros_like(x), x]) for x in chain[2:])
    both = Chain(np.concatenate([np.zeros((3, 2)), E]), np.array([3, 3]), *kinds)
    assert forward_backward(both).entropy() == pytest.approx([3 * np.log(2), expected], abs=1e-9)


@given(cases(), st.data())
def test_log_segments_match_enumeration(case: Case, data: st.DataObject) -> None:
    real = [b for b, T in enumerate(case.lengths) if T and len(case.legal_paths(b)[1])]
    if not real:
        return
    C = case.free.emissions.shape[1]
    segments = []
    for _ in range(4):
        b = data.draw(st.sampled_from(real))
        start = data.draw(st.integers(0, case.lengths[b] - 1))
        length = data.draw(st.integers(1, case.lengths[b] - start))
        tag = st.integers(0, C - 1)
        segments.append((b, start, data.draw(st.lists(tag, min_size=length, max_size=length))))
    tags = np.full((4, 5), -1)
    for row, (_, _, wanted) in zip(tags, segments):
        row[: len(wanted)] = wanted
    starts = np.array([case.rows[b].start + start for b, start, _ in segments])
    log_p = forward_backward(case.chain).log_segments(starts, tags)
    for found, (b, start, wanted) in zip(np.exp(log_p), segments):
        paths, scores = case.legal_paths(b)
        match = (paths[:, start : start + len(wanted)] == torch.tensor(wanted)).all(1)
        expected = torch.softmax(scores, 0)[match].sum().item()
        assert found == pytest.approx(expected, abs=1e-9, rel=1e-8)


@given(cases(TIES), st.integers(1, 5))
def test_nbest_finds_the_best_distinct_legal_paths(case: Case, n: int) -> None:
    tags, scores = nbest(case.chain, n)
    for b, rows in enumerate(case.rows):
        paths, expected = case.legal_paths(b)
        k = min(n, len(expected))
        assert scores[b, :k].tolist() == expected.sort(descending=True).values[:k].tolist()
        assert scores[b, k:].tolist() == [-math.inf] * (n - k)
        found = [tuple(path) for path in tags[:k, rows].tolist()]
        assert len(set(found)) == k
        by_path = dict(zip(map(tuple, paths.tolist()), expected.tolist()))
        assert [by_path[path] for path in found] == scores[b, :k].tolist()


def test_nbest_with_n_zero_raises() -> None:
    with pytest.raises(ValueError, match="expected 1 or more, got 0"):
        nbest(biluo_batch(1.0), 0)


# The two ways to sum


def biluo_batch(scale: float, B: int = 6, T: int = 12, labels: int = 2, own: bool = False) -> Chain:
    """A batch with the constraints of BILUO; the first doc is empty, the second of one token."""
    scheme = TagScheme("biluo", tuple(f"L{i}" for i in range(labels)))
    C, rng = len(scheme.tags), np.random.default_rng(B)
    lengths = rng.integers(1, T + 1, B)
    lengths[:2] = [0, 1]
    docs = (B,) if own else ()
    shapes = (int(lengths.sum()), C), (*docs, C, C), (*docs, C), (*docs, C)
    E, A, start, end = (scale * rng.normal(size=shape) for shape in shapes)
    return constrain(Chain(E, lengths, A, start, end), *scheme.constraints)


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("scale", [0.1, 3.0, 10.0])
def test_scaled_forward_backward_matches_log_space(scale: float, own: bool) -> None:
    chain = biluo_batch(scale, own=own)
    scaled, logs = Scaled(chain), ForwardBackward(chain)
    assert_allclose(scaled.log_z, logs.log_z, rtol=1e-9, atol=1e-9)
    assert_allclose(scaled.marginals(), logs.marginals(), rtol=1e-8, atol=1e-12)
    assert_allclose(scaled.entropy(), logs.entropy(), atol=1e-9)
    pairs_of_tags = np.indices(chain.transitions.shape[-2:]).reshape(2, -1).T
    followed = np.flatnonzero(chain.doc_of[:-1] == chain.doc_of[1:])
    segments = np.repeat(followed, len(pairs_of_tags)), np.tile(pairs_of_tags, (len(followed), 1))
    found, expected = (np.exp(each.log_segments(*segments)) for each in (scaled, logs))
    assert_allclose(found, expected, rtol=1e-8, atol=1e-12)
    weights = np.linspace(-1, 2, len(chain.lengths))
    pairs = zip(
        scaled.expected_counts(weights).scores, logs.expected_counts(weights).scores, strict=True
    )
    for found, expected in pairs:
        assert_allclose(found, expected, rtol=1e-8, atol=1e-12)


def two_lanes(differences: list[float]) -> Chain:
    """Two tags that never change into each other; the second is better by these, token by token."""
    gap = np.array(differences)
    emissions, zero = np.stack([np.zeros_like(gap), gap], axis=1), np.zeros(2)
    free = Chain(emissions, np.array([len(gap)]), np.zeros((2, 2)), zero, zero)
    return constrain(free, np.eye(2, dtype=bool), zero == 0, zero == 0)


@pytest.mark.parametrize(
    "differences",
    [
        # The second lane is better, but so far behind at both ends that no float64 holds it.
        [-190.0] * 6 + [190.0] * 13 + [-190.0] * 6,
        # The same, below what underflows: the rest of it is not exact.
        [-150.0] * 3 + [150.0] * 7 + [-150.0] * 3,
        # The first one falls behind everywhere.
        [190.0] * 9,
    ],
)
def test_log_partition_and_marginals_with_underflow_are_exact(differences: list[float]) -> None:
    chain = two_lanes(differences)
    # All paths are two: always the first tag, 0, or always the second.
    second = sum(differences)
    expected = np.logaddexp(0.0, second)
    assert forward_backward(chain).log_z == pytest.approx(expected, rel=1e-12)
    share = math.exp(second - expected)
    assert_allclose(marginals(chain)[:, 1], np.full(len(differences), share), rtol=1e-9)


def test_expected_counts_of_float32_input_are_exact() -> None:
    """Half of all paths' weight is where alpha is e^-150, and beta e^150."""
    chain = two_lanes([-150.0, 150.0]).map(lambda scores: scores.astype(np.float32))
    assert_allclose(forward_backward(chain).expected_counts().emissions, np.full((2, 2), 0.5))


def test_log_partition_with_unreachable_tags_does_not_overflow() -> None:
    """The second tag is unreachable, and its score grows with each token."""
    lanes = np.eye(2, dtype=bool)
    chain = constrain(two_lanes([150.0] * 20), lanes, lanes[0], lanes.any(0))
    assert forward_backward(chain).log_z.tolist() == [0.0]
    assert marginals(chain)[:, 0].tolist() == [1.0] * 20


def test_marginals_of_a_long_doc_with_large_scores_sum_to_one() -> None:
    """The log partition is some 1e8, so its last digits are lost."""
    rng, T = np.random.default_rng(0), 100_000
    E, A = rng.normal(0, 1000, (T, 3)), rng.normal(0, 1000, (3, 3))
    passes = forward_backward(Chain(E, np.array([T]), A, A[0], A[1]))
    counts = passes.expected_counts()
    assert_allclose(passes.marginals().sum(1), 1.0, rtol=1e-12)
    assert counts.transitions.sum() == pytest.approx(T - 1, rel=1e-12)


def test_viterbi_matches_example_computed_by_hand() -> None:
    """Three words, two labels: alpha holds the best score of a path to each label."""
    # A[l1, l1] = -0.2, A[l1, l2] = 0.2, A[l2, l1] = 0.1, A[l2, l2] = 0.1
    A = np.array([[-0.2, 0.2], [0.1, 0.1]])
    E = np.array([[0.1, 0.3], [0.1, 0.0], [0.3, 0.2]])
    # To l1: from l1 0.1 - 0.2 = -0.1, from l2 0.3 + 0.1 = 0.4; + 0.1 = 0.5, from l2
    # To l2: from l1 0.1 + 0.2 = 0.3, from l2 0.3 + 0.1 = 0.4; + 0.0 = 0.4, from l2
    # To l1: from l1 0.5 - 0.2 = 0.3, from l2 0.4 + 0.1 = 0.5; + 0.3 = 0.8, from l2
    # To l2: from l1 0.5 + 0.2 = 0.7, from l2 0.4 + 0.1 = 0.5; + 0.2 = 0.9, from l1
    chain = Chain(E, np.array([3]), A, np.zeros(2), np.zeros(2))
    best, backpointers = trellis(chain)
    assert_allclose(best, [[0.1, 0.3], [0.5, 0.4], [0.8, 0.9]])
    assert backpointers.tolist() == [[-1, -1], [1, 1], [1, 0]]
    # Best is 0.9 at l2, which came from l1, which came from l2.
    assert viterbi(chain).tolist() == [1, 0, 1]
    assert path_score(chain, np.array([1, 0, 1])) == pytest.approx(0.9)


@pytest.mark.parametrize("scale", [1.0, 300.0])  # in float64, and in logs
@pytest.mark.parametrize("lengths", [(3, 0, 7, 3, 1), (1, 1), (0, 0), (9,) * 12])
def test_per_doc_transitions_match_single_docs(scale: float, lengths: Sequence[int]) -> None:
    """Each doc of a batch, with its own transitions, has the results of that doc alone."""
    C, N, B, rng = 4, sum(lengths), len(lengths), np.random.default_rng(int(scale))
    shapes = (N, C), (B, C, C), (B, C), (B, C)
    E, A, start, end = (scale * rng.normal(size=shape) for shape in shapes)
    batch = Chain(E, np.array(lengths), A, start, end)
    weights, tags = rng.normal(size=B), rng.integers(0, C, N)
    passes, gradient = forward_backward(batch), nll_with_gradient(batch, tags)[1]
    counts, (ranked, scores) = passes.expected_counts(weights), nbest(batch, 3)
    of_trellis = trellis(batch)
    ends = np.cumsum(lengths)
    for b, n in enumerate(lengths):
        alone, rows = one(batch, b), slice(ends[b] - n, ends[b])
        single = forward_backward(alone)
        close = {"atol": 1e-8, "rtol": 1e-8}
        assert_allclose(passes.log_z[b], single.log_z[0], rtol=1e-10)
        assert_allclose(passes.entropy()[b], single.entropy()[0], **close)
        assert_allclose(path_score(batch, tags)[b], path_score(alone, tags[rows])[0], rtol=1e-12)
        found = single.expected_counts(weights[b : b + 1])
        assert_allclose(counts.emissions[rows], found.emissions, **close)
        of_gold = nll_with_gradient(alone, tags[rows])[1]
        assert_allclose(gradient.emissions[rows], of_gold.emissions, **close)
        for kind in (2, 3, 4):
            assert_allclose(counts[kind][b], found[kind], **close)
            assert_allclose(gradient[kind][b], of_gold[kind], **close)
        assert viterbi(batch)[rows].tolist() == viterbi(alone).tolist()
        assert ranked[:, rows].tolist() == nbest(alone, 3)[0].tolist()
        assert_allclose(scores[b], nbest(alone, 3)[1][0])
        for of_batch, of_doc in zip(of_trellis, trellis(alone)):
            assert_allclose(of_batch[rows], of_doc)
        if n:
            pair = np.array([[1, 2 if n > 1 else -1]])
            at = passes.log_segments(ends[b : b + 1] - n, pair)
            assert_allclose(at, single.log_segments(np.array([0]), pair), **close)
    assert type(passes) is (Scaled if scale == 1.0 and any(lengths) else ForwardBackward)


def test_negative_log_likelihood_of_certain_path_is_not_below_zero() -> None:
    """One tag: its only path is certain, but large scores are rounded."""
    for emission in np.linspace(-1e-6, -1e-8, 50, dtype=np.float32):
        E = np.array([[0.0], [emission], [-1.0]], dtype=np.float32)
        A, start, end = np.full((1, 1), 4096.0, "f"), np.zeros(1, "f"), np.ones(1, "f")
        chain = Chain(E, np.array([3]), A, start, end)
        for each in (chain, chain._replace(transitions=A * 1e6)):
            for losses in (
                negative_log_likelihood(each, np.zeros(3, dtype=np.int64)),
                nll_with_gradient(each, np.zeros(3, dtype=np.int64))[0],
            ):
                assert 0.0 <= losses[0] < 1e-3


def test_viterbi_nbest_and_trellis_of_long_float32_doc_match_float64() -> None:
    """Sums of float32 lose the differences between paths."""
    rng, scheme, T = np.random.default_rng(0), TagScheme("biluo", ("A", "B", "C", "D")), 5000
    C = len(scheme.tags)
    E, A = rng.normal(0, 3, (T, C)).astype("f"), rng.normal(0, 1, (C, C)).astype("f")
    zeros = np.zeros(C, "f")
    chain = constrain(Chain(E, np.array([T]), A, zeros, zeros), *scheme.constraints)
    expected, score = nbest(chain.to_float64(), 1)
    assert_array_equal(viterbi(chain), expected[0])
    best, _ = trellis(chain)
    assert_allclose((best[-1] + chain.end).max(), score[0, 0], rtol=1e-12)
    ranked, scores = nbest(chain, 2)
    assert_array_equal(ranked[:1], expected)
    assert_allclose(scores[:, :1], score, rtol=1e-12)


def test_viterbi_of_many_docs_of_different_lengths_matches_single_docs() -> None:
    """More docs than tags, and fewer: their scores are laid out otherwise."""
    rng = np.random.default_rng(0)
    lengths = np.concatenate([rng.integers(0, 12, 60), [40, 41]])
    E, A, start, end = (rng.normal(size=size) for size in [(lengths.sum(), 5), (5, 5), 5, 5])
    chain = Chain(E, lengths, A, start, end)
    for b, path in enumerate(by_doc(viterbi(chain), chain)):
        assert path.tolist() == viterbi(one(chain, b)).tolist()


def test_arrays_are_not_changed() -> None:
    chain = biluo_batch(1.0)
    before = [scores.copy() for scores in chain]
    tags = np.zeros(len(chain.emissions), dtype=np.int64)
    viterbi(chain), nbest(chain, 2), trellis(chain), nll_with_gradient(chain, tags)
    negative = crf.NegativeSpan(3, 0, np.ones((1, 1, chain.emissions.shape[1]), dtype=bool))
    nll_with_gradient(chain, tags, [negative])
    for scores, copied in zip(chain, before):
        assert_array_equal(scores, copied)


@pytest.mark.parametrize("scale", [1.0, 100.0])  # summed as probabilities, and as logs
@pytest.mark.parametrize("annotation", ["complete", "missing", "ambiguous"])
def test_nll_slope_matches_finite_difference(annotation: str, scale: float) -> None:
    chain, rng = biluo_batch(scale), np.random.default_rng(0)
    gold = viterbi(biluo_batch(scale, labels=2))
    ambiguous = None
    if annotation != "complete":
        gold = np.where(rng.random(len(gold)) < 0.3, -1, gold)
    if annotation == "ambiguous":
        ambiguous = rng.random(chain.emissions.shape) < 0.3

    def loss(x: float) -> float:
        return float(negative_log_likelihood(chain.divided_by(1 / (1 + x)), gold, ambiguous).sum())

    h = 1e-5
    slope = (loss(h) - loss(-h)) / (2 * h)
    found = crf.nll_slope(chain, gold, ambiguous)
    assert found == pytest.approx(slope, rel=1e-5, abs=1e-5 * scale)
