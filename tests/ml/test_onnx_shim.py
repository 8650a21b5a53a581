"""What the layers of exported pipelines read: values of other types and shapes are refused."""

from typing import Any

import numpy as np
import pytest
import srsly
from thinc.api import Model

from spacy_crf_ner.input_error import InputError
from spacy_crf_ner.ml.checksummed import seal
from spacy_crf_ner.ml.onnx_layers import onnx_bilstm_crf, onnx_shim

C = 3
STATE = {
    "onnx": b"network",
    "transitions": np.zeros((C, C), dtype="f"),
    "start": np.zeros(C, dtype="f"),
    "end": np.zeros(C, dtype="f"),
}


def head() -> Model[Any, Any]:
    model: Model[Any, Any] = onnx_bilstm_crf(Model("tok2vec", lambda *_: ([], lambda _: [])))
    return model.get_ref("output_layer")


def read(**changes: Any) -> Model[Any, Any]:
    model = head()
    onnx_shim(model).from_bytes(seal(srsly.msgpack_dumps(STATE | changes)))
    return model


def test_head_reads_what_it_wrote() -> None:
    """Control: without changes."""
    shim = onnx_shim(read())
    again = onnx_shim(head()).from_bytes(shim.to_bytes())
    np.testing.assert_array_equal(again["transitions"], STATE["transitions"])
    assert onnx_shim(head()).from_bytes(onnx_shim(head()).to_bytes()).state == {}


@pytest.mark.parametrize(
    "changes",
    [
        {"onnx": "text"},
        {"onnx": None},
        {"start": [0.0] * C},
        {"start": np.zeros(C)},
        {"start": np.zeros(C, dtype="i4")},
        {"start": np.zeros(C + 1, dtype="f")},
        {"end": np.zeros((C, C), dtype="f")},
        {"transitions": np.zeros((C, 1), dtype="f")},
    ],
)
def test_head_with_other_values_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"^The stored weights cannot be read: expected .*\.$"):
        read(**changes)


def test_network_that_is_none_is_refused() -> None:
    pytest.importorskip("onnxruntime")
    with pytest.raises(InputError, match="expected a network for ONNX Runtime, got"):
        read().predict([np.zeros((2, 4), dtype="f")])


def test_network_of_other_tags_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = read()
    scores = np.zeros((2, 1, C + 1), dtype="f")
    monkeypatch.setattr(onnx_shim(model), "run", lambda **inputs: scores)
    with pytest.raises(InputError, match="expected a network with 3 tags"):
        model.predict([np.zeros((2, 4), dtype="f")])
