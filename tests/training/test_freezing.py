"""A transformer that is frozen, in whole or in part: weights, gradients and saved tensors."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import spacy
import torch
from spacy.cli.init_config import fill_config
from spacy.language import Language
from spacy.tokens import DocBin
from spacy.training.initialize import init_nlp
from spacy.training.loop import train
from spacy.util import load_config
from thinc.api import Config, PyTorchWrapper, chain
from transformers import AlbertConfig, AlbertModel, BertModel

from pipelines import SENTENCES, make_examples, small_transformers
from spacy_crf_ner.ml.shim import module_of as module_of_shim
from spacy_crf_ner.pipeline.lookup import model_layers
from spacy_crf_ner.training.freezing import freeze_layers

ROOT = Path(__file__).parents[2]
FROZEN = "components.ner.model.tok2vec.*.transformer.frozen"
HALF_FROZEN = {"@callbacks": "spacy-crf-ner.freeze_layers.v1", "layers": 1}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A .spacy file of the sentences."""
    path = tmp_path_factory.mktemp("corpus") / "train.spacy"
    examples = make_examples(spacy.blank("en"))
    DocBin(docs=[eg.reference for eg in examples]).to_disk(path)
    return str(path)


def make_config(corpus: str, transformer: str, frozen: bool = False) -> Config:
    """The shipped config, for a few steps that change all trainable weights."""
    overrides = {
        "paths.train": corpus,
        "paths.dev": corpus,
        "paths.transformer": transformer,
        "components.ner.model.hidden_width": 16,
        "components.ner.model.tok2vec.*.transformer.mixed_precision": False,
        "training.optimizer.learn_rate.warmup_steps": 1,
        FROZEN: frozen,
    }
    config = load_config(ROOT / "configs" / "transformer.cfg", overrides=overrides)
    config["training"]["max_steps"] = 4
    return config


def trained(config: Config, output: Path | None = None) -> Language:
    """The pipeline after `spacy train`."""
    nlp = init_nlp(config)
    train(nlp, output)
    return nlp


def module_of(nlp: Language) -> Any:
    """The module of Hugging Face."""
    nodes = (node for node in model_layers(nlp.get_pipe("ner")) if node.name == "transformer")
    return module_of_shim(next(nodes).shims[0]).transformer  # type: ignore[union-attr]


def weights(nlp: Language) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in module_of(nlp).named_parameters()}


def pretrained(folder: str) -> dict[str, torch.Tensor]:
    """The weights in a folder; the pooler is not loaded."""
    found = dict(BertModel.from_pretrained(folder).named_parameters())
    return {name: p.detach() for name, p in found.items() if not name.startswith("pooler.")}


def kept(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> set[str]:
    """The names of the weights that are bitwise equal."""
    assert before.keys() == after.keys() and len(before) > 30
    return {name for name in before if torch.equal(before[name], after[name])}


def lower_half(module: Any) -> set[str]:
    """The names of the weights of the embeddings and the lower of two layers."""
    parts = {"embeddings": module.embeddings, "encoder.layer.0": module.encoder.layer[0]}
    return {f"{part}.{name}" for part, m in parts.items() for name, _ in m.named_parameters()}


@contextmanager
def saved_by(module: torch.nn.Module) -> Iterator[list[int]]:
    """Count the tensors that autograd keeps in each call of a module, for the way back."""
    counts: list[int] = []
    open_hooks: list[Any] = []

    def count(tensor: torch.Tensor) -> torch.Tensor:
        counts[-1] += 1
        return tensor

    def begin(*_: Any) -> None:
        counts.append(0)
        open_hooks.append(torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor))
        open_hooks[-1].__enter__()

    def end(*_: Any) -> None:
        open_hooks.pop().__exit__(None, None, None)

    handles = [module.register_forward_pre_hook(begin), module.register_forward_hook(end)]
    try:
        yield counts
    finally:
        for handle in handles:
            handle.remove()


