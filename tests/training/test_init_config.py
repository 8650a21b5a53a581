"""Configs to begin with: complete, and trained as they are."""

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import spacy
import srsly
from spacy.cli.init_config import fill_config
from spacy.cli.train import train
from spacy.schemas import ConfigSchemaTraining
from spacy.tokens import Doc, DocBin, Span
from spacy.training.initialize import init_nlp
from spacy.training.loop import create_train_batches
from spacy.training.loop import train as train_nlp
from spacy.util import load_config, registry
from thinc.api import Config
from transformers import BertConfig, DistilBertConfig, GPT2Config, XLNetConfig
from typer.testing import CliRunner

from pipelines import make_examples
from spacy_crf_ner.cli import app
from spacy_crf_ner.input_error import InputError
from spacy_crf_ner.pipeline.transformer_config import MINILM
from spacy_crf_ner.training.init_config import (
    ACCURACY,
    PURPOSES,
    TOK2VECS,
    fit_to_corpus,
    init_config,
)
from spacy_crf_ner.training.rehearsal import add_labels

ROOT = Path(__file__).parents[2]
runner = CliRunner()


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    docs = [eg.reference for eg in make_examples(spacy.blank("en"))]
    for part in ("train", "dev"):
        DocBin(docs=docs).to_disk(folder / f"{part}.spacy")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("tok2vec", TOK2VECS)
def test_init_config_of_each_choice_is_complete_and_trains(
    tok2vec: str, corpus: Path, tiny_transformer: str, tmp_path: Path
) -> None:
    """Each tok2vec is trained with one of the other options."""
    path = tmp_path / "config.cfg"
    chosen = {"transformer": (False, "accuracy"), "cnn": (True, "accuracy")}
    for choice in product([False, True], PURPOSES):
        gpu, optimize = choice
        config = init_config(
            "de", tok2vec, transformer=tiny_transformer, gpu=gpu, optimize=optimize
        )
        config.to_disk(tmp_path / "each.cfg")
        fill_config(tmp_path / "filled.cfg", tmp_path / "each.cfg", silent=True)
        text = (tmp_path / "each.cfg").read_text("utf-8")
        assert (tmp_path / "filled.cfg").read_text("utf-8") == text
        if choice == chosen.get(tok2vec, (True, "efficiency")):
            path.write_text(text, "utf-8")
    overrides = {
        "paths.train": str(corpus / "train.spacy"),
        "paths.dev": str(corpus / "dev.spacy"),
        "training.max_steps": 2,
        "training.eval_frequency": 2,
    }
    train(path, tmp_path, overrides=overrides)
    nlp = spacy.load(tmp_path / "model-last")
    assert nlp.lang == "de"
    assert set(nlp.get_pipe("ner").labels) == {"PERSON", "GPE", "ORG"}


