"""The members of the family: each is a config away, trains, and comes back as it was."""

from pathlib import Path

import pytest
import spacy
import srsly
from spacy.tokens import DocBin
from spacy.training.initialize import init_nlp
from spacy.training.loop import train as train_nlp
from spacy.util import load_config

from spacy_crf_ner import data

ROOT = Path(__file__).parents[2]
FAMILY = srsly.read_yaml(ROOT / "configs" / "family.yml")
GATES = {"lstm": 4, "gru": 3, "rnn": 1}
WIDTHS = {"transformer.cfg": 16, "char.cfg": 175}  # of a token's vector


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    path = tmp_path_factory.mktemp("corpus") / "train.spacy"
    docs = list(data.read_inline(ROOT / "assets" / "sample_en" / "train.txt", spacy.blank("en")))
    DocBin(docs=docs[:40]).to_disk(path)
    return path


@pytest.fixture
def make(corpus, tiny_transformer):
    """Initialize a member, as `spacy train` does."""

    def made(member):
        settings = {key: value for key, value in FAMILY[member].items() if key != "config"}
        budget = {"paths.train": str(corpus), "paths.dev": str(corpus), "training.max_steps": 3}
        budget |= {"training.eval_frequency": 3, "paths.transformer": tiny_transformer}
        config = load_config(ROOT / "configs" / FAMILY[member]["config"], budget | settings)
        return init_nlp(config, use_gpu=-1)

    return made


def annotations(doc):
    ents = [(ent.start, ent.end, ent.label_, ent._.confidence) for ent in doc.ents]
    return ents, doc.to_array(["ENT_IOB", "ENT_TYPE"]).tolist()


@pytest.mark.parametrize("member", FAMILY)
def test_a_member_trains_and_comes_back_as_it_was(member, make, tmp_path):
    nlp = make(member)
    before = {name: nlp.get_pipe(name).model.to_bytes() for name in nlp.pipe_names}
    nlp, _ = train_nlp(nlp, tmp_path)
    frozen = FAMILY[member].get("training.frozen_components", [])
    changed = [name for name in before if nlp.get_pipe(name).model.to_bytes() != before[name]]
    assert changed == [name for name in nlp.pipe_names if name not in frozen]
    texts = ["Tim Cook visited Hanoi.", "", "Harbour Books opened a shop in Leipzig on Friday."]
    expected = [annotations(doc) for doc in nlp.pipe(texts)]
    loaded = spacy.load(tmp_path / "model-last")
    assert [annotations(doc) for doc in loaded.pipe(texts)] == expected


@pytest.mark.parametrize("member", FAMILY)
def test_a_member_has_the_weights_that_its_settings_say(member, make):
    """Each gate has weights for input n and state m, and PyTorch's two biases: (n + m + 2) m."""
    nlp = make(member)
    ner = nlp.get_pipe("ner")
    settings = nlp.config["components"]["ner"]["model"]
    n, C = WIDTHS[FAMILY[member]["config"]], len(ner.scheme.tags)
    tags = {"biluo": 4, "bio": 2, "io": 1}[nlp.config["components"]["ner"]["scheme"]]
    assert C == 1 + tags * len(ner.labels)
    expected = 0
    if settings["rnn"] != "none":
        m, directions = settings["hidden_width"], 1 + settings["bidirectional"]
        expected += directions * GATES[settings["rnn"]] * (n + m + 2) * m
        n = directions * m
    if settings["dense_width"]:
        expected += (n + 1) * settings["dense_width"]
        n = settings["dense_width"]
    expected += (n + 1) * C
    weights = ner.model.get_ref("output_layer").shims[0].module.named_parameters()
    learned = {name: weight for name, weight in weights if weight.requires_grad}
    if settings["decoder"] == "crf":
        expected += C * C + 2 * C
    assert sum(weight.numel() for weight in learned.values()) == expected
