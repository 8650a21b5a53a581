"""The network: training, storage, and weights of strangers."""

import copy
import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import spacy
import srsly
import torch
from safetensors.torch import save
from thinc.api import SGD, Model, set_dropout_rate

from damage import Intruder
from graphs import LENGTHS, docs_with, linear_layer, linear_of, random_docs
from spacy_crf_ner.crf import Chain, constrain, nll_with_gradient
from spacy_crf_ner.input_error import InputError
from spacy_crf_ner.ml import shim as shims
from spacy_crf_ner.ml.bilstm_crf import BiLSTMCRF
from spacy_crf_ner.ml.checksummed import seal, unseal
from spacy_crf_ner.ml.network import bilstm_crf
from spacy_crf_ner.ml.shim import TorchShim
from spacy_crf_ner.tags import TagScheme

# The layer, over a linear tok2vec

BIO = TagScheme("bio", ("PER", "LOC"))
GOLD = BIO.ids(["B-PER", "L-PER", "O", "U-LOC", "U-LOC", "O", None, None, "U-PER"])


def build(**settings: Any) -> Model[Any, Chain]:
    return bilstm_crf(linear_layer()[0], hidden_width=5, **settings)


docs = random_docs


def make(**settings: Any) -> Model[Any, Chain]:
    return initialized(build(**settings))


def initialized(model: Model[Any, Chain]) -> Model[Any, Chain]:
    spacy.util.fix_random_seed(0)
    model.get_ref("output_layer").set_dim("nO", len(BIO.tags))
    model.initialize(X=docs())
    return model


def shim_of(model: Model[Any, Chain]) -> TorchShim:
    return cast(TorchShim, model.layers[1].shims[0])


def weights_of(model: Model[Any, Chain]) -> dict[str, np.ndarray]:
    """Copy all weights, those of tok2vec under the name tok2vec."""
    linear = linear_of(model.layers[0])
    weights = {f"tok2vec.{name}": linear.get_param(name).copy() for name in ("W", "b")}
    state = shim_of(model).module.state_dict()
    return weights | {name: tensor.numpy().copy() for name, tensor in state.items()}


def loss_of(model: Model[Any, Chain], potentials: Chain) -> tuple[np.ndarray, Chain]:
    """The loss of each doc, as the component computes it, and its gradient."""
    constrained = model.layers[1].attrs["constrained"]
    chain = constrain(potentials, *BIO.constraints) if constrained else potentials
    return nll_with_gradient(chain, GOLD)


def update(model: Model[Any, Chain], learn_rate: float = 0.1) -> None:
    """Take one step down the gradient; what drops is the same."""
    torch.manual_seed(0)
    potentials, backprop = model.begin_update(docs())
    backprop(loss_of(model, potentials)[1])
    model.finish_update(SGD(learn_rate, L2=0.0, grad_clip=0.0, use_averages=False))


def assert_same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> None:
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)


@pytest.mark.parametrize("rnn", ["lstm", "none"])
@pytest.mark.parametrize("decoder", ["crf", "softmax"])
def test_backprop_gradient_of_docs_matches_finite_difference(rnn: str, decoder: str) -> None:
    tok2vec, d_docs = linear_layer()
    model = initialized(bilstm_crf(tok2vec, hidden_width=5, rnn=rnn, decoder=decoder))
    given = docs()

    def total(shift: float) -> float:
        moved = docs_with([doc.tensor + shift * way for doc, way in zip(given, ways)])
        return float(loss_of(model, model.predict(moved))[0].sum())

    potentials, backprop = model.begin_update(given)
    assert potentials.emissions.shape == (sum(LENGTHS), len(BIO.tags))
    assert potentials.lengths.tolist() == list(LENGTHS)
    assert model.get_ref("output_layer").attrs["constrained"] == (decoder == "crf")
    assert backprop(loss_of(model, potentials)[1]) is given
    assert [d_doc.shape for d_doc in d_docs] == [(T, 3) for T in LENGTHS]
    rng = np.random.default_rng(1)
    ways = [rng.normal(size=d_doc.shape).astype("f") for d_doc in d_docs]
    slope = sum(float((d_doc * way).sum()) for d_doc, way in zip(d_docs, ways))
    h = 1e-2  # an error of h^2 = 1e-4 in the slope, and of 1e-6 / h = 1e-4 by float32
    assert slope == pytest.approx((total(h) - total(-h)) / (2 * h), rel=1e-2, abs=1e-3)


