"""A small corpus, and settings that make the shipped config "cnn" small."""

from pathlib import Path
from typing import Any

import pytest
import spacy
from spacy.tokens import DocBin

from helpers import LEARNED
from pipelines import make_examples

SMALL: dict[str, Any] = {
    "components.ner.model.hidden_width": 16,
    "components.ner.model.tok2vec.width": 16,
    "components.ner.model.tok2vec.depth": 1,
    "components.ner.model.tok2vec.embed_size": 200,
    "training.optimizer.learn_rate.initial_rate": 0.02,
}
# Beside LEARNED, what is to be learned.
DEV = [
    ("Anna met Bonn", [(0, 4, "PER"), (9, 13, "LOC")]),
    ("Bonn met it", [(0, 4, "LOC")]),
    ("it met Anna", [(7, 11, "PER")]),
    ("it met it", []),
]


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with train.spacy and dev.spacy."""
    folder = tmp_path_factory.mktemp("corpus")
    for part, sentences in (("train", LEARNED), ("dev", DEV)):
        docs = [eg.reference for eg in make_examples(spacy.blank("en"), sentences)]
        DocBin(docs=docs).to_disk(folder / f"{part}.spacy")
    return folder
