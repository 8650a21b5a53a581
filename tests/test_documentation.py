"""The code blocks of README.md and docs/ run, and their links exist."""

import json
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tomllib
import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import nbformat
import numpy as np
import pytest
import spacy
from markdown_it import MarkdownIt
from nbclient import NotebookClient
from spacy.cli._util import app as spacy_app
from spacy.tokens import DocBin
from spacy.vocab import Vocab
from thinc.api import Config
from typer.main import get_command
from typer.testing import CliRunner

from pipelines import OWN_TRANSFORMER, train, trained_elsewhere
from spacy_crf_ner import data
from spacy_crf_ner.cli import app
from spacy_crf_ner.evaluation.fit_guarantees import Targets, fit_guarantees
from spacy_crf_ner.pipeline.transformer_config import MINILM
from spacy_crf_ner.training.init_config import fit_to_corpus, init_config
from spacy_crf_ner.training.optimizer import GroupedAdam

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
TUTORIAL = "tutorial.md"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "CONTRIBUTING.md"]

# Commands that are not run here, as expressions that match their beginnings, and why.
NOT_RUN = {
    "pip ": "changes the environment; test_extras_named_in_documentation_exist",
    "make ": "is run by CI",
    "spacy-crf-ner serve|curl ": "needs a server: tests/test_serving.py calls the app",
    "torchrun ": "starts several processes: tests/training/test_distributed.py",
    "spacy project run ablation": "trains all variants: tests/benchmarks/test_ablation.py",
    ".* --config spacy_transformers": "needs an extra: test_spacy_transformers.py",
    "python examples/tune": "trains several pipelines: tests/training/test_tune_example.py",
    "python benchmarks": "takes long, and needs corpora that are not part of the project",
    "spacy-crf-ner convert --hub": "needs the hub: tests/data/test_hugging_face.py",
    ".* s3://": "needs a cluster and a store: tests/annotate/test_ray_engine.py",
}
# Models of the hub are replaced by a local one, other paths by those of the workspace.
REPLACED = {
    "roberta-base": "TRANSFORMER",
    "bert-base-german-cased": "TRANSFORMER",
    "vinai/phobert-base-v2": "TRANSFORMER",
    "--gpu-id 0": "--gpu-id -1",
    "--vars.gpu 0": "--vars.gpu -1",
    "--config char.cfg": "--config short.cfg",  # of `distill`
    " --folds 2": " --folds 0",  # training takes long
    " --folds 3": " --folds 0",
    " --folds 5": " --folds 2",
    " careful --recall 0.95": " new --recall 0.5",  # "careful" exists, and the corpus is small
    "export training/model-best exported": "export training/model-best new",  # so does "exported"
}
SHORT = {
    "spacy train": "--training.max_steps 2 --training.eval_frequency 2",
    "spacy-crf-ner train": "--steps 2",
    "spacy project run": "--vars.steps 2 --vars.eval_frequency 2 --vars.config cnn",
}


class Block(NamedTuple):
    page: str
    line: int
    language: str
    text: str


@cache
def blocks() -> list[Block]:
    return [*find_blocks()]


def find_blocks() -> Iterator[Block]:
    for page in PAGES:
        for token in MarkdownIt("commonmark").parse(page.read_text("utf-8")):
            if token.type == "fence" and token.map:
                language = (token.info.split() or [""])[0]
                yield Block(page.name, token.map[0] + 1, language, token.content)


def named(language: str) -> list[Any]:
    found = [each for each in blocks() if each.language == language and each.page != TUTORIAL]
    return [pytest.param(each, id=f"{each.page}:{each.line}") for each in found]


def commands_of(block: Block) -> Iterator[str]:
    """The commands of a block that are run here; a line that ends with a backslash goes on."""
    if block.language == "bash":
        for line in re.sub(r" *\\\n *", " ", block.text).splitlines():
            line = line.partition("    #")[0].strip()
            if line and not any(re.match(beginning, line) for beginning in NOT_RUN):
                yield line


