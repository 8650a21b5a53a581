"""The posterior over entities against the enumeration of all tag sequences, in float64.

Axes: B docs, T tokens, C tags, P paths.
"""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import enumeration
from helpers import SCHEMES, Span
from posteriors import LABELS, NEAR_ZERO, TEMPERATURES, Batch, batches, read
from spacy_crf_ner import crf
from spacy_crf_ner.crf import Chain, NegativeSpan, constrain, nll_with_gradient
from spacy_crf_ner.pipeline.platt_scaling import PlattScaling
from spacy_crf_ner.tags import TagScheme

# Probabilities of spans


@given(batch=batches(), temperature=TEMPERATURES)
def test_entropy_matches_enumeration(batch: Batch, temperature: float) -> None:
    found = batch.posterior(temperature).entropy()
    for doc, H in enumerate(found):
        p = np.array([share for _, share in batch.labelings(doc, temperature)])
        assert pytest.approx(-(p[p > 0] * np.log(p[p > 0])).sum(), abs=1e-6) == H


@given(batch=batches(), temperature=TEMPERATURES)
def test_span_probabilities_match_enumeration(batch: Batch, temperature: float) -> None:
    docs = range(len(batch.limits))
    asked = [batch.spans(doc) for doc in docs]
    found = batch.posterior(temperature).probabilities(asked)
    for doc, spans, p in zip(docs, asked, found):
        expected = batch.probabilities(doc, temperature)
        assert spans == list(expected)
        np.testing.assert_allclose(p, list(expected.values()), atol=2e-5)


@given(batch=batches(), temperature=TEMPERATURES)
def test_outside_probabilities_match_enumeration(batch: Batch, temperature: float) -> None:
    docs = range(len(batch.limits))
    asked = [batch.spans(doc) for doc in docs]
    found = batch.posterior(temperature, PlattScaling(0.5, 0.3, 0.9)).outside_probabilities(asked)
    for doc, spans, ps in zip(docs, asked, found):
        for (begin, end, _), p in zip(spans, ps, strict=True):
            inside = sum(
                share
                for ents, share in batch.labelings(doc, temperature)
                if any(start < end and begin < stop for start, stop, _ in ents)
            )
            assert p == pytest.approx(1 - inside, abs=2e-5)


@given(batch=batches(enumeration.SCORES))
def test_probabilities_with_underflowing_scores_match_enumeration(batch: Batch) -> None:
    asked = [batch.spans(doc) for doc in range(len(batch.limits))]
    for doc, p in enumerate(batch.posterior().probabilities(asked)):
        np.testing.assert_allclose(p, list(batch.probabilities(doc).values()), atol=1e-6)


LEAST = st.sampled_from([1e-4, 0.05, 0.3, 0.9])


@given(batch=batches(), temperature=TEMPERATURES, by_label=st.tuples(*[LEAST] * len(LABELS)))
def test_candidates_returns_all_spans_above_label_thresholds(
    batch: Batch, temperature: float, by_label: tuple[float, ...]
) -> None:
    thresholds = dict(zip(LABELS, by_label))
    for doc, ranked in enumerate(batch.posterior(temperature).candidates(np.array(by_label))):
        found = dict(ranked)
        assert list(found) == sorted(found) and len(found) == len(ranked)
        for span, p in batch.probabilities(doc, temperature).items():
            least = thresholds[span[2]]
            if batch.limits[doc].preset[span[0]] or p < least - 2e-5:
                assert span not in found
            elif p > least + 2e-5:
                assert found[span] == pytest.approx(p, abs=2e-5)


@given(
    batch=batches(),
    slope=st.sampled_from([0.5, 1.0, 2.0]),
    intercept=st.sampled_from([-1.0, 0.0, 0.7]),
    least=st.sampled_from([1e-3, 0.05, 0.3, 0.9]),
)
def test_platt_scaling_scales_probabilities_and_keeps_decoding(
    batch: Batch, slope: float, intercept: float, least: float
) -> None:
    posterior = batch.posterior(platt=PlattScaling(slope, intercept))
    docs = range(len(batch.limits))
    asked = [batch.spans(doc) for doc in docs]
    found = posterior.probabilities(asked)
    candidates = posterior.candidates(np.full(len(batch.scheme.labels), least))
    assert posterior.decode() == batch.posterior().decode()
    for doc, spans, ps in zip(docs, asked, found):
        for (span, exact), p in zip(batch.probabilities(doc).items(), ps):
            if exact < 1e-4:  # where the posterior is rounded, its odds are anything
                assert p <= odds_of(1e-4, slope, intercept) + 1e-3
                continue
            assert p == pytest.approx(odds_of(exact, slope, intercept), abs=2e-3)
            if abs(p - least) > 1e-3 and not batch.limits[doc].preset[span[0]]:
                assert (span in dict(candidates[doc])) == (p > least)
        for span, p in candidates[doc]:
            assert p == pytest.approx(dict(zip(spans, ps))[span], abs=1e-6)


