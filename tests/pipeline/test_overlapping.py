"""Overlapping entities: chains of labels against the enumeration of all assignments."""

import math
from itertools import combinations, pairwise, product
from typing import Any

import numpy as np
import pytest
import spacy
import torch
from numpy.typing import NDArray
from spacy.language import Language
from spacy.pipeline.spancat import spancat_score
from spacy.tokens import Doc, DocBin, Span
from spacy.training import Example
from spacy.vocab import Vocab
from torch import Tensor
from torch.testing import assert_close

import enumeration
import helpers
from helpers import SCHEMES
from pipelines import TOK2VEC, copied, ents, small, train
from posteriors import random_potentials, read
from spacy_crf_ner.crf import Chain
from spacy_crf_ner.input_error import InputError
from spacy_crf_ner.pipeline.calibration import log_likelihoods
from spacy_crf_ner.pipeline.encoding import LabelEncoding
from spacy_crf_ner.pipeline.interval_scheduling import nesting_levels
from spacy_crf_ner.pipeline.platt_scaling import UNCHANGED, PlattScaling
from spacy_crf_ner.tags import TagScheme

Spans = tuple[helpers.Span, ...]
LABELS = ("PER", "LOC")
LENGTHS = (3, 0, 2)
EVERYWHERE = [(scheme, max_nesting) for scheme in SCHEMES for max_nesting in (1, 2)]


def of_chains(scheme: str, max_nesting: int, key: str = "sc") -> LabelEncoding:
    return LabelEncoding(scheme, LABELS, max_nesting, key, "ner")


def of_chain(potentials: Chain, doc: int, chain: int, n: int) -> list[Tensor]:
    """The scores of one chain, by their definition: O scores 0, and so does staying there."""
    tags = [0, *range(1 + chain * (n - 1), 1 + (chain + 1) * (n - 1))]
    begin = sum(LENGTHS[:doc])
    tensors = enumeration.tensors(potentials)
    E = tensors[0][begin : begin + LENGTHS[doc]][:, tags].clone()
    A, start, end = (
        tensors[1][tags][:, tags].clone(),
        tensors[2][tags].clone(),
        tensors[3][tags].clone(),
    )
    E[:, 0] = A[0, 0] = start[0] = end[0] = 0.0
    return [E, A, start, end]


def paths_of(scheme: TagScheme, scores: list[Tensor]) -> tuple[Tensor, Tensor]:
    paths, totals = enumeration.scored_paths(*scores)
    legal = enumeration.is_legal(paths, *map(torch.from_numpy, scheme.constraints))
    return paths[legal], totals[legal]


def enumerated(
    chains: LabelEncoding, potentials: Chain, doc: int
) -> list[list[tuple[Spans, float]]]:
    """For each chain of a doc, its sets of entities, with their log probabilities."""
    n, result = len(chains.scheme.tags), []
    for chain, (label, _) in enumerate(product(LABELS, range(chains.max_nesting))):
        paths, scores = paths_of(chains.scheme, of_chain(potentials, doc, chain, n))
        sets = [
            tuple(
                (start, end, label)
                for start, end, _ in read(
                    chains.scheme.name,
                    [chains.scheme.tags[i] for i in path],
                    [t == 0 for t in range(len(path) + 1)],
                )
            )
            for path in paths.tolist()
        ]
        result.append(list(zip(sets, scores.log_softmax(0).tolist())))
    return result


def posterior_of(chains: LabelEncoding, potentials: Chain) -> Any:
    docs = [Doc(Vocab(), words=["a"] * T) for T in LENGTHS]
    return chains.posterior(docs, potentials, False, 1.0, UNCHANGED)


@pytest.mark.parametrize(("scheme", "max_nesting"), EVERYWHERE)
def test_decode_and_probabilities_match_enumeration(scheme: str, max_nesting: int) -> None:
    chains = of_chains(scheme, max_nesting)
    potentials = random_potentials(LENGTHS, len(chains.tags.tags))
    posterior = posterior_of(chains, potentials)
    all_spans: list[list[helpers.Span]] = []
    expected: list[list[float]] = []
    for doc, (T, decoded) in enumerate(zip(LENGTHS, posterior.decode())):
        by_chain = enumerated(chains, potentials, doc)
        best: set[helpers.Span] = set()
        for found in by_chain:
            best |= set(max(found, key=lambda pair: pair[1])[0])
        assert decoded == sorted(best)
        spans = [(s, e, label) for s in range(T) for e in range(s + 1, T + 1) for label in LABELS]
        p = []
        for span in spans:
            # A span is an entity if a chain of its label has it.
            absent = [
                sum(math.exp(q) for found, q in of_chain if span not in found)
                for of_chain in by_chain
            ]
            p.append(1 - math.prod(absent))
        all_spans.append(spans)
        expected.append(p)
    for found, right in zip(posterior.probabilities(all_spans), expected):
        assert found == pytest.approx(right, abs=1e-9)
    thresholds = np.array([0.05, 0.2])
    candidates = posterior.candidates(thresholds)
    for spans, right, found in zip(all_spans, expected, candidates):
        kept = {span: p for span, p in zip(spans, right) if p >= thresholds[LABELS.index(span[2])]}
        assert dict(found) == pytest.approx(kept) and len(found) == len(kept)