def changes(tok2vec: str, **options: Any) -> dict[str, Any]:
    """The settings that differ from those of the shipped config, by their names with dots."""

    def flat(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
        found = {}
        for key, value in config.items():
            if isinstance(value, dict):
                found.update(flat(value, f"{prefix}{key}."))
            else:
                found[prefix + key] = value
        return found

    ours = flat(init_config(options.pop("lang", "en"), tok2vec, **options))
    theirs = flat(load_config(ROOT / "configs" / f"{tok2vec}.cfg"))
    return {key: value for key, value in ours.items() if key not in theirs or theirs[key] != value}


def test_init_config_without_options_matches_shipped_config() -> None:
    assert changes("cnn") == changes("char") == {}
    # Which is set for a GPU.
    assert changes("transformer", transformer=MINILM) == {"system.gpu_allocator": None}
    assert changes("transformer", transformer="a/b", gpu=True) == {
        "paths.transformer": "a/b",
        "training.batcher.size": 4000,
        "training.batcher.buffer": 1024,
        "training.max_steps": 500,
        "training.patience": 800,
        "training.eval_frequency": 50,
        "training.optimizer.learn_rate.total_steps": 500,
        "training.optimizer.learn_rate.initial_rate": 7.5e-5,
    }


@pytest.mark.parametrize(
    "lang, name",
    [
        ("en", "roberta-base"),
        ("de", "bert-base-german-cased"),
        ("it", "bert-base-multilingual-uncased"),  # spaCy's table has it without a transformer
        ("vi", "bert-base-multilingual-uncased"),  # spaCy has none for it
    ],
)
def test_init_config_takes_the_transformer_that_spacy_recommends(lang: str, name: str) -> None:
    """And the rate for one of its width."""
    if lang == "vi":
        pytest.importorskip("pyvi")
    config = init_config(lang, "transformer")
    assert config["paths"]["transformer"] == name
    assert config["training"]["optimizer"]["learn_rate"]["initial_rate"] == 5e-5
    shown = runner.invoke(app, ["init", "-", "--lang", lang, "--transformer", "auto"])
    assert f'transformer = "{name}"' in shown.output


WIDTHS = [(128, 2e-4), (384, 2e-4), (768, 5e-5), (1024, 2.8e-5)]
OTHERS = DistilBertConfig(dim=1024), GPT2Config(n_embd=1024), XLNetConfig(d_model=1024)


@pytest.mark.parametrize(
    "of_transformer, rate",
    [
        *((BertConfig(hidden_size=width), rate) for width, rate in WIDTHS),
        *((each, 2.8e-5) for each in OTHERS),
    ],
)
def test_init_config_rate_decreases_with_width(
    of_transformer: Any, rate: float, tmp_path: Path
) -> None:
    of_transformer.save_pretrained(tmp_path)
    config = init_config("en", "transformer", transformer=str(tmp_path))
    assert config["training"]["optimizer"]["learn_rate"]["initial_rate"] == rate


@pytest.mark.parametrize("tok2vec", TOK2VECS)
@pytest.mark.parametrize("options", [{}, {"optimize": "accuracy"}, {"max_nesting": 2}])
def test_init_config_gpu_scales_batches_and_steps(tok2vec: str, options: dict[str, Any]) -> None:
    plain, gpu = (init_config("en", tok2vec, gpu=gpu, **options) for gpu in (False, True))
    factors = {"max_steps": 0.5, "eval_frequency": 0.5, "patience": 0.5}
    for name, factor in factors.items():
        assert gpu["training"][name] == factor * plain["training"][name]
    for name in ("size", "buffer"):
        assert gpu["training"]["batcher"][name] == 4 * plain["training"]["batcher"][name]
    rates = [each["training"]["optimizer"]["learn_rate"] for each in (plain, gpu)]
    assert rates[1]["total_steps"] == rates[0]["total_steps"] / 2
    assert rates[1]["initial_rate"] == pytest.approx(1.5 * rates[0]["initial_rate"])
    assert gpu["training"]["score_weights"] == plain["training"]["score_weights"]
    assert gpu["system"]["gpu_allocator"] == "pytorch"


@pytest.mark.parametrize("tok2vec", TOK2VECS)
def test_init_config_for_accuracy_increases_size_and_steps(tok2vec: str) -> None:
    plain = init_config("en", tok2vec, transformer=MINILM).interpolate()
    larger = changes(tok2vec, transformer=MINILM, optimize="accuracy")
    assert larger["training.max_steps"] == larger["training.optimizer.learn_rate.total_steps"]
    grown = {*larger} - {"system.gpu_allocator"}
    assert grown > {*ACCURACY[tok2vec]}
    for name in grown:
        value: Any = plain
        for key in name.split("."):
            value = value[key]
        assert larger[name] > value, name


@pytest.mark.parametrize("tok2vec", ["cnn", "char"])
def test_init_config_uses_static_vectors(tok2vec: str, corpus: Path, tmp_path: Path) -> None:
    nlp = spacy.blank("en")
    nlp.vocab.set_vector("Hanoi", np.array([1.0, 2.0, 3.0], dtype="f"))
    nlp.to_disk(tmp_path / "vectors")
    config = init_config("en", tok2vec, vectors=str(tmp_path / "vectors"))
    config["paths"].update(train=str(corpus / "train.spacy"), dev=str(corpus / "dev.spacy"))
    trained = init_nlp(config)
    ner: Any = trained.get_pipe("ner")
    before = ner.trellis(trained.make_doc("Hanoi")).emissions
    trained.vocab.set_vector("Hanoi", np.array([-9.0, 8.0, 7.0], dtype="f"))
    assert abs(ner.trellis(trained.make_doc("Hanoi")).emissions - before).max() > 1e-4


def test_init_config_sets_tokenizer_of_language() -> None:
    def tokenizer(lang: str) -> str:
        return init_config(lang)["nlp"]["tokenizer"]["@tokenizers"]

    assert tokenizer("zh") == "spacy.zh.ChineseTokenizer"
    # Syllables, as in the shipped configs; no package is needed.
    assert tokenizer("vi") == tokenizer("en") == "spacy.Tokenizer.v1"
    # Another name of a language is written as spaCy's own.
    assert init_config("mul")["nlp"]["lang"] == "xx"


@pytest.mark.parametrize(
    "options, says",
    [
        ({"lang": "klingon"}, "expected a language of spaCy, such as en, got 'klingon'"),
        ({"tok2vec": "lstm"}, "tok2vec: expected one of ['transformer', 'cnn', 'char']"),
        ({"tok2vec": "transformer", "vectors": "v"}, "expected none beside a transformer, got 'v'"),
        ({"optimize": "speed"}, "optimize: expected one of ['efficiency', 'accuracy']"),
    ],
)
def test_init_config_with_unknown_choice_raises(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError) as error:
        init_config(**{"lang": "en", **options})
    assert says in str(error.value)


# A corpus


def corpus_of(folder: Path, docs: int, words: int = 20) -> Path:
    nlp = spacy.blank("en")
    own = [nlp(" ".join(words * ["so"])) for _ in range(docs)]
    own[0].set_ents([Span(own[0], 0, 1, "X")])
    DocBin(docs=own).to_disk(folder / "train.spacy")
    DocBin(docs=[nlp("so")]).to_disk(folder / "dev.spacy")
    return folder


def batches_of_an_epoch(config: Config) -> int:
    """Count those of spaCy's own training loop."""
    T = registry.resolve(config.interpolate()["training"], schema=ConfigSchemaTraining)
    train = registry.resolve({"train": config.interpolate()["corpora"]["train"]})["train"]
    return len([*create_train_batches(spacy.blank("en"), train, T["batcher"], 1)])


@pytest.mark.parametrize(
    "docs, words, gpu, steps",
    [
        (1, 20, False, 200),  # not fewer
        (1_024, 20, False, 20),  # epochs, at the most
        (2_048, 20, True, 20),
        (5_120, 20, False, 1000),  # those of the config
        (30, 3_000, False, 20),  # a doc is a batch
        (1_024, 600, False, 3),  # epochs, at the least
    ],
)
def test_steps_are_fitted_to_a_corpus(
    tmp_path: Path, docs: int, words: int, gpu: bool, steps: int
) -> None:
    config = init_config("en", "char", gpu=gpu)
    fitted = fit_to_corpus(config, corpus_of(tmp_path, docs, words))
    batches = batches_of_an_epoch(config)
    expected = steps if steps >= 200 else steps * batches
    assert abs(fitted.steps - expected) <= 5  # a multiple of ten
    assert fitted.epochs == fitted.steps / batches
    training = config["training"]
    rates = training["optimizer"]["learn_rate"]
    assert training["max_steps"] == rates["total_steps"] == fitted.steps
    assert 10 * training["eval_frequency"] == fitted.steps and training["patience"] == 0
    assert rates["warmup_steps"] == max(50, round(0.05 * fitted.steps))


def test_steps_of_a_preset_are_fitted_to_a_corpus(tmp_path: Path) -> None:
    corpus_of(tmp_path, 10_240, 20)  # 240 batches
    options: list[dict[str, Any]] = [{}, {"gpu": True}, {"optimize": "accuracy"}]
    steps = [fit_to_corpus(init_config("en", "char", **each), tmp_path).steps for each in options]
    assert steps == [1000, 500, 4000]


def test_long_training_of_a_corpus_evaluates_its_last_step(tmp_path: Path) -> None:
    """Patience of the preset is shorter than its evaluations are apart."""
    config = init_config("en", "cnn")
    config["training"]["patience"] = 15
    fit_to_corpus(config, corpus_of(tmp_path, 1, 2))
    config["training"]["before_to_disk"] = None
    config["training"]["logger"] = {
        "@loggers": "spacy.ConsoleLogger.v3",
        "output_file": str(tmp_path / "log.jsonl"),
    }
    nlp = init_nlp(config)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(nlp), "update", lambda *_, losses, **__: losses.update(ner=0.0))
        patch.setattr(type(nlp), "evaluate", lambda *_, **__: {"ents_f": 0.0})
        train_nlp(nlp)
    steps = [row["step"] for row in srsly.read_jsonl(tmp_path / "log.jsonl")]
    assert steps == [*range(0, 201, 20)]


