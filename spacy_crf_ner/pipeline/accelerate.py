"""A pipeline that predicts as fast as its hardware can, and trains as before."""

from typing import Any, Dict, Iterator, Optional

from spacy.language import Language
from spacy_transformers.layers.listener import TransformerListener
from spacy_transformers.layers.transformer_model import TransformerModel
from thinc.api import Model, get_torch_default_device

from ..ml.precision import PredictionShim, choose, require_precision
from ..ml.transformer.model import adopt

FACTORY = "crf_ner"
# The architectures with the setting `precision`, and in whose place the first of them is put.
OURS = (
    "spacy-crf-ner.TransformerModel.v1",
    "spacy-crf-ner.Tok2VecTransformer.v1",
    "spacy-crf-ner.BiLSTMCRF.v1",
    "spacy-crf-ner.RNNEncoder.v1",
)
ADOPTED = tuple(f"spacy-transformers.TransformerModel.v{version}" for version in (1, 2, 3))
# The tokens, padding of docs included, that go through a transformer at once: as many as its
# hidden states leave room for, as the more windows there are, the more of them are of one length.
MAX_BATCH_ITEMS = 2**16
BATCH_SIZE = 512  # docs that nlp.pipe holds, for the same reason


def accelerate(nlp: Language, precision: Optional[str] = "auto") -> Language:
    """Let a pipeline predict as fast as the hardware can, with the same or nearly the same result.

    Its transformers, and the recurrent encoders above them, compute in the precision. A transformer
    takes the docs that `nlp.pipe` holds by the length of their windows, and computes nothing of
    which nothing is read; `nlp.pipe` holds 512 docs, or more, unless it is called with another
    `batch_size`. This is a setting: it is saved with the pipeline. Training is as before; only what
    `spacy train` measures on the way is predicted so too.

    nlp: A trained pipeline; it is changed.
    precision: "fp32" changes no result. "bf16" is fast on a CPU with AMX, and on a GPU;
        "fp16" on a GPU; "int8" on a CPU, with the extra `int8`. "auto" is the cheapest of them that
        the hardware does well, found anew wherever the pipeline is loaded. None undoes it, but for
        the numbers of docs and tokens that are taken at a time.

    Returns the pipeline.
    Raises ValueError for an unknown precision, for one that the hardware does not have or that
    lacks its packages, and for a `crf_ner` whose transformer is a Tok2VecTransformer of
    spacy-transformers, which has no such setting.
    """
    require_precision(precision)
    if precision is not None:
        choose(precision, get_torch_default_device())
    pipes: Dict[str, Any] = {
        name: pipe
        for name, pipe in nlp.components
        if _over_transformer(pipe) and _settable(nlp, name)
    }
    for name, pipe in pipes.items():
        for node in pipe.model.walk():
            if isinstance(node, TransformerModel):
                adopt(node)
            for shim in node.shims:
                if isinstance(shim, PredictionShim):
                    shim.precision = precision
        config = nlp.get_pipe_config(name)
        for block in _blocks(config):
            if block.get("@architectures") in ADOPTED:
                block["@architectures"] = OURS[0]
            if block.get("@architectures") in OURS:
                block["precision"] = precision
        if "max_batch_items" in config and precision is not None:
            config["max_batch_items"] = max(config["max_batch_items"], MAX_BATCH_ITEMS)
            pipe.cfg["max_batch_items"] = config["max_batch_items"]
    if pipes and precision is not None:
        nlp.batch_size = max(nlp.batch_size, BATCH_SIZE)
        nlp.config["nlp"]["batch_size"] = nlp.batch_size
    return nlp


def _over_transformer(pipe: Any) -> bool:
    """Whether a component has a transformer, or listens to one."""
    model = getattr(pipe, "model", None)
    if not isinstance(model, Model):
        return False
    return any(isinstance(node, (TransformerModel, TransformerListener)) for node in model.walk())


def _settable(nlp: Language, name: str) -> bool:
    """Whether the config of a component has a place for the setting; it must where it is ours."""
    for block in _blocks(nlp.get_pipe_config(name)):
        architecture = str(block.get("@architectures"))
        if architecture.startswith("spacy-transformers.Tok2VecTransformer."):
            if nlp.get_pipe_meta(name).factory == FACTORY:
                raise ValueError(
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
