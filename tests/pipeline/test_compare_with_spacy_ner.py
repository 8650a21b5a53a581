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
- test_block_ner, test_overwrite_token, test_neg_annotation and test_overfitting_IO: of preset
  entities, of negative spans and of storage. They are in test_preset.py and test_crf_ner.py.
"""

import logging
import pickle

import pytest
import spacy
from spacy.lang.en import English
from spacy.lookups import Lookups
from spacy.tokens import Doc, Span
from spacy.training import Example

from pipelines import TOK2VEC

KHAN = ("Who is Shaka Khan?", {"entities": [(7, 17, "PERSON")]})
LONDON = ("I like London and Berlin.", {"entities": [(7, 13, "LOC"), (18, 24, "LOC")]})


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


@pytest.mark.parametrize("where", [{"before": "ner"}, {"after": "ner"}])
def test_entity_ruler_before_or_after_ner_sets_its_entities(where):
    """test_ruler_before_ner, test_ner_before_ruler"""
    text = "This is Antti Korhonen speaking in Finland"
    nlp = blank_that_finds_nothing(text)
    nlp.add_pipe("entity_ruler", **where).add_patterns([{"label": "THING", "pattern": "This"}])
    expected = ["B", "O", "O", "O", "O", "O", "O"], ["THING", "", "", "", "", "", ""]
    assert iob_and_types(nlp(text)) == expected


# Training


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
