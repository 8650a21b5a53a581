"""Dropout as it is defined: binomial counts, scaled values, and the gradient of the mask."""

import pytest
import torch
from torch import Tensor

from spacy_crf_ner.ml.dropout import fast_dropout

N = 400_000


def drop(rate: float, shape: tuple[int, ...] = (N,), dtype: torch.dtype = torch.float32) -> Tensor:
    torch.manual_seed(0)
    return fast_dropout(torch.ones(shape, dtype=dtype), rate, True)


@pytest.mark.parametrize("rate", [2**-16, 0.001, 0.1, 0.5, 0.9, 1 - 2**-16])
def test_fast_dropout_drop_count_matches_rate(rate: float) -> None:
    dropped = (drop(rate) == 0).sum().item()
    deviation = (N * rate * (1 - rate)) ** 0.5
    assert abs(dropped - N * rate) < 4 * deviation + N * 2**-17  # the rate is rounded


@pytest.mark.parametrize("rate", [0.1, 0.5])
@pytest.mark.parametrize("apart", [1, 2, 3, 4])
def test_elements_are_dropped_independently(rate: float, apart: int) -> None:
    """Also those that share 64 random bits."""
    dropped = drop(rate).view(-1, 4) == 0
    both = dropped.view(-1)[:-apart] & dropped.view(-1)[apart:]
    expected = N * rate**2
    assert abs(both.sum().item() - expected) < 5 * expected**0.5
    for column in dropped.unbind(1):
        assert abs(column.sum().item() - N / 4 * rate) < 4 * (N / 4 * rate) ** 0.5


@pytest.mark.parametrize("shape", [(0,), (1,), (3, 7), (2, 0, 5), (5, 4, 3)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_kept_elements_and_their_gradients_are_scaled(
    shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    X = torch.randn(shape, dtype=dtype).abs().add(1).requires_grad_()
    Y = fast_dropout(X, 0.25, True)
    assert Y.shape == X.shape and Y.dtype is dtype
    kept = Y != 0
    expected = torch.where(kept, X * (1 / 0.75), 0)
    torch.testing.assert_close(Y, expected)
    Y.sum().backward()
    assert X.grad is not None
    torch.testing.assert_close(X.grad, kept.to(dtype) / 0.75)


def test_mask_does_not_depend_on_memory_layout() -> None:
    X = torch.arange(1.0, 13.0).view(3, 4).t()
    torch.manual_seed(1)
    transposed = fast_dropout(X, 0.5, True)
    torch.manual_seed(1)
    assert torch.equal(transposed, fast_dropout(X.contiguous(), 0.5, True))


def test_mask_is_repeated_only_with_same_seed() -> None:
    first = drop(0.5)
    second = fast_dropout(torch.ones(N), 0.5, True)
    assert torch.equal(first, drop(0.5)) and not torch.equal(first, second)


def test_fast_dropout_in_eval_or_at_rate_limits_is_deterministic() -> None:
    X = torch.randn(50)
    assert torch.equal(fast_dropout(X, 0.5, False), X)
    assert torch.equal(fast_dropout(X, 0.0, True), X)
    assert not fast_dropout(X, 1.0, True).any()