def commands() -> list[Any]:
    """The commands of all pages but the tutorial, each once."""
    found: dict[str, str] = {}
    for block in blocks():
        if block.page != TUTORIAL:
            for line in commands_of(block):
                found.setdefault(line, f"{block.page}:{block.line}")
    return [pytest.param(line, id=f"{place} {line[:40]}") for line, place in found.items()]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory, tiny_transformer: str) -> Path:
    """A folder as a reader of the documentation has it, with small corpora and pipelines."""
    folder = tmp_path_factory.mktemp("workspace")
    for name in ("project.yml", "benchmarks"):
        (folder / name).symlink_to(ROOT / name)
    (folder / "configs").mkdir()
    for path in (ROOT / "configs").glob("*.cfg"):
        config = path.read_text("utf-8").replace(MINILM, tiny_transformer)
        (folder / "configs" / path.name).write_text(config, "utf-8")
    short = Config().from_disk(ROOT / "configs" / "cnn.cfg", interpolate=False)
    short["training"].update(max_steps=2, eval_frequency=2)
    short.to_disk(folder / "short.cfg")
    (folder / "assets").mkdir()
    for name in ("sample_en", "sample_vi"):
        shutil.copytree(ROOT / "assets" / name, folder / "assets" / name)
    (folder / "assets" / "minilm").symlink_to(tiny_transformer)
    nlp = spacy.blank("en")
    (folder / "corpus").mkdir()
    for part in data.SPLITS:
        docs = [*data.read_inline(ROOT / "assets" / "sample_en" / f"{part}.txt", nlp)]
        docs = docs[: 300 if part == "train" else 30]
        for i, doc in enumerate(docs):
            doc.cats = {"news": float(i % 2), "other": 1.0 - i % 2}
        DocBin(docs=docs).to_disk(folder / "corpus" / f"{part}.spacy")
    shutil.copy(folder / "corpus" / "train.spacy", folder / "corpus" / "raw.spacy")
    trained = spacy.blank("en")
    transformer = {**OWN_TRANSFORMER, "name": tiny_transformer}
    trained.add_pipe("crf_ner", name="ner", config={"model": {"tok2vec": transformer}})
    examples = [spacy.training.Example(nlp.make_doc(doc.text), doc) for doc in docs]
    train(trained, examples)
    trained_elsewhere(trained)
    trained.config["training"].update(max_steps=2, eval_frequency=2)  # of other trainings like it
    for name in ("training/model-best", "model", "other/model-best", "exported"):
        (folder / name).mkdir(parents=True)
        trained.to_disk(folder / name)
    DocBin(docs=docs * 4).to_disk(folder / "corpus" / "new.spacy")
    fit_guarantees(trained, "ner", examples * 4, Targets(recall=0.5, by_label=True))
    trained.to_disk(folder / "careful")
    (folder / "packages").mkdir()
    (folder / "texts").mkdir()
    (folder / "texts" / "a.txt").write_text("Tim Cook visited Hanoi.\nNothing here.\n")
    shutil.copytree(folder / "texts", folder / "records")
    (folder / "new-records").mkdir()
    (folder / "new-records" / "a.txt").write_text("\n".join(doc.text for doc in docs))
    place = '{"text": "Hanoi is far. %d", "spans": [{"start": 0, "end": 5, "label": "GPE"}]}\n'
    for name in ("places", "nested"):
        (folder / f"{name}.jsonl").write_text("".join(place % i for i in range(10)))
    rows = ['"Tim left.","[[0, 3, ""PERSON""]]"', "It rains.,[]", "It snows.,[]"]
    (folder / "my_data.csv").write_text("\n".join(["text,entities", *rows]))
    (folder / "my_data" / "my_corpus").mkdir(parents=True)
    for part in data.SPLITS:
        for target in (folder / "my_data" / f"{part}.txt", folder / "my_data" / "my_corpus"):
            shutil.copy(ROOT / "assets" / "sample_en" / f"{part}.txt", target)
    return folder


