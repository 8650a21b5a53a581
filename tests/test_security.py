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

from pipelines import LISTENER, OWN_TRANSFORMER, make_examples
from spacy_crf_ner.input_error import InputError
from spacy_crf_ner.ml.checksummed import seal, unseal
from spacy_crf_ner.ml.transformer.stored import TRUST

SPANS = {"@span_getters": "spacy-transformers.doc_spans.v1"}
OURS = "spacy-crf-ner.TransformerModel.v1"
CODE = "import pathlib; pathlib.Path({path!r}).touch()\n"


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: Any, tiny_transformer: str) -> Path:
    """The folder of a pipeline with a shared transformer; not to be changed."""
    nlp = spacy.blank("en")
    model = {"@architectures": OURS, "name": tiny_transformer, "get_spans": SPANS}
    nlp.add_pipe("transformer", config={"model": model})
    nlp.add_pipe("crf_ner", config={"model": {"hidden_width": 8, "tok2vec": LISTENER}})
    nlp.initialize(lambda: make_examples(nlp))
    folder: Path = tmp_path_factory.mktemp("pipeline") / "pipeline"
    nlp.to_disk(folder)
    return folder


Change = Callable[[dict[str, Any]], Any]


@pytest.fixture
def changed(pipeline: Path, tmp_path: Path) -> Callable[[Change], Path]:
    """Copy the pipeline, and change what is stored of its transformer, as a stranger can.

    The change gets the content, and its digest is right afterwards; it may return other bytes.
    """

    def make(change: Change) -> Path:
        folder = tmp_path / "stranger"
        shutil.copytree(pipeline, folder)
        file = folder / "transformer" / "model"
        layer = srsly.msgpack_loads(file.read_bytes())
        content = srsly.msgpack_loads(unseal(layer["shims"][1][0]))
        other = change(content)
        stored = other if isinstance(other, bytes) else seal(srsly.msgpack_dumps(content))
        layer["shims"][1][0] = stored
        file.write_bytes(srsly.msgpack_dumps(layer))
        return folder

    return make


def set_tokenizer(content: dict[str, Any], **settings: Any) -> None:
    files = content["tokenizer"]
    before = json.loads(files["tokenizer_config.json"])
    files["tokenizer_config.json"] = json.dumps(before | settings).encode()


def refusal(folder: Path) -> str:
    """Load a pipeline; returns the error, which is one line."""
    with pytest.raises(InputError) as raised:
        spacy.load(folder)
    message = str(raised.value)
    assert message.endswith(".") and "\n" not in message
    return message


def test_pipeline_with_same_content_loads(changed: Any) -> None:
    """Control: the tests below fail only because of their changes."""
    spacy.load(changed(lambda content: None))("Tim Cook")


@pytest.fixture(autouse=True)
def own_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))


NAMES = [
    "../file",
    "../../../file",
    "file/",
    "a/file",
    "{}/file",
    "..",
    "",
    ".",
    "a\\..\\file",
    "\0file",
]


@pytest.mark.parametrize("name", NAMES)
def test_tokenizer_file_with_path_as_name_is_not_written(
    name: str, changed: Any, tmp_path: Path
) -> None:
    name = name.format(tmp_path)
    folder = changed(lambda content: content["tokenizer"].update({name: b"written"}))
    before = {*tmp_path.rglob("*")}
    assert "not the plain name" in refusal(folder)
    assert {*tmp_path.rglob("*")} == before


def own_code(content: dict[str, Any], path: Path) -> None:
    """Add code to a tokenizer that creates a file when it is run."""
    code = CODE.format(path=str(path)) + "from transformers import BertTokenizerFast\n"
    code += "class Stranger(BertTokenizerFast): pass\n"
    content["tokenizer"]["stranger.py"] = code.encode()
    auto_map = {"AutoTokenizer": [None, "stranger.Stranger"]}
    set_tokenizer(content, auto_map=auto_map, tokenizer_class="StrangerTokenizer")


@pytest.mark.parametrize("trusts", [False, True])
def test_code_of_tokenizer_runs_only_if_process_trusts_it(
    trusts: bool, changed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(*args: Any) -> str:
        raise AssertionError("asks on the terminal")

    monkeypatch.setattr("builtins.input", ask)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "hf"))
    folder = changed(lambda content: own_code(content, tmp_path / "run"))
    if trusts:
        monkeypatch.setenv(TRUST, "1")
        spacy.load(folder)
    else:
        assert f"set the environment variable {TRUST}=1" in refusal(folder)
    assert (tmp_path / "run").exists() is trusts


