"""Export a trained pipeline to one that predicts without torch and transformers."""

from collections.abc import Iterator
from typing import Any, cast

import spacy
from spacy.language import Language
from spacy.util import registry, split_requirement
from thinc.api import Model

from . import __version__
from .evaluation.guarantees import guarantees, renew
from .extras import require
from .input_error import InputError
from .ml.onnx_network import OnnxShim, onnx_network
from .pipeline.lookup import FACTORY, recognizer

DTYPE_NAMES = ("fp32", "int8")
BATCH_SIZE = 512  # docs in a batch of nlp.pipe, as `accelerate` sets it
# Blocks of a config that only training reads. Their functions may need torch.
TRAINING = ("corpora", "training", "pretraining", "initialize")
# The parts of a network that run in ONNX Runtime, by their architectures.
KINDS = {"spacy-crf-ner.CharWordEmbed.v1": "words", "spacy-crf-ner.Transformer.v1": "transformer"}
TORCH_PACKAGES = {"torch", "transformers", "spacy-transformers", "spacy-crf-ner"}

Block = dict[str, Any]
Layer = Model[Any, Any]


def export_pipeline(nlp: Language, dtype: str = "fp32") -> Language:
    """Convert a trained pipeline to one that predicts without torch and transformers.

    The transformer, the recurrent encoder and the layer over characters run in ONNX Runtime. A
    transformer that only `crf_ner` components listen to becomes a part of each of them. Settings
    and calibration stay; the result can no longer be trained.

    Args:
        nlp: A trained pipeline with a `crf_ner` component; it is changed.
        dtype: "fp32" changes no entity and keeps guarantees. "int8" quantizes the linear layers
            of the transformer, and drops guarantees: fit them again.

    Returns:
        The pipeline, for `nlp.to_disk`.

    Raises:
        InputError: For a pipeline without `crf_ner` or with a disabled one, for other components
            and layers that need torch, for an unknown dtype, for missing packages of the extras
            `train` and `int8`, for int8 without a transformer, for a network that ONNX cannot
            express, and for a pipeline that has changed since its guarantees were given.
    """
    if dtype not in DTYPE_NAMES:
        raise InputError(f"dtype: expected one of {[*DTYPE_NAMES]}, got {dtype!r}.")
    require("train")
    require("int8")
    names = [each for each in nlp.component_names if nlp.get_pipe_meta(each).factory == FACTORY]
    if not names:
        raise InputError(
            f"component: expected a pipeline with a {FACTORY} component, got one with "
            f"{nlp.component_names}. Export a pipeline that has this component."
        )
    for name in names:
        if name not in nlp.pipe_names:
            raise InputError(
                f"[{name}] expected an enabled component, got a disabled one. Enable it with "
                "nlp.enable_pipe, or remove it from the pipeline."
            )
    shared = _shared_networks(nlp, names)
    made = {name: _network(nlp, name, dtype == "int8") for name in names}
    parts = [each for _, model in made.values() for each in model.shims[0].state["parts"]]
    if dtype == "int8" and not any(each["kind"] == "transformer" for each in parts):
        raise InputError(
            "dtype: int8 is for pipelines with a transformer, got one without. Choose fp32."
        )
    guaranteed = [name for name in names if guarantees(nlp, name)]
    for name, (block, model) in made.items():
        nlp.get_pipe_config(name)["model"] = block
        recognizer(nlp, name).model = model
    for name in shared:
        nlp.remove_pipe(name)
    for name in guaranteed:
        if dtype == "fp32":
            renew(nlp, name)
        else:
            recognizer(nlp, name).cfg["guarantees"] = {}
    blank = spacy.blank(str(nlp.lang)).config
    nlp.config.update({section: blank[section] for section in TRAINING})
    if shared:
        nlp.batch_size = nlp.config["nlp"]["batch_size"] = max(nlp.batch_size, BATCH_SIZE)
    # For `spacy package`.
    needed = nlp.meta.get("requirements", [])
    kept = [each for each in needed if split_requirement(each)[0] not in TORCH_PACKAGES]
    nlp.meta["requirements"] = [*kept, f"spacy-crf-ner[runtime]>={__version__}"]
    return nlp


