"""The project file, its documentation, and the sample corpora."""

import re
import subprocess
import sys
from hashlib import md5
from pathlib import Path

import pytest
import spacy
import srsly
from weasel.cli.document import project_document

from spacy_crf_ner import data

ROOT = Path(__file__).parents[1]
PROJECT = srsly.read_yaml(ROOT / "project.yml")


def test_the_documentation_of_the_project_file_is_current(capsys):
    project_document(ROOT, "-")
    made = capsys.readouterr().out
    start, end = (
        f"<!-- WEASEL: AUTO-GENERATED DOCS {word} (do not remove) -->" for word in ("START", "END")
    )
    page = (ROOT / "PROJECT.md").read_text("utf-8")

    def between(text):
        return text[text.index(start) : text.index(end)].strip()

    assert between(page) == between(made)


def test_every_variable_has_a_comment():
    text = (ROOT / "project.yml").read_text("utf-8")
    block = text[text.index("vars:") : text.index("directories:")]
    names = re.findall(r"^  (\w+):", block, re.MULTILINE)
    assert set(names) == set(PROJECT["vars"])
    assert len(re.findall(r"^  # ", block, re.MULTILINE)) >= len(names) - 1


def test_every_dependency_is_an_asset_a_config_or_an_output():
    made = {output for command in PROJECT["commands"] for output in command["outputs"]}
    for command in PROJECT["commands"]:
        for dep in command["deps"]:
            assert dep in made or dep.startswith(("configs/", "benchmarks/", "${vars.data}/")), dep


@pytest.mark.parametrize("name", ["sample_en", "sample_vi"])
def test_sample_corpora_have_expected_size_and_labels(name):
    nlp = data.blank_pipeline("en" if name == "sample_en" else "vi")
    files = {part: ROOT / "assets" / name / f"{part}.txt" for part in data.SPLITS}
    docs = {part: list(data.read_inline(path, nlp)) for part, path in files.items()}
    everything = [doc for part in docs.values() for doc in part]
    labels = {"PERSON", "ORG", "GPE", "DATE", "PRODUCT", "EVENT"}
    assert len(everything) >= (300 if name == "sample_en" else 100)
    for part in docs.values():
        expected = labels if name == "sample_en" else {"PER", "LOC", "ORG"}
        assert {ent.label_ for doc in part for ent in doc.ents} == expected
        assert any(not doc.ents for doc in part)
    assert len({doc.text for doc in everything}) == len(everything)


def test_wnut17_files_match_project_checksums(data_folder):
    for asset in PROJECT["assets"]:
        if "wnut17" in asset["dest"]:
            content = (data_folder / "wnut17" / Path(asset["dest"]).name).read_bytes()
            assert md5(content).hexdigest() == asset["checksum"]


@pytest.mark.slow
def test_project_workflow_runs_and_writes_outputs(tmp_path):
    """The workflow `all`; the transformer of the demo is not needed for cnn.cfg."""
    folder = tmp_path / "project"
    folder.mkdir()
    for name in ("project.yml", "configs"):
        (folder / name).symlink_to(ROOT / name)
    (folder / "assets").mkdir()
    (folder / "assets" / "sample_en").symlink_to(ROOT / "assets" / "sample_en")
    command = [sys.executable, "-m", "spacy", "project", "run", "all", str(folder)]
    command += ["--vars.config", "cnn", "--vars.steps", "6", "--vars.eval_frequency", "3"]
    result = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    assert result.returncode == 0, result.stdout + result.stderr
    for name in ("model-best", "model-last"):
        ner = spacy.load(folder / "training" / "sample_en_cnn" / name).get_pipe("ner")
        assert ner.calibrated_on > 0 and ner.platt_intercept != 0.0
    metrics = srsly.read_json(folder / "metrics" / "sample_en_cnn.json")
    assert {"ents_p", "ents_r", "ents_f"} <= metrics.keys()
    page = (folder / "reports" / "sample_en_cnn" / "documents.html").read_text("utf-8")
    assert page.count("<article") == 273
