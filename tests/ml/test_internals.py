"""The private interfaces used from other libraries exist; without them, fallbacks work."""

import inspect
import platform
from collections.abc import Iterator

import numpy as np
import pytest
import spacy
import torch
from torch import nn
from transformers import BertModel
from transformers.modeling_outputs import BaseModelOutput

from pipelines import small_transformers
from spacy_crf_ner.ml import torch_internals
from spacy_crf_ner.ml.transformer import hf_internals, quantize
from spacy_crf_ner.ml.transformer import spacy_transformers_internals as spacy_trf


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
    names = [f"_foreach_{name}" for name in ("norm", "lerp_", "zero_")]
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
    torch_internals.zero(tensors)
    assert not any(tensor.any() for tensor in tensors)
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
    quantized = quantize.quantize_transformer(bert, "bf16").eval()
    kinds = {type(module) for module in quantized.modules()}
    assert nn.Linear in kinds and torch_internals.PackedLinear not in kinds
    ids = torch.arange(2, 10)[None]
    with torch.no_grad():
        expected = bert.eval()(ids).last_hidden_state
        found = quantized(input_ids=ids).last_hidden_state
    assert (found - expected).norm() < 0.05 * expected.norm()


@pytest.mark.slow
def test_transformers_has_expected_layer_names() -> None:
    bert: BertModel = small_transformers()["bert"]
    names = "pooler and GELU are computed apart: prediction is slower"
    assert "pooler" in bert._modules, names
    assert hf_internals.feed_forward_with_gelu(bert.encoder.layer[0].intermediate), names
    assert hf_internals.feed_forward_with_gelu(bert.encoder.layer[0].output) is None
    without = nn.Sequential(nn.Linear(2, 2))
    hf_internals.drop_pooler(without)  # and nothing happens
    assert len(without) == 1
    assert "last_hidden_state" in BaseModelOutput(last_hidden_state=torch.ones(1, 1, 1))


def test_spacy_transformers_has_expected_private_functions() -> None:
    def parameters(function: object) -> list:
        return [*inspect.signature(function).parameters]  # type: ignore[arg-type]

    assert parameters(spacy_trf.forward) == ["model", "docs", "is_train"], "training runs this"
    assert parameters(spacy_trf.init)[0] == "model", "it loads the pretrained weights"
    assert parameters(spacy_trf.get_alignment_via_offset_mapping) == ["spans", "offset_mapping"], (
        "slow tokenizers, as PhoBERT's, are aligned by it"
    )
    assert len(parameters(spacy_trf.replace_listener_cfg)) == 2, "of the layer and of the listener"
    assert parameters(spacy_trf.trfs2arrays) == ["pooling", "grad_factor"], "Tok2VecTransformer.v1"
    spans = spacy.registry.get("span_getters", "spacy-transformers.doc_spans.v1")()
    layer = spacy_trf.TransformerModel("none", spans)
    shim = spacy_trf.hf_shim(layer)
    assert isinstance(shim, spacy_trf.HFShim), "the first layer of the model holds the weights"
    assert shim._hfmodel.tokenizer is None, "slow tokenizers are saved by way of it"
    assert "convert_inputs" in layer.layers[0].attrs, "each input would wait for the GPU"
    assert layer.init is spacy_trf.init and layer._func is spacy_trf.forward
