"""One import registers what the entry points name."""

import configparser
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from spacy.language import Language

from helpers import blocking
from spacy_crf_ner.extras import PACKAGES

ROOT = Path(__file__).parents[1]
# Without the entry points of this package, as in a copy of it.
BARE = """
import catalogue
from importlib.metadata import entry_points

catalogue.AVAILABLE_ENTRY_POINTS = {
    group: [each for each in entry_points(group=group) if "spacy_crf_ner" not in each.value]
    for group in entry_points().groups
}
import spacy

try:
    spacy.load(sys.argv[1])
except ValueError:
    import spacy_crf_ner.register
    doc = spacy.load(sys.argv[1])("Tim Cook visited Hanoi.")
    print([(ent.text, ent.label_) for ent in doc.ents])
"""


def test_registered_functions_are_those_of_the_entry_points() -> None:
    pytest.importorskip("torch")
    from spacy_crf_ner.register import FUNCTIONS

    source = (ROOT / "spacy_crf_ner" / "register.py").read_text("utf-8")
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    expected = set()
    for group, lines in config["options.entry_points"].items():
        for line in lines.split("\n"):
            if group in ("console_scripts", "spacy_factories") or not line:
                continue
            name, _, place = line.partition(" = ")
            module, _, function = place.partition(":")
            registered = getattr(import_module(module), function)
            expected.add((group.partition("_")[2], name, registered))
    found = {(kind, f"spacy-crf-ner.{name}.v1", function) for kind, name, function in FUNCTIONS}
    assert found == expected and len(FUNCTIONS) == len(expected)
    factories = config["options.entry_points"]["spacy_factories"].strip().split("\n")
    for line in factories:
        name, _, place = line.partition(" = ")
        module = place.partition(":")[0].removeprefix("spacy_crf_ner")
        assert Language.has_factory(name)
        assert f"from {module.rpartition('.')[0]} import {name}" in source, name


@pytest.mark.slow
def test_a_copy_without_entry_points_loads_a_pipeline(trained: Language, tmp_path: Path) -> None:
    trained.to_disk(tmp_path / "model")
    command = [sys.executable, "-c", "import sys" + BARE, str(tmp_path / "model")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[('Tim Cook', 'PERSON'), ('Hanoi', 'GPE')]"


@pytest.mark.slow
def test_without_torch_what_exported_pipelines_need_is_registered(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(blocking(sorted(PACKAGES["train"])))
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    code = "from spacy_crf_ner.register import FUNCTIONS\nprint([name for _, name, _ in FUNCTIONS])"
    done: Any = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert "OnnxNetwork" in done.stdout and "'BiLSTMCRF'" not in done.stdout
