"""Platt scaling against its neighbors, and against plain loops over all spans."""

import warnings
from typing import Any

import numpy as np
import pytest
import spacy
from spacy.language import Language
from spacy.tokens import Doc, Span
from spacy.training import Example

from pipelines import SENTENCES, make_examples, small, train
from spacy_crf_ner.pipeline.calibration import platt_scaling
from spacy_crf_ner.pipeline.platt_scaling import PlattScaling, most_probable_scaling


def drawn(n: int, slope: float, intercept: float, seed: int = 0) -> tuple[Any, Any]:
    """Spans whose log odds of being an entity are `slope` times the given ones."""
    rng = np.random.default_rng(seed)
    p = rng.uniform(0.01, 1.0, n)
    p[:3] = 1.0
    z = slope * np.log(p / np.maximum(1 - p, 1e-6)) + intercept
    return p, (rng.random(n) < 1 / (1 + np.exp(-z))).astype(float)


@pytest.mark.parametrize("n", [0, 1, 12, 400])
@pytest.mark.parametrize("slope, intercept", [(1.0, 0.0), (0.4, -1.0), (3.0, 0.5)])
def test_fit_platt_scaling_is_more_probable_than_all_near_it(
    n: int, slope: float, intercept: float
) -> None:
    """The loss has one valley. Below 200 entities, no slope is over 1."""
    p, correct = drawn(n, slope, intercept)
    clipped = np.minimum(p, 1 - 1e-6)

    def loss(slope: float, intercept: float) -> float:
        z = slope * np.log(clipped / (1 - clipped)) + intercept
        prior = ((slope - 1) ** 2 + intercept**2) / 2 / 0.3
        return float((np.logaddexp(0, z) - correct * z).sum() + prior)

    a, b, _ = most_probable_scaling(p, correct, 200, "ner")
    for da, db in ((1e-4, 0), (-1e-4, 0), (0, 1e-4), (0, -1e-4), (1e-4, 1e-4), (1e-4, -1e-4)):
        assert loss(a, b) < loss(a + da, b + db)
    assert most_probable_scaling(p, correct, 199, "ner")[:2] == (min(a, 1.0), b)


@pytest.mark.parametrize("entities", [0, 1, 36, 5000])
def test_platt_ceiling_is_posterior_mean_of_share_without_lapse(entities: int) -> None:
    """By the sampled beta posterior of the share of right ones, of which all n were right."""
    drawn_shares = np.random.default_rng(0).beta(0.1 + entities, 0.1, 400_000)
    found = most_probable_scaling(*drawn(12, 1.0, 0.0), entities, "ner")
    assert 1 - found.ceiling == pytest.approx(1 - drawn_shares.mean(), rel=0.02)


def test_platt_scaling_invert_reverses_apply() -> None:
    scaling = PlattScaling(0.5, -1.0, 0.9)
    p = np.array([0.0, 1e-6, 0.02, 0.5, 0.99])
    changed = scaling.apply(p)
    assert changed[0] == 0.0 and (np.diff(changed) > 0).all()
    np.testing.assert_allclose(scaling.invert(changed), p, rtol=1e-9)
    assert scaling.invert(np.array([0.9, 1.0])).tolist() == [1 - 1e-6] * 2  # none is higher
    assert scaling.apply(np.array(1.0)) < 0.9
    assert 0.99 < PlattScaling(2.0, 0.0).apply(np.array(1.0)) < 1.0  # a rounded posterior
    assert PlattScaling().apply(p) is p


