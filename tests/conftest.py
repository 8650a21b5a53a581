"""Fixtures: everything here is small, made on the spot, and needs no network."""

import os
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import pytest
import spacy
import torch
from spacy.training import Example

# The tensors here are small: more threads would only wait for each other.
torch.set_num_threads(1)

# Smaller than the default, and so faster.
TOK2VEC = {
    "@architectures": "spacy.HashEmbedCNN.v2",
    "pretrained_vectors": None,
    "width": 32,
    "depth": 1,
    "embed_size": 500,
    "window_size": 1,
    "maxout_pieces": 2,
    "subword_features": True,
}

LISTENER = {
    "@architectures": "spacy-transformers.TransformerListener.v1",
    "grad_factor": 1.0,
    "upstream": "*",
    "pooling": {"@layers": "reduce_mean.v1"},
}

SENTENCES = [
    ("Tim Cook visited Hanoi.", [(0, 8, "PERSON"), (17, 22, "GPE")]),
    ("", []),
    ("Nothing to see here, move along please.", []),
    (" \n ", []),
    ("Washington", [(0, 10, "GPE")]),
    ("Apple hired Ada Lovelace Byron in Paris Texas.",
     [(0, 5, "ORG"), (12, 30, "PERSON"), (34, 39, "GPE"), (40, 45, "GPE")]),
    ("An apple a day", []),
]  # fmt: skip


def make_examples(nlp, sentences=SENTENCES):
    """Examples of the tokens of a pipeline."""
    return [
        Example.from_dict(nlp.make_doc(text), {"entities": entities})
        for text, entities in sentences
    ]


def train(nlp, examples, steps=40, drop=0.0, **initialize):
    """Initialize a pipeline and fit it to examples; returns the last losses."""
    spacy.util.fix_random_seed(0)
    optimizer = nlp.initialize(lambda: examples, **initialize)
    optimizer.learn_rate = 0.005
    losses = {}
    for _ in range(steps):
        losses = nlp.update(examples, sgd=optimizer, drop=drop, losses={})
    return losses


@pytest.fixture(scope="session")
def trained():
    """A small pipeline that has learned the sentences by heart; not to be changed."""
    nlp = spacy.blank("en")
    nlp.add_pipe("crf_ner", config={"model": {"hidden_width": 32}})
    train(nlp, make_examples(nlp))
    return nlp


@pytest.fixture(scope="session")
def tiny_transformer(tmp_path_factory):
    """A folder with a real BERT of two small layers, random weights, and its tokenizer."""
    from transformers import BertConfig, BertModel, BertTokenizerFast

    folder = tmp_path_factory.mktemp("bert")
    letters = [chr(i) for i in range(33, 127)]
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters]
    vocabulary += [f"##{letter}" for letter in letters]
    (folder / "vocab.txt").write_text("\n".join(vocabulary), encoding="utf-8")
    spacy.util.fix_random_seed(0)
    tokenizer = BertTokenizerFast(str(folder / "vocab.txt"), model_max_length=128)
    tokenizer.save_pretrained(folder)
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=128,
    )
    BertModel(config).save_pretrained(folder)
    return str(folder)


def small_transformers():
    """Transformers of Hugging Face with random weights, of many kinds, each of three layers."""
    import transformers as hf

    size = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 32}
    size |= {"num_hidden_layers": 3, "num_attention_heads": 2}
    relative = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]}
    special = {f"{name}_token_id": 1 for name in ("pad", "bos", "eos", "cls", "sep")}
    configs = [
        hf.BertConfig(**size),
        hf.RobertaConfig(**size),
        hf.ElectraConfig(embedding_size=8, **size),
        hf.RemBertConfig(**size),
        hf.MPNetConfig(**size),
        hf.DebertaConfig(**relative, **size),
        hf.DebertaV2Config(norm_rel_ebd="layer_norm", **relative, **size),
        hf.ModernBertConfig(reference_compile=False, **special, **size),
        hf.DistilBertConfig(vocab_size=50, dim=16, n_layers=3, n_heads=2, hidden_dim=32),
        hf.GPT2Config(vocab_size=50, n_embd=16, n_layer=3, n_head=2),
        hf.XLNetConfig(vocab_size=50, d_model=16, n_layer=3, n_head=2, d_inner=32),
    ]
    return {config.model_type: hf.AutoModel.from_config(config) for config in configs}


@pytest.fixture(scope="session")
def data_folder():
    """The folder of the corpora that are not part of the project; skips where there is none."""
    root = Path(__file__).parent.parent
    folder = Path(os.environ.get("SPACY_CRF_NER_DATA", root.parent / "shared" / "data"))
    if not folder.exists():
        pytest.skip(f"no corpora in {folder}: set SPACY_CRF_NER_DATA to their folder")
    return folder
