"""The component: training, prediction, storage, and other components of a pipeline."""

import logging
import pickle
import re
import warnings

import numpy as np
import pytest
import spacy
import srsly
from spacy.language import Language
from spacy.lookups import Lookups
from spacy.tokens import Doc, Span
from spacy.training import Example
from spacy.vocab import Vocab

from pipelines import SENTENCES, TOK2VEC, copied, ents, listening, make_examples, train
from spacy_crf_ner.ml import network
from spacy_crf_ner.pipeline.gold import gold_tags

TEXTS = [text for text, _ in SENTENCES]


def weights(nlp, name="crf_ner"):
    """All weights of the component, by name."""
    model = nlp.get_pipe(name).model
    arrays = {
        (i, param): np.asarray(node.get_param(param))
        for i, node in enumerate(model.walk())
        for param in node.param_names
        if node.has_param(param)
    }
    network = model.get_ref("output_layer").shims[0].module
    arrays.update({key: value.numpy() for key, value in network.state_dict().items()})
    return {key: value.copy() for key, value in arrays.items()}


def assert_equal_weights(first, second):
    assert first.keys() == second.keys() and len(first) > 10
    for key in first:
        np.testing.assert_array_equal(first[key], second[key], err_msg=str(key))


def blank(scheme="biluo", **model):
    nlp = spacy.blank("en")
    model = {"hidden_width": 16, "tok2vec": TOK2VEC, **model}
    nlp.add_pipe("crf_ner", config={"scheme": scheme, "model": model})
    return nlp


# Training and prediction


@pytest.mark.parametrize("scheme, decoder", [("biluo", "crf"), ("bio", "softmax")])
def test_training_overfits_examples(scheme, decoder):
    nlp = blank(scheme, hidden_width=32, decoder=decoder)
    examples = make_examples(nlp)
    losses = train(nlp, examples, 15, learn_rate=0.02)
    assert losses["crf_ner"] < 0.5
    assert [ents(doc) for doc in nlp.pipe(TEXTS)] == [gold for _, gold in SENTENCES]
    assert nlp.evaluate(examples)["ents_f"] == 1.0


def test_io_scheme_merges_adjacent_entities_of_one_label():
    nlp = blank("io", hidden_width=32)
    train(nlp, make_examples(nlp), 15, learn_rate=0.02)
    # Paris and Texas touch: IO has one entity for both.
    assert ents(nlp(TEXTS[5]))[2:] == [(34, 45, "GPE")]
    assert ents(nlp(TEXTS[0])) == SENTENCES[0][1]


def test_scores_do_not_depend_on_the_batch(trained):
    """Thinc's PyTorchLSTM feeds padding to the backward direction: 0.13 was seen."""
    model = trained.get_pipe("crf_ner").model
    docs = [trained.make_doc(text) for text in [*TEXTS, TEXTS[5] * 20]]
    together = model.ops.unflatten(*model.predict(docs)[:2])
    for doc, scores in zip(docs, together):
        if len(doc):
            alone = model.predict([doc]).emissions
            np.testing.assert_allclose(scores, alone, atol=1e-5)


@pytest.mark.slow
def test_doc_of_20000_tokens_is_predicted_and_trained(trained):
    words = (TEXTS[5].split() * 2500)[:20_000]
    doc = trained(Doc(trained.vocab, words=words))
    assert len(doc) == 20_000 and len(doc.ents) > 1000
    nlp = blank()
    eg = Example(Doc(nlp.vocab, words=words), Doc(nlp.vocab, words=words))
    eg.reference.set_ents([Span(eg.reference, 0, 1, "ORG")], default="outside")
    optimizer = nlp.initialize(lambda: [eg])
    assert np.isfinite(nlp.update([eg], sgd=optimizer)["crf_ner"])


def test_training_with_same_seed_gives_equal_weights():
    results = []
    for _ in range(2):
        nlp = blank()
        train(nlp, make_examples(nlp), steps=3, drop=0.3)
        results.append(weights(nlp))
    assert_equal_weights(*results)