@pytest.mark.parametrize("own", [None, 0.0, 0.5])
def test_set_dropout_rate_applies_to_head_in_training_only(own: float | None) -> None:
    model = make(dropout=own)
    for rate in (0.0, 0.5):
        set_dropout_rate(model, rate)
        once, again = (model.begin_update(docs())[0].emissions for _ in range(2))
        assert np.array_equal(once, again) == ((rate if own is None else own) == 0.0)
        once, again = (model.predict(docs()).emissions for _ in range(2))
        np.testing.assert_array_equal(once, again)


def test_update_forgets_gradients_and_keeps_earlier_potentials() -> None:
    model = make()
    potentials = model.predict(docs())
    before = copy.deepcopy(potentials)
    update(model)
    assert not shim_of(model).gradients()
    for found, expected in zip(potentials.scores, before.scores):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("rnn", ["lstm", "none"])
@pytest.mark.parametrize("lengths", [(0, 0), (0,)])
def test_docs_without_tokens_return_empty_arrays(rnn: str, lengths: tuple[int, ...]) -> None:
    tok2vec, d_docs = linear_layer()
    model = initialized(bilstm_crf(tok2vec, hidden_width=5, rnn=rnn))
    potentials, backprop = model.begin_update(random_docs(lengths))
    assert potentials.emissions.shape == (0, len(BIO.tags))
    backprop(potentials)
    assert [d_doc.shape for d_doc in d_docs] == [(0, 3)] * len(lengths)
    assert model.predict(random_docs(lengths)).emissions.shape == (0, len(BIO.tags))


def test_head_alone_matches_network_and_returns_gradient_of_vectors() -> None:
    """As `spacy_crf_ner.accelerate` and the export run it: over vectors that it is given."""
    tok2vec, d_docs = linear_layer()
    model = initialized(bilstm_crf(tok2vec, hidden_width=5))
    head, X = model.get_ref("output_layer"), tok2vec.predict(docs())
    alone, backprop = head.begin_update(X)
    whole, backprop_whole = model.begin_update(docs())
    for found, expected in zip(alone.scores, whole.scores):
        np.testing.assert_array_equal(found, expected)
    d_X = backprop(loss_of(model, alone)[1])
    backprop_whole(loss_of(model, whole)[1])
    W = linear_of(tok2vec).get_param("W")
    for d_x, d_doc in zip(d_X, d_docs, strict=True):
        np.testing.assert_allclose(d_x @ W, d_doc, atol=1e-6)
    with pytest.raises(InputError, match=r"expected token vectors of width 4, .* got 3"):
        head.predict([x[:, :3] for x in X])


@pytest.mark.parametrize("use", [Model.predict, Model.begin_update])
def test_use_before_initialize_raises(use: Callable[..., Any]) -> None:
    model = build()
    model.get_ref("tok2vec").initialize()
    for layer, X in ((model, docs()), (model.get_ref("output_layer"), [])):
        with pytest.raises(InputError, match=r"no weights yet: call nlp\.initialize\(\)"):
            use(layer, X)
    model.finish_update(SGD(0.1))  # there is nothing to update


# Storing

SETTINGS = [
    {},
    {"rnn": "gru", "depth": 2, "dense_width": 3, "dropout": 0.25},
    {"rnn": "none", "decoder": "softmax"},
]


@pytest.mark.parametrize("settings", SETTINGS)
def test_loaded_model_matches_saved_model(settings: dict[str, Any], tmp_path: Path) -> None:
    model = make(**settings)
    update(model)
    model.to_disk(tmp_path / "model")
    for fresh in (
        build(**settings).from_bytes(model.to_bytes()),
        build(**settings).from_disk(tmp_path / "model"),
    ):
        assert_same(weights_of(fresh), weights_of(model))
        assert shim_of(fresh).module.dims == shim_of(model).module.dims
        expected = model.predict(docs())
        np.testing.assert_array_equal(fresh.predict(docs()).emissions, expected.emissions)
        update(fresh)  # continued training gives the same weights
        twin = model.copy()
        update(twin)
        assert_same(weights_of(fresh), weights_of(twin))


def test_from_bytes_keeps_dropout_of_new_model() -> None:
    model = make(dropout=0.5)
    fresh = build(dropout=0.25).from_bytes(model.to_bytes())
    assert cast(BiLSTMCRF, shim_of(fresh).module).config.dropout == 0.25
    assert_same(weights_of(fresh), weights_of(model))


