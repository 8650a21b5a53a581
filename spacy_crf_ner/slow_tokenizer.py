"""Transformers with a slow tokenizer, such as PhoBERT, made to work as those with a fast one.

A fast tokenizer says of each subword which characters it is. With a slow one spacy-transformers
compares strings, `H@@ à` with `Hà`. That misses subwords that are not in the vocabulary, as those
of an emoji, and takes an @ of the text for part of a continuation mark. Here each subword is found
by its length in the word that the tokenizer made it of. And a pipeline that was loaded cannot be
saved by spacy-transformers, as one of the tokenizer's files is gone; here it is written anew.
"""

import re
from dataclasses import replace
from itertools import accumulate, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Callable, Dict, List, Optional, Tuple, cast

import numpy as np
from spacy.tokens import Doc, Span
from spacy.util import SimpleFrozenDict
from spacy_transformers.align import get_alignment_via_offset_mapping
from spacy_transformers.data_classes import FullTransformerBatch, HFObjects
from spacy_transformers.layers._util import replace_listener_cfg
from spacy_transformers.layers.split_trf import split_trf_batch
from spacy_transformers.layers.transformer_model import TransformerModel, forward
from spacy_transformers.layers.trfs2arrays import trfs2arrays
from thinc.api import Model, chain
from thinc.types import Floats2d, Ragged

from .transformer_training import MixedPrecision, TrainingShim, scaled

SpanGetter = Callable[[List[Doc]], List[List[Span]]]

CONTINUES = "@@"  # at the end of a subword that is not the last of its word
# What PhoBERT's tokenizer takes for a word; a line feed after it is part of it.
WORD = re.compile(r"\S+\n?")
NOTHING: Dict[str, Any] = SimpleFrozenDict()


class SlowTokenizerShim(TrainingShim):
    """spacy-transformers' shim, which saves a slow tokenizer also after it was loaded."""

    def to_bytes(self) -> bytes:
        """Write tokenizer and weights; the merges from memory, where their file is gone."""
        tokenizer = self._hfmodel.tokenizer
        file = getattr(tokenizer, "merges_file", None)
        with TemporaryDirectory() as folder:
            if file is not None and not Path(file).exists():
                ranks = tokenizer.bpe_ranks
                # The last column is a frequency, which the tokenizer does not read.
                lines = (f"{left} {right} 0\n" for left, right in sorted(ranks, key=ranks.get))
                tokenizer.merges_file = str(Path(folder) / Path(file).name)
                Path(tokenizer.merges_file).write_text("".join(lines), encoding="utf-8")
            state: bytes = super().to_bytes()  # type: ignore[no-untyped-call]
        return state


class SlowTokenizerModel(TransformerModel):
    """spacy-transformers' layer, with the subwords of each token found by their characters."""

    def __init__(
        self,
        name: str,
        get_spans: SpanGetter,
        tokenizer_config: Dict[str, Any],
        transformer_config: Dict[str, Any],
        mixed_precision: MixedPrecision,
        grad_scaler_config: Dict[str, Any],
    ):
        super().__init__(
            name,
            get_spans,
            tokenizer_config,
            transformer_config,
            scaled(mixed_precision),
            grad_scaler_config,
        )
        self._func = _forward
        self.attrs["replace_listener_cfg"] = _own_transformer
        shim = SlowTokenizerShim(
            HFObjects(None, None, None, tokenizer_config, transformer_config),
            mixed_precision=scaled(mixed_precision),
            grad_scaler_config=grad_scaler_config,
        )
        shim.mix(mixed_precision)
        self.layers[0].shims[0] = shim

    def copy(self) -> "SlowTokenizerModel":
        """Copy the layer and its weights; a copy aligns as this does."""
        copied = super().copy()  # type: ignore[no-untyped-call]  # of spacy-transformers' class
        copied.__class__, copied._func = type(self), self._func
        copied.attrs.update(self.attrs)
        return cast(SlowTokenizerModel, copied)


