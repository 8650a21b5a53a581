"""A transformer in a component of its own, which several components listen to."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import spacy
import torch
from spacy.cli.init_config import fill_config
from spacy.language import Language
from spacy.tokens import DocBin
from spacy.training import Example
from spacy.training.initialize import init_nlp
from spacy.training.loop import train as spacy_train
from spacy.util import load_config
from thinc.api import Config
from typer.testing import CliRunner

from pipelines import (
    LISTENER,
    OWN_TRANSFORMER,
    SENTENCES,
    TOK2VEC,
    copied,
    ents,
    make_examples,
    train,
)
from spacy_crf_ner.cli import app
from spacy_crf_ner.export import export_pipeline
from spacy_crf_ner.input_error import InputError
from spacy_crf_ner.pipeline import shared_tok2vec
from spacy_crf_ner.training.distributed.sync import get_weights, parameters
from spacy_crf_ner.training.init_config import init_config

TEXTS = [text for text, _ in SENTENCES]
WORDS = {"@architectures": "spacy-crf-ner.CharWordEmbed.v1", "word_rows": 50}
BESIDE = {
    "@architectures": "spacy-crf-ner.ConcatenateVectors.v1",
    "*": {"transformer": LISTENER, "words": WORDS},
}


def pipeline(folder: str, factory: str = "shared_tok2vec", **model: Any) -> Language:
    """A crf_ner, which also reads characters, and spaCy's tagger, over a shared transformer."""
    nlp = spacy.blank("en")
    nlp.add_pipe(factory, "tok2vec", config={"model": {**OWN_TRANSFORMER, "name": folder, **model}})
    nlp.add_pipe("crf_ner", config={"model": {"hidden_width": 16, "tok2vec": BESIDE}})
    nlp.add_pipe("tagger", config={"model": {"tok2vec": LISTENER}})
    return nlp


def examples_of(nlp: Language) -> list[Example]:
    """Examples with entities, and a tag for words that begin with a capital letter."""
    made = make_examples(nlp, [pair for pair in SENTENCES if pair[0].strip()])
    for eg in made:
        for token in eg.reference:
            token.tag_ = "UPPER" if token.is_title else "LOWER"
    return made


@pytest.fixture(scope="module")
def saved(shared: Any, tiny_transformer: str) -> Path:
    """A trained pipeline of `pipeline`."""

    def make() -> Language:
        nlp = pipeline(tiny_transformer)
        train(nlp, examples_of(nlp), steps=50, learn_rate=0.01)
        return nlp

    return shared("several", make)  # type: ignore[no-any-return]


def annotations(nlp: Language) -> list[Any]:
    """What the components of a pipeline predict."""
    return [
        (ents(doc), [ent._.confidence for ent in doc.ents], [token.tag_ for token in doc])
        for doc in nlp.pipe(TEXTS)
    ]


def weights(nlp: Language, name: str = "tok2vec") -> dict[str, torch.Tensor]:
    found = get_weights(nlp).items()
    return {key: x.clone() for key, x in found if key.startswith(f"{name}/")}