def odds_of(p: float, slope: float, intercept: float) -> float:
    """Platt scaling as a product of odds."""
    odds = (p / max(1 - p, 1e-6)) ** slope * np.exp(intercept)
    return float(odds / (1 + odds))


# Sets of entities


@given(batch=batches(), temperature=TEMPERATURES)
def test_decode_matches_best_sequence_of_enumeration(batch: Batch, temperature: float) -> None:
    for doc, spans in enumerate(batch.posterior(temperature).decode()):
        p = {batch.predicted(doc, found): share for found, share in batch.labelings(doc)}
        assert p[tuple(spans)] == pytest.approx(max(p.values()), rel=1e-4)


@given(batch=batches(), temperature=TEMPERATURES, n=st.sampled_from([1, 2, 5, 160]))
def test_nbest_matches_enumeration(batch: Batch, temperature: float, n: int) -> None:
    posterior = batch.posterior(temperature)
    for doc, ranked in enumerate(posterior.nbest(n)):
        labelings = batch.labelings(doc, temperature)
        log_p = {batch.predicted(doc, found): np.log(share) for found, share in labelings}
        assert len(log_p) == len(labelings)  # each sequence has its own entities
        assert len({tuple(spans) for spans, _ in ranked}) == len(ranked) == min(n, len(log_p))
        best = sorted(log_p.values(), reverse=True)[:n]
        assert [found for _, found in ranked] == pytest.approx(best, abs=1e-9)
        for spans, found in ranked:
            assert found == pytest.approx(log_p[tuple(spans)], abs=1e-9)
        assert log_p[tuple(posterior.decode()[doc])] == pytest.approx(ranked[0][1], abs=1e-3)


# The loss of negative spans


def enumerated_loss(
    batch: Batch, gold: np.ndarray, wrong: Sequence[tuple[int, Sequence[Span]]]
) -> tuple[Tensor, list[Tensor]]:
    """Losses and their gradients: -log P(gold), and -log P(none of the spans) for the negatives."""
    tensors = [
        torch.from_numpy(scores).double().requires_grad_()
        for scores in (batch.potentials.emissions, *batch.potentials[2:5])
    ]
    losses = []
    for doc, rows in enumerate(batch.rows):
        paths, scores = enumeration.scored_paths(tensors[0][rows], *tensors[1:])
        legal = batch.is_legal(paths, None)
        paths, log_p = paths[legal], scores[legal].log_softmax(0)
        known = torch.from_numpy(gold[rows])
        compatible = ((known < 0) | (paths == known)).all(1)
        total = -log_p[compatible].logsumexp(0)
        boundaries = np.zeros(paths.shape[1], dtype=bool)
        found = [
            read(batch.scheme.name, [batch.scheme.tags[i] for i in path], boundaries)
            for path in paths.tolist()
        ]
        for of_doc, spans in wrong:
            if of_doc == doc:
                has = torch.tensor([any(span in spans for span in each) for each in found])
                total = total - log_p[~has].logsumexp(0)
        losses.append(total)
    result = torch.stack(losses)
    # Of docs without a token it is no function of the scores.
    total = result.sum() + 0.0 * sum(tensor.sum() for tensor in tensors)
    return result.detach(), list(torch.autograd.grad(total, tensors))


Corrections = tuple[Batch, np.ndarray, list[tuple[int, list[Span]]], list[NegativeSpan]]


@st.composite
def corrections(draw: st.DrawFn, scores: st.SearchStrategy[float] = NEAR_ZERO) -> Corrections:
    """Draw a batch, gold tags with some missing, and negative spans: of a label or of any."""
    batch = draw(batches(scores, bounded=False))
    gold: list[int] = []
    wrong: list[tuple[int, list[Span]]] = []
    negatives = []
    for doc, T in enumerate(batch.potentials.lengths.tolist()):
        paths = enumeration.all_paths(T, len(batch.scheme.tags))
        paths = paths[batch.is_legal(paths, None)]
        path = paths[draw(st.integers(0, len(paths) - 1))].tolist()
        gold += [-1 if draw(st.booleans()) else tag for tag in path]
        places = st.sampled_from([span[:2] for span in batch.spans(doc)] or [(0, 0)])
        for start, end in draw(st.lists(places, max_size=2 if T else 0)):
            label = draw(st.sampled_from(["", *batch.scheme.labels]))
            chosen = [label] if label else batch.scheme.labels
            wrong.append((doc, [(start, end, each) for each in chosen]))
            negatives.append(NegativeSpan(doc, *batch.scheme.exclusion_mask(start, end, label, T)))
    return batch, np.array(gold, dtype=np.int64), wrong, negatives


