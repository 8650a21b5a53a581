"""Further training of a component: new labels, and rehearsal."""

import numpy as np
import pytest
import spacy
import torch
from spacy.cli.train import train as spacy_train
from spacy.tokens import Doc, DocBin, Span
from spacy.training import Example
from thinc.api import Adam, Config

from pipelines import OWN_TRANSFORMER, SENTENCES, copied, listening, make_examples, small, train
from spacy_crf_ner.training.optimizer import GroupedAdam
from spacy_crf_ner.training.rehearsal import rehearse

TEXTS = [text for text, _ in SENTENCES]
NEW = [
    ("Ada moved the Kestrel to Hanoi.", [(0, 3, "PERSON"), (14, 21, "PRODUCT"), (25, 30, "GPE")]),
    ("The Kestrel flies.", [(4, 11, "PRODUCT")]),
]


@pytest.fixture
def learned_in(shared):
    """Loads a trained pipeline of a scheme."""

    def load(scheme):
        def make():
            nlp = small(scheme=scheme)
            train(nlp, make_examples(nlp), steps=15, learn_rate=0.02)
            return nlp

        return spacy.load(shared(f"learned-{scheme}", make))

    return load


@pytest.fixture
def learned(learned_in):
    """A trained pipeline, for what does not depend on its scheme."""
    return learned_in("biluo")


def found(nlp):
    return [[(e.start, e.end, e.label_) for e in doc.ents] for doc in nlp.pipe(TEXTS)]


def confidences(nlp):
    return [e._.confidence for doc in nlp.pipe(TEXTS) for e in doc.ents]


# New labels


@pytest.mark.parametrize("scheme", ["biluo", "bio", "io"])
def test_nine_added_labels_change_no_prediction_and_no_posterior(scheme, learned_in):
    learned = learned_in(scheme)
    ner = learned.get_pipe("crf_ner")
    ner.temperature, ner.spans_key, ner.candidate_threshold = 2.0, "sc", 0.001
    docs = [*map(learned.make_doc, TEXTS)]

    def queries(ner):
        found = {(i, span): p for i, each in enumerate(ner.predict(docs)) for span, p in each[2]}
        for i, labelings in enumerate(ner.nbest(docs, 3)):
            found |= {(i, rank): each.log_probability for rank, each in enumerate(labelings)}
        return found | {i: each.entropy for i, each in enumerate(ner.uncertainty(docs))}

    gold = make_examples(learned)
    gold[0].reference.set_ents([], default="outside")  # one that the model has not learned
    temperature = ner.fit_temperature(gold)
    before = queries(ner)
    assert len(before) > 30
    entities, sure = found(learned), confidences(learned)
    for i in range(9):
        ner.add_label(f"NEW {i}")
    again = copied(learned)
    for nlp in (learned, again):
        pipe = nlp.get_pipe("crf_ner")
        assert queries(pipe) == pytest.approx(before, abs=1e-5)
        assert found(nlp) == entities
        assert confidences(nlp) == pytest.approx(sure, abs=1e-6)
        assert pipe.fit_temperature(gold) == pytest.approx(temperature, rel=1e-3)


def test_added_label_is_predicted_from_its_first_gold_entity_on(learned):
    ner = learned.get_pipe("crf_ner")
    for label in ("PRODUCT", "EVENT"):
        ner.add_label(label)
    assert ner.labels[3:] == ("PRODUCT", "EVENT") and ner.enabled_labels == ner.labels[:3]
    learned.update(make_examples(learned))
    assert ner.enabled_labels == ner.labels[:3]
    learned.update(make_examples(learned, NEW))
    assert ner.enabled_labels == ner.labels[:4]
    again = copied(learned)
    assert again.get_pipe("crf_ner").enabled_labels == ner.labels[:4]
    learned.initialize(lambda: make_examples(learned))
    assert ner.enabled_labels == ner.labels


