"""On a GPU: training in mixed precision, and the same entities as on the CPU.

`make test-gpu` runs these on a GPU. tests/gpu runs them without one, in a stand-in.
"""

import json
import subprocess
import sys
from functools import partial
from itertools import cycle
from pathlib import Path

import numpy as np
import pytest
import spacy
import torch
from spacy.cli.train import train as spacy_train
from spacy.tokens import DocBin
from spacy.training import Example
from spacy.util import import_file, load_config
from thinc.api import Adam, NumpyOps, Relu, get_current_ops, set_current_ops
from thinc.compat import has_cupy_gpu, has_torch_cuda_gpu
from thinc.util import to_numpy
from typer.testing import CliRunner

import spacy_crf_ner
from pipelines import LISTENER, OWN_TRANSFORMER, SENTENCES, add_shared, ents, make_examples
from spacy_crf_ner import accelerate
from spacy_crf_ner.cli import app
from spacy_crf_ner.explain import explain
from spacy_crf_ner.ml.arrays import to_array
from spacy_crf_ner.ml.char_embed import char_word_embed
from spacy_crf_ner.ml.shim import module_of
from spacy_crf_ner.training.distributed.loop import train
from spacy_crf_ner.training.optimizer import GroupedAdam

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not (has_cupy_gpu and has_torch_cuda_gpu), reason="no GPU that torch and cupy can use"
    ),
]
ROOT = Path(__file__).parents[1]
TEXTS = [text for text, _ in SENTENCES]
HAS_BF16 = has_torch_cuda_gpu and torch.cuda.get_device_capability() >= (8, 0)
two_gpus = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")


@pytest.fixture
def gpu():
    """Work on the GPU, and give the CPU back."""
    ops = get_current_ops()
    spacy.require_gpu()
    yield
    set_current_ops(ops)


NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def pipeline(tiny_transformer, mixed_precision="auto", heads=()):
    """A transformer inside crf_ner, or one that these components share."""
    nlp = spacy.blank("en")
    settings = {"mixed_precision": mixed_precision, "transformer_config": NO_DROPOUT}
    tok2vec = {**OWN_TRANSFORMER, "name": tiny_transformer, **settings}
    if heads:
        add_shared(nlp, tiny_transformer, **settings)
        tok2vec = LISTENER
    model = {"hidden_width": 32, "tok2vec": tok2vec, "mixed_precision": mixed_precision}
    for name in heads or ("crf_ner",):
        nlp.add_pipe("crf_ner", name, config={"model": model})
    return nlp


def initialized(nlp):
    spacy.util.fix_random_seed(0)
    return nlp.initialize(partial(make_examples, nlp))


def step(nlp, optimizer, examples=None):
    """A step as in `spacy train`; returns the losses."""
    losses = nlp.update(examples or make_examples(nlp), sgd=False)
    for _, pipe in nlp.pipeline:
        pipe.finish_update(optimizer)
    optimizer.step_schedules()
    return losses


def shims(nlp):
    return [shim for _, pipe in nlp.pipeline for node in pipe.model.walk() for shim in node.shims]


def head(nlp, name="crf_ner"):
    return nlp.get_pipe(name).model.get_ref("output_layer").shims[0]


def weights(nlp):
    return {
        f"{i}.{name}": value.detach().cpu().clone()
        for i, shim in enumerate(shims(nlp))
        for name, value in module_of(shim).named_parameters()
    }


def gradients(nlp):
    """Without biases of keys: they shift all scores of a row alike, so that theirs are rounding."""
    return {
        f"{i}.{name}": value.grad.detach().to_dense().float().cpu().clone()
        for i, shim in enumerate(shims(nlp))
        for name, value in module_of(shim).named_parameters()
        if value.grad is not None and not name.endswith("key.bias")
    }


def assert_close(found, expected, tolerance):
    assert found.keys() == expected.keys() and found
    for name, value in expected.items():
        largest = float(value.abs().max())
        torch.testing.assert_close(
            found[name], value, rtol=tolerance, atol=tolerance * max(largest, 1e-6), msg=name
        )


