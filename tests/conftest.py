"""Fixtures: everything here is small, made on the spot, and needs no network."""

import os
from contextlib import suppress
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from hypothesis import settings

# The packages are imported by the fixtures: the process that only hands tests to others needs none.

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

# The examples that each property test draws; the same ones each time, unless a number is given.
EXAMPLES = os.environ.get("SPACY_CRF_NER_EXAMPLES")
settings.register_profile(
    "tests", deadline=None, max_examples=int(EXAMPLES or 20), derandomize=EXAMPLES is None
)
settings.load_profile("tests")

# The exceptions of the tokenizer of English that tests are about.
ENGLISH = ["can't", "cannot", "didn't", "don't", "he'd", "won't", "Mr.", "Mt."]


def pytest_collection() -> None:
    """Make what all tests do many times fast, before the modules of the tests are imported."""
    import catalogue
    from spacy.lang.de import German
    from spacy.lang.en import English
    from spacy.language import BaseDefaults

    with suppress(ModuleNotFoundError):  # `make test-runtime` has no torch
        import torch

        # The tensors here are small: more threads would only wait for each other.
        torch.set_num_threads(1)
    # A blank pipeline takes 60 ms, of which its tokenizer's exceptions take 50.
    for defaults, kept in ((English.Defaults, ENGLISH), (German.Defaults, ["z.B."])):
        exceptions = defaults.tokenizer_exceptions
        defaults.tokenizer_exceptions = {word: exceptions[word] for word in kept}
    BaseDefaults.tokenizer_exceptions = {}
    # It looks up 30 names, each among the entry points of all packages; by group, it takes a third.
    found = entry_points()
    catalogue.AVAILABLE_ENTRY_POINTS = {group: found.select(group=group) for group in found.groups}


@pytest.fixture(scope="session")
def shared(tmp_path_factory, request):
    """Save a trained pipeline once for all processes of pytest: `shared(name, make)`.

    name: Its name, unique in the module of `make`. make: Trains and returns it.

    Returns its folder, which is not to be changed.
    """
    from filelock import FileLock

    root = tmp_path_factory.getbasetemp()
    root = (root.parent if hasattr(request.config, "workerinput") else root) / "shared"
    root.mkdir(exist_ok=True)

    def folder(name, make):
        path = root / f"{make.__module__}-{name}"
        with FileLock(f"{path}.lock"):
            if not path.exists():
                make().to_disk(f"{path}.partial")
                Path(f"{path}.partial").rename(path)
        return path

    return folder


@pytest.fixture(scope="session")
def trained(shared):
    """A small pipeline that has learned all of `pipelines.SENTENCES`; not to be changed."""
    import spacy

    from pipelines import make_examples, train

    def make():
        nlp = spacy.blank("en")
        nlp.add_pipe("crf_ner", config={"model": {"hidden_width": 32}})
        train(nlp, make_examples(nlp))
        return nlp

    return spacy.load(shared("trained", make))


@pytest.fixture(scope="session")
def tiny_transformer(tmp_path_factory):
    """A folder with a real BERT of two small layers, random weights, and its tokenizer."""
    pytest.importorskip("transformers")
    from pipelines import make_tiny_transformer

    return make_tiny_transformer(tmp_path_factory.mktemp("bert"))


@pytest.fixture(scope="session")
def encoder(tmp_path_factory):
    """The folder of a small transformer of a kind of `encoders.ENCODERS`: `encoder(kind)`."""
    pytest.importorskip("transformers")
    from encoders import make_encoder

    root = tmp_path_factory.mktemp("encoders")
    return cache(lambda kind: make_encoder(kind, root / kind))


@pytest.fixture(scope="session")
def phobert(tmp_path_factory):
    """A folder with PhoBERT's tokenizer, of few words, and a RoBERTa with random weights."""
    pytest.importorskip("transformers")
    from phobert import make_phobert

    return make_phobert(tmp_path_factory.mktemp("phobert"))


@pytest.fixture(scope="session")
def data_folder():
    """The folder of the corpora that are not part of the project; skips where there is none."""
    root = Path(__file__).parents[1]
    folder = Path(os.environ.get("SPACY_CRF_NER_DATA", root.parent / "shared" / "data"))
    if not folder.exists():
        pytest.skip(f"no corpora in {folder}: set SPACY_CRF_NER_DATA to their folder")
    return folder
