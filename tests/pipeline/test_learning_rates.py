"""Warnings about learning rates: too high for a transformer, or 0 for long."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import spacy
from spacy.language import Language
from thinc.api import Adam, Optimizer, warmup_linear

from pipelines import LISTENER, OWN_TRANSFORMER, SENTENCES, add_shared, copied, make_examples
from spacy_crf_ner.pipeline.crf_ner import UPDATES_AT_ZERO
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
    own = copied(nlp)
    examples = make_examples(own, SENTENCES[4:5])
    with warned() as messages:
        for _ in range(updates):
            own.update(examples, sgd=optimizer, **settings)
    return messages


@pytest.mark.parametrize("is_shared", [False, True])
def test_high_rate_for_transformer_warns_once(is_shared: bool, tiny_transformer: str) -> None:
    nlp = over_transformer(is_shared, tiny_transformer)
    (message,) = of(nlp, Adam(0.001))
    expected = "[transformer] expected a learning rate of at most 0.0005 for a transformer, got"
    assert message.startswith(f"{expected} 0.001,") and "\n" not in message
    assert len(of(nlp, GroupedAdam(0.001))) == 1
    assert of(nlp, Adam(0.0005)) == of(nlp, GroupedAdam(0.001, groups=GROUPS)) == []
    if is_shared:
        assert of(nlp, Adam(0.001), exclude=["tok2vec"], annotates=["tok2vec"]) == []


@pytest.mark.parametrize("is_shared", [False, True])
def test_high_rate_for_frozen_transformer_is_no_warning(
    is_shared: bool, tiny_transformer: str
) -> None:
    assert of(over_transformer(is_shared, tiny_transformer, frozen=True), Adam(0.001)) == []


def over_transformer(is_shared: bool, transformer: str, **settings: Any) -> Language:
    nlp = spacy.blank("en")
    tok2vec: dict[str, Any] = {**OWN_TRANSFORMER, "name": transformer, **settings}
    if is_shared:
        add_shared(nlp, transformer, **settings)
        tok2vec = LISTENER
    nlp.add_pipe("crf_ner", config={"model": {"hidden_width": 8, "tok2vec": tok2vec}})
    nlp.initialize(lambda: make_examples(nlp))
    return nlp


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
def test_rate_that_stays_at_zero_warns_once(
    optimizer: Any, steps: bool, expected: int, trained: Language
) -> None:
    ner: Any = copied(trained).get_pipe("crf_ner")
    with warned() as messages:
        for _ in range(3 * UPDATES_AT_ZERO):
            ner.finish_update(optimizer)
            if steps:
                optimizer.step_schedules()
    assert len(messages) == expected
    assert all(each.startswith("[crf_ner] expected a learning rate above 0") for each in messages)
