"""The ablation: one budget, no run twice, and no results of other inputs."""

import re
import shutil
import statistics
import traceback
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from types import SimpleNamespace

import pytest
import spacy
import srsly
from huggingface_hub.errors import LocalEntryNotFoundError
from spacy.cli import app as spacy_app
from spacy.tokens import DocBin
from typer.testing import CliRunner

import ablation
from ablation_measure import invalid_share, measure
from pipelines import TOK2VEC, make_examples, train
from spacy_crf_ner.evaluation.calibration import calibrate
from spacy_crf_ner.input_error import InputError

ROOT = Path(__file__).parents[2]
CONFIGS, VARIANTS = ROOT / "configs", ROOT / "benchmarks" / "ablation.yml"
ROW = {
    "p": 0.5,
    "r": 0.25,
    "f": 0.4,
    "per_type": {"GPE": {"p": 1.0, "r": 0.5, "f": 0.667}},
    "invalid": None,
    "train_speed": 1000.0,
    "predict_speed": 20000.0,
    "parameters": 1_234_567,
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    docs = [eg.reference for eg in make_examples(spacy.blank("en"))]
    for part in ("train", "dev", "test"):
        DocBin(docs=docs).to_disk(folder / f"{part}.spacy")
    return folder


@pytest.fixture
def variants(tmp_path):
    """Two small variants of one config."""
    folder = tmp_path / "configs"
    folder.mkdir()
    (folder / "cnn.cfg").write_text((CONFIGS / "cnn.cfg").read_text())
    # srsly reads 0.3 from JSON as 0.30000000000000004
    small = {"config": "cnn.cfg", "components.ner.model.hidden_width": 8, "training.dropout": 0.3}
    content = {
        "CRF": {**small, "components.ner.model.tok2vec.depth": 1},
        "softmax": {**small, "components.ner.model.decoder": "softmax"},
    }
    srsly.write_yaml(folder / "variants.yml", content)
    return folder / "variants.yml"


def planned(variants, corpus, **changes):
    settings = {"transformer": "none", "steps": 2, "seeds": [0, 1], **changes}
    return ablation.plan(variants, corpus, **settings)


# Runs


def test_variants_override_only_existing_config_settings():
    """Each variant names settings that its config has."""
    for name, settings in srsly.read_yaml(VARIANTS).items():
        config = spacy.util.load_config(VARIANTS.parent / settings["config"])
        for key in settings.keys() - {"config"}:
            section = config
            for part in key.split("."):
                assert part in section, (name, key)
                section = section[part]


def test_all_variants_have_one_budget(variants, corpus):
    runs = planned(variants, corpus)
    assert [(run.variant, run.seed) for run in runs] == [
        ("CRF", 0),
        ("softmax", 0),
        ("CRF", 1),
        ("softmax", 1),
    ]
    assert {run.overrides["training.max_steps"] for run in runs} == {2}
    assert runs[0].config == variants.parent / "cnn.cfg"
    assert runs[1].overrides["components.ner.model.decoder"] == "softmax"
    assert [run.variant for run in planned(variants, corpus, names=["CRF"])] == ["CRF", "CRF"]


@pytest.mark.slow
def test_results_trains_each_run_once(variants, corpus, tmp_path, monkeypatch):
    out = tmp_path / "out"
    runs = planned(variants, corpus, seeds=[0])
    first = next(iter(ablation.results(runs, out)))  # and stopped there
    assert len(list(srsly.read_jsonl(out / "runs.jsonl"))) == 1
    trained = []
    original = ablation._train
    monkeypatch.setattr(
        ablation, "_train", lambda *args: (trained.append(args[0]), original(*args))
    )
    rows = list(ablation.results(runs, out))
    assert [run.variant for run in trained] == ["softmax"]
    assert rows[0] == next(srsly.read_jsonl(out / "runs.jsonl"))
    assert rows[0]["train_speed"] == pytest.approx(first["train_speed"])
    assert not (out / "training").exists()
    # With another budget, it is another run.
    list(ablation.results(planned(variants, corpus, seeds=[0], steps=1, names=["CRF"]), out))
    assert [run.overrides["training.max_steps"] for run in trained] == [2, 1]
    crf, softmax = rows
    assert crf["invalid"] is None and 0.0 <= softmax["invalid"] <= 1.0
    assert min(row[speed] for row in rows for speed in ("train_speed", "predict_speed")) > 0


class Trained(Exception):
    """A run was trained in place of reusing its row."""


@pytest.fixture
def transformer(tmp_path):
    folder = tmp_path / "transformer"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


def elsewhere(name, value):
    """Replace a name that `ablation` looks up."""
    return lambda files: files["monkeypatch"].setattr(ablation, name, value)


CHANGES = {
    "config": lambda files: files["config"].write_text(files["config"].read_text() + "# changed"),
    "train": lambda files: files["train"].write_bytes(files["dev"].read_bytes() + b" "),
    "dev": lambda files: files["dev"].write_bytes(b"other"),
    "test": lambda files: files["test"].write_bytes(b"other"),
    "transformer": lambda files: files["weights"].write_bytes(b"WEIGHTS"),
    "transformer file": lambda files: files["weights"].with_name("vocab.txt").write_text("a"),
    "package": lambda files: (files["package"] / "module.py").write_text("x = 2"),
    "library": elsewhere("version", lambda name: "999.0"),
    "machine": elsewhere("platform", SimpleNamespace(machine=lambda: "another")),
}


@pytest.mark.parametrize("changed", CHANGES)
def test_results_with_changed_input_trains_again(
    changed, variants, corpus, transformer, tmp_path, monkeypatch
):
    own = tmp_path / "corpus"
    shutil.copytree(corpus, own)
    files = {part: own / f"{part}.spacy" for part in ("train", "dev", "test")}
    files |= {"config": variants.with_name("cnn.cfg"), "weights": transformer / "model.safetensors"}
    files |= {"package": tmp_path / "package", "monkeypatch": monkeypatch}
    files["package"].mkdir()
    (files["package"] / "module.py").write_text("x = 1")
    monkeypatch.setattr(ablation, "PACKAGE", files["package"])

    def results():
        runs = planned(variants, own, transformer=str(transformer), seeds=[0])
        return runs, ablation.results(runs, tmp_path)

    def train(*args):
        raise Trained

    monkeypatch.setattr(ablation, "_train", train)
    runs, rows = results()
    srsly.write_jsonl(tmp_path / "runs.jsonl", [{**run.key, **ROW} for run in runs])
    assert [row["f"] for row in rows] == [ROW["f"]] * 2
    CHANGES[changed](files)
    with pytest.raises(Trained):
        next(results()[1])


def test_plan_inputs_include_gpu_and_transformer_revision(variants, corpus, tmp_path, monkeypatch):
    def inputs():
        return planned(variants, corpus, transformer="org/model", gpu_id=0)[0].key["inputs"]

    def revision(name):
        return lambda *args: str(tmp_path / "snapshots" / name / "config.json")

    monkeypatch.setattr(ablation.torch.cuda, "get_device_name", lambda i: "GPU A")
    monkeypatch.setattr(ablation, "hf_hub_download", revision("one"))
    first = inputs()
    assert first == inputs()
    monkeypatch.setattr(ablation.torch.cuda, "get_device_name", lambda i: "GPU B")
    assert {name for name, value in inputs().items() if value != first[name]} == {"device"}
    monkeypatch.setattr(ablation.torch.cuda, "get_device_name", lambda i: "GPU A")
    monkeypatch.setattr(ablation, "hf_hub_download", revision("two"))
    assert {name for name, value in inputs().items() if value != first[name]} == {"transformer"}

    def absent(*args):
        raise LocalEntryNotFoundError("not in the cache")

    monkeypatch.setattr(ablation, "hf_hub_download", absent)
    assert inputs()["transformer"] == "org/model"


def run_here(command, stdout, stderr):
    """Run `python -m spacy`, with these arguments, in this process."""
    assert command[1:3] == ["-m", "spacy"]
    with redirect_stdout(stdout), redirect_stderr(stderr):
        try:
            spacy_app(command[3:])
        except SystemExit as ended:
            return SimpleNamespace(returncode=ended.code)
        except Exception:
            traceback.print_exc()
            return SimpleNamespace(returncode=1)


def test_results_failed_training_raises_with_log_path(variants, corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(ablation, "subprocess", SimpleNamespace(run=run_here))
    file = variants.parent / "cnn.cfg"
    file.write_text(file.read_text().replace('factory = "crf_ner"', 'factory = "absent"'))
    with pytest.raises(ChildProcessError, match=r"CRF, seed 0: .*got 1\. .*CRF, seed 0\.log"):
        list(ablation.results(planned(variants, corpus), tmp_path / "out"))
    assert "absent" in (tmp_path / "out" / "CRF, seed 0.log").read_text()


def test_results_config_without_paths_block_raises(variants, corpus, tmp_path):
    variants.parent.joinpath("cnn.cfg").write_text("[nlp]\n")
    with pytest.raises(InputError, match=r"cnn\.cfg: expected a config with the block of paths"):
        list(ablation.results(planned(variants, corpus), tmp_path / "out"))


@pytest.mark.parametrize(
    "content, told",
    [
        ("a: [", "expected a YAML file"),
        ("- a\n- b\n", "expected variants by name"),
        ("a: {}\n", r"a: expected an existing config file under config, got None"),
        ("a:\n  config: absent.cfg\n", r"a: expected an existing config file .*, got 'absent.cfg'"),
    ],
)
def test_plan_unreadable_variants_file_raises(content, told, corpus, tmp_path):
    (tmp_path / "variants.yml").write_text(content)
    with pytest.raises(ValueError, match=rf"(?s)variants.yml.*{told}"):
        planned(tmp_path / "variants.yml", corpus)


def test_plan_missing_corpus_or_unknown_variant_raises(variants, corpus, tmp_path):
    with pytest.raises(ValueError, match=r"got no train.spacy. Convert"):
        planned(variants, tmp_path)
    with pytest.raises(ValueError, match=r"expected some of \['CRF', 'softmax'\], got \['HMM'\]"):
        planned(variants, corpus, names=["HMM"])


# Figures


@pytest.mark.parametrize("decoder", ["crf", "softmax"])
def test_measure_returns_scores_and_parameter_count(decoder, corpus, tmp_path):
    nlp = spacy.blank("en")
    model = {"hidden_width": 8, "tok2vec": TOK2VEC, "decoder": decoder, "dense_width": 3}
    nlp.add_pipe("crf_ner", name="ner", config={"model": model})
    nlp.config["paths"].update(train=str(corpus / "train.spacy"), dev=str(corpus / "dev.spacy"))
    examples = make_examples(nlp)
    train(nlp, examples, steps=5)
    nlp.to_disk(tmp_path)
    row = measure(tmp_path, corpus / "test.spacy")
    scores = nlp.evaluate(examples)
    assert (row["p"], row["r"], row["f"]) == tuple(scores[f"ents_{name}"] for name in "prf")
    assert row["per_type"] == scores["ents_per_type"]
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


@pytest.mark.slow
def test_the_threshold_of_the_f_score_is_fitted_on_dev(corpus, tmp_path):
    nlp = spacy.blank("en")
    model = {"hidden_width": 8, "tok2vec": TOK2VEC}
    config = {"model": model, "decode": "max_expected_f", "f_score_threshold": 0.4}
    nlp.add_pipe("crf_ner", name="ner", config=config)
    nlp.config["paths"].update(train=str(corpus / "train.spacy"), dev=str(corpus / "dev.spacy"))
    train(nlp, make_examples(nlp), steps=10)
    nlp.to_disk(tmp_path)
    before = nlp.evaluate(make_examples(nlp))["ents_f"]
    row = measure(tmp_path, corpus / "test.spacy")  # the same docs as in dev
    fitted = calibrate(nlp, make_examples(nlp), f_beta=1.0)
    assert row["f"] == pytest.approx(fitted["after"]["f_beta"]) != before


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


def test_table_has_means_and_standard_deviations():
    rows = [
        {**ROW, "variant": "a", "f": 0.4},
        {**ROW, "variant": "b", "invalid": 0.125, "per_type": {"ORG": {"f": 0.3}}},
        {**ROW, "variant": "a", "f": 0.5, "train_speed": 3000.0},
    ]
    first, second = ablation.table(rows).split("\n\n")
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in first.splitlines()]
    spread = f"45.0 ± {statistics.stdev([40, 50]):.1f}"
    assert cells[2] == [
        "a",
        spread,
        "50.0 ± 0.0",
        "25.0 ± 0.0",
        "-",
        "1.2 M",
        "2,000",
        "20,000",
        "2",
    ]
    assert cells[3] == ["b", "40.0", "50.0", "25.0", "12.5 %", "1.2 M", "1,000", "20,000", "1"]
    assert len({len(line) for line in cells}) == 1
    assert second.splitlines()[0] == "| F1 | GPE | ORG |"
    assert second.splitlines()[2:] == ["| a | 66.7 ± 0.0 | 0.0 ± 0.0 |", "| b | 0.0 | 30.0 |"]


def test_the_chart_names_all_variants(tmp_path):
    rows = [{**ROW, "variant": name, "f": f} for name, f in (("a < b & c", 0.4), ("it", 0.5))]
    ablation.chart(rows, tmp_path / "charts" / "chart.svg")
    drawn = (tmp_path / "charts" / "chart.svg").read_text()
    assert re.search(r"<!-- a &lt; b &amp; c -->|<!-- a < b & c -->", drawn) and "it" in drawn
    ablation.chart(rows, tmp_path / "chart.png")
    assert (tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG")


# The command


@pytest.mark.slow
def test_the_command_writes_table_and_chart(variants, corpus, tmp_path):
    out = tmp_path / "out"
    command = [str(corpus), str(out), "--variants", str(variants), "--transformer", "none"]
    result = CliRunner().invoke(ablation.app, [*command, "--smoke-test", "--variant", "CRF"])
    assert result.exit_code == 0, result.output
    table = (out / "table.md").read_text()
    assert table in result.output and "| CRF |" in table
    assert (out / "chart.svg").exists()
    (row,) = srsly.read_jsonl(out / "runs.jsonl")
    assert row["overrides"]["training.max_steps"] == 10


@pytest.mark.parametrize(
    "options, told",
    [
        (["--seeds", "a"], "--seeds: expected numbers such as 0,1,2, got 'a'"),
        (["--variant", "HMM"], r"--variant: expected some of"),
    ],
)
def test_ablation_command_bad_option_prints_error(options, told, variants, corpus, tmp_path):
    command = [str(corpus), str(tmp_path / "out"), "--variants", str(variants), *options]
    result = CliRunner().invoke(ablation.app, command)
    assert result.exit_code == 1
    assert re.search(rf"Error: .*{told}", result.output)
