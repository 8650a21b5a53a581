"""Training on all docs of a small corpus: scores and calibration are those of folds."""

from collections.abc import Iterator
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
import spacy
from spacy.language import Language
from spacy.scorer import Scorer
from spacy.tokens import Doc
from spacy.training import Corpus, Example
from spacy.util import load_config, set_dot_to_object

from helpers import LEARNED
from pipelines import ents, make_examples, small
from pipelines import train as fit
from spacy_crf_ner.docbin import DOCUMENT, META
from spacy_crf_ner.evaluation.calibration import calibrate_on_folds, reliability
from spacy_crf_ner.evaluation.matching import collect_entities
from spacy_crf_ner.input_error import InputError
from spacy_crf_ner.pipeline.lookup import recognizer
from spacy_crf_ner.pipeline.seen_texts import hashes_of
from spacy_crf_ner.pipeline.settings import CALIBRATION
from spacy_crf_ner.pipeline.transformer_config import bundled_config
from spacy_crf_ner.training import cross_validation
from spacy_crf_ner.training.cross_validation import divide, train_folds, train_with_folds
from training.conftest import DEV, SMALL

ALL = [*LEARNED, *DEV]


def config(**overrides: Any) -> Any:
    steps = {"training.max_steps": 8, "training.eval_frequency": 4, **overrides}
    return load_config(bundled_config("cnn"), overrides={**SMALL, **steps}, interpolate=False)


@pytest.fixture(scope="module")
def folds() -> list[tuple[Language, list[Example]]]:
    """Two pipelines that have learned a half of the sentences each, and the other halves."""
    found = []
    for learned, held_out in ((LEARNED, DEV), (DEV, LEARNED)):
        nlp = small()
        fit(nlp, make_examples(nlp, learned), steps=12)
        found.append((nlp, make_examples(nlp, held_out)))
    return found


def predicted(folds: list[tuple[Language, list[Example]]]) -> list[Example]:
    """What each pipeline predicts for its fold."""
    return [Example(nlp(eg.text), eg.reference) for nlp, examples in folds for eg in examples]


def measures(found: dict[str, Any]) -> Any:
    return pytest.approx([found[name] for name in ("entities", "ece", "ece_by_chance", "brier")])


def measured(folds: list[tuple[Language, list[Example]]]) -> list[float]:
    found = reliability(collect_entities(predicted(folds)))
    return [found[name] for name in ("entities", "ece", "ece_by_chance", "brier")]


def test_scores_and_calibration_are_those_of_each_pipeline_on_its_fold(
    folds: list[tuple[Language, list[Example]]],
) -> None:
    """The weights of the pipeline that is calibrated do not matter."""
    nlp = small()
    fit(nlp, make_examples(nlp, ALL), steps=1)
    found = calibrate_on_folds(nlp, iter(folds))
    assert measures(found["before"]) == measured(folds)
    scores = Scorer.score_spans(predicted(folds), "ents", getter=lambda doc, _: doc.ents)
    assert {name: found["scores"][name] for name in scores} == scores
    pipe = recognizer(nlp)
    assert pipe.calibrated_on == sum(len(spans) for _, spans in ALL)
    values = {name: getattr(pipe, name) for name in CALIBRATION}
    for each, _ in folds:
        for name, value in values.items():
            setattr(recognizer(each), name, value)
    assert measures(found["after"]) == measured(folds)
    assert found["after"]["ece"] < found["before"]["ece"] - 0.01