def test_training_dropout_reaches_the_network():
    """Thinc's set_dropout_rate does not reach inside a torch module."""
    nlp = blank()
    examples = make_examples(nlp)
    nlp.initialize(lambda: examples)
    model = nlp.get_pipe("crf_ner").model
    features = model.get_ref("tok2vec").predict([eg.x for eg in examples])
    head = model.get_ref("output_layer")

    def losses_at(rate):
        head.attrs["dropout_rate"] = rate
        return [head.begin_update(features)[0].emissions.sum() for _ in range(2)]

    assert losses_at(0.0)[0] == losses_at(0.0)[1]
    assert losses_at(0.5)[0] != losses_at(0.5)[1]
    nlp.update(examples, drop=0.25)
    assert head.attrs["dropout_rate"] == 0.25


def test_rehearse_uses_its_own_dropout_rate():
    """As spaCy's components have it: 0.0 unless `drop` is given, whatever the last update had."""
    nlp = blank()
    examples = make_examples(nlp)
    optimizer = nlp.initialize(lambda: examples)
    nlp.resume_training()
    ner = nlp.get_pipe("crf_ner")
    head = ner.model.get_ref("output_layer")
    nlp.update(examples, sgd=optimizer, drop=0.5)
    nlp.rehearse(examples, sgd=optimizer)
    assert head.attrs["dropout_rate"] == 0.0
    nlp.rehearse(examples, sgd=optimizer, component_cfg={"crf_ner": {"drop": 0.25}})
    assert head.attrs["dropout_rate"] == 0.25
    with pytest.raises(TypeError):
        ner.rehearse(examples, dropout=0.5)


def test_every_weight_learns():
    nlp = blank(dense_width=8, depth=2)
    examples = make_examples(nlp)
    optimizer = nlp.initialize(lambda: examples)
    before = weights(nlp)
    for _ in range(2):
        nlp.update(examples, sgd=optimizer)
    after = weights(nlp)
    assert [key for key in before if np.array_equal(before[key], after[key])] == []


# Labels


def test_given_labels_keep_their_order():
    nlp = blank()
    ner = nlp.get_pipe("crf_ner")
    ner.initialize(lambda: make_examples(nlp), nlp=nlp, labels=["PERSON", "GPE", "ORG", "DATE"])
    assert ner.labels == ("PERSON", "GPE", "ORG", "DATE")
    assert ner.label_data == ["PERSON", "GPE", "ORG", "DATE"]
    assert ner.scheme.tags[1:5] == ("B-PERSON", "I-PERSON", "L-PERSON", "U-PERSON")


def test_labels_that_are_added_before_initialization_come_first():
    nlp = blank()
    ner = nlp.get_pipe("crf_ner")
    assert [ner.add_label(label) for label in ("WORK", "WORK", "ORG")] == [1, 0, 1]
    nlp.initialize(lambda: make_examples(nlp))
    assert ner.labels == ("WORK", "ORG", "GPE", "PERSON")
    assert ner.add_label("GPE") == 0
    for wrong in ("", 3):
        with pytest.raises(ValueError, match="non-empty string"):
            ner.add_label(wrong)


def test_add_label_before_initialize_ignores_tag_count_of_config():
    """TrainablePipe compares nO, here of tags, with the number of labels."""
    nlp = blank(nO=5)
    for i in range(9):
        assert nlp.get_pipe("crf_ner").add_label(f"L{i}") == 1
    train(nlp, make_examples(nlp), steps=1)
    assert nlp.get_pipe("crf_ner").model.get_dim("nO") == 1 + 4 * 12


@pytest.mark.slow
def test_update_with_thousand_labels_lowers_loss():
    nlp = blank()
    ner = nlp.get_pipe("crf_ner")
    for i in range(1000):
        ner.add_label(str(i))
    examples = make_examples(nlp, [("One sentence", [(0, 3, "7")])])
    first, last = (train(nlp, examples, steps, learn_rate=0.02) for steps in (1, 6))
    assert first["crf_ner"] > last["crf_ner"] > 0
    assert len(ner.scheme.tags) == 4001


def test_missing_lexeme_norm_table_is_logged(caplog):
    nlp = blank()
    nlp.vocab.lookups = Lookups()
    with caplog.at_level(logging.DEBUG):
        nlp.initialize(lambda: make_examples(nlp))
        assert "W033" in caplog.text
    caplog.clear()
    nlp.vocab.lookups.add_table("lexeme_norm", {"a": "A"})
    with caplog.at_level(logging.DEBUG):
        nlp.initialize(lambda: make_examples(nlp))
        assert "W033" not in caplog.text


