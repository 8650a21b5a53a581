"""spaCy's own tests of `ner`, adapted to `crf_ner`.

Each test names the one of spaCy (3.8) that it answers to; those of its `tests/parser/test_ner.py`
without an answer here have one elsewhere, or cannot have any:

- test_issue2385, test_get_oracle_moves, test_issue1967: BILUO from IOB, oracle moves and moves read
  off examples are the transition system's. What tags spell is in test_tags.py, labels in
  test_crf_ner.py.
- test_oracle_moves_missing_B, test_oracle_moves_whitespace: skipped by spaCy too.
- test_issue4313, test_beam_valid_parse: of a beam. A CRF sums over all labelings, as
  test_posterior.py tests.
- test_empty_ner: an untrained `ner` has zeros in its last layer, and finds nothing. An untrained
  CRF has small random scores, and finds anything; so the tests here that need a component that
  finds nothing train one on text without entities.
- test_ner_constructor: settings of the transition system. Ours are in test_preset.py.
"""

import logging
import pickle

import pytest
import spacy
from spacy.lang.en import English
from spacy.language import Language
from spacy.lookups import Lookups
from spacy.tokens import Doc, Span
from spacy.training import Example
from spacy.util import get_arg_names, load_model

from pipelines import TOK2VEC

KHAN = ("Who is Shaka Khan?", {"entities": [(7, 17, "PERSON")]})
LONDON = ("I like London and Berlin.", {"entities": [(7, 13, "LOC"), (18, 24, "LOC")]})


@Language.factory("test_blocker")
def make_blocker(nlp, name, start: int, end: int):
    def block(doc):
        doc.set_ents([], blocked=[doc[start:end]], default="unmodified")
        return doc

    return block


def blank(*labels, **config):
    nlp = English()
    config.setdefault("model", {"hidden_width": 16, "tok2vec": TOK2VEC})
    ner = nlp.add_pipe("crf_ner", name="ner", config=config)
    for label in labels:
        ner.add_label(label)
    return nlp, ner


def examples_of(nlp, *pairs):
    return [Example.from_dict(nlp.make_doc(text), annotations) for text, annotations in pairs]


def update(nlp, examples, optimizer, steps, learn_rate=0.02):
    optimizer.learn_rate = learn_rate
    losses = {}
    for _ in range(steps):
        losses = {}
        nlp.update(examples, sgd=optimizer, losses=losses)
    return losses["ner"]


def learn(nlp, *pairs, steps=15, learn_rate=0.02):
    """Train from the start; returns the optimizer."""
    spacy.util.fix_random_seed(0)
    examples = examples_of(nlp, *pairs)
    optimizer = nlp.initialize(lambda: examples)
    update(nlp, examples, optimizer, steps, learn_rate)
    return optimizer


def blank_that_finds_nothing(text):
    nlp, _ = blank("MY_LABEL")
    learn(nlp, (text, {"entities": []}), steps=5)
    assert not nlp(text).ents
    return nlp


def iob_and_types(doc):
    return [token.ent_iob_ for token in doc], [token.ent_type_ for token in doc]


# Labels


def test_added_labels_are_stored():
    """test_issue2179, test_issue3209"""
    nlp, ner = blank("CITIZENSHIP")
    nlp.initialize()
    other, other_ner = blank()
    assert other_ner.labels == ()
    other.from_bytes(nlp.to_bytes())
    assert other_ner.labels == ("CITIZENSHIP",)
    assert other_ner.scheme.tags == ner.scheme.tags
    assert other_ner.cfg == ner.cfg


def test_label_with_hyphen_is_learned():
    """test_labels_from_BILUO"""
    nlp, ner = blank("LARGE-ANIMAL")
    learn(nlp, ("the whale", {"entities": [(4, 9, "LARGE-ANIMAL")]}))
    assert ner.labels == ("LARGE-ANIMAL",)
    assert [(ent.text, ent.label_) for ent in nlp("the whale").ents] == [("whale", "LARGE-ANIMAL")]


