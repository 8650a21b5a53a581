"""The ablation: variants are read, trained with one budget, and measured."""

from pathlib import Path

import pytest
import spacy
import srsly

from benchmarks import ablation, common
from benchmarks.ablation import invalid_share, measure
from benchmarks.common import read_variants
from pipelines import TOK2VEC, make_examples, train
from spacy_crf_ner.input_error import InputError

ROOT = Path(__file__).parents[2]
ROW = {"p": 0.5, "r": 0.25, "f": 0.4, "invalid": None, "parameters": 1_234_567}
ROW |= {"train_speed": 1000.0, "predict_speed": 20000.0}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    docs = [eg.reference for eg in make_examples(spacy.blank("en"))]
    for part in ("train", "dev", "test"):
        common.write_docs(docs, folder / f"{part}.spacy")
    return folder


def test_variants_override_only_existing_settings():
    for variant in read_variants(ablation.VARIANTS):
        config = spacy.util.load_config(variant.config)
        for key in variant.settings:
            section = config
            for part in key.split("."):
                assert part in section, (variant.name, key)
                section = section[part]


@pytest.mark.slow
@pytest.mark.parametrize("variant", read_variants(ablation.VARIANTS), ids=lambda each: each.name)
def test_variant_trains_all_but_what_is_frozen(variant, tiny_transformer):
    settings = {**variant.settings, "paths.transformer": tiny_transformer}
    config = common.changed(variant.config, settings).interpolate()
    nlp = spacy.util.load_model_from_config(config, auto_fill=True)
    examples = make_examples(nlp)
    optimizer = nlp.initialize(lambda: examples)
    optimizer.learn_rate = 1e-3

    def weights():
        layers = nlp.get_pipe("ner").model.walk()
        return {layer.name: layer.shims[0].to_bytes() for layer in layers if layer.shims}

    before = weights()
    nlp.update(examples[:4], sgd=optimizer)
    same = {name for name, of in weights().items() if of == before[name]}
    assert same == ({"transformer"} if "frozen" in variant.name else set())


@pytest.mark.slow
def test_each_run_is_made_once_and_measured(corpus, tmp_path, capsys, monkeypatch):
    """The second call repeats nothing; another budget is another run."""
    small = {"config": str(ROOT / "configs" / "cnn.cfg"), "components.ner.model.hidden_width": 8}
    softmax = {**small, "components.ner.model.decoder": "softmax"}
    variants, out = tmp_path / "variants.yml", tmp_path / "out"
    srsly.write_yaml(variants, {"CRF": small, "softmax": softmax})
    settings = {"variants": variants, "transformer": "none", "seeds": "0"}
    ablation.main(corpus, out, names=["CRF"], steps=2, **settings)
    made = []
    original = ablation.trained
    monkeypatch.setattr(ablation, "trained", lambda *args: (made.append(args), original(*args))[1])
    for _ in range(2):
        ablation.main(corpus, out, steps=2, **settings)
    assert [variant.name for _, variant, *_ in made] == ["softmax"]
    table = (out / "table.md").read_text()
    assert table in capsys.readouterr().out and (out / "chart.svg").exists()
    crf, softmax = common.Rows(out / "ablation.csv")
    assert crf["invalid"] is None and 0.0 <= softmax["invalid"] <= 1.0
    assert min(row[speed] for row in (crf, softmax) for speed in ("train_speed", "predict_speed"))
    broken = {"CRF": {**small, "components.ner.factory": "absent"}}
    srsly.write_yaml(variants, broken)
    with pytest.raises(InputError, match=r"(?s)CRF, seed 0: expected .*absent.*CRF\.log"):
        ablation.main(corpus, out, steps=2, **settings)


@pytest.mark.parametrize(
    "content, told",
    [
        ("a: [", "expected a YAML file"),
        ("- a\n- b\n", "expected variants by name"),
        ("a: {}\n", r"a: expected an existing config file under config, got None"),
        ("a:\n  config: absent.cfg\n", r"a: expected an existing config file .*, got 'absent.cfg'"),
        ("a:\n  config: ablation.yml\n", r"expected some of \['a'\], got \['HMM'\]"),
    ],
)
def test_unreadable_variants_are_refused(content, told, tmp_path):
    (tmp_path / "ablation.yml").write_text(content)
    with pytest.raises(InputError, match=rf"(?s)ablation.yml.*{told}|{told}"):
        read_variants(tmp_path / "ablation.yml", ["HMM"])


def test_missing_corpus_or_block_of_a_config_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"got no train.spacy. Convert"):
        ablation.main(tmp_path, tmp_path / "out")
    (tmp_path / "small.cfg").write_text("[nlp]\n")
    with pytest.raises(InputError, match=r"small\.cfg: expected a config with the block of paths"):
        common.changed(tmp_path / "small.cfg", {"paths.train": "a"})


@pytest.mark.parametrize("decoder", ["crf", "softmax"])
def test_measure_returns_scores_and_parameter_count(decoder, corpus, tmp_path):
    nlp = spacy.blank("en")
    model = {"hidden_width": 8, "tok2vec": TOK2VEC, "decoder": decoder, "dense_width": 3}
    nlp.add_pipe("crf_ner", name="ner", config={"model": model})
    nlp.config["paths"].update(train=str(corpus / "train.spacy"), dev=str(corpus / "dev.spacy"))
    examples = make_examples(nlp)
    train(nlp, examples, steps=5)
    nlp.to_disk(tmp_path)
    row = measure(tmp_path, corpus)
    scores = nlp.evaluate(examples)
    expected = [scores[f"ents_{name}"] for name in "prf"]
    assert [row[name] for name in "prf"] == pytest.approx(expected, abs=1e-6)
    # In both directions four gates, each with weights for input and state and two biases.
    C, width, hidden = 13, TOK2VEC["width"], 8
    lstm = 2 * 4 * (hidden * (width + hidden) + 2 * hidden)
    head = lstm + (2 * hidden + 1) * 3 + (3 + 1) * C
    head += C * C + 2 * C if decoder == "crf" else 0  # softmax has no transitions
    tok2vec = nlp.get_pipe("ner").model.get_ref("tok2vec")
    below = sum(
        node.get_param(name).size
        for node in tok2vec.walk()
        for name in node.param_names
        if node.has_param(name)
    )
    assert row["parameters"] == head + below
    assert (row["invalid"] is None) == (decoder == "crf")


def test_invalid_share_counts_invalid_tag_sequences(corpus, tmp_path):
    """With weights of zero but for one bias, the best tag of every token is that of the bias."""
    import torch

    nlp = spacy.blank("en")
    model = {"hidden_width": 8, "tok2vec": TOK2VEC, "decoder": "softmax"}
    ner = nlp.add_pipe("crf_ner", name="ner", config={"model": model})
    nlp.initialize(lambda: make_examples(nlp))
    network = ner.model.get_ref("output_layer").shims[0].module
    texts = ["one", "one two", "one two three", ""]
    for tag, expected in (("O", 0.0), ("U-GPE", 0.0), ("I-GPE", 1.0), ("B-GPE", 1.0)):
        with torch.no_grad():
            network.projection.weight.zero_()
            network.projection.bias.zero_()
            network.projection.bias[ner.scheme.tags.index(tag)] = 1.0
        assert invalid_share(nlp, texts) == expected
