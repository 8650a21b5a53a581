"""Commands that need no torch start without it, and show choices without importing them."""

import subprocess
import sys
from importlib.metadata import EntryPoint

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from spacy_crf_ner import active_learning, data
from spacy_crf_ner.cli import app, startup
from spacy_crf_ner.input_error import InputError
from spacy_crf_ner.training.init_config import PURPOSES

ONNX = '[components.ner]\nfactory = "crf_ner"\n[components.ner.model]\n'
ONNX += '@architectures = "spacy-crf-ner.OnnxNetwork.v1"\n'
OTHER = "[components.t.model]\n"


@pytest.mark.parametrize(
    "command, option, choices",
    [
        ("suggest", "unit", active_learning.UNITS),
        ("suggest", "strategy", active_learning.STRATEGIES),
        ("suggest", "tool", active_learning.TOOLS),
        ("review", "tool", active_learning.TOOLS),
        ("convert", "alignment", data.ALIGNMENTS),
        ("convert", "split_by", data.WAYS),
    ],
)
def test_option_shows_the_choices_of_the_function(command, option, choices):
    found = get_command(app).get_command(None, command)
    (metavar,) = [each.metavar for each in found.params if each.name == option]
    assert metavar.split("|") == [*choices]


@pytest.mark.parametrize(
    "command, option, choices",
    [
        ("convert", "format", data.FORMATS),
        ("convert", "syllables", data.SYLLABLES),
        ("init", "optimize", PURPOSES),
    ],
)
def test_help_of_an_option_names_the_choices_of_the_function(command, option, choices):
    found = get_command(app).get_command(None, command)
    (text,) = [each.help for each in found.params if each.name == option]
    assert ", ".join(choices) in text


@pytest.mark.parametrize("command", ["convert", "merge"])
def test_default_of_max_loss_is_that_of_the_function(command):
    found = get_command(app).get_command(None, command)
    assert [each.default for each in found.params if each.name == "max_loss"] == [data.MAX_LOSS]


def test_defaults_of_train_are_those_of_the_function():
    pytest.importorskip("torch")
    from spacy_crf_ner.training.options import Options

    found = {each.name: each.default for each in get_command(app).get_command(None, "train").params}
    defaults = vars(Options())
    shared = found.keys() & defaults.keys()
    assert len(shared) == 8 and {name: found[name] for name in shared} == {
        name: defaults[name] for name in shared
    }


@pytest.mark.parametrize(
    "config, dtype, is_left_out",
    [
        (ONNX, None, True),
        (ONNX, "int8", False),
        (ONNX.replace("OnnxNetwork", "BiLSTMCRF"), None, False),
        (ONNX + OTHER + '@architectures = "spacy-crf-ner.RNNEncoder.v1"', None, False),
        (ONNX + OTHER + '@architectures = "spacy.TorchBiLSTMEncoder.v1"', None, False),
        (ONNX + OTHER + 'factory = "theirs"', None, False),
        (None, None, False),
    ],
)
def test_torch_is_left_out_for_exported_pipelines_alone(
    tmp_path, monkeypatch, config, dtype, is_left_out
):
    found = startup._entry_points()
    found["spacy_factories"].append(EntryPoint("theirs", "their.package:make", "spacy_factories"))
    monkeypatch.setattr(startup, "_entry_points", lambda: found)
    if config is not None:
        (tmp_path / "config.cfg").write_text(config)
    called = []
    monkeypatch.setattr(startup, "leave_out_torch", lambda: called.append(True))
    startup.leave_out_torch_if_exported(str(tmp_path), dtype)
    assert bool(called) == is_left_out


def test_convert_and_check_import_neither_torch_nor_transformers(tmp_path):
    (tmp_path / "a.txt").write_text("[Tim Cook](PERSON) visited [Hanoi](GPE).\n" * 10)
    code = "import sys\nfrom spacy_crf_ner.cli import app\n"
    for arguments in (["convert", "a.txt", "a.spacy"], ["check", "a.spacy"]):
        code += f"try: app({arguments})\nexcept SystemExit as end: assert end.code in (0, 1)\n"
    code += "loaded = {'torch', 'transformers', 'spacy_transformers'} & sys.modules.keys()\n"
    code += "assert not loaded, loaded\nimport torch\n"  # what needs it finds it
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Tim Cook" in (tmp_path / "a.txt").read_text() and "10" in done.stdout


@pytest.mark.parametrize(
    "command",
    ["predict M text", "explain M text", "redact M a.txt b.jsonl", "suggest M a.txt out",
     "report M a.spacy out", "calibrate M a.spacy out", "promise fit M a.spacy out --recall 0.9",
     "promise check M a.txt", "serve M", "info M"],
)  # fmt: skip
def test_commands_with_an_exported_pipeline_leave_out_torch(command, monkeypatch):
    module = sys.modules[f"spacy_crf_ner.cli.{command.split()[0]}"]
    given = []

    def started(model, *dtype):
        given.append(model)
        raise InputError("started")

    monkeypatch.setattr(module, "leave_out_torch_if_exported", started)
    result = CliRunner().invoke(app, command.split())
    assert given == ["M"] and "Error: started" in result.output