@pytest.mark.parametrize(
    "settings",
    [
        {"rnn": "gru"},
        {"rnn": "none"},
        {"depth": 2},
        {"bidirectional": False},
        {"dense_width": 3},
        {"decoder": "softmax"},
    ],
)
def test_from_bytes_with_weights_of_other_settings_raises(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="of another architecture or other settings"):
        build(**settings).from_bytes(make().to_bytes())
    with pytest.raises(ValueError, match="of another architecture or other settings"):
        build().from_bytes(make(**settings).to_bytes())


def state_of(model: Model[Any, Chain]) -> bytes:
    """The bytes that the head writes."""
    return shim_of(model).to_bytes()


def load(state: bytes) -> BiLSTMCRF:
    shim = shim_of(build())
    shim.from_bytes(state)
    return cast(BiLSTMCRF, shim.module)


def saved(content: Any, **options: Any) -> bytes:
    stream = io.BytesIO()
    torch.save(content, stream, **options)
    return stream.getvalue()


def stored(**changes: Any) -> bytes:
    """What the head writes, with changes and their digest, as somebody with ill will stores it."""
    content = srsly.msgpack_loads(unseal(state_of(make())))
    return seal(srsly.msgpack_dumps(content | changes))


def test_unmodified_stored_weights_load() -> None:
    """Control: the tests below fail only because of their changed bytes."""
    weights = load(stored()).state_dict()
    expected = shim_of(make()).module.state_dict()
    assert all(torch.equal(weights[name], expected[name]) for name in expected)


def tensors(**changes: torch.Tensor) -> bytes:
    """The stored weights, with changes."""
    return save(shim_of(make()).module.state_dict() | changes)


@pytest.mark.parametrize(
    "state",
    [
        lambda: b"no weights",
        lambda: seal(b"no weights"),
        lambda: seal(srsly.msgpack_dumps([])),
        lambda: stored(weights=b""),
        lambda: stored(weights=save({})),
        lambda: stored(weights=tensors(more=torch.ones(1))),
        lambda: stored(weights=tensors(**{"projection.bias": torch.ones(1)})),
        lambda: stored(weights=tensors(**{"projection.bias": torch.ones(5, dtype=torch.int64)})),
        lambda: stored(dims={"nI": 4, "nO": 6}),
        lambda: stored(dims={"nI": 10**15, "nO": 5}),
        lambda: stored(dims={"nI": -4, "nO": 5}),
        lambda: stored(dims={"nI": "4", "nO": 5}),
        lambda: stored(dims=None),
    ],
)
def test_foreign_weights_raise(state: Callable[[], bytes]) -> None:
    with pytest.raises(InputError, match=r"^The stored weights cannot be read: .*\.$"):
        load(state())


def test_weights_for_other_settings_raise_before_memory_is_allocated() -> None:
    """A config may ask for more memory, or for more layers, than any machine has."""
    state = state_of(make())
    for settings in ({"depth": 10**12}, {"dense_width": 10**15}):
        with pytest.raises(InputError, match="of another architecture or other settings"):
            shim_of(build(**settings)).from_bytes(state)


@pytest.mark.parametrize("raised", [MemoryError, OSError, torch.OutOfMemoryError])
def test_system_error_while_loading_weights_is_not_wrapped(
    raised: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*args: Any, **settings: Any) -> Any:
        raise raised(5, "failed")

    content = stored()
    monkeypatch.setattr(shims, "load", fails)
    with pytest.raises(raised):
        load(content)


def pickled(content: Any) -> bytes:
    return pickle.dumps(content, protocol=2)  # torch's own


@pytest.mark.parametrize(
    "pack",
    [
        pickled,
        saved,
        lambda intruder: saved(intruder, _use_new_zipfile_serialization=False),
        lambda intruder: seal(saved(intruder)),
        lambda intruder: stored(weights=saved(intruder)),
        lambda intruder: stored(weights=pickled(intruder)),
    ],
)
def test_pickled_code_is_not_executed(pack: Callable[[Intruder], bytes], tmp_path: Path) -> None:
    path = tmp_path / "intruded"
    state = pack(Intruder(path))
    with pytest.raises(ValueError, match="weights cannot be read"):
        load(state)
    assert not path.exists()
    # Control: unpickling the bytes runs the code.
    intruder = Intruder(path)
    pickle.loads(pickled(intruder))
    assert path.exists()
    path.rmdir()
    torch.load(io.BytesIO(saved(intruder)), weights_only=False)
    assert path.exists()
