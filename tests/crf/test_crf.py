"""CRF arithmetic: the recursions match the enumeration of all paths."""

import math

import numpy as np
import pytest
import torch
import torchcrf
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from enumeration import SMALL_SCORES, TIES, Case, best_path, cases, tolerance
from spacy_crf_ner import crf
from spacy_crf_ner.crf import (
    FORBIDDEN,
    Chain,
    constrain,
    forward_backward,
    log_likelihood,
    log_messages,
    log_partition,
    path_score,
)
from spacy_crf_ner.crf.log_space import LogForwardBackward
from spacy_crf_ner.crf.packed import Packed
from spacy_crf_ner.crf.scaled import CHUNK, ScaledForwardBackward
from spacy_crf_ner.tags import TagScheme

# The functions of prediction return arrays; the oracles here are of tensors.


def viterbi(chain: Chain) -> tuple[Tensor, ...]:
    return tuple(map(torch.from_numpy, crf.viterbi(chain)))


def nbest(chain: Chain, n: int) -> tuple[Tensor, ...]:
    return tuple(map(torch.from_numpy, crf.nbest(chain, n)))


def marginals(chain: Chain) -> Tensor:
    return torch.from_numpy(crf.marginals(chain))


def log_segment_marginals(chain: Chain, docs: Tensor, starts: Tensor, tags: Tensor) -> Tensor:
    return torch.from_numpy(crf.log_segment_marginals(chain, docs, starts, tags))


# Against the enumeration of all paths


@given(cases())
def test_log_partition_sums_over_the_legal_paths(case: Case) -> None:
    logZ = log_partition(case.chain)
    assert logZ.shape == (len(case.lengths),)
    for b in range(len(logZ)):
        _, scores = case.legal_paths(b)
        if len(scores):
            expected = torch.logsumexp(scores, 0).item()
            assert logZ[b].item() == pytest.approx(expected, rel=1e-6, abs=tolerance(case.free))
        else:
            assert logZ[b] <= FORBIDDEN / 2


@given(cases(), st.data())
def test_path_score_sums_the_potentials_of_its_path(case: Case, data: st.DataObject) -> None:
    B, T, C = case.free.emissions.shape
    # What stands in the padding does not matter, not even where it is no tag.
    tags = torch.full((B, T), data.draw(st.sampled_from([-1, 0, 10**6])))
    for b, length in enumerate(case.lengths):
        tag = st.integers(0, C - 1)
        drawn = data.draw(st.lists(tag, min_size=length, max_size=length))
        tags[b, :length] = torch.tensor(drawn, dtype=torch.int64)
    score = path_score(case.chain, tags)
    logZ = log_partition(case.chain)
    for b, length in enumerate(case.lengths):
        paths, scores = case.legal_paths(b)
        (match,) = torch.where((paths == tags[b, :length]).all(1))
        if len(match):
            expected = scores[match].item()
            assert score[b].item() == pytest.approx(expected, rel=1e-6, abs=tolerance(case.free))
        else:
            assert score[b] <= FORBIDDEN / 2
        # No path weighs more than all of them.
        assert score[b] <= logZ[b] + tolerance(case.free) + 1e-6 * logZ[b].abs()


@given(cases(), st.integers(0, 2**32))
def test_log_likelihood_matches_enumeration(case: Case, seed: int) -> None:
    B, T, C = case.free.emissions.shape
    tags = torch.randint(0, C, (B, T), generator=torch.Generator().manual_seed(seed))
    log_p = log_likelihood(case.chain, tags)
    assert (log_p <= 0.0).all()
    for b, length in enumerate(case.lengths):
        paths, scores = case.legal_paths(b)
        (match,) = torch.where((paths == tags[b, :length]).all(1))
        if len(match):
            expected = torch.log_softmax(scores, 0)[match].item()
            assert log_p[b].item() == pytest.approx(expected, rel=1e-6, abs=1e-6)
        elif len(scores):
            assert log_p[b] <= FORBIDDEN / 2


@given(cases())
def test_viterbi_finds_a_best_legal_path(case: Case) -> None:
    tags, score = viterbi(case.chain)
    for b, length in enumerate(case.lengths):
        paths, scores = case.legal_paths(b)
        if not len(scores):
            assert score[b] <= FORBIDDEN / 2
            continue
        best = scores.max().item()
        (match,) = torch.where((paths == tags[b, :length]).all(1))
        for found in (score[b].item(), scores[match].item()):
            assert found == pytest.approx(best, abs=tolerance(case.free))


