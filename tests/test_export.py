"""Exported pipelines predict what the pipelines of torch do, also where torch is not installed."""

import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import spacy
import srsly
from hypothesis import example, given, settings
from hypothesis import strategies as st
from spacy.language import Language
from spacy.tokens import Doc, Span
from spacy.training import Example
from typer.testing import CliRunner

from helpers import blocking
from overlapping import TEXT, make_overlapping
from phobert import make_over_phobert
from pipelines import (
    LISTENER,
    OWN_TRANSFORMER,
    SENTENCES,
    TOK2VEC,
    add_shared,
    make_examples,
    train,
    trained_elsewhere,
)
from spacy_crf_ner.cli import app
from spacy_crf_ner.evaluation.calibration import calibrate
from spacy_crf_ner.evaluation.fit_guarantees import Targets, fit_guarantees
from spacy_crf_ner.evaluation.guarantees import guarantees
from spacy_crf_ner.export import export_pipeline

WORDS = {"@architectures": "spacy-crf-ner.CharWordEmbed.v1", "char_width": 16, "word_width": 16}
SPANS = {"@misc": "spacy-crf-ner.strided_spans.v1", "window": 6, "stride": 4}
WINDOWS = {"@misc": "spacy-crf-ner.sentence_windows.v1", "window": 6}
MODEL = {"hidden_width": 16}
TEXTS = [text for text, _ in SENTENCES] + [
    "So Tim Cook flew on to Paris Texas. " * 9,
    "né 😀 Hanoi?",
]


@pytest.fixture(scope="module")
def make(shared: Any, tiny_transformer: str) -> Callable[[str], Language]:
    """Load a pipeline of a kind, which is trained once."""

    def load(kind: str) -> Language:
        folder = shared(f"to_export_{kind}", lambda: train_kind(kind, tiny_transformer))
        return spacy.load(folder)

    return load


def train_kind(kind: str, tiny_transformer: str) -> Language:
    """Train a pipeline of a kind for a few steps."""
    nlp = spacy.blank("en")

    def side_by_side(*parts: dict[str, Any]) -> dict[str, Any]:
        named = {str(i): part for i, part in enumerate(parts)}
        return {"@architectures": "spacy-crf-ner.ConcatenateVectors.v1", "*": named}

    own = {**OWN_TRANSFORMER, "name": tiny_transformer, "get_spans": SPANS}
    shared = {"both": {**own, "get_spans": WINDOWS}, "shared": side_by_side(own, TOK2VEC)}
    shared["tok2vec"] = {**TOK2VEC, "width": 16}
    if kind in shared:
        nlp.add_pipe("tok2vec", config={"model": shared[kind]})
    tok2vec = {
        "cnn": TOK2VEC,
        "char": WORDS,
        "char_lstm": {**WORDS, "chars": "lstm"},
        "shared": {**LISTENER, "width": 48},
        "both": side_by_side(WORDS, LISTENER),
        "own": own,
        "tok2vec": side_by_side(TOK2VEC, LISTENER),
    }
    nlp.add_pipe("crf_ner", config={"model": {**MODEL, "tok2vec": tok2vec[kind], "skip": True}})
    train(nlp, make_examples(nlp), steps=12)
    return trained_elsewhere(nlp)


FAST = ("both", "char")
SLOW = ("cnn", "char_lstm", "own", "shared", "tok2vec")
KINDS = (*FAST, *(pytest.param(kind, marks=pytest.mark.slow) for kind in SLOW))


@pytest.fixture(scope="module", params=KINDS)
def pair(
    request: pytest.FixtureRequest, make: Any, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Language, Language]:
    """A pipeline, and the same one exported, saved and loaded."""
    folder = tmp_path_factory.mktemp(request.param)
    export_pipeline(make(request.param)).to_disk(folder / "exported")
    return make(request.param), spacy.load(folder / "exported")


def found(doc: Doc) -> list[tuple[int, int, str]]:
    return [(ent.start, ent.end, ent.label_) for ent in doc.ents]


def check_same(expected: Doc, doc: Doc, within: float = 1e-4) -> None:
    assert found(doc) == found(expected)
    p, q = ([ent._.confidence for ent in each.ents] for each in (expected, doc))
    assert [each is None for each in p] == [each is None for each in q]  # of preset entities
    confident = [each for each in zip(p, q) if each[0] is not None]
    assert [a for a, _ in confident] == pytest.approx([b for _, b in confident], abs=within)


