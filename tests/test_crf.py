"""CRF arithmetic: what the recursions find is what enumerating all paths finds."""

import math
from typing import List, Tuple

import numpy as np
import pytest
import torch
import torchcrf
from helpers import SMALL_SCORES, TIES, Case, best_path, cases, properties, tolerance
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from spacy_crf_ner.crf import FORBIDDEN, Chain, log_partition, path_score, viterbi

# Against the enumeration of all paths


@properties
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


@properties
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


@properties
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


@properties
@given(cases(TIES))
def test_viterbi_breaks_ties_towards_the_lower_tag(case: Case) -> None:
    """The last tag is the lowest that ends a best path, and each one before it likewise."""
    tags, score = viterbi(case.chain)
    assert tags.dtype == torch.int64
    assert not tags[~case.free.mask].any()
    for b, length in enumerate(case.lengths):
        paths, scores = case.legal_paths(b)
        if len(scores):
            assert tags[b, :length].tolist() == best_path(paths, scores)
            assert score[b] == scores.max()


@properties
@given(cases(SMALL_SCORES))
def test_gradients_are_those_of_the_enumeration(case: Case) -> None:
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


@properties
@given(cases(), st.data())
def test_nothing_is_ever_nan(case: Case, data: st.DataObject) -> None:
    potentials = [scores.clone().requires_grad_() for scores in case.free[:4]]
    case = case._replace(free=Chain(*potentials, case.free.mask))
    tags, best = viterbi(case.chain)
    results = [log_partition(case.chain), path_score(case.chain, tags), best]
    total = torch.stack(results).sum() + sum(scores.sum() for scores in potentials)
    gradients = torch.autograd.grad(total, potentials)
    for tensor in [*results, *gradients]:
        assert torch.isfinite(tensor).all()


# Against torchcrf


def random_batch(seed: int) -> Tuple[torchcrf.CRF, Tensor, Tensor, Tensor]:
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
    losses = log_partition(chain) - path_score(chain, tags)
    expected = -oracle(emissions, tags, mask, reduction="none")
    assert_close(losses, expected, atol=1e-4, rtol=1e-5)
    # Of single tokens no transition is in the graph: its gradient is a zero made up here.
    gradients, expected_gradients = (
        torch.autograd.grad(total.sum(), chain[:4], materialize_grads=True)
        for total in (losses, expected)
    )
    assert_close(gradients, expected_gradients, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("seed", range(20))
def test_viterbi_agrees_with_torchcrf(seed: int) -> None:
    oracle, emissions, _, mask = random_batch(seed)
    with torch.no_grad():
        tags, _ = viterbi(chain_of(oracle, emissions, mask))
        expected = oracle.decode(emissions, mask)
    assert [row[real].tolist() for row, real in zip(tags, mask)] == expected


# Properties


@pytest.mark.parametrize("T, C", [(1, 1), (1, 4), (7, 3), (20, 9)])
def test_zero_potentials_count_the_paths(T: int, C: int) -> None:
    zero = Chain(
        torch.zeros(1, T, C),
        torch.zeros(C, C),
        torch.zeros(C),
        torch.zeros(C),
        torch.ones(1, T, dtype=torch.bool),
    )
    # log C^T = T log C
    assert log_partition(zero).item() == pytest.approx(T * math.log(C), rel=1e-5)


@properties
@given(cases(SMALL_SCORES, forbid=False), st.floats(-100, 100), st.data())
def test_a_constant_on_a_token_moves_all_its_paths(
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


def results_of(chain: Chain) -> List[List[float]]:
    """Everything of each doc: logZ, best score, its path's score, its path."""
    tags, best = viterbi(chain)
    rows = zip(log_partition(chain), best, path_score(chain, tags), tags, chain.mask)
    return [
        [logZ.item(), score.item(), again.item(), *path[real].tolist()]
        for logZ, score, again, path, real in rows
    ]


@properties
@given(cases(TIES))
def test_a_doc_alone_is_as_it_is_in_a_batch(case: Case) -> None:
    chain = case.chain
    for b, (length, together) in enumerate(zip(case.lengths, results_of(chain))):
        (alone,) = results_of(
            chain._replace(
                emissions=chain.emissions[b : b + 1, :length],
                mask=chain.mask[b : b + 1, :length],
            )
        )
        assert alone == pytest.approx(together, rel=1e-6, abs=1e-5)


@properties
@given(cases(TIES), st.integers(1, 4), st.floats(-1e4, 1e4, width=32))
def test_padding_changes_nothing(case: Case, more: int, filling: float) -> None:
    padding = (0, 0, 0, more)
    padded = case.chain._replace(
        emissions=torch.nn.functional.pad(case.chain.emissions, padding, value=filling),
        mask=torch.nn.functional.pad(case.chain.mask, (0, more), value=False),
    )
    for before, after in zip(results_of(case.chain), results_of(padded)):
        assert after == pytest.approx(before, rel=1e-6, abs=1e-5)


def test_a_long_doc_keeps_its_digits() -> None:
    T, C = 5000, 9
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
