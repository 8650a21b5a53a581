"""The parts of a prediction: each is measured, and none twice."""

from time import perf_counter
from types import SimpleNamespace

import spacy

from benchmark import _crf_acts
from benchmark_parts import _functions
from pipelines import OWN_TRANSFORMER, make_examples, train
from timed import apart


def test_each_part_of_a_prediction_is_measured_once(tiny_transformer):
    nlp = spacy.blank("en")
    layers = {
        "transformer": OWN_TRANSFORMER | {"name": tiny_transformer},
        "words": {"@architectures": "spacy-crf-ner.CharWordEmbed.v1"},
    }
    tok2vec = {"@architectures": "spacy-crf-ner.ConcatenateVectors.v1", "*": layers}
    nlp.add_pipe("crf_ner", config={"model": {"hidden_width": 16, "tok2vec": tok2vec}})
    examples = make_examples(nlp)
    train(nlp, examples, steps=1)
    start = perf_counter()
    with apart(_functions(nlp)) as seconds:
        list(nlp.pipe([eg.reference.text for eg in examples]))
    whole = perf_counter() - start
    assert set(seconds) == set(_functions(nlp))
    assert all(of > 0 for of in seconds.values())
    assert sum(seconds.values()) <= whole


def test_seconds_of_nested_parts_count_for_the_inner_one_only() -> None:
    """On a clock that each function advances by a known number."""
    now = [0.0]
    own = SimpleNamespace(inner=lambda: now.__setitem__(0, now[0] + 2))
    own.outer = lambda: (now.__setitem__(0, now[0] + 3), own.inner())
    before = vars(own).copy()
    parts = {"a": [(own, "outer")], "b": [(own, "inner")]}
    with apart(parts, lambda: now[0]) as seconds:
        own.outer()
        own.inner()
    assert seconds == {"a": 3, "b": 4} and vars(own) == before


def test_each_act_of_the_crf_benchmark_runs() -> None:
    for act in _crf_acts(2, 5, 3).values():
        act()
