"""The private interfaces used from other libraries exist; without them, fallbacks work."""

import platform
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from thinc.api import PyTorchShim, Shim
from torch import nn

from pipelines import small_transformers
from spacy_crf_ner.ml import torch_internals
from spacy_crf_ner.ml.shim import module_of
from spacy_crf_ner.ml.transformer import hf_internals
from spacy_crf_ner.ml.transformer.model import TransformerEncoder
from spacy_crf_ner.ml.transformer.quantize import quantize


@pytest.fixture
def fresh_probe() -> Iterator[None]:
    torch_internals.has_packed_linear.cache_clear()
    yield
    torch_internals.has_packed_linear.cache_clear()


@pytest.mark.skipif(not torch_internals.has_bf16(), reason="a CPU without bfloat16")
def test_torch_has_packed_linear_layers() -> None:
    assert torch_internals.has_packed_linear(), (
        "torch.ops.mkldnn has other operations: transformers predict in bfloat16 an eighth slower"
    )


def test_torch_reports_cpu_instruction_sets() -> None:
    known = set(torch.cpu.get_capabilities())
    if platform.machine() == "x86_64":
        assert {"avx512_bf16", "amx_bf16", "avx512_vnni", "avx_vnni", "amx_int8"} <= known, (
            'without these names "auto" is float32 on every CPU'
        )


@pytest.mark.parametrize("missing", [False, True])
def test_tensor_list_functions_with_and_without_foreach_match_numpy(
    missing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"_foreach_{name}" for name in ("norm", "lerp_", "mul_")]
    for name in names if missing else []:
        monkeypatch.delattr(torch, name)
    assert all(hasattr(torch, name) is not missing for name in names)
    tensors, ends = ([torch.randn(size, 3) for size in (1, 2, 5)] for _ in range(2))
    arrays = [(one.numpy().copy(), end.numpy().copy()) for one, end in zip(tensors, ends)]
    norms = torch_internals.norms(tensors)
    np.testing.assert_allclose(norms, [np.linalg.norm(one) for one, _ in arrays], rtol=1e-6)
    torch_internals.lerp(tensors, ends, 0.3)
    for found, (one, end) in zip(tensors, arrays):
        np.testing.assert_allclose(found, 0.7 * one + 0.3 * end, atol=1e-6)
    torch_internals.multiply(tensors, [2.0] * len(tensors))
    for found, (one, end) in zip(tensors, arrays):
        np.testing.assert_allclose(found, 1.4 * one + 0.6 * end, atol=1e-6)
    for end, (_, before) in zip(ends, arrays):
        np.testing.assert_array_equal(end, before)


@pytest.mark.slow
@pytest.mark.parametrize("broken", [None, lambda *args: torch.zeros(2, 32, dtype=torch.bfloat16)])
def test_quantize_without_packed_linear_uses_torch_linear(
    broken: object, monkeypatch: pytest.MonkeyPatch, fresh_probe: None
) -> None:
    bert = small_transformers()["bert"]

    class Without:
        @staticmethod
        def _reorder_linear_weight(weight: torch.Tensor) -> torch.Tensor:
            return weight

    if broken is not None:
        Without._linear_pointwise = staticmethod(broken)  # type: ignore[attr-defined]
    monkeypatch.setattr(torch.ops, "mkldnn", Without, raising=False)
    encoder = TransformerEncoder(bert, "last", is_frozen=False)
    quantized = quantize(encoder, "bf16").eval()
    kinds = {type(module) for module in quantized.modules()}
    assert nn.Linear in kinds and torch_internals.PackedLinear not in kinds
    ids = torch.arange(2, 10)[None]
    with torch.no_grad():
        expected, found = (
            each.transformer(input_ids=ids).last_hidden_state
            for each in (encoder.eval(), quantized)
        )
    assert (found - expected).norm() < 0.05 * expected.norm()


@pytest.mark.slow
def test_transformers_has_expected_layer_names() -> None:
    layer = small_transformers()["bert"].encoder.layer[0]
    assert hf_internals.feed_forward_with_gelu(layer.intermediate), "GELU is computed apart: slower"
    assert hf_internals.feed_forward_with_gelu(layer.output) is None


def test_shims_of_thinc_have_their_module_as_private_attribute() -> None:
    """Else the modules of other packages are not found: neither counted, nor frozen, nor shared."""
    module = nn.Linear(2, 2)
    assert module_of(PyTorchShim(module)) is module
    assert module_of(Shim(None)) is None