@pytest.mark.parametrize(
    "change, expected",
    [
        (lambda c: c["config"].update(trust_remote_code=True), "trust_remote_code"),
        (lambda c: c["config"].update(inner={"trust_remote_code": True}), "trust_remote_code"),
        (lambda c: c["config"].update(attn_implementation="a/kernel"), "attn_implementation"),
        (lambda c: c["config"].update(_attn_implementation_internal="a/k:f"), "attn_impl"),
        (lambda c: c["config"].update(use_pretrained_backbone=True), "use_pretrained_backbone"),
        (lambda c: set_tokenizer(c, trust_remote_code=True), "trust_remote_code"),
        (
            lambda c: c["config"].update(model_type="x", auto_map={"AutoConfig": "a.B"}),
            TRUST,
        ),
        (lambda c: set_tokenizer(c, tokenizer_class="AutoModel"), "not the class of a tokenizer"),
        (lambda c: c["config"].update(tokenizer_class="AutoModel"), "not the class of a tokenizer"),
        (lambda c: c["config"].update(num_hidden_layers=10**12), "num_hidden_layers"),
        (lambda c: c["config"].update(num_labels=10**12), "num_labels"),
        (lambda c: c["config"].update(num_hidden_layers=9999), "parameters"),
        (lambda c: c["config"].update(hidden_size=2 * 10**9), "cannot be read"),
        (lambda c: c["config"].update(vocab_size=10**15), "another architecture"),
        (lambda c: c["config"].update(vocab_size=-1), "cannot be read"),
        (lambda c: c["config"].update(max_position_embeddings=10**14), "another architecture"),
        (lambda c: c["config"].update(model_type="gpt2"), "another architecture"),
        (lambda c: c["config"].clear(), "cannot be read"),
        (lambda c: c.pop("config"), "cannot be read"),
        (lambda c: c["tokenizer"].clear(), "cannot be read"),
        (lambda c: set_tokenizer(c, model_max_length="many"), "no tokenizer"),
        (lambda c: b"", "cannot be read"),
        (lambda c: seal(b""), "cannot be read"),
        (lambda c: seal(srsly.msgpack_dumps({"settings": [{"trust_remote_code": True}]})), "trust"),
    ],
)
def test_hostile_settings_of_transformer_are_refused(
    change: Change, expected: str, changed: Any
) -> None:
    assert expected in refusal(changed(change))


def saved(content: Any) -> bytes:
    stream = io.BytesIO()
    torch.save(content, stream)
    return stream.getvalue()


class Intruder:
    """An object that, when it is unpickled, creates a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.mkdir, (self.path,)


@pytest.mark.parametrize("pack", [pickle.dumps, saved])
def test_pickled_weights_of_transformer_are_refused(
    pack: Callable[[Any], bytes], changed: Any, tmp_path: Path
) -> None:
    path, other = tmp_path / "intruded", tmp_path / "control"
    folder = changed(lambda content: content.update(weights=pack(Intruder(path))))
    assert "cannot be read: expected a transformer" in refusal(folder)
    for file in ("transformer/model", "crf_ner/model"):
        (folder / file).write_bytes(pack(Intruder(path)))
        message = refusal(folder)
        assert ("model" in message and "cannot be read" in message) or "is damaged" in message
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
def test_weights_of_another_transformer_are_refused(weights: Any, changed: Any) -> None:
    folder = changed(lambda c: c.update(weights=save(weights(load(c["weights"])))))
    assert "of another architecture or other settings" in refusal(folder)


def test_files_outside_of_pipeline_are_not_read_as_vocabulary(changed: Any, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nsecret")
    paths = {"vocab_file": str(tmp_path / "secret"), "tokenizer_file": str(tmp_path / "secret")}

    def change(content: dict[str, Any]) -> None:
        content["use_fast"] = False
        set_tokenizer(content, **paths)

    nlp = spacy.load(changed(change))
    tokenizer = nlp.get_pipe("transformer").model.tokenizer  # type: ignore[attr-defined]
    assert "secret" not in tokenizer.get_vocab() and "##a" in tokenizer.get_vocab()
    assert b"secret" not in nlp.to_bytes()


def test_names_of_chats_do_not_become_files(changed: Any, tmp_path: Path) -> None:
    chats = [{"name": name, "template": "x"} for name in ("default", "../../chat")]
    nlp = spacy.load(changed(lambda content: set_tokenizer(content, chat_template=chats)))
    nlp.to_disk(tmp_path / "again")
    assert not [*tmp_path.rglob("chat*")]
    spacy.load(tmp_path / "again")


@pytest.mark.parametrize("where", ["tokenizer_config", "transformer_config"])
def test_config_of_pipeline_cannot_trust_code(
    where: str, pipeline: Path, tmp_path: Path, tiny_transformer: str
) -> None:
    """`load_frozen` loads the transformer that a config names."""
    shutil.copytree(pipeline, tmp_path / "stranger")
    file = tmp_path / "stranger" / "config.cfg"
    section = f"[components.transformer.model.{where}]\n"
    assert section in file.read_text()
    file.write_text(file.read_text().replace(section, f"{section}trust_remote_code = true\n"))
    assert TRUST in refusal(tmp_path / "stranger")
    own = {**OWN_TRANSFORMER, "name": tiny_transformer, where: {"trust_remote_code": True}}
    with pytest.raises(InputError, match=TRUST):
        spacy.blank("en").add_pipe("crf_ner", config={"model": {"tok2vec": own}})
