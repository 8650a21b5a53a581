"""What this package takes from spacy-transformers beyond its registered functions.

- `TransformerModel`, its `init` and `forward`, and the shim in its first layer: our layer is
  theirs, with another class, forward pass and shim (`change_class`).
- `HFShim` and its `_hfmodel`: the tokenizer and the transformer.
- `split_trf_batch`, `trfs2arrays`, `replace_listener_cfg`: a transformer for one component alone.
- `get_alignment_via_offset_mapping`: the alignment of a slow tokenizer.

None has a public counterpart. tests/ml/test_internals.py names what breaks without each.
"""

from typing import Any, Callable, Dict, Type, cast

from spacy_transformers.align import get_alignment_via_offset_mapping
from spacy_transformers.layers._util import replace_listener_cfg
from spacy_transformers.layers.hf_shim import HFShim
from spacy_transformers.layers.split_trf import split_trf_batch
from spacy_transformers.layers.transformer_model import TransformerModel, forward, init
from spacy_transformers.layers.trfs2arrays import trfs2arrays

__all__ = [
    "HFShim",
    "TransformerModel",
    "change_class",
    "forward",
    "get_alignment_via_offset_mapping",
    "hf_shim",
    "init",
    "own_transformer_config",
    "split_trf_batch",
    "trfs2arrays",
]


def hf_shim(layer: TransformerModel) -> HFShim:
    """The shim that holds the weights of a transformer layer."""
    return cast(HFShim, layer.layers[0].shims[0])


def change_class(
    layer: TransformerModel,
    layer_class: Type[TransformerModel],
    shim_class: Type[HFShim],
    init: Callable[..., None],
    forward: Callable[..., Any],
    replace_config: Callable[[Dict[str, Any], Dict[str, Any]], Dict[str, Any]],
) -> None:
    """Give a transformer layer other classes and functions, in place; it keeps its weights.

    layer_class, shim_class: Its classes.
    init, forward: Its functions, as thinc's Model has them.
    replace_config: From the configs of the layer and of a listener to that of the layer which
        `nlp.replace_listeners` puts in the listener's place.
    """
    layer.__class__, layer.init, layer._func = layer_class, init, forward
    hf_shim(layer).__class__ = shim_class
    layer.attrs["replace_listener_cfg"] = replace_config


def own_transformer_config(shared: Dict[str, Any], listener: Dict[str, Any]) -> Dict[str, Any]:
    """The config, of a Tok2VecTransformer, that takes the place of a listener to a transformer."""
    config: Dict[str, Any] = replace_listener_cfg(shared, listener)  # type: ignore[no-untyped-call]
    return config