@pytest.mark.parametrize("part", ["train", "dev"])
def test_corpus_without_tokens_is_refused(tmp_path: Path, part: str) -> None:
    DocBin(docs=[spacy.blank("en")("")]).to_disk(corpus_of(tmp_path, 1) / f"{part}.spacy")
    with pytest.raises(InputError, match=rf"{part}\.spacy: expected docs with tokens, got none"):
        fit_to_corpus(init_config("en", "char"), tmp_path)


def test_init_for_a_corpus_says_its_steps(tmp_path: Path) -> None:
    command = ["init", str(tmp_path / "config.cfg"), "--corpus", str(tmp_path)]
    result = runner.invoke(app, command)
    assert result.exit_code == 1 and "expected train.spacy and dev.spacy" in result.output
    assert not (tmp_path / "config.cfg").exists()
    corpus_of(tmp_path, 30_720, 20)  # 120 times 6 batches
    said = " ".join(runner.invoke(app, command).output.split())
    assert "Training: 2,160 steps, 3.0 epochs; " in said
    assert "warm-up of 108 steps, an evaluation every 216" in said
    assert load_config(tmp_path / "config.cfg")["training"]["max_steps"] == 2160
    printed = runner.invoke(app, ["init", "-", "--corpus", str(tmp_path)])
    assert "Training: 2,160 steps" in printed.stderr and "max_steps = 2160" in printed.stdout


