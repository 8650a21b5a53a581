"""What a transformer has no position for is cut; the oracle runs transformers on longer texts."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import spacy
import torch
import transformers as hf

from pipelines import SENTENCES, make_examples
from spacy_crf_ner.ml.transformer.positions import UNLIMITED, limit_length, max_positions

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
    model = hf.AutoModel.from_config(config).eval()
    longest = max(n for n in range(1, 4 * N) if runs(model, n))
    expected = UNLIMITED if longest == 4 * N - 1 else longest
    assert max_positions(config) == expected
    assert longest in (N - 2, N, 4 * N - 1)
    for known in (5, int(1e30)):
        tokenizer: Any = type("Tokenizer", (), {"model_max_length": known})
        assert limit_length(tokenizer, config) == tokenizer.model_max_length == min(known, expected)


@pytest.fixture(scope="module")
def unlimited(tiny_transformer: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The small BERT, whose tokenizer does not know its 128 positions."""
    folder = tmp_path_factory.mktemp("unlimited") / "bert"
    shutil.copytree(tiny_transformer, folder)
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text())
    del config["model_max_length"]
    path.write_text(json.dumps(config))
    assert hf.AutoTokenizer.from_pretrained(folder).model_max_length > 10**20
    return str(folder)


def over(name: str, dtype: str | None) -> Any:
    """A pipeline that reads a document at once."""
    nlp = spacy.blank("en")
    model = {
        "@architectures": "spacy-crf-ner.TransformerModel.v1",
        "name": name,
        "get_spans": {"@span_getters": "spacy-transformers.doc_spans.v1"},
        "dtype": dtype,
    }
    nlp.add_pipe("transformer", config={"model": model})
    spacy.util.fix_random_seed(0)
    nlp.initialize()
    return nlp


@pytest.mark.parametrize("dtype", [None, "fp32"])
def test_a_longer_window_is_cut_at_the_positions(
    dtype: str | None, unlimited: str, tiny_transformer: str, tmp_path: Path
) -> None:
    text = " ".join("abcdefgh"[: 1 + i % 8] for i in range(60))
    nlp, known = over(unlimited, dtype), over(tiny_transformer, dtype)
    nlp.to_disk(tmp_path)
    for each in (nlp, spacy.load(tmp_path)):
        data, expected = each(text)._.trf_data, known(text)._.trf_data
        assert data.align.lengths.tolist() == expected.align.lengths.tolist()
        assert data.align.lengths[0] == 1 and data.align.lengths[-1] == 0
        torch.testing.assert_close(data.tensors[0], expected.tensors[0])


def test_training_on_a_longer_window_is_cut_at_the_positions(unlimited: str) -> None:
    nlp = over(unlimited, None)
    text = " ".join(text for text, _ in SENTENCES) * 3
    (example,) = make_examples(nlp, [(text, [])])
    pipe = nlp.get_pipe("transformer")
    output, _ = pipe.model.begin_update([example.predicted])
    assert output.wordpieces.input_ids.shape[1] == 128
