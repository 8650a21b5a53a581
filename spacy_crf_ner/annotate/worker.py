"""The pipeline that a worker has in memory."""

from functools import lru_cache
from typing import Any

from spacy.language import Language

from ..pipeline import load as loading
from ..pipeline.lookup import model_layers

# Once per process.
load = lru_cache(maxsize=1)(loading.load)


def load_model(dtype: str | None, gpu_id: int, *, model: str) -> str | None:
    """Load a pipeline in a worker; return the dtype, with "auto" resolved."""
    return resolved_dtype(load(model, gpu_id, dtype)) or dtype


def resolved_dtype(nlp: Language) -> str | None:
    """Return what "auto" is for a pipeline, or for its transformer; None without "auto"."""
    nodes = [node for _, pipe in nlp.pipeline for node in model_layers(pipe)]
    shims: list[Any] = [shim for node in nodes for shim in node.shims]
    auto = [shim for shim in shims if getattr(shim, "dtype", None) == "auto"]
    largest = max(auto, key=lambda shim: bool(shim.is_large), default=None)
    return None if largest is None else largest.resolved_dtype
