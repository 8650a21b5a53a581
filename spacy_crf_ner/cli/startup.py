"""Start commands that need no torch without it: importing torch and transformers takes seconds."""

import re
import sys
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from ..extras import PACKAGES

OWN = "spacy_crf_ner."
# The registered functions of these modules need torch.
WITH_TORCH = (
    "spacy_crf_ner.ml.char_embed:",
    "spacy_crf_ner.ml.network:",
    "spacy_crf_ner.ml.transformer.model:",
    "spacy_crf_ner.training.freezing:",
    "spacy_crf_ner.training.optimizer:",
)


def leave_out_torch() -> None:
    """Import spaCy as if torch, and components of other packages, were not installed.

    It does nothing if spaCy has been imported, which imports torch. Only commands call it, before
    anything else: spaCy cannot use torch in this process.
    """
    if "spacy" in sys.modules:
        return
    hidden = dict.fromkeys(PACKAGES["train"] - sys.modules.keys())
    sys.modules.update(hidden)  # type: ignore[arg-type]  # None: not found
    try:
        import catalogue
        import spacy  # noqa: F401
    finally:
        for package in hidden:
            del sys.modules[package]
    # spaCy imports all components of all packages to make a pipeline.
    found = _entry_points()
    factories = found["spacy_factories"]
    found["spacy_factories"] = [each for each in factories if each.value.startswith(OWN)]
    catalogue.AVAILABLE_ENTRY_POINTS = found


def leave_out_torch_if_exported(model: str, dtype: str | None = None) -> None:
    """Call `leave_out_torch` if a pipeline, in a folder, is exported and needs no other package.

    One in a package may need torch, as may any dtype other than None, the saved one.
    """
    try:
        config = Path(model, "config.cfg").read_text("utf-8")
    except (OSError, ValueError):
        return
    names = {*re.findall(r'"([^"]+)"', config)}
    others = (
        point.name
        for group, points in _entry_points().items()
        for point in points
        if group.startswith(("spacy_", "thinc_"))
        and not (point.value.startswith(OWN) and not point.value.startswith(WITH_TORCH))
    )
    is_free = names.isdisjoint(others) and "torch" not in config.lower()
    if dtype is None and "spacy-crf-ner.Onnx" in config and is_free:
        leave_out_torch()


def _entry_points() -> dict[str, list[EntryPoint]]:
    found = entry_points()
    return {group: [*found.select(group=group)] for group in found.groups}