@given(corrections(NEAR_ZERO) | corrections(st.floats(-60, 60, width=32)))
def test_loss_with_negative_spans_and_missing_tags_matches_enumeration(drawn: Corrections) -> None:
    """Also where the model gives a negative span all but e^-60 of the probability."""
    batch, gold, wrong, negatives = drawn
    chain = constrain(batch.potentials, *batch.scheme.constraints)
    losses, gradient = nll_with_gradient(chain, gold, negatives)
    expected, expected_gradient = enumerated_loss(batch, gold, wrong)
    np.testing.assert_allclose(losses, expected, atol=1e-4, rtol=1e-4)
    parts = (gradient.emissions, *gradient[2:5])
    for part, expected_part in zip(parts, expected_gradient):
        np.testing.assert_allclose(part, expected_part, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("scheme", SCHEMES)
@given(
    margin=st.floats(0, 60),
    seed=st.integers(0, 2**32 - 1),
    labels=st.integers(1, 3),
    T=st.integers(1, 60),
    length=st.integers(1, 3),
    constrained=st.booleans(),
)
def test_negative_spans_of_confident_model_have_finite_loss_and_gradient(
    scheme: str, margin: float, seed: int, labels: int, T: int, length: int, constrained: bool
) -> None:
    """The spans have a margin over the rest; the probabilities of the labels sum to almost 1."""
    tags = TagScheme(scheme, ("PER", "LOC", "ORG")[:labels])
    rng, C = np.random.default_rng(seed), len(tags.tags)
    start = int(rng.integers(T))
    end = min(T, start + length)
    emissions = rng.normal(0, 1, (T, C)).astype("f")
    for label in tags.labels:
        first, mask = tags.entity_mask(start, end, label, T)
        inside = slice(start - first, end - first)
        emissions[start:end][mask[inside]] += margin
    zeros = np.zeros(C, dtype="f")
    chain = Chain(emissions, np.array([T]), np.zeros((C, C), dtype="f"), zeros, zeros)
    if constrained:
        chain = constrain(chain, *tags.constraints)
    negatives = [NegativeSpan(0, *tags.exclusion_mask(start, end, "", T))]
    unknown = np.full(T, -1)
    losses, gradient = nll_with_gradient(chain, unknown, negatives)
    assert 0.0 <= losses[0] < length * margin + 100
    # A difference of expected counts, at most 1 at each token.
    for part in (gradient.emissions, *gradient[2:5]):
        assert np.isfinite(part).all()
    assert np.abs(gradient.emissions).max() <= 1.0 + 1e-6


def test_negative_span_loss_sums_only_over_span_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pass over all docs serves them too: the tokens of each pass are counted."""
    tokens: list[int] = []

    def counted(chain: Chain) -> crf.ForwardBackward:
        tokens.append(len(chain.emissions))
        return crf.forward_backward(chain)

    monkeypatch.setattr("spacy_crf_ner.crf.losses.forward_backward", counted)
    tags, T = TagScheme("biluo", ("PER", "LOC")), 1000
    C = len(tags.tags)
    zeros = np.zeros(C, dtype="f")
    emissions, transitions = np.zeros((3 * T, C), dtype="f"), np.zeros((C, C), dtype="f")
    chain = Chain(emissions, np.array([T] * 3), transitions, zeros, zeros)
    negatives = [
        NegativeSpan(doc, *tags.exclusion_mask(*span, T))
        for doc, span in [(0, (1, 2, "")), (0, (500, 501, "")), (2, (T - 2, T, ""))]
    ]
    gold = np.zeros(3 * T, dtype=np.int64)
    nll_with_gradient(constrain(chain, *tags.constraints), gold, negatives)
    # All docs, the windows of the spans, and their disjoint sets. A span of one token has 1 set, of
    # two tokens 1 and 1 for each label; its window has one token more on either side, but not after
    # the end.
    assert tokens == [3 * T, 3 + 3 + 3, 1 * 3 + 1 * 3 + 3 * 3]
