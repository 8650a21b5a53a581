"""Pipelines made in Python have the model and the optimizer of configs/transformer.cfg."""

from pathlib import Path
from typing import Any

import pytest
import spacy
from spacy.language import Language
from spacy.training import Example
from spacy.util import fix_random_seed, load_config, load_model_from_config, minibatch

import spacy_crf_ner
from pipelines import OWN_TRANSFORMER, TOK2VEC, add_shared, make_examples
from spacy_crf_ner.data import read_inline
from spacy_crf_ner.training.optimizer import GroupedAdam

ROOT = Path(__file__).parents[2]
DEFAULT = spacy.blank("en").config["training"]["optimizer"]


def shipped(transformer: str) -> Any:
    return load_config(
        ROOT / "configs" / "transformer.cfg", {"paths.transformer": transformer}, interpolate=True
    )


def over(transformer: str, nlp: Language | None = None, **settings: Any) -> Language:
    """A pipeline with a transformer alone below `crf_ner`."""
    nlp = nlp or spacy.blank("en")
    tok2vec = {**OWN_TRANSFORMER, "name": transformer, **settings}
    nlp.add_pipe("crf_ner", config={"model": {"hidden_width": 8, "tok2vec": tok2vec}})
    return nlp


def test_model_is_the_one_of_the_shipped_config(tiny_transformer: str, tmp_path: Path) -> None:
    nlp = spacy.blank("en")
    model = spacy_crf_ner.transformer_model(tiny_transformer)
    nlp.add_pipe("crf_ner", config={"model": model, "threshold": 0.1})
    of_config = shipped(tiny_transformer)["components"]["ner"]
    expected = {**of_config, "threshold": 0.1}
    assert nlp.config["components"]["crf_ner"] == expected
    nlp.initialize(lambda: make_examples(nlp))
    nlp.to_disk(tmp_path)
    loaded = spacy.load(tmp_path)
    assert loaded.config["components"]["crf_ner"] == expected
    text = "Tim Cook visited Hanoi."
    pipes: Any = [each.get_pipe("crf_ner") for each in (nlp, loaded)]
    scores = [pipe.trellis(nlp.make_doc(text)).emissions for pipe in pipes]
    assert (scores[0] == scores[1]).all()


def test_optimizer_of_a_trained_transformer_is_the_one_of_the_shipped_config(
    tiny_transformer: str, tmp_path: Path
) -> None:
    nlp = over(tiny_transformer)
    of_config = shipped(tiny_transformer)["training"]["optimizer"]
    optimizer = nlp.config["training"]["optimizer"]
    assert optimizer == {**of_config, "learn_rate": of_config["learn_rate"]["initial_rate"]}
    groups = {each.names.pattern for each in GroupedAdam(groups=of_config["groups"]).groups}
    returned: Any = nlp.initialize(lambda: make_examples(nlp))
    nlp.to_disk(tmp_path)
    for each in (returned, spacy.load(tmp_path).resume_training()):
        assert isinstance(each, GroupedAdam)
        assert {group.names.pattern for group in each.groups} == groups


def test_wider_transformer_has_a_lower_rate() -> None:
    optimizer = over("roberta-base").config["training"]["optimizer"]
    assert optimizer["learn_rate"] == 5e-5


def test_shared_transformer_has_it_too(tiny_transformer: str) -> None:
    nlp = spacy.blank("en")
    model = {**OWN_TRANSFORMER, "name": tiny_transformer}
    nlp.add_pipe("shared_tok2vec", config={"model": model})
    expected = over(tiny_transformer).config["training"]["optimizer"]
    assert nlp.config["training"]["optimizer"] == expected != DEFAULT


def test_no_other_optimizer_is_replaced(tiny_transformer: str) -> None:
    own = spacy.blank("en")
    own.config["training"]["optimizer"]["learn_rate"] = 3e-5
    given = dict(own.config["training"]["optimizer"])
    assert over(tiny_transformer, own).config["training"]["optimizer"] == given
    config = over(tiny_transformer).config
    config["training"]["optimizer"] = DEFAULT
    assert load_model_from_config(config).config["training"]["optimizer"] == DEFAULT


def test_default_optimizer_stays_without_a_transformer_to_train(tiny_transformer: str) -> None:
    frozen = over(tiny_transformer, frozen=True)
    cnn = spacy.blank("en")
    cnn.add_pipe("crf_ner", config={"model": {"tok2vec": TOK2VEC}})
    listener = spacy.blank("en")
    add_shared(listener, tiny_transformer, frozen=True)
    for nlp in (frozen, cnn, listener):
        assert nlp.config["training"]["optimizer"] == DEFAULT


@pytest.mark.slow
def test_loop_of_updates_learns_over_a_pretrained_transformer() -> None:
    minilm = ROOT / "assets" / "minilm"
    if not minilm.exists():
        pytest.skip(f"no transformer in {minilm}: make test puts it there")
    fix_random_seed(0)
    nlp = spacy.blank("en")
    model = spacy_crf_ner.transformer_model(str(minilm))
    nlp.add_pipe("crf_ner", config={"model": model})
    train, dev = (
        [
            Example(nlp.make_doc(doc.text), doc)
            for doc in read_inline(ROOT / "assets" / "sample_en" / f"{part}.txt", nlp)
        ]
        for part in ("train", "dev")
    )
    optimizer = nlp.initialize(lambda: train)
    for batch in minibatch(train[:320], 16):
        nlp.update(batch, sgd=optimizer, drop=0.1)
    assert nlp.evaluate(dev)["ents_f"] > 0.4  # with spaCy's default optimizer, 0.2
