"""The positions of a transformer; the oracle runs transformers on longer and longer texts."""

from typing import Any

import pytest
import torch
import transformers as hf

from spacy_crf_ner.ml.transformer.stored import UNLIMITED, max_positions

N = 12
SIZE = {"vocab_size": 9, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
SIZE |= {"num_attention_heads": 2, "max_position_embeddings": N, "pad_token_id": 1}
RELATIVE = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "max_relative_positions": 4}
CONFIGS = [
    hf.BertConfig(**SIZE),
    hf.RobertaConfig(**SIZE),
    hf.XLMRobertaConfig(**SIZE),
    hf.CamembertConfig(**SIZE),
    hf.MPNetConfig(**SIZE),
    hf.ElectraConfig(embedding_size=8, **SIZE),
    hf.DebertaV2Config(**RELATIVE, **SIZE),
    hf.DebertaV2Config(position_biased_input=False, **RELATIVE, **SIZE),
    hf.DistilBertConfig(vocab_size=9, dim=8, n_layers=1, n_heads=2, max_position_embeddings=N),
    hf.GPT2Config(vocab_size=9, n_embd=8, n_layer=1, n_head=2, n_positions=N),
    hf.AlbertConfig(embedding_size=8, **SIZE),
    hf.T5Config(vocab_size=9, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2),
    hf.XLNetConfig(vocab_size=9, d_model=8, n_layer=1, n_head=2, d_inner=8),
]


def runs(model: Any, length: int) -> bool:
    try:
        model(torch.full((1, length), 5), attention_mask=torch.ones(1, length))
    except (IndexError, RuntimeError):
        return False
    return True


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.model_type)
def test_max_positions_is_the_longest_text_that_runs(config: Any) -> None:
    is_t5 = config.model_type == "t5"
    model = (hf.AutoModelForTextEncoding if is_t5 else hf.AutoModel).from_config(config).eval()
    longest = max(n for n in range(1, 4 * N) if runs(model, n))
    expected = UNLIMITED if longest == 4 * N - 1 else longest
    assert max_positions(config) == expected
    assert longest in (N - 2, N, 4 * N - 1)
