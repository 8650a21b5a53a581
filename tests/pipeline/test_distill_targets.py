"""The divergence from teachers against the enumeration of all sets of entities.

Axes: T tokens, C tags, n tags of a chain.
"""

from dataclasses import fields, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import spacy
import torch
from spacy.tokens import Doc
from spacy.training import Example
from torch import Tensor

import enumeration
from helpers import SCHEMES, span_sets, write
from pipelines import TOK2VEC, make_examples, small, train
from spacy_crf_ner.crf import Chain
from spacy_crf_ner.input_error import InputError
from spacy_crf_ner.pipeline.calibration import platt_scaling
from spacy_crf_ner.pipeline.distill_targets import KEY, DistillTarget, Teacher, probable_entities
from spacy_crf_ner.pipeline.queries import teacher_scores
from spacy_crf_ner.tags import TagScheme

SCORES = ("emissions", "transitions", "start", "end")
LABELS = ("A", "B")
LENGTHS = (3, 1)
NESTED = {"overlap": True, "max_nesting": 2}
TEXTS = ["one two three", "four"]


def component(scheme: str, labels=LABELS, **settings: Any) -> Any:
    nlp = small(width=8, scheme=scheme, **settings)
    ner: Any = nlp.get_pipe("crf_ner")
    for label in labels:
        ner.add_label(label)
    ner.cfg["encoding"] = [ner.overlap, ner.max_nesting]  # as after `initialize`
    return nlp, ner