@pytest.mark.slow
def test_update_with_thousand_labels_lowers_loss():
    """test_issue2800"""
    nlp, ner = blank(*map(str, range(1000)))
    spacy.util.fix_random_seed(0)
    optimizer = nlp.initialize()
    examples = examples_of(nlp, ("One sentence", {"entities": [(0, 3, "7")]}))
    first = update(nlp, examples, optimizer, 1)
    assert first > update(nlp, examples, optimizer, 5) > 0
    assert len(ner.scheme.tags) == 4001


def test_pipe_labels_and_label_data_return_labels():
    """test_pipe_labels, test_pipe_base_class_add_label, test_pipe_label_data_exports_labels"""
    nlp, ner = blank("PERSON", "ORG")
    assert nlp.pipe_labels == {"ner": ["PERSON", "ORG"]}
    assert ner.label_data == ["PERSON", "ORG"]
    assert "labels" in get_arg_names(ner.initialize)


def test_add_label_accepts_label_of_preset_entity(tmp_path):
    """test_issue4042_bug2"""
    nlp, ner = blank("SOME_LABEL")
    nlp.initialize()
    doc = nlp.make_doc("What do you think about Apple ?")
    doc.ents = [Span(doc, 5, 6, label="MY_ORG")]
    ner.add_label("MY_ORG")
    assert "MY_ORG" in [ent.label_ for ent in ner(doc).ents]
    ner.to_disk(tmp_path)
    loaded = nlp.create_pipe("crf_ner", config={"model": {"hidden_width": 16, "tok2vec": TOK2VEC}})
    assert loaded.from_disk(tmp_path).labels == ("SOME_LABEL", "MY_ORG")


def test_label_with_exclamation_mark_raises():
    """test_train_negative_deprecated"""
    nlp, ner = blank()
    examples = examples_of(nlp, ("Who is Shaka Khan?", {"entities": [(7, 17, "!PERSON")]}))
    expected = r"'Shaka Khan' \(!PERSON, .*expected a label, got '!PERSON'.*incorrect_spans_key"
    with pytest.raises(ValueError, match=expected):
        nlp.initialize(lambda: examples)
    ner.add_label("PERSON")
    optimizer = nlp.initialize()
    with pytest.raises(ValueError, match=expected):
        nlp.update(examples, sgd=optimizer)


# Neighbors


def test_entity_ruler_without_matches_keeps_annotation():
    """test_issue4267"""
    nlp = blank_that_finds_nothing("hi")
    assert iob_and_types(nlp("hi")) == (["O"], [""])
    nlp.add_pipe("entity_ruler").add_patterns([{"label": "SOFTWARE", "pattern": "spacy"}])
    doc = nlp("hi")
    assert doc.has_annotation("ENT_IOB") and iob_and_types(doc) == (["O"], [""])


@pytest.mark.parametrize("where", [{"before": "ner"}, {"after": "ner"}])
def test_entity_ruler_before_or_after_ner_sets_its_entities(where):
    """test_ruler_before_ner, test_ner_before_ruler"""
    text = "This is Antti Korhonen speaking in Finland"
    nlp = blank_that_finds_nothing(text)
    nlp.add_pipe("entity_ruler", **where).add_patterns([{"label": "THING", "pattern": "This"}])
    expected = ["B", "O", "O", "O", "O", "O", "O"], ["THING", "", "", "", "", "", ""]
    assert iob_and_types(nlp(text)) == expected


def test_pipeline_with_entity_ruler_is_stored(tmp_path):
    """test_issue4042"""
    text = "What do you think about Apple ?"
    nlp = blank_that_finds_nothing(text)
    patterns = [{"label": "MY_ORG", "pattern": "Apple"}]
    nlp.add_pipe("entity_ruler", before="ner").add_patterns(patterns)
    nlp.to_disk(tmp_path)
    assert [ent.label_ for ent in load_model(tmp_path)(text).ents] == ["MY_ORG"]


def test_blocked_tokens_stay_blocked():
    """test_block_ner, test_accept_blocked_token"""
    nlp, _ = blank()
    text = "This is Antti L Korhonen speaking in Finland"
    learn(nlp, (text, {"entities": [(8, 24, "PERSON"), (37, 44, "GPE")]}))
    assert [(ent.text, ent.label_) for ent in nlp(text).ents] == [
        ("Antti L Korhonen", "PERSON"),
        ("Finland", "GPE"),
    ]
    nlp.add_pipe("test_blocker", before="ner", config={"start": 2, "end": 5})
    iob, types = iob_and_types(nlp(text))
    assert iob == ["O", "O", "B", "B", "B", "O", "O", "B"]
    assert types == ["", "", "", "", "", "", "", "GPE"]


