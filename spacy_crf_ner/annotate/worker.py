"""The pipeline that a worker has in memory."""

from functools import lru_cache

from spacy.language import Language

from ..pipeline import load as loading
from ..pipeline.lookup import model_layers

# Once per process.
load = lru_cache(maxsize=1)(loading.load)


def load_model(precision: str | None, gpu_id: int, *, model: str) -> str | None:
    """Load a pipeline in a worker; return its precision, with "auto" resolved, or None."""
    return resolved_precision(load(model, gpu_id, precision))


def resolved_precision(nlp: Language) -> str | None:
    """Return the precision that a pipeline predicts in; None if it was not accelerated."""
    for _, pipe in nlp.pipeline:
        for node in model_layers(pipe):
            for shim in node.shims:
                resolved = getattr(shim, "resolved_precision", None)  # of a `PredictionShim`
                if resolved is not None:
                    return str(resolved)
    return None