def test_mixed_precision_training_predicts_same_entities_on_cpu(gpu, tiny_transformer, tmp_path):
    nlp = pipeline(tiny_transformer)
    optimizer = initialized(nlp)
    optimizer.learn_rate = 0.005
    losses = [step(nlp, optimizer)["crf_ner"] for _ in range(30)]
    assert np.isfinite(losses).all() and losses[-1] < losses[0] / 5
    assert next(head(nlp).module.parameters()).is_cuda
    nlp.to_disk(tmp_path)
    found = {"as trained": [ents(doc) for doc in nlp.pipe(TEXTS)]}
    for dtype in ("fp32", "bf16", "fp16"):
        if dtype != "bf16" or HAS_BF16:
            accelerate(nlp, dtype)
            found[dtype] = [ents(doc) for doc in nlp.pipe(TEXTS)]
    spacy.require_cpu()
    on_cpu = [ents(doc) for doc in spacy.load(tmp_path).pipe(TEXTS)]
    assert any(on_cpu)
    for dtype, of_texts in found.items():
        assert of_texts == on_cpu, dtype


@pytest.mark.parametrize("overflows", [0, 1])
def test_an_overflow_in_float16_skips_the_step_and_halves_the_scale(
    gpu, tiny_transformer, monkeypatch, overflows
):
    """Of the transformer, or of the layers above it, which are one graph; the next step learns."""
    train_in_float16(monkeypatch)
    nlp = pipeline(tiny_transformer, True)
    initialized(nlp)
    optimizer = GroupedAdam(0.01)
    step(nlp, optimizer)
    before, scale = weights(nlp), head(nlp).loss_scale.value
    updates = dict(optimizer.nr_update)
    shim = shims(nlp)[overflows]
    last = [weight for weight in shim.parameters.values() if weight.requires_grad][-1]
    handle = last.register_hook(lambda gradient: gradient * torch.inf)
    step(nlp, optimizer)
    handle.remove()
    after = weights(nlp)
    assert all(torch.equal(after[name], before[name]) for name in before)
    assert head(nlp).loss_scale.value == scale / 2
    assert dict(optimizer.nr_update) == updates and updates
    step(nlp, optimizer)
    learned = weights(nlp)
    for module_name in ("0.", "1."):
        own = [name for name in before if name.startswith(module_name)]
        assert any(not torch.equal(learned[name], before[name]) for name in own)
    assert all(value.isfinite().all() for value in learned.values())
    assert head(nlp).loss_scale.value == scale / 2


def train_in_float16(monkeypatch):
    """Let "auto" train in float16, as on a GPU that emulates bfloat16."""
    for name in ("shim", "dtype"):
        monkeypatch.setattr(f"spacy_crf_ner.ml.{name}.has_fast_bf16", lambda: False)


@pytest.mark.parametrize("mixed_precision", [False, True, "float16"])
def test_training_dtype_of_recurrent_encoder_is_float32_or_float16(
    gpu, tiny_transformer, monkeypatch, mixed_precision
):
    """float32, also where the layers around it train in bfloat16; float16 with scaled gradients."""
    if mixed_precision == "float16":
        train_in_float16(monkeypatch)
    nlp = pipeline(tiny_transformer, bool(mixed_precision))
    optimizer = initialized(nlp)
    found = []
    rnn = head(nlp).module.encoder.rnn
    rnn.register_forward_hook(lambda module, X, Y: found.extend([X[0].data.dtype, Y[0].data.dtype]))
    step(nlp, optimizer)
    in_float16 = mixed_precision == "float16" or (mixed_precision and not HAS_BF16)
    assert found == [torch.float32, torch.float16 if in_float16 else torch.float32]


def test_recurrent_layers_predict_in_float16(gpu, tiny_transformer):
    """Also where the transformer predicts in bfloat16, in which cuDNN has none."""
    nlp = pipeline(tiny_transformer)
    initialized(nlp)
    accelerate(nlp, "bf16" if HAS_BF16 else "fp16")
    list(nlp.pipe(TEXTS))
    rnn = head(nlp).inference_module().encoder.rnn
    assert {weight.dtype for weight in rnn.parameters()} == {torch.float16}


