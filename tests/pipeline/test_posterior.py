"""The posterior over entities against the enumeration of all tag sequences, in float64.

Axes: B docs, T tokens, C tags, P paths.
"""

from itertools import pairwise, product
from typing import List, Sequence, Tuple

import helpers
import numpy as np
import pytest
import torch
from helpers import SCHEMES, Span, properties
from hypothesis import assume, given
from hypothesis import strategies as st
from posteriors import LABELS, NEAR_ZERO, TEMPERATURES, Batch, batches, read
from torch import Tensor

from spacy_crf_ner.ml.potentials import Potentials, loss
from spacy_crf_ner.pipeline.posterior import Posterior
from spacy_crf_ner.pipeline.preset import Bounds
from spacy_crf_ner.tags import TagScheme

# Probabilities of spans


@given(batch=batches(), temperature=TEMPERATURES)
@properties
def test_a_span_is_as_probable_as_all_sequences_that_have_it(
    batch: Batch, temperature: float
) -> None:
    docs = range(len(batch.limits))
    asked = [batch.spans(doc) for doc in docs]
    found = batch.posterior(temperature).probabilities(asked)
    for doc, spans, p in zip(docs, asked, found):
        expected = batch.probabilities(doc, temperature)
        assert spans == list(expected)
        np.testing.assert_allclose(p, list(expected.values()), atol=2e-5)


@given(batch=batches(helpers.SCORES))
@properties
def test_scores_that_underflow_have_probabilities_too(batch: Batch) -> None:
    asked = [batch.spans(doc) for doc in range(len(batch.limits))]
    for doc, p in enumerate(batch.posterior().probabilities(asked)):
        np.testing.assert_allclose(p, list(batch.probabilities(doc).values()), atol=1e-6)


@given(batch=batches(), temperature=TEMPERATURES, least=st.sampled_from([1e-4, 0.05, 0.3, 0.9]))
@properties
def test_candidates_are_all_spans_that_are_probable_enough(
    batch: Batch, temperature: float, least: float
) -> None:
    for doc, ranked in enumerate(batch.posterior(temperature).candidates(least)):
        found = dict(ranked)
        assert list(found) == sorted(found) and len(found) == len(ranked)
        for span, p in batch.probabilities(doc, temperature).items():
            if batch.limits[doc].taken[span[0]] or p < least - 2e-5:
                assert span not in found
            elif p > least + 2e-5:
                assert found[span] == pytest.approx(p, abs=2e-5)


@pytest.mark.parametrize("scheme, label", list(product(SCHEMES, LABELS)))
def test_an_unknown_label_is_a_key_error(scheme: str, label: str) -> None:
    tags = TagScheme(scheme, tuple(known for known in LABELS if known != label))
    C = len(tags.tags)
    zeros = np.zeros(C, dtype="f")
    potentials = Potentials(
        np.zeros((1, C), dtype="f"), np.array([1]), np.zeros((C, C), dtype="f"), zeros, zeros, True
    )
    nothing = np.zeros(1, dtype=bool)
    posterior = Posterior(potentials, tags, Bounds(None, ~nothing, nothing))
    with pytest.raises(KeyError):
        posterior.probabilities([[(0, 1, label)]])


# Sets of entities


@given(batch=batches(), temperature=TEMPERATURES)
@properties
def test_the_best_entities_are_those_of_the_best_sequence(batch: Batch, temperature: float) -> None:
    for doc, spans in enumerate(batch.posterior(temperature).best()):
        p = {batch.predicted(doc, found): share for found, share in batch.analyses(doc)}
        assert p[tuple(spans)] == pytest.approx(max(p.values()), rel=1e-4)


@given(batch=batches(), temperature=TEMPERATURES)
@properties
def test_temperature_changes_no_entity(batch: Batch, temperature: float) -> None:
    assert batch.posterior(temperature).best() == batch.posterior().best()


