"""A pipeline that is unsure, in a folder."""

import pytest
import spacy

from pipelines import make_examples, small, train


@pytest.fixture(scope="session")
def model(shared):
    """The folder of a pipeline of two labels that has learned little; not to be changed."""

    def make():
        nlp = small(8)
        texts = [("Anna saw Bonn.", [(0, 4, "PER"), (9, 13, "LOC")]), ("It came.", [])]
        train(nlp, make_examples(nlp, texts), steps=8)
        return nlp

    return str(shared("unsure", make))


@pytest.fixture(scope="session")
def unsure(model):
    """That pipeline; not to be changed."""
    return spacy.load(model)


@pytest.fixture
def loop(monkeypatch):
    """Workers that are a loop in this process."""
    from contextlib import contextmanager

    from spacy_crf_ner.active_learning import suggestion

    class Loop:
        size = 1

        def map(self, work, items):
            return (work(item, -1) for item in items)

    @contextmanager
    def processes(workers, gpu_ids, sources, settings):
        yield Loop()

    monkeypatch.setattr(suggestion, "processes", processes)
