"""The number of subwords that a transformer can read at once."""

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


def limit_length(tokenizer: Any, config: Any) -> int:
    """Let a tokenizer cut off what its transformer has no positions for; return the length.

    Many tokenizers on the hub do not know the length, and others know a wrong one.
    """
    tokenizer.model_max_length = min(int(tokenizer.model_max_length), max_positions(config))
    return int(tokenizer.model_max_length)