def test_second_initialize_adds_new_labels():
    nlp = blank()
    nlp.initialize(lambda: make_examples(nlp, SENTENCES[:1]))
    nlp.initialize(lambda: make_examples(nlp))
    assert nlp.get_pipe("crf_ner").labels == ("GPE", "PERSON", "ORG")
    potentials = nlp.get_pipe("crf_ner").model.predict([nlp.make_doc(TEXTS[5])])
    assert potentials.emissions.shape == (9, 13)


# Storage


@pytest.mark.parametrize("how", ["disk", "bytes"])
def test_loaded_pipeline_equals_saved_pipeline(trained, how, tmp_path):
    if how == "disk":
        trained.to_disk(tmp_path)
        loaded = spacy.load(tmp_path)
    else:
        loaded = spacy.blank("en")
        loaded.add_pipe("crf_ner", config={"model": {"hidden_width": 32}})
        loaded.from_bytes(trained.to_bytes())
    assert_equal_weights(weights(trained), weights(loaded))
    assert [ents(doc) for doc in loaded.pipe(TEXTS)] == [ents(doc) for doc in trained.pipe(TEXTS)]
    assert loaded.get_pipe("crf_ner").labels == trained.get_pipe("crf_ner").labels


@pytest.mark.parametrize("what", ["component", "pipeline"])
def test_component_and_pipeline_can_be_pickled(trained, what):
    nlp = copied(trained)
    nlp.get_pipe("crf_ner").threshold = 0.25
    expected = ents(nlp(TEXTS[0]))
    if what == "component":
        copy = pickle.loads(pickle.dumps(nlp.get_pipe("crf_ner")))
        doc = copy(Doc(copy.vocab).from_bytes(nlp.make_doc(TEXTS[0]).to_bytes()))
    else:
        again = pickle.loads(pickle.dumps(nlp))
        copy, doc = again.get_pipe("crf_ner"), again(TEXTS[0])
    assert copy.threshold == 0.25
    assert ents(doc) == expected != []


def test_exclude_leaves_parts_out_of_storage(trained, tmp_path):
    """Labels are stored apart from the weights; settings are those of the config."""
    ner = trained.get_pipe("crf_ner")
    config = {"model": {"hidden_width": 32}, "threshold": 0.1}
    whole, parts = (trained.create_pipe("crf_ner", config=config) for _ in range(2))
    whole.from_bytes(ner.to_bytes(exclude=["vocab"]))
    for kept, left_out in (("cfg", "model"), ("model", "cfg")):
        ner.to_disk(tmp_path / kept, exclude=[left_out])
        assert not (tmp_path / kept / left_out).exists()
        parts.from_disk(tmp_path / kept, exclude=[left_out])
        assert (parts.labels, parts.threshold) == (ner.labels, 0.1)
    for each in (whole, parts):
        found = [ents(each(trained.make_doc(text))) for text in TEXTS]
        assert found == [ents(trained(text)) for text in TEXTS]


def test_uninitialized_pipeline_can_be_stored_and_trained_later(tmp_path):
    blank().to_disk(tmp_path)
    nlp = spacy.load(tmp_path)
    with pytest.raises(ValueError, match=r"no weights yet: call nlp\.initialize\(\)"):
        nlp("Not yet")
    assert train(nlp, make_examples(nlp), steps=2)["crf_ner"] > 0


def test_labels_not_matching_weights_raise(trained, tmp_path):
    trained.to_disk(tmp_path)
    cfg = srsly.read_json(tmp_path / "crf_ner" / "cfg")
    srsly.write_json(tmp_path / "crf_ner" / "cfg", {**cfg, "labels": ["GPE"]})
    (tmp_path / "crf_ner" / "digests.json").unlink()
    with pytest.raises(ValueError, match=r"expected a model of 5 tags .*'GPE'.* got one of 13"):
        spacy.load(tmp_path)("Hanoi")


# Neighbors