def test_doc_marked_outside_by_another_component_is_predicted():
    """test_overwrite_token"""
    nothing = blank_that_finds_nothing("I live in New York")
    doc = nothing("I live in New York")
    assert iob_and_types(doc) == (["O"] * 5, [""] * 5)
    nlp, ner = blank()
    learn(nlp, ("I live in New York", {"entities": [(10, 18, "GPE")]}))
    doc = ner(Doc(nlp.vocab).from_bytes(doc.to_bytes()))
    assert [(ent.text, ent.label_) for ent in doc.ents] == [("New York", "GPE")]


# Training


def test_update_accepts_empty_texts():
    """test_train_empty"""
    nlp, _ = blank("PERSON")
    examples = examples_of(nlp, KHAN, ("", {"entities": []}))
    optimizer = nlp.initialize()
    for batch in (examples, examples[1:], examples[:1]):
        losses = nlp.update(batch, sgd=optimizer)
        assert losses.get("ner", 0.0) >= 0.0
    assert losses["ner"] > 0.0


def test_overfitted_entities_are_kept_after_storage_and_add_label(tmp_path):
    """test_overfitting_IO"""
    nlp, _ = blank()
    optimizer = learn(nlp, KHAN, LONDON, steps=30)
    assert update(nlp, examples_of(nlp, KHAN, LONDON), optimizer, 1) < 0.05
    nlp.to_disk(tmp_path)
    loaded = load_model(tmp_path)
    found = [("London", "LOC")]
    for each in (nlp, loaded):
        assert [(ent.text, ent.label_) for ent in each("I like London.").ents] == found
    loaded.get_pipe("ner").add_label("RANDOM_NEW_LABEL")
    assert [(ent.text, ent.label_) for ent in loaded("I like London.").ents] == found

    texts = ["Just a sentence.", "Then one more sentence about London.", "I like London."]
    for docs in (nlp.pipe(texts), nlp.pipe(texts, batch_size=1), [nlp(text) for text in texts]):
        assert [iob_and_types(doc) for doc in docs] == [iob_and_types(nlp(t)) for t in texts]

    doc = nlp.make_doc("I like London and London.")
    doc.ents = [Span(doc, 2, 3, label="LOC", kb_id=1234)]
    doc = nlp.get_pipe("ner")(doc)
    ents = [(ent.text, ent.label_, ent.kb_id) for ent in doc.ents]
    assert ents == [("London", "LOC", 1234), ("London", "LOC", 0)]


def test_span_posteriors_after_training_are_near_0_or_1(tmp_path):
    """test_beam_ner_scores, test_beam_overfitting_IO: what beam_ner approximates is exact here"""
    nlp, ner = blank()
    doc = nlp.make_doc("I like London.")
    spans = [Span(doc, i, i + 1, label) for label in ("LOC", "PERSON") for i in range(len(doc))]
    spacy.util.fix_random_seed(0)
    optimizer = nlp.initialize(lambda: examples_of(nlp, KHAN, LONDON))
    assert all(0.0 <= p <= 1.0 for p in ner.span_posteriors(doc, spans))
    update(nlp, examples_of(nlp, KHAN, LONDON), optimizer, 30)
    nlp.to_disk(tmp_path)
    for each in (ner, load_model(tmp_path).get_pipe("ner")):
        scores = dict(zip(((s.start, s.label_) for s in spans), each.span_posteriors(doc, spans)))
        assert scores.pop((2, "LOC")) == pytest.approx(1.0, abs=0.05)
        assert max(scores.values()) < 0.05


@pytest.mark.parametrize("label", ["LOC", ""])
def test_update_with_incorrect_span_unlearns_entity(label):
    """test_beam_overfitting_IO, its end"""
    nlp, _ = blank(incorrect_spans_key="wrong")
    optimizer = learn(nlp, KHAN, LONDON, steps=30, learn_rate=0.01)
    assert [ent.text for ent in nlp("I like London").ents] == ["London"]
    (example,) = examples_of(nlp, ("I like London", {}))
    example.reference.spans["wrong"] = [Span(example.reference, 2, 3, label)]
    update(nlp, [example], optimizer, 20, learn_rate=0.01)
    assert not [ent for ent in nlp("I like London").ents if ent.label_ == label or not label]


