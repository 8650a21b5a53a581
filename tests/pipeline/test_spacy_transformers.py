"""A crf_ner that listens to the `transformer` component of spacy-transformers."""

from pathlib import Path
from typing import Any

import pytest
import spacy
import torch
from spacy.language import Language
from spacy.tokens import DocBin
from spacy.training.initialize import init_nlp
from spacy.training.loop import train as spacy_train
from spacy.util import load_config, load_model_from_config

from pipelines import SENTENCES, ents, make_examples
from spacy_crf_ner import accelerate
from spacy_crf_ner.export import export_pipeline
from spacy_crf_ner.input_error import InputError
from spacy_crf_ner.training.distributed.sync import get_weights, parameters
from spacy_crf_ner.training.freezing import freeze_layers
from spacy_crf_ner.training.optimizer import GroupedAdam

pytest.importorskip("spacy_transformers", reason="the extra spacy-transformers is not installed")

ROOT = Path(__file__).parents[2]
TEXTS = [text for text, _ in SENTENCES]


def config_of(tiny_transformer: str) -> Any:
    """The shipped config, of a small network."""
    overrides = {"paths.transformer": tiny_transformer, "components.ner.model.hidden_width": 16}
    return load_config(ROOT / "configs" / "spacy_transformers.cfg", overrides=overrides)


@pytest.fixture(scope="module")
def saved(shared: Any, tiny_transformer: str) -> Path:
    """A pipeline that has learned the sentences."""

    def make() -> Language:
        nlp = load_model_from_config(config_of(tiny_transformer), auto_fill=True)
        spacy.util.fix_random_seed(0)
        nlp.initialize(lambda: make_examples(nlp))
        optimizer = GroupedAdam(0.005, use_averages=False)
        for _ in range(60):
            nlp.update(make_examples(nlp), sgd=optimizer)
        return nlp

    return shared("of_spacy_transformers", make)  # type: ignore[no-any-return]


def transformer_weights(nlp: Language) -> dict[str, torch.Tensor]:
    """Copies of its weights; the pooler is not used."""
    found = get_weights(nlp).items()
    own = {name: w.clone() for name, w in found if name.startswith("transformer/")}
    assert len(own) > 30
    return {name: w for name, w in own.items() if "pooler" not in name}


def changed(before: dict[str, torch.Tensor], nlp: Language) -> set[str]:
    after = transformer_weights(nlp)
    return {name for name, w in before.items() if not torch.equal(w, after[name])}


def test_shipped_config_trains_the_transformer(tiny_transformer: str, tmp_path: Path) -> None:
    docs = [eg.reference for eg in make_examples(spacy.blank("en"))]
    DocBin(docs=docs).to_disk(tmp_path / "train.spacy")
    config = config_of(tiny_transformer)
    config["paths"].update(dict.fromkeys(("train", "dev"), str(tmp_path / "train.spacy")))
    config["training"].update(max_steps=3, eval_frequency=3)
    nlp = init_nlp(config)
    before = transformer_weights(nlp)
    nlp, _ = spacy_train(nlp, tmp_path)
    assert changed(before, nlp) == before.keys()
    assert spacy.load(tmp_path / "model-last")(TEXTS[0]).has_annotation("ENT_IOB")


def test_saved_pipeline_predicts_what_it_has_learned(saved: Path, tmp_path: Path) -> None:
    nlp = spacy.load(saved)
    docs = [*nlp.pipe(TEXTS)]
    assert [ents(doc) for doc in docs] == [gold for _, gold in SENTENCES]
    nlp.to_disk(tmp_path)
    again = [*spacy.load(tmp_path).pipe(TEXTS)]
    confidences = [[ent._.confidence for ent in doc.ents] for doc in docs]
    assert [[ent._.confidence for ent in doc.ents] for doc in again] == confidences


def test_gradient_of_the_transformer_is_the_slope_of_the_loss(saved: Path) -> None:
    """By finite differences, in a random direction, without dropout."""
    nlp = spacy.load(saved)
    pipe: Any = nlp.get_pipe("transformer")
    examples = make_examples(nlp, SENTENCES[:1] + SENTENCES[4:6])

    def loss() -> float:
        losses = nlp.update(examples, sgd=False, drop=0.0, losses={})  # type: ignore[arg-type]
        return float(losses["ner"])

    for module in pipe.model.transformer.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        if hasattr(module, "dropout_prob"):
            module.dropout_prob = 0.0
    loss()
    weights = {p.name: p for p in parameters(nlp) if p.name.startswith("transformer/")}
    learned = [p for p in weights.values() if p.gradient is not None]
    assert len(learned) > 30
    torch.manual_seed(0)
    directions = [torch.randn_like(p.tensor) for p in learned]
    slope = sum(float((p.dense_gradient() * d).sum()) for p, d in zip(learned, directions))
    found = []
    for step in (1e-4, -2e-4):
        for p, d in zip(learned, directions):
            p.tensor.add_(step * d)
        found.append(loss())
    assert (found[0] - found[1]) / 2e-4 == pytest.approx(slope, rel=0.05)


def test_frozen_component_that_annotates_keeps_its_weights(saved: Path) -> None:
    nlp = spacy.load(saved)
    before = transformer_weights(nlp)
    examples, optimizer = make_examples(nlp), GroupedAdam(0.01)
    losses: dict[str, float] = {}
    for _ in range(2):
        nlp.update(
            examples,
            sgd=optimizer,
            losses=losses,
            exclude=["transformer"],
            annotates=["transformer"],
        )
    assert not changed(before, nlp) and losses["ner"] > 0


def test_frozen_layers_keep_their_weights(saved: Path) -> None:
    nlp = spacy.load(saved)
    freeze_layers("transformer", 1)(nlp)
    before, optimizer = transformer_weights(nlp), GroupedAdam(0.01)
    for _ in range(2):
        nlp.update(make_examples(nlp), sgd=optimizer)
    learned = changed(before, nlp)
    assert learned and all(".layer.1." in name for name in learned)


def test_replaced_listener_predicts_the_same(saved: Path, tmp_path: Path) -> None:
    nlp = spacy.load(saved)
    expected = [ents(doc) for doc in nlp.pipe(TEXTS)]
    nlp.replace_listeners("transformer", "ner", ["model.tok2vec"])
    nlp.remove_pipe("transformer")
    nlp.to_disk(tmp_path)
    loaded = spacy.load(tmp_path)
    assert [ents(doc) for doc in loaded.pipe(TEXTS)] == expected != []


def test_recognizer_without_its_transformer_raises(saved: Path) -> None:
    nlp = spacy.load(saved, disable=["transformer"])
    with pytest.raises(InputError, match=r"\[ner\] listens to 'transformer', which has not run"):
        nlp(TEXTS[0])


def test_its_transformer_has_no_dtype_and_cannot_be_exported(saved: Path) -> None:
    with pytest.raises(InputError, match="got one of spacy-transformers"):
        accelerate(spacy.load(saved), "bf16")
    with pytest.raises(InputError, match=r"got 'spacy-transformers.TransformerListener.v1', which"):
        export_pipeline(spacy.load(saved))