def test_pipeline_is_trained_on_all_docs_and_calibrated_on_those_of_folds() -> None:
    docs = gold_docs()
    said: list[str] = []
    empty = Doc(docs[0].vocab)  # is left out
    nlp, measured = train_with_folds(config(), [empty, *docs], 2, -1, said.append)
    assert said == [
        "Training on all 8 docs",
        "Training without fold 1 of 2",
        "Training without fold 2 of 2",
    ]
    pipe = recognizer(nlp)
    assert pipe.labels == ("LOC", "PER")
    assert pipe.seen_texts.known().train == hashes_of(text for text, _ in ALL)
    assert pipe.calibrated_on == sum(len(spans) for _, spans in ALL)
    # The same folds again, each by a pipeline that has not seen it.
    again = spacy.util.load_model_from_config(config(), auto_fill=True).config
    again["initialize"]["components"]["ner"] = {"labels": ["LOC", "PER"]}
    fold_of = divide([doc.text for doc in docs], 2)
    again = predicted(
        [
            (each, make_examples(each, [ALL[i] for i in rows]))
            for each, rows in train_folds(again, docs, fold_of)
        ]
    )
    found = {(eg.text, *ent) for eg in again for ent in ents(eg.predicted)}
    gold = {(text, *ent) for text, spans in ALL for ent in spans}
    f1 = 2 * len(found & gold) / (len(found) + len(gold))
    assert nlp.meta["performance"]["ents_f"] == pytest.approx(f1)
    assert measured["before"]["entities"] == len(found)


@pytest.fixture
def of_folds(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Train nothing: return the config, the docs and the folds that would be trained."""
    seen: dict[str, Any] = {}

    def train_folds(config: Any, docs: Any, fold_of: list[int], *_: Any) -> Iterator[Any]:
        seen["fold_of"] = fold_of
        return iter(())

    def train(nlp: Language, folder: Path, **_: Any) -> None:
        seen["labels"] = recognizer(nlp).labels
        seen["train"] = [eg.text for eg in Corpus(folder / "train.spacy")(nlp)]
        for name, temperature in (("model-best", 2.0), ("model-last", 3.0)):
            recognizer(nlp).temperature = temperature
            nlp.to_disk(folder / name)

    monkeypatch.setattr(cross_validation, "train_folds", train_folds)
    monkeypatch.setattr(cross_validation, "train", train)
    monkeypatch.setattr(cross_validation, "calibrate_on_folds", lambda nlp, folds: {"scores": {}})
    return seen


def gold_docs() -> list[Doc]:
    return [eg.reference for eg in make_examples(spacy.blank("en"), ALL)]


def test_last_weights_are_kept_if_all_docs_are_trained_on(of_folds: dict[str, Any]) -> None:
    """The best ones are chosen by docs that they were trained on."""
    nlp, _ = train_with_folds(config(), gold_docs(), 2, -1, len)
    assert recognizer(nlp).temperature == 3.0
    assert of_folds["train"] == [text for text, _ in ALL]


def test_sentences_of_a_document_are_in_one_fold(of_folds: dict[str, Any]) -> None:
    docs = gold_docs()
    for i, doc in enumerate(docs):
        doc.user_data[META] = {DOCUMENT: f"article {i // 3}"}
    train_with_folds(config(), docs, 3, -1, len)
    first, second, third = {*of_folds["fold_of"]}
    assert of_folds["fold_of"] in (
        [*[a] * 3, *[b] * 3, *[c] * 2] for a, b, c in permutations((first, second, third))
    )


@pytest.mark.parametrize("given, expected", [(None, ["LOC", "PER"]), (["PER", "X"], ["PER", "X"])])
def test_all_pipelines_have_the_labels_of_all_docs(
    given: Any, expected: list[str], of_folds: dict[str, Any]
) -> None:
    made = config()
    if given:
        made["initialize"]["components"]["ner"] = {"labels": given}
    train_with_folds(made, gold_docs(), 2, -1, len)
    assert of_folds["labels"] == tuple(expected)


@pytest.mark.parametrize(
    "changed, says",
    [
        (
            ("components.ner", {"source": "trained/model-best"}),
            r"got \['ner'\] with a source, whose weights would be lost",
        ),
        (
            ("training.frozen_components", ["ner"]),
            r"folds: .*trains \[ner\], got .*frozen_components",
        ),
    ],
)
def test_component_with_weights_that_would_be_lost_or_kept_raises(
    changed: tuple[str, Any], says: str
) -> None:
    """Each fold is a training from new weights."""
    made = config()
    set_dot_to_object(made, *changed)
    with pytest.raises(InputError, match=says):
        train_with_folds(made, gold_docs(), 2, -1, len)