def test_meta_and_scores_match_spacy_ner():
    ours, theirs = spacy.blank("en"), spacy.blank("en")
    ours.add_pipe("crf_ner", name="ner")
    theirs.add_pipe("ner")
    summary = dict(ours.analyze_pipes()["summary"]["ner"])
    assert summary.pop("assigns")[-1] == "span._.confidence"
    assert summary.items() < theirs.analyze_pipes()["summary"]["ner"].items()
    a, b = ours.get_pipe_meta("ner"), theirs.get_pipe_meta("ner")
    assert (a.requires, a.retokenizes) == (b.requires, b.retokenizes)
    assert list(a.assigns) == [*b.assigns, "span._.confidence"]
    assert a.default_score_weights == b.default_score_weights
    examples = make_examples(ours)  # the scorers differ where labels are not annotated
    for eg in examples:
        eg.predicted.ents = [
            eg.predicted.char_span(e.start_char, e.end_char, "ORG") for e in eg.y.ents
        ]
    assert ours.get_pipe("ner").score(examples) == theirs.get_pipe("ner").score(examples)


def test_a_sourced_component_predicts_the_same(trained):
    nlp = spacy.blank("en")
    nlp.add_pipe("crf_ner", source=trained, name="again")
    assert [ents(doc) for doc in nlp.pipe(TEXTS)] == [ents(doc) for doc in trained.pipe(TEXTS)]


def test_frozen_component_keeps_weights(trained):
    nlp = spacy.blank("en")
    nlp.add_pipe("crf_ner", source=trained, name="crf_ner")
    nlp.add_pipe("tagger").add_label("X")
    before = weights(nlp)
    examples = make_examples(nlp)
    with nlp.select_pipes(enable=["tagger"]):
        optimizer = nlp.initialize(lambda: examples)
    nlp.update(examples, sgd=optimizer, exclude=["crf_ner"])
    assert_equal_weights(before, weights(nlp))
    nlp.update(examples, sgd=optimizer)
    assert (before["projection.bias"] != weights(nlp)["projection.bias"]).any()


@pytest.mark.parametrize("kind", ["tok2vec", "transformer"])
def test_crf_ner_with_listener_learns_and_reloads(kind, tiny_transformer, tmp_path):
    nlp = listening(kind, tiny_transformer=tiny_transformer)
    examples = make_examples(nlp)
    train(nlp, examples, 40 if kind == "transformer" else 15, learn_rate=0.01)
    assert nlp.evaluate(examples)["ents_f"] > 0.6
    nlp.to_disk(tmp_path)
    loaded = spacy.load(tmp_path)
    assert [ents(doc) for doc in loaded.pipe(TEXTS)] == [ents(doc) for doc in nlp.pipe(TEXTS)]


def test_disabled_upstream_component_raises():
    """SpaCy gives the listener zeros, and the user garbage (spaCy issue 13325)."""
    nlp = listening("tok2vec")
    nlp.initialize(lambda: make_examples(nlp))
    with (
        nlp.select_pipes(disable=["tok2vec"]),
        pytest.raises(ValueError, match=r"listens to 'tok2vec'.*enable_pipe\('tok2vec'\)"),
    ):
        nlp("Tim Cook visited Hanoi.")
    assert ents(nlp("")) == []


def test_upstream_component_not_annotating_in_training_raises():
    nlp = listening("tok2vec")
    examples = make_examples(nlp)
    optimizer = nlp.initialize(lambda: examples)
    with pytest.raises(ValueError, match=r"'tok2vec', .*training\.annotating_components"):
        nlp.update(examples, sgd=optimizer, annotates=["crf_ner"])
    nlp.update(examples, sgd=optimizer, annotates=["tok2vec", "crf_ner"])


@Language.component("test_splitter")
def split(doc):
    with doc.retokenize() as retokenizer:
        retokenizer.split(doc[0], ["Wash", "ington"], heads=[(doc[0], 0), (doc[0], 0)])
    return doc


def test_splitting_tokens_between_upstream_and_listener_raises():
    """spaCy drops the vectors of merged tokens, but adds too many for those that it splits."""
    nlp = listening("tok2vec")
    nlp.initialize(lambda: make_examples(nlp))
    nlp.add_pipe("test_splitter", before="crf_ner")
    with pytest.raises(ValueError, match=r"has read 3 tokens of the doc 'Wash.*not these 2.*Move"):
        nlp("Washington")