def test_added_label_is_not_predicted_if_its_gold_does_not_align(learned):
    """Nothing of it is learned."""
    ner = learned.get_pipe("crf_ner")
    ner.add_label("PRODUCT")
    gold = Doc(
        learned.vocab, ["The", "Kes", "trel", "flies", "."], [True, False, True, False, False]
    )
    gold.set_ents([Span(gold, 2, 3, "PRODUCT")], default="outside")
    example = Example(learned.make_doc(gold.text), gold)
    with pytest.warns(UserWarning, match="do not align"):
        learned.update([example])
    assert ner.cfg["untrained"] == ["PRODUCT"]
    gold.set_ents([Span(gold, 1, 3, "PRODUCT")], default="outside")
    learned.update([Example(learned.make_doc(gold.text), gold)])
    assert ner.cfg["untrained"] == []


@pytest.mark.parametrize("scheme", ["biluo", "bio", "io"])
def test_add_label_keeps_old_weights(scheme, learned_in):
    learned = learned_in(scheme)
    ner = learned.get_pipe("crf_ner")
    network = ner.model.get_ref("output_layer").shims[0].module
    before = {name: value.clone() for name, value in network.state_dict().items()}
    C = network.dims["nO"]
    ner.add_label("PRODUCT")
    grown = ner.model.get_ref("output_layer").shims[0].module
    assert grown.dims["nO"] == ner.model.get_dim("nO") == len(ner.scheme.tags) > C
    for name, value in grown.state_dict().items():
        size = before[name].shape
        assert torch.equal(value[tuple(slice(n) for n in size)], before[name]), name
    # A path scores higher with "O" in place of a new tag, by the same margin everywhere.
    emissions = np.concatenate([ner.trellis(learned.make_doc(text)).emissions for text in TEXTS])
    margins = emissions[:, :1] - emissions[:, C:]
    np.testing.assert_allclose(margins, margins[0, 0], atol=1e-4)
    assert margins[0, 0] > 1


@pytest.mark.parametrize("scheme, stored", [("biluo", False), ("bio", True), ("io", False)])
def test_update_after_add_label_learns_new_label(scheme, stored, learned_in):
    """With the optimizer of before, in the pipeline of before or one that is loaded."""
    learned = learned_in(scheme)
    optimizer = learned.resume_training()
    optimizer.learn_rate = 0.01
    examples = make_examples(learned)
    learned.update(examples, sgd=optimizer)  # the optimizer has seen the old weights
    if stored:
        learned = copied(learned)
    learned.get_pipe("crf_ner").add_label("PRODUCT")
    examples = make_examples(learned, [*SENTENCES, *NEW])
    for _ in range(25):
        losses = learned.update(examples, sgd=optimizer, losses={})
    assert losses["crf_ner"] < 1.0
    doc = learned(NEW[0][0])
    assert [(e.start_char, e.end_char, e.label_) for e in doc.ents] == NEW[0][1]
    again = copied(learned)
    assert found(again) == found(learned)


# Rehearsal


def test_rehearse_restores_forgotten_entities(learned):
    before = found(learned)
    ner = learned.get_pipe("crf_ner")
    raw = [Example(doc, doc) for doc in map(learned.make_doc, TEXTS)]
    assert ner.rehearse(raw) == {"crf_ner": 0.0}  # nothing to go back to
    optimizer = learned.resume_training()
    optimizer.learn_rate = 0.01
    for _ in range(20):  # to forget
        learned.update(make_examples(learned, [(text, []) for text in TEXTS]), sgd=optimizer)
    assert found(learned) != before
    once = ner.rehearse(raw)["crf_ner"]
    assert ner.rehearse(raw, losses={"crf_ner": 1.0})["crf_ner"] == pytest.approx(1.0 + once)
    first = learned.rehearse(raw, sgd=optimizer, losses={})["crf_ner"]
    for _ in range(40):
        last = learned.rehearse(raw, sgd=optimizer, losses={})["crf_ner"]
    assert last < first / 5
    assert found(learned) == before


@pytest.mark.parametrize("label_first", [False, True])
def test_rehearse_leaves_out_labels_that_were_not_trained(label_first, learned):
    """Whether they were added before training is resumed, or after."""
    ner = learned.get_pipe("crf_ner")
    C = len(ner.scheme.tags)
    if label_first:
        ner.add_label("PRODUCT")
    learned.resume_training()
    ner.add_label("EVENT")
    network = ner.model.get_ref("output_layer").shims[0].module
    with torch.no_grad():
        network.projection.bias += torch.linspace(-1, 1, network.dims["nO"])
    assert ner.rehearse([Example(doc, doc) for doc in map(learned.make_doc, TEXTS)])["crf_ner"] > 0
    gradient = network.projection.bias.grad
    assert gradient[:C].any() and not gradient[C:].any()


