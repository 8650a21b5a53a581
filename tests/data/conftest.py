"""A tokenizer and a file for the tests of corpora."""

from pathlib import Path

import pytest
import spacy
from spacy.language import Language


@pytest.fixture(scope="module")
def nlp() -> Language:
    return spacy.blank("en")


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that is written anew by each example of a property."""
    return tmp_path_factory.mktemp("corpus") / "corpus.txt"
