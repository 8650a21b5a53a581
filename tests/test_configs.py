"""The shipped configs: complete, and trained by `spacy train` as they are."""

from importlib.metadata import version
from pathlib import Path

import pytest
import spacy
import srsly
from spacy.cli.init_config import fill_config
from spacy.cli.init_pipeline import init_labels_cli
from spacy.cli.train import train
from spacy.tokens import DocBin
from spacy.util import load_config

from spacy_crf_ner import data

ROOT = Path(__file__).parents[1]
# It has what is not filled in alone; trained in test_spacy_transformers.py.
SHORT = "spacy_transformers.cfg"
CONFIGS = sorted(path.name for path in (ROOT / "configs").glob("*.cfg") if path.name != SHORT)
SMALL = {
    "transformer.cfg": {"components.ner.model.hidden_width": 16},
    "spacy_ner.cfg": {"components.ner.model.tok2vec.width": 16},
}
# Trained in tests/training/test_init_config.py and test_encoder.py.
OTHERS = ["cnn.cfg", "char.cfg", "textcat_rnn.cfg"]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """The first lines of the English sample corpus."""
    folder = tmp_path_factory.mktemp("corpus")
    for name in ("train", "dev"):
        lines = (ROOT / "assets" / "sample_en" / f"{name}.txt").read_text("utf-8").splitlines()
        (folder / f"{name}.txt").write_text("\n".join(lines[:40]), encoding="utf-8")
    data.convert(folder, folder, nlp=spacy.blank("en"))
    return folder


def test_all_shipped_configs_are_tested():
    assert sorted([*SMALL, *OTHERS]) == CONFIGS


@pytest.mark.parametrize("name", CONFIGS)
def test_fill_config_changes_nothing(name, tmp_path):
    path = ROOT / "configs" / name
    filled = tmp_path / "filled.cfg"
    fill_config(filled, path, silent=True)
    assert load_config(filled) == load_config(path)
    if int(version("confection").split(".")[0]) >= 1:  # before, blocks of one line were JSON
        assert filled.read_text("utf-8").strip() == path.read_text("utf-8").strip()


@pytest.mark.parametrize("name", CONFIGS)
def test_only_transformer_config_uses_averages(name):
    """They were measured there only, and have no effect on other packages' torch modules."""
    config = load_config(ROOT / "configs" / name)
    assert config["training"]["optimizer"]["use_averages"] is (name == "transformer.cfg")
    assert config["training"]["optimizer"]["grad_clip"] > 0


def test_transformer_config_has_no_learned_vectors_of_words():
    """By them, a training that goes on learns its corpus by heart: docs/benchmarks.md, "Recipe"."""
    config = load_config(ROOT / "configs" / "transformer.cfg")
    assert config["components"]["ner"]["model"]["tok2vec"]["*"]["words"]["word_width"] == 0


def test_baseline_config_matches_transformer_batches_and_steps():
    ours, theirs = (
        load_config(ROOT / "configs" / f"{name}.cfg") for name in ("transformer", "spacy_ner")
    )
    assert ours.pop("components").keys() == {"ner"}
    assert theirs.pop("components").keys() == {"tok2vec", "ner"}
    for config in (ours, theirs):
        config["nlp"].pop("pipeline")
        config["training"]["optimizer"]["learn_rate"].pop("initial_rate")
        config["training"]["optimizer"].pop("@optimizers")
        config["training"]["optimizer"].pop("use_averages")  # no effect on spaCy's own weights
        config["training"].pop("before_to_disk")  # it calibrates confidences
    ours["training"]["optimizer"].pop("groups")
    assert ours == theirs


@pytest.mark.parametrize("name", SMALL)
def test_spacy_train_saves_a_pipeline_that_predicts(name, corpus, tiny_transformer, tmp_path):
    overrides = {
        "paths.train": str(corpus / "train.spacy"),
        "paths.dev": str(corpus / "dev.spacy"),
        "paths.transformer": tiny_transformer,
        "training.max_steps": 2,
        "training.eval_frequency": 2,
        "training.batcher.size": 200,
        **SMALL[name],
    }
    train(ROOT / "configs" / name, tmp_path, overrides=overrides)
    for model in ("model-best", "model-last"):
        nlp = spacy.load(tmp_path / model)
        assert nlp.meta["performance"].keys() >= {"ents_p", "ents_r", "ents_f", "ner_loss"}
        gold = list(DocBin().from_disk(corpus / "dev.spacy").get_docs(nlp.vocab))
        docs = list(nlp.pipe(doc.text for doc in gold))
        assert all(doc.has_annotation("ENT_IOB") for doc in docs)
        # spaCy resolves the optimizer alone: it must not refer to other sections.
        assert nlp.resume_training().learn_rate >= 0


def test_init_labels_writes_labels_that_initialize_reads(corpus, tmp_path):
    config = load_config(ROOT / "configs" / "cnn.cfg")
    config["paths"]["train"] = str(corpus / "train.spacy")
    config["paths"]["dev"] = str(corpus / "dev.spacy")
    config.to_disk(tmp_path / "config.cfg")

    class Context:
        args = ()

    init_labels_cli(Context(), tmp_path / "config.cfg", tmp_path, None, False, -1)
    labels = srsly.read_json(tmp_path / "ner.json")
    assert labels == sorted(labels) and "PERSON" in labels
    srsly.write_json(tmp_path / "ner.json", labels[::-1])
    config["initialize"]["components"]["ner"] = {
        "labels": {"@readers": "spacy.read_labels.v1", "path": str(tmp_path / "ner.json")}
    }
    nlp = spacy.util.load_model_from_config(config, auto_fill=True)
    nlp.initialize()
    assert nlp.get_pipe("ner").labels == tuple(labels[::-1])