@given(cases(TIES))
def test_viterbi_ties_choose_lowest_tag(case: Case) -> None:
    """The last tag is the lowest that ends a best path, and each one before it likewise."""
    tags, score = viterbi(case.chain)
    assert tags.dtype == torch.int64
    assert not tags[~case.free.mask].any()
    for b, length in enumerate(case.lengths):
        paths, scores = case.legal_paths(b)
        if len(scores):
            assert tags[b, :length].tolist() == best_path(paths, scores)
            assert score[b] == scores.max()


@given(cases(SMALL_SCORES))
def test_log_partition_gradients_match_enumeration(case: Case) -> None:
    potentials = [scores.clone().requires_grad_() for scores in case.free[:4]]
    case = case._replace(free=Chain(*potentials, case.free.mask))
    legal = [b for b in range(len(case.lengths)) if len(case.legal_paths(b)[1])]
    logZ = log_partition(case.chain)[legal].sum()
    brute = sum((torch.logsumexp(case.legal_paths(b)[1], 0) for b in legal), torch.zeros(()))
    if not any(case.lengths[b] for b in legal):
        return  # nothing depends on anything
    d_logZ = torch.autograd.grad(logZ, potentials, materialize_grads=True)
    d_brute = torch.autograd.grad(brute, potentials, materialize_grads=True)
    assert_close(d_logZ, d_brute, atol=1e-4, rtol=1e-4)
    # What flows into the emissions of a token are the marginals of its tags: they sum to 1.
    real = case.free.mask[legal]
    assert_close(d_logZ[0][legal].sum(2), real.float(), atol=1e-4, rtol=0)


@given(cases(), st.data())
def test_scores_and_gradients_are_finite(case: Case, data: st.DataObject) -> None:
    potentials = [scores.clone().requires_grad_() for scores in case.free[:4]]
    case = case._replace(free=Chain(*potentials, case.free.mask))
    tags, best = viterbi(case.chain)
    results = [log_partition(case.chain), path_score(case.chain, tags), best]
    total = torch.stack(results).sum() + sum(scores.sum() for scores in potentials)
    gradients = torch.autograd.grad(total, potentials)
    for tensor in [*results, *gradients]:
        assert torch.isfinite(tensor).all()


# Against torchcrf


def random_batch(seed: int) -> tuple[torchcrf.CRF, Tensor, Tensor, Tensor]:
    """Return a CRF, emissions (B, T, C), tags (B, T) and the mask (B, T); no doc is empty."""
    torch.manual_seed(seed)
    B, T, C = 1 + seed % 5, 1 + seed % 7, 2 + seed % 4
    lengths = torch.randint(1, T + 1, (B,))
    lengths[0] = T
    oracle = torchcrf.CRF(C, batch_first=True)
    for parameter in oracle.parameters():
        torch.nn.init.normal_(parameter)
    emissions = (3 * torch.randn(B, T, C)).requires_grad_()
    mask = torch.arange(T)[None, :] < lengths[:, None]
    return oracle, emissions, torch.randint(0, C, (B, T)), mask


def chain_of(oracle: torchcrf.CRF, emissions: Tensor, mask: Tensor) -> Chain:
    scores = (oracle.transitions, oracle.start_transitions, oracle.end_transitions)
    return Chain(emissions, *scores, mask)


