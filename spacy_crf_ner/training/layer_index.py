"""The transformer layer of a weight, from the name of the weight."""

import re

_LAYER = re.compile(r"(?:^|\.)(?:layers?|blocks?|h)\.(\d+)\.")
# In DeBERTa, `encoder.LayerNorm` is the norm of the embeddings of relative positions.
_EMBEDDINGS = re.compile(
    r"(?:^|\.)(?:\w*embeddings\w*|embed_\w+|word_embedding|embedding_hidden_mapping_in"
    r"|relative_attention_bias|wte|wpe|encoder\.LayerNorm)(?:\.|$)"
)


def layer_index(name: str) -> int | None:
    """Return the layer of a weight: 0 for the embeddings, i + 1 for layer i, counted from 0.

    name: The name of the weight in a torch module, in the style of Hugging Face's encoders, such as
        "encoder.layer.3.output.dense.weight" of BERT or "layers.3.mlp.Wi.weight" of ModernBERT.

    Returns None for a weight above the layers, or outside a transformer.
    """
    layer = _LAYER.search(name)
    if layer:
        return int(layer[1]) + 1
    return 0 if _EMBEDDINGS.search(name) else None
