"""The variants of the ablation: each trains, and predicts the same after saving and loading."""

from pathlib import Path

import pytest
import spacy
import srsly
from spacy.tokens import DocBin
from spacy.training.initialize import init_nlp
from spacy.training.loop import train as train_nlp

from ablation import configured
from spacy_crf_ner import data

ROOT = Path(__file__).parents[2]
FILE = ROOT / "benchmarks" / "ablation.yml"
VARIANTS = srsly.read_yaml(FILE)
# The two that differ most; the others are trained in the slow tests.
FAST = ("transformer.cfg, frozen transformer", "char.cfg, no affixes")
GATES = {"lstm": 4, "gru": 3, "rnn": 1}
# Of a token's vector: 16 of the transformer, 175 of its characters and words.
# Without a transformer, another 96 of its affixes.
WIDTHS = {"../configs/transformer.cfg": 16 + 175, "../configs/char.cfg": 96 + 175}
WIDTHS_WITHOUT = {"transformer.cfg, no characters and words": 16, "char.cfg, no affixes": 175}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    path = tmp_path_factory.mktemp("corpus") / "train.spacy"
    docs = list(data.read_inline(ROOT / "assets" / "sample_en" / "train.txt", spacy.blank("en")))
    DocBin(docs=docs[:40]).to_disk(path)
    return path


@pytest.fixture
def make(corpus, tiny_transformer):
    """Initialize a variant, as `spacy train` does."""

    def made(variant):
        settings = {key: value for key, value in VARIANTS[variant].items() if key != "config"}
        budget = {"paths.train": str(corpus), "paths.dev": str(corpus), "training.max_steps": 3}
        budget |= {"training.eval_frequency": 3, "paths.transformer": tiny_transformer}
        config = configured(FILE.parent / VARIANTS[variant]["config"], budget | settings)
        return init_nlp(config, use_gpu=-1)

    return made


def annotations(doc):
    ents = [(ent.start, ent.end, ent.label_, ent._.confidence) for ent in doc.ents]
    return ents, doc.to_array(["ENT_IOB", "ENT_TYPE"]).tolist()


def weights(nlp):
    """Of the layers with a torch module, by their names."""
    layers = nlp.get_pipe("ner").model.walk()
    return {layer.name: layer.shims[0].to_bytes() for layer in layers if layer.shims}


@pytest.mark.slow
@pytest.mark.parametrize(
    "variant",
    [pytest.param(v, marks=[] if v in FAST else [pytest.mark.slow]) for v in VARIANTS],
)
def test_variant_trained_and_reloaded_keeps_predictions(variant, make, tmp_path):
    nlp = make(variant)
    nlp.config["training"]["before_to_disk"] = None  # JSON rounds what calibration fits
    nlp.config["training"]["optimizer"]["use_averages"] = False  # only saved weights are averages
    before = weights(nlp)
    nlp, _ = train_nlp(nlp, tmp_path)
    changed = {name for name, value in weights(nlp).items() if value != before[name]}
    assert {*before} - changed == ({"transformer"} if "frozen" in variant else set())
    texts = ["Tim Cook visited Hanoi.", "", "Harbour Books opened a shop in Leipzig on Friday."]
    expected = [annotations(doc) for doc in nlp.pipe(texts)]
    loaded = spacy.load(tmp_path / "model-last")
    assert [annotations(doc) for doc in loaded.pipe(texts)] == expected


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_variant_parameter_count_matches_settings(variant, make):
    """Each gate has weights for input n and state m, and PyTorch's two biases: (n + m + 2) m."""
    nlp = make(variant)
    ner = nlp.get_pipe("ner")
    settings = nlp.config["components"]["ner"]["model"]
    n = WIDTHS_WITHOUT.get(variant, WIDTHS[VARIANTS[variant]["config"]])
    C = len(ner.scheme.tags)
    tags = {"biluo": 4, "bio": 2, "io": 1}[nlp.config["components"]["ner"]["scheme"]]
    assert C == 1 + tags * len(ner.labels)
    expected = 0
    if settings["rnn"] != "none":
        m, directions = settings["hidden_width"], 1 + settings["bidirectional"]
        expected += directions * GATES[settings["rnn"]] * (n + m + 2) * m
        n = directions * m + n * settings["skip"]
    if settings["dense_width"]:
        expected += (n + 1) * settings["dense_width"]
        n = settings["dense_width"]
    expected += (n + 1) * C
    weights = ner.model.get_ref("output_layer").shims[0].module.named_parameters()
    learned = {name: weight for name, weight in weights if weight.requires_grad}
    if settings["decoder"] == "crf":
        expected += C * C + 2 * C
    assert sum(weight.numel() for weight in learned.values()) == expected
