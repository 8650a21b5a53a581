"""Concatenated vectors: values and gradients match those of the single layers."""

import numpy as np
import pytest
import spacy
from numpy.testing import assert_array_equal
from spacy.training import Example
from thinc.api import Model

from pipelines import LISTENER, TOK2VEC, ents, make_examples, train
from spacy_crf_ner.input_error import InputError
from spacy_crf_ner.ml.concatenate import concatenate
from spacy_crf_ner.ml.transformer.model import _own_transformer

TEXTS = ["Tim Cook visited Hanoi.", "", "Apple hired Ada."]
WORDS = {
    "@architectures": "spacy-crf-ner.CharWordEmbed.v1",
    "char_width": 6,
    "char_embed": 4,
    "word_width": 5,
    "shape_width": 3,
    "word_rows": 50,
    "shape_rows": 20,
}


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


def test_concatenate_splits_vectors_and_gradients_by_layer(docs):
    (first, d_first), (second, d_second) = recording(2, 1.0), recording(3, -1.0)
    model = concatenate(first, second)
    model.initialize(X=docs)
    assert model.get_dim("nO") == 5
    Y, backprop = model.begin_update(docs)
    for doc, y in zip(docs, Y, strict=True):
        assert_array_equal(y[:, :2], place(len(doc), 2))
        assert_array_equal(y[:, 2:], -place(len(doc), 3))
    dY = [np.random.default_rng(len(doc)).normal(size=(len(doc), 5)).astype("f") for doc in docs]
    backprop(dY)
    for dy, left, right in zip(dY, d_first, d_second, strict=True):
        assert_array_equal(left, dy[:, :2])
        assert_array_equal(right, dy[:, 2:])
        assert left.flags.c_contiguous and right.flags.c_contiguous


def test_concatenate_without_docs_returns_empty_list(docs):
    model = concatenate(recording(2, 1.0)[0])
    Y, backprop = model.begin_update([])
    assert Y == [] and backprop([]) == []


@pytest.mark.parametrize("place_of_empty", [0, 1, 2])
def test_concatenate_accepts_zero_width_vectors_of_empty_doc(docs, place_of_empty):
    """As those of a transformer."""
    inner, gradients = recording(2, 1.0)

    def forward(model, docs, is_train):
        Y, backprop = inner(docs, is_train)
        return [y if len(y) else y[:, :0] for y in Y], backprop

    given = [docs[0], docs[2]]
    given.insert(place_of_empty, docs[1])
    model = concatenate(Model("listener", forward), recording(3, -1.0)[0])
    backprop = model.begin_update(given)[1]
    backprop([np.tile(np.arange(5, dtype="f"), (len(doc), 1)) for doc in given])
    for doc, gradient in zip(given, gradients, strict=True):
        assert_array_equal(gradient, np.tile([0.0, 1.0], (len(doc), 1)))


@pytest.mark.parametrize("tok2vec", ["concatenate", "listener"])
def test_initialize_and_update_accept_empty_first_example(trained, tok2vec):
    nlp = spacy.util.load_model_from_config(trained[0].config)
    if tok2vec == "listener":
        nlp.remove_pipe("crf_ner")
        nlp.add_pipe("crf_ner", config={"model": {"hidden_width": 16, "tok2vec": LISTENER}})
    examples = [Example(nlp.make_doc(""), nlp.make_doc("")), *make_examples(nlp)]
    optimizer = nlp.initialize(lambda: examples)
    assert np.isfinite(nlp.update(examples, sgd=optimizer)["crf_ner"])


def test_concatenate_without_layers_raises():
    with pytest.raises(InputError, match="one layer or more"):
        concatenate()


@pytest.fixture(scope="module")
def trained(tiny_transformer):
    """A pipeline whose crf_ner reads a shared transformer and the words themselves."""
    nlp = spacy.blank("en")
    shared = {
        "@architectures": "spacy-crf-ner.TransformerModel.v1",
        "name": tiny_transformer,
        "get_spans": {
            "@span_getters": "spacy-transformers.strided_spans.v1",
            "window": 128,
            "stride": 96,
        },
    }
    nlp.add_pipe("transformer", config={"model": shared})
    layer = {
        "@architectures": "spacy-crf-ner.ConcatenateVectors.v1",
        "*": {"transformer": LISTENER, "words": WORDS},
    }
    nlp.add_pipe("crf_ner", config={"model": {"hidden_width": 16, "tok2vec": layer}})
    examples = make_examples(nlp)
    train(nlp, examples, steps=15)
    return nlp, [eg.reference.text for eg in examples]


def test_update_changes_weights_of_all_layers(trained):
    nlp, _ = trained
    modules = [
        shim._model
        for name in ("transformer", "crf_ner")
        for node in nlp.get_pipe(name).model.walk()
        for shim in node.shims
    ]
    assert len(modules) == 3  # the transformer, the words, the head
    before = [[p.detach().clone() for p in module.parameters()] for module in modules]
    nlp.update(make_examples(nlp), sgd=nlp.resume_training())
    for module, old in zip(modules, before, strict=True):
        assert any((p != q).any() for p, q in zip(module.parameters(), old, strict=True))


@pytest.mark.parametrize("kind", ["flat", "nested"])
@pytest.mark.parametrize("order", [1, -1])
def test_shared_layer_gradient_includes_listeners_of_any_depth(order, kind):
    """The change of the loss along the gradient matches the gradient norm."""
    listener = {"@architectures": "spacy.Tok2VecListener.v1", "width": 32}
    encoder = {"@architectures": "spacy-crf-ner.RNNEncoder.v1", "hidden_width": 8}
    below = {**encoder, "tok2vec": listener}
    layers = [below, listener][::order]
    if kind == "nested":  # one layer has the first and the last of three listeners
        inner = dict(zip("ab", [listener, {**encoder, "tok2vec": below}]))
        layers = [{"@architectures": "spacy-crf-ner.ConcatenateVectors.v1", "*": inner}, below][
            ::order
        ]
    both = {"@architectures": "spacy-crf-ner.ConcatenateVectors.v1", "*": dict(zip("ab", layers))}
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