# The command


def test_init_command_writes_config_of_function(tmp_path: Path) -> None:
    out = tmp_path / "folder" / "config.cfg"
    options = ["--lang", "de", "--char", "--optimize", "accuracy"]
    result = runner.invoke(app, ["init", str(out), *options])
    assert result.exit_code == 0, result.output
    assert f"Config: {out}" in result.output.replace("\n", "")
    expected = init_config("de", "char", optimize="accuracy")
    assert load_config(out) == expected
    printed = runner.invoke(app, ["init", "-", *options])
    assert printed.output.strip() == out.read_text("utf-8").strip()
    over = runner.invoke(app, ["init", "-", "--transformer", "a/b", "--gpu"]).output
    assert 'transformer = "a/b"' in over and 'gpu_allocator = "pytorch"' in over


def test_init_command_replaces_file_only_with_force(tmp_path: Path) -> None:
    out = tmp_path / "config.cfg"
    out.write_text("mine")
    result = runner.invoke(app, ["init", str(out)])
    assert result.exit_code == 1
    assert "expected a new file, got an existing one" in result.output
    assert out.read_text() == "mine"
    assert runner.invoke(app, ["init", str(out), "--force"]).exit_code == 0
    assert load_config(out) == init_config("en", "cnn")


@pytest.mark.slow
def test_init_config_for_overlapping_entities_trains_and_adds_label(tmp_path: Path) -> None:
    assert changes("cnn", max_nesting=2) == {
        "components.ner.overlap": True,
        "components.ner.max_nesting": 2,
        "components.ner.spans_key": "sc",
        "training.score_weights.ents_f": None,
        "training.score_weights.ents_p": None,
        "training.score_weights.ents_r": None,
        "training.score_weights.spans_sc_f": 1.0,
    }
    # spaCy trains it, and a corpus of a new label extends it.
    nlp = spacy.blank("en")
    words = ["the", "mayor", "of", "Lima", "met", "the", "mayor", "of", "Oslo"]
    docs = {"old": Doc(nlp.vocab, words=words), "new": Doc(nlp.vocab, words=words)}
    docs["old"].spans["sc"] = [
        Span(docs["old"], start, end, label)
        for start, end, label in ((0, 4, "PER"), (3, 4, "LOC"), (5, 9, "PER"), (8, 9, "LOC"))
    ]
    docs["new"].spans["sc"] = [Span(docs["new"], 4, 5, "VERB")]
    for name, doc in docs.items():
        DocBin(docs=[doc] * 2).to_disk(tmp_path / f"{name}.spacy")
    overrides = {
        "paths.train": str(tmp_path / "old.spacy"),
        "paths.dev": str(tmp_path / "old.spacy"),
        "training.max_steps": 30,
        "training.eval_frequency": 30,
        "training.optimizer.learn_rate.warmup_steps": 1,
        "training.optimizer.learn_rate.initial_rate": 0.01,
        "components.ner.model.hidden_width": 32,
        "components.ner.model.tok2vec.width": 32,
        "components.ner.model.tok2vec.depth": 1,
        "components.ner.model.tok2vec.embed_size": 500,
    }
    config = tmp_path / "config.cfg"
    shown = runner.invoke(app, ["init", str(config), "--overlapping", "2"])
    assert shown.exit_code == 0, shown.output
    train(config, tmp_path / "old", overrides=overrides)
    before = spacy.load(tmp_path / "old/model-best")
    assert before.meta["performance"]["spans_sc_f"] == 1.0
    added = load_config(config, overrides=overrides)  # of the network, they are not used
    added["components"] = {"ner": {"source": str(tmp_path / "old/model-best")}}
    added["training"]["optimizer"]["groups"] = {
        "frozen": {"names": "^(?!projection|crf)", "learn_rate": 0.0},
        "new": {"names": "^(projection|crf)", "L2": 0.0},
    }
    added["training"]["optimizer"]["learn_rate"] = 0.05
    added["training"].update({"max_steps": 30, "eval_frequency": 30})
    added["training"]["before_to_disk"] = None  # calibrated on VERB alone, all would change
    added["initialize"]["after_init"] = {
        "@callbacks": "spacy-crf-ner.add_labels.v1",
        "labels": ["VERB"],
    }
    added["corpora"]["train"] = {
        "@readers": "spacy-crf-ner.LabeledCorpora.v1",
        "paths": [str(tmp_path / "new.spacy")],
        "labels": [["VERB"]],
    }
    added["paths"]["dev"] = str(tmp_path / "new.spacy")
    added.to_disk(tmp_path / "added.cfg")
    train(tmp_path / "added.cfg", tmp_path / "added")
    after = spacy.load(tmp_path / "added/model-last")
    assert after.get_pipe("ner").labels == ("LOC", "PER", "VERB")
    docs = {"old": before(" ".join(words)), "new": after(" ".join(words))}
    old, new = (
        {(span.start, span.end, span.label_): p for span, p in zip(group, group.attrs["scores"])}
        for group in (docs[name].spans["sc"] for name in ("old", "new"))
    )
    assert new.pop((4, 5, "VERB")) > 0.5
    assert new == old  # bit for bit


def test_add_labels_adds_all_labels_to_named_component() -> None:
    nlp = spacy.blank("en")
    for name in ("ner", "other"):
        nlp.add_pipe("crf_ner", name=name, config={"model": {"hidden_width": 8}})
    nlp.initialize(lambda: make_examples(nlp))
    add_labels(["NEW", "GPE", "MORE"], "other")(nlp)
    assert nlp.get_pipe("ner").labels == ("GPE", "ORG", "PERSON")
    assert {*nlp.get_pipe("other").labels} == {"GPE", "MORE", "NEW", "ORG", "PERSON"}


def test_add_labels_to_untrained_component_raises() -> None:
    nlp = spacy.blank("en")
    nlp.add_pipe("crf_ner", name="ner")
    with pytest.raises(InputError, match="expected a trained 'ner'"):
        add_labels(["GPE"])(nlp)
