"""An accelerated pipeline finds the same entities, also after storage, and trains the same way."""

import os
import re
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import spacy
import srsly
import torch
from spacy.language import Language
from spacy.training import Example
from spacy.util import minibatch
from typer.testing import CliRunner

from pipelines import LISTENER, OWN_TRANSFORMER, SENTENCES, TOK2VEC, copied, make_examples, train
from spacy_crf_ner import accelerate, cli, data
from spacy_crf_ner.cli import options
from spacy_crf_ner.ml import dtype, onnx_export, shim

ROOT = Path(__file__).parents[2]
SAMPLE = ROOT / "assets" / "sample_en"
MINILM = ROOT / "assets" / "minilm"
CPU = torch.device("cpu")

Found = list[list[tuple[int, int, str]]]


WINDOWS = {"@misc": "spacy-crf-ner.strided_spans.v1", "window": 128, "stride": 96}
KINDS = ("own", "shared")


def pipeline(transformer: str, kind: str = "own", width: int = 16) -> Language:
    """A pipeline whose crf_ner has a transformer, or listens to a component that has it."""
    nlp = spacy.blank("en")
    model = {**OWN_TRANSFORMER, "name": transformer, "get_spans": WINDOWS}
    if kind == "shared":
        nlp.add_pipe("tok2vec", config={"model": model})
        model = {**LISTENER, "width": width}
    nlp.add_pipe("crf_ner", config={"model": {"hidden_width": 32, "tok2vec": model}})
    return nlp


def examples_of(nlp: Language, part: str) -> list[Example]:
    """The first sentences of a part: few train quickly."""
    gold = islice(data.read_inline(SAMPLE / f"{part}.txt", nlp), 306 if part == "train" else 68)
    return [Example(nlp.make_doc(doc.text), doc) for doc in gold]


