"""Faster prediction of pipelines over transformers."""

from typing import Any, Dict, Iterator, List, Optional

from spacy.language import Language
from thinc.api import Model, get_torch_default_device

from ..input_error import InputError
from ..ml.precision import PredictionShim, require_available, require_precision
from ..ml.transformer.model import Transformer, convert_layer
from ..ml.transformer.spacy_transformers_internals import TransformerListener, TransformerModel

FACTORY = "crf_ner"
# The architectures with the setting `precision`; the first one replaces those of CONVERTED.
OURS = (
    "spacy-crf-ner.TransformerModel.v1",
    "spacy-crf-ner.Tok2VecTransformer.v1",
    "spacy-crf-ner.BiLSTMCRF.v1",
    "spacy-crf-ner.RNNEncoder.v1",
)
CONVERTED = tuple(f"spacy-transformers.TransformerModel.v{version}" for version in (1, 2, 3))
# Tokens, padding of docs included, that go through a transformer at once: as many as there is
# memory for their hidden states. The more windows there are, the more have the same length.
MAX_BATCH_ITEMS = 2**16
BATCH_SIZE = 512  # docs that nlp.pipe holds, for the same reason


def accelerate(nlp: Language, precision: Optional[str] = "auto") -> Language:
    """Make a pipeline predict faster, with the same or nearly the same results.

    Its transformers and the recurrent encoders above them compute in the precision. A transformer
    sorts the docs that `nlp.pipe` holds by the length of their windows, and does not compute
    outputs that nothing reads; `nlp.pipe` holds 512 docs or more, unless it is called with another
    `batch_size`. The settings are saved with the pipeline. Training does not change, but the
    evaluations of `spacy train` are faster too.

    nlp: A trained pipeline; it is changed.
    precision: "fp32" changes no result. "bf16" is for GPUs and for CPUs that compute in bfloat16,
        "fp16" for GPUs, "int8" for CPUs, with the extra `int8`. "auto" measures them for some 50
        milliseconds and takes float32, or one that saves a tenth of the time or more; it does so
        wherever the pipeline is loaded (see `resolved_precision`). None undoes it, but keeps the
        numbers of docs and tokens that are taken at a time.

    Returns the pipeline.
    Raises InputError for an unknown precision, for one that the hardware does not have or that
    lacks its packages, and for a `crf_ner` whose transformer is a Tok2VecTransformer of
    spacy-transformers, which has no such setting.
    """
    require_precision(precision)
    if precision is not None:
        require_available(precision, get_torch_default_device())
    pipes: Dict[str, Any] = {
        name: pipe
        for name, pipe in nlp.components
        if _over_transformer(pipe) and _has_setting(nlp, name)
    }
    for name, pipe in pipes.items():
        for node in pipe.model.walk():
            if isinstance(node, TransformerModel):
                convert_layer(node)
            for shim in node.shims:
                if isinstance(shim, PredictionShim):
                    shim.set_precision(precision)
        config = nlp.get_pipe_config(name)
        for block in _blocks(config):
            if block.get("@architectures") in CONVERTED:
                block["@architectures"] = OURS[0]
            if block.get("@architectures") in OURS:
                block["precision"] = precision
        if "max_batch_items" in config and precision is not None:
            config["max_batch_items"] = max(config["max_batch_items"], MAX_BATCH_ITEMS)
            pipe.cfg["max_batch_items"] = config["max_batch_items"]
    if precision is not None:
        _resolve_auto([pipe for name, pipe in nlp.components if name not in pipes], precision)
    if pipes and precision is not None:
        nlp.batch_size = max(nlp.batch_size, BATCH_SIZE)
        nlp.config["nlp"]["batch_size"] = nlp.batch_size
    return nlp


def resolved_precision(nlp: Language) -> Optional[str]:
    """The precision that the first transformer of a pipeline predicts in, "auto" resolved.

    A tool that continues its work elsewhere, or in other processes, stores this and accelerates
    with it: "auto" may be another precision there.

    nlp: A pipeline with weights.

    Returns None for a pipeline that is not accelerated, or has no transformer.
    """
    for _, pipe in nlp.components:
        model = getattr(pipe, "model", None)
        for node in model.walk() if isinstance(model, Model) else ():
            if isinstance(node, Transformer):
                return node.shim.resolved_precision
    return None


def _resolve_auto(pipes: List[Any], precision: str) -> None:
    """Give a precision to the components without a transformer whose own setting is "auto"."""
    models = [pipe.model for pipe in pipes if isinstance(getattr(pipe, "model", None), Model)]
    for shim in (shim for model in models for node in model.walk() for shim in node.shims):
        if isinstance(shim, PredictionShim) and shim.precision == "auto":
            shim.set_precision(precision)


def _over_transformer(pipe: Any) -> bool:
    """Whether a component has a transformer, or listens to one."""
    model = getattr(pipe, "model", None)
    if not isinstance(model, Model):
        return False
    return any(isinstance(node, (TransformerModel, TransformerListener)) for node in model.walk())


def _has_setting(nlp: Language, name: str) -> bool:
    """Whether the config of a component has a place for the precision; ours must have one."""
    for block in _blocks(nlp.get_pipe_config(name)):
        architecture = str(block.get("@architectures"))
        if architecture.startswith("spacy-transformers.Tok2VecTransformer."):
            if nlp.get_pipe_meta(name).factory == FACTORY:
                raise InputError(
                    f"[{name}] expected a transformer of {[*OURS[:2]]}, got {architecture!r}, "
                    "which has no setting for its precision. Train it as a component "
                    "`transformer` that this one listens to."
                )
            return False
    return True


def _blocks(config: Any) -> Iterator[Dict[str, Any]]:
    """Yield a block of a config, and all in it."""
    if isinstance(config, dict):
        yield config
        for value in config.values():
            yield from _blocks(value)
