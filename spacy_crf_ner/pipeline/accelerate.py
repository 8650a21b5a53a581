"""Faster prediction for pipelines with transformers."""

from typing import Any

from spacy.language import Language
from thinc.api import get_torch_default_device

from ..input_error import InputError
from ..ml.dtype import PredictionShim, check_available, check_dtype
from ..ml.transformer.model import convert_layer, model_blocks
from ..ml.transformer.spacy_transformers_internals import TransformerListener, TransformerModel
from .lookup import FACTORY, model_layers

TRANSFORMER = "spacy-crf-ner.TransformerModel.v1"  # replaces those in CONVERTED
CONVERTED = tuple(f"spacy-transformers.TransformerModel.v{version}" for version in (1, 2, 3))
# Tokens, padding of docs included, in one call of a transformer: memory for their hidden states is
# the limit. With more windows, more of them have the same length.
MAX_BATCH_ITEMS = 2**16
BATCH_SIZE = 512  # docs in a batch of nlp.pipe, for the same reason


def accelerate(nlp: Language, dtype: str | None = "auto") -> Language:
    """Make a pipeline predict faster, with the same or nearly the same results.

    The transformers, and the recurrent encoders above them, compute in the given dtype. A
    transformer sorts the windows of each batch of `nlp.pipe` (512 docs or more by default) by
    length, and skips unused outputs. The settings are saved with the pipeline. The evaluations of
    `spacy train` are faster too. Training does not change, but a transformer of spacy-transformers
    becomes one of this package, which on a CPU trains in batches of similar windows.

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
            packages are missing, and for a `crf_ner` whose transformer is a Tok2VecTransformer of
            spacy-transformers, which has no such setting.
    """
    check_dtype(dtype)
    if dtype is not None:
        check_available(dtype, get_torch_default_device())
    pipes: dict[str, Any] = {
        name: pipe
        for name, pipe in nlp.components
        if _has_transformer(pipe) and _has_setting(nlp, name)
    }

    def is_replaced(name: str, before: str | None) -> bool:
        """Without a transformer in the component, replace only "auto"."""
        return name in pipes or (dtype is not None and before == "auto")

    for name, pipe in nlp.components:
        for node in model_layers(pipe):
            if name in pipes and isinstance(node, TransformerModel):
                convert_layer(node)
            for shim in node.shims:
                if isinstance(shim, PredictionShim) and is_replaced(name, shim.dtype):
                    shim.set_dtype(dtype)
        for block in model_blocks(nlp.get_pipe_config(name)):
            if name in pipes and block["@architectures"] in CONVERTED:
                block["@architectures"], block["dtype"] = TRANSFORMER, dtype
            elif block["@architectures"].startswith("spacy-crf-ner.") and (
                "dtype" in block and is_replaced(name, block["dtype"])
            ):
                block["dtype"] = dtype
    for name, pipe in pipes.items():
        config = nlp.get_pipe_config(name)
        if "max_batch_items" in config and dtype is not None:
            config["max_batch_items"] = max(config["max_batch_items"], MAX_BATCH_ITEMS)
            pipe.cfg["max_batch_items"] = config["max_batch_items"]
    if pipes and dtype is not None:
        nlp.batch_size = max(nlp.batch_size, BATCH_SIZE)
        nlp.config["nlp"]["batch_size"] = nlp.batch_size
    return nlp


def _has_transformer(pipe: Any) -> bool:
    """Whether a component has a transformer, or listens to one."""
    return any(
        isinstance(node, TransformerModel | TransformerListener) for node in model_layers(pipe)
    )


def _has_setting(nlp: Language, name: str) -> bool:
    """Whether the config of a component has a setting for the dtype; a `crf_ner` must."""
    for block in model_blocks(nlp.get_pipe_config(name)):
        if block["@architectures"].startswith("spacy-transformers.Tok2VecTransformer."):
            if nlp.get_pipe_meta(name).factory == FACTORY:
                raise InputError(
                    f"[{name}] expected a transformer of spacy-crf-ner, such as {TRANSFORMER!r}, "
                    f"got {block['@architectures']!r}, which has no setting for its dtype. "
                    "Train it as a component `transformer` that this one listens to."
                )
            return False
    return True
