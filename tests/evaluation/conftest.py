"""Settings of components are written without searching all objects for pipelines."""

import gc
from types import SimpleNamespace
from weakref import ref

import pytest
from spacy.language import Language

from spacy_crf_ner.pipeline import spacy_internals


@pytest.fixture(scope="session")
def all_pipelines():
    """All pipelines that there are: those that were made before, and each that is made since."""
    found = [ref(each) for each in gc.get_objects() if issubclass(type(each), Language)]
    make = Language.__init__

    def remember(self, *arguments, **settings):
        found.append(ref(self))
        make(self, *arguments, **settings)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Language, "__init__", remember)
        yield found


@pytest.fixture(scope="module", autouse=True)
def few_objects(all_pipelines):
    """Each search, of a tenth of a second, is among pipelines; `tests/pipeline` tests it whole."""

    def get_objects():
        return [nlp for nlp in (each() for each in all_pipelines) if nlp is not None]

    few = SimpleNamespace(get_objects=get_objects, get_freeze_count=gc.get_freeze_count)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spacy_internals, "gc", few)
        yield
