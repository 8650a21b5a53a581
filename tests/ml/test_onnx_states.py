"""Transformers of all kinds in ONNX, and unsupported networks."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from pipelines import TRANSFORMERS, small_transformers

onnx_states = pytest.importorskip("spacy_crf_ner.ml.onnx_states")
pytest.importorskip("onnx")

from spacy_crf_ner.ml import onnx_export  # noqa: E402
from spacy_crf_ner.ml.onnx_session import Session  # noqa: E402
from spacy_crf_ner.ml.transformer.quantize import Positional  # noqa: E402


def shallow(module: nn.Module) -> nn.Module:
    """Leave one layer, all of which are alike, but of ModernBERT, where two of three differ."""
    for layers in module.modules():
        if isinstance(layers, nn.ModuleList) and len(layers) == 3:
            del layers[2 if module.config.model_type == "modernbert" else 1 :]
    return module


@cache
def kinds() -> dict[str, nn.Module]:
    return {kind: shallow(module) for kind, module in small_transformers().items()}


AXES = dict.fromkeys(["input_ids", "attention_mask", "Y"], "BT")


def inputs(B: int, T: int) -> dict[str, Tensor]:
    mask = (torch.arange(T) < torch.arange(T, T - B, -1)[:, None]).long()
    return {"input_ids": torch.randint(2, 50, (B, T)), "attention_mask": mask}


@pytest.mark.parametrize("kind", TRANSFORMERS)
def test_checked_transformer_matches_torch_or_raises(kind: str) -> None:
    module = Positional(kinds()[kind]).eval()
    try:
        session = Session(onnx_states.checked(module, inputs, AXES))
    except ValueError as error:
        assert "expected a network that" in str(error)
        assert kind not in ("bert", "roberta", "electra", "distilbert", "mpnet", "deberta-v2")
        return
    torch.manual_seed(0)
    for B, T in ((1, 1), (5, 21)):
        given = inputs(B, T)
        with torch.no_grad():
            expected = module(**given).numpy()
        found = session.run(**{name: x.numpy() for name, x in given.items()})
        real = given["attention_mask"].bool().numpy()
        np.testing.assert_allclose(found[real], expected[real], atol=1e-4)


class DependsOnSize(nn.Module):
    """Code that the exporter sees for one size only."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return (input_ids * len(input_ids)).float()[..., None]


def test_checked_with_size_dependent_network_raises() -> None:
    with pytest.raises(ValueError, match="computes the same in ONNX, got one whose results differ"):
        onnx_states.checked(DependsOnSize(), inputs, AXES)


def test_checked_with_too_large_network_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_export, "MAX_BYTES", 1000)
    with pytest.raises(ValueError, match="expected a network of less than 2 GB"):
        onnx_states.checked(Positional(kinds()["bert"]), inputs, AXES)


def test_checked_does_not_wrap_system_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))  # no space would be the same
    with pytest.raises(FileNotFoundError):
        onnx_states.checked(DependsOnSize(), inputs, AXES)
