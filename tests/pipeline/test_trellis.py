"""The trellis against the enumeration of all paths; the transitions of a model."""

from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import spacy
import torch
from hypothesis import given
from spacy.language import Language
from spacy.tokens import Span

import enumeration
from enumeration import TIES, Case, best_path, cases
from pipelines import TOK2VEC, make_examples, train
from posteriors import TEMPERATURES, Batch, batches
from spacy_crf_ner.crf import trellis

# The arithmetic


def best_beginnings(case: Case, b: int, t: int, c: int) -> tuple[float, list[int]]:
    """Enumerate the legal paths of doc b up to token t that end in tag c, with no end score."""
    C = case.free.emissions.shape[1]
    rows = slice(case.rows[b].start, case.rows[b].start + t + 1)
    scores = case.free.emissions[rows], *case.free[2:4], np.zeros(C, "f")
    paths, totals = enumeration.scored_paths(*map(torch.from_numpy, scores))
    limits = case.follows, case.first, np.ones(C, dtype=bool)
    legal = enumeration.is_legal(paths, *map(torch.from_numpy, limits))
    allowed = torch.from_numpy(case.allowed[rows])
    legal &= allowed[torch.arange(t + 1), paths].all(1) & (paths[:, -1] == c)
    if not legal.any():
        return -float("inf"), []
    return totals[legal].max().item(), best_path(paths[legal], totals[legal])


@given(cases(TIES))
def test_scores_and_backpointers_match_enumeration_of_prefixes(case: Case) -> None:
    best, backpointers = trellis(case.chain)
    assert best.shape == backpointers.shape == case.free.emissions.shape
    for b, rows in enumerate(case.rows):
        for t, row in enumerate(range(rows.start, rows.stop)):
            for c in range(best.shape[1]):
                score, path = best_beginnings(case, b, t, c)
                assert best[row, c] == score
                assert backpointers[row, c] == (path[-2] if len(path) > 1 else -1)


# Of docs with bounds


@given(batch=batches(), temperature=TEMPERATURES)
def test_path_and_marginals_match_enumeration(batch: Batch, temperature: float) -> None:
    posterior = batch.posterior(temperature)
    found = [posterior.trellis(doc) for doc in range(len(batch.limits))]
    assert len(found) == len(batch.limits)
    for doc, (rows, limit) in enumerate(zip(batch.rows, batch.limits)):
        arrays = (batch.potentials.emissions[rows], *batch.potentials[2:5])
        paths, scores = enumeration.scored_paths(*map(torch.from_numpy, arrays))
        legal = batch.is_legal(paths, limit.allowed)
        paths, scores = paths[legal], scores[legal]
        of_doc = found[doc]
        T, C = arrays[0].shape
        assert of_doc.tags == batch.scheme.tags
        assert [array.shape for array in of_doc[1:]] == [(T, C)] * 3 + [(T,), (T, C)]
        np.testing.assert_array_equal(of_doc.emissions, arrays[0])
        (match,) = torch.where((paths == torch.from_numpy(of_doc.path)).all(1))
        assert scores[match].item() == pytest.approx(scores.max().item(), abs=1e-3)
        weights = (scores / temperature).softmax(0)
        one_hot = torch.nn.functional.one_hot(paths, C)  # (P, T, C)
        expected = (weights[:, None, None] * one_hot).sum(0)
        np.testing.assert_allclose(of_doc.marginals, expected, atol=2e-5)
        if T:
            # The best legal last tag, with its end score, has the score of the best path.
            last = (of_doc.best[-1] + arrays[3])[batch.scheme.constraints.end]
            assert last.max() == pytest.approx(scores.max().item(), abs=1e-3)


# Of a pipeline


def test_trellis_path_matches_predicted_entities(trained: Language) -> None:
    ner: Any = trained.get_pipe("crf_ner")
    doc = trained.make_doc("Apple hired Ada Lovelace Byron in Paris Texas.")
    tags = [ner.trellis(doc).tags[c] for c in ner.trellis(doc).path]
    expected = ["U-ORG", "O", "B-PERSON", "I-PERSON", "L-PERSON", "O", "U-GPE", "U-GPE", "O"]
    assert tags == expected
    assert not doc.has_annotation("ENT_IOB")
    # Spans of one token have the probability of their only tag.
    u = ner.trellis(doc).tags.index("U-GPE")
    p = ner.span_posteriors(doc, [Span(doc, 6, 7, "GPE"), Span(doc, 1, 2, "GPE")])
    assert ner.trellis(doc).marginals[[6, 1], u].tolist() == pytest.approx(p, abs=1e-6)


# Transitions

BIO = {
    "O": ["O", "B-GPE", "B-ORG", "B-PERSON"],
    **{
        f"{prefix}-{label}": ["O", "B-GPE", f"I-{label}", "B-ORG", "B-PERSON"]
        for label in ("GPE", "ORG", "PERSON")
        for prefix in "BI"
    },
}


@pytest.mark.parametrize("decoder, rnn", [("crf", "lstm"), ("crf", "none"), ("softmax", "lstm")])
def test_transitions_match_torchcrf_weights(decoder: str, rnn: str) -> None:
    nlp = spacy.blank("en")
    model = {"hidden_width": 16, "tok2vec": TOK2VEC, "decoder": decoder, "rnn": rnn}
    nlp.add_pipe("crf_ner", config={"scheme": "bio", "model": model})
    ner: Any = nlp.get_pipe("crf_ner")
    with pytest.raises(ValueError, match="no weights yet"):
        ner.transitions()
    train(nlp, make_examples(nlp), steps=5)
    found = ner.transitions()
    inside = ner.model.get_ref("output_layer").shims[0].module.crf
    assert (inside is None) == (decoder == "softmax")
    if inside is None:
        assert not any(scores.any() for scores in found[1:4])
    else:
        weights = inside.transitions, inside.start_transitions, inside.end_transitions
        for scores, expected in zip(found[1:4], weights):
            assert scores.any() and scores.tolist() == expected.tolist()
    for row, tag in zip(found.legal, found.tags):
        assert sorted(found.tags[c] for c in np.flatnonzero(row)) == sorted(BIO[tag])
    assert sorted(found.tags[c] for c in np.flatnonzero(found.legal_start)) == sorted(BIO["O"])
    assert found.legal_end.all()


def test_transitions_are_a_copy(trained: Language) -> None:
    ner: Any = trained.get_pipe("crf_ner")
    before = deepcopy(ner.transitions())
    for array in ner.transitions()[1:]:
        array[...] = 0
    for kept, now in zip(before, ner.transitions()):
        np.testing.assert_array_equal(kept, now)