# All of it


def test_frozen_transformer_keeps_pretrained_weights(
    corpus: str, tiny_transformer: str, tmp_path: Path
) -> None:
    nlp = trained(make_config(corpus, tiny_transformer, frozen=True), tmp_path)
    expected = pretrained(tiny_transformer)
    for each in (nlp, spacy.load(tmp_path / "model-last")):
        assert kept(expected, weights(each)) == expected.keys()
    assert all(p.grad is None for p in module_of(nlp).parameters())
    doc = spacy.load(tmp_path / "model-last")("Tim Cook visited Hanoi.")
    assert doc.has_annotation("ENT_IOB")


def test_unfrozen_transformer_changes_all_weights(corpus: str, tiny_transformer: str) -> None:
    """Otherwise, the other tests of this file could not fail."""
    nlp = trained(make_config(corpus, tiny_transformer))
    assert kept(pretrained(tiny_transformer), weights(nlp)) == set()


@pytest.mark.parametrize("frozen", [True, False])
def test_frozen_transformer_saves_no_tensors_for_backward_and_drops_nothing_out(
    frozen: bool, corpus: str, tiny_transformer: str
) -> None:
    nlp = init_nlp(make_config(corpus, tiny_transformer, frozen))
    examples = make_examples(nlp, [pair for pair in SENTENCES if pair[0]])
    states: list[torch.Tensor] = []
    module_of(nlp).register_forward_hook(
        lambda module, inputs, output: states.append(output.last_hidden_state)
    )
    with saved_by(module_of(nlp)) as counts:
        for _ in range(2):
            nlp.update(examples, sgd=False, drop=0.5)  # type: ignore[arg-type]
    assert counts and all((count == 0) == frozen for count in counts)
    assert [state.requires_grad for state in states] == [not frozen] * len(counts)
    halves = states[: len(states) // 2], states[len(states) // 2 :]
    assert all(torch.equal(*pair) == frozen for pair in zip(*halves))
    assert module_of(nlp).training is not frozen  # it drops attention out too
    assert all((p.grad is None) == frozen for p in module_of(nlp).parameters())


# A part of it


def test_freeze_layers_keeps_frozen_weights_and_trains_others(
    corpus: str, tiny_transformer: str, tmp_path: Path
) -> None:
    config = make_config(corpus, tiny_transformer)
    config["initialize"]["after_init"] = HALF_FROZEN
    config.to_disk(tmp_path / "config.cfg")
    fill_config(tmp_path / "filled.cfg", tmp_path / "config.cfg", silent=True)
    config = load_config(tmp_path / "filled.cfg")
    assert config["initialize"]["after_init"]["component"] == "ner"
    nlp = trained(config, tmp_path)
    expected = pretrained(tiny_transformer)
    for each in (nlp, spacy.load(tmp_path / "model-last")):
        assert kept(expected, weights(each)) == lower_half(module_of(each))


@pytest.mark.slow
@pytest.mark.parametrize("layers", [0, 1, 2])
def test_freeze_layers_stops_gradients_in_each_architecture(layers: int) -> None:
    """The hidden states up to the frozen layers are constants, and those above them are not."""
    modules = small_transformers()
    assert len(modules) > 9
    for kind, module in modules.items():
        freeze_layers("any", layers)(pipeline_of(module))
        words = torch.randint(3, 50, (2, 7))
        output = module(words, attention_mask=torch.ones_like(words), output_hidden_states=True)
        learn = [hidden.requires_grad for hidden in output.hidden_states]
        assert learn == [False] * (layers + 1) + [True] * (3 - layers), kind


def pipeline_of(module: Any) -> Any:
    """What the callback sees of a pipeline, with a component named "any"."""
    pipe = SimpleNamespace(model=PyTorchWrapper(module))
    return SimpleNamespace(component_names=["any"], get_pipe=lambda name: pipe)


def test_all_transformers_of_a_component_are_frozen() -> None:
    first, second = [*small_transformers().values()][:2]
    pipe = SimpleNamespace(model=chain(PyTorchWrapper(first), PyTorchWrapper(second)))
    nlp: Any = SimpleNamespace(component_names=["any"], get_pipe=lambda name: pipe)
    freeze_layers("any", 1)(nlp)
    for module in (first, second):
        learning = {name for name, weights in module.named_parameters() if weights.requires_grad}
        assert learning and not any(name.startswith("embeddings.") for name in learning)
        assert not any("layer.0." in name for name in learning)


# Resumed and sourced pipelines


@pytest.fixture(scope="module")
def saved(corpus: str, tiny_transformer: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained pipeline; its lower half was frozen."""
    folder = tmp_path_factory.mktemp("saved")
    config = make_config(corpus, tiny_transformer)
    config["initialize"]["after_init"] = HALF_FROZEN
    trained(config, folder)
    return folder / "model-last"


@pytest.mark.parametrize("again", [True, False])
def test_resumed_training_keeps_weights_only_after_freeze_layers(again: bool, saved: Path) -> None:
    nlp = spacy.load(saved)
    before = weights(nlp)
    if again:
        freeze_layers(layers=1)(nlp)
    optimizer = nlp.resume_training()
    optimizer.learn_rate = 0.01
    examples = make_examples(nlp, [pair for pair in SENTENCES if pair[0]])
    for _ in range(2):
        nlp.update(examples, sgd=optimizer)
    assert kept(before, weights(nlp)) == (lower_half(module_of(nlp)) if again else set())


def test_freeze_layers_with_pending_gradients_keeps_frozen_weights(saved: Path) -> None:
    """Neither do the moments of the optimizer from earlier steps, nor its decay."""
    nlp = spacy.load(saved)
    optimizer = nlp.resume_training()
    optimizer.learn_rate, optimizer.L2 = 0.01, 0.1
    examples = make_examples(nlp, [pair for pair in SENTENCES if pair[0]])
    nlp.update(examples, sgd=optimizer)
    nlp.update(examples, sgd=False)  # type: ignore[arg-type]
    before = weights(nlp)
    freeze_layers(layers=1)(nlp)
    for _, pipe in nlp.pipeline:
        pipe.finish_update(optimizer)
    nlp.update(examples, sgd=optimizer)
    assert kept(before, weights(nlp)) == lower_half(module_of(nlp))


# Errors


def test_freeze_layers_with_invalid_settings_raises(saved: Path) -> None:
    nlp = spacy.load(saved)
    nlp.add_pipe("sentencizer")
    for component, layers, message in (
        ("bert", 1, r"a transformer in 'bert', one of \['ner', 'sentencizer'\], got none"),
        ("sentencizer", 1, r"expected a transformer in 'sentencizer', one of .*, got none"),
        ("ner", -1, r"0 or more layers.* got -1"),
        ("ner", 3, r"fewer than the 2 layers .* got 3\. .*frozen = true"),
        ("ner", 2, r"fewer than the 2 layers .* got 2\. .*frozen = true"),
    ):
        with pytest.raises(ValueError, match=message):
            freeze_layers(component, layers)(nlp)
    assert all(p.requires_grad for p in module_of(nlp).parameters())


def test_freeze_layers_of_unloaded_transformer_raises(corpus: str, tiny_transformer: str) -> None:
    nlp = spacy.util.load_model_from_config(make_config(corpus, tiny_transformer))
    with pytest.raises(ValueError, match=r"got none.*initialize or load it first"):
        freeze_layers()(nlp)


def test_freeze_layers_with_shared_layer_weights_raises() -> None:
    size = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32}
    albert = AlbertModel(AlbertConfig(vocab_size=50, embedding_size=8, **size))
    with pytest.raises(ValueError, match=r"got names of \[0\].*A AlbertModel cannot be frozen in"):
        freeze_layers("any", 1)(pipeline_of(albert))
