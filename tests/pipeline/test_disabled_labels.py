"""Disabled labels: the distribution over entities, given that there is none of these labels."""

import math
from itertools import product
from typing import Any

import numpy as np
import pytest
import spacy
import torch
from spacy.language import Language
from spacy.tokens import Doc, Span
from spacy.training import Example
from spacy.vocab import Vocab

import enumeration
import helpers
from helpers import SCHEMES
from pipelines import SENTENCES, copied, ents, make_examples
from posteriors import random_potentials, read
from spacy_crf_ner.crf import Chain
from spacy_crf_ner.input_error import InputError
from spacy_crf_ner.pipeline.calibration import (
    TEMPERATURE_VARIANCE,
    log_likelihoods,
    log_likelihoods_of,
)
from spacy_crf_ner.pipeline.encoding import Encoding, LabelEncoding
from spacy_crf_ner.pipeline.platt_scaling import UNCHANGED

LABELS = ("PER", "LOC", "ORG")
OFF = ("LOC",)
LENGTHS = (3, 0, 2)
TEXT = SENTENCES[5][0]
Labelings = dict[tuple[helpers.Span, ...], float]


def enumerated(scheme: str, potentials: Chain, doc: int, temperature: float) -> Labelings:
    """Sum over all legal tag sequences of a doc without a tag of a disabled label."""
    chain = Encoding(scheme, LABELS, "ner").scheme
    begin, T = sum(LENGTHS[:doc]), LENGTHS[doc]
    tensors = enumeration.tensors(potentials)
    paths, scores = enumeration.scored_paths(tensors[0][begin : begin + T], *tensors[1:])
    legal = enumeration.is_legal(paths, *map(torch.from_numpy, chain.constraints))
    off = [i for i, tag in enumerate(chain.tags) if tag[2:] in OFF]
    legal &= ~torch.isin(paths, torch.tensor(off)).any(1)
    found: Labelings = {}
    for path, p in zip(paths[legal].tolist(), (scores[legal] / temperature).softmax(0).tolist()):
        spans = read(scheme, [chain.tags[i] for i in path], [t == 0 for t in range(T + 1)])
        found[tuple(spans)] = found.get(tuple(spans), 0.0) + p
    return found


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_flat_posterior_matches_enumeration_without_disabled_labels(
    scheme: str, temperature: float
) -> None:
    chains = Encoding(scheme, LABELS, "ner")
    potentials = random_potentials(LENGTHS, len(chains.tags.tags))
    docs = [Doc(Vocab(), words=["a"] * T) for T in LENGTHS]
    posterior = chains.posterior(docs, potentials, False, temperature, UNCHANGED, OFF)
    labelings = [enumerated(scheme, potentials, doc, temperature) for doc in range(len(docs))]
    assert posterior.decode() == [[*max(found, key=lambda e: found[e])] for found in labelings]
    for ranked, found in zip(posterior.nbest(1000), labelings):
        assert {tuple(spans): math.exp(p) for spans, p in ranked} == pytest.approx(found, abs=1e-7)
    entropy = [-sum(p * math.log(p) for p in found.values()) for found in labelings]
    np.testing.assert_allclose(posterior.entropy(), entropy, atol=1e-6)
    asked = [
        [(s, e, label) for s in range(T) for e in range(s + 1, T + 1) for label in LABELS]
        for T in LENGTHS
    ]
    expected = [
        [sum(p for spans, p in found.items() if span in spans) for span in of_doc]
        for of_doc, found in zip(asked, labelings)
    ]
    for ps, right in zip(posterior.probabilities(asked), expected):
        assert ps == pytest.approx(right, abs=1e-7)
    found_candidates = posterior.candidates(np.full(len(LABELS), 0.1))
    for candidates, of_doc, right in zip(found_candidates, asked, expected):
        above = {span: p for span, p in zip(of_doc, right) if p >= 0.1}
        assert dict(candidates) == pytest.approx(above, abs=1e-7)
    assert not any(label in OFF for of_doc in found_candidates for (_, _, label), _ in of_doc)