def test_predict_does_not_read_doc_text():
    """It would read every token once more."""

    class Silent(Doc):
        @property
        def text(self):
            raise AssertionError

    nlp = listening("tok2vec")
    nlp.initialize(lambda: make_examples(nlp))
    (doc,) = nlp.pipe([Silent(nlp.vocab, ["Tim", "Cook"])])
    assert len(doc.tensor) == len(doc) == 2


@pytest.mark.parametrize("name, behind", [("tok2vec", False), ("tok2vec", True), ("other", False)])
def test_upstream_component_not_before_the_listener_raises(name, behind):
    nlp = listening("tok2vec", "*" if name == "tok2vec" else name)
    if name == "tok2vec":
        nlp.remove_pipe(name)
    if behind:
        nlp.add_pipe(name)
    message = rf"listens to '{name}', .* before it in the pipeline .*nlp\.add_pipe\('tok2vec', bef"
    with pytest.raises(ValueError, match=message):
        nlp.initialize(lambda: make_examples(nlp))


def test_sourced_pipe_beside_tok2vec_of_another_width_raises():
    source = listening("tok2vec")
    source.initialize(lambda: make_examples(source))
    nlp = spacy.blank("en")
    nlp.add_pipe("tok2vec", config={"model": {**TOK2VEC, "width": 24}})
    nlp.initialize(lambda: make_examples(nlp))
    nlp.add_pipe("crf_ner", source=source)
    with pytest.raises(ValueError, match=r"'tok2vec', .* width 24, .* 32\. .*replace_listeners\("):
        nlp("Tim Cook visited Hanoi.")
    with pytest.raises(ValueError, match=r"expected token vectors of width 32, .* got 24"):
        nlp.update(make_examples(nlp), sgd=False)


# Bad input


@pytest.mark.parametrize(
    "kind, limit, layer",
    [("tok2vec", 1000, "[crf_ner] bilstm_crf"), ("transformer", 20_000, "[tok2vec] transformer")],
)
def test_initialize_weights_too_large_to_save_raises(
    kind, limit, layer, tiny_transformer, monkeypatch
):
    nlp = listening(kind, tiny_transformer=tiny_transformer)
    monkeypatch.setattr(network, "MAX_BYTES", limit)
    with pytest.raises(ValueError, match=re.escape(f"{layer}: expected weights of at most 4 GiB")):
        nlp.initialize(lambda: make_examples(nlp))


def test_docs_of_another_vocab_are_read_the_same_or_raise(trained):
    doc = trained("Tim Cook visited Hanoi.")
    expected = [(ent.text, ent.label_, ent._.confidence) for ent in doc.ents]
    words, spaces = [t.text for t in doc], [bool(t.whitespace_) for t in doc]
    found = trained(Doc(spacy.blank("de").vocab, words, spaces)).ents
    assert [(ent.text, ent.label_, ent._.confidence) for ent in found] == expected
    for bare in (Doc(Vocab(), words, spaces), Doc(Vocab()).from_bytes(doc.to_bytes())):
        with pytest.raises(ValueError, match=r"'Tim Cook .* has a vocab without .*Doc\(nlp\.vocab"):
            trained(bare)


def test_initialize_without_entities_raises():
    nlp = blank()
    with pytest.raises(ValueError, match=r"expected examples with entities, got none"):
        nlp.initialize(lambda: make_examples(nlp, SENTENCES[1:4]))


def test_update_with_unknown_label_raises_with_doc_and_span(trained, tmp_path):
    trained.to_disk(tmp_path)
    nlp = spacy.load(tmp_path)
    eg = make_examples(nlp, [("Hanoi in May", [(0, 5, "GPE"), (9, 12, "DATE")])])
    expected = r"'May' \(DATE, characters 9:12\) in the doc 'Hanoi in May'.*'GPE'.*got 'DATE'"
    with pytest.raises(ValueError, match=expected):
        nlp.update(eg, sgd=nlp.create_optimizer())