def set_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let processes find the programs of this environment, and use one thread."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    monkeypatch.setenv("PATH", path)


@pytest.fixture
def own_workspace(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """A copy of the workspace, as the current folder; warnings are no errors."""
    folder = Path(shutil.copytree(workspace, tmp_path / "workspace", symlinks=True))
    monkeypatch.chdir(folder)
    set_environment(monkeypatch)
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        yield folder


@pytest.mark.slow
@pytest.mark.parametrize("block", named("python"))
def test_python_block_runs(block: Block, own_workspace: Path, tiny_transformer: str) -> None:
    if "spark." in block.text:
        pytest.skip("needs Spark: tests/annotate/test_spark.py")
    if "annotate_on_ray" in block.text or "distributed" in block.text:
        pytest.skip("needs a cluster: tests/annotate/test_ray_engine.py, tests/training")
    script = own_workspace / "block.py"
    script.write_text(block.text.replace(MINILM, tiny_transformer))
    runpy.run_path(str(script))


# In this process, which is faster; not where other processes must have the same tokenizer.
PROGRAMS = {"spacy": spacy_app, "spacy-crf-ner": app}
PROCESSES = ("distill", "project")


@pytest.mark.slow
@pytest.mark.parametrize("line", commands())
def test_command_runs(line: str, own_workspace: Path, tiny_transformer: str) -> None:
    for before, after in REPLACED.items():
        line = line.replace(before, after.replace("TRANSFORMER", tiny_transformer))
    for start, more in SHORT.items():
        if line.startswith(start):
            line += f" {more}"
    if line.startswith("spacy-crf-ner train") and "--config" not in line:
        line += f" --transformer {tiny_transformer}"
    _make_inputs(own_workspace)
    if re.search(r" convert .* corpus( |$)", line):
        shutil.rmtree(own_workspace / "corpus")
    if "--config config.cfg" in line:  # of the command before it
        config = init_config("en", "char")
        fit_to_corpus(config, Path("corpus"))
        config.to_disk("config.cfg")
    run_command(line)


def run_command(line: str) -> None:
    program, *arguments = shlex.split(line)
    if program in PROGRAMS and arguments[0] not in PROCESSES and ">" not in arguments:
        result = CliRunner().invoke(PROGRAMS[program], arguments)
        assert result.exit_code == 0, f"{line}\n{result.output}\n{result.exception!r}"
        return
    run = subprocess.run(line, shell=True, capture_output=True, text=True)
    assert run.returncode == 0, f"{line}\n{run.stdout}\n{run.stderr}"


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_tutorial_runs_in_order_and_finds_what_it_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    set_environment(monkeypatch)
    Path("configs").symlink_to(ROOT / "configs")
    served = []
    for block in blocks():
        if block.page == TUTORIAL:
            if block.language == "csv":
                Path("tickets.csv").write_text(block.text, "utf-8")
            elif block.language == "python":
                Path("block.py").write_text(block.text, "utf-8")
                runpy.run_path("block.py")
            elif block.language == "json":
                served = json.loads(block.text)
            for line in commands_of(block):
                run_command(line)
    doc = spacy.load("training/model-best")("Hi, my new DW910 leaks. Regards, Omar Lund")
    assert [(each["start"], each["end"], each["label"]) for each in served] == [
        (ent.start_char, ent.end_char, ent.label_) for ent in doc.ents
    ]


def _make_inputs(folder: Path) -> None:
    """The files that single commands name."""
    sentence = "Tim B-PER\nCook I-PER\nvisited O\nHanoi B-LOC\n%d O\n\n"
    conll = "".join(sentence % i for i in range(30))
    for name in ("eng.train", "eng.testa", "eng.testb", "part1.conll", "part2.conll"):
        (folder / name).write_text(conll)
    record = {"text": "Hanoi.", "spans": [{"start": 0, "end": 5, "label": "GPE"}]}
    rows = [json.dumps({**record, "text": f"Hanoi. {i}"}) for i in range(30)]
    (folder / "export.jsonl").write_text("\n".join(rows))
    for part in ("train", "dev"):
        shutil.copy(folder / "corpus" / f"{part}.spacy", folder / f"{part}.spacy")
    for name in ("rules", "model"):
        shutil.copy(folder / "corpus" / "dev.spacy", folder / f"{name}.spacy")
    shutil.copy(folder / "export.jsonl", folder / "llm.jsonl")
    new = spacy.blank("en")
    data.convert(folder / "corpus" / "new.spacy", folder / "new_annotated.jsonl", nlp=new)
    vectors = Vocab(strings=["visited"])
    vectors.set_vector("visited", np.ones(3, dtype="f"))
    spacy.blank("en", vocab=vectors).to_disk(folder / "my_vectors")
    (folder / "glove.txt").write_text("visited 0.1 0.2 0.3\nhanoi 0.4 0.5 0.6\n")
    (folder / "pages").mkdir()
    answer = {"text": "Hanoi is far.", "spans": record["spans"], "answer": "accept"}
    (folder / "answers.jsonl").write_text(json.dumps(answer))


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])
def test_notebook_runs(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_environment(monkeypatch)
    notebook = nbformat.read(path, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert any(cell.outputs for cell in code), "run it, and save its outputs"
    for cell in code:
        cell.source = cell.source.replace("300", "20").replace("= 100", "= 20")  # steps
    resources = {"metadata": {"path": str(path.parent)}}
    NotebookClient(notebook, timeout=600, resources=resources).execute()


@pytest.mark.parametrize("block", named("ini"))
def test_config_block_names_registered_functions(block: Block) -> None:
    functions = re.findall(r'^@(\w+) = "(.+)"$', block.text, re.MULTILINE)
    groups = re.findall(r"^\[training\.optimizer\.groups\.\w+\]$", block.text, re.MULTILINE)
    assert functions or groups
    if groups:
        text = "[training]\n[training.optimizer]\n[training.optimizer.groups]\n" + block.text
        config = Config().from_str(text)["training"]["optimizer"]
        assert len(GroupedAdam(**config).groups) == len(groups)
    for registry, name in functions:
        assert spacy.registry.has(registry, name), f"{registry}: {name}"


@pytest.mark.parametrize("block", named("json"))
def test_json_block_is_valid(block: Block) -> None:
    json.loads(block.text)


def test_all_block_languages_are_tested() -> None:
    known = {"bash", "csv", "{.python", "python", "ini", "json", "text", "dockerfile"}
    assert {block.language for block in blocks()} <= known


def test_relative_links_of_readme_exist() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    links = [link for link in re.findall(r"\]\(([^)#]+)", text) if "://" not in link]
    assert len(links) > 10
    for link in links:
        assert (ROOT / link).exists(), link


def test_extras_named_in_documentation_exist() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    named = {
        extra.strip()
        for page in PAGES
        for extras in re.findall(r'(?:"\.|spacy-crf-ner)\[([\w, ]+)\]', page.read_text("utf-8"))
        for extra in extras.split(",")
    }
    assert len(named) > 3
    assert named <= set(project["optional-dependencies"])


def test_command_line_page_has_the_help_of_each_command() -> None:
    hooks = runpy.run_path(str(ROOT / "docs" / "hooks.py"))
    page = (ROOT / "docs" / "command-line.md").read_text("utf-8")
    written = hooks["on_page_markdown"](page)
    for name in get_command(app).commands:  # type: ignore[attr-defined]
        assert f"\n## {name}\n" in written and f"\nUsage: spacy-crf-ner {name} " in written