def test_fit_platt_scaling_with_reversed_order_warns_and_returns_identity() -> None:
    p, correct = drawn(400, 2.0, 0.0)
    with pytest.warns(UserWarning, match=r"\[ner\] expected spans with a higher posterior to be"):
        assert most_probable_scaling(p, 1 - correct, 400, "ner")[:2] == (1.0, 0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        most_probable_scaling(p, correct, 400, "ner")


@pytest.fixture
def nlp(shared: Any) -> Language:
    def make() -> Language:
        nlp = small()
        train(nlp, make_examples(nlp), steps=6)
        return nlp

    return spacy.load(shared("platt-scaling", make))


def partly(nlp: Language, cut: int) -> list[Example]:
    """Examples without annotation in the first `cut` tokens, and one of other tokens."""
    examples = make_examples(nlp, SENTENCES)
    for eg in examples[:3]:
        gold = [ent for ent in eg.reference.ents if ent.start >= cut]
        eg.reference.set_ents(gold, missing=[eg.reference[:cut]], default="outside")
    text, ents = SENTENCES[0]
    words = [text[:1], *text[1:].split()]
    doc = Doc(nlp.vocab, words, [False, *[True] * (len(words) - 2), False])
    doc.ents = [span for span in (doc.char_span(*ent) for ent in ents) if span is not None]
    return [*examples, Example(nlp.make_doc(text), doc)]


@pytest.mark.parametrize("cut", [0, 2])
def test_fit_platt_scaling_uses_all_annotated_spans(
    nlp: Language, cut: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    once, times = partly(nlp, cut), 20  # several batches
    examples = once * times
    ner: Any = nlp.get_pipe("crf_ner")
    ner.temperature = 2.0
    expected = []
    for eg in once:
        doc = eg.predicted
        tags = eg.get_aligned_ner()
        spans = [
            Span(doc, i, j, label)
            for i in range(len(doc))
            for j in range(i + 1, len(doc) + 1)
            for label in ner.labels
        ]
        gold = {(ent.start_char, ent.end_char, ent.label_) for ent in eg.reference.ents}
        expected += [
            (p, float((span.start_char, span.end_char, span.label_) in gold))
            for span, p in zip(spans, ner.span_posteriors(doc, spans))
            if p >= 0.02 and None not in tags[span.start : span.end]
        ]
    expected *= times
    ner.platt_slope = 7.0  # what is fitted does not depend on what was before
    seen: list[Any] = []

    def fit(p: Any, correct: Any, entities: int, name: str) -> PlattScaling:
        seen.extend([sorted(zip(p, correct)), entities, name])
        return PlattScaling(0.5, -0.25, 0.99)

    monkeypatch.setattr("spacy_crf_ner.pipeline.calibration.most_probable_scaling", fit)
    assert ner.fit_platt_scaling(examples) == platt_scaling(ner) == (0.5, -0.25, 0.99)
    assert 0 < sum(correct for _, correct in expected) < len(expected) == len(seen[0])
    assert [y for _, y in seen[0]] == [y for _, y in sorted(expected)]
    np.testing.assert_allclose(seen[0], sorted(expected), atol=1e-5)
    assert seen[1:] == [sum(len(eg.reference.ents) for eg in examples), "crf_ner"]


def test_fit_platt_scaling_on_error_keeps_previous_fit(nlp: Language) -> None:
    ner: Any = nlp.get_pipe("crf_ner")
    ner.platt_slope, ner.platt_intercept = 0.5, -0.25
    text, _ = SENTENCES[0]
    unknown = Example.from_dict(nlp.make_doc(text), {"entities": [(0, 3, "UNKNOWN")]})
    with pytest.raises(ValueError, match="UNKNOWN"):
        ner.fit_platt_scaling([unknown])
    assert platt_scaling(ner) == (0.5, -0.25, 1.0)


def test_platt_scaling_applies_to_confidences_thresholds_and_candidates(nlp: Language) -> None:
    ner: Any = nlp.get_pipe("crf_ner")
    ner.spans_key, ner.candidate_threshold = "sc", 0.01
    text = SENTENCES[5][0]
    before, scaling = nlp(text), PlattScaling(0.5, -1.0, 0.75)
    ner.platt_slope, ner.platt_intercept, ner.platt_ceiling = scaling
    after = nlp(text)
    assert (
        [(e.start, e.end, e.label) for e in before.ents]
        == [(e.start, e.end, e.label) for e in after.ents]
        != []
    )
    now = [ent._.confidence for ent in after.ents]
    expected = scaling.apply(np.array([ent._.confidence for ent in before.ents]))
    np.testing.assert_allclose(now, expected, rtol=1e-4)
    scores = {
        (s.start, s.end, s.label): p
        for s, p in zip(after.spans["sc"], after.spans["sc"].attrs["scores"])
    }
    for ent, p in zip(after.ents, now):
        assert scores[ent.start, ent.end, ent.label] == pytest.approx(p, rel=1e-5)
    assert ner.span_posteriors(nlp.make_doc(text), after.ents) == pytest.approx(now, rel=1e-4)
    ner.threshold = min(now) + 1e-4
    assert len(nlp(text).ents) == len(now) - 1
    nlp.initialize(lambda: make_examples(nlp))  # it belongs to old weights
    assert platt_scaling(ner) == (1.0, 0.0, 1.0)