@pytest.mark.parametrize(("scheme", "max_nesting"), EVERYWHERE)
def test_nbest_matches_enumeration_of_chains(scheme: str, max_nesting: int) -> None:
    chains = of_chains(scheme, max_nesting)
    potentials = random_potentials(LENGTHS, len(chains.tags.tags), seed=1)
    for doc, ranked in enumerate(posterior_of(chains, potentials).nbest(6)):
        exact: dict[Spans, float] = {}
        for parts in product(*enumerated(chains, potentials, doc)):
            spans = tuple(sorted({span for found, _ in parts for span in found}))
            exact[spans] = exact.get(spans, 0.0) + math.exp(sum(q for _, q in parts))
        best = sorted(exact, key=exact.__getitem__, reverse=True)[:6]
        found = {tuple(spans): math.exp(p) for spans, p in ranked}
        assert len(found) == len(ranked) and list(found.values()) == sorted(found.values())[::-1]
        if max_nesting == 1:
            assert list(found) == best
            assert list(found.values()) == pytest.approx([exact[spans] for spans in best])
        else:  # not all of the ways to divide entities over levels
            assert all(0.8 * exact[spans] < p <= exact[spans] + 1e-9 for spans, p in found.items())
            assert not best or best[0] in found


# The component

WORDS = ["the", "king", "of", "France", "met"]
WORDS += ["University", "of", "Oslo", "president", "in", "Oslo", "."]
SPANS = [(0, 4, "PER"), (3, 4, "LOC"), (5, 9, "PER"), (5, 8, "ORG"), (7, 8, "LOC")]
SPANS += [(10, 11, "LOC")]


def pipeline(**settings: Any) -> Language:
    return small(**{"overlap": True, **settings})


def doc_with(nlp: Language, spans: list[helpers.Span], words: list[str] = WORDS) -> Doc:
    doc = Doc(nlp.vocab, words=words)
    doc.spans["sc"] = [Span(doc, *span) for span in spans]
    return doc


def example(nlp: Language, spans: list[helpers.Span] = SPANS, words: list[str] = WORDS) -> Example:
    return Example(Doc(nlp.vocab, words=words), doc_with(nlp, spans, words))


def found(doc: Doc, key: str = "sc") -> list[helpers.Span]:
    return [(span.start, span.end, span.label_) for span in doc.spans[key]]


def fit(nlp: Language, examples: list[Example], steps: int = 25) -> None:
    train(nlp, examples, steps, learn_rate=0.02)


@pytest.fixture(scope="module", params=[1, 2])
def learned(request: pytest.FixtureRequest, shared: Any) -> Language:
    def make() -> Language:
        nlp = pipeline(max_nesting=request.param)
        fit(nlp, [example(nlp), example(nlp, [], ["nothing", "here"])])
        return nlp

    return spacy.load(shared(f"overlapping-{request.param}", make))


