"""Load a pipeline for prediction, on a device and in a dtype."""

import re
from pathlib import Path

import spacy
from spacy.language import Language
from spacy.vocab import Vocab

from ..extras import required
from ..input_error import InputError, did_you_mean
from .checks import check_own_key
from .crf_ner import CRFEntityRecognizer
from .lookup import recognizer, recognizer_names

META = "meta.json"


def load(model: str, gpu_id: int = -1, dtype: str | None = None) -> Language:
    """Load a pipeline, by its folder or the name of a package, on a GPU or, for -1, on the CPU.

    A dtype of None is the one saved with the pipeline. Raises InputError if there is no such GPU,
    if there is no such pipeline, or spaCy cannot load it, for `crf_ner` components that write to
    the same key of `doc.spans`, and for a dtype that the pipeline or the hardware does not support.
    """
    if gpu_id >= 0:
        with required("train"):
            from ..ml.hardware import use_gpu

        use_gpu(gpu_id)
    try:
        nlp = spacy.load(model)
    except (InputError, MemoryError):
        raise
    except OSError as error:
        if not re.match(r"\[E05[03]\]", str(error)):
            raise
        raise InputError(_not_found(model)) from error
    except Exception as error:  # of any type, as spaCy reads its own files
        hint = ""
        if "factory for 'transformer'" in str(error):
            hint = (
                "Its component 'transformer' is of spacy-transformers: "
                "pip install spacy-transformers. "
            )
        raise InputError(
            f"{_damaged(model)}: expected a pipeline that spaCy can load, got one that fails. "
            f"{hint}{' '.join(f'{type(error).__name__}: {error}'.split())}"
        ) from error
    for name in recognizer_names(nlp):
        pipe = recognizer(nlp, name)
        check_own_key(nlp, pipe, pipe.entities_key or pipe.spans_key, CRFEntityRecognizer)
    if dtype is not None:
        with required("train"):
            from .accelerate import accelerate

        accelerate(nlp, dtype)
    return nlp


def _not_found(model: str) -> str:
    """Return the error for what is no pipeline, with a pipeline in or beside it."""
    folder = Path(model)
    if not folder.exists():
        others = [str(each.parent) for each in folder.parent.glob(f"*/{META}")]
        fix = "Name the folder of a pipeline, or a package that is installed."
        return f"{model} does not exist. {fix}{did_you_mean(model, others)}"
    inside = sorted(str(each.parent) for each in folder.glob(f"*/{META}"))
    if inside:
        return f"{model} is no pipeline. Did you mean {inside[0]}?"
    lost = "config.cfg" if (folder / META).is_file() else META
    return f"{model} is no pipeline: it has no {lost}. Name the folder of a pipeline."


def _damaged(model: str) -> str:
    """Return the folder of the vocabulary of a pipeline if it cannot be read, else the pipeline."""
    folder = Path(model, "vocab")
    try:
        if folder.is_dir():
            Vocab().from_disk(folder)
    except Exception:  # of any type, as spaCy reads its own files
        return str(folder)
    return model
