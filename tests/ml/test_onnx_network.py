"""What an exported network reads: values of other types and shapes are refused."""

from typing import Any

import numpy as np
import pytest
import spacy
import srsly
from thinc.api import Model

from spacy_crf_ner.input_error import InputError
from spacy_crf_ner.ml.checksummed import seal
from spacy_crf_ner.ml.onnx_network import onnx_network

C = 3
STATE = {
    "onnx": b"network",
    "parts": [{"kind": "layer", "settings": {}}],
    "transitions": np.zeros((C, C), dtype="f"),
    "start": np.arange(C, dtype="f"),
    "end": np.zeros(C, dtype="f"),
}
DOCS = [spacy.blank("en")("Tim Cook")]


def new() -> Model[Any, Any]:
    vectors: Any = Model("vectors", lambda _, docs, is_train: ([np.zeros((2, 4), "f")], None))
    return onnx_network(layers={"0": vectors})


def read(**changes: Any) -> Model[Any, Any]:
    model: Any = new()
    model.shims[0].from_bytes(seal(srsly.msgpack_dumps(STATE | changes)))
    return model  # type: ignore[no-any-return]


def test_network_reads_what_it_wrote() -> None:
    """Control: without changes. Without tokens, the scores of the CRF are all."""
    again: Any = new().from_bytes(read().to_bytes())
    np.testing.assert_array_equal(again.predict([]).start, STATE["start"])
    empty = new().from_bytes(new().to_bytes())
    with pytest.raises(InputError, match="The model has no weights yet"):
        empty.predict(DOCS)


@pytest.mark.parametrize(
    "changes",
    [
        {"parts": [{"kind": "other", "settings": {}}]},
        {"parts": [{"kind": "words", "settings": {"config": {"chars": "none"}}}]},
        {"start": [0.0] * C},
        {"start": np.zeros(C)},
        {"start": np.zeros(C + 1, dtype="f")},
        {"end": np.zeros((C, C), dtype="f")},
        {"transitions": np.zeros((C, 1), dtype="f")},
    ],
)
def test_other_values_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"^The stored weights cannot be read: expected .*\.$"):
        read(**changes)


@pytest.mark.parametrize("onnx", [b"network", "text", None])
def test_network_that_is_none_is_refused(onnx: Any) -> None:
    pytest.importorskip("onnxruntime")
    with pytest.raises(InputError, match="expected a network for ONNX Runtime, got"):
        read(onnx=onnx).predict(DOCS)


def test_network_of_other_tags_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model: Any = read()
    for tags in (1, C + 1):
        scores = np.zeros((2, 1, tags), dtype="f")
        monkeypatch.setattr(model.shims[0]._head, "run", lambda scores=scores, **_: scores)
        with pytest.raises(InputError, match="expected a network with 3 tags"):
            model.predict(DOCS)
