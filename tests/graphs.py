"""Small networks of nested layers, and their gradients."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import spacy
from spacy.language import Language
from spacy.tokens import Doc
from spacy.vocab import Vocab
from thinc.api import Linear, Model, chain, with_array

from pipelines import OWN_TRANSFORMER, TOK2VEC, make_examples

VOCAB = Vocab()

# A layer of thinc over arrays that docs carry, for exact token vectors

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


# A network of many layers

WORDS: dict[str, Any] = {"@architectures": "spacy-crf-ner.CharWordEmbed.v1", "char_width": 6}
WORDS |= {"char_embed": 4, "word_width": 5, "word_rows": 50, "shape_width": 3, "shape_rows": 20}
ENCODER = {"@architectures": "spacy-crf-ner.RNNEncoder.v1", "hidden_width": 4, "tok2vec": WORDS}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def joined(**layers: dict[str, Any]) -> dict[str, Any]:
    return {"@architectures": "spacy-crf-ner.ConcatenateVectors.v1", "*": layers}


def nested(transformer: str, **settings: Any) -> Language:
    """Make a crf_ner over a transformer, an encoder of words, and spaCy's CNN, without dropout."""
    own = {**OWN_TRANSFORMER, "name": transformer, "transformer_config": NO_DROPOUT, **settings}
    layers = joined(transformer=own, words=ENCODER, cnn={**TOK2VEC, "width": 8})
    nlp = spacy.blank("en")
    nlp.add_pipe("crf_ner", config={"model": {"hidden_width": 8, "tok2vec": layers}})
    spacy.util.fix_random_seed(0)
    nlp.initialize(lambda: make_examples(nlp))
    return nlp


def model_of(nlp: Language) -> Any:
    """Return the model of the last component."""
    pipe: Any = nlp.components[-1][1]
    return pipe.model


def modules_of(nlp: Language) -> dict[str, Any]:
    """Return the modules of all layers of the package in a pipeline, by their name."""
    models = [pipe.model for _, pipe in nlp.components]
    nodes = [node for model in models for node in model.walk()]
    return {node.name: node.shims[0].module for node in nodes if node.shims}


def weights_of(nlp: Language) -> dict[str, Any]:
    """Return copies of all weights in a pipeline, of thinc and of torch, as arrays."""
    found = {
        f"{name}.{key}": weights.detach().numpy().copy()
        for name, module in modules_of(nlp).items()
        for key, weights in module.named_parameters()
    }
    for i, node in enumerate(model_of(nlp).walk()):
        found |= {f"{i}.{key}": node.get_param(key).copy() for key in node.param_names}
    return found


def take_gradients(nlp: Language) -> dict[str, Any]:
    """Return the gradients of all weights in a pipeline that have some, and forget them."""
    found = {}
    for name, module in modules_of(nlp).items():
        for key, weights in module.named_parameters():
            if weights.grad is not None:
                found[f"{name}.{key}"] = weights.grad.to_dense().numpy().copy()
                weights.grad = None
    for i, node in enumerate(model_of(nlp).walk()):
        for key in node.grad_names:
            found[f"{i}.{key}"] = node.get_grad(key).copy()
            node.get_grad(key).fill(0.0)
    return found


def assert_near(found: dict[str, Any], expected: dict[str, Any], rtol: float = 1e-4) -> None:
    """Compare arrays by their names, but for rounding, which grows with the largest number."""
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        atol = 1e-5 * max(1.0, abs(array).max(initial=0.0))
        np.testing.assert_allclose(found[name], array, rtol, atol, err_msg=name)
