"""How deep in a transformer a weight lies, as its name tells."""

import re
from typing import Optional

_LAYER = re.compile(r"(?:^|\.)(?:layers?|blocks?|h)\.(\d+)\.")
# In DeBERTa, `encoder.LayerNorm` is that of the embeddings of relative positions.
_EMBEDDINGS = re.compile(
    r"(?:^|\.)(?:\w*embeddings\w*|embed_\w+|word_embedding|embedding_hidden_mapping_in"
    r"|relative_attention_bias|wte|wpe|encoder\.LayerNorm)(?:\.|$)"
)


def depth(name: str) -> Optional[int]:
    """Tell how deep a weight lies: 0 in the embeddings, i + 1 in layer i, counted from 0.

    name: Of the weight in a torch module. The names of Hugging Face's encoders are known, as
        "encoder.layer.3.output.dense.weight" of BERT, "layers.3.mlp.Wi.weight" of ModernBERT.

    Returns None for a weight above the layers, or outside a transformer.
    """
    layer = _LAYER.search(name)
    if layer:
        return int(layer[1]) + 1
    return 0 if _EMBEDDINGS.search(name) else None
