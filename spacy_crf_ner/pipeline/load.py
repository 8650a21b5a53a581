"""Load a pipeline to predict with, on a device and in a precision."""

from typing import Optional

import spacy
from spacy.cli._util import setup_gpu
from spacy.language import Language


def load(model: str, gpu_id: int = -1, precision: Optional[str] = None) -> Language:
    """Load a pipeline.

    model: Its folder, or the name of a package.
    gpu_id: The GPU to use; -1 for the CPU.
    precision: As in `spacy_crf_ner.accelerate`; None for what the pipeline was saved with.

    Raises InputError as `accelerate` does, and OSError if there is no such pipeline.
    """
    setup_gpu(gpu_id, silent=True)
    nlp = spacy.load(model)
    if precision is not None:
        from .accelerate import accelerate

        accelerate(nlp, precision)
    return nlp
