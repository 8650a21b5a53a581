"""The pipeline that a worker has in memory."""

from functools import lru_cache

from spacy.language import Language

from ..pipeline import load as loading
from ..pipeline.lookup import model_layers

# Once per process.
load = lru_cache(maxsize=1)(loading.load)


def load_model(dtype: str | None, gpu_id: int, *, model: str) -> str | None:
    """Load a pipeline in a worker; return its dtype, with "auto" resolved, or None."""
    return resolved_dtype(load(model, gpu_id, dtype))


def resolved_dtype(nlp: Language) -> str | None:
    """Return the dtype that a pipeline predicts in; None if it was not accelerated."""
    for _, pipe in nlp.pipeline:
        for node in model_layers(pipe):
            for shim in node.shims:
                resolved = getattr(shim, "resolved_dtype", None)  # of a `PredictionShim`
                if resolved is not None:
                    return str(resolved)
    return None
