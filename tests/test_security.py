"""Pipelines of strangers: what is in their files is read as data, or refused in one line."""

import io
import json
import pickle
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import spacy
import srsly
import torch
from safetensors.torch import load, save

from damage import Intruder
from pipelines import LISTENER, OWN_TRANSFORMER, add_shared, make_examples
from spacy_crf_ner.input_error import InputError
from spacy_crf_ner.ml.checksummed import seal, unseal
from spacy_crf_ner.ml.transformer.model import transformer
from spacy_crf_ner.ml.transformer.stored import TRUST
from spacy_crf_ner.pipeline.stored import write_digests

# Changes what is stored of a transformer, as a stranger can; it may return other bytes.
Change = Callable[[dict[str, Any]], Any]
Changed = Callable[..., bytes]


@pytest.fixture(scope="module")
def stored(encoder: Any) -> dict[str, bytes]:
    """The bytes of a transformer with a tokenizer of the library, and of one with files."""
    made = {}
    for kind in ("bert", "phobert"):
        layer = transformer(encoder(kind))
        layer.initialize()
        made[kind] = layer.shims[0].to_bytes()
    return made


@pytest.fixture
def changed(stored: dict[str, bytes]) -> Changed:
    """Change the content of the bytes; their digest is right afterwards."""

    def make(change: Change, kind: str = "bert") -> bytes:
        content = srsly.msgpack_loads(unseal(stored[kind]))
        other = change(content)
        return other if isinstance(other, bytes) else seal(srsly.msgpack_dumps(content))

    return make


def read(data: bytes) -> Any:
    layer = transformer("")
    layer.shims[0].from_bytes(data)
    return layer


def refusal(data: bytes) -> str:
    """Read a transformer; returns the error, which is one line."""
    with pytest.raises(InputError) as raised:
        read(data)
    message = str(raised.value)
    assert message.endswith(".") and "\n" not in message
    return message


def set_config(content: dict[str, Any], **settings: Any) -> None:
    content["config"] = json.dumps(json.loads(content["config"]) | settings)


def set_tokenizer(content: dict[str, Any], **settings: Any) -> None:
    """Change the settings of a tokenizer with files."""
    before = json.loads(content["files"]["tokenizer_config.json"])
    content["files"]["tokenizer_config.json"] = json.dumps(before | settings).encode()


@pytest.fixture(autouse=True)
def own_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))


@pytest.mark.parametrize("kind", ["bert", "phobert"])
def test_same_content_is_read(kind: str, changed: Changed) -> None:
    """Control: the tests below fail only because of their changes."""
    doc = spacy.blank("en")("Tim Cook")
    named = {"auto_map": {"AutoConfig": "stranger.Config"}}  # but the library has its model type
    for settings in ({}, named):
        layer = read(changed(lambda content, own=settings: set_config(content, **own), kind))
        assert layer.predict([doc])[0].any()


NAMES = ["../file", "../../../file", "file/", "a/file", "{}/file", "..", "", ".", "a\\..\\b", "\0f"]
# The library would read them: another config, which could name code, settings, and weights.
NAMES += ["../a.txt", "{}/a.txt", "config.json", "config.4.0.0.json", "CONFIG.JSON"]
NAMES += ["Tokenizer_Config.json", "pytorch_model.bin", "model.safetensors"]


@pytest.mark.parametrize("name", NAMES)
def test_tokenizer_file_with_path_as_name_is_not_written(name, changed, tmp_path) -> None:
    name = name.format(tmp_path)
    before = {*tmp_path.rglob("*")}
    data = changed(lambda content: content["files"].update({name: b"written"}), "phobert")
    assert "not the plain name" in refusal(data)
    assert {*tmp_path.rglob("*")} == before


def own_code(content: dict[str, Any], path: Path) -> None:
    """Add code to a tokenizer that creates a file when it is run."""
    code = f"import pathlib; pathlib.Path({str(path)!r}).touch()\n"
    code += "from transformers import PhobertTokenizer\n"
    code += "class StrangerTokenizer(PhobertTokenizer): pass\n"
    content["files"]["stranger.py"] = code.encode()
    auto_map = {"AutoTokenizer": ["stranger.StrangerTokenizer", None]}
    set_tokenizer(content, auto_map=auto_map, tokenizer_class="StrangerTokenizer")