def draw(C: int, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    sizes = {"emissions": (sum(LENGTHS), C), "transitions": (C, C), "start": C, "end": C}
    return {name: rng.normal(0, 1.5, size).astype("f") for name, size in sizes.items()}


def examples(nlp, teachers: list[tuple[Teacher, np.ndarray]], weight=1.0, temperature=1.0):
    """Examples without entities, with targets of teachers, (N, C) each."""
    made = []
    common = [teacher for teacher, _ in teachers]
    ends = np.cumsum(LENGTHS)[:-1]
    of_docs = zip(*(np.split(emissions, ends) for _, emissions in teachers))
    for text, emissions in zip(TEXTS, of_docs):
        doc = nlp.make_doc(text)
        doc.user_data[KEY] = DistillTarget(common, list(emissions), weight, temperature)
        made.append(Example(nlp.make_doc(text), doc))
    return made


def as_teacher(scores, scheme, labels=LABELS, overlap=False, max_nesting=1):
    A, start, end = (scores[name] for name in SCORES[1:])
    return Teacher(scheme, labels, overlap, max_nesting, A, start, end), scores["emissions"]


def log_probabilities(
    E: Tensor, A: Tensor, start: Tensor, end: Tensor, scheme: TagScheme, temperature: float
) -> dict[tuple[str, ...], Tensor]:
    """The log probability of each tag sequence that encodes some entities."""
    ids = {tag: i for i, tag in enumerate(scheme.tags)}
    scores = {}
    for spans in span_sets(len(E), scheme.labels):
        tags = tuple(write(scheme.name, len(E), spans))
        path = [ids[tag] for tag in tags]
        score = start[path[0]] + end[path[-1]] + sum(E[t, tag] for t, tag in enumerate(path))
        scores[tags] = score + sum((A[a, b] for a, b in pairwise(path)), torch.zeros(()))
    log_p = torch.log_softmax(torch.stack([*scores.values()]) / temperature, 0)
    return dict(zip(scores, log_p))


def encoded(tags: tuple[str, ...], scheme: TagScheme, other: TagScheme) -> tuple[str, ...]:
    """Write the entities of a tag sequence in another scheme; of IO, the longest entities."""
    sets = span_sets(len(tags), scheme.labels)
    found = [spans for spans in sets if tuple(write(scheme.name, len(tags), spans)) == tags]
    return tuple(write(other.name, len(tags), min(found, key=len)))


def divergence(teacher, student, scheme, other, temperature):
    """Cross-entropy of the student minus entropy of the teacher, for one chain; in float64."""
    p = log_probabilities(*teacher, scheme, temperature)
    q = log_probabilities(*student, other, temperature)
    return sum(log_p.exp() * (log_p - q[encoded(tags, scheme, other)]) for tags, log_p in p.items())


def leaves(scores) -> list[Tensor]:
    return [torch.from_numpy(scores[name]).double() for name in SCORES]


def docs_of(tensors: list[Tensor]) -> list[list[Tensor]]:
    return [[E, *tensors[1:]] for E in torch.split(tensors[0], list(LENGTHS))]


def shuffled(scores, tags, names):
    """The scores of tags in another order, that of the names."""
    order = [tags.index(name) for name in names]
    E, A, start, end = (scores[name] for name in SCORES)
    return dict(zip(SCORES, (E[:, order], A[np.ix_(order, order)], start[order], end[order])))


@pytest.mark.parametrize("temperature", [1.0, 2.5])
@pytest.mark.parametrize("student", SCHEMES)
@pytest.mark.parametrize("teacher", SCHEMES)
def test_divergence_and_gradient_match_enumeration(teacher, student, temperature):
    theirs, ours = TagScheme(teacher, LABELS), TagScheme(student, LABELS)
    given, mine = draw(len(theirs.tags), 1), draw(len(ours.tags), 2)
    nlp, ner = component(student)
    # The teacher has its labels in another order.
    reverse = TagScheme(teacher, LABELS[::-1])
    there = as_teacher(shuffled(given, theirs.tags, reverse.tags), teacher, LABELS[::-1])
    egs = examples(nlp, [there], temperature=temperature)
    lengths = np.array(LENGTHS)
    loss, gradient = ner.get_loss(egs, Chain(lengths=lengths, **mine))

    own = [tensor.requires_grad_() for tensor in leaves(mine)]
    expected = temperature**2 * sum(
        divergence(p, q, theirs, ours, temperature)
        for p, q in zip(docs_of(leaves(given)), docs_of(own))
    )
    assert loss == pytest.approx(expected.item(), abs=1e-3)
    assert loss > 0.5
    expected.backward()
    for name, leaf in zip(SCORES, own):
        np.testing.assert_allclose(getattr(gradient, name), leaf.grad.numpy(), atol=1e-4)


def test_loss_of_two_teachers_with_different_schemes_matches_mixture():
    """The gradient is that of the divergence from the mixture, which is not a CRF."""
    schemes = [TagScheme(name, LABELS) for name in ("bio", "io")]
    ours = TagScheme("biluo", LABELS)
    given = [draw(len(scheme.tags), seed) for seed, scheme in enumerate(schemes)]
    mine = draw(len(ours.tags), 2)
    nlp, ner = component("biluo")
    egs = examples(nlp, [as_teacher(g, s.name) for g, s in zip(given, schemes)])
    loss, gradient = ner.get_loss(egs, Chain(lengths=np.array(LENGTHS), **mine))

    own = [tensor.requires_grad_() for tensor in leaves(mine)]
    cross_entropy, mean = torch.zeros(()), torch.zeros(())
    for i, q in enumerate(docs_of(own)):
        log_q = log_probabilities(*q, ours, 1.0)
        mixed = {tags: torch.zeros(()).double() for tags in log_q}
        for scheme, g in zip(schemes, given):
            p = docs_of(leaves(g))[i]
            mean = mean + divergence(p, [x.detach() for x in q], scheme, ours, 1.0) / 2
            for tags, log_p in log_probabilities(*p, scheme, 1.0).items():
                mixed[encoded(tags, scheme, ours)] += log_p.exp() / 2
        assert sum(mixed.values()).item() == pytest.approx(1.0)
        cross_entropy = cross_entropy - sum(mixed[tags] * log_q[tags] for tags in mixed)
    cross_entropy.backward()
    assert loss == pytest.approx(mean.item(), abs=1e-3)
    for name, leaf in zip(SCORES, own):
        np.testing.assert_allclose(getattr(gradient, name), leaf.grad.numpy(), atol=1e-4)


@pytest.mark.parametrize("student", SCHEMES)
def test_loss_of_overlapping_entities_equals_sum_over_chains(student):
    settings = {"overlap": True, "max_nesting": 2}
    nlp, ner = component(student, **settings)
    _, other = component("bio", LABELS[::-1], **settings)
    given, mine = draw(len(other.scheme.tags), 1), draw(len(ner.scheme.tags), 2)
    lengths = np.array(LENGTHS)
    scores = Chain(lengths=lengths, **mine)
    egs = examples(nlp, [as_teacher(given, "bio", LABELS[::-1], **settings)])
    loss, _ = ner.get_loss(egs, scores)

    theirs, _ = other.encoding.split(Chain(lengths=lengths, **given))
    ours, _ = ner.encoding.split(scores)
    expected = 0.0
    first = np.cumsum(theirs.lengths) - theirs.lengths
    for row, T in enumerate(theirs.lengths):
        doc, chain = divmod(row, 4)
        label, layer = divmod(chain, 2)
        same = doc * 4 + (1 - label) * 2 + layer  # of the student
        pairs = (theirs, row), (ours, same)
        p, q = (
            [x.double() for x in (E[first[r] : first[r] + T], A[r], start[r], end[r])]
            for (E, A, start, end), r in ((enumeration.tensors(x), r) for x, r in pairs)
        )
        schemes = TagScheme("bio", ("",)), TagScheme(student, ("",))
        expected += divergence(p, q, *schemes, 1.0).item()
    assert loss == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("decoder", ["crf", "softmax"])
@pytest.mark.parametrize("overlap", [False, True])
def test_crf_loss_with_equal_teacher_is_zero(overlap, decoder):
    """The teacher is at its temperature, so that of the student is that of the teacher, 1."""
    nlp = spacy.blank("en")
    model = {"hidden_width": 8, "tok2vec": TOK2VEC, "decoder": decoder}
    ner: Any = nlp.add_pipe("crf_ner", config={"overlap": overlap, "model": model})
    train(nlp, make_examples(nlp), steps=5)
    docs = [eg.predicted for eg in make_examples(nlp) if len(eg.predicted)]
    common, emissions = teacher_scores(ner, docs)
    egs, teachers = [], [common]
    for doc, own in zip(docs, emissions, strict=True):
        gold = Doc(nlp.vocab, [token.text for token in doc])
        gold.user_data[KEY] = DistillTarget(teachers, [own], 1.0, 1.0)
        egs.append(Example(doc, gold))
    loss, gradient = ner.get_loss(egs, ner.model.predict(docs))
    if decoder == "crf":
        assert loss == pytest.approx(0.0, abs=1e-3)
        assert all(abs(getattr(gradient, name)).max() < 1e-5 for name in SCORES)
    else:  # the teacher's distribution is over legal sequences, which a softmax cannot have
        assert loss > 0.0
    ner.temperature = 2.0
    assert abs(teacher_scores(ner, docs)[1][0] - emissions[0] / 2).max() < 1e-6
    assert teacher_scores(ner, [])[0].equals(teacher_scores(ner, docs)[0])
    assert teacher_scores(ner, docs)[0].equals(common) == (decoder == "softmax")  # all 0


def test_loss_interpolates_gold_and_teacher_loss_by_weight():
    nlp, ner = component("biluo")
    tags = len(ner.scheme.tags)
    scores = Chain(lengths=np.array(LENGTHS), **draw(tags, 2))
    from_teacher = as_teacher(draw(tags, 1), "biluo")
    gold = [[(0, 3, "A")], None]  # the second doc is not annotated

    def loss_of(weight, teachers=True, annotation=gold):
        egs = examples(nlp, [from_teacher], weight, 3.0)
        for eg, ents in zip(egs, annotation):
            if not teachers:
                del eg.reference.user_data[KEY]
            if ents is not None:
                eg.reference.set_ents([eg.reference.char_span(*ent) for ent in ents])
        return ner.get_loss(egs, scores)

    plain, whole, mixed = loss_of(0.5, teachers=False), loss_of(1.0), loss_of(0.25)
    assert plain[0] > 1 and whole[0] > 1
    assert mixed[0] == pytest.approx(0.75 * plain[0] + 0.25 * whole[0], rel=1e-5)
    for name in SCORES:
        of_all = [getattr(each[1], name) for each in (plain, whole, mixed)]
        np.testing.assert_allclose(of_all[2], 0.75 * of_all[0] + 0.25 * of_all[1], atol=1e-5)
        np.testing.assert_array_equal(getattr(loss_of(0.0)[1], name), of_all[0])
    assert loss_of(0.0)[0] == plain[0]
    without = loss_of(1.0, annotation=[None, None])
    assert without[0] == whole[0]
    for name in SCORES:
        np.testing.assert_array_equal(getattr(without[1], name), getattr(whole[1], name))


@pytest.mark.parametrize("teachers", [1, 2])
@pytest.mark.parametrize("overlap", [False, True])
def test_probable_entities_have_mean_posterior_above_half(teachers, overlap, shared):
    def make():
        nlp = small(width=8, overlap=overlap)
        train(nlp, make_examples(nlp), steps=20, learn_rate=0.02)
        return nlp

    nlp = spacy.load(shared(f"teaching-{overlap}", make))
    ner: Any = nlp.get_pipe("crf_ner")
    doc = make_examples(nlp)[5].predicted
    outputs = [teacher_scores(ner, [doc])]
    flat = outputs[0][1][0] / 2  # less sure
    outputs = [*outputs, (outputs[0][0], [flat])][:teachers]
    target = DistillTarget([each for each, _ in outputs], [of[0] for _, of in outputs], 1.0, 1.0)
    expected = {}
    for common, (emissions,) in outputs:
        A, start, end = common.transitions, common.start, common.end
        potentials = Chain(emissions, np.array([len(doc)]), A, start, end)
        posterior = ner.encoding.posterior([doc], potentials, True, 1.0, platt_scaling(ner))
        for span, p in posterior.candidates(np.full(len(ner.labels), 1e-6))[0]:
            expected[span] = expected.get(span, 0.0) + p / teachers
    probable = sorted(span for span, p in expected.items() if p > 0.5)
    assert probable
    assert probable_entities(doc, target, ner.encoding_of) == probable


@pytest.mark.parametrize("p", [(0.55, 0.53), (0.3, 0.9), (0.9, 0.3), (0.3, 0.6)])
def test_probable_entities_depend_on_mean_posterior_only(p):
    nlp, ner = component("io", ("A",))
    nothing = {name: np.zeros(shape, "f") for name, shape in zip(SCORES, [(1, 2), (2, 2), 2, 2])}
    common, _ = as_teacher(nothing, "io", ("A",))
    emissions = [np.array([[0.0, np.log(q / (1 - q))]], "f") for q in p]
    found = probable_entities(
        nlp.make_doc("four"), DistillTarget([common] * 2, emissions, 1.0, 1.0), ner.encoding_of
    )
    assert found == ([(0, 1, "A")] if sum(p) > 1 else [])


def test_probable_entities_ignores_preset_entities():
    nlp, ner = component("io", ("A",))
    nothing = {name: np.zeros(shape, "f") for name, shape in zip(SCORES, [(2, 2), (2, 2), 2, 2])}
    common, _ = as_teacher(nothing, "io", ("A",))
    emissions = np.array([[0.0, -3.0], [0.0, 3.0]], "f")  # the second token is the entity
    doc = nlp.make_doc("five six")
    doc.ents = [doc.char_span(0, 4, "A")]
    target = DistillTarget([common], [emissions], 1.0, 1.0)
    assert probable_entities(doc, target, ner.encoding_of) == [(1, 2, "A")]


@pytest.mark.parametrize("name", [field.name for field in fields(Teacher)])
def test_teacher_equals_is_false_if_any_field_differs(name):
    zeros = [np.zeros(shape, "f") for shape in ((3, 3), 3, 3)]
    teacher = Teacher("bio", ("A",), False, 1, *zeros)
    assert teacher.equals(Teacher("bio", ("A",), False, 1, *(each.copy() for each in zeros)))
    other = Teacher("io", ("B",), True, 2, *(each + 1 for each in zeros))
    assert not teacher.equals(replace(teacher, **{name: getattr(other, name)}))


@pytest.mark.parametrize(
    "labels, settings, overlap, message",
    [
        (("A", "C"), {}, False, r"without \['B'\] and also of \['C'\]"),
        (("A",), {}, False, r"without \['B'\]\. Use"),
        (LABELS, NESTED, False, "with overlap False and max_nesting 1, got one"),
        (LABELS, NESTED, True, "max_nesting 1, got one with overlap True and max_nesting 2"),
    ],
)
def test_teacher_with_other_labels_or_entities_raises(labels, settings, overlap, message):
    nlp, ner = component("biluo", overlap=overlap)
    _, other = component("biluo", labels, **settings)
    C = len(other.scheme.tags)
    mine = Chain(lengths=np.array(LENGTHS), **draw(9, 1))
    egs = examples(nlp, [as_teacher(draw(C, 1), "biluo", labels, **settings)])
    with pytest.raises(InputError, match=message):
        ner.get_loss(egs, mine)


@pytest.mark.parametrize("teacher", [0, 1])
def test_teacher_rows_not_matching_tokens_raise(teacher):
    nlp, ner = component("bio")
    scores = draw(5, 1)
    mine = Chain(lengths=np.array(LENGTHS), **scores)
    egs = examples(nlp, [as_teacher(scores, "bio")] * 2)
    first, second = (eg.reference.user_data[KEY].emissions for eg in egs)
    first[teacher], second[teacher] = second[teacher], first[teacher]
    with pytest.raises(InputError, match="doc 'one two three': expected teachers of 3 tok"):
        ner.get_loss(egs, mine)


@pytest.mark.parametrize("scheme", ["biluo", "io"])
@pytest.mark.parametrize("settings", [{}, {"overlap": True, "max_nesting": 2}])
def test_loss_with_teachers_per_doc_equals_sum_over_docs(settings, scheme):
    """The loss of a batch is the sum over its docs alone, for which there is an enumeration."""
    nlp, ner = component("biluo", **settings)
    _, other = component(scheme, **settings)
    kinds = (("biluo", ner), (scheme, other))
    texts = ["one two three", "four", "five six", "seven eight", "nine ten"]
    order = [0, 1, 1, 0, 2]
    seeds = [
        [draw(len(n.scheme.tags), 10 * i + k) for k, (_, n) in enumerate(kinds)] for i in (0, 1)
    ]
    common = [[as_teacher(g, s, **settings)[0] for g, (s, _) in zip(of, kinds)] for of in seeds]
    common.append([common[0][0], common[1][1]])
    rng, egs = np.random.default_rng(3), []
    for text, i in zip(texts, order):
        doc = nlp.make_doc(text)
        sizes = [(len(doc), len(n.scheme.tags)) for _, n in kinds]
        own = [rng.normal(0, 1.5, size).astype("f") for size in sizes]
        doc.user_data[KEY] = DistillTarget(common[i], own, 1.0, 2.0)
        egs.append(Example(nlp.make_doc(text), doc))
    lengths = np.array([len(eg.predicted) for eg in egs])
    mine = draw(len(ner.scheme.tags), 2)
    mine["emissions"] = rng.normal(0, 1.5, (lengths.sum(), len(ner.scheme.tags))).astype("f")
    loss, gradient = ner.get_loss(egs, Chain(lengths=lengths, **mine))
    alone = []
    for eg, E in zip(egs, np.split(mine["emissions"], lengths.cumsum()[:-1])):
        one = {**mine, "emissions": E}
        own_length = np.array([len(E)])
        alone.append(ner.get_loss([eg], Chain(lengths=own_length, **one)))
    assert loss == pytest.approx(sum(each for each, _ in alone), rel=1e-6)
    together = np.concatenate([each.emissions for _, each in alone])
    np.testing.assert_allclose(gradient.emissions, together, atol=1e-5)
    for name in SCORES[1:]:
        total = sum(getattr(each, name) for _, each in alone)
        np.testing.assert_allclose(getattr(gradient, name), total, atol=1e-5)


@pytest.mark.parametrize("fault", ["none", "other kind", "other weight", "other temperature"])
def test_batch_with_different_kinds_of_teachers_raises(fault):
    nlp, ner = component("bio")
    scores = draw(5, 1)
    mine = Chain(lengths=np.array(LENGTHS), **scores)
    egs = examples(nlp, [as_teacher(scores, "bio")] * 2)
    data = egs[1].reference.user_data
    if fault == "none":
        del data[KEY]
    elif fault == "other kind":
        teachers = [data[KEY].teachers[0], as_teacher(scores, "io")[0]]
        data[KEY] = data[KEY]._replace(teachers=teachers)
    else:
        data[KEY] = data[KEY]._replace(**{fault.removeprefix("other "): 0.1})
    with pytest.raises(InputError, match="doc 'four': expected a teacher, of the same kind"):
        ner.get_loss(egs, mine)
