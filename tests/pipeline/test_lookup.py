"""The `crf_ner` component is found by its name, or as the only one."""

from importlib.util import find_spec
from pathlib import Path

import pytest
import spacy
from spacy.language import Language
from spacy.tokens import Doc
from spacy.training import Example

from spacy_crf_ner.input_error import InputError
from spacy_crf_ner.pipeline.load import load
from spacy_crf_ner.pipeline.lookup import entity_labels, recognizer_name, recognizer_name_or_none


def pipeline(*names: str) -> Language:
    nlp = spacy.blank("en")
    nlp.add_pipe("sentencizer")
    for name in names:
        nlp.add_pipe("crf_ner", name=name)
    return nlp


@pytest.mark.parametrize("find", [recognizer_name_or_none, recognizer_name])
def test_recognizer_lookup_returns_name_or_raises(find: object) -> None:
    assert callable(find)
    assert find(pipeline("ner")) == find(pipeline("ner"), "ner") == "ner"
    assert find(pipeline("one", "two"), "two") == "two"
    with pytest.raises(ValueError, match=r"expected one of \['one', 'two'\], got none"):
        find(pipeline("one", "two"))
    with pytest.raises(ValueError, match=r"expected one of \['ner'\], got sentencizer"):
        find(pipeline("ner"), "sentencizer")
    with pytest.raises(ValueError, match=r"expected one of \[\], got ner"):
        find(pipeline(), "ner")


def test_require_recognizer_without_component_raises() -> None:
    assert recognizer_name_or_none(pipeline()) is None
    with pytest.raises(ValueError, match=r"got one with \['sentencizer'\]"):
        recognizer_name(pipeline())


@pytest.mark.parametrize("before", ["ner", None])
@pytest.mark.parametrize("other", ["spancat", "span_finder", "crf_ner"])
@pytest.mark.parametrize("overlap", [False, True])
def test_spans_key_of_another_component_raises(
    other: str, before: str | None, overlap: bool, tmp_path: Path
) -> None:
    nlp = spacy.blank("en")
    # "sc" is also the key of overlapping entities if none is given.
    config = {"overlap": True} if overlap else {"spans_key": "sc"}
    nlp.add_pipe("crf_ner", name="ner", config=config)
    nlp.add_pipe(other, before=before, config=config if other == "crf_ner" else {})
    doc = Doc(nlp.vocab, ["Hanoi"], ents=["B-GPE"])
    doc.spans["sc"] = [*doc.ents]
    message = rf"a key of its own, got 'sc', which '({other}|ner)' writes too"
    with pytest.raises(InputError, match=message):
        nlp.initialize(lambda: [Example(Doc(nlp.vocab, ["Hanoi"]), doc)])
    if other == "crf_ner":
        nlp.to_disk(tmp_path)
        with pytest.raises(InputError, match=message):
            load(str(tmp_path))


def test_load_accepts_span_ruler_with_same_spans_key(tmp_path: Path) -> None:
    nlp = spacy.blank("en")
    nlp.add_pipe("crf_ner", config={"spans_key": "sc", "model": {"hidden_width": 4}})
    doc = Doc(nlp.vocab, ["Hanoi"], ents=["B-GPE"])
    nlp.initialize(lambda: [Example(Doc(nlp.vocab, ["Hanoi"]), doc)])
    nlp.add_pipe("span_ruler", config={"spans_key": "sc", "overwrite": False})
    nlp.to_disk(tmp_path)
    assert load(str(tmp_path)).pipe_names == ["crf_ner", "span_ruler"]


@pytest.mark.parametrize(
    "name, says",
    [
        ("training", r"^training is no pipeline\. Did you mean training/model-best\?$"),
        (
            "training/model_best",
            r"^training/model_best does not exist\. .* Did you mean training/model-best\?$",
        ),
        ("training/model-best/vocab", r"vocab is no pipeline: it has no meta\.json\."),
        ("no_such_package", r"^no_such_package does not exist\. [^?]*$"),
    ],
)
def test_load_suggests_the_pipeline_in_or_beside_what_is_none(
    name: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("training").mkdir()
    for each in ("model-best", "model-last"):
        spacy.blank("en").to_disk(Path("training", each))
    with pytest.raises(InputError, match=says):
        load(name)


@Language.component("renames_labels")
def renames_labels(doc):
    return doc


def test_entity_labels_are_those_of_all_components_that_set_entities():
    nlp = spacy.blank("en")
    assert entity_labels(nlp) is None
    nlp.add_pipe("entity_ruler").add_patterns([{"label": "CODE", "pattern": "X1"}])
    nlp.add_pipe("ner").add_label("PER")
    nlp.add_pipe("tagger").add_label("NN")
    nlp.add_pipe("crf_ner").add_label("GPE")
    assert entity_labels(nlp) == {"CODE", "PER", "GPE"}
    nlp.add_pipe("renames_labels")  # which may set others
    assert entity_labels(nlp) is None


def test_entity_labels_of_overlapping_entities_are_those_of_the_component():
    nlp = spacy.blank("en")
    nlp.add_pipe("entity_ruler").add_patterns([{"label": "CODE", "pattern": "X1"}])
    nlp.add_pipe("crf_ner", config={"overlap": True}).add_label("GPE")
    assert entity_labels(nlp) == {"GPE"}


@pytest.mark.skipif(find_spec("spacy_transformers") is not None, reason="has spacy-transformers")
def test_load_without_spacy_transformers_names_its_extra(tmp_path: Path) -> None:
    nlp = spacy.blank("en")
    nlp.to_disk(tmp_path)
    config = nlp.config
    config["nlp"]["pipeline"] = ["transformer"]
    config["components"] = {"transformer": {"factory": "transformer"}}
    config.to_disk(tmp_path / "config.cfg")
    with pytest.raises(InputError, match="pip install spacy-transformers"):
        load(str(tmp_path))