@pytest.mark.parametrize("scheme, max_nesting", [*product(SCHEMES, (1, 2))])
def test_overlapping_posterior_has_only_chains_of_other_labels(
    scheme: str, max_nesting: int
) -> None:
    """Chains are independent: those of other labels are as in a model without the label."""
    chains = LabelEncoding(scheme, LABELS, max_nesting, "sc", "ner")
    less = LabelEncoding(scheme, ("PER", "ORG"), max_nesting, "sc", "ner")
    scores = random_potentials(LENGTHS, len(chains.tags.tags))
    kept = [i for i, tag in enumerate(chains.tags.tags) if "LOC" not in tag]
    E, _, A, start, end = scores
    fewer = (E[:, kept], scores.lengths, A[np.ix_(kept, kept)], start[kept], end[kept])
    docs = [Doc(Vocab(), words=["a"] * T) for T in LENGTHS]
    ours = chains.posterior(docs, scores, False, 1.7, UNCHANGED, OFF)
    theirs = less.posterior(docs, Chain(*fewer), False, 1.7, UNCHANGED)
    assert ours.decode() == theirs.decode()
    np.testing.assert_allclose(ours.entropy(), theirs.entropy(), atol=1e-9)
    for of_ours, of_theirs in zip(ours.nbest(5), theirs.nbest(5)):
        assert [spans for spans, _ in of_ours] == [spans for spans, _ in of_theirs]
        ps = [[p for _, p in ranked] for ranked in (of_ours, of_theirs)]
        assert ps[0] == pytest.approx(ps[1], abs=1e-9)
    found = ours.candidates(np.full(3, 0.05))
    for candidates, expected in zip(found, theirs.candidates(np.full(2, 0.05))):
        assert dict(candidates) == pytest.approx(dict(expected), abs=1e-9)
    assert ours.probabilities([[(0, 1, "LOC")], [], []]) == [[0.0], [], []]


@pytest.fixture
def nlp(trained: Language) -> Language:
    return copied(trained)


def given_without(ner: Any, doc: Doc, label: str) -> dict[tuple[int, int, str], float]:
    """The probabilities of spans, given that there is no entity of a label: from all labelings."""
    ranked = ner.nbest([doc], 500)[0]
    assert sum(each.probability for each in ranked) > 0.9999
    left = [each for each in ranked if label not in {e.label_ for e in each.ents}]
    total = sum(each.probability for each in left)
    found: dict[tuple[int, int, str], float] = {}
    for each in left:
        for ent in each.ents:
            key = (ent.start, ent.end, ent.label_)
            found[key] = found.get(key, 0.0) + each.probability / total
    return found


@pytest.mark.parametrize("decode", ["viterbi", "max_expected_f"])
def test_disabled_label_is_not_predicted_and_others_have_conditional_confidences(
    decode: str, nlp: Language
) -> None:
    ner: Any = nlp.get_pipe("crf_ner")
    ner.decode, ner.spans_key = decode, "sc"
    text = SENTENCES[0][0]
    assert "GPE" in {ent.label_ for ent in nlp(text).ents}
    expected = given_without(ner, nlp.make_doc(text), "GPE")
    ner.disabled_labels = ["GPE"]
    doc = nlp(text)
    assert doc.ents and not {s.label_ for s in (*doc.ents, *doc.spans["sc"])} & {"GPE"}
    for ent in doc.ents:
        p = expected[ent.start, ent.end, ent.label_]
        assert ent._.confidence == pytest.approx(p, abs=1e-3)
    group = doc.spans["sc"]
    found = {(s.start, s.end, s.label_): p for s, p in zip(group, group.attrs["scores"])}
    assert {span for span, p in expected.items() if p > 0.051} <= found.keys()
    assert found == pytest.approx({span: expected[span] for span in found}, abs=1e-3)
    ner.disabled_labels = []
    assert "GPE" in {ent.label_ for ent in nlp(text).ents}