@pytest.mark.parametrize("mixed_precision", [True, *["bf16"] * HAS_BF16])
def test_mixed_precision_uses_bfloat16_if_supported(gpu, tiny_transformer, mixed_precision):
    """The first update moves all weights: no scaler discards it."""
    nlp = pipeline(tiny_transformer, mixed_precision)
    optimizer = initialized(nlp)
    kinds = set()
    layer = module_of(shims(nlp)[0]).transformer.encoder.layer[0].output.dense
    for module in (layer, head(nlp).module.projection):
        module.register_forward_hook(lambda module, inputs, output: kinds.add(output.dtype))
    before = weights(nlp)
    loss = nlp.update(make_examples(nlp), sgd=False)["crf_ner"]
    stored = [w for shim in shims(nlp) for w in shim.parameters.values()]
    stored += [w.grad for w in stored if w.grad is not None]
    assert {w.dtype for w in stored} == {torch.float32} and all(w.is_cuda for w in stored)
    for _, pipe in nlp.pipeline:
        pipe.finish_update(optimizer)
    assert kinds == {torch.bfloat16 if HAS_BF16 else torch.float16} and np.isfinite(loss)
    assert not any(torch.equal(value, before[name]) for name, value in weights(nlp).items())


def test_grouped_adam_updates_cpu_layer_while_gpu_is_in_use(gpu):
    """Some layers of spaCy stay on the CPU. Large and small arrays take different code paths."""
    for size in (8, 256):
        layer = Relu(size, size)
        layer.ops = NumpyOps()
        layer.initialize()
        before = layer.get_param("W").copy()
        layer.set_grad("W", np.ones((size, size), dtype="f"))
        layer.finish_update(GroupedAdam(0.1))
        assert isinstance(layer.get_param("W"), np.ndarray)
        assert (layer.get_param("W") != before).all() and not layer.get_grad("W").any()


def test_pipeline_created_on_cpu_predicts_and_trains_on_gpu(gpu):
    spacy.require_cpu()
    nlp = spacy.blank("en")
    nlp.add_pipe("crf_ner", config={"model": {"hidden_width": 16}})
    optimizer = initialized(nlp)
    expected = [ents(doc) for doc in nlp.pipe(TEXTS)]
    spacy.require_gpu()
    assert [ents(doc) for doc in nlp.pipe(TEXTS)] == expected
    before = weights(nlp)
    step(nlp, optimizer)
    assert any(not torch.equal(value, before[name]) for name, value in weights(nlp).items())


def run_optimizer(device, settings, steps=12):
    """Weights, moments and averages after some steps on made-up gradients."""
    groups = {"slow": {"names": "bias", "learn_rate": 0.5, "L2": 0.0, "grad_clip": 0.1}}
    if changes := isinstance(settings["L2"], list):
        settings = settings | {"L2": cycle(settings["L2"])}
    optimizer = GroupedAdam(0.01, groups=groups, **settings)
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.LayerNorm(4)).to(device)
    named = {(1, name): weight for name, weight in module.named_parameters()}
    generator = torch.Generator().manual_seed(1)
    for i in range(steps):
        learning = dict([*named.items()][0 if i else 1 :])  # one learns later
        for scale, weight in zip((3.0, 0.01, 1.0, 0.1), named.values()):
            weight.grad = (scale * torch.randn(weight.shape, generator=generator)).to(device)
        if device == "cuda":
            together = optimizer.update_together(learning)
            assert together == (not changes or not optimizer.L2)
        if device == "cpu" or not together:
            for key, weight in learning.items():
                optimizer(key, to_array(weight), to_array(weight.grad))
        optimizer.step_schedules()
    kept = optimizer.mom1, optimizer.mom2, optimizer.averages or {}
    results = [named, *kept]
    return [
        {f"{i}.{key}": torch.as_tensor(x).detach().cpu().reshape(-1) for key, x in each.items()}
        for i, each in enumerate(results)
    ]


@pytest.mark.parametrize(
    "settings",
    [
        {"L2": 0.1, "grad_clip": 1.0},
        {"L2": 0.0, "grad_clip": 0.0, "use_averages": False, "eps": 1e-3, "beta2": 0.9},
        {"L2": [0.1, 0.0], "L2_is_weight_decay": False},  # by thinc, together, by thinc, together
    ],
)
def test_grouped_adam_on_gpu_matches_cpu(gpu, settings):
    for found, expected in zip(run_optimizer("cuda", settings), run_optimizer("cpu", settings)):
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value, rtol=1e-6, atol=1e-6, msg=name)


def test_weights_stay_in_one_buffer_for_cudnn(gpu, tiny_transformer):
    """cuDNN warns when weights are not in one buffer, and warnings are errors here."""
    nlp = pipeline(tiny_transformer, False)
    optimizer = initialized(nlp)
    for update in (optimizer, Adam(0.001)):  # together, and one after the other
        step(nlp, update)
        rnn = head(nlp).module.encoder.rnn
        assert len({weight.untyped_storage().data_ptr() for weight in rnn.parameters()}) == 1
    nlp.resume_training()  # copies the model
    docs = [eg.predicted for eg in make_examples(nlp)]
    nlp.get_pipe("crf_ner").rehearse([Example(doc, doc) for doc in docs])
    for dtype in ("fp32", "fp16"):
        accelerate(nlp, dtype)
        list(nlp.pipe(TEXTS))


