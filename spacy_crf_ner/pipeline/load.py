"""Load a pipeline for prediction, on a device and in a precision."""

import spacy
from spacy.language import Language

from ..input_error import InputError
from ..ml.hardware import use_gpu


def load(model: str, gpu_id: int = -1, precision: str | None = None) -> Language:
    """Load a pipeline.

    model: Its folder, or the name of a package.
    gpu_id: The GPU to use; -1 for the CPU.
    precision: As in `spacy_crf_ner.accelerate`; None for the one saved with the pipeline.

    Raises InputError if there is no such GPU, for a pipeline that spaCy cannot load, and as
    `accelerate` does; OSError if there is no such pipeline.
    """
    if gpu_id >= 0:
        use_gpu(gpu_id)
    try:
        nlp = spacy.load(model)
    except InputError:
        raise
    except ValueError as error:
        raise InputError(
            f"{model}: expected a pipeline that spaCy can load, got one that fails: {error}"
        ) from error
    if precision is not None:
        from .accelerate import accelerate

        accelerate(nlp, precision)
    return nlp
