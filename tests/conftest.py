"""Fixtures: everything here is small, made on the spot, and needs no network."""

import os
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import pytest
import spacy
import torch

from phobert import make_phobert
from pipelines import make_examples, train

# The tensors here are small: more threads would only wait for each other.
torch.set_num_threads(1)


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


@pytest.fixture(scope="session")
def phobert(tmp_path_factory):
    """A folder with PhoBERT's tokenizer, of few words, and a RoBERTa with random weights."""
    return make_phobert(tmp_path_factory.mktemp("phobert"))


@pytest.fixture(scope="session")
def data_folder():
    """The folder of the corpora that are not part of the project; skips where there is none."""
    root = Path(__file__).parents[1]
    folder = Path(os.environ.get("SPACY_CRF_NER_DATA", root.parent / "shared" / "data"))
    if not folder.exists():
        pytest.skip(f"no corpora in {folder}: set SPACY_CRF_NER_DATA to their folder")
    return folder
