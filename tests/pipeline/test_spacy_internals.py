"""Undocumented behavior of spaCy: each test states what would break if it changed."""

import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from spacy.pipeline import TrainablePipe
from spacy.tokens import Doc, Span
from spacy.vocab import Vocab

from spacy_crf_ner.pipeline.annotation import add_confidence_extension
from spacy_crf_ner.pipeline.crf_ner import CRFEntityRecognizer
from spacy_crf_ner.pipeline.spacy_internals import extension_key


@pytest.fixture
def ent() -> Span:
    return Doc(Vocab(), words=["a", "b", "c"])[1:3]


def test_extension_key_matches_spacy_storage(ent: Span) -> None:
    """Else confidences would be lost with `as_doc` and `from_docs`."""
    doc, probe = ent.doc, "probe"
    Span.set_extension(probe, default=None)
    doc.user_data[extension_key(ent, probe)] = 0.5
    assert doc[1:3]._.probe == 0.5 and doc[0:3]._.probe is None
    assert ent.as_doc(copy_user_data=True)[:]._.probe == 0.5
    assert Doc.from_docs([doc, doc])[4:6]._.probe == 0.5
    Span.remove_extension(probe)


def test_training_and_prediction_are_inherited() -> None:
    for name in ("update", "__call__"):
        assert getattr(CRFEntityRecognizer, name) is getattr(TrainablePipe, name), name


# The extension attribute


@pytest.mark.slow
def test_confidence_extension_is_registered_by_add_pipe_not_import(tmp_path: Path) -> None:
    """A doc that was stored has its confidences wherever a component has been made."""
    script = """
import spacy, sys
from spacy.tokens import Doc, Span
import spacy_crf_ner.pipeline.crf_ner
assert not Span.has_extension("confidence")
nlp = spacy.blank("en")
nlp.add_pipe("crf_ner")
doc = Doc(nlp.vocab, words=["a"])
doc.ents = [Span(doc, 0, 1, "X")]
doc.ents[0]._.confidence = 0.5
assert Doc(nlp.vocab).from_bytes(doc.to_bytes()).ents[0]._.confidence == 0.5
nlp.add_pipe("crf_ner", name="second")
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=300)


def test_an_extension_of_other_code_is_kept() -> None:
    add_confidence_extension()
    ours = Span.get_extension("confidence")
    try:
        Span.set_extension("confidence", default=0.0, force=True)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            add_confidence_extension()
        assert Span.get_extension("confidence")[0] == 0.0
        Span.set_extension("confidence", getter=lambda span: 1.0, force=True)
        with pytest.warns(UserWarning, match=r"Span._.confidence with a method or getter"):
            add_confidence_extension()
        assert Span.get_extension("confidence")[2] is not None
    finally:
        Span.set_extension("confidence", getter=ours[2], setter=ours[3], force=True)
