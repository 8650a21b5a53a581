"""The number of positions of a transformer."""

from typing import Any

# In these model families the first positions belong to padding.
SHIFTED = ("roberta", "camembert", "mpnet", "longformer", "data2vec", "ibert", "luke", "xmod")
UNLIMITED = 10**9


def max_positions(config: Any) -> int:
    """Return the number of positions of a transformer of Hugging Face; `UNLIMITED` if relative."""
    n = getattr(config, "max_position_embeddings", None)
    relative = getattr(config, "position_embedding_type", "absolute") != "absolute"
    relative |= not getattr(config, "position_biased_input", True)  # DeBERTa
    if relative or not isinstance(n, int) or n <= 0:
        return UNLIMITED
    is_shifted = any(family in config.model_type for family in SHIFTED)
    return n - (config.pad_token_id + 1) if is_shifted else n
