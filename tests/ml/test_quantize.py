"""A quantized transformer computes the last hidden state of the whole one."""

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pipelines import TRANSFORMERS, small_transformers
from spacy_crf_ner.input_error import InputError
from spacy_crf_ner.ml import dtype
from spacy_crf_ner.ml.layer import shim_of
from spacy_crf_ner.ml.onnx_export import int8_session
from spacy_crf_ner.ml.torch_internals import PackedLinear, has_packed_linear
from spacy_crf_ner.ml.transformer.model import TransformerEncoder, transformer
from spacy_crf_ner.ml.transformer.quantize import quantize

kinds = cache(small_transformers)


@pytest.fixture
def inputs() -> dict[str, Tensor]:
    torch.manual_seed(0)
    mask = torch.tensor([[1] * 9, [1] * 5 + [0] * 4])
    return {"input_ids": torch.randint(2, 50, (2, 9)), "attention_mask": mask}


def states(module: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
    """The last hidden states of what is no padding."""
    with torch.no_grad():
        hidden: Tensor = module.eval()(**inputs).last_hidden_state
    return hidden[inputs["attention_mask"].bool()].float()


def quantized(kind: str, dtype: str) -> Any:
    """A copy of a transformer, to predict in another dtype."""
    return quantize(TransformerEncoder(kinds()[kind], "last", False), dtype).transformer


@pytest.mark.parametrize("kind", TRANSFORMERS)
@pytest.mark.parametrize("dtype, far", [("fp32", 0.0), ("bf16", 0.05)])
def test_quantized_transformer_matches_original_states(
    kind: str, dtype: str, far: float, inputs: dict[str, Tensor]
) -> None:
    whole = kinds()[kind]
    expected = states(whole, inputs)
    weights = {name: tensor.clone() for name, tensor in whole.state_dict().items()}
    found = states(quantized(kind, dtype), inputs)
    assert (found - expected).norm() <= far * expected.norm()
    assert torch.equal(found, expected) == (dtype == "fp32")
    # The original model is unchanged.
    assert all(torch.equal(tensor, weights[name]) for name, tensor in whole.state_dict().items())
    assert torch.equal(states(whole, inputs), expected)


@pytest.mark.parametrize(
    "kind",
    [
        "distilbert",
        # test_onnx_states.py tests the export of shallow ones.
        *(pytest.param(k, marks=pytest.mark.slow) for k in (*TRANSFORMERS[:3], "deberta-v2")),
    ],
)
def test_int8_states_are_close_to_float32(kind: str, inputs: dict[str, Tensor]) -> None:
    pytest.importorskip("onnxruntime")
    expected = states(kinds()[kind], inputs)
    found = states(quantized(kind, "int8"), inputs)
    assert 0 < (found - expected).norm() < 0.1 * expected.norm()


def test_int8_does_not_saturate() -> None:
    """Without int8 instructions, a CPU adds pairs of products in 16 bits: 2 * 255 * 127 is more."""
    pytest.importorskip("onnxruntime")
    linear = torch.nn.Linear(64, 8, bias=False)
    torch.nn.init.ones_(linear.weight)
    X = torch.ones(1, 3, 64)
    X[..., ::8] = 0.0
    found = torch.from_numpy(int8_session(linear, {"X": X}).run(X=X.numpy()))
    torch.testing.assert_close(found, X @ linear.weight.detach().T, rtol=0.02, atol=0.0)


def test_int8_of_a_mix_or_of_token_types_is_refused(inputs: dict[str, Tensor]) -> None:
    pytest.importorskip("onnxruntime")
    with pytest.raises(InputError, match="int8 is for the last layer, got a mix"):
        quantize(TransformerEncoder(kinds()["bert"], "mix", False), "int8")
    with pytest.raises(InputError, match="one token type, got several"):
        quantized("distilbert", "int8")(**inputs, token_type_ids=inputs["input_ids"])


@pytest.mark.skipif(not has_packed_linear(), reason="a CPU without bfloat16")
@pytest.mark.parametrize("activation", ["none", "gelu"])
@pytest.mark.parametrize("bias", [True, False])
def test_packed_linear_matches_linear(activation: str, bias: bool) -> None:
    torch.manual_seed(0)
    linear = nn.Linear(24, 40, bias=bias)
    X = torch.randn(3, 7, 24)
    with torch.no_grad():
        expected = linear(X) if activation == "none" else nn.functional.gelu(linear(X))
        found = PackedLinear(linear.bfloat16(), activation)(X.bfloat16()).float()
    torch.testing.assert_close(found, expected, atol=0.03, rtol=0.02)


@pytest.mark.skipif(not has_packed_linear(), reason="a CPU without bfloat16")
def test_quantize_bf16_packs_all_linear_layers() -> None:
    def layers(module: nn.Module, kind: Any) -> int:
        return sum(isinstance(each, kind) for each in module.modules())

    bert = quantized("bert", "bf16")
    assert layers(bert, PackedLinear) == 3 * 6  # of each layer; the pooler is not there
    assert layers(bert, nn.Linear) == 0


@pytest.mark.parametrize("layers", ["last", "mix"])
def test_auto_is_int8_only_where_int8_is_possible(
    layers: str, tiny_transformer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dtype, "cpu_dtypes", lambda int8: ("fp32", *["int8"] * int8))
    monkeypatch.setattr(dtype, "measure_linear", lambda *args: {"fp32": 1.0, "int8": 0.5})
    layer = transformer(tiny_transformer, layers=layers, dtype="auto")
    layer.initialize()
    assert shim_of(layer).resolved_dtype == ("int8" if layers == "last" else "fp32")