word = st.sampled_from(["Tim", "Cook", "Hanoi", "Apple", "visited", "Paris", ".", " ", "\n"])
odd = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)


@st.composite
def documents(draw: st.DrawFn) -> list[tuple[list[str], list[bool], list[tuple[int, int, str]]]]:
    """Draw docs, empty ones and ones of several windows too: words, spaces, preset entities."""
    docs = []
    for _ in range(draw(st.integers(1, 4))):
        words = draw(st.lists(word | word | odd, max_size=20))
        spaces = draw(st.lists(st.booleans(), min_size=len(words), max_size=len(words)))
        preset = []
        if len(words) > 3 and draw(st.booleans()):
            start = draw(st.integers(0, len(words) - 2))
            if not any(each.isspace() for each in words[start : start + 2]):
                preset = [(start, start + 2, draw(st.sampled_from(["GPE", "NEW"])))]
        docs.append((words, spaces, preset))
    return docs


def doc_of(nlp: Language, words: list[str], spaces: list[bool], preset: list[Any]) -> Doc:
    doc = Doc(nlp.vocab, words=words, spaces=spaces)
    if preset:
        doc.set_ents([Span(doc, *span) for span in preset], default="missing")
    return doc


@settings(max_examples=(settings().max_examples + 1) // 2)  # of each kind
@given(drawn=documents())
@example(drawn=[(["Tim", "0\u00ad"], [False, False], [])])  # a mark of no width in a word
@pytest.mark.filterwarnings("ignore:The preset entity")
def test_exported_entities_and_confidences_match_torch(pair, drawn) -> None:
    docs = [list(nlp.pipe([doc_of(nlp, *each) for each in drawn])) for nlp in pair]
    for expected, doc in zip(*docs, strict=True):
        check_same(expected, doc)


def test_exported_potentials_match_torch(pair: tuple[Language, Language]) -> None:
    """They do not depend on padding or on other docs of the batch."""
    potentials = []
    for nlp in pair:
        docs = [nlp.make_doc(text) for text in TEXTS]
        for name, pipe in nlp.pipeline:
            if name != "crf_ner":
                docs = list(pipe.pipe(docs))
        model: Any = nlp.get_pipe("crf_ner").model
        potentials.append(model.predict(docs))
    expected, exported = potentials
    np.testing.assert_array_equal(exported.lengths, expected.lengths)
    for a, b in zip(exported, expected, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-4)
    alone = model.predict(docs[5:6])
    begin = int(expected.lengths[:5].sum())
    np.testing.assert_allclose(
        alone.emissions, exported.emissions[begin : begin + len(docs[5])], atol=1e-4
    )


def test_copies_of_exported_pipeline_predict_same_entities(pair, tmp_path) -> None:
    nlp = pair[1]
    nlp.to_disk(tmp_path / "again")
    copies = [
        spacy.load(tmp_path / "again"),
        spacy.blank("en").from_config(nlp.config).from_bytes(nlp.to_bytes()),
    ]
    docs = [nlp(text) for text in TEXTS]
    for copy in copies:
        for expected, doc in zip(docs, copy.pipe(TEXTS), strict=True):
            check_same(expected, doc, 1e-6)
    model = nlp.get_pipe("crf_ner").model.copy()
    first = [model.predict(docs[:1]), nlp.get_pipe("crf_ner").model.predict(docs[:1])]
    if "tok2vec" not in nlp.pipe_names:
        np.testing.assert_array_equal(*(each.emissions for each in first))


HEADS = [
    {"rnn": "gru"},
    {"rnn": "rnn", "bidirectional": False, "dense_width": 8},
    {"rnn": "none", "decoder": "softmax"},
    {"rnn": "lstm", "depth": 2, "skip": True},
]


@pytest.mark.parametrize("head", HEADS, ids=[each["rnn"] for each in HEADS])
def test_export_of_each_head_matches_torch(head: dict[str, Any]) -> None:
    nlp = spacy.blank("en")
    nlp.add_pipe("crf_ner", config={"model": {**MODEL, "tok2vec": TOK2VEC, **head}})
    check_export(nlp)


def check_export(nlp: Language) -> None:
    """Train a pipeline, and compare what its network computes before and after the export."""
    train(nlp, make_examples(nlp), steps=2)
    docs = [nlp.make_doc(text) for text in TEXTS]
    before = nlp.get_pipe("crf_ner").model.predict(docs)
    after = export_pipeline(nlp).get_pipe("crf_ner").model.predict(docs)
    for a, b in zip(after, before, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


def test_export_with_static_vectors_matches_torch() -> None:
    nlp = spacy.blank("en")
    rng = np.random.default_rng(0)
    for name in ("Tim", "hanoi", "apple"):
        nlp.vocab.set_vector(name, rng.normal(size=5).astype("f"))
    words = {**WORDS, "chars": "none", "word_width": 0, "shape_width": 0, "static_vectors": True}
    nlp.add_pipe("crf_ner", config={"model": {**MODEL, "tok2vec": words}})
    check_export(nlp)


def test_export_of_overlapping_entities_matches_torch(tmp_path: Path) -> None:
    make_overlapping().to_disk(tmp_path)
    expected, exported = make_overlapping(), export_pipeline(spacy.load(tmp_path))
    docs = [nlp(TEXT) for nlp in (expected, exported)]
    spans = [[(each.start, each.end, each.label_) for each in doc.spans["sc"]] for doc in docs]
    assert spans[0] == spans[1] and len(spans[0]) == 7
    scores = [doc.spans["sc"].attrs["scores"] for doc in docs]
    np.testing.assert_allclose(*scores, atol=1e-4)


def test_int8_export_is_close_and_smaller(make: Any) -> None:
    pytest.importorskip("onnx")
    nlp = make("own")
    expected = nlp.get_pipe("crf_ner").model.predict([*map(nlp.make_doc, TEXTS)]).emissions
    sizes = []
    for dtype in ("fp32", "int8"):
        again = export_pipeline(make("own"), dtype)
        model = again.get_pipe("crf_ner").model
        emissions = model.predict([again.make_doc(text) for text in TEXTS]).emissions
        difference = np.linalg.norm(emissions - expected) / np.linalg.norm(expected)
        assert difference < {"fp32": 1e-5, "int8": 0.1}[dtype]
        assert difference > {"fp32": -1, "int8": 1e-5}[dtype]
        sizes.append(len(model.to_bytes()))
    assert sizes[1] < sizes[0]


@pytest.fixture(scope="module")
def calibrated(shared: Any, make: Any) -> Path:
    """The folder of a trained pipeline with a guarantee."""

    def fitted() -> Language:
        nlp = make("own")
        examples = make_examples(nlp, SENTENCES * 20)
        calibrate(nlp, examples)
        fit_guarantees(nlp, "crf_ner", examples, Targets(recall=0.5, count_dev=True))
        return nlp  # type: ignore[no-any-return]

    return Path(shared("to_export_calibrated", fitted))


def test_export_keeps_guarantees_in_fp32_and_drops_them_in_int8(calibrated, tmp_path) -> None:
    pytest.importorskip("onnx")
    nlp = spacy.load(calibrated)
    guaranteed = guarantees(nlp)
    assert guaranteed
    exported = export_pipeline(spacy.load(calibrated))
    exported.to_disk(tmp_path / "exported")
    assert guarantees(spacy.load(tmp_path / "exported")) == guaranteed
    temperatures = [each.get_pipe("crf_ner").temperature for each in (exported, nlp)]
    assert temperatures[0] == pytest.approx(temperatures[1])
    assert guarantees(export_pipeline(spacy.load(calibrated), "int8")) == {}
    # Of other weights they are not.
    changed: Any = spacy.load(calibrated)
    (shim,) = changed.get_pipe("crf_ner").model.get_ref("output_layer").shims
    next(shim._model.parameters()).data += 1.0
    with pytest.raises(ValueError, match="got other weights"):
        export_pipeline(changed)
    exported.get_pipe("crf_ner").model.shims[0].state["start"] += 1.0  # type: ignore
    with pytest.raises(ValueError, match="got other weights"):
        guarantees(exported)


def test_export_keeps_guarantees_of_second_recognizer(make: Any) -> None:
    nlp = make("cnn")
    nlp.add_pipe("crf_ner", "second", source=make("cnn"))
    fit_guarantees(nlp, "second", make_examples(nlp, SENTENCES * 20), Targets(recall=0.5))
    guaranteed = guarantees(nlp, "second")
    assert guaranteed and guarantees(export_pipeline(nlp), "second") == guaranteed


def test_exported_config_omits_torch_dependencies(make: Any) -> None:
    nlp = make("both")
    nlp.meta["requirements"] = ["spacy-transformers>=1.4", "transformers>=4", "other>=1"]
    text = export_pipeline(nlp).config.to_str()
    for name in ("BiLSTMCRF", "Adam", "CharWordEmbed", "Transformer"):
        assert f"spacy-crf-ner.{name}.v1" not in text
    assert nlp.pipe_names == ["crf_ner"]
    assert nlp.meta["requirements"] == ["other>=1", "spacy-crf-ner[runtime]>=0.1.0"]
    assert nlp.batch_size == nlp.config["nlp"]["batch_size"] >= 512


# Without torch


@pytest.fixture(scope="module")
def without_torch(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return a function that runs a command of Python in processes that cannot import torch."""
    folder = tmp_path_factory.mktemp("blocked")
    packages = "torch", "torchcrf", "transformers", "spacy_transformers"
    (folder / "sitecustomize.py").write_text(blocking(packages))
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONWARNINGS": "default"}
    environment["OMP_NUM_THREADS"] = "2"  # threads that a forked process does not have
    return partial(subprocess.run, env=environment, capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def exported(calibrated: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an exported pipeline with a guarantee."""
    folder = tmp_path_factory.mktemp("exported")
    export_pipeline(spacy.load(calibrated)).to_disk(folder)
    return folder


CODE = """
import sys
import spacy
import spacy_crf_ner
from spacy.training import Example

nlp = spacy.load(sys.argv[1])
docs = [*nlp.pipe(eval(sys.argv[2])), *nlp.pipe(eval(sys.argv[2]), n_process=2)]
print([[(ent.start, ent.end, ent.label_) for ent in doc.ents] for doc in docs])
assert spacy_crf_ner.guarantees(nlp)["recall"]["level"] == 0.5
ner = nlp.get_pipe("crf_ner")
examples = [Example(nlp.make_doc(doc.text), doc) for doc in docs if doc.ents]
assert 0.05 <= ner.fit_temperature(examples) <= 20.0
ner.fit_platt_scaling(examples)
for mistake in (
    lambda: nlp.update(examples),
    lambda: nlp.initialize(),
    lambda: ner.add_label("NEW"),
    lambda: spacy.blank("en").add_pipe("crf_ner"),
    lambda: spacy_crf_ner.accelerate,
):
    try:
        mistake()
    except ValueError as error:
        print(error)
assert not {"torch", "transformers", "spacy_transformers"} & {*sys.modules}
"""


def test_exported_pipeline_predicts_without_torch(without_torch, exported, calibrated) -> None:
    run = without_torch([sys.executable, "-c", CODE, str(exported), repr(TEXTS)])
    assert run.returncode == 0, run.stderr
    entities, *errors = run.stdout.splitlines()
    nlp = spacy.load(calibrated)
    assert eval(entities) == 2 * [found(doc) for doc in nlp.pipe(TEXTS)]
    assert len(errors) == 5, errors
    assert all("got an exported one" in error for error in errors[:3])
    assert all('".[train]"' in error for error in errors[3:])


@pytest.mark.slow
def test_commands_with_exported_pipeline_run_without_torch(
    without_torch: Any, exported: Path, calibrated: Path, tmp_path: Path
) -> None:
    (tmp_path / "texts.txt").write_text("\n".join(text for text in TEXTS if text.strip()))
    commands = [
        ["predict", exported, tmp_path / "texts.txt", "-o", tmp_path / "out", "--workers", "2"],
        ["predict", exported, TEXTS[0]],
        ["explain", exported, TEXTS[0]],
    ]
    for command in commands:
        run = without_torch([sys.executable, "-m", "spacy_crf_ner", *map(str, command)])
        assert run.returncode == 0, run.stderr
    rows = [row for path in tmp_path.glob("out/*.jsonl") for row in srsly.read_jsonl(path)]
    assert any("entities" in row for row in rows)
    versions = srsly.read_json(tmp_path / "out" / "_progress" / "fingerprint.json")["versions"]
    assert versions["torch"] is None and versions["onnxruntime"] and versions["tokenizers"]
    run = without_torch([sys.executable, "-m", "spacy_crf_ner", "predict", str(calibrated), "a"])
    assert run.returncode == 1
    assert '".[train]"' in run.stderr


# What cannot be exported


@pytest.mark.parametrize("pair", ["char"], indirect=True)
def test_export_command_writes_folder(pair: tuple[Language, Language], tmp_path: Path) -> None:
    pair[0].to_disk(tmp_path / "trained")
    arguments = ["export", str(tmp_path / "trained"), str(tmp_path / "exported")]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "MB, fp32" in result.output
    assert found(spacy.load(tmp_path / "exported")(TEXTS[0])) == found(pair[0](TEXTS[0]))
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 1
    assert "expected a new or an empty folder" in result.output


def refused(nlp: Language, match: str, dtype: str = "fp32") -> None:
    config, names = nlp.config.to_str(), nlp.pipe_names
    with pytest.raises(ValueError, match=match):
        export_pipeline(nlp, dtype)
    assert (nlp.config.to_str(), nlp.pipe_names) == (config, names)


def test_export_with_wrong_dtype_or_without_recognizer_raises(trained: Language) -> None:
    refused(trained, r"expected one of \['fp32', 'int8'\], got 'bf16'", "bf16")
    refused(trained, "int8 is for pipelines with a transformer", "int8")
    with trained.select_pipes(disable="crf_ner"):
        refused(trained, r"\[crf_ner\] expected an enabled component, got a disabled one")
    refused(spacy.blank("en"), "expected a pipeline with a crf_ner component")


@pytest.mark.parametrize("package, extra", [("onnx", "int8"), ("onnxruntime", "int8")])
def test_int8_export_with_missing_package_raises(package, extra, trained, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    refused(trained, rf'The package {package} .*"\.\[{extra}\]"', "int8")


def test_export_with_other_listener_raises(tiny_transformer: str) -> None:
    nlp = spacy.blank("en")
    add_shared(nlp, tiny_transformer)
    nlp.add_pipe("crf_ner", config={"model": {**MODEL, "tok2vec": LISTENER}})
    nlp.add_pipe("tagger", config={"model": {"tok2vec": LISTENER}})
    gold = Doc(nlp.vocab, words=["Tim", "ran"], tags=["N", "V"], ents=["B-PER", "O"])
    nlp.initialize(lambda: [Example(nlp.make_doc("Tim ran"), gold)])
    refused(nlp, "got 'tok2vec', to which tagger listens too")


RNN = {"@architectures": "spacy-crf-ner.RNNEncoder.v1", "hidden_width": 8, "tok2vec": TOK2VEC}
CHAIN = {"@layers": "chain.v1", "*": {"of": LISTENER, "then": {"@layers": "Dropout.v1"}}}


@pytest.mark.parametrize(
    "shared, tok2vec, message",
    [
        (OWN_TRANSFORMER, TOK2VEC, r"got 'tok2vec'\. Export"),  # nothing listens
        (OWN_TRANSFORMER, CHAIN, r"\[crf_ner\] .* got 'chain.v1', which needs torch"),
        (RNN, LISTENER, r"\[crf_ner\] .* got 'spacy-crf-ner.RNNEncoder.v1', which needs torch"),
        (None, RNN, r"\[crf_ner\] .* got 'spacy-crf-ner.RNNEncoder.v1', which needs torch"),
    ],
)
def test_export_of_other_layers_raises(shared, tok2vec, message, tiny_transformer) -> None:
    nlp = spacy.blank("en")
    if shared is OWN_TRANSFORMER:
        shared = {**shared, "name": tiny_transformer}
    if shared is not None:
        nlp.add_pipe("tok2vec", config={"model": shared})
    nlp.add_pipe("crf_ner", config={"model": {**MODEL, "tok2vec": tok2vec}})
    nlp.initialize(lambda: make_examples(nlp))
    refused(nlp, message)


def test_export_with_slow_tokenizer_raises(phobert: str) -> None:
    nlp = make_over_phobert(phobert)
    nlp.add_pipe("crf_ner", config={"model": {**MODEL, "tok2vec": LISTENER}})
    nlp.get_pipe("crf_ner").initialize(lambda: make_examples(nlp), nlp=nlp)
    refused(nlp, "expected a transformer with a tokenizer of the library tokenizers, got one that")


@pytest.mark.parametrize("pair", ["char"], indirect=True)
def test_export_of_exported_pipeline_raises(pair: tuple[Language, Language]) -> None:
    refused(pair[1], "got 'spacy-crf-ner.OnnxNetwork.v1'")
