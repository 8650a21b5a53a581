"""The entropy of tag sequences matches the enumeration."""

import numpy as np
import pytest
from hypothesis import given

from enumeration import SCORES, SMALL_SCORES, Case, cases
from spacy_crf_ner.crf import Chain, forward_backward


def entropy(chain: Chain) -> np.ndarray:
    return forward_backward(chain).entropy()


def enumerated(case: Case, b: int) -> float:
    p = case.legal_paths(b)[1].softmax(0)
    return float(-(p * p.clamp(min=1e-300).log()).sum())


@given(cases(SMALL_SCORES))
def test_entropy_matches_enumeration(case: Case) -> None:
    found = entropy(case.chain)
    for b, T in enumerate(case.lengths):
        if len(case.legal_paths(b)[1]):
            assert found[b] == pytest.approx(enumerated(case, b), abs=1e-9), T


@given(cases(SCORES, forbid=False))
def test_entropy_with_large_scores_matches_enumeration(case: Case) -> None:
    for b, H in enumerate(entropy(case.chain)):
        assert pytest.approx(enumerated(case, b), abs=1e-6) == H


def test_entropy_is_exact_where_sums_underflow() -> None:
    """Two paths, whose tags at the second token are far below the best ones at each side."""
    E = np.array([[0.0, -800.0], [0.0, 0.0], [0.0, -800.0]])
    A, zero = np.array([[-1600.0, -1600.0], [-800.0, 0.0]]), np.zeros(2)
    chain = Chain(E, np.array([3]), A, zero, zero)
    case = Case(chain, *(np.ones(shape, dtype=bool) for shape in ((2, 2), 2, 2, (3, 2))))
    assert entropy(chain)[0] == pytest.approx(enumerated(case, 0), abs=1e-9)
    # The second doc with these transitions, and the first one with others of its own.
    kinds = (np.stack([np.zeros_like(x), x]) for x in chain[2:])
    both = entropy(Chain(np.concatenate([np.zeros((3, 2)), E]), np.array([3, 3]), *kinds))
    assert both == pytest.approx([3 * np.log(2), enumerated(case, 0)], abs=1e-9)


def test_entropy_of_zero_potentials_equals_log_path_count() -> None:
    lengths, zero = np.array([7, 0, 1, 3]), np.zeros(5)
    chain = Chain(np.zeros((11, 5)), lengths, np.zeros((5, 5)), zero, zero)
    assert entropy(chain) == pytest.approx(lengths * np.log(5))