def test_char_lstm_keeps_weights_in_one_buffer_after_copy(gpu):
    """In a copied model, too: a warning is an error here."""
    nlp = spacy.blank("en")
    tok2vec = {"@architectures": "spacy-crf-ner.CharWordEmbed.v1", "chars": "lstm"}
    nlp.add_pipe("crf_ner", config={"model": {"hidden_width": 16, "tok2vec": tok2vec}})
    initialized(nlp)
    nlp.resume_training()
    assert nlp.get_pipe("crf_ner").rehearse(make_examples(nlp))


FULL = [sentence for sentence in SENTENCES if sentence[0].strip()]


def test_a_shared_transformer_gets_the_gradients_of_all_its_listeners(gpu, tiny_transformer):
    """Twice those of one listener, from two with the same weights."""
    found = []
    for heads in ("a", "ab"):
        nlp = pipeline(tiny_transformer, False, heads)
        initialized(nlp)
        for name in heads[1:]:
            nlp.get_pipe(name).model.from_bytes(nlp.get_pipe("a").model.to_bytes())
        nlp.update(make_examples(nlp), sgd=False)
        of_transformer = {k: v for k, v in gradients(nlp).items() if k.startswith("0.")}
        found.append({name: value * (3 - len(heads)) for name, value in of_transformer.items()})
    assert_close(found[1], found[0], 1e-5)


def without_dropout(section):
    """Let a config train in float32, with the same result each time."""
    for key, value in section.items():
        if key in ("dropout", "mixed_precision"):
            section[key] = 0.0 if key == "dropout" else False
        elif isinstance(value, dict):
            without_dropout(value)
    return section


def use_tiny(config, transformer_config=None):
    """Let a config read the tiny transformer, of another width than MiniLM."""
    models = [component.get("model", {}) for component in config["components"].values()]
    for model in [*models, *(each.get("tok2vec", {}) for each in models)]:
        for block in (model, *model.get("*", {}).values()):
            if block.get("@architectures") == OWN_TRANSFORMER["@architectures"]:
                block["transformer_config"] = transformer_config or {}
            if block.get("@architectures") == LISTENER["@architectures"]:
                block["width"] = LISTENER["width"]
    return config


def all_gradients(nlp):
    """Of the weights in torch modules and in thinc's layers."""
    nodes = [node for _, pipe in nlp.pipeline for node in pipe.model.walk()]
    found = gradients(nlp)
    for i, node in enumerate(nodes):
        for name in node.grad_names:
            found[f"layer {i} {name}"] = torch.from_numpy(to_numpy(node.get_grad(name)).copy())
    return found


CONFIGS = {path.stem for path in (ROOT / "configs").glob("*.cfg")}
CONFIGS = sorted(CONFIGS - {"spacy_transformers"})  # which needs a package that others do not
CRF_CONFIGS = ["cnn", "char", "transformer"]