def transformer_model(
    name: str,
    get_spans: SpanGetter,
    tokenizer_config: Dict[str, Any] = NOTHING,
    transformer_config: Dict[str, Any] = NOTHING,
    mixed_precision: MixedPrecision = False,
    grad_scaler_config: Dict[str, Any] = NOTHING,
) -> Model[List[Doc], FullTransformerBatch]:
    """Make a transformer whose slow tokenizer aligns as exactly as a fast one.

    mixed_precision: True trains in float16 on a GPU; "bf16" does so too, and on a CPU trains in
        bfloat16, which pays where the CPU has AMX or AVX512-BF16.

    The other settings are those of `spacy-transformers.TransformerModel.v3`, and with a fast
    tokenizer, or a slow one of other marks than PhoBERT's, so is all that it does.

    Returns a layer from docs to the output of the transformer.
    """
    return SlowTokenizerModel(
        name,
        get_spans,
        dict(tokenizer_config),
        dict(transformer_config),
        mixed_precision,
        dict(grad_scaler_config),
    )


def tok2vec_transformer(
    name: str,
    get_spans: SpanGetter,
    tokenizer_config: Dict[str, Any],
    pooling: Model[Ragged, Floats2d],
    grad_factor: float = 1.0,
    transformer_config: Dict[str, Any] = NOTHING,
    mixed_precision: MixedPrecision = False,
    grad_scaler_config: Dict[str, Any] = NOTHING,
) -> Model[List[Doc], List[Floats2d]]:
    """Make such a transformer for one component alone, as `nlp.replace_listeners` does.

    All settings are those of `spacy-transformers.Tok2VecTransformer.v3`.

    Returns a layer from docs to one vector a token.
    """
    shared = transformer_model(
        name, get_spans, tokenizer_config, transformer_config, mixed_precision, grad_scaler_config
    )
    # A chain of a chain, as a listener that is replaced becomes one.
    return chain(chain(shared, split_trf_batch()), trfs2arrays(pooling, grad_factor))


def _own_transformer(ours: Dict[str, Any], listener: Dict[str, Any]) -> Dict[str, Any]:
    """The config of a component over this transformer that no longer listens, but has its own."""
    config: Dict[str, Any] = replace_listener_cfg(ours, listener)  # type: ignore[no-untyped-call]
    if config["@architectures"] != ours["@architectures"]:
        config["@architectures"] = "spacy-crf-ner.Tok2VecTransformer.v1"
    return config


def _forward(
    model: TransformerModel, docs: List[Doc], is_train: bool
) -> Tuple[FullTransformerBatch, Callable[..., Any]]:
    output, backprop = forward(model, docs, is_train)
    spans = [span for of_doc in output.spans for span in of_doc]
    if spans and not model.tokenizer.is_fast:
        width = output.wordpieces.input_ids.shape[1]
        offsets = [_offsets(model.tokenizer, span.text) for span in spans]
        found = [known for known in offsets if known is not None]
        if len(found) == len(spans):
            mapping = np.zeros((len(spans), width, 2), dtype="int64")
            for row, known in zip(mapping, found):
                row[: len(known)] = known[:width]
            align = get_alignment_via_offset_mapping(spans, mapping)  # type: ignore[arg-type]  # of spans
            output = replace(output, align=align)
    return output, backprop


def _offsets(tokenizer: Any, text: str) -> Optional[List[Tuple[int, int]]]:
    """Find (first character, last + 1) of each subword; None where they do not spell the text."""
    offsets: List[Tuple[int, int]] = []
    for match in WORD.finditer(text):
        pieces = tokenizer.tokenize(match[0])
        spelled = [piece.removesuffix(CONTINUES) for piece in pieces[:-1]] + pieces[-1:]
        if "".join(spelled) != match[0]:
            return None
        offsets += pairwise(accumulate(map(len, spelled), initial=match.start()))
    # The special tokens in front of the text have no characters.
    before = tokenizer.build_inputs_with_special_tokens([-1]).index(-1)
    return [(0, 0)] * before + offsets
