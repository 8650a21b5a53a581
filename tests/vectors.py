"""A layer of thinc over arrays that docs carry, for tests that need exact token vectors."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from spacy.tokens import Doc
from spacy.vocab import Vocab
from thinc.api import Linear, Model, chain, with_array

VOCAB = Vocab()
LENGTHS = (3, 0, 5, 1)


def docs_with(arrays: Sequence[np.ndarray]) -> list[Doc]:
    """Make docs of any words that carry arrays (T, 3), which `linear_layer` reads."""
    docs = [Doc(VOCAB, words=["a"] * len(array)) for array in arrays]
    for doc, array in zip(docs, arrays, strict=True):
        doc.tensor = array
    return docs


def random_docs(lengths: Sequence[int] = LENGTHS) -> list[Doc]:
    rng = np.random.default_rng(0)
    return docs_with([rng.normal(size=(T, 3)).astype("f") for T in lengths])


def linear_layer() -> tuple[Any, list[np.ndarray]]:
    """Make a linear layer from width 3 to 4, and the list where it puts the gradient of each doc.

    Its weights are those of `layer.layers[1].layers[0]`.
    """
    gradients: list[np.ndarray] = []
    reads: Model[Any, Any] = Model("carried", _read, attrs={"gradients": gradients})
    linear: Any = Linear(nO=4, nI=3)
    return chain(reads, with_array(linear)), gradients


def _read(model: Any, docs: list[Doc], is_train: bool) -> Any:
    return [doc.tensor for doc in docs], model.attrs["gradients"].extend


def linear_of(layer: Any) -> Any:
    """Return the linear layer of `linear_layer`."""
    return layer.layers[1].layers[0]
