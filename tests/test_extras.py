"""A missing package is an error that names the extra; other import errors stay what they are."""

import configparser
from pathlib import Path

import pytest

from spacy_crf_ner import extras


@pytest.mark.parametrize("package", ["torch", "transformers.models"])
def test_the_extra_is_named(package: str) -> None:
    with (
        pytest.raises(ValueError, match=r'pip install "spacy-crf-ner\[train\]"'),
        extras.required("train"),
    ):
        raise ModuleNotFoundError(name=package)


@pytest.mark.parametrize("package", ["torchvision", None])
def test_other_packages_are_not(package: str) -> None:
    with pytest.raises(ModuleNotFoundError), extras.required("train"):
        raise ModuleNotFoundError(name=package)


def test_each_entry_point_of_torch_is_found() -> None:
    setup = configparser.ConfigParser()
    setup.optionxform = str  # type: ignore[assignment,method-assign]
    setup.read(Path(__file__).parents[1] / "setup.cfg", "utf-8")
    text = "\n".join(setup["options.entry_points"].values())
    named = {
        line.split(":")[1].strip() for line in text.splitlines() if "spacy_crf_ner.extras:" in line
    }
    assert named == set(extras.REGISTERED)
    for name in named:
        assert getattr(extras, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'other'"):
        extras.other  # noqa: B018