@pytest.mark.parametrize("overlap", [False, True])
def test_rehearse_compares_a_trained_label_that_was_added_after_an_untrained_one(overlap):
    nlp = small(overlap=overlap)
    ner = nlp.get_pipe("crf_ner")
    train(nlp, make_examples(nlp), steps=1)
    sizes = [len(ner.scheme.tags)]
    for label in ("EVENT", "PRODUCT"):
        ner.add_label(label)
        sizes.append(len(ner.scheme.tags))
    nlp.update(make_examples(nlp, NEW))
    nlp.resume_training()
    ner.add_label("LATER")
    network = ner.model.get_ref("output_layer").shims[0].module
    network.zero_grad()
    with torch.no_grad():
        network.projection.bias += torch.linspace(-1, 1, network.dims["nO"])
    ner.rehearse([Example(doc, doc) for doc in map(nlp.make_doc, TEXTS)])
    old, event, product, later = torch.tensor_split(network.projection.bias.grad, sizes)
    assert old.any() and product.any() and not event.any() and not later.any()


@pytest.mark.parametrize("large", [False, True])
def test_nlp_rehearse_applies_learn_rate_multiplier_of_head(large):
    """Five times the steps, in arrays that torch updates too; the tok2vec has no multiplier."""
    nlp = small(width=128 if large else 8)
    train(nlp, make_examples(nlp), steps=1)
    nlp.resume_training()
    ner = nlp.get_pipe("crf_ner")
    shim = ner.model.get_ref("output_layer").shims[0]
    layer = next(node for node in ner.model.get_ref("tok2vec").walk() if node.has_param("W"))
    with torch.no_grad():
        shim.module.projection.bias[0] += 3
    before, raw = ner.to_bytes(), [Example(doc, doc) for doc in map(nlp.make_doc, TEXTS)]
    steps = []
    for factor in (1.0, 5.0):
        ner.from_bytes(before)
        state = {name: value.clone() for name, value in shim.module.state_dict().items()}
        groups = {"head": {"names": r"\.", "learn_rate": factor}}
        nlp.rehearse(raw, sgd=GroupedAdam(0.001, use_averages=False, groups=groups))
        after = {name: value - state[name] for name, value in shim.module.state_dict().items()}
        steps.append((after, layer.get_param("W").copy()))
    (once, W), (five, same_W) = steps
    np.testing.assert_array_equal(W, same_W)
    for name, step in once.items():
        assert step.abs().max() > 5e-4, name
        torch.testing.assert_close(five[name], 5 * step, atol=1e-6, rtol=1e-3)


def test_nlp_rehearse_trains_a_transformer_of_the_component(tiny_transformer):
    """The gradients that it collects are not zeros when it uses them."""
    nlp = spacy.blank("en")
    own = {**OWN_TRANSFORMER, "name": tiny_transformer}
    nlp.add_pipe("crf_ner", config={"model": {"hidden_width": 8, "tok2vec": own}})
    train(nlp, make_examples(nlp), steps=1)
    nlp.resume_training()
    ner = nlp.get_pipe("crf_ner")
    shims = [shim for node in ner.model.walk() for shim in node.shims]
    with torch.no_grad():
        ner.model.get_ref("output_layer").shims[0].module.projection.bias[0] += 3
    before, raw = ner.to_bytes(), [Example(doc, doc) for doc in map(nlp.make_doc, TEXTS)]
    moved = []
    for train_again in (ner.rehearse, nlp.rehearse):
        ner.from_bytes(before)
        state = [{n: w.clone() for n, w in shim._model.named_parameters()} for shim in shims]
        train_again(raw, sgd=Adam(0.001))
        moved.append(
            {
                (i, name)
                for i, shim in enumerate(shims)
                for name, weights in shim._model.named_parameters()
                if not torch.equal(weights, state[i][name])
            }
        )
    assert moved[0] == moved[1] and {i for i, _ in moved[0]} == {0, 1}


