"""The pipeline that a worker has in memory."""

from functools import lru_cache
from typing import Any

from spacy.language import Language

from ..pipeline import load as loading
from ..pipeline.lookup import model_layers

# Once per process.
load = lru_cache(maxsize=1)(loading.load)


def load_model(dtype: str | None, gpu_id: int, *, model: str) -> str | None:
    """Load a pipeline in a worker; return its dtype, with "auto" resolved, or None."""
    return resolved_dtype(load(model, gpu_id, dtype))


def resolved_dtype(nlp: Language) -> str | None:
    """Return the dtype that a pipeline predicts in, of a transformer if it has one.

    None if it was not accelerated.
    """
    shims: list[Any] = [
        shim
        for _, pipe in nlp.pipeline
        for node in model_layers(pipe)
        for shim in node.shims
        if getattr(shim, "resolved_dtype", None) is not None
    ]
    largest = max(shims, key=lambda shim: bool(shim.is_large), default=None)
    return None if largest is None else str(largest.resolved_dtype)
