"""Packages that only an extra installs: what needs them imports them when it is used."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.metadata import PackageNotFoundError, requires, version

from .input_error import InputError

PACKAGES = {
    "train": {"safetensors", "scipy", "tokenizers", "torch", "torchcrf", "transformers"},
    "runtime": {"onnxruntime", "tokenizers"},
    "int8": {"onnx", "onnxruntime"},
    "annotate": {"filelock", "pandas", "pyarrow"},
    "ray": {"ray"},
    "calibrate": {"scipy"},
    "report": {"nervaluate", "scipy"},
    "serve": {"fastapi", "uvicorn"},
    "datasets": {"datasets", "pyarrow"},
    "vi": {"pyvi"},
}


def install(extra: str) -> str:
    """Return the command that installs an extra from a clone: the project is on no index."""
    return f'pip install -c constraints.txt ".[{extra}]"'


@contextmanager
def required(extra: str) -> Iterator[None]:
    """Raise InputError, with the extra to install, if an import lacks a package of the extra."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in PACKAGES[extra]:
            raise
        raise InputError(
            f"The package {package} is not installed. The extra {extra!r} has it; in a clone of "
            f"the project: {install(extra)}."
        ) from error


def require(extra: str) -> None:
    """Raise InputError if a package of an extra is not installed."""
    with required(extra):
        for package in sorted(PACKAGES[extra]):
            import_module(package)


def check_versions(extra: str) -> None:
    """Raise InputError for an installed package in a version that this one, with an extra, refuses.

    pip prints a warning when it installs such a version.
    """
    from packaging.requirements import Requirement

    with suppress(PackageNotFoundError):  # without metadata, as in a frozen application
        for requirement in map(Requirement, requires("spacy-crf-ner") or ()):
            name, needed = requirement.name, requirement.specifier
            if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
                continue
            installed = versions([name])[name]
            if installed is not None and not needed.contains(installed, prereleases=True):
                raise InputError(
                    f"{name} {installed} is installed, but spacy-crf-ner needs {name}{needed}. "
                    f'Install it: pip install "{name}{needed}".'
                )


def versions(packages: Iterable[str]) -> dict[str, str | None]:
    """Return the versions of packages, None for those that are not installed."""
    found: dict[str, str | None] = dict.fromkeys(packages)
    for package in found:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found