def changed(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> bool:
    assert before and before.keys() == after.keys()
    return any(not torch.equal(before[name], after[name]) for name in before)


# As spaCy's own component


@pytest.mark.parametrize("model", ["transformer", "cnn"])
def test_losses_and_gradients_are_those_of_spacy_tok2vec(model: str, tiny_transformer: str) -> None:
    cnn = {**TOK2VEC, "width": 16}
    nlps = []
    for factory in ("tok2vec", "shared_tok2vec"):
        nlp = pipeline(tiny_transformer, factory)
        if model == "cnn":
            nlp.replace_pipe("tok2vec", factory, config={"model": cnn})
        nlp.add_pipe("ner", config={"model": {"tok2vec": LISTENER}})
        spacy.util.fix_random_seed(0)
        nlp.initialize(lambda nlp=nlp: examples_of(nlp))  # type: ignore[misc]
        nlps.append(nlp)
    losses: list[dict[str, float]] = [{}, {}]
    for nlp, into in zip(nlps, losses):
        for _ in range(2):  # gradients and losses are added up
            spacy.util.fix_random_seed(0)
            nlp.update(examples_of(nlp), sgd=False, drop=0.2, losses=into)  # type: ignore[arg-type]
    assert losses[1] == pytest.approx(losses[0], rel=1e-5) and losses[0]["tok2vec"] > 0
    theirs, ours = ({p.name: p.gradient for p in parameters(nlp)} for nlp in nlps)
    assert ours.keys() == theirs.keys()
    for name, gradient in theirs.items():
        assert (gradient is None) == (ours[name] is None), name
        if gradient is not None:
            found = [x.to_dense().numpy() for x in (ours[name], gradient)]
            np.testing.assert_allclose(*found, rtol=1e-4, atol=1e-5, err_msg=name)
    assert any(
        d is not None and d.to_dense().any() for name, d in ours.items() if "tok2vec/" in name
    )


def test_update_sums_squares_once_for_each_listener(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each number that becomes a float is a wait for a GPU."""
    nlp, converted = spacy.load(saved), []

    def counting(value: Any) -> float:
        converted.append(value)
        return float(value)

    monkeypatch.setattr(shared_tok2vec, "float", counting, raising=False)
    examples = examples_of(nlp)
    nlp.update(examples, sgd=nlp.resume_training())
    assert len(converted) == 2 < len(examples)


def test_update_of_docs_without_tokens_or_without_listeners_is_as_in_spacy(
    saved: Path, tiny_transformer: str
) -> None:
    nlp = spacy.load(saved)
    nothing = make_examples(nlp, [("", []), ("", [])])
    losses: dict[str, float] = {}
    nlp.update(nothing, sgd=nlp.resume_training(), losses=losses)
    assert losses["tok2vec"] == losses["tagger"] == 0.0
    alone = spacy.load(saved, exclude=["crf_ner", "tagger"])
    assert alone.update(examples_of(alone), sgd=alone.resume_training()) == {"tok2vec": 0.0}


# Several listeners


def test_all_listeners_learn_and_predict(saved: Path) -> None:
    nlp = spacy.load(saved)
    for (text, gold), (found, confidences, tags) in zip(SENTENCES, annotations(nlp)):
        assert found == gold, text
        assert all(confidence > 0.5 for confidence in confidences)
        words = nlp.make_doc(text)
        learned = zip(words, tags) if text.strip() else ()
        assert all((tag == "UPPER") == word.is_title for word, tag in learned), text


def test_each_listener_trains_the_shared_transformer(saved: Path) -> None:
    for name, other in (("crf_ner", "tagger"), ("tagger", "crf_ner")):
        nlp = spacy.load(saved, exclude=[other])
        before, optimizer = weights(nlp), nlp.resume_training()
        for _ in range(2):  # spaCy updates an upstream component in the next call
            nlp.update(examples_of(nlp), sgd=optimizer)
        assert changed(before, weights(nlp)), name


def test_saved_pipeline_and_bytes_predict_the_same(saved: Path, tmp_path: Path) -> None:
    nlp = spacy.load(saved)
    expected = annotations(nlp)
    nlp.to_disk(tmp_path)
    copy = copied(nlp)
    assert annotations(spacy.load(tmp_path)) == annotations(copy) == expected


# Without the shared component


def test_replaced_listeners_predict_and_train_alone(saved: Path, tmp_path: Path) -> None:
    nlp = spacy.load(saved)
    expected = annotations(nlp)
    nlp.replace_listeners("tok2vec", "crf_ner", ["model.tok2vec.*.transformer"])
    nlp.replace_listeners("tok2vec", "tagger", ["model.tok2vec"])
    nlp.remove_pipe("tok2vec")
    nlp.to_disk(tmp_path)
    loaded = spacy.load(tmp_path)
    assert annotations(nlp) == annotations(loaded) == expected
    before = weights(loaded, "crf_ner")
    loaded.update(examples_of(loaded), sgd=loaded.resume_training())
    of_transformer = {name: x for name, x in before.items() if "transformer.encoder" in name}
    after = weights(loaded, "crf_ner")
    assert changed(of_transformer, {name: after[name] for name in of_transformer})


def test_several_replaced_listeners_of_a_component_are_saved(
    tiny_transformer: str, tmp_path: Path
) -> None:
    """spaCy would replace every other one alone."""
    nlp = spacy.blank("en")
    model = {**OWN_TRANSFORMER, "name": tiny_transformer}
    nlp.add_pipe("shared_tok2vec", name="tok2vec", config={"model": model})
    both = {"@architectures": "spacy-crf-ner.ConcatenateVectors.v1"}
    both["*"] = {"a": LISTENER, "b": LISTENER}  # type: ignore[assignment]
    nlp.add_pipe("crf_ner", config={"model": {"hidden_width": 4, "tok2vec": both}})
    nlp.initialize(lambda: make_examples(nlp))
    expected: Any = nlp.get_pipe("crf_ner").trellis(nlp("Tim Cook")).emissions  # type: ignore
    nlp.replace_listeners("tok2vec", "crf_ner", ["model.tok2vec.*.a", "model.tok2vec.*.b"])
    nlp.remove_pipe("tok2vec")
    nlp.to_disk(tmp_path)
    for each in (nlp, spacy.load(tmp_path)):
        pipe: Any = each.get_pipe("crf_ner")
        np.testing.assert_allclose(
            pipe.trellis(each.make_doc("Tim Cook")).emissions, expected, atol=1e-6
        )


def test_recognizer_sourced_with_its_transformer_predicts_the_same(saved: Path) -> None:
    source = spacy.load(saved)
    nlp = spacy.blank("en", vocab=source.vocab)
    for name in ("tok2vec", "crf_ner"):
        nlp.add_pipe(name, source=source)
    assert [ents(doc) for doc in nlp.pipe(TEXTS)] == [gold for _, gold in SENTENCES]


def test_recognizer_sourced_alone_raises(saved: Path, tiny_transformer: str) -> None:
    source = spacy.load(saved)
    nlp = spacy.blank("en", vocab=source.vocab)
    nlp.add_pipe("crf_ner", source=source)
    with pytest.raises(InputError, match=r"\[crf_ner\] listens to 'tok2vec', which has not run"):
        nlp("Tim Cook visited Hanoi.")
    source.replace_listeners("tok2vec", "crf_ner", ["model.tok2vec.*.transformer"])
    alone = spacy.blank("en", vocab=source.vocab)
    alone.add_pipe("crf_ner", source=source)
    assert ents(alone("Tim Cook visited Hanoi.")) == SENTENCES[0][1]


def test_listener_of_another_width_raises_before_training(tiny_transformer: str) -> None:
    nlp = spacy.blank("en")
    model = {**OWN_TRANSFORMER, "name": tiny_transformer}
    nlp.add_pipe("shared_tok2vec", "tok2vec", config={"model": model})
    nlp.add_pipe("crf_ner", config={"model": {"tok2vec": {**LISTENER, "width": 768}}})
    message = r"\[crf_ner\] listens to 'tok2vec', .* width 16, and expects 768"
    with pytest.raises(InputError, match=message):
        nlp.initialize(lambda: make_examples(nlp))


# Training further


def test_rehearsal_trains_the_head_alone(saved: Path) -> None:
    nlp = spacy.load(saved)
    optimizer = nlp.resume_training()
    nlp.update(examples_of(nlp), sgd=optimizer)  # another batch than the one that is rehearsed
    examples = [Example(nlp(text), nlp.make_doc(text)) for text in TEXTS[:1]]
    before, head = weights(nlp), weights(nlp, "crf_ner")
    # spaCy applies the gradients of the component that it draws last.
    losses = nlp.rehearse(examples, sgd=optimizer, exclude=["tok2vec", "tagger"])
    assert losses["crf_ner"] > 0
    assert not changed(before, weights(nlp)) and changed(head, weights(nlp, "crf_ner"))


def test_frozen_transformer_keeps_its_weights_and_others_learn(tiny_transformer: str) -> None:
    nlp = pipeline(tiny_transformer, frozen=True)
    examples = examples_of(nlp)
    optimizer = nlp.initialize(lambda: examples)
    before = {name: weights(nlp, name) for name in nlp.pipe_names}
    losses: dict[str, float] = {}
    for _ in range(2):
        nlp.update(examples, sgd=optimizer, losses=losses)
    kept = [name for name, old in before.items() if not changed(old, weights(nlp, name))]
    assert kept == ["tok2vec"] and losses["tok2vec"] > 0


def short(config: Config, corpus: Path) -> Config:
    """A config of two steps on a corpus."""
    config["paths"].update(train=str(corpus), dev=str(corpus))
    config["training"].update(max_steps=2, eval_frequency=2)
    return config


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "train.spacy"
    docs = [eg.reference for eg in make_examples(spacy.blank("en"))]
    DocBin(docs=docs).to_disk(path)
    return path


def shared_config(tiny_transformer: str, corpus: Path) -> Config:
    config = init_config("en", "transformer", transformer=tiny_transformer, shared=True)
    config["components"]["ner"]["model"]["hidden_width"] = 8
    config["components"]["tok2vec"]["model"]["mixed_precision"] = False
    return short(config, corpus)


def test_written_config_trains_a_shared_transformer(
    tiny_transformer: str, corpus: Path, tmp_path: Path
) -> None:
    config = shared_config(tiny_transformer, corpus)
    nlp = init_nlp(config)
    assert nlp.pipe_names == ["tok2vec", "ner"]
    before = weights(nlp)
    nlp, _ = spacy_train(nlp, tmp_path)
    assert changed(before, weights(nlp))
    loaded = spacy.load(tmp_path / "model-last")
    assert loaded.get_pipe_meta("tok2vec").factory == "shared_tok2vec"
    assert loaded("Tim Cook visited Hanoi.").has_annotation("ENT_IOB")


def test_frozen_component_that_annotates_keeps_its_weights(
    saved: Path, tiny_transformer: str, corpus: Path
) -> None:
    config = shared_config(tiny_transformer, corpus)
    config["components"]["tok2vec"] = {"source": str(saved)}
    config["training"].update(frozen_components=["tok2vec"], annotating_components=["tok2vec"])
    nlp = init_nlp(config)
    before, head = weights(spacy.load(saved)), weights(nlp, "ner")
    nlp, _ = spacy_train(nlp)
    assert not changed(before, weights(nlp)) and changed(head, weights(nlp, "ner"))


# The command, and export


def test_shared_differs_from_one_of_its_own_in_the_transformer_alone(
    tiny_transformer: str, tmp_path: Path
) -> None:
    path = tmp_path / "config.cfg"
    options = ["init", str(path), "--transformer", tiny_transformer, "--shared"]
    assert CliRunner().invoke(app, options).exit_code == 0
    config = load_config(path)
    fill_config(tmp_path / "filled.cfg", path, silent=True)
    assert load_config(tmp_path / "filled.cfg") == config
    own = init_config("en", "transformer", transformer=tiny_transformer)
    of_component = config["components"].pop("tok2vec")
    layers, own_layers = (
        each["components"]["ner"]["model"]["tok2vec"]["*"] for each in (config, own)
    )
    assert [*layers] == [*own_layers]  # the head's input has the same order
    assert layers.pop("transformer") == LISTENER  # of the width in its folder
    assert of_component == {"factory": "shared_tok2vec", "model": own_layers.pop("transformer")}
    assert config["nlp"].pop("pipeline") == ["tok2vec", *own["nlp"].pop("pipeline")]
    assert config == own


def test_shared_without_a_transformer_raises() -> None:
    with pytest.raises(InputError, match="expected a transformer, got 'cnn'"):
        init_config("en", "cnn", shared=True)
    result = CliRunner().invoke(app, ["init", "-", "--shared"])
    assert result.exit_code == 1 and "Add --transformer" in result.output


@pytest.mark.slow
def test_exported_pipeline_has_no_shared_component(saved: Path, tmp_path: Path) -> None:
    nlp = spacy.load(saved, exclude=["tagger"])
    expected = [ents(doc) for doc in nlp.pipe(TEXTS)]
    export_pipeline(nlp).to_disk(tmp_path)
    exported = spacy.load(tmp_path)
    assert exported.pipe_names == ["crf_ner"]
    assert "shared_tok2vec" not in (tmp_path / "config.cfg").read_text("utf-8")
    assert [ents(doc) for doc in exported.pipe(TEXTS)] == expected