def test_incorrect_spans_around_gold_entity_lose_probability():
    """test_neg_annotation"""
    nlp, ner = blank("PERSON", "ORG", incorrect_spans_key="wrong")
    (example,) = examples_of(nlp, KHAN)
    wrong = [(2, 4, "ORG"), (2, 3, "PERSON"), (1, 4, "PERSON")]
    example.reference.spans["wrong"] = [Span(example.reference, *span) for span in wrong]
    spacy.util.fix_random_seed(0)
    optimizer = nlp.initialize()
    asked = [Span(example.predicted, *span) for span in wrong]
    before = ner.span_posteriors(example.predicted, asked)
    update(nlp, [example], optimizer, 10)
    after = ner.span_posteriors(example.predicted, asked)
    assert all(late < early for early, late in zip(before, after))


@pytest.mark.parametrize("label", ["PERSON", ""])
def test_gold_entity_in_incorrect_spans_raises(label):
    """test_neg_annotation_conflict"""
    nlp, _ = blank("PERSON", "LOC", incorrect_spans_key="wrong")
    (example,) = examples_of(nlp, KHAN)
    example.reference.spans["wrong"] = [Span(example.reference, 2, 4, label)]
    optimizer = nlp.initialize()
    expected = (
        r"'Shaka Khan' \(PERSON, characters 7:17\).*not a gold entity in doc.spans\['wrong'\]"
    )
    with pytest.raises(ValueError, match=expected):
        nlp.update([example], sgd=optimizer)


@pytest.mark.parametrize("words", [["A"], ["A", "B"], ["A", "B", "C"]])
def test_incorrect_span_with_label_o_makes_token_an_entity(words):
    """test_negative_samples_U_entity, _two_word_input, _three_word_input: a wrong span of O"""
    nlp, ner = blank("PERSON", "ORG", incorrect_spans_key="wrong")
    doc = Doc(nlp.vocab, words=words)
    example = Example.from_dict(doc, {"entities": [None] * len(words)})
    person = Span(example.y, 0, min(2, len(words)), "PERSON")
    example.y.spans["wrong"] = [Span(example.y, 0, 1, "O"), person]
    spacy.util.fix_random_seed(0)
    update(nlp, [example], nlp.initialize(), 20)
    doc = ner(Doc(nlp.vocab, words=words))
    found = {(ent.start, ent.end, ent.label_) for ent in doc.ents}
    assert doc[0].ent_iob_ == "B"
    assert (person.start, person.end, "PERSON") not in found


def test_misaligned_incorrect_span_warns_once_per_corpus():
    nlp, _ = blank("PERSON", incorrect_spans_key="wrong")
    predicted = Doc(nlp.vocab, words=["Ada", "Byron"])
    reference = Doc(nlp.vocab, words=["Ad", "a", "Byron"], spaces=[False, True, False])
    reference.set_ents([Span(reference, 2, 3, "PERSON")])
    reference.spans["wrong"] = [Span(reference, 0, 1, "PERSON"), Span(reference, 0, 2, "PERSON")]
    expected = r"1 of 2 spans in doc.spans\['wrong'\] do not align.*ignored: entity 'Ad' \(PERSON"
    with pytest.warns(UserWarning, match=expected) as told:
        nlp.initialize(lambda: [Example(predicted, reference)])
    assert len(told) == 1


@pytest.mark.parametrize("rehearse", [True, False])
def test_rehearse_and_update_with_new_label_return_non_negative_loss(rehearse):
    """test_rehearse of `tests/training/test_rehearse.py`"""
    nlp, ner = blank()
    learn(nlp, KHAN, LONDON, steps=5)
    ner.add_label("THING")
    optimizer = nlp.resume_training()
    examples = examples_of(nlp, ("Who is a whale?", {"entities": [(9, 14, "THING")]}))
    for _ in range(5):
        losses = nlp.rehearse(examples, sgd=optimizer) if rehearse else nlp.update(examples)
        assert losses["ner"] >= -1e-5  # a divergence of nothing, but for rounding