@pytest.mark.parametrize("seed", range(20))
def test_loss_and_gradients_agree_with_torchcrf(seed: int) -> None:
    oracle, emissions, tags, mask = random_batch(seed)
    chain = chain_of(oracle, emissions, mask)
    expected = -oracle(emissions, tags, mask, reduction="none")
    # Of single tokens no transition is in the graph: its gradient is a zero made up here.
    expected_gradients = torch.autograd.grad(expected.sum(), chain[:4], materialize_grads=True)
    for losses in (log_partition(chain) - path_score(chain, tags), -log_likelihood(chain, tags)):
        assert_close(losses, expected, atol=1e-4, rtol=1e-5)
        gradients = torch.autograd.grad(losses.sum(), chain[:4], materialize_grads=True)
        assert_close(gradients, expected_gradients, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("seed", range(20))
def test_viterbi_agrees_with_torchcrf(seed: int) -> None:
    oracle, emissions, _, mask = random_batch(seed)
    with torch.no_grad():
        tags, _ = viterbi(chain_of(oracle, emissions, mask))
        expected = oracle.decode(emissions, mask)
    assert [row[real].tolist() for row, real in zip(tags, mask)] == expected


def large_batch() -> tuple[torchcrf.CRF, Chain, Tensor]:
    """Return a CRF, a chain and tags: 160 docs of all lengths up to 60, of 17 tags."""
    torch.manual_seed(0)
    B, T, C = 160, 60, 17
    oracle = torchcrf.CRF(C, batch_first=True).double()
    lengths = torch.randint(1, T + 1, (B,))
    lengths[0] = T
    mask = torch.arange(T)[None, :] < lengths[:, None]
    emissions = (3 * torch.randn(B, T, C, dtype=torch.float64)).requires_grad_()
    return oracle, chain_of(oracle, emissions, mask), torch.randint(0, C, (B, T))


def test_a_large_batch_agrees_with_torchcrf() -> None:
    """With more tokens than are counted at once, in more segments than one."""
    oracle, chain, tags = large_batch()
    assert chain.mask.sum() - len(chain.mask) > CHUNK
    losses = -log_likelihood(chain, tags)
    expected = -oracle(chain.emissions, tags, chain.mask, reduction="none")
    assert_close(losses, expected, rtol=1e-10, atol=1e-8)
    weights = torch.linspace(-1, 2, len(losses), dtype=torch.float64)
    gradients, expected_gradients = (
        torch.autograd.grad(total @ weights, chain[:4]) for total in (losses, expected)
    )
    assert_close(gradients, expected_gradients, rtol=1e-8, atol=1e-10)
    best, _ = viterbi(chain)
    found = [row[real].tolist() for row, real in zip(best, chain.mask)]
    assert found == oracle.decode(chain.emissions, chain.mask)


# Properties


@given(cases(), st.integers(0, 2**32))
def test_viterbi_score_is_not_below_random_path_scores(case: Case, seed: int) -> None:
    B, T, C = case.free.emissions.shape
    best, score = viterbi(case.chain)
    within = tolerance(case.free) + 1e-6 * score.abs()
    assert ((path_score(case.chain, best) - score).abs() <= within).all()
    paths = torch.randint(0, C, (1000 * B, T), generator=torch.Generator().manual_seed(seed))
    thousandfold = case.chain._replace(
        emissions=case.chain.emissions.repeat(1000, 1, 1), mask=case.chain.mask.repeat(1000, 1)
    )
    others = path_score(thousandfold, paths).view(1000, B)
    assert (others <= score + within).all()


@pytest.mark.parametrize("T, C", [(1, 1), (1, 4), (7, 3), (20, 9)])
def test_log_partition_of_zero_potentials_equals_log_path_count(T: int, C: int) -> None:
    zero = Chain(
        torch.zeros(1, T, C),
        torch.zeros(C, C),
        torch.zeros(C),
        torch.zeros(C),
        torch.ones(1, T, dtype=torch.bool),
    )
    # log C^T = T log C
    assert log_partition(zero).item() == pytest.approx(T * math.log(C), rel=1e-5)


@given(cases(SMALL_SCORES, forbid=False), st.floats(-100, 100), st.data())
def test_log_partition_with_constant_added_to_token_shifts_by_constant(
    case: Case, constant: float, data: st.DataObject
) -> None:
    tokens = case.free.mask.nonzero().tolist()
    if not tokens:
        return
    b, t = data.draw(st.sampled_from(tokens))
    emissions = case.free.emissions.clone()
    emissions[b, t] += constant
    moved = torch.zeros(len(case.lengths))
    moved[b] = constant
    shifted = case.free._replace(emissions=emissions)
    assert_close(log_partition(shifted), log_partition(case.free) + moved, atol=1e-3, rtol=0)


def results_of(chain: Chain) -> list[list[float]]:
    """Return for each doc: logZ, best score, score of the best path, best path."""
    tags, best = viterbi(chain)
    rows = zip(log_partition(chain), best, path_score(chain, tags), tags, chain.mask)
    return [
        [logZ.item(), score.item(), again.item(), *path[real].tolist()]
        for logZ, score, again, path, real in rows
    ]


@given(cases(TIES))
def test_single_doc_results_match_batch(case: Case) -> None:
    chain = case.chain
    for b, (length, together) in enumerate(zip(case.lengths, results_of(chain))):
        (alone,) = results_of(
            chain._replace(
                emissions=chain.emissions[b : b + 1, :length],
                mask=chain.mask[b : b + 1, :length],
            )
        )
        assert alone == pytest.approx(together, rel=1e-6, abs=1e-5)


@given(cases(TIES), st.integers(1, 4), st.floats(-1e4, 1e4, width=32))
def test_extra_padding_keeps_results(case: Case, more: int, filling: float) -> None:
    padding = (0, 0, 0, more)
    padded = case.chain._replace(
        emissions=torch.nn.functional.pad(case.chain.emissions, padding, value=filling),
        mask=torch.nn.functional.pad(case.chain.mask, (0, more), value=False),
    )
    for before, after in zip(results_of(case.chain), results_of(padded)):
        assert after == pytest.approx(before, rel=1e-6, abs=1e-5)


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
    chain = Chain(*map(torch.from_numpy, (E[None], A, start, end, np.ones((1, T), dtype=bool))))
    tags, score = viterbi(chain)
    logZ = float(np.logaddexp.reduce(alpha + end))
    assert log_partition(chain).item() == pytest.approx(logZ, rel=1e-4)
    assert score.item() == pytest.approx(float((best + end).max()), rel=1e-4)
    assert path_score(chain, tags).item() == pytest.approx(score.item(), rel=1e-4)
    exact = float((best + end).max()) - logZ
    assert log_likelihood(chain, tags).item() == pytest.approx(exact, rel=1e-4)


# Posteriors


@given(cases())
def test_marginals_match_enumeration(case: Case) -> None:
    posterior = marginals(case.chain)
    assert not posterior[~case.free.mask].any()
    for b, length in enumerate(case.lengths):
        paths, scores = case.legal_paths(b)
        if not len(scores):
            assert torch.isfinite(posterior[b]).all()
            continue
        weights = torch.softmax(scores, 0)
        one_hot = torch.nn.functional.one_hot(paths, posterior.shape[2])  # (P, T, C)
        expected = (weights[:, None, None] * one_hot).sum(0)
        # float32 sums of scores of 1e4 may err by some 1e-3, and posteriors with them.
        assert_close(posterior[b, :length].double(), expected, atol=1e-5, rtol=1e-4)


@given(cases(), st.data())
def test_log_segment_marginals_match_enumeration(case: Case, data: st.DataObject) -> None:
    real = [b for b, T in enumerate(case.lengths) if T and len(case.legal_paths(b)[1])]
    if not real:
        return
    C = case.free.emissions.shape[2]
    segments = []
    for _ in range(4):
        b = data.draw(st.sampled_from(real))
        start = data.draw(st.integers(0, case.lengths[b] - 1))
        length = data.draw(st.integers(1, case.lengths[b] - start))
        tag = st.integers(0, C - 1)
        segments.append((b, start, data.draw(st.lists(tag, min_size=length, max_size=length))))
    tags = torch.full((4, 5), -1)
    for row, (_, _, wanted) in zip(tags, segments):
        row[: len(wanted)] = torch.tensor(wanted)
    docs, starts = torch.tensor([segment[:2] for segment in segments]).T
    log_p = log_segment_marginals(case.chain, docs, starts, tags)
    for found, (b, start, wanted) in zip(log_p.double().exp(), segments):
        paths, scores = case.legal_paths(b)
        match = (paths[:, start : start + len(wanted)] == torch.tensor(wanted)).all(1)
        expected = torch.softmax(scores, 0)[match].sum().item()
        assert found.item() == pytest.approx(expected, abs=1e-5, rel=1e-4)


@given(cases(TIES), st.integers(1, 5))
def test_nbest_finds_the_best_distinct_legal_paths(case: Case, n: int) -> None:
    tags, scores = nbest(case.chain, n)
    assert not tags.masked_fill(case.free.mask[:, None, :], 0).any()
    for b, length in enumerate(case.lengths):
        paths, expected = case.legal_paths(b)
        k = min(n, len(expected))
        assert scores[b, :k].tolist() == expected.sort(descending=True).values[:k].tolist()
        assert scores[b, k:].tolist() == [-math.inf] * (n - k)
        found = [tuple(path) for path in tags[b, :k, :length].tolist()]
        assert len(set(found)) == k
        by_path = dict(zip(map(tuple, paths.tolist()), expected.tolist()))
        assert [by_path[path] for path in found] == scores[b, :k].tolist()


@pytest.mark.parametrize("scale", [1.0, 1e4])  # in float64, and in logs
def test_arrays_and_tensors_have_the_same_results(scale: float) -> None:
    chain = biluo_batch(scale)
    segments = [np.array([2, 3]), np.array([0, 0]), np.array([[0, 1], [2, -1]])]
    tensors = [torch.from_numpy(each) for each in segments]
    pairs = [
        (crf.marginals(chain), crf.marginals(chain.arrays())),
        (
            crf.log_segment_marginals(chain, *tensors),
            crf.log_segment_marginals(chain.arrays(), *segments),
        ),
        *zip(crf.viterbi(chain), crf.viterbi(chain.arrays())),
        *zip(crf.trellis(chain), crf.trellis(chain.arrays())),
        *zip(crf.nbest(chain, 3), crf.nbest(chain.arrays(), 3)),
    ]
    for of_tensors, of_arrays in pairs:
        assert type(of_tensors) is np.ndarray
        np.testing.assert_array_equal(of_tensors, of_arrays)


def test_nbest_with_n_zero_raises() -> None:
    oracle, emissions, _, mask = random_batch(3)
    with pytest.raises(ValueError, match="expected 1 or more, got 0"):
        nbest(chain_of(oracle, emissions, mask), 0)


# Packing


@given(st.lists(st.integers(0, 5), min_size=1, max_size=5).filter(any), st.integers(0, 2))
def test_packed_matches_torch_pack_padded_sequence(lengths: list[int], padding: int) -> None:
    T = max(lengths) + padding
    mask = torch.arange(T)[None, :] < torch.tensor(lengths)[:, None]
    emissions = torch.rand(len(lengths), T, 2)
    packed = Packed(mask.numpy())
    real = torch.tensor(lengths) > 0
    theirs = torch.nn.utils.rnn.pack_padded_sequence(
        emissions[real], torch.tensor(lengths)[real], batch_first=True, enforce_sorted=False
    )
    assert packed.counts == theirs.batch_sizes.tolist()
    # Docs of one length may come in either order: what is compared are their sets of scores.
    rows = packed.pack(emissions.numpy())
    assert sorted(rows.tolist()) == sorted(theirs.data.tolist())
    assert np.array_equal(packed.pad(rows)[mask.numpy()], emissions[mask])
    for b, length in enumerate(lengths):
        where = packed.row(np.full(length, b), np.arange(length))
        assert np.array_equal(rows[where], emissions[b, :length])
        assert (packed.doc_of[where] == b).all()
        assert [w for w in where if w in packed.last] == list(where[-1:])
        before = [packed.before[w - len(packed.docs)] for w in where[1:]]
        assert before == list(where[:-1])


# The two ways to sum


def biluo_batch(scale: float, B: int = 6, T: int = 12, labels: int = 2) -> Chain:
    """A batch with the constraints of BILUO; the first doc is empty, the second of one token."""
    scheme = TagScheme("biluo", tuple(f"L{i}" for i in range(labels)))
    C = len(scheme.tags)
    torch.manual_seed(B)
    lengths = torch.randint(1, T + 1, (B,))
    lengths[:2] = torch.tensor([0, 1])
    mask = torch.arange(T)[None, :] < lengths[:, None]
    E, A, start, end = (scale * torch.randn(*size) for size in [(B, T, C), (C, C), (C,), (C,)])
    return constrain(Chain(E, A, start, end, mask), *map(torch.from_numpy, scheme.constraints))


@pytest.mark.parametrize("scale", [0.1, 3.0, 10.0])
def test_scaled_forward_backward_matches_log_space(scale: float) -> None:
    chain = biluo_batch(scale)
    chain = Chain(*(scores.double() for scores in chain[:4]), chain.mask).arrays()
    scaled, logs = ScaledForwardBackward(chain), LogForwardBackward(chain)
    np.testing.assert_allclose(scaled.log_z, logs.log_z, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(scaled.marginals(), logs.marginals(), rtol=1e-8, atol=1e-12)
    weights = np.linspace(-1, 2, len(chain.mask))
    for found, expected in zip(scaled.gradients(weights), logs.gradients(weights), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("spread", [0.0, 500.0])
def test_log_messages_pass_gradcheck(spread: float) -> None:
    """Checked for all messages of docs of 0, 1 and up to 4 tokens, in scaled and in log space."""
    chain = biluo_batch(1.0, B=4, T=4, labels=1)
    torch.manual_seed(1)
    scores = [torch.randn(each.shape).double() for each in chain[:4]]
    scores[0][:, :, 0] -= spread
    assert isinstance(
        forward_backward(Chain(*scores, chain.mask)),
        LogForwardBackward if spread else ScaledForwardBackward,
    )
    weights = chain.mask[None, :, :, None] * torch.randn(2, *chain.emissions.shape).double()
    weights -= weights.mean(3, keepdim=True)  # so that constants do not count

    def weighted(*scores: Tensor) -> Tensor:
        messages = log_messages(Chain(*scores, chain.mask))
        return sum((w * m).sum((1, 2)) for w, m in zip(weights, messages))

    assert torch.autograd.gradcheck(weighted, [each.requires_grad_() for each in scores])


def test_forward_backward_with_large_scores_uses_log_space() -> None:
    assert isinstance(forward_backward(biluo_batch(1e4)), LogForwardBackward)


def two_lanes(differences: list[float]) -> Chain:
    """Two tags that never change into each other; the second is better by these, token by token."""
    gap = torch.tensor(differences, dtype=torch.float64)
    emissions = torch.stack([torch.zeros_like(gap), gap], dim=1)[None]
    lanes = torch.eye(2, dtype=torch.bool)
    zero, mask = emissions.new_zeros(2), torch.ones(1, len(gap), dtype=torch.bool)
    free = Chain(emissions, emissions.new_zeros(2, 2), zero, zero, mask)
    return constrain(free, lanes, mask[0, :2], mask[0, :2])


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
    assert log_partition(chain).item() == pytest.approx(expected, rel=1e-12)
    share = math.exp(second - expected)
    assert_close(marginals(chain)[0, :, 1], torch.full((len(differences),), share).double())


def test_log_partition_gradient_of_float32_input_is_exact() -> None:
    """Half of all paths' weight is where alpha is e^-150, and beta e^150."""
    free = two_lanes([-150.0, 150.0])
    emissions = free.emissions.float().requires_grad_()
    scores = (x.float() for x in free[1:4])
    log_partition(Chain(emissions, *scores, free.mask)).sum().backward()
    assert_close(emissions.grad, torch.full((1, 2, 2), 0.5))


def test_log_partition_with_unreachable_tags_does_not_overflow() -> None:
    """The second tag is unreachable, and its score grows with each token."""
    chain = two_lanes([150.0] * 20)
    first = torch.tensor([True, False])
    chain = constrain(chain, torch.eye(2, dtype=torch.bool), first, torch.tensor([True, True]))
    assert log_partition(chain).item() == 0.0
    assert marginals(chain)[0, :, 0].tolist() == [1.0] * 20


@pytest.mark.parametrize("scale", [1.0, 40.0])
def test_gradients_with_unequal_upstream_gradients_pass_gradcheck(scale: float) -> None:
    """Summed in scaled and in log space."""
    chain = biluo_batch(1.0, B=4, T=4, labels=1)
    weights = torch.tensor([0.5, -2.0, 3.0, 0.25], dtype=torch.float64)
    allowed = [scores > FORBIDDEN / 2 for scores in chain[:4]]
    spread = torch.tensor([0.0, 0.0, 0.0, 0.0, scale * 10 - 10], dtype=torch.float64)

    def moved(*scores: Tensor) -> Chain:
        kept = [torch.where(ok, x, FORBIDDEN) for ok, x in zip(allowed, scores)]
        kept[0] = kept[0] - spread
        result = Chain(*kept, chain.mask)
        assert isinstance(
            forward_backward(result), LogForwardBackward if scale > 1 else ScaledForwardBackward
        )
        return result

    scores = [torch.where(ok, x, 0.0).double().requires_grad_() for ok, x in zip(allowed, chain)]
    assert torch.autograd.gradcheck(lambda *s: log_partition(moved(*s)) * weights, scores)
    best, _ = viterbi(moved(*scores))
    assert torch.autograd.gradcheck(lambda *s: log_likelihood(moved(*s), best) * weights, scores)


def test_viterbi_matches_example_computed_by_hand() -> None:
    """Three words, two labels: alpha holds the best score of a path to each label."""
    # A[l1, l1] = -0.2, A[l1, l2] = 0.2, A[l2, l1] = 0.1, A[l2, l2] = 0.1
    transitions = torch.tensor([[-0.2, 0.2], [0.1, 0.1]], dtype=torch.float64)
    emissions = torch.tensor([[[0.1, 0.3], [0.1, 0.0], [0.3, 0.2]]], dtype=torch.float64)
    zero, mask = torch.zeros(2, dtype=torch.float64), torch.ones(1, 3, dtype=torch.bool)
    alpha0 = emissions[0, 0]  # (0.1, 0.3)
    # To l1: from l1 0.1 - 0.2 = -0.1, from l2 0.3 + 0.1 = 0.4; + 0.1 = 0.5, from l2
    # To l2: from l1 0.1 + 0.2 = 0.3, from l2 0.3 + 0.1 = 0.4; + 0.0 = 0.4, from l2
    alpha1 = (alpha0[:, None] + transitions).amax(0) + emissions[0, 1]
    assert alpha1.tolist() == pytest.approx([0.5, 0.4])
    assert (alpha0[:, None] + transitions).argmax(0).tolist() == [1, 1]
    # To l1: from l1 0.5 - 0.2 = 0.3, from l2 0.4 + 0.1 = 0.5; + 0.3 = 0.8, from l2
    # To l2: from l1 0.5 + 0.2 = 0.7, from l2 0.4 + 0.1 = 0.5; + 0.2 = 0.9, from l1
    alpha2 = (alpha1[:, None] + transitions).amax(0) + emissions[0, 2]
    assert alpha2.tolist() == pytest.approx([0.8, 0.9])
    assert (alpha1[:, None] + transitions).argmax(0).tolist() == [1, 0]
    # Best is 0.9 at l2, which came from l1, which came from l2.
    tags, score = viterbi(Chain(emissions, transitions, zero, zero, mask))
    assert (tags.tolist(), score.item()) == ([[1, 0, 1]], pytest.approx(0.9))


@pytest.mark.parametrize("scale", [1.0, 300.0])  # in float64, and in logs
@pytest.mark.parametrize("lengths", [(3, 0, 7, 3, 1), (1, 1), (0, 0)])
def test_per_doc_transitions_match_single_docs(scale: float, lengths: tuple[int, ...]) -> None:
    """Each doc of a batch, with its own transitions, has the results of that doc alone."""
    C, T, B = 4, max(lengths), len(lengths)
    torch.manual_seed(int(scale))
    scores = [torch.randn(shape) * scale for shape in ((B, T, C), (B, C, C), (B, C), (B, C))]
    mask = torch.arange(T) < torch.tensor(lengths)[:, None]
    weights, tags = torch.rand(B), torch.randint(0, C, (B, T))
    docs = torch.tensor([b for b in range(B) if lengths[b]], dtype=torch.int64)

    def chains() -> tuple[list[Tensor], Chain, list[Chain]]:
        leaves = [x.clone().requires_grad_() for x in scores]
        E, A, start, end = leaves
        alone = [
            Chain(E[b : b + 1, :n], A[b], start[b], end[b], mask[b : b + 1, :n])
            for b, n in enumerate(lengths)
        ]
        return leaves, Chain(E, A, start, end, mask), alone

    def results(chain: Chain, rows: Tensor) -> list[Tensor]:
        T = chain.mask.shape[1]
        alpha, beta = log_messages(chain)
        posterior = ((alpha + beta) * chain.mask.unsqueeze(2)).log_softmax(2)
        shapes = log_partition(chain), log_likelihood(chain, tags[rows, :T])
        messages = (posterior.exp()[:, :, 0] * chain.mask).sum(1)
        return [*shapes, path_score(chain, tags[rows, :T]), messages]

    leaves, batch, _ = chains()
    found = results(batch, torch.arange(B))
    sum((weights * each).sum() for each in found).backward()  # type: ignore[union-attr]
    gradients = [leaf.grad for leaf in leaves]
    leaves, batch, alone = chains()
    expected = [results(chain, torch.tensor([b])) for b, chain in enumerate(alone)]
    for each, of_docs in zip(found, zip(*expected)):
        assert_close(each, torch.cat(of_docs), atol=1e-4 * scale, rtol=1e-5)
    total = [w * each.sum() for w, of_doc in zip(weights, expected) for each in of_doc]
    sum(total).backward()  # type: ignore[union-attr]
    for gradient, leaf in zip(gradients, leaves):
        assert_close(gradient, leaf.grad, atol=1e-4, rtol=1e-4)

    batch = Chain(*(x.detach() for x in batch))
    paths, ranked, p = viterbi(batch)[0], nbest(batch, 3), marginals(batch)
    # The tags 1 and 2 of the first two tokens, or 1 of the only one.
    pairs = [(1, 2 if lengths[b] > 1 else -1) for b in docs.tolist()]
    begins = torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2)
    segments = log_segment_marginals(batch, docs, torch.zeros_like(docs), begins)
    for at, b in enumerate(docs.tolist()):
        one, n = Chain(*(x.detach() for x in alone[b])), lengths[b]
        assert paths[b, :n].tolist() == viterbi(one)[0][0].tolist()
        assert ranked[0][b, :, :n].tolist() == nbest(one, 3)[0][0].tolist()
        assert_close(ranked[1][b], nbest(one, 3)[1][0])
        assert_close(p[b, :n], marginals(one)[0])
        first = log_segment_marginals(one, torch.tensor([0]), torch.tensor([0]), begins[[at]])
        assert_close(segments[at], first[0], atol=1e-4, rtol=1e-4)
        assert results_of(batch.select(torch.tensor([b, b]))) == 2 * results_of(one)
    assert (ScaledForwardBackward if scale == 1.0 and any(lengths) else LogForwardBackward) is type(
        forward_backward(batch)
    )


@pytest.mark.parametrize("own", [False, True])
def test_log_likelihood_of_certain_path_is_not_above_zero(own: bool) -> None:
    """One tag: its only path is certain, but large scores are rounded."""
    for emission in torch.linspace(-1e-6, -1e-8, 50):
        E = torch.stack([torch.zeros(1), emission.view(1), -torch.ones(1)]).unsqueeze(0)
        A, start, end = torch.full((1, 1), 4096.0), torch.zeros(1), torch.ones(1)
        if own:
            A, start, end = A[None], start[None], end[None]
        chain = Chain(E, A, start, end, torch.ones(1, 3, dtype=torch.bool))
        tags = torch.zeros(1, 3, dtype=torch.int64)
        in_logs = chain._replace(transitions=chain.transitions * 1e6)
        for each in (chain, in_logs):
            assert -1e-3 < log_likelihood(each, tags).item() <= 0.0


def test_viterbi_nbest_and_trellis_of_long_float32_doc_match_float64() -> None:
    """Sums of float32 lose the differences between paths."""
    rng, scheme, T = np.random.default_rng(0), TagScheme("biluo", ("A", "B", "C", "D")), 5000
    C = len(scheme.tags)
    E, A = rng.normal(0, 3, (1, T, C)).astype("f"), rng.normal(0, 1, (C, C)).astype("f")
    zeros, mask = np.zeros(C, "f"), np.ones((1, T), dtype=bool)
    chain = constrain(Chain(E, A, zeros, zeros, mask), *scheme.constraints)
    exact = Chain(*(scores.astype(np.float64) for scores in chain[:4]), mask)
    expected, score = crf.nbest(exact, 1)
    tags, found = crf.viterbi(chain)
    np.testing.assert_array_equal(tags, expected[:, 0])
    np.testing.assert_allclose(found, score[:, 0], rtol=1e-12)
    best, _ = crf.trellis(chain)
    np.testing.assert_allclose((best[0, -1] + exact.end).max(), score[0, 0], rtol=1e-12)
    ranked, scores = crf.nbest(chain, 2)
    np.testing.assert_array_equal(ranked[:, :1], expected)
    np.testing.assert_allclose(scores[:, :1], score, rtol=1e-12)
