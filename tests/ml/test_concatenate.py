"""Concatenated vectors: values and gradients match those of the single layers."""

import numpy as np
import pytest
import spacy
from numpy.testing import assert_array_equal
from thinc.api import Model

from graphs import ENCODER, WORDS, joined
from pipelines import LISTENER, SENTENCES, TOK2VEC, add_shared, ents, make_examples, train
from spacy_crf_ner.input_error import InputError
from spacy_crf_ner.ml.concatenate import concatenate
from spacy_crf_ner.ml.network import bilstm_crf

TEXTS = ["Tim Cook visited Hanoi.", "", "Apple hired Ada."]


@pytest.fixture(scope="module")
def docs():
    nlp = spacy.blank("en")
    return [nlp.make_doc(text) for text in TEXTS]


def recording(width, factor):
    """A layer that gives each token its place times a factor, and keeps the gradients it gets."""

    def forward(model, docs, is_train):
        def backprop(dY):
            gradients.extend(dY)
            return docs

        return [place(len(doc), width) * factor for doc in docs], backprop

    gradients = []
    return Model("recording", forward, dims={"nO": width}), gradients


def place(tokens, width):
    return np.arange(tokens * width, dtype="f").reshape(tokens, width)


@pytest.mark.parametrize("place_of_empty", [0, 1, 2])
def test_concatenate_accepts_zero_width_vectors_of_empty_doc(docs, place_of_empty):
    """As those of spacy-transformers; a network above it still learns the width."""
    inner, gradients = recording(2, 1.0)

    def forward(model, docs, is_train):
        Y, backprop = inner(docs, is_train)
        return [y if len(y) else y[:, :0] for y in Y], backprop

    given = [docs[0], docs[2]]
    given.insert(place_of_empty, docs[1])
    model = concatenate(Model("listener", forward), recording(3, -1.0)[0])
    network = bilstm_crf(model, hidden_width=2, nO=3)
    network.get_ref("output_layer").set_dim("nO", 3)
    network.initialize(X=given)
    assert network.get_ref("output_layer").get_dim("nI") == 5
    assert len(network.predict(given).emissions) == sum(map(len, given))
    backprop = model.begin_update(given)[1]
    backprop([np.tile(np.arange(5, dtype="f"), (len(doc), 1)) for doc in given])
    for doc, gradient in zip(given, gradients, strict=True):
        assert_array_equal(gradient, np.tile([0.0, 1.0], (len(doc), 1)))
        assert gradient.flags.c_contiguous


def test_concatenate_without_layers_raises():
    with pytest.raises(InputError, match="one layer or more"):
        concatenate()


@pytest.mark.parametrize("kind", ["flat", "nested"])
@pytest.mark.parametrize("order", [1, -1])
def test_shared_layer_gradient_includes_listeners_of_any_depth(order, kind):
    """The change of the loss along the gradient matches the gradient norm."""
    listener = {**LISTENER, "width": 32}
    below = {**ENCODER, "tok2vec": listener}
    layers = [below, listener][::order]
    if kind == "nested":  # one layer has the first and the last of three listeners
        layers = [joined(a=listener, b={**ENCODER, "tok2vec": below}), below][::order]
    both = joined(a=layers[0], b=layers[1])
    nlp = spacy.blank("en")
    nlp.add_pipe("tok2vec", config={"model": TOK2VEC})
    nlp.add_pipe("crf_ner", config={"model": {"hidden_width": 16, "tok2vec": both}})
    examples = make_examples(nlp)
    spacy.util.fix_random_seed(0)
    nlp.initialize(lambda: examples)

    def loss():
        return nlp.update(examples, sgd=False)["crf_ner"]

    loss()
    node = [node for node in nlp.get_pipe("tok2vec").model.walk() if "b" in node.param_names][-1]
    b, d_b = node.get_param("b").copy(), node.get_grad("b").copy()
    step = 1e-2 * d_b / np.linalg.norm(d_b)
    losses = []
    for sign in (1, -1):
        node.set_param("b", b + sign * step)
        losses.append(loss())
    assert (losses[0] - losses[1]) / 2e-2 == pytest.approx(np.linalg.norm(d_b), rel=1e-2)


@pytest.mark.parametrize(
    "layer, path",
    [
        (joined(shared=LISTENER, words=WORDS), "*.shared"),
        ({**ENCODER, "tok2vec": LISTENER}, "tok2vec"),
        (joined(inner=joined(shared=LISTENER), words=WORDS), "*.inner.*.shared"),
    ],
)
def test_replace_listeners_below_other_layers_keeps_predictions(
    layer, path, tiny_transformer, tmp_path
):
    nlp, texts = spacy.blank("en"), [text for text, _ in SENTENCES]
    add_shared(nlp, tiny_transformer)
    nlp.add_pipe("crf_ner", config={"model": {"hidden_width": 16, "tok2vec": layer}})
    train(nlp, make_examples(nlp), steps=2)
    expected = [ents(doc) for doc in nlp.pipe(texts)]
    nlp.replace_listeners("tok2vec", "crf_ner", [f"model.tok2vec.{path}"])
    nlp.remove_pipe("tok2vec")
    nlp.to_disk(tmp_path)
    assert [ents(doc) for doc in spacy.load(tmp_path).pipe(texts)] == expected