def test_missing_lexeme_norm_table_is_logged(caplog):
    """test_ner_warns_no_lookups"""
    nlp, _ = blank("MY_LABEL")
    nlp.vocab.lookups = Lookups()
    with caplog.at_level(logging.DEBUG):
        nlp.initialize()
        assert "W033" in caplog.text
    caplog.clear()
    nlp.vocab.lookups.add_table("lexeme_norm", {"a": "A"})
    with caplog.at_level(logging.DEBUG):
        nlp.initialize()
        assert "W033" not in caplog.text


# Storage


@pytest.mark.parametrize("what", ["component", "pipeline"])
def test_component_and_pipeline_can_be_pickled(what):
    """test_issue4725_1"""
    nlp, ner = blank(threshold=0.25)
    learn(nlp, LONDON)
    before = iob_and_types(nlp(LONDON[0]))
    if what == "component":
        copy = pickle.loads(pickle.dumps(ner))
        doc = copy(Doc(copy.vocab).from_bytes(nlp.make_doc(LONDON[0]).to_bytes()))
    else:
        nlp = pickle.loads(pickle.dumps(nlp))
        copy = nlp.get_pipe("ner")
        doc = nlp(LONDON[0])
    assert copy.threshold == 0.25
    assert iob_and_types(doc) == before


def test_exclude_leaves_parts_out_of_storage(tmp_path):
    """test_serialize_parser_roundtrip_bytes, and what `exclude` means to spaCy's pipes"""
    nlp, ner = blank()
    learn(nlp, LONDON)
    texts = [LONDON[0], KHAN[0]]
    expected = [iob_and_types(doc) for doc in nlp.pipe(texts)]
    other, other_ner = blank()
    other_ner.from_bytes(ner.to_bytes(exclude=["vocab"]))
    assert other_ner.to_bytes(exclude=["vocab"]) == ner.to_bytes(exclude=["vocab"])
    assert [iob_and_types(doc) for doc in other.pipe(texts)] == expected
    # Labels are stored apart from the weights; settings are those of the config.
    ner.to_disk(tmp_path / "weights", exclude=["cfg"])
    assert not (tmp_path / "weights" / "cfg").exists()
    ner.to_disk(tmp_path / "settings", exclude=["model"])
    assert not (tmp_path / "settings" / "model").exists()
    _, third = blank(threshold=0.5)
    third.from_disk(tmp_path / "settings", exclude=["model"])
    assert (third.labels, third.threshold) == (ner.labels, 0.5)
    third.from_disk(tmp_path / "weights", exclude=["cfg"])
    assert [third(nlp.make_doc(text)).ents[0].text for text in texts[:1]] == ["London"]


def test_component_can_be_disabled_and_excluded(tmp_path):
    """test_serialize_pipeline_disable_enable"""
    nlp, _ = blank()
    nlp.add_pipe("sentencizer")
    learn(nlp, LONDON, steps=2)
    nlp.disable_pipe("ner")
    nlp.to_disk(tmp_path)
    loaded = load_model(tmp_path)
    assert (loaded.pipe_names, loaded.disabled) == (["sentencizer"], ["ner"])
    assert not loaded(LONDON[0]).has_annotation("ENT_IOB")
    assert load_model(tmp_path, exclude=["ner"]).component_names == ["sentencizer"]
    loaded.enable_pipe("ner")
    assert loaded(LONDON[0]).has_annotation("ENT_IOB")


def test_component_can_be_renamed_replaced_and_removed():
    """test_replace_pipe_config, test_pipe_methods_initialize, and renaming"""
    nlp, _ = blank()
    nlp.config["initialize"]["components"]["ner"] = {"labels": ["LOC"]}
    nlp.rename_pipe("ner", "finder")
    nlp.initialize()
    assert nlp.get_pipe("finder").labels == ("LOC",)
    nlp.replace_pipe("finder", "crf_ner", config={"scheme": "io"})
    assert nlp.get_pipe("finder").scheme.name == "io"
    nlp.remove_pipe("finder")
    assert nlp.pipe_names == []