def _shared_networks(nlp: Language, recognizer_names: list[str]) -> list[str]:
    """Find the components with torch that recognizers listen to; raise InputError for others."""
    found = []
    for name, pipe in nlp.components:
        model = getattr(pipe, "model", None)
        if name in recognizer_names or not isinstance(model, Model) or not _has_torch(model):
            continue
        listeners = getattr(pipe, "listening_components", [])
        others = [each for each in listeners if each not in recognizer_names]
        if not listeners or others:
            got = f"{name!r}, to which {', '.join(others)} listens too" if others else f"{name!r}"
            raise InputError(
                f"expected no component that needs torch but {FACTORY}, and those that it alone "
                f"listens to, got {got}. Export a pipeline without it: nlp.remove_pipe."
            )
        found.append(name)
    return found


def _has_torch(model: Layer) -> bool:
    return any(not isinstance(shim, OnnxShim) for node in model.walk() for shim in node.shims)


def _network(nlp: Language, name: str, int8: bool) -> tuple[Block, Any]:
    """Convert the model of a `crf_ner` component: the block of its config, and the model."""
    from .ml.onnx_states import head_state, transformer_state, words_state

    block, model = nlp.get_pipe_config(name)["model"], recognizer(nlp, name).model
    architecture = block["@architectures"]
    if architecture != "spacy-crf-ner.BiLSTMCRF.v1":
        raise InputError(
            f"[{name}] expected a trained model of the architecture "
            f"'spacy-crf-ner.BiLSTMCRF.v1', got {architecture!r}. Export that one."
        )
    settings: Block = {"decoder": block.get("decoder", "crf"), "layers": {}, "get_spans": {}}
    layers: dict[str, Layer] = {}
    parts: list[Block] = []
    for own, layer in _parts(nlp, name, block["tok2vec"], model.get_ref("tok2vec")):
        kind, number, state = KINDS.get(_architecture(own), "layer"), str(len(parts)), {}
        if kind == "words":
            state = words_state(layer)
        elif kind == "transformer":
            state = transformer_state(layer, own.get("pooling", "mean"), int8)
            if own.get("get_spans") is not None:
                settings["get_spans"][number] = own["get_spans"]
        else:
            settings["layers"][number], layers[number] = own, layer
        parts.append({"kind": kind, "settings": state})
    head = model.get_ref("output_layer")
    resolved = registry.resolve({"of": settings["get_spans"]})["of"]
    made = onnx_network(settings["decoder"], layers, resolved)
    for dim in ("nI", "nO"):
        made.set_dim(dim, head.get_dim(dim))
    cast(OnnxShim, made.shims[0]).load({"parts": parts, **head_state(head)})
    return {"@architectures": "spacy-crf-ner.OnnxNetwork.v1", **settings}, made


def _architecture(block: Block) -> str:
    return block.get("@architectures") or block.get("@layers") or ""


def _parts(nlp: Language, name: str, block: Block, layer: Layer) -> Iterator[tuple[Block, Layer]]:
    """Yield the layers whose vectors are side by side, with the blocks of their configs."""
    architecture = _architecture(block)
    if architecture == "spacy-crf-ner.ConcatenateVectors.v1":
        for own, part in zip(block["*"].values(), layer.layers):
            yield from _parts(nlp, name, own, part)
        return
    needs_torch = architecture not in KINDS and _has_torch(layer)
    components: list[tuple[str, Any]] = nlp.components
    for upstream, pipe in components:
        listeners = getattr(pipe, "listeners", ())
        if not listeners or not _has_torch(pipe.model):
            continue
        if layer in listeners:
            yield from _parts(nlp, name, nlp.get_pipe_config(upstream)["model"], pipe.model)
            return
        needs_torch |= any(node in listeners for node in layer.walk())
    if needs_torch:
        raise InputError(
            f"[{name}] expected token vectors of spaCy, 'spacy-crf-ner.Transformer.v1' or "
            f"'spacy-crf-ner.CharWordEmbed.v1', got {architecture!r}, which needs torch and "
            "cannot be exported. Train a pipeline with one of these."
        )
    yield block, layer