def found(nlp: Language, texts: list[str], **settings: Any) -> tuple[Found, np.ndarray]:
    """The entities of each text, and the confidences of all."""
    docs = list(nlp.pipe(texts, **settings))
    assert [doc.text for doc in docs] == texts
    ents = [[(e.start, e.end, e.label_) for e in doc.ents] for doc in docs]
    return ents, np.array([e._.confidence for doc in docs for e in doc.ents])


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pipeline over a real transformer, whose head has learned the sample corpus."""
    if not MINILM.exists():
        pytest.skip(f"no transformer in {MINILM}: make test puts it there")
    nlp = pipeline(str(MINILM), "shared", 384)
    examples = examples_of(nlp, "train")
    spacy.util.fix_random_seed(0)
    optimizer = nlp.initialize(lambda: examples)
    for eg in examples:  # the transformer is frozen, so it runs only once
        eg.predicted = nlp.get_pipe("tok2vec")(eg.predicted)
    optimizer.learn_rate = 5e-3
    for _ in range(20):
        for batch in minibatch(examples, 32):
            nlp.update(batch, sgd=optimizer, exclude=["tok2vec"])
    folder = tmp_path_factory.mktemp("saved")
    nlp.to_disk(folder)
    return folder


@pytest.fixture(scope="module")
def texts() -> list[str]:
    """Sentences of the sample corpus, some joined, and odd ones between them."""
    lines = [eg.x.text for part in ("dev", "test") for eg in examples_of(spacy.blank("en"), part)]
    return [*lines, "", " \n", " ".join(lines[:40]), "x" * 400, *lines[:10]]


@pytest.fixture(scope="module")
def plain(saved: Path, texts: list[str]) -> tuple[Found, np.ndarray]:
    ents, confidences = found(spacy.load(saved), texts)
    assert sum(map(len, ents)) > 200 and np.median(confidences) > 0.8  # it has learned something
    return ents, confidences


Ready = Callable[..., Language]


@pytest.fixture(scope="module")
def ready(tiny_transformer: str, shared: Callable[..., Path]) -> Ready:
    """Loads a pipeline that has begun to learn."""

    def load(kind: str = "own") -> Language:
        def make() -> Language:
            nlp = pipeline(tiny_transformer, kind)
            train(nlp, make_examples(nlp), 20 if kind == "own" else 2, learn_rate=0.01)
            return nlp

        return spacy.load(shared(f"accelerate-{kind}", make))

    return load


@pytest.mark.parametrize("chars", ["cnn", "lstm"])
def test_bf16_char_word_embed_is_close_to_float32(chars: str, tiny_transformer: str) -> None:
    words = {"@architectures": "spacy-crf-ner.CharWordEmbed.v1", "chars": chars}
    parts = {"transformer": {**OWN_TRANSFORMER, "name": tiny_transformer}, "words": words}
    tok2vec = {"@architectures": "spacy-crf-ner.ConcatenateVectors.v1", "*": parts}
    nlp = spacy.blank("en")
    nlp.add_pipe("crf_ner", config={"model": {"hidden_width": 8, "tok2vec": tok2vec}})
    nlp.initialize(lambda: make_examples(nlp))
    docs = [nlp.make_doc(text) for text in ("Tim Cook visited Hanoi.", "", "apple pie")]
    layer = nlp.get_pipe("crf_ner").model.get_ref("tok2vec")
    before = layer.predict(docs)
    accelerate(nlp, "bf16")
    for row, expected in zip(layer.predict(docs), before, strict=True):
        assert row.dtype == np.float32
        np.testing.assert_allclose(row, expected, atol=0.05)
    assert any((a != b).any() for a, b in zip(layer.predict(docs), before))


@pytest.mark.parametrize("batch_size", [1, 7, 1000])
@pytest.mark.slow
def test_accelerate_fp32_finds_same_entities_for_any_batch_size(
    saved: Path, texts: list[str], plain: tuple[Found, np.ndarray], batch_size: int
) -> None:
    ents, confidences = found(accelerate(spacy.load(saved), "fp32"), texts, batch_size=batch_size)
    assert ents == plain[0]
    np.testing.assert_allclose(confidences, plain[1], atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "which, sure, shared", [("bf16", 0.7, 0.95), ("int8", 0.9, 0.9), ("auto", 0.9, 0.9)]
)
def test_accelerate_with_lower_dtype_finds_same_entities(
    saved: Path,
    texts: list[str],
    plain: tuple[Found, np.ndarray],
    which: str,
    sure: float,
    shared: float,
) -> None:
    """Confident entities must agree; of two about equally probable labelings, either may be found.

    int8 has weights of 7 or 8 bits, by the instructions of the CPU. Either finds about as many of
    the gold entities as float32.
    """
    nlp = accelerate(spacy.load(saved), which)
    gold = [eg for part in ("dev", "test") for eg in examples_of(nlp, part)]
    scores = [
        each.evaluate([Example(each.make_doc(eg.text), eg.reference) for eg in gold])["ents_f"]
        for each in (nlp, spacy.load(saved))
    ]
    assert scores[0] > scores[1] - 0.02
    ents, confidences = found(nlp, texts)
    mine, theirs = (
        dict(zip([(i, *ent) for i, of_text in enumerate(each[0]) for ent in of_text], each[1]))
        for each in ((ents, confidences), plain)
    )
    for one, other in ((mine, theirs), (theirs, mine)):
        assert {ent for ent, p in one.items() if p >= sure} <= set(other)
        likely = {ent for ent, p in one.items() if p >= 0.5}
        assert len(likely & set(other)) > shared * len(likely)
    same = mine.keys() & theirs.keys()
    changes = [abs(mine[ent] - theirs[ent]) for ent in same]
    assert np.median(changes) < 0.02
    if resolved_dtype(nlp) != "fp32":
        assert max(changes) > 1e-5  # it is another dtype indeed


def resolve(monkeypatch: pytest.MonkeyPatch, *has: str, onnx: bool = True, **seconds: float) -> str:
    """What "auto" is on a CPU with such instructions, if linear layers take so long."""
    monkeypatch.setattr(
        torch.cpu, "get_capabilities", lambda: dict.fromkeys(has, True), raising=False
    )
    monkeypatch.setattr(dtype, "has_onnx", lambda: onnx)
    asked = []

    def measure(nI: int, nO: int, dtypes: tuple[str, ...], threads: int) -> dict[str, float]:
        asked.append((nI, nO, threads))
        return {each: seconds[each] for each in dtypes}

    monkeypatch.setattr(dtype, "measure_linear", measure)
    chosen = dtype.fastest_dtype(CPU, (384, 1536))
    assert asked in ([], [(384, 1536, torch.get_num_threads())])
    return chosen


BF16, INT8 = "avx512_bf16", "avx512_vnni"


@pytest.mark.parametrize(
    "seconds, chosen",
    [
        ({"fp32": 1.0, "bf16": 0.6, "int8": 0.6}, "bf16"),  # of two as fast, the more exact one
        ({"fp32": 1.0, "bf16": 0.95, "int8": 0.93}, "fp32"),  # a gain too small for its errors
        ({"fp32": 1.0, "bf16": 1.7, "int8": 0.5}, "int8"),  # instructions that are there, but slow
        ({"fp32": 1.0, "bf16": 0.8, "int8": 0.3}, "int8"),
        ({"fp32": 1.0, "bf16": 2.0, "int8": 3.0}, "fp32"),
    ],
)
def test_auto_chooses_fastest_measured_dtype(
    monkeypatch: pytest.MonkeyPatch, seconds: dict[str, float], chosen: str
) -> None:
    assert resolve(monkeypatch, BF16, INT8, **seconds) == chosen


def test_auto_measures_only_supported_dtypes(monkeypatch: pytest.MonkeyPatch) -> None:
    """bfloat16 where there are instructions for it, int8 where there are its packages."""
    fast: dict[str, float] = {"fp32": 1.0, "bf16": 0.1, "int8": 0.5}
    assert resolve(monkeypatch, "avx2", **fast) == "int8"
    assert resolve(monkeypatch, "avx2", BF16, **fast) == "bf16"
    assert resolve(monkeypatch, "avx2", **fast | {"int8": 0.95}) == "fp32"
    assert resolve(monkeypatch, INT8, **fast) == "int8"
    assert resolve(monkeypatch, "avx2", onnx=False, **fast) == "fp32"
    assert resolve(monkeypatch, BF16, onnx=False, **fast) == "bf16"
    monkeypatch.delattr(torch.cpu, "get_capabilities", raising=False)
    assert dtype.fastest_dtype(CPU, (8, 8)) == "fp32"  # of an older torch


@pytest.mark.parametrize("emulated, chosen", [(True, "fp16"), (False, "bf16")])
def test_auto_on_gpu_with_emulated_bf16_chooses_fp16(
    monkeypatch: pytest.MonkeyPatch, emulated: bool, chosen: str
) -> None:
    def is_supported(including_emulation: bool = True) -> bool:
        return including_emulation or not emulated

    monkeypatch.setattr(torch.cuda, "is_bf16_supported", is_supported)
    assert dtype.fastest_dtype(torch.device("cuda"), (8, 8)) == chosen


def test_measure_linear_caches_result_and_keeps_random_state() -> None:
    dtype.measure_linear.cache_clear()
    state = torch.random.get_rng_state()
    first = dtype.measure_linear(16, 32, ("fp32", "bf16"), 1)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(seconds > 0 for seconds in first.values())
    assert dtype.measure_linear(16, 32, ("fp32", "bf16"), 1) is first
    assert dtype.measure_linear(16, 32, ("fp32", "bf16"), 2) is not first


def test_auto_measures_layer_sizes_of_model_once(
    ready: Ready, monkeypatch: pytest.MonkeyPatch
) -> None:
    nlp = ready()
    asked = []

    def fastest(device: torch.device, sizes: tuple[int, int], int8: bool) -> str:
        asked.append((sizes, int8))
        return "bf16"

    monkeypatch.setattr(shim, "fastest_dtype", fastest)
    accelerate(nlp, "auto")
    assert len(asked) == 2
    assert resolved_dtype(nlp) == resolved_dtype(nlp) == "bf16"
    scores(nlp)
    # Intermediate and hidden width, and the gates of the LSTM over it; each is asked once.
    assert asked == [((32, 16), True), ((128, 32), False)]
    accelerate(nlp, "fp32")
    assert resolved_dtype(nlp) == "fp32"
    assert resolved_dtype(accelerate(nlp, None)) is None
    assert resolved_dtype(spacy.blank("en")) is None


def scores(nlp: Language) -> np.ndarray:
    """Return the emissions of the head for two texts, computed over the transformer."""
    docs = list(nlp.pipe(["Tim Cook visited Hanoi in May.", "Washington"]))
    emissions: np.ndarray = nlp.get_pipe("crf_ner").model.predict(docs).emissions
    return emissions


@pytest.mark.parametrize("which", ["bf16", "int8"])
def test_fewer_bits_change_little(ready: Ready, which: str) -> None:
    """Neither the scores nor, by more than they may, the entities and their confidences."""
    if which == "int8":
        pytest.importorskip("onnxruntime")
    nlp, texts = ready(), [text for text, _ in SENTENCES]
    before, (ents, confidences) = scores(nlp), found(nlp, texts)
    accelerate(nlp, which)
    change = np.linalg.norm(scores(nlp) - before) / np.linalg.norm(before)
    assert 1e-5 < change < 0.01
    assert found(nlp, texts)[0] == ents and any(ents)
    np.testing.assert_allclose(found(nlp, texts)[1], confidences, atol=0.01)


def shims(nlp: Language) -> list[tuple[str, Any]]:
    """All torch modules of a pipeline, with the names of their layers."""
    nodes = [node for _, pipe in nlp.components for node in pipe.model.walk()]
    return [(node.name, each) for node in nodes for each in node.shims]


def resolved_dtype(nlp: Language) -> str | None:
    """What the transformer of a pipeline predicts in, "auto" resolved."""
    return next((each.resolved_dtype for name, each in shims(nlp) if name == "transformer"), None)


def dtypes(nlp: Language) -> dict[str, Any]:
    """The dtype of each layer, by its name."""
    return {name: each.dtype for name, each in shims(nlp)}


@pytest.mark.parametrize("kind", KINDS)
def test_dtype_is_saved_and_loaded_with_pipeline(ready: Ready, kind: str, tmp_path: Path) -> None:
    nlp = ready(kind)
    before = scores(nlp)
    nlp.batch_size = 64
    assert accelerate(nlp, "bf16") is nlp
    fast = scores(nlp)
    assert 1e-4 < abs(fast - before).max() < 0.5
    nlp.to_disk(tmp_path / "fast")
    loaded = spacy.load(tmp_path / "fast")
    assert dtypes(loaded) == {"transformer": "bf16", "bilstm_crf": "bf16"}
    np.testing.assert_array_equal(scores(loaded), fast)
    assert loaded.batch_size == 512
    again = copied(nlp)
    np.testing.assert_array_equal(scores(again), fast)
    accelerate(loaded, None).to_disk(tmp_path / "plain")
    plain = spacy.load(tmp_path / "plain")
    assert set(dtypes(plain).values()) == {None}
    np.testing.assert_array_equal(scores(plain), before)


def test_accelerated_pipeline_uses_updated_weights(ready: Ready) -> None:
    """The accelerated copy is rebuilt, also if a component has predicted between the updates."""
    nlp, plain = (ready() for _ in range(2))
    accelerate(nlp, "bf16")
    for each in (nlp, plain):
        spacy.util.fix_random_seed(0)
        optimizer = each.create_optimizer()
        optimizer.learn_rate = 0.05
        for _ in range(3):
            scores(each)
            each.update(make_examples(each), sgd=optimizer)
    fresh = copied(nlp)
    np.testing.assert_array_equal(scores(nlp), scores(fresh))
    # And it has learned the same.
    np.testing.assert_array_equal(scores(accelerate(nlp, None)), scores(plain))


def test_accelerated_pipeline_uses_averaged_weights(ready: Ready) -> None:
    nlp = accelerate(ready(), "bf16")
    before = scores(nlp)
    encoder = next(each for name, each in shims(nlp) if name == "transformer")
    averages = {
        (encoder.id, name): weights.detach().numpy() / 2
        for name, weights in encoder.parameters.items()
    }
    with pytest.raises(RuntimeError, match="evaluation failed"), nlp.use_params(averages):
        assert abs(scores(nlp) - before).max() > 1e-3
        raise RuntimeError("evaluation failed")
    np.testing.assert_array_equal(scores(nlp), before)


def test_copy_of_accelerated_model_predicts_the_same(ready: Ready) -> None:
    nlp = accelerate(ready(), "bf16")
    fast = scores(nlp)
    nlp.get_pipe("crf_ner").model = nlp.get_pipe("crf_ner").model.copy()
    np.testing.assert_array_equal(scores(nlp), fast)


def test_accelerate_without_transformer_keeps_config(trained: Language) -> None:
    before = trained.config.to_str()
    assert accelerate(trained, "bf16").config.to_str() == before


def test_unsupported_input_raises(tiny_transformer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    nlp = pipeline(tiny_transformer)
    nlp.initialize(lambda: make_examples(nlp))
    with pytest.raises(ValueError, match=r"dtype: expected one of .*'fp32'.*, got 'fp64'"):
        accelerate(nlp, "fp64")
    with pytest.raises(ValueError, match=r"fp16 is for GPUs, got a CPU\. Choose bf16"):
        accelerate(nlp, "fp16")
    with monkeypatch.context() as without:
        without.setattr(onnx_export, "find_spec", lambda name: None)
        message = "packages onnx and onnxruntime.*pip install onnx "
        with pytest.raises(ValueError, match=message):
            accelerate(nlp, "int8")
    assert set(dtypes(nlp).values()) == {None}  # after an error, no layer is changed


def test_dtype_option_lists_all_dtypes() -> None:
    assert tuple(options.DTYPE_NAMES.split("|")) == dtype.DTYPE_NAMES


@pytest.mark.slow
def test_commands_apply_dtype_option(ready: Ready, tmp_path: Path) -> None:
    ready().to_disk(tmp_path / "model")
    run = CliRunner().invoke
    expected = run(cli.app, ["predict", str(tmp_path / "model"), "Tim Cook visited Hanoi."])
    command = ["predict", str(tmp_path / "model"), "Tim Cook visited Hanoi.", "--dtype"]
    number = re.compile(r"\d\.\d+")
    for which in ("auto", "fp32", "bf16"):
        output = run(cli.app, [*command, which]).output
        assert number.sub("", output) == number.sub("", expected.output)
        found, plain = (
            [float(p) for p in number.findall(each)] for each in (output, expected.output)
        )
        assert found == pytest.approx(plain, abs=0.01) and found
    refused = run(cli.app, [*command, "fp64"])
    assert refused.exit_code == 2 and "expected one of auto|fp32" in refused.output
    refused = run(cli.app, [*command, "fp16"])
    assert refused.exit_code == 1 and "Error: dtype: fp16 is for GPUs" in refused.output
    (tmp_path / "in.txt").write_text("Tim Cook visited Hanoi.\n", encoding="utf-8")
    shards = []
    for name, extra in (("plain", []), ("fast", ["--dtype", "bf16"])):
        arguments = [str(tmp_path / "model"), str(tmp_path / "in.txt"), "-o", str(tmp_path / name)]
        done = run(cli.app, ["predict", *arguments, "--workers", "1", *extra])
        assert done.exit_code == 0, done.output
        (shard,) = (tmp_path / name).glob("part-*.jsonl")
        (record,) = srsly.read_jsonl(shard)
        shards.append(record)
    confidences = [[ent.pop("confidence") for ent in record["entities"]] for record in shards]
    assert shards[0] == shards[1] and shards[0]["entities"]
    assert confidences[0] != confidences[1]


@pytest.mark.slow
@pytest.mark.parametrize("which", ["bf16", "int8"])
def test_nlp_pipe_processes_predict_same_entities(ready: Ready, which: str) -> None:
    """Also where this process has predicted before, with threads that no child has."""
    if which == "int8":
        pytest.importorskip("onnxruntime")
    nlp = accelerate(ready(), which)
    texts = ["Tim Cook visited Hanoi.", "Nothing here.", "Washington"] * 4
    expected = found(nlp, texts)
    ents, confidences = found(nlp, texts, n_process=2, batch_size=3)
    assert ents == expected[0] and any(ents)
    np.testing.assert_allclose(confidences, expected[1], atol=0.05)


def test_auto_is_resolved_once_for_all_processes_of_nlp_pipe(
    ready: Ready, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When a pipeline is loaded, and not by each process on its own."""
    accelerate(ready(), "auto").to_disk(tmp_path)
    asked = []

    def fastest(*args: Any) -> str:
        asked.append(os.getpid())
        return "bf16"

    monkeypatch.setattr(shim, "fastest_dtype", fastest)
    nlp = spacy.load(tmp_path)
    assert asked == [os.getpid()] * 2 and resolved_dtype(nlp) == "bf16"

    def fails(*args: Any) -> str:
        raise AssertionError("measured again")

    monkeypatch.setattr(shim, "fastest_dtype", fails)
    texts = ["Tim Cook visited Hanoi.", "Nothing here.", "Washington"] * 2
    assert found(nlp, texts, n_process=2, batch_size=3)[0] == found(nlp, texts)[0]


def test_accelerate_fp32_replaces_auto_of_head_without_transformer() -> None:
    nlp = spacy.blank("en")
    model = {"tok2vec": TOK2VEC, "hidden_width": 16, "dtype": "auto"}
    nlp.add_pipe("crf_ner", config={"model": model})
    nlp.initialize(lambda: make_examples(nlp))
    assert dtypes(nlp)["bilstm_crf"] == "auto"
    accelerate(nlp, "fp32")
    assert dtypes(nlp)["bilstm_crf"] == "fp32"
    assert nlp.config["components"]["crf_ner"]["model"]["dtype"] == "fp32"  # it is saved