@pytest.mark.parametrize(
    "name, chars, size",
    [
        *((name, "cnn", 7) for name in CONFIGS),
        ("char", "lstm", 7),
        *((name, "cnn", 1) for name in CRF_CONFIGS),  # the losses of others are means
    ],
)
def test_gradients_of_shipped_configs_match_cpu(
    gpu, name, chars, size, tiny_transformer, monkeypatch
):
    """Also where each doc is a batch, one without tokens and one with whitespace only."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    config = load_config(ROOT / "configs" / f"{name}.cfg")
    config["paths"]["transformer"] = tiny_transformer
    components = without_dropout(config["components"])
    use_tiny(config, NO_DROPOUT)
    if name == "char":
        components["ner"]["model"]["tok2vec"]["*"]["words"]["chars"] = chars
    weights, found = None, []
    for device in (spacy.require_cpu, spacy.require_gpu):
        device()
        nlp = spacy.util.load_model_from_config(config, auto_fill=True)
        examples = make_examples(nlp)
        for eg in examples:
            eg.reference.cats = {"short": float(len(eg.x) < 6), "long": float(len(eg.x) >= 6)}
        spacy.util.fix_random_seed(0)
        if weights is None:
            nlp.initialize(partial(list, examples))
            weights = nlp.to_bytes()
        nlp.from_bytes(weights)
        spacy.util.fix_random_seed(0)  # spaCy's ner draws the docs that it cuts
        losses, docs = {}, len(examples) if device is spacy.require_cpu else size
        for i in range(0, len(examples), docs):
            nlp.update(examples[i : i + docs], sgd=False, drop=0.0, losses=losses)
        losses.pop("tok2vec", None)  # the squares of its gradients
        found.append((all_gradients(nlp), losses))
    (expected, losses), (of_gpu, losses_of_gpu) = found
    assert_close(of_gpu, expected, 1e-4)
    assert losses_of_gpu == pytest.approx(losses, rel=1e-4)


def test_all_query_methods_run_on_gpu(gpu, tmp_path):
    """Also for docs without a token."""
    nlp = spacy.blank("en")
    nlp.add_pipe("crf_ner", config={"model": {"hidden_width": 16}})
    initialized(nlp)
    pipe = nlp.get_pipe("crf_ner")
    docs = [nlp.make_doc(text) for text in TEXTS]
    assert [len(of_doc) for of_doc in pipe.nbest(docs, 2)] == [2, 1, 2, 1, 2, 2, 2]
    transitions = pipe.transitions().scores
    assert len(pipe.span_posteriors(docs[0], [docs[0].char_span(0, 8, "PERSON")])) == 1
    assert [len(pipe.trellis(doc).path) for doc in docs[:2]] == [len(doc) for doc in docs[:2]]
    assert explain(nlp, TEXTS[0]) and explain(nlp, "")
    assert pipe.fit_temperature(make_examples(nlp)) > 0
    assert pipe.add_label("NEW") and len(pipe.transitions().scores) == len(transitions) + 4
    nlp.to_disk(tmp_path)
    assert [ents(doc) for doc in spacy.load(tmp_path).pipe(TEXTS)] == [
        ents(doc) for doc in nlp.pipe(TEXTS)
    ]


def save_corpus(folder):
    nlp = spacy.blank("en")
    for name in ("train", "dev"):
        gold = [eg.reference for eg in make_examples(nlp, FULL * 2)]
        for doc in gold:
            doc.cats = {"short": float(len(doc) < 6), "long": float(len(doc) >= 6)}
        DocBin(docs=gold).to_disk(folder / f"{name}.spacy")
    limits = {"training.max_steps": 3, "training.eval_frequency": 2, "training.batcher.size": 40}
    return {f"paths.{name}": str(folder / f"{name}.spacy") for name in ("train", "dev")} | limits


@pytest.mark.parametrize("name", CONFIGS)
def test_spacy_train_trains_each_shipped_config(gpu, name, tiny_transformer, tmp_path):
    overrides = save_corpus(tmp_path) | {"paths.transformer": tiny_transformer}
    use_tiny(load_config(ROOT / "configs" / f"{name}.cfg")).to_disk(tmp_path / "config.cfg")
    spacy_train(tmp_path / "config.cfg", tmp_path, use_gpu=0, overrides=overrides)
    on_gpu = [(ents(doc), doc.cats) for doc in spacy.load(tmp_path / "model-last").pipe(TEXTS)]
    spacy.require_cpu()
    nlp = spacy.load(tmp_path / "model-last")
    for doc, (entities, cats) in zip(nlp.pipe(TEXTS), on_gpu):
        assert ents(doc) == entities and doc.cats == pytest.approx(cats, abs=0.01)


@pytest.mark.parametrize("folds", [0, 2])
def test_train_takes_the_gpu(gpu, folds):
    """Also for the calibration at the end, and to train without folds."""
    said = []
    dev = [(f"So {text}", [(s + 3, e + 3, label) for s, e, label in spans]) for text, spans in FULL]
    settings = {"config": "cnn", "overrides": {"components.ner.model.hidden_width": 16}}
    nlp = spacy_crf_ner.train(FULL, dev, **settings, steps=2, folds=folds, on_message=said.append)
    assert said[0] == f"Device: GPU 0, {torch.cuda.get_device_name(0)}"
    assert next(head(nlp, "ner").module.parameters()).is_cuda
    assert nlp.get_pipe("ner").calibrated_on > 0


RECORD = """
import os, torch
from pathlib import Path
from spacy.util import registry
from spacy_crf_ner.training.distributed.sync import get_weights