@given(batch=batches(), temperature=TEMPERATURES, n=st.sampled_from([1, 2, 5, 160]))
@properties
def test_the_n_best_have_the_highest_probabilities(
    batch: Batch, temperature: float, n: int
) -> None:
    posterior = batch.posterior(temperature)
    for doc, ranked in enumerate(posterior.nbest(n)):
        analyses = batch.analyses(doc, temperature)
        p = {batch.predicted(doc, found): share for found, share in analyses}
        assert len(p) == len(analyses)  # each sequence has its own entities
        assert len({tuple(spans) for spans, _ in ranked}) == len(ranked) <= n
        best = sorted(p.values(), reverse=True)[:n]
        # What float32 has no probability for is left out.
        assert [share for share in best if share > 1e-30] == pytest.approx(
            [share for _, share in ranked][: sum(share > 1e-30 for share in best)], rel=1e-3
        )
        for spans, share in ranked:
            assert share == pytest.approx(p[tuple(spans)], rel=1e-3, abs=1e-30)
        if n >= len(p):
            assert sum(share for _, share in ranked) == pytest.approx(1.0, abs=1e-4)
        assert p[tuple(posterior.best()[doc])] == pytest.approx(ranked[0][1], rel=1e-3)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("T", [1, 2, 3])
def test_enough_of_the_n_best_are_all_there_are(scheme: str, T: int) -> None:
    """Of all sets of entities, IO has those without adjacent ones of one label."""
    tags = TagScheme(scheme, LABELS)
    C = len(tags.tags)
    zeros = np.zeros(C, dtype="f")
    potentials = Potentials(
        np.zeros((T, C), dtype="f"), np.array([T]), np.zeros((C, C), dtype="f"), zeros, zeros, True
    )
    nothing, first = np.zeros(T, dtype=bool), np.arange(T) == 0
    (ranked,) = Posterior(potentials, tags, Bounds(None, first, nothing)).nbest(160)
    sets = {
        tuple(spans)
        for spans in helpers.span_sets(T, LABELS)
        if scheme != "io" or not any(a[1] == b[0] and a[2] == b[2] for a, b in pairwise(spans))
    }
    assert {tuple(spans) for spans, _ in ranked} == sets and len(ranked) == len(sets)
    np.testing.assert_allclose([p for _, p in ranked], 1 / len(sets), rtol=1e-5)


@pytest.mark.parametrize("n", [0, -1])
def test_fewer_than_one_is_an_error(n: int) -> None:
    tags = TagScheme("bio", ("PER",))
    zeros = np.zeros(3, dtype="f")
    potentials = Potentials(
        np.zeros((1, 3), dtype="f"), np.array([1]), np.zeros((3, 3), dtype="f"), zeros, zeros, True
    )
    nothing = np.zeros(1, dtype=bool)
    with pytest.raises(ValueError, match="expected 1 or more"):
        Posterior(potentials, tags, Bounds(None, ~nothing, nothing)).nbest(n)


# The loss of what is wrong


def enumerated_loss(
    batch: Batch, gold: np.ndarray, wrong: Sequence[Tuple[int, Sequence[Span]]]
) -> Tuple[Tensor, List[Tensor]]:
    """Losses and their gradients: -log P(gold), and -log(1 - P(any of the spans)) for the wrong.

    At most one of these spans is in an analysis.
    """
    tensors = [
        torch.from_numpy(scores).double().requires_grad_()
        for scores in (batch.potentials.emissions, *batch.potentials[2:5])
    ]
    losses = []
    for doc, rows in enumerate(batch.rows):
        paths, scores = helpers.scored_paths(tensors[0][rows], *tensors[1:])
        legal = batch.is_legal(paths, None)
        paths, log_p = paths[legal], scores[legal].log_softmax(0)
        known = torch.from_numpy(gold[rows])
        compatible = ((known < 0) | (paths == known)).all(1)
        total = -log_p[compatible].logsumexp(0)
        breaks = np.zeros(paths.shape[1], dtype=bool)
        found = [
            read(batch.scheme.name, [batch.scheme.tags[i] for i in path], breaks)
            for path in paths.tolist()
        ]
        for of_doc, spans in wrong:
            if of_doc == doc:
                has = torch.tensor([any(span in spans for span in each) for each in found])
                total = total - torch.log1p(-log_p[has].exp().sum() * (1.0 - 1e-6))
        losses.append(total)
    result = torch.stack(losses)
    # Of docs without a token it is no function of the scores.
    total = result.sum() + 0.0 * sum(tensor.sum() for tensor in tensors)
    return result.detach(), list(torch.autograd.grad(total, tensors))