@pytest.mark.parametrize("start, end", [(0, 2), (1, 3), (0, 1)])
def test_entity_at_whitespace_raises_with_doc_and_span(start, end):
    """SpaCy's ner raises E024 here, which names neither."""
    nlp = blank()
    nlp.initialize(lambda: make_examples(nlp))
    doc = Doc(nlp.vocab, words=[" ", "Hanoi", "\n"])
    gold = doc.copy()
    gold.set_ents([Span(gold, start, end, "GPE")])
    expected = re.escape(repr(gold.ents[0].text)) + r" \(GPE, .*begins and ends with a word"
    for act in (nlp.update, lambda examples: nlp.initialize(lambda: examples)):
        with pytest.raises(ValueError, match=expected):
            act([Example(doc, gold)])


def test_label_with_exclamation_mark_raises():
    """It was spaCy's mark of negative spans."""
    nlp = blank()
    nlp.initialize(lambda: make_examples(nlp))
    examples = make_examples(nlp, [("Who is Shaka Khan?", [(7, 17, "!PERSON")])])
    expected = r"'Shaka Khan' \(!PERSON, .*expected a label, got '!PERSON'.*incorrect_spans_key"
    for act in (nlp.update, lambda examples: nlp.initialize(lambda: examples)):
        with pytest.raises(ValueError, match=expected):
            act(examples)


def test_misaligned_entities_warn_once_and_count_as_missing():
    nlp = blank()
    words = {"words": ["New", "York-based", "Tim"], "spaces": [True, True, False]}
    reference = Doc(nlp.vocab, **words)
    predicted = Doc(
        nlp.vocab, words=["New", "York", "-based", "Tim"], spaces=[True, False, True, False]
    )
    reference.set_ents([Span(reference, 2, 3, "PERSON")], default="outside")
    aligned = Example(predicted, reference)
    crossing = Doc(
        nlp.vocab, words=["New York", "-", "based", "Tim"], spaces=[False, False, True, False]
    )
    crossing.set_ents([Span(crossing, 0, 1, "GPE")], default="outside")
    half = Doc(nlp.vocab, words=["New", "York-based", "Tim"], spaces=[True, True, False])
    misaligned = Example(half, crossing)
    expected = r"1 of 2 gold entities do not align .*'New York' \(GPE, characters 0:8\)"
    with pytest.warns(UserWarning, match=expected):
        nlp.initialize(lambda: [aligned, misaligned])
    ner = nlp.get_pipe("crf_ner")
    with pytest.warns(UserWarning, match="some gold entities do not align"):
        assert gold_tags(misaligned, ner.scheme, ner.name).tolist()[:2] == [-1, -1]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert (
            gold_tags(aligned, ner.scheme, ner.name).tolist()
            == ner.scheme.ids(["O", "O", "O", "U-PERSON"]).tolist()
        )


def test_missing_annotation_gives_no_loss():
    nlp = blank()
    nlp.initialize(lambda: make_examples(nlp))
    doc = nlp.make_doc("Who knows what this is")
    losses = nlp.update([Example(doc, doc.copy())], sgd=nlp.create_optimizer())
    assert losses["crf_ner"] == 0.0


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_one_non_finite_score_raises_with_doc(trained, value, monkeypatch):
    ner = trained.get_pipe("crf_ner")
    docs = [trained.make_doc(text) for text in ("All is well", "Broken one")]
    scores = ner.model.predict(docs)
    scores.emissions[3, 1] = value
    gold = [Example(doc, trained(doc.text)) for doc in docs]
    monkeypatch.setattr(type(ner.model), "predict", lambda self, docs: scores)
    with pytest.raises(ValueError, match=r"doc 1 of the batch, 'Broken one'.*NaN or infinity"):
        ner.predict(docs)
    with pytest.raises(ValueError, match=r"doc 1 of the batch, 'Broken one'.*NaN or infinity"):
        ner.get_loss(gold, scores)


def test_errors_go_to_the_error_handler(trained, tmp_path):
    trained.to_disk(tmp_path)
    nlp = spacy.load(tmp_path)
    seen = []
    nlp.set_error_handler(lambda name, proc, docs, error: seen.extend((name, d.text) for d in docs))
    ner = nlp.get_pipe("crf_ner")
    ner.cfg["labels"] = ["GPE"]
    assert list(nlp.pipe(["Hanoi"])) == []
    assert seen == [("crf_ner", "Hanoi")]
