"""The floors of the package: imports go down only, and importing it is cheap."""

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from itertools import groupby
from pathlib import Path
from typing import Dict, Iterator, Set

import pytest

import spacy_crf_ner

PACKAGE = "spacy_crf_ner"
HOUSE = Path(spacy_crf_ner.__file__).parent


def read(path: Path) -> ast.Module:
    """Read a module, its relative imports made absolute."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    inside = [PACKAGE, *path.relative_to(HOUSE).parent.parts]
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            outer = inside[: len(inside) + 1 - node.level]
            node.module, node.level = ".".join([*outer, *filter(None, [node.module])]), 0
    return tree


def room(path: Path) -> str:
    """A room is a module of the package, or a folder of them."""
    return path.relative_to(HOUSE).parts[0].removesuffix(".py")


MODULES = {path: read(path) for path in sorted(HOUSE.rglob("*.py"))}
TREES = {
    name: ast.Module([node for path in paths for node in MODULES[path].body], type_ignores=[])
    for name, paths in groupby(MODULES, room)
}

# What is not named here is a tool, on the floor above the component.
FLOORS = {"__init__": 3, "tags": 0, "crf": 0, "network": 1, "layer": 1, "features": 1}
FLOORS |= {"depth": 0, "potentials": 1, "model": 1, "precision": 1, "lowering": 1}
FLOORS |= {"transformer": 1, "transformer_training": 1, "feeding": 1, "slow_tokenizer": 1}
FLOORS |= {"adam_step": 1}
FLOORS |= {
    "bounds": 2,
    "gold": 2,
    "upstream": 2,
    "posterior": 2,
    "temperature": 2,
    "component": 2,
    "optimizer": 2,
    "acceleration": 2,
    "distributed": 2,
    "cli": 4,
    "__main__": 5,
}
TOOLS = 3


def imported(tree: ast.Module) -> Iterator[str]:
    """Yield the full name of all that a module imports, wherever in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def rooms(name: str) -> Set[str]:
    """The other rooms of this package that a room imports."""
    parts = [full.split(".") for full in imported(TREES[name])]
    return {part[1] for part in parts if part[0] == PACKAGE and part[1] in TREES} - {name}


def libraries(name: str) -> Set[str]:
    """The top-level packages that a room imports."""
    return {full.split(".")[0] for full in imported(TREES[name])}


def names(tree: ast.Module) -> Set[str]:
    """All names that a module reads, imports, or asks of another."""
    found = set()
    for node in ast.walk(tree):
        for field in ("id", "attr", "name", "asname"):
            found.add(getattr(node, field, None))
    return {name for name in found if isinstance(name, str)}


def floor(name: str) -> int:
    return FLOORS.get(name, TOOLS)


def test_imports_are_read() -> None:
    """The rules below hold of what this finds: it finds what is known to be there."""
    assert rooms("model") == {"layer", "network", "potentials"}
    assert rooms("component") == {
        "tags",
        "model",
        "bounds",
        "gold",
        "posterior",
        "potentials",
        "temperature",
        "upstream",
    }
    assert "cli" in rooms("__main__")
    assert {"torch", "torchcrf", "typing"} <= libraries("network")
    assert {"numpy", "dataclasses"} <= libraries("tags")
    tree = ast.parse("import a.b\ndef f():\n from g.h import i")
    assert set(imported(tree)) == {"a.b", "g.h.i"}
    (path,) = (path for path in MODULES if path.match("crf/search.py"))
    assert {f"{PACKAGE}.crf.chain.Chain", "torch.Tensor"} <= set(imported(MODULES[path]))


def test_imports_go_down_only() -> None:
    graph: Dict[str, Set[str]] = {name: rooms(name) for name in TREES}
    for name, below in graph.items():
        assert all(floor(other) <= floor(name) for other in below), (name, below)
    TopologicalSorter(graph).prepare()  # raises CycleError where two rooms know each other


def test_the_ground_floor_stands_alone() -> None:
    assert rooms("tags") == rooms("crf") == rooms("network") == set()


@pytest.mark.parametrize("name", ["tags", "crf", "network"])
def test_arithmetic_does_not_know_spacy(name: str) -> None:
    assert not libraries(name) & {"spacy", "thinc"}


@pytest.mark.parametrize("name", sorted(TREES))
def test_torch_stays_on_its_floor(name: str) -> None:
    floor_of_torch = {"crf", "network", "layer", "features", "potentials", "model", "distributed"}
    floor_of_torch |= {"precision", "lowering", "feeding", "transformer", "transformer_training"}
    floor_of_torch |= {"adam_step"}
    if name not in floor_of_torch:
        assert not libraries(name) & {"torch", "torchcrf"}


@pytest.mark.parametrize("name", sorted(TREES))
def test_only_the_layer_crosses_between_thinc_and_torch(name: str) -> None:
    crossings = {"xp2torch", "torch2xp"}
    assert names(TREES[name]) & crossings == (crossings if name == "layer" else set())


def test_a_tool_loads_pipelines_and_never_the_component() -> None:
    tools = {name for name in TREES if floor(name) >= TOOLS}
    assert {"cli", "data"} <= tools
    below = {name for name in TREES if floor(name) == 1} | {"component", "crf"}
    for name in tools:
        assert not rooms(name) & below, name


def test_only_the_program_imports_the_commands() -> None:
    assert {name for name in TREES if "cli" in rooms(name)} == {"__main__"}


def test_every_room_has_a_concept() -> None:
    assert not set(TREES) & {"utils", "util", "errors", "helpers", "common", "misc"}
    for path, tree in MODULES.items():
        assert ast.get_docstring(tree), path


@pytest.mark.parametrize(
    "module, absent",
    [
        ("spacy_crf_ner", {"torch", "transformers", "spacy", "thinc"}),
        ("spacy_crf_ner.tags", {"torch", "transformers", "spacy", "thinc"}),
        ("spacy_crf_ner.component", {"transformers", "spacy_crf_ner.cli"}),
        ("spacy_crf_ner.loading", {"transformers"}),
    ],
)
def test_importing_is_cheap(module: str, absent: Set[str]) -> None:
    code = f"import sys, {module}; print(*sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    loaded = set(result.stdout.split())
    assert module in loaded
    assert not loaded & absent
