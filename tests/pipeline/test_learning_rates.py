"""Warnings about learning rates: too high for a transformer, or 0 for long."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import spacy
from spacy.language import Language
from thinc.api import Adam, Optimizer, warmup_linear

from pipelines import OWN_TRANSFORMER, SENTENCES, listening, make_examples
from spacy_crf_ner.pipeline.learning_rates import UPDATES_AT_ZERO, LearningRateCheck
from spacy_crf_ner.training.optimizer import GroupedAdam

GROUPS: Any = {"new_layers": {"names": "rnn|projection|crf", "learn_rate": 20.0}}


@contextmanager
def warned() -> Iterator[list[str]]:
    """Collect the warnings about learning rates."""
    messages: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield messages
    messages += [str(each.message) for each in caught if "learning rate" in str(each.message)]


def of(nlp: Language, optimizer: Optimizer, updates: int = 2, **settings: Any) -> list[str]:
    """The warnings of some updates of a copy of a pipeline, which has not warned before."""
    own = spacy.blank("en").from_config(nlp.config).from_bytes(nlp.to_bytes())
    examples = make_examples(own, SENTENCES[4:5])
    with warned() as messages:
        for _ in range(updates):
            own.update(examples, sgd=optimizer, **settings)
    return messages


def test_high_rate_for_transformer_warns_once(tiny_transformer: str) -> None:
    nlp = listening("transformer", tiny_transformer=tiny_transformer)
    nlp.initialize(lambda: make_examples(nlp))
    (message,) = of(nlp, Adam(0.001))
    expected = "[crf_ner] expected a learning rate of at most 0.0005 for a transformer, got 0.001,"
    assert message.startswith(expected) and "\n" not in message
    assert len(of(nlp, GroupedAdam(0.001))) == 1
    assert of(nlp, Adam(0.0005)) == of(nlp, GroupedAdam(0.001, groups=GROUPS)) == []
    assert of(nlp, Adam(0.001), exclude=["transformer"], annotates=["transformer"]) == []


def test_high_rate_for_transformer_of_the_component_warns(tiny_transformer: str) -> None:
    nlp = spacy.blank("en")
    own = {**OWN_TRANSFORMER, "name": tiny_transformer}
    nlp.add_pipe("crf_ner", config={"model": {"hidden_width": 8, "tok2vec": own}})
    nlp.initialize(lambda: make_examples(nlp))
    assert len(of(nlp, Adam(0.001))) == 1


def test_high_rate_without_transformer_is_no_warning(trained: Language) -> None:
    assert of(trained, Adam(0.02)) == []


@pytest.mark.parametrize(
    "optimizer, steps, expected",
    [
        (Adam(warmup_linear(0.1, 9, 20)), False, 1),
        (Adam(warmup_linear(0.1, 9, 70)), True, 0),
        (GroupedAdam(0.0), False, 0),  # it warns itself
    ],
)
def test_rate_that_stays_at_zero_warns_once(optimizer: Any, steps: bool, expected: int) -> None:
    check = LearningRateCheck("ner")
    with warned() as messages:
        for _ in range(3 * UPDATES_AT_ZERO):
            check(optimizer, False)
            if steps:
                optimizer.step_schedules()
    assert len(messages) == expected
    assert all(each.startswith("[ner] expected a learning rate above 0") for each in messages)
