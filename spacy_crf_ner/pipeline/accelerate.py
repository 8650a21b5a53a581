"""Faster prediction for pipelines with transformers."""

from collections.abc import Iterator
from typing import Any

from spacy.language import Language
from thinc.api import get_torch_default_device

from ..input_error import InputError
from ..ml.dtype import check_available, check_dtype
from ..ml.shim import TorchShim
from .lookup import FACTORY, model_layers

BATCH_SIZE = 512  # docs in a batch of nlp.pipe: with more windows, more of them have one length


def accelerate(nlp: Language, dtype: str | None = "auto") -> Language:
    """Make a pipeline predict faster, with the same or nearly the same results.

    The transformers, and the recurrent encoders above them, compute in the given dtype, and a batch
    of `nlp.pipe` has 512 docs or more by default. The settings are saved with the pipeline. The
    evaluations of `spacy train` are faster too; training does not change.

    Args:
        nlp: A trained pipeline; it is changed.
        dtype: "fp32" changes no result. "bf16" is for GPUs and CPUs with bfloat16 instructions,
            "fp16" for GPUs, "int8" for CPUs, with the extra `int8`. "auto" measures them each time
            the pipeline is loaded, for about 50 milliseconds, and 0.3 seconds more where the extra
            `int8` is installed, and chooses float32, or one that saves a tenth of the time or more.
            None undoes this, but keeps the larger batches. A `crf_ner` without a transformer gets a
            dtype only in place of "auto", which None does not undo.

    Returns:
        The pipeline.

    Raises:
        InputError: For an unknown dtype, for one that the hardware does not support or whose
            packages are missing, and for a `crf_ner` over a transformer of spacy-transformers,
            which has no such setting.
    """
    check_dtype(dtype)
    if dtype is not None:
        check_available(dtype, get_torch_default_device())
    over_transformer = _over_transformers(nlp)
    for name, pipe in nlp.components:

        def is_replaced(before: str | None, name: str = name) -> bool:
            """Without a transformer in the component, replace only "auto"."""
            return name in over_transformer or (dtype is not None and before == "auto")

        for shim in _shims(pipe):
            if is_replaced(shim.dtype):
                shim.set_dtype(dtype)
        for block in model_blocks(nlp.get_pipe_config(name)):
            is_own = block["@architectures"].startswith("spacy-crf-ner.")
            if is_own and "dtype" in block and is_replaced(block["dtype"]):
                block["dtype"] = dtype
    if over_transformer and dtype is not None:
        nlp.batch_size = max(nlp.batch_size, BATCH_SIZE)
        nlp.config["nlp"]["batch_size"] = nlp.batch_size
    return nlp


def model_blocks(block: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the blocks that name an architecture: a block of a config itself, and those in it."""
    if "@architectures" in block:
        yield block
    for inner in block.values():
        if isinstance(inner, dict):
            yield from model_blocks(inner)


def _over_transformers(nlp: Language) -> set[str]:
    """Return the components that have a transformer, and those that listen to one of these."""
    found = set()
    for name, pipe in nlp.components:
        listening = getattr(pipe, "listening_components", [])
        if any(shim.is_large for shim in _shims(pipe)):
            found |= {name, *listening}
        is_foreign = nlp.get_pipe_meta(name).factory == "transformer"
        for each in listening if is_foreign else ():
            if nlp.get_pipe_meta(each).factory == FACTORY:
                raise InputError(
                    f"[{each}] expected a transformer of spacy-crf-ner, "
                    "'spacy-crf-ner.Transformer.v1', got one of spacy-transformers, which has no "
                    "setting for its dtype. Train the pipeline with that one."
                )
    return found


def _shims(pipe: Any) -> Iterator[TorchShim]:
    shims = (shim for node in model_layers(pipe) for shim in node.shims)
    return (shim for shim in shims if isinstance(shim, TorchShim))
