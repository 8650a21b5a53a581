"""The recurrent encoder as a tok2vec of spaCy's own components: a tagger, a text classifier."""

from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import spacy
import torch
from hypothesis import given
from hypothesis import strategies as st
from spacy.cli.train import train
from spacy.language import Language
from spacy.tokens import DocBin
from spacy.training import Example
from thinc.api import Model
from torch import nn

from graphs import linear_layer, linear_of, random_docs
from pipelines import TOK2VEC
from spacy_crf_ner.ml import bilstm_crf as network
from spacy_crf_ner.ml import buckets
from spacy_crf_ner.ml.network import rnn_encoder

ROOT = Path(__file__).parents[2]
RNNS = {"rnn": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU}
every_encoder = pytest.mark.parametrize("rnn", sorted(RNNS))
both_ways = pytest.mark.parametrize("bidirectional", [True, False])
any_depth = pytest.mark.parametrize("depth", [1, 2])


def packed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read docs as on a GPU."""
    monkeypatch.setattr(network, "_encode_padded", network._encode_packed)


def in_one_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read all docs at once: 15 tokens of 9."""
    monkeypatch.undo()
    monkeypatch.setattr(buckets, "MAX_PADDING_RATIO", 2.0)


def in_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read docs of 5 and 3 tokens at once, and then that of 1."""
    monkeypatch.undo()


every_way = pytest.mark.parametrize("way", [packed, in_one_group, in_groups])

# Made up for these tests.
OPINIONS = [
    ("What a lovely little film, I smiled all the way home.", "good"),
    ("The soup was warm and the waiter was kind.", "good"),
    ("We had a great time and would come again.", "good"),
    ("Her voice is wonderful and the songs are fresh.", "good"),
    ("A clever book that is a joy to read.", "good"),
    ("The room was bright and clean.", "good"),
    ("What a dull film, I slept through half of it.", "bad"),
    ("The soup was cold and the waiter was rude.", "bad"),
    ("We lost a whole evening and want our money back.", "bad"),
    ("His voice is tired and the songs are stale.", "bad"),
    ("A clumsy book that is a pain to read.", "bad"),
    ("The room was dark and full of dust.", "bad"),
]


def make(**settings: Any) -> tuple[Model[Any, Any], list[Any]]:
    """An encoder of width 5 over vectors of width 4, and the list of its gradients of docs."""
    spacy.util.fix_random_seed(0)
    tok2vec, d_docs = linear_layer()
    return rnn_encoder(tok2vec, hidden_width=5, **settings).initialize(X=random_docs()), d_docs


def module_of(model: Model[Any, Any]) -> Any:
    return model.shims[0].module


def twin_of(model: Model[Any, Any], rnn: str, **settings: Any) -> nn.Module:
    """Torch's own linear layer and recurrent network, with the weights of a model."""
    linear = nn.Linear(3, 4)
    for name, param in (("weight", "W"), ("bias", "b")):
        value = linear_of(model.layers[0]).get_param(param).copy()
        getattr(linear, name).data = torch.from_numpy(value)
    recurrent = RNNS[rnn](4, 5, batch_first=True, **settings)
    state = module_of(model).rnn.state_dict()
    recurrent.load_state_dict({name: value.clone() for name, value in state.items()})
    return nn.Sequential(linear, recurrent)


# The layer