def test_training_learns_overlapping_entities(
    learned: Language, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Overlapping entities have confidences whatever the setting says.
    monkeypatch.setattr(learned.get_pipe("crf_ner"), "confidence", False)
    doc = learned(Doc(learned.vocab, words=WORDS))
    assert found(doc) == sorted(SPANS)
    scores = doc.spans["sc"].attrs["scores"]
    assert scores.dtype == np.float32 and (scores > 0.5).all()
    # doc.ents has the disjoint ones with the largest sum of probability.
    p = dict(zip(found(doc), scores.tolist()))
    disjoint = [
        chosen
        for r in range(len(SPANS) + 1)
        for chosen in combinations(sorted(SPANS), r)
        if all(a[1] <= b[0] for a, b in pairwise(chosen))
    ]
    best = max(disjoint, key=lambda chosen: sum(p[span] for span in chosen))
    assert [(e.start, e.end, e.label_) for e in doc.ents] == list(best)
    for ent in doc.ents:
        assert ent._.confidence == pytest.approx(p[ent.start, ent.end, ent.label_], abs=1e-6)
    nothing = learned(Doc(learned.vocab, words=["nothing", "here"]))
    assert found(nothing) == [] and not nothing.ents and nothing.has_annotation("ENT_IOB")
    assert found(learned(Doc(learned.vocab))) == []


def test_loss_matches_enumeration() -> None:
    """Missing labels, nesting within a label, and negative spans."""
    nlp = pipeline(max_nesting=2, incorrect_spans_key="wrong")
    ner = nlp.get_pipe("crf_ner")
    words = [["a", "b", "c"], [], ["d", "e"]]
    gold = [[(0, 3, "PER"), (1, 2, "PER"), (2, 3, "LOC")], [], [(0, 1, "PER")]]
    examples = [example(nlp, spans, of_doc) for spans, of_doc in zip(gold, words)]
    ner.initialize(lambda: examples, labels=LABELS)
    last = examples[2].reference
    last.spans["annotated_labels"] = [Span(last, 0, 2, "PER")]
    last.spans["wrong"] = [Span(last, 1, 2, "PER")]
    first = examples[0].reference
    first.spans["wrong"] = [Span(first, 0, 1, "LOC"), Span(first, 1, 3, "")]
    chains = of_chains("biluo", 2)
    potentials = random_potentials(LENGTHS, len(chains.tags.tags), seed=3)
    potentials = potentials.map(lambda scores: scores.astype("f"))
    leaves = [
        tensor.clone().double().requires_grad_() for tensor in enumeration.tensors(potentials)
    ]
    again = Chain(leaves[0], potentials.lengths, *leaves[1:])
    in_chain = {
        0: [[(0, 3)], [(1, 2)], [(2, 3)], []],
        1: [[], [], [], []],
        2: [[(0, 1)], [], None, None],  # LOC is not annotated
    }
    wrong = {
        0: [[(1, 3)], [(1, 3)], [(0, 1), (1, 3)], [(0, 1), (1, 3)]],
        2: [[(1, 2)], [(1, 2)], [], []],
    }
    loss: Any = torch.zeros((), dtype=torch.float64)
    for doc, of_doc in in_chain.items():
        for m, spans in enumerate(of_doc):
            if spans is None or not LENGTHS[doc]:
                continue
            begin = sum(LENGTHS[:doc])
            tags = [0, *range(1 + 4 * m, 5 + 4 * m)]
            mask = torch.ones(5, 5)
            mask[0, 0] = 0.0
            scores = [
                again.emissions[begin : begin + LENGTHS[doc]][:, tags] * mask[0],
                again.transitions[tags][:, tags] * mask,
                again.start[tags] * mask[0],
                again.end[tags] * mask[0],
            ]
            paths, totals = paths_of(chains.scheme, scores)
            written = helpers.write("biluo", LENGTHS[doc], [(s, e, "") for s, e in spans])
            path = torch.tensor([chains.scheme.tags.index(tag) for tag in written])
            (match,) = torch.where((paths == path).all(1))
            assert len(match) == 1
            loss = loss - totals.log_softmax(0)[match[0]]
            for span in wrong.get(doc, [[]] * 4)[m]:
                has = torch.tensor(
                    [
                        (*span, "")
                        in read("biluo", [chains.scheme.tags[i] for i in p], [False] * 4)
                        for p in paths.tolist()
                    ]
                )
                loss = loss - totals.log_softmax(0)[~has].logsumexp(0)
    found_loss, gradient = ner.get_loss(examples, potentials)
    assert found_loss == pytest.approx(loss.item(), rel=1e-5)
    for d_found, d_right in zip(enumeration.tensors(gradient), torch.autograd.grad(loss, leaves)):
        assert_close(d_found.double(), d_right, atol=1e-4, rtol=1e-4)
    log_p = ner.encoding.gold(examples)[0]
    assert (log_p == -1).sum() == 2 * 2  # two tokens in the two levels of LOC


def test_scores_match_spancat_scorer(learned: Language) -> None:
    gold = [SPANS[:3], [*SPANS, (4, 5, "ORG")]]
    examples = [example(learned, spans) for spans in gold]
    scores = learned.evaluate(examples)
    annotated = [Example(learned(eg.predicted.copy()), eg.reference) for eg in examples]
    expected = spancat_score(annotated, spans_key="sc")
    assert 0.5 < expected["spans_sc_f"] < 1.0
    assert {name: scores[name] for name in expected} == expected
    assert scores["ents_f"] is None  # gold docs do not annotate doc.ents


def test_gold_docs_without_the_key_are_scored_by_their_ents(learned: Language) -> None:
    flat, complete = (example(learned) for _ in range(2))
    gold = Doc(learned.vocab, words=WORDS)
    gold.set_ents([Span(gold, *span) for span in SPANS if span[2] == "LOC"], default="outside")
    flat = Example(flat.predicted, gold)
    by_type = learned.evaluate([flat, complete])["spans_sc_per_type"]
    assert by_type["LOC"]["f"] == 1.0
    # The first doc has no gold entity of another label.
    assert by_type["PER"]["r"] == by_type["ORG"]["r"] == 1.0
    assert by_type["PER"]["p"] == by_type["ORG"]["p"] == 0.5
    assert "sc" not in gold.spans  # unchanged
    # A doc whose entities are annotated in part is not scored.
    gold.set_ents([], missing=[gold[10:]], default="unmodified")
    assert learned.evaluate([flat, complete])["spans_sc_f"] == 1.0


def test_score_ignores_predictions_of_unannotated_labels(learned: Language) -> None:
    eg = example(learned, [span for span in SPANS if span[2] == "LOC"])
    assert learned.evaluate([eg])["spans_sc_p"] < 1.0
    gold = eg.reference
    gold.spans["annotated_labels"] = [Span(gold, 0, len(gold), "LOC")]
    assert learned.evaluate([eg])["spans_sc_f"] == 1.0


def test_gold_tags_of_flat_gold_docs_are_those_of_their_entities() -> None:
    doc = Doc(Vocab(), words=WORDS)
    doc.set_ents([Span(doc, 3, 4, "LOC")], missing=[doc[10:12]], default="outside")
    chains = of_chains("biluo", 2)
    tags = chains.gold_tags(Example(Doc(doc.vocab, words=WORDS), doc))
    assert (tags[:, 10:] == -1).all()
    assert [*zip(*tags[:, :10].nonzero())] == [(2, 3)]  # LOC, its outermost level
    assert chains.scheme.tags[tags[2, 3]] == "U-"


def test_preset_entities_restrict_only_their_label(learned: Language) -> None:
    doc = Doc(learned.vocab, words=WORDS)
    doc.set_ents([Span(doc, 2, 4, "ORG")], default="missing")
    learned(doc)
    assert (2, 4, "ORG") in found(doc) and (0, 4, "PER") in found(doc)
    assert (2, 4, "ORG") in [(e.start, e.end, e.label_) for e in doc.ents]
    assert not any(e.label_ == "PER" and e.start == 0 for e in doc.ents)
    at = found(doc).index((2, 4, "ORG"))
    assert doc.spans["sc"].attrs["scores"][at] == 1.0 and len(set(found(doc))) == len(found(doc))
    blocked = Doc(learned.vocab, words=WORDS)
    blocked.set_ents([], blocked=[blocked[10:11]], default="unmodified")
    assert (10, 11, "LOC") not in found(learned(blocked)) and (0, 4, "PER") in found(blocked)


@pytest.mark.parametrize("preset", [(2, 4, "ORG"), (3, 4, "LOC")])
def test_overwrite_ignores_preset_entities(
    preset: helpers.Span, learned: Language, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wrong or right."""
    ner = learned.get_pipe("crf_ner")
    doc, bare = (Doc(learned.vocab, words=WORDS) for _ in range(2))
    doc.set_ents([Span(doc, *preset)], default="missing")
    monkeypatch.setattr(ner, "overwrite", True)
    labelings = [
        [[(e.start, e.end, e.label_) for e in each.ents] for each in ner.nbest([each], 3)[0]]
        for each in (doc, bare)
    ]
    candidates = [dict(ner.uncertainty([each])[0].candidates) for each in (doc, bare)]
    learned(doc), learned(bare)
    assert labelings[0] == labelings[1] and labelings[0][0] == sorted(SPANS)
    assert candidates[0] == candidates[1] and (3, 4, "LOC") in candidates[0]
    assert (found(doc), ents(doc)) == (found(bare), ents(bare)) and found(doc) == sorted(SPANS)


def test_label_threshold_and_max_expected_f_select_spans(learned: Language) -> None:
    nlp = copied(learned)
    ner: Any = nlp.get_pipe("crf_ner")
    everything = set(found(nlp(Doc(nlp.vocab, words=WORDS))))
    ner.thresholds = {"LOC": 1.0}
    assert set(found(nlp(Doc(nlp.vocab, words=WORDS)))) == {
        span for span in everything if span[2] != "LOC"
    }
    ner.thresholds, ner.decode, ner.f_score_threshold = {}, "max_expected_f", 0.5
    assert set(found(nlp(Doc(nlp.vocab, words=WORDS)))) == everything


def test_confidences_match_posteriors_nbest_and_trellis(learned: Language) -> None:
    ner, fresh = learned.get_pipe("crf_ner"), Doc(learned.vocab, words=WORDS)
    doc = learned(Doc(learned.vocab, words=WORDS))
    asked = [Span(fresh, *span) for span in found(doc)]
    right = doc.spans["sc"].attrs["scores"].tolist()
    assert ner.span_posteriors(fresh, asked) == pytest.approx(right, abs=1e-6)
    (labelings,) = ner.nbest([fresh], 3)
    assert [(s.start, s.end, s.label_) for s in labelings[0].ents] == sorted(SPANS)
    (log_p,) = log_likelihoods(ner, [example(learned)])
    # With two levels, the same entities can be in other levels than those of gold.
    share = math.exp(log_p) / labelings[0].probability
    assert 0.9 < share <= 1 + 1e-4 and (ner.max_nesting == 2 or share > 1 - 1e-4)
    trellis = ner.trellis(fresh, "LOC")
    assert trellis.tags == ("O", "B-LOC", "I-LOC", "L-LOC", "U-LOC")
    assert [t for t, tag in enumerate(trellis.path) if tag] == [3, 7, 10]
    with pytest.raises(InputError, match=r"one of .*LOC.*, got no label"):
        ner.trellis(fresh)
    moves = ner.transitions()
    label = np.array([tag[2:] for tag in moves.tags])
    apart = (label[:, None] != label) & (label[:, None] != "") & (label != "")
    assert not moves.legal[apart].any() and moves.scores[0, 0] == 0.0


def test_loaded_pipeline_predicts_the_same_and_calibrates(learned: Language, tmp_path: Any) -> None:
    before = found(learned(Doc(learned.vocab, words=WORDS)))
    learned.to_disk(tmp_path / "pipeline")
    again = spacy.load(tmp_path / "pipeline")
    doc = again(Doc(again.vocab, words=WORDS))
    assert found(doc) == before
    docs = DocBin(docs=[doc], store_user_data=True).to_bytes()
    (stored,) = DocBin().from_bytes(docs).get_docs(again.vocab)
    assert found(stored) == before
    texts = [" ".join(WORDS), "nothing here"] * 3
    one = [found(doc) for doc in again.pipe(texts)]
    assert [found(doc) for doc in again.pipe(texts, n_process=2, batch_size=2)] == one
    ner = again.get_pipe("crf_ner")
    rng = np.random.default_rng(0)
    noisy = [
        example(again, [span for span in SPANS if rng.random() < 0.7] or SPANS[:1])
        for _ in range(100)
    ]
    likelihood = sum(log_likelihoods(ner, noisy))
    assert ner.fit_temperature(noisy) > 1.2  # the model is too sure
    assert sum(log_likelihoods(ner, noisy)) > likelihood
    ner.fit_platt_scaling(noisy)
    doc = again(Doc(again.vocab, words=WORDS))
    mean = doc.spans["sc"].attrs["scores"].mean()
    rate = sum(len(eg.reference.spans["sc"]) for eg in noisy) / (len(noisy) * len(SPANS))
    assert mean == pytest.approx(rate, abs=0.03)


@pytest.mark.parametrize("settings", [{"max_nesting": 0}, {"overlap": False, "max_nesting": 2}])
def test_invalid_max_nesting_raises(settings: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="max_nesting: expected 1 or more, and 1 without"):
        pipeline(**settings)


def test_entities_nested_too_deeply_warn_with_count() -> None:
    nlp = pipeline(max_nesting=2)
    nested = [(0, 6, "PER"), (1, 5, "PER"), (2, 4, "PER"), (2, 3, "LOC")]
    with pytest.warns(UserWarning) as warned:
        fit(nlp, [example(nlp, nested)], steps=30)
    counted, later, *_ = [str(warning.message) for warning in warned]
    assert "1 of 4 gold entities" in counted and "has a recall of 75.0%" in counted
    assert "are left out" in later
    assert counted.endswith("Set a larger max_nesting.") and later.endswith("max_nesting.")
    assert found(nlp(Doc(nlp.vocab, words=WORDS))) == sorted(nested[:2] + nested[3:])
    with pytest.warns(UserWarning, match="some gold entities are nested in more than 2 levels"):
        nlp.update([example(nlp, nested)], sgd=nlp.resume_training())  # nothing has counted them


def test_nbest_contains_preset_entity_once() -> None:
    nlp = pipeline(max_nesting=2)
    ner = nlp.get_pipe("crf_ner")
    nlp.initialize(lambda: [example(nlp, [(0, 2, "PER"), (0, 1, "PER")], ["a", "b", "c"])])
    doc = Doc(nlp.vocab, words=["a", "b", "c"])
    doc.set_ents([Span(doc, 0, 2, "PER")], default="missing")
    labelings = [
        [(e.start, e.end, e.label_) for e in each.ents] for each in ner.nbest([doc], 50)[0]
    ]
    assert all(ents.count((0, 2, "PER")) == 1 for ents in labelings)
    assert len({*map(tuple, labelings)}) == len(labelings) > 5
    (uncertain,) = ner.uncertainty([doc])
    assert (0, 2, "PER") not in [span for span, _ in uncertain.candidates]


def test_match_candidates_skips_unannotated_labels() -> None:
    chains = LabelEncoding("biluo", ("LOC", "PER"), 2, "sc", "ner")
    gold = Doc(Vocab(), words=["a", "b"])
    gold.spans["sc"] = [Span(gold, 0, 1, "PER")]
    gold.spans["annotated_labels"] = [Span(gold, 0, 2, "PER")]
    found = [((0, 1, "PER"), 0.9), ((1, 2, "LOC"), 0.8), ((1, 2, "PER"), 0.1)]
    judged = chains.match_candidates(Example(Doc(gold.vocab, words=["a", "b"]), gold), found)
    assert judged == [(0.9, True), (0.1, False)]


def test_two_components_learn_entities_of_their_own_spans_key() -> None:
    nlp = pipeline(spans_key="first")
    model = nlp.get_pipe_config("crf_ner")["model"]
    settings = {"overlap": True, "spans_key": "second", "model": model}
    nlp.add_pipe("crf_ner", name="other", config=settings)
    gold = Doc(nlp.vocab, words=WORDS)
    gold.spans["first"] = [Span(gold, 0, 4, "PER"), Span(gold, 3, 4, "LOC")]
    gold.spans["second"] = [Span(gold, 5, 6, "DAY"), Span(gold, 0, 4, "TITLE")]
    fit(nlp, [Example(Doc(nlp.vocab, words=WORDS), gold)])
    doc = nlp(Doc(nlp.vocab, words=WORDS))
    assert found(doc, "first") == [(0, 4, "PER"), (3, 4, "LOC")]
    assert found(doc, "second") == [(0, 4, "TITLE"), (5, 6, "DAY")]


def test_reserved_label_raises() -> None:
    with pytest.raises(InputError, match=r"such as 'A \(level 2\)' of 'A'"):
        LabelEncoding("biluo", ("A", "A (level 2)"), 2, "sc", "ner")


@pytest.mark.parametrize("seed", range(20))
def test_nesting_levels_are_the_fewest(seed: int) -> None:
    rng = np.random.default_rng(seed)
    starts = rng.integers(0, 12, 8)
    spans = sorted({(int(s), int(s + n)) for s, n in zip(starts, rng.integers(1, 6, 8))})
    rng.shuffle(spans)
    levels = nesting_levels(spans)
    at_token = [sum(start <= t < end for start, end in spans) for t in range(20)]
    assert max(levels) + 1 == max(at_token)
    for (a, j), (b, k) in product(zip(spans, levels), repeat=2):
        if a != b and j == k:
            assert a[1] <= b[0] or b[1] <= a[0]


def test_invalid_gold_raises() -> None:
    nlp = pipeline()
    train(nlp, [example(nlp)], steps=1)
    with pytest.raises(InputError, match="got 'NEW'"):
        nlp.update([example(nlp, [(0, 1, "NEW")])])
    eg = example(nlp, [(0, 1, "LOC"), (0, 4, "PER")])
    eg.reference.spans["annotated_labels"] = [Span(eg.reference, 0, len(WORDS), "LOC")]
    with pytest.raises(InputError, match=r"annotated labels \['LOC'\], got 'PER'"):
        nlp.update([eg])
    with pytest.raises(InputError, match="begins and ends with a word"):
        nlp.update([example(nlp, [(0, 2, "LOC")], ["a", " "])])
    for start, end, label, expected in ((1, 1, "LOC", "or the entity"), (0, 1, "", "a label")):
        eg = example(nlp)
        eg.reference.spans["sc"] = [Span(eg.reference, start, end, label)]
        with pytest.raises(InputError, match=rf"characters .* in the doc .*{expected}"):
            nlp.initialize(lambda eg=eg: [eg])
    eg = example(nlp, [(0, 1, "LOC")])
    eg.reference.spans["wrong"] = [Span(eg.reference, 0, 1, "LOC")]
    with pytest.raises(InputError, match=r"not a gold entity in doc\.spans\['wrong'\], got one"):
        of_chains("biluo", 1).negatives([eg], "wrong")


def test_misaligned_entities_are_missing_for_their_label_only() -> None:
    nlp = pipeline(max_nesting=2)
    train(nlp, [example(nlp)], steps=1)
    gold = Doc(nlp.vocab, words=["New", "York", "Times"], spaces=[False, True, False])
    gold.spans["sc"] = [Span(gold, 0, 1, "LOC"), Span(gold, 0, 3, "PER")]
    eg = Example(Doc(nlp.vocab, words=["NewYork", "Times"], spaces=[True, False]), gold)
    chains = nlp.get_pipe("crf_ner").encoding
    with pytest.warns(UserWarning, match="do not align"):
        tags = dict(zip(chains.tags.labels, chains.gold_tags(eg).tolist()))
    names = chains.scheme.tags
    assert tags["LOC"] == [-1, 0] and tags["LOC (level 2)"] == [-1, 0]
    assert [names[t] for t in tags["PER"]] == ["B-", "L-"] and tags["PER (level 2)"] == [0, 0]


def weights(nlp: Language) -> dict[str, NDArray[Any]]:
    shim = nlp.get_pipe("crf_ner").model.get_ref("output_layer").shims[0]
    return {name: x.detach().clone().numpy() for name, x in shim.module.state_dict().items()}


@pytest.mark.slow
@pytest.mark.parametrize("max_nesting", [1, 2])
def test_training_new_label_with_frozen_encoder_keeps_other_labels(max_nesting: int) -> None:
    """With a frozen encoder, a corpus of the new label alone trains only the new label."""
    model = {"@architectures": "spacy-crf-ner.BiLSTMCRF.v1", "rnn": "none", "tok2vec": TOK2VEC}
    nlp = pipeline(model=model, max_nesting=max_nesting)
    old = [span for span in SPANS if span[2] != "ORG"]
    fit(nlp, [example(nlp, old)], steps=30)
    ner = nlp.get_pipe("crf_ner")
    fresh = Doc(nlp.vocab, words=WORDS)
    before, p = found(nlp(fresh.copy())), nlp(fresh.copy()).spans["sc"].attrs["scores"].tolist()
    potentials, stored = ner.model.predict([fresh]), weights(nlp)
    assert ner.add_label("ORG") == 1
    assert found(nlp(fresh.copy())) == before  # a new label is not found before it is learned
    tok2vec = ner.model.get_ref("tok2vec")
    kept = tok2vec.to_bytes()
    eg = example(nlp, [span for span in SPANS if span[2] == "ORG"])
    gold = eg.reference
    gold.spans["annotated_labels"] = [Span(gold, 0, len(gold), "ORG")]
    optimizer = nlp.resume_training()
    optimizer.L2, optimizer.learn_rate = 0.0, 0.03
    for _ in range(30):
        nlp.update([eg], sgd=optimizer)
        tok2vec.from_bytes(kept)  # frozen
    doc = nlp(fresh.copy())
    assert set(found(doc)) == {*before, (5, 8, "ORG")}
    again = ner.model.predict([fresh])
    C = len(potentials.start)
    assert np.array_equal(again.transitions[:C, :C], potentials.transitions)
    for name, old_weights in stored.items():
        new_weights = weights(nlp)[name]
        kept_part = tuple(slice(n) for n in old_weights.shape)
        assert np.array_equal(new_weights[kept_part], old_weights)  # bit for bit
    # A product of matrices of another size is rounded in another way.
    assert np.allclose(again.emissions[:, :C], potentials.emissions, rtol=0, atol=1e-5)
    now = dict(zip(found(doc), doc.spans["sc"].attrs["scores"].tolist()))
    assert [now[span] for span in before] == pytest.approx(p, abs=1e-5)


def test_calibration_applies_to_probability_over_all_levels() -> None:
    """Scaling of all levels together, and thresholds of it, in candidates and for the F-score."""
    chains, T = LabelEncoding("biluo", ("PER",), 2, "sc", "ner"), 1
    E = np.full((T, 9), -30.0)
    E[0, 0], E[0, [4, 8]] = 0.0, math.log(0.3 / 0.7)  # U-PER has a probability of 0.3 in each level
    nothing = np.zeros((9, 9)), np.zeros(9), np.zeros(9)
    potentials = Chain(E, np.array([T]), *nothing)
    docs = [Doc(Vocab(), words=["a"])]
    together = 1 - 0.7**2
    posterior = chains.posterior(docs, potentials, False, 1.0, UNCHANGED)
    assert posterior.probabilities([[(0, 1, "PER")]]) == [[pytest.approx(together)]]
    (candidates,) = posterior.candidates(np.array([0.01]))
    assert [span for span, _ in chains.choose(candidates, 0.5)] == [(0, 1, "PER")]
    assert posterior.decode() == [[]]
    platt = PlattScaling(1.0, -1.0)
    posterior = chains.posterior(docs, potentials, False, 1.0, platt)
    odds = math.exp(math.log(together / (1 - together)) - 1)
    p = odds / (1 + odds)
    assert posterior.probabilities([[(0, 1, "PER")]]) == [[pytest.approx(p)]]
    assert posterior.candidates(np.array([p - 0.01])) == [[((0, 1, "PER"), pytest.approx(p))]]
    assert posterior.candidates(np.array([p + 0.01])) == [[]]


def test_max_expected_f_nests_entities_of_a_label(learned: Language) -> None:
    ner = learned.get_pipe("crf_ner")
    posterior = ner.posterior([Doc(learned.vocab, words=WORDS)])
    (candidates,) = posterior.candidates(np.full(len(ner.labels), 0.001))
    chosen = [span for span, _ in ner.encoding.choose(candidates, 0.001)]
    assert chosen == sorted(chosen)
    levels = [
        max(nesting_levels([(start, end) for start, end, of in chosen if of == label]))
        for label in ner.labels
    ]
    assert max(levels) == ner.max_nesting - 1


def test_preset_entities_keep_their_ids(learned: Language) -> None:
    doc = Doc(learned.vocab, words=WORDS)
    doc.ents = [Span(doc, 2, 4, "ORG", kb_id="Q1", span_id="x")]
    (kept,) = (span for span in learned(doc).spans["sc"] if span.start == 2)
    assert (kept.kb_id_, kept.id_) == ("Q1", "x")


def test_loading_flat_weights_as_overlapping_raises(tmp_path: Any) -> None:
    """Also those that were saved when there were only flat entities."""
    nlp = pipeline(overlap=False)
    doc = Doc(nlp.vocab, words=WORDS)
    doc.set_ents([Span(doc, 3, 4, "LOC")], default="outside")
    train(nlp, [Example(Doc(nlp.vocab, words=WORDS), doc)], steps=1)
    for stored in ({"encoding": [False, 1]}, {}):
        nlp.get_pipe("crf_ner").cfg.pop("encoding", None)
        nlp.get_pipe("crf_ner").cfg.update(stored)
        nlp.to_disk(tmp_path / "flat")
        spacy.load(tmp_path / "flat")("Oslo")
        config = {"components": {"crf_ner": {"overlap": True}}}
        with pytest.raises(
            InputError, match=r"overlap True and max_nesting 1.* overlap False and max_nesting 1"
        ):
            spacy.load(tmp_path / "flat", config=config)("Oslo")


def test_fit_temperature_without_gold_entities_raises() -> None:
    nlp = pipeline()
    nlp.initialize(lambda: [example(nlp)])
    doc = Doc(nlp.vocab, words=WORDS)
    with pytest.raises(InputError, match=r"doc\.ents or doc\.spans\['sc'\]\.$"):
        nlp.get_pipe("crf_ner").fit_temperature([Example(doc, doc)])


def test_nbest_of_many_labels_returns_best_labelings() -> None:
    labels = tuple(f"L{i}" for i in range(6))
    chains = LabelEncoding("io", labels, 1, "sc", "ner")
    rng = np.random.default_rng(0)
    E = np.concatenate([np.zeros((1, 1)), rng.normal(size=(1, 6))], axis=1)
    nothing = np.zeros((7, 7)), np.zeros(7), np.zeros(7)
    potentials = Chain(E, np.array([1]), *nothing)
    docs = [Doc(Vocab(), words=["a"])]
    (ranked,) = chains.posterior(docs, potentials, False, 1.0, UNCHANGED).nbest(20)
    scores = sorted(
        (
            sum(E[0, 1 + i] for i in chosen)
            for r in range(7)
            for chosen in combinations(range(6), r)
        ),
        reverse=True,
    )
    log_z = np.logaddexp(0, E[0, 1:]).sum()
    assert [p for _, p in ranked] == pytest.approx([score - log_z for score in scores[:20]])
    assert len({tuple(spans) for spans, _ in ranked}) == 20


def test_add_label_with_invalid_label_raises_and_keeps_labels() -> None:
    nlp = pipeline(max_nesting=2)
    nlp.initialize(lambda: [example(nlp)])
    ner: Any = nlp.get_pipe("crf_ner")
    before = ner.labels
    for wrong in (f"{before[0]} (level 2)", "!PER", ""):
        with pytest.raises(InputError):
            ner.add_label(wrong)
        assert ner.labels == before
    nlp("Oslo")


@pytest.mark.parametrize("words", [["Oslo", "won"], ["Os", "lo", "won"]])
def test_gold_tags_of_blocked_token_are_missing(words: list[str]) -> None:
    """As for flat entities, whatever the tokens of the predicted doc."""
    nlp = pipeline()
    nlp.initialize(lambda: [example(nlp)])
    ner: Any = nlp.get_pipe("crf_ner")
    spaces = [True, False] if len(words) == 2 else [False, True, False]
    gold = Doc(nlp.vocab, ["Oslo", "won"])
    gold.set_ents([], blocked=[gold[1:2]], default="outside")
    tags = ner.encoding.gold_tags(Example(Doc(nlp.vocab, words, spaces), gold))
    assert (tags[:, -1] < 0).all() and (tags[:, :-1] == 0).all()
