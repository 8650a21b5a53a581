"""Export a trained pipeline to one that predicts without torch and transformers."""

from dataclasses import dataclass
from typing import Any

import spacy
from spacy.language import Language
from spacy.util import registry, split_requirement
from thinc.api import Model

from . import __version__
from .evaluation.guarantees import guarantees, renew
from .extras import require
from .input_error import InputError
from .ml.concatenate import concatenate
from .ml.onnx_layers import onnx_bilstm_crf, onnx_char_word_embed, onnx_shim
from .ml.onnx_shim import OnnxShim
from .ml.transformer.onnx_transformer import onnx_transformer
from .pipeline.lookup import FACTORY, recognizer

DTYPE_NAMES = ("fp32", "int8")
BATCH_SIZE = 512  # docs in a batch of nlp.pipe, as `accelerate` sets it
# Blocks of a config that only training reads. Their functions may need torch.
TRAINING = ("corpora", "training", "pretraining", "initialize")
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
            of the transformer, and drops guarantees: calibrate the result.

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
    export = _Export(nlp, dtype == "int8")
    made = {name: export.model(name) for name in names}
    if dtype == "int8" and not export.has_transformer:
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


@dataclass
class _Export:
    """Converts the models of a pipeline: the blocks of their configs, and their layers.

    Attributes:
        int8: Whether to quantize transformers.
        has_transformer: Whether one was converted.
    """

    nlp: Language
    int8: bool
    has_transformer: bool = False

    def model(self, name: str) -> tuple[Block, Layer]:
        """Convert the model of a `crf_ner` component."""
        from .ml.onnx_states import bilstm_crf_state

        block, model = self.nlp.get_pipe_config(name)["model"], recognizer(self.nlp, name).model
        architecture = block["@architectures"]
        if architecture != "spacy-crf-ner.BiLSTMCRF.v1":
            raise InputError(
                f"[{name}] expected a trained model of the architecture "
                f"'spacy-crf-ner.BiLSTMCRF.v1', got {architecture!r}. Export that one."
            )
        decoder, head = block.get("decoder", "crf"), model.get_ref("output_layer")
        state = bilstm_crf_state(head)
        tok2vec_block, tok2vec = self.tok2vec(name, block["tok2vec"], model.get_ref("tok2vec"))
        made = onnx_bilstm_crf(tok2vec, decoder)
        for dim in ("nI", "nO"):
            made.get_ref("output_layer").set_dim(dim, head.get_dim(dim))
        onnx_shim(made.get_ref("output_layer")).state = state
        exported = {"@architectures": "spacy-crf-ner.OnnxBiLSTMCRF.v1", "decoder": decoder}
        return {**exported, "tok2vec": tok2vec_block}, made

    def tok2vec(self, name: str, block: Block, layer: Layer) -> tuple[Block, Layer]:
        """Convert a layer of the component `name`, from docs to vectors."""
        architecture = block.get("@architectures") or block.get("@layers")
        if architecture == "spacy-crf-ner.ConcatenateVectors.v1":
            parts = [self.tok2vec(name, *each) for each in zip(block["*"].values(), layer.layers)]
            blocks, layers = zip(*parts)
            made: Layer = concatenate(*layers)
            made.set_dim("nO", layer.get_dim("nO"))
            return {**block, "*": dict(zip(block["*"], blocks))}, made
        if architecture == "spacy-crf-ner.CharWordEmbed.v1":
            return self._words(block, layer)
        if architecture == "spacy-crf-ner.Transformer.v1":
            return self._transformer(block, layer)
        needs_torch = _has_torch(layer)
        components: list[tuple[str, Any]] = self.nlp.components
        for upstream, pipe in components:
            listeners = getattr(pipe, "listeners", ())
            if not listeners or not _has_torch(pipe.model):
                continue
            if layer in listeners:
                return self.tok2vec(name, self.nlp.get_pipe_config(upstream)["model"], pipe.model)
            needs_torch |= any(node in listeners for node in layer.walk())
        if needs_torch:
            raise InputError(
                f"[{name}] expected token vectors of spaCy, 'spacy-crf-ner.Transformer.v1' or "
                f"'spacy-crf-ner.CharWordEmbed.v1', got {architecture!r}, which needs torch and "
                "cannot be exported. Train a pipeline with one of these."
            )
        return block, layer

    def _words(self, block: Block, layer: Layer) -> tuple[Block, Layer]:
        from .ml.onnx_states import char_word_embed_state

        settings = {key: value for key, value in block.items() if not key.startswith("@")}
        made = onnx_char_word_embed(**settings)
        made.set_dim("nO", layer.get_dim("nO"))
        onnx_shim(made).state = char_word_embed_state(layer)
        return {"@architectures": "spacy-crf-ner.OnnxCharWordEmbed.v1", **settings}, made

    def _transformer(self, block: Block, layer: Layer) -> tuple[Block, Layer]:
        from .ml.onnx_states import transformer_state

        self.has_transformer = True
        settings: Block = {name: block[name] for name in ("get_spans", "pooling") if name in block}
        made = onnx_transformer(**registry.resolve({"of": settings})["of"])
        made.set_dim("nO", layer.get_dim("nO"))
        onnx_shim(made).state = transformer_state(layer, self.int8)
        return {"@architectures": "spacy-crf-ner.OnnxTransformer.v1", **settings}, made