@every_encoder
@both_ways
@any_depth
@every_way
def test_encoder_output_and_gradients_match_torch_on_single_docs(
    rnn: str, bidirectional: bool, depth: int, way: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    way(monkeypatch)
    model, d_docs = make(rnn=rnn, bidirectional=bidirectional, depth=depth)
    twin: Any = twin_of(model, rnn, bidirectional=bidirectional, num_layers=depth)
    docs = random_docs()
    predicted = model.predict(docs)
    Y, backprop = model.begin_update(docs)
    dY = [np.random.default_rng(1).normal(size=y.shape).astype("f") for y in Y]
    assert backprop(dY) is docs
    inputs = [torch.from_numpy(doc.tensor).requires_grad_() for doc in docs]
    for x, y, predicted_y, dy in zip(inputs, Y, predicted, dY, strict=True):
        if len(x):
            expected_y = twin(x[None])[0][0]
            for found in (y, predicted_y):
                np.testing.assert_allclose(found, expected_y.detach(), atol=1e-6)
            (expected_y * torch.from_numpy(dy)).sum().backward()
    for x, d_doc in zip(inputs, d_docs, strict=True):
        expected = np.zeros((0, 3)) if x.grad is None else x.grad
        np.testing.assert_allclose(d_doc, expected, atol=1e-5)
    linear = linear_of(model.layers[0])
    np.testing.assert_allclose(linear.get_grad("W"), twin[0].weight.grad, atol=1e-5)
    np.testing.assert_allclose(linear.get_grad("b"), twin[0].bias.grad, atol=1e-5)
    assert linear.get_grad("W").all()
    weights = dict(module_of(model).rnn.named_parameters())
    for name, weight in twin[1].named_parameters():
        np.testing.assert_allclose(weights[name].grad, weight.grad, atol=1e-5, err_msg=name)


@every_encoder
def test_dropout_between_layers_padded_matches_packed(
    rnn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With docs of equal length, so that packed and padded tokens have the same order."""
    alike = random_docs([4, 4, 4])
    model, _ = make(rnn=rnn, depth=3, dropout=0.5)
    found = []
    for way in (packed, in_one_group):
        way(monkeypatch)
        torch.manual_seed(0)
        found.append(np.concatenate(model.begin_update(alike)[0]))
    np.testing.assert_allclose(*found, atol=1e-6)
    assert not np.allclose(found[0], np.concatenate(model.begin_update(alike)[0]), atol=1e-3)


@given(st.lists(st.integers(0, 40), max_size=30))
def test_bucket_by_length_keeps_padding_within_bound(lengths: list[int]) -> None:
    groups = buckets.bucket_by_length(lengths)
    longest_first = [[lengths[doc] for doc in docs] for docs in groups]
    filled = sorted((n for n in lengths if n), reverse=True)
    assert [n for of_group in longest_first for n in of_group] == filled
    assert sorted(doc for docs in groups for doc in docs) == [i for i, n in enumerate(lengths) if n]
    for of_group, (following, *_) in zip_longest(longest_first, longest_first[1:], fillvalue=[0]):
        bound = 1.25 * sum(of_group)
        assert len(of_group) * of_group[0] <= bound
        # Another doc would have been too much.
        if following:
            assert (len(of_group) + 1) * of_group[0] > bound + 1.25 * following


@pytest.mark.parametrize("training", [True, False])
@every_encoder
def test_encoder_pads_docs_in_training_and_for_lstm(
    rnn: str, training: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a CPU in training, and an LSTM in prediction too."""
    called = []
    for way in ("_encode_padded", "_encode_packed"):
        read = getattr(network, way)
        monkeypatch.setattr(network, way, lambda *a, way=way, f=read: called.append(way) or f(*a))
    model, _ = make(rnn=rnn)
    called.clear()
    model(random_docs(), is_train=training)
    assert called == ["_encode_padded" if training or rnn == "lstm" else "_encode_packed"]


def test_rnn_encoder_with_rnn_none_raises() -> None:
    with pytest.raises(ValueError, match=r"rnn: expected an encoder, got 'none'"):
        make(rnn="none")


# Below spaCy's components


def encoder(**settings: Any) -> dict[str, Any]:
    """The config of a small encoder."""
    name = "spacy-crf-ner.RNNEncoder.v1"
    return {"@architectures": name, "hidden_width": 16, "tok2vec": TOK2VEC, **settings}


def opinions(nlp: Language, texts: list[tuple[str, str]]) -> list[Example]:
    return [
        Example.from_dict(
            nlp.make_doc(text), {"cats": {name: float(name == gold) for name in ("good", "bad")}}
        )
        for text, gold in texts
    ]


def fit(nlp: Language, examples: list[Example], steps: int) -> Language:
    spacy.util.fix_random_seed(0)
    optimizer = nlp.initialize(lambda: examples)
    optimizer.learn_rate = 0.03
    for _ in range(steps):
        nlp.update(examples, sgd=optimizer)
    return nlp


def best(scores: dict[str, float]) -> str:
    return max(scores, key=lambda name: scores[name])


@every_encoder
def test_tagger_overfits_training_examples(rnn: str, tmp_path: Path) -> None:
    nlp = spacy.blank("en")
    tagger = {"@architectures": "spacy.Tagger.v2", "tok2vec": encoder(rnn=rnn, depth=2)}
    nlp.add_pipe("tagger", config={"model": tagger})
    # The tag of "run" depends on the word before it.
    texts = {"They run": ["P", "V"], "A run": ["D", "N"], "They like a run": ["P", "V", "D", "N"]}
    examples = [Example.from_dict(nlp.make_doc(text), {"tags": t}) for text, t in texts.items()]
    fit(nlp, examples, 15)
    nlp.to_disk(tmp_path)
    for each in (nlp, spacy.load(tmp_path)):
        assert [[token.tag_ for token in doc] for doc in each.pipe(texts)] == [*texts.values()]


# The shipped config


def test_spacy_train_trains_the_shipped_config(tmp_path: Path) -> None:
    blank = spacy.blank("en")
    for name in ("train", "dev"):
        golds = [eg.reference for eg in opinions(blank, OPINIONS)]
        DocBin(docs=golds).to_disk(tmp_path / f"{name}.spacy")
    overrides = {
        "paths.train": str(tmp_path / "train.spacy"),
        "paths.dev": str(tmp_path / "dev.spacy"),
        "training.max_steps": 20,
        "training.eval_frequency": 20,
        "training.optimizer.learn_rate.warmup_steps": 5,
        "training.optimizer.learn_rate.initial_rate": 0.01,
        "components.textcat.model.tok2vec.hidden_width": 16,
    }
    train(ROOT / "configs" / "textcat_rnn.cfg", tmp_path / "out", overrides=overrides)
    nlp = spacy.load(tmp_path / "out" / "model-best")
    assert nlp.meta["performance"]["cats_score"] == 1.0
    assert [best(nlp(text).cats) for text, _ in OPINIONS] == [gold for _, gold in OPINIONS]
    kinds = [node.name for node in nlp.get_pipe("textcat").model.walk()]  # type: ignore[attr-defined]
    assert "rnn_encoder" in kinds