def test_log_likelihood_agrees_with_nbest_without_disabled_labels(nlp: Language) -> None:
    ner: Any = nlp.get_pipe("crf_ner")
    ner.disabled_labels = ["GPE"]
    doc = nlp.make_doc(TEXT)
    labelings = ner.nbest([doc], 3)[0]
    golds = [
        Doc(nlp.vocab, words=[t.text for t in doc], spaces=[True] * len(doc)) for _ in range(3)
    ]
    for gold, labeling in zip(golds, labelings):
        gold.set_ents([Span(gold, e.start, e.end, e.label_) for e in labeling.ents])
    expected = [labeling.log_probability for labeling in labelings]
    found = log_likelihoods(ner, [Example(doc, gold) for gold in golds])
    assert found == pytest.approx(expected, abs=1e-4)
    assert [*log_likelihoods_of(ner, doc, golds)] == pytest.approx(expected, abs=1e-4)
    ents_with_disabled = make_examples(nlp, [SENTENCES[5]])
    assert math.exp(log_likelihoods(ner, ents_with_disabled)[0]) == 0.0


def test_temperature_is_fitted_to_the_other_labels(nlp: Language) -> None:
    ner: Any = nlp.get_pipe("crf_ner")
    examples = make_examples(nlp)
    examples[0].reference.set_ents([], default="outside")  # one that the model has not learned
    ner.disabled_labels = ["GPE"]
    best = ner.fit_temperature(examples)
    for eg in examples:
        disabled = [ent for ent in eg.reference.ents if ent.label_ == "GPE"]
        eg.reference.set_ents([], missing=disabled, default="unmodified")
    found = []
    for ner.temperature in (best / 1.05, best, best * 1.05):
        log_prior = -(math.log(ner.temperature) ** 2) / 2 / TEMPERATURE_VARIANCE
        found.append(sum(log_likelihoods(ner, examples)) + log_prior)
    assert max(found) == found[1]
    ner.disabled_labels = []
    assert abs(ner.fit_temperature(make_examples(nlp)[:1] + examples) - best) > 0.05


def test_preset_entity_of_disabled_label_is_kept(nlp: Language) -> None:
    nlp.get_pipe("crf_ner").disabled_labels = ["ORG"]
    doc = nlp.make_doc(TEXT)
    doc.set_ents([Span(doc, 0, 1, "ORG")], default="missing")
    after = nlp.get_pipe("crf_ner")(doc)
    assert ents(after)[0] == (0, 5, "ORG") and len(after.ents) > 1


def test_training_ignores_disabled_labels(nlp: Language) -> None:
    ner: Any = nlp.get_pipe("crf_ner")
    examples = make_examples(nlp)
    scores = ner.model.predict([eg.predicted for eg in examples])
    loss, gradient = ner.get_loss(examples, scores)
    ner.disabled_labels = ["GPE"]
    again, same = ner.get_loss(examples, scores)
    assert loss == again
    np.testing.assert_array_equal(gradient.emissions, same.emissions)
    assert ner.labels == ("GPE", "ORG", "PERSON") and ner.enabled_labels == ("ORG", "PERSON")


def test_unknown_disabled_label_raises(nlp: Language) -> None:
    expected = r"\[crf_ner\] disabled_labels: expected labels among \['GPE', .*got \['PERSN'\]"
    ner: Any = nlp.get_pipe("crf_ner")
    ner.disabled_labels = ["PERSN", "GPE"]
    examples = make_examples(nlp)
    for ask in (
        lambda: nlp(TEXT),
        lambda: ner.nbest([nlp.make_doc(TEXT)], 2),
        lambda: ner.fit_temperature(examples),
        lambda: ner.fit_platt_scaling(examples),
        lambda: log_likelihoods(ner, examples),
        lambda: next(log_likelihoods_of(ner, nlp.make_doc(TEXT), [nlp.make_doc(TEXT)])),
    ):
        with pytest.raises(InputError, match=expected):
            ask()
    other = spacy.blank("en")
    other.add_pipe("crf_ner", config={"disabled_labels": ["PERSN"]})
    with pytest.raises(InputError, match=expected):
        other.initialize(lambda: make_examples(other))
