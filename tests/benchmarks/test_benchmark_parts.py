"""The parts of a prediction: each is measured, and none twice."""

from time import perf_counter

from benchmark import _crf_acts
from benchmark_parts import _apart, _functions
from pipelines import listening, make_examples, train


def test_each_part_of_a_prediction_is_measured_once(tiny_transformer):
    nlp = listening("transformer", tiny_transformer=tiny_transformer)
    examples = make_examples(nlp)
    train(nlp, examples, steps=1)
    start = perf_counter()
    with _apart(_functions(nlp)) as seconds:
        list(nlp.pipe([eg.reference.text for eg in examples]))
    whole = perf_counter() - start
    assert set(seconds) == set(_functions(nlp))
    # spaCy's own layer, which `listening` has, does not call our shim.
    assert all(of > 0 for part, of in seconds.items() if part != "transformer")
    assert sum(seconds.values()) <= whole


def test_each_act_of_the_crf_benchmark_runs() -> None:
    for act in _crf_acts(2, 5, 3).values():
        act()