def write(path, nlp, sentences):
    DocBin(docs=[eg.reference for eg in make_examples(nlp, sentences)]).to_disk(path)
    return path


def config_of(source, folder, nlp, before_update):
    new = str(write(folder / "new.spacy", nlp, NEW))
    corpus = {"@readers": "spacy.Corpus.v1", "path": new}
    config = {
        "nlp": {"lang": "en", "pipeline": ["ner"]},
        "components": {"ner": {"source": str(source), "component": "crf_ner"}},
        "corpora": {"train": corpus, "dev": corpus},
        "training": {
            "seed": 0,
            "max_steps": 40,
            "eval_frequency": 40,
            "optimizer": {"@optimizers": "Adam.v1", "learn_rate": 0.01},
            "before_update": before_update,
        },
    }
    blank = spacy.blank("en").config
    Config(blank).merge(config).to_disk(folder / "config.cfg")
    return folder / "config.cfg"


@pytest.mark.slow
def test_spacy_train_adds_a_label_and_keeps_the_others(learned, tmp_path):
    nlp = learned
    before = found(nlp)
    nlp.to_disk(tmp_path / "old")
    raw = write(tmp_path / "raw.spacy", nlp, [(text, []) for text in TEXTS])
    callback = {
        "@callbacks": "spacy-crf-ner.rehearse.v1",
        "path": str(raw),
        "component": "ner",
        "labels": ["PRODUCT"],
    }
    spacy_train(config_of(tmp_path / "old", tmp_path, nlp, callback), tmp_path / "out")
    trained = spacy.load(tmp_path / "out" / "model-last")
    assert trained.get_pipe("ner").labels == ("GPE", "ORG", "PERSON", "PRODUCT")
    doc = trained(NEW[0][0])
    assert [(e.start_char, e.end_char, e.label_) for e in doc.ents] == NEW[0][1]
    # Rehearsed docs do not constrain the new label; the old entities are unchanged.
    old = [[ent for ent in ents if ent[2] != "PRODUCT"] for ents in found(trained)]
    assert old == before


@pytest.mark.parametrize(
    "sentences, component, is_trained, message",
    [
        ([("", [])], "ner", True, "expected docs to rehearse, got none"),
        (SENTENCES, "parser", True, r"a trained 'parser', one of.*'ner'.*, got none"),
        (SENTENCES, "ner", False, r"expected a trained 'ner'.*source ="),
    ],
)
def test_rehearse_without_docs_or_trained_component_raises(
    sentences, component, is_trained, message, tmp_path
):
    nlp = small(width=8, name="ner")
    train(nlp, make_examples(nlp), steps=1)
    callback = rehearse(write(tmp_path / "raw.spacy", nlp, sentences), component)
    if is_trained:
        nlp.resume_training()
    with pytest.raises(ValueError, match=message):
        callback(nlp, {"step": 0, "epoch": 0})


def test_rehearse_with_listener_trains_head(tmp_path):
    nlp = listening("tok2vec")
    train(nlp, make_examples(nlp), steps=20)
    optimizer = nlp.resume_training()
    ner = nlp.get_pipe("crf_ner")
    network = ner.model.get_ref("output_layer").shims[0].module
    with torch.no_grad():
        network.projection.bias += torch.linspace(-1, 1, network.dims["nO"])
    docs: list[Doc] = [nlp.get_pipe("tok2vec")(nlp.make_doc(text)) for text in TEXTS]
    raw = [Example(doc, doc) for doc in docs]
    with pytest.raises(ValueError, match="listens to 'tok2vec', which has not run"):
        ner.rehearse([Example(doc, doc) for doc in map(nlp.make_doc, TEXTS)])
    first = ner.rehearse(raw, sgd=optimizer)["crf_ner"]
    for _ in range(30):
        last = ner.rehearse(raw, sgd=optimizer)["crf_ner"]
    assert 0.0 <= last < first / 2
    # In training, the components before it read the docs.
    before_update = rehearse(write(tmp_path / "raw.spacy", nlp, SENTENCES), "crf_ner")
    before_update(nlp, {"step": 0, "epoch": 0})
    assert network.projection.bias.grad.any()
