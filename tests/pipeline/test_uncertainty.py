"""The results of `uncertainty` match those of the other queries."""

import math

import numpy as np
import pytest
from spacy.tokens import Span

from overlapping import TEXT, make_overlapping
from spacy_crf_ner.input_error import InputError
from spacy_crf_ner.pipeline.crf_ner import CRFEntityRecognizer


def recognizer_of(nlp) -> CRFEntityRecognizer:
    return nlp.get_pipe("crf_ner")


def test_uncertainty_agrees_with_the_other_queries(trained) -> None:
    pipe = recognizer_of(trained)
    docs = [trained.make_doc(text) for text in ("Tim Cook saw Apple", "", "an Ada", "it")]
    found = pipe.uncertainty(docs, 0.02)
    assert [each.tokens for each in found] == [4, 0, 2, 1]
    for doc, each in zip(docs, found):
        labelings = pipe.nbest([doc], 10**4)[0]
        p = np.array([labeling.probability for labeling in labelings])
        assert each.log_odds == pytest.approx(
            math.log(p[0] / p[1]) if len(p) > 1 else math.inf, rel=1e-5
        )
        if len(doc) < 3:
            entropy = -(p[p > 0] * np.log(p[p > 0])).sum()
            assert each.entropy == pytest.approx(entropy, abs=1e-6)
        assert [span for span, _ in each.entities] == [
            (ent.start, ent.end, ent.label_) for ent in labelings[0].ents
        ]
        for span, probability in (*each.entities, *each.candidates):
            asked = doc[span[0] : span[1]]
            asked.label_ = span[2]
            assert pipe.span_posteriors(doc, [asked]) == pytest.approx([probability], abs=1e-6)
        assert {s for s, p in each.entities if p >= 0.02} <= {s for s, _ in each.candidates}
        assert all(probability >= 0.02 for _, probability in each.candidates)
    assert not any(doc.ents for doc in docs)
    assert pipe.uncertainty([]) == []
    assert math.isnan(pipe.uncertainty(docs[:1], log_odds=False)[0].log_odds)


def test_entropy_of_overlapping_entities_equals_sum_over_chains() -> None:
    pipe, nlp = recognizer_of(make_overlapping()), make_overlapping()
    docs = [nlp.make_doc("Oslo won"), nlp.make_doc(""), nlp.make_doc(TEXT)]
    posterior = pipe.posterior(docs)
    chains = posterior._posterior.nbest(1000)  # of Oslo won, all
    M = len(posterior._labels)
    expected = -sum(math.exp(p) * p for row in chains[:M] for _, p in row)
    found = pipe.uncertainty(docs)
    assert found[0].entropy == pytest.approx(expected, rel=1e-5)
    assert found[1].entropy == 0.0
    assert {span for span, _ in found[0].entities} == {(0, 1, "LOC"), (0, 1, "ORG")}


def test_alternatives_are_sums_over_all_labelings(trained) -> None:
    pipe, docs = recognizer_of(trained), [trained.make_doc(text) for text in ("", "Tim", "an Ada")]
    spans = [[doc[i : i + 1] for i in range(len(doc))] for doc in docs]
    for of_doc in spans:
        for span in of_doc:
            span.label_ = pipe.labels[0]
    for doc, of_doc, found in zip(docs, spans, pipe.alternatives(docs, spans), strict=True):
        labelings = pipe.nbest([doc], 10**4)[0]
        for span, alternatives in zip(of_doc, found, strict=True):
            p = [confidence for _, confidence in alternatives]
            assert p == sorted(p, reverse=True)
            assert {label for label, _ in alternatives} == {*pipe.labels, None}
            for label, confidence in alternatives:
                expected = sum(
                    labeling.probability
                    for labeling in labelings
                    if (
                        label is None
                        and all(
                            ent[-1].i < span.start or ent[0].i > span.start for ent in labeling.ents
                        )
                    )
                    or any(
                        (ent.start, ent.end, ent.label_) == (span.start, span.end, label)
                        for ent in labeling.ents
                    )
                )
                assert confidence == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("slope, intercept", [(0.9, -0.05), (1.0, 2.0), (2.0, -3.0)])
def test_calibrated_alternatives_share_what_the_confidence_leaves(
    trained, slope, intercept, monkeypatch
) -> None:
    pipe, doc = recognizer_of(trained), trained.make_doc("Tim Cook saw an Ada")
    spans = [Span(doc, i, i + 1, label) for i in range(len(doc)) for label in pipe.labels]
    plain = [dict(each) for each in pipe.alternatives([doc], [spans])[0]]
    monkeypatch.setattr(pipe, "platt_slope", slope)
    monkeypatch.setattr(pipe, "platt_intercept", intercept)
    calibrated = [dict(each) for each in pipe.alternatives([doc], [spans])[0]]
    confidences = pipe.span_posteriors(doc, spans)
    for span, before, after, p in zip(spans, plain, calibrated, confidences, strict=True):
        assert after[span.label_] == pytest.approx(p)
        assert sum(after.values()) <= 1 + 1e-6
        left = 1 - before.pop(span.label_)
        for label, posterior in before.items():
            assert after[label] == pytest.approx((1 - p) * posterior / left, abs=1e-6)


def test_alternatives_of_overlapping_entities_raise() -> None:
    nlp = make_overlapping()
    doc = nlp.make_doc(TEXT)
    with pytest.raises(InputError, match=r"\[crf_ner\] The entities of this component may overlap"):
        recognizer_of(nlp).alternatives([doc], [[]])


def test_span_posteriors_with_spans_of_another_text_raises(trained) -> None:
    pipe, doc = recognizer_of(trained), trained.make_doc("Tim Cook saw Apple")
    label = pipe.labels[0]
    with pytest.raises(InputError, match="`char_span` returns None"):
        pipe.span_posteriors(doc, [doc.char_span(0, 6, label)])
    other = trained.make_doc("Ada Cook saw Apple")
    with pytest.raises(InputError, match="expected spans of the doc 'Tim Cook saw Apple'"):
        pipe.span_posteriors(doc, [other.char_span(0, 8, label)])
    same = trained.make_doc(doc.text).char_span(0, 8, label)
    own = doc.char_span(0, 8, label)
    assert pipe.span_posteriors(doc, [same]) == pipe.span_posteriors(doc, [own])
    spaced = trained.make_doc(doc.text + " ").char_span(0, 8, label)
    assert pipe.span_posteriors(doc, [spaced]) == pipe.span_posteriors(doc, [own])
    assert len(pipe.nbest([doc], np.int64(2))[0]) == 2
    with pytest.raises(InputError, match=r"n: expected 1 or more, a whole number, got 2\.5"):
        pipe.nbest([doc], 2.5)
