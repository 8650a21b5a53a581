"""The trellis against the enumeration of all paths; the transitions of a model."""

from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import spacy
import torch
import torchcrf
from hypothesis import given
from spacy.language import Language
from spacy.tokens import Span

import enumeration
from enumeration import SMALL_SCORES, TIES, Case, best_path, cases
from pipelines import TOK2VEC, make_examples, train
from posteriors import TEMPERATURES, Batch, batches
from spacy_crf_ner.crf import Chain, trellis, viterbi

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


def follow(end: np.ndarray, best: np.ndarray, backpointers: np.ndarray) -> list[int]:
    """Walk along the back-pointers of a doc, from its best last tag."""
    path = [int((best[-1] + end).argmax())]
    for pointers in backpointers[:0:-1]:
        path.append(int(pointers[path[-1]]))
    return path[::-1]


@given(cases(SMALL_SCORES))
def test_backpointers_match_viterbi_path(case: Case) -> None:
    best, backpointers = trellis(case.chain)
    tags = viterbi(case.chain)
    for b, rows in enumerate(case.rows):
        if case.lengths[b] and len(case.legal_paths(b)[1]):
            walked = follow(case.chain.end, best[rows], backpointers[rows])
            assert walked == tags[rows].tolist()


@pytest.mark.parametrize("seed", range(10))
def test_backpointers_match_torchcrf_decode(seed: int) -> None:
    torch.manual_seed(seed)
    T, C = 1 + seed, 5
    oracle = torchcrf.CRF(C, batch_first=True)
    for parameter in oracle.parameters():
        torch.nn.init.normal_(parameter)
    lengths = [T, 1 + seed // 2, 1]
    parts = [3 * torch.randn(length, C) for length in lengths]
    kinds = oracle.transitions, oracle.start_transitions, oracle.end_transitions
    scores = (x.detach().numpy() for x in (torch.cat(parts), torch.tensor(lengths), *kinds))
    chain = Chain(*scores)
    ends = np.cumsum(lengths)[:-1]
    of_docs = zip(*(np.split(found, ends) for found in trellis(chain)))
    with torch.no_grad():
        masks = [torch.ones(1, length, dtype=torch.bool) for length in lengths]
        expected = [oracle.decode(part[None], mask)[0] for part, mask in zip(parts, masks)]
    assert [follow(chain.end, *of_doc) for of_doc in of_docs] == expected


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


def test_trellis_respects_preset_entities_and_sentence_starts(trained: Language) -> None:
    ner: Any = trained.get_pipe("crf_ner")
    doc = trained.make_doc("Tim Cook visited Hanoi.")
    doc.set_ents([Span(doc, 2, 3, "ORG")], default="missing")
    found = ner.trellis(doc)
    given = found.tags.index("U-ORG")
    assert found.path[2] == given and found.marginals[2, given] == pytest.approx(1.0)
    assert np.isfinite(found.best[2]).nonzero()[0].tolist() == [given]
    assert (np.delete(found.backpointers[2], given) == -1).all()
    assert np.isfinite(found.emissions).all()
    # A sentence starts at the third token: no entity continues across it.
    doc = trained.make_doc("Tim Cook visited Hanoi.")
    doc[2].is_sent_start = True
    inside = [i for i, tag in enumerate(ner.trellis(doc).tags) if tag[0] in "IL"]
    assert not np.isfinite(ner.trellis(doc).best[2, inside]).any()
    assert np.isfinite(ner.trellis(doc).best[1, inside]).any()


@pytest.mark.parametrize("text, T", [("", 0), (" \n ", 1)])
def test_docs_without_words_have_a_trellis(trained: Language, text: str, T: int) -> None:
    ner: Any = trained.get_pipe("crf_ner")
    found = ner.trellis(trained.make_doc(text))
    C = len(found.tags)
    assert [array.shape for array in found[1:]] == [(T, C)] * 3 + [(T,), (T, C)]
    assert not found.path.any()
    assert found.marginals[:, 0].tolist() == pytest.approx([1.0] * T)


def test_temperature_changes_only_marginals() -> None:
    nlp = spacy.blank("en")
    nlp.add_pipe("crf_ner", config={"model": {"hidden_width": 16, "tok2vec": TOK2VEC}})
    train(nlp, make_examples(nlp), steps=20)
    ner: Any = nlp.get_pipe("crf_ner")
    doc = nlp.make_doc("Tim Cook visited Hanoi.")
    cold = ner.trellis(doc)
    ner.temperature = 5.0
    warm = ner.trellis(doc)
    for name in ("emissions", "best", "backpointers", "path"):
        np.testing.assert_array_equal(getattr(cold, name), getattr(warm, name))
    assert warm.marginals.max(1).mean() < cold.marginals.max(1).mean() - 0.1
    np.testing.assert_allclose(warm.marginals.sum(1), 1.0, atol=1e-5)


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