def test_loaded_pipeline_predicts_the_same(trained, tmp_path):
    nlp, texts = trained
    expected = [ents(doc) for doc in nlp.pipe(texts)]
    assert any(expected)
    nlp.to_disk(tmp_path)
    assert [ents(doc) for doc in spacy.load(tmp_path).pipe(texts)] == expected


@pytest.mark.parametrize(
    "path", ["model.tok2vec.*.transformer", "model.tok2vec", "model.tok2vec.*"]
)
def test_replace_listeners_inside_concatenate_keeps_predictions(path, trained, tmp_path):
    """SpaCy's usual path is that of all layers, and would write the transformer over them."""
    nlp, texts = trained
    nlp.to_disk(tmp_path / "shared")
    own = spacy.load(tmp_path / "shared")
    expected = [ents(doc) for doc in own.pipe(texts)]
    own.replace_listeners("transformer", "crf_ner", [path])
    own.remove_pipe("transformer")
    block = own.config["components"]["crf_ner"]["model"]["tok2vec"]["*"]
    assert block["transformer"]["@architectures"] == "spacy-crf-ner.Tok2VecTransformer.v1"
    own.to_disk(tmp_path / "own")
    assert [ents(doc) for doc in spacy.load(tmp_path / "own").pipe(texts)] == expected


def test_sourced_component_at_the_usual_path_of_its_listener_keeps_predictions(trained, tmp_path):
    nlp, texts = trained
    nlp.to_disk(tmp_path / "shared")
    source = {"source": str(tmp_path / "shared"), "component": "crf_ner"}
    config = {
        "nlp": {"lang": "en", "pipeline": ["crf_ner"]},
        "components": {"crf_ner": {**source, "replace_listeners": ["model.tok2vec"]}},
    }
    own = spacy.util.load_model_from_config(config, auto_fill=True)
    expected = [ents(doc) for doc in nlp.pipe(texts)]
    assert [ents(doc) for doc in own.pipe(texts)] == expected
    own.to_disk(tmp_path / "own")
    assert [ents(doc) for doc in spacy.load(tmp_path / "own").pipe(texts)] == expected


OTHER = {**LISTENER, "grad_factor": 0.5}


@pytest.mark.parametrize(
    "layer, path",
    [
        (
            {"@architectures": "spacy-crf-ner.RNNEncoder.v1", "hidden_width": 8, "tok2vec": OTHER},
            "model.tok2vec.tok2vec",
        ),
        (
            {
                "@architectures": "spacy-crf-ner.ConcatenateVectors.v1",
                "*": {
                    "in": {
                        "@architectures": "spacy-crf-ner.ConcatenateVectors.v1",
                        "*": {"t": OTHER},
                    },
                    "words": WORDS,
                },
            },
            "model.tok2vec.*.in.*.t",
        ),
    ],
)
def test_replace_listeners_below_other_layers_keeps_predictions(layer, path, trained, tmp_path):
    nlp = spacy.blank("en")
    nlp.add_pipe(
        "transformer", config={"model": trained[0].config["components"]["transformer"]["model"]}
    )
    nlp.add_pipe("crf_ner", config={"model": {"hidden_width": 16, "tok2vec": layer}})
    train(nlp, make_examples(nlp), steps=2)
    expected = [ents(doc) for doc in nlp.pipe(trained[1])]
    nlp.replace_listeners("transformer", "crf_ner", [path])
    nlp.remove_pipe("transformer")
    block = spacy.util.dot_to_object(nlp.config, f"components.crf_ner.{path}")
    assert block["@architectures"] == "spacy-crf-ner.Tok2VecTransformer.v1"
    assert block["grad_factor"] == 0.5
    nlp.to_disk(tmp_path)
    assert [ents(doc) for doc in spacy.load(tmp_path).pipe(trained[1])] == expected


def test_own_transformer_with_custom_listener_keeps_shared_architecture():
    shared = {"@architectures": "spacy-crf-ner.TransformerModel.v1", "name": "x"}
    own = _own_transformer(shared, {"@architectures": "my.Shared.v1"})
    assert own["@architectures"] == "spacy-crf-ner.TransformerModel.v1"


def test_replace_listeners_with_two_listeners_raises(trained, tmp_path):
    """SpaCy replaces every second one, and changes the config as if it had replaced all."""
    nlp = spacy.blank("en")
    nlp.add_pipe(
        "transformer", config={"model": trained[0].config["components"]["transformer"]["model"]}
    )
    both = {
        "@architectures": "spacy-crf-ner.ConcatenateVectors.v1",
        "*": {"a": LISTENER, "b": LISTENER},
    }
    nlp.add_pipe("crf_ner", config={"model": {"hidden_width": 16, "tok2vec": both}})
    train(nlp, make_examples(nlp), steps=2)
    expected = [ents(doc) for doc in nlp.pipe(trained[1])]
    with pytest.raises(InputError, match="expected one listener in the component, got 2"):
        nlp.replace_listeners("transformer", "crf_ner", [f"model.tok2vec.*.{n}" for n in "ab"])
    nlp.to_disk(tmp_path)
    assert [ents(doc) for doc in spacy.load(tmp_path).pipe(trained[1])] == expected