@pytest.mark.parametrize("trusts", [False, True])
def test_code_of_tokenizer_runs_only_if_process_trusts_it(
    trusts: bool, changed: Changed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(*args: Any) -> str:
        raise AssertionError("asks on the terminal")

    monkeypatch.setattr("builtins.input", ask)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "hf"))
    data = changed(lambda content: own_code(content, tmp_path / "run"), "phobert")
    if trusts:
        monkeypatch.setenv(TRUST, "1")
        read(data)
    else:
        assert f"set the environment variable {TRUST}=1" in refusal(data)
    assert (tmp_path / "run").exists() is trusts


def test_another_config_is_not_looked_for(changed: Changed) -> None:
    """The library reads a file of this name in place of the config, unless it is given one."""
    files = {"configuration_files": ["config.4.0.0.json"], "tokenizer_class": "PhobertTokenizer"}
    assert (
        read(changed(lambda content: set_config(content, **files), "phobert"))
        .predict([spacy.blank("en")("Tim Cook")])[0]
        .any()
    )


@pytest.mark.parametrize(
    "change, settings, expected",
    [
        (set_config, {"trust_remote_code": True}, "trust_remote_code"),
        (set_config, {"inner": {"trust_remote_code": True}}, "trust_remote_code"),
        (set_config, {"attn_implementation": "a/kernel"}, "attn_implementation"),
        (set_config, {"_attn_implementation_internal": "a/k:f"}, "attn_impl"),
        (set_config, {"use_pretrained_backbone": True}, "use_pretrained_backbone"),
        (set_config, {"model_type": "x", "auto_map": {"AutoConfig": "a.B"}}, TRUST),
        (set_config, {"tokenizer_class": "AutoModel"}, "not the class of a tokenizer"),
        (set_config, {"num_hidden_layers": 10**12}, "num_hidden_layers"),
        (set_config, {"num_labels": 10**12}, "num_labels"),
        (set_config, {"num_hidden_layers": 9999}, "parameters"),
        (set_config, {"hidden_size": 2 * 10**9}, "cannot be read"),
        (set_config, {"vocab_size": 10**15}, "another architecture"),
        (set_config, {"vocab_size": -1}, "cannot be read"),
        (set_config, {"max_position_embeddings": 10**14}, "another architecture"),
        (set_config, {"model_type": "gpt2"}, "another architecture"),
        (set_config, {"dtype": "float16", "torch_dtype": "float16"}, "another architecture"),
        (set_tokenizer, {"trust_remote_code": True}, "trust_remote_code"),
        (set_tokenizer, {"tokenizer_class": "AutoModel"}, "not the class of a tokenizer"),
        (set_tokenizer, {"model_max_length": "many"}, "cannot be read"),
    ],
)
def test_hostile_settings_are_refused(change, settings, expected, changed) -> None:
    kind = "phobert" if change is set_tokenizer else "bert"
    assert expected in refusal(changed(lambda content: change(content, **settings), kind))


@pytest.mark.parametrize(
    "change",
    [
        lambda c: c.update(config="{}"),
        lambda c: c.pop("config"),
        lambda c: c.update(tokenizer=None),
        lambda c: c.update(tokenizer={}),
        lambda c: c["tokenizer"].update(content="{}"),
        lambda c: c["tokenizer"].update(longest="many"),
        lambda c: c["tokenizer"].update(longest=-1),
        lambda c: c["tokenizer"].update(pad_id="x"),
        lambda c: c["tokenizer"].update(pad_id=10**6),
        lambda c: c.update(files={}),
        lambda c: seal(b""),
        lambda c: seal(srsly.msgpack_dumps([5])),
    ],
)
def test_impossible_content_is_refused(change: Change, changed: Changed) -> None:
    assert "cannot be read" in refusal(changed(change))


def saved(content: Any) -> bytes:
    stream = io.BytesIO()
    torch.save(content, stream)
    return stream.getvalue()