@st.composite
def corrections(
    draw: st.DrawFn,
) -> Tuple[Batch, np.ndarray, List[Tuple[int, List[Span]]]]:
    """Draw a batch, gold tags with some missing, and spans that are wrong: of a label or of any."""
    batch = draw(batches(NEAR_ZERO, bounded=False))
    gold: List[int] = []
    wrong: List[Tuple[int, List[Span]]] = []
    for doc, T in enumerate(batch.potentials.lengths.tolist()):
        paths = helpers.all_paths(T, len(batch.scheme.tags))
        paths = paths[batch.is_legal(paths, None)]
        path = paths[draw(st.integers(0, len(paths) - 1))].tolist()
        gold += [-1 if draw(st.booleans()) else tag for tag in path]
        places = st.sampled_from([span[:2] for span in batch.spans(doc)] or [(0, 0)])
        for start, end in draw(st.lists(places, max_size=2 if T else 0)):
            label = draw(st.sampled_from(["", *batch.scheme.labels]))
            chosen = [label] if label else batch.scheme.labels
            wrong.append((doc, [(start, end, each) for each in chosen]))
    return batch, np.array(gold, dtype=np.int64), wrong


@given(corrections())
@properties
def test_the_loss_is_that_of_enumeration_with_wrong_spans_and_missing_tags(
    drawn: Tuple[Batch, np.ndarray, List[Tuple[int, List[Span]]]],
) -> None:
    batch, gold, wrong = drawn
    T = batch.potentials.lengths
    ways = [
        (doc, [batch.scheme.only(*span, int(T[doc])) for span in spans]) for doc, spans in wrong
    ]
    constraints = batch.scheme.constraints
    losses, gradient = loss(batch.potentials, gold, constraints, ways)
    expected, expected_gradient = enumerated_loss(batch, gold, wrong)
    np.testing.assert_allclose(losses, expected, atol=1e-4, rtol=1e-4)
    parts = (gradient.emissions, *gradient[2:5])
    for part, expected_part in zip(parts, expected_gradient):
        np.testing.assert_allclose(part, expected_part, atol=2e-3, rtol=2e-3)


@given(corrections())
@properties
def test_what_is_wrong_adds_to_the_loss_of_its_doc_only(
    drawn: Tuple[Batch, np.ndarray, List[Tuple[int, List[Span]]]],
) -> None:
    batch, gold, wrong = drawn
    assume(wrong)
    T = batch.potentials.lengths
    ways = [
        (doc, [batch.scheme.only(*span, int(T[doc])) for span in spans]) for doc, spans in wrong
    ]
    without, _ = loss(batch.potentials, gold, batch.scheme.constraints)
    losses, _ = loss(batch.potentials, gold, batch.scheme.constraints, ways)
    added = np.zeros(len(T))
    for doc, spans in wrong:
        p = batch.probabilities(doc)
        added[doc] -= np.log1p(-sum(p[span] for span in spans))
    np.testing.assert_allclose(losses - without, added, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_loss_of_what_is_certain_and_wrong_is_finite(scheme: str) -> None:
    """-log(1e-6) = 13.8."""
    tags = TagScheme(scheme, ("PER",))
    C = len(tags.tags)
    emissions = np.zeros((1, C), dtype="f")
    emissions[tags.only(0, 1, "PER", 1)] = 100.0
    zeros = np.zeros(C, dtype="f")
    potentials = Potentials(
        emissions, np.array([1]), np.zeros((C, C), dtype="f"), zeros, zeros, True
    )
    ways = [(0, [tags.only(0, 1, "PER", 1)])]
    losses, gradient = loss(potentials, np.array([-1]), tags.constraints, ways)
    assert losses.tolist() == [pytest.approx(13.8, abs=0.2)]
    assert all(np.isfinite(part).all() for part in (gradient.emissions, *gradient[2:5]))
