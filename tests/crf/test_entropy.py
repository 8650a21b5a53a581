"""The entropy of tag sequences matches the enumeration."""

import numpy as np
import pytest
import torch
from hypothesis import given

from enumeration import SCORES, SMALL_SCORES, Case, cases
from spacy_crf_ner import crf
from spacy_crf_ner.crf import Chain


def enumerated(case: Case, b: int) -> float:
    p = case.legal_paths(b)[1].softmax(0)
    return float(-(p * p.clamp(min=1e-300).log()).sum())


@given(cases(SMALL_SCORES))
def test_entropy_matches_enumeration(case: Case) -> None:
    found = crf.entropy(case.chain)
    for b, T in enumerate(case.lengths):
        if len(case.legal_paths(b)[1]):
            assert found[b] == pytest.approx(enumerated(case, b), abs=1e-5), T


@given(cases(SCORES, forbid=False))
def test_entropy_with_large_scores_matches_enumeration(case: Case) -> None:
    exact = Chain(*(each.double() for each in case.chain[:4]), case.chain.mask)
    for b, H in enumerate(crf.entropy(exact)):
        assert pytest.approx(enumerated(case, b), abs=1e-6) == H


def test_entropy_is_exact_where_sums_underflow() -> None:
    """Two paths, whose tags at the second token are far below the best ones at each side."""
    emissions = torch.tensor([[[0.0, -800.0], [0.0, 0.0], [0.0, -800.0]]], dtype=torch.float64)
    A = torch.tensor([[-1600.0, -1600.0], [-800.0, 0.0]], dtype=torch.float64)
    zero = torch.zeros(2, dtype=torch.float64)
    chain = Chain(emissions, A, zero, zero, torch.ones(1, 3, dtype=torch.bool))
    case = Case(chain, *(torch.ones(s, dtype=torch.bool) for s in ((2, 2), 2, 2, (1, 3, 2))))
    assert crf.entropy(chain)[0] == pytest.approx(enumerated(case, 0), abs=1e-9)
    # The second doc with these transitions, and the first one with others of its own.
    scores = (torch.stack([torch.zeros_like(x), x]) for x in (emissions[0], *chain[1:4]))
    both = crf.entropy(Chain(*scores, torch.ones(2, 3, dtype=torch.bool)))
    assert both == pytest.approx([3 * np.log(2), enumerated(case, 0)], abs=1e-9)


def test_entropy_of_zero_potentials_equals_log_path_count() -> None:
    zero = torch.zeros(5)
    mask = torch.arange(7)[None] < torch.tensor([7, 0, 1, 3])[:, None]
    chain = Chain(torch.zeros(4, 7, 5), torch.zeros(5, 5), zero, zero, mask)
    assert crf.entropy(chain) == pytest.approx(np.array([7, 0, 1, 3]) * np.log(5))


def test_entropy_with_transitions_per_doc_matches_single_docs() -> None:
    torch.manual_seed(0)
    scores = [torch.randn(shape).double() for shape in ((3, 6, 4), (3, 4, 4), (3, 4), (3, 4))]
    mask = torch.arange(6)[None] < torch.tensor([6, 2, 4])[:, None]
    together = crf.entropy(Chain(*scores, mask))
    for b, H in enumerate(together):
        E, *own = (each[b] for each in scores)
        assert crf.entropy(Chain(E[None], *own, mask[b : b + 1]))[0] == pytest.approx(H)