@pytest.mark.parametrize("pack", [pickle.dumps, saved])
def test_pickled_weights_of_transformer_are_refused(pack, changed, tmp_path) -> None:
    path, other = tmp_path / "intruded", tmp_path / "control"
    data = changed(lambda content: content.update(weights=pack(Intruder(path))))
    assert "cannot be read: expected a transformer" in refusal(data)
    assert "cannot be read" in refusal(pack(Intruder(path)))
    assert not path.exists()
    pickle.loads(pickle.dumps(Intruder(other)))
    assert other.exists()


@pytest.mark.parametrize(
    "weights",
    [
        lambda w: {**w, "more": torch.ones(1)},
        lambda w: dict([*w.items()][1:]),
        lambda w: {name: each.double() for name, each in w.items()},
        lambda w: {name: each[:1] for name, each in w.items()},
    ],
)
def test_weights_of_another_transformer_are_refused(weights: Any, changed: Changed) -> None:
    data = changed(lambda c: c.update(weights=save(weights(load(c["weights"])))))
    assert "of another architecture or other settings" in refusal(data)


def test_files_outside_of_pipeline_are_not_read_as_vocabulary(changed, tmp_path) -> None:
    (tmp_path / "secret").write_text("secret 1\n")
    paths = {f"{name}_file": str(tmp_path / "secret") for name in ("vocab", "merges", "tokenizer")}
    layer = read(changed(lambda content: set_tokenizer(content, **paths), "phobert"))
    stored = srsly.msgpack_loads(unseal(layer.shims[0].to_bytes()))["files"]
    assert not any(b"secret" in each for each in stored.values()) and "vocab.txt" in stored


def test_names_of_chats_do_not_become_files(changed: Changed, tmp_path: Path) -> None:
    chats = [{"name": name, "template": "x"} for name in ("default", "../../chat")]
    read(changed(lambda content: set_tokenizer(content, chat_template=chats), "phobert"))
    assert not [*tmp_path.rglob("chat*")]


@pytest.mark.parametrize("where", ["tokenizer_config", "transformer_config"])
def test_config_of_pipeline_cannot_trust_code(where: str) -> None:
    own = {**OWN_TRANSFORMER, "name": "", where: {"trust_remote_code": True}}
    with pytest.raises(InputError, match=TRUST):
        spacy.blank("en").add_pipe("crf_ner", config={"model": {"tok2vec": own}})


# Whole pipelines


@pytest.fixture(scope="module", params=["own", "shared"])
def pipeline(request: Any, tmp_path_factory: Any, encoder: Any) -> Path:
    """The folder of a pipeline with a transformer; not to be changed."""
    nlp = spacy.blank("en")
    tok2vec = {**OWN_TRANSFORMER, "name": encoder("bert")}
    if request.param == "shared":
        tok2vec = LISTENER
        add_shared(nlp, encoder("bert"))
    nlp.add_pipe("crf_ner", config={"model": {"hidden_width": 8, "tok2vec": tok2vec}})
    nlp.initialize(lambda: make_examples(nlp))
    folder: Path = tmp_path_factory.mktemp("pipeline") / "pipeline"
    nlp.to_disk(folder)
    return folder


def test_hostile_pipeline_is_refused(pipeline: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(pipeline, tmp_path / "stranger")
    spacy.load(folder)
    file = folder / ("tok2vec" if (folder / "tok2vec").exists() else "crf_ner") / "model"
    layer, changed = srsly.msgpack_loads(file.read_bytes()), 0
    for shims in layer["shims"]:
        content = srsly.msgpack_loads(unseal(shims[0])) if shims else {}
        if "config" in content:
            set_config(content, trust_remote_code=True)
            shims[0] = seal(srsly.msgpack_dumps(content))
            changed += 1
    assert changed == 1
    for data in (srsly.msgpack_dumps(layer), pickle.dumps(Intruder(tmp_path / "intruded"))):
        file.write_bytes(data)
        if file.parent.name == "crf_ner":
            write_digests(file.parent)
        with pytest.raises(InputError if b"trust_remote" in data else Exception) as raised:
            spacy.load(folder)
        assert "\n" not in str(raised.value)
    assert not (tmp_path / "intruded").exists()