@registry.callbacks("test.record.v1")
def record(folder: str):
    def before_update(nlp, info):
        weights = {name: weight.cpu() for name, weight in get_weights(nlp).items()}
        torch.save(weights, Path(folder) / f"{os.environ.get('RANK', 'one')}-{info['step']}.pt")
    return before_update
"""


@two_gpus
def test_distributed_processes_keep_equal_weights(gpu, tiny_transformer, tmp_path):
    """Two ranks match one process with twice the batch, also when it is resumed."""
    (tmp_path / "record.py").write_text(RECORD, encoding="utf-8")
    config = load_config(ROOT / "configs" / "transformer.cfg", overrides=save_corpus(tmp_path))
    config["paths"]["transformer"] = tiny_transformer
    without_dropout(use_tiny(config, NO_DROPOUT)["components"])["ner"]["model"]["hidden_width"] = 16
    T = config["training"]
    T["before_update"] = {"@callbacks": "test.record.v1", "folder": str(tmp_path)}
    # A large eps: Adam would amplify gradients that are 0 but for rounding.
    T["dropout"], T["optimizer"]["learn_rate"], T["optimizer"]["eps"] = 0.0, 0.001, 1e-3
    T["batcher"] = {"@batchers": "spacy.batch_by_sequence.v1", "size": 5}
    T["batcher"] |= {"get_length": None}

    config.to_disk(tmp_path / "config.cfg")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += ["-m", "spacy_crf_ner", "train", "-", str(tmp_path / "two")]
    command += ["--config", str(tmp_path / "config.cfg"), "--code", str(tmp_path / "record.py")]
    subprocess.run(command, check=True, timeout=300)
    import_file("record", tmp_path / "record.py")
    T["batcher"]["size"] *= 2
    for T["max_steps"], resume in ((1, False), (3, True)):
        train(config, tmp_path / "one", gpu_id=0, resume=resume)
    for i in (0, 1, 3):  # before step 2, it has not resumed yet
        ranks = [torch.load(tmp_path / f"{rank}-{i}.pt") for rank in ("0", "1", "one")]
        assert_close(ranks[0], ranks[1], 0.0)
        assert_close(ranks[0], ranks[2], 1e-5)


@two_gpus
def test_annotate_processes_on_two_gpus_match_pipe(tmp_path):
    nlp = spacy.blank("en")
    nlp.add_pipe("crf_ner", config={"model": {"hidden_width": 16}})
    initialized(nlp)
    nlp.to_disk(tmp_path / "model")
    (tmp_path / "texts.txt").write_text("\n".join(text for text, _ in FULL * 3), encoding="utf-8")
    model, texts, out = (str(tmp_path / name) for name in ("model", "texts.txt", "out"))
    options = ["--gpu-id", "0,1", "--workers", "2", "--shard-size", "5"]
    options += ["--dtype", "fp16"]  # an error on a CPU
    result = CliRunner().invoke(app, ["predict", model, texts, "--output", out, *options])
    assert result.exit_code == 0, result.output
    shards = sorted((tmp_path / "out").glob("part-*.jsonl"))
    lines = [line for shard in shards for line in shard.read_text("utf-8").splitlines()]
    records = [json.loads(line) for line in lines]
    assert len(shards) == 3
    for record, doc in zip(records, nlp.pipe(record["text"] for record in records), strict=True):
        expected = [(start, end, label) for start, end, label in ents(doc)]
        assert [(e["start"], e["end"], e["label"]) for e in record["entities"]] == expected


def test_info_command_prints_gpu_and_auto_choice(gpu):
    result = CliRunner().invoke(app, ["info"])
    assert result.exit_code == 0 and torch.cuda.get_device_name() in result.output
    assert f"auto      {'bf16' if HAS_BF16 else 'fp16'}" in result.output
    assert "none can be used" not in result.output


@pytest.mark.parametrize("chars", ["cnn", "lstm"])
def test_char_word_embed_of_empty_docs_uses_no_float64(gpu, chars):
    """MPS has none. A `tok2vec` component learns from batches of empty docs, too."""
    nlp = spacy.blank("en")
    model = char_word_embed(chars)
    model.initialize(X=[nlp.make_doc("a b")])
    vectors, backprop = model.begin_update([nlp.make_doc("")] * 2)
    assert [each.shape for each in vectors] == [(0, model.get_dim("nO"))] * 2
    backprop(vectors)
