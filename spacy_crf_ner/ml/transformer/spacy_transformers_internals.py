"""The internals of spacy-transformers that this package uses.

- `TransformerModel`, its `init` and `forward`, the shim and `convert_inputs` of its first layer:
  ours is the same with another class, forward pass, shim and inputs (`change_class`).
- `HFShim` and its `_hfmodel`, an `HFObjects`: the tokenizer and the transformer.
- `FullTransformerBatch`, `TransformerData`, `WordpieceBatch`: the output of the layer.
- `split_trf_batch`, `trfs2arrays`, `replace_listener_cfg`: a transformer for one component alone.
- `forward` of `trfs2arrays`: our own does the same for a whole batch, on a GPU.
- `get_alignment_via_offset_mapping`: the alignment of a slow tokenizer.
- `TransformerListener`: a component that has one uses a transformer.

None has a public counterpart. tests/ml/test_internals.py names what breaks without each.
"""

from collections.abc import Callable
from typing import Any, cast

from spacy_transformers.align import (
    get_alignment_via_offset_mapping as get_alignment_via_offset_mapping,
)
from spacy_transformers.data_classes import FullTransformerBatch as FullTransformerBatch
from spacy_transformers.data_classes import HFObjects as HFObjects
from spacy_transformers.data_classes import TransformerData as TransformerData
from spacy_transformers.data_classes import WordpieceBatch as WordpieceBatch
from spacy_transformers.layers._util import replace_listener_cfg as replace_listener_cfg
from spacy_transformers.layers.hf_shim import HFShim as HFShim
from spacy_transformers.layers.listener import TransformerListener as TransformerListener
from spacy_transformers.layers.split_trf import split_trf_batch as split_trf_batch
from spacy_transformers.layers.transformer_model import TransformerModel as TransformerModel
from spacy_transformers.layers.transformer_model import forward as forward
from spacy_transformers.layers.transformer_model import init as init
from spacy_transformers.layers.trfs2arrays import forward as _pool_by_doc
from spacy_transformers.layers.trfs2arrays import trfs2arrays as trfs2arrays

pool_by_doc: Callable[..., Any] = _pool_by_doc


def hf_shim(layer: TransformerModel) -> HFShim:
    """Return the shim that holds the weights of a transformer layer."""
    return cast(HFShim, layer.layers[0].shims[0])


def change_class(
    layer: TransformerModel,
    layer_class: type[TransformerModel],
    shim_class: type[HFShim],
    init: Callable[..., None],
    forward: Callable[..., Any],
    convert_inputs: Callable[..., Any],
) -> None:
    """Replace the classes and functions of a layer, in place; it keeps its weights.

    Args:
        convert_inputs: Converts wordpieces to arguments of the transformer.
    """
    layer.__class__, layer.init, layer._func = layer_class, init, forward
    layer.layers[0].attrs["convert_inputs"] = convert_inputs
    hf_shim(layer).__class__ = shim_class
