"""Small transformers of many kinds with random weights, and the kinds of tokenizers that they have.

The tokenizers have few subwords, so that most words have several.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from phobert import make_phobert

TEXTS = [
    "Tim Cook visited Hanoi.",
    "It is here: naïve café isn't 12.5 °C, so",
    " a  b \n 東京 東京 .",
]
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]
POSITIONS = 64
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def word_pieces() -> Any:
    """BERT's: lower case, without accents."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    letters = [*map(chr, range(33, 127)), *"東京°"]
    words = [*letters, *(f"##{letter}" for letter in letters), "##oo", "han", "is", "##it"]
    names = ["<s>", "<pad>", "</s>", "<unk>", *dict.fromkeys(words)]
    vocab = {name: i for i, name in enumerate(names)}
    tokenizer: Any = Tokenizer(models.WordPiece(vocab, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("</s>", 2), ("<s>", 0))
    return tokenizer


def byte_level(trim_offsets: bool = True, add_prefix_space: bool = False) -> Any:
    """RoBERTa's: a subword may be a part of a character, and begin with a space."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers

    tokenizer: Any = Tokenizer(models.BPE())
    level = pre_tokenizers.ByteLevel(add_prefix_space, trim_offsets)
    tokenizer.pre_tokenizer = level
    trainer = trainers.BpeTrainer(
        vocab_size=290, special_tokens=SPECIAL, initial_alphabet=level.alphabet()
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    ends: Any = ("</s>", 2), ("<s>", 0)
    tokenizer.post_processor = processors.RobertaProcessing(*ends, trim_offsets, add_prefix_space)
    return tokenizer


def unigram() -> Any:
    """XLM-R's: the offsets of a subword include the space before a word."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

    tokenizer: Any = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=70, special_tokens=SPECIAL, unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    special: Any = [("<s>", 0), ("</s>", 2)]
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A </s>", None, special)
    return tokenizer


def across_words() -> Any:
    """A subword may have several words, and there are no special ones."""
    from tokenizers import Tokenizer, models, trainers

    tokenizer: Any = Tokenizer(models.BPE(unk_token="<unk>"))
    trainer = trainers.BpeTrainer(vocab_size=90, special_tokens=SPECIAL, show_progress=False)
    tokenizer.train_from_iterator([f"{text} a b \n a b" for text in TEXTS], trainer)
    return tokenizer


TOKENIZERS: dict[str, Callable[[], Any]] = {
    "word pieces": word_pieces,
    "byte level": byte_level,
    "byte level with spaces": lambda: byte_level(trim_offsets=False),
    "byte level after a space": lambda: byte_level(add_prefix_space=True),
    "unigram": unigram,
    "across words": across_words,
}
ENCODERS = {
    "bert": "word pieces",
    "distilbert": "word pieces",
    "electra": "word pieces",
    "mpnet": "word pieces",
    "roberta": "byte level",
    "deberta": "byte level with spaces",
    "modernbert": "byte level after a space",
    "xlm-roberta": "unigram",
    "camembert": "unigram",
    "albert": "unigram",
    "deberta-v2": "unigram",
    "t5": "unigram",
    "squeezebert": "word pieces",  # it has a pooler, whatever its settings
    "phobert": "",
}


def make_encoder(kind: str, folder: Path) -> str:
    """Write a transformer of two layers, without dropout, and its tokenizer; returns the folder."""
    import torch
    from transformers import AutoConfig, AutoModel, AutoModelForTextEncoding

    folder.mkdir()
    if kind == "phobert":
        return make_phobert(folder)
    tokenizer = TOKENIZERS[ENCODERS[kind]]()
    tokenizer.save(str(folder / "tokenizer.json"))
    special = dict(zip(("bos_token", "pad_token", "eos_token", "unk_token"), SPECIAL))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": POSITIONS}
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, **special}))
    size = {
        "vocab_size": tokenizer.get_vocab_size(),
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "max_position_embeddings": POSITIONS + 2,
        "pad_token_id": 1,
        **NO_DROPOUT,
    }
    relative = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]}
    more: dict[str, dict[str, Any]] = {
        "distilbert": {"hidden_dim": 32, "dropout": 0.0, "attention_dropout": 0.0},
        "electra": {"embedding_size": 8},
        "albert": {"embedding_size": 8},
        "deberta": relative,
        "deberta-v2": {**relative, "position_biased_input": False, "norm_rel_ebd": "layer_norm"},
        "modernbert": dict.fromkeys([f"{x}_token_id" for x in ("bos", "eos", "cls", "sep")], 0),
        "squeezebert": {"embedding_size": 16}
        | {f"{x}_groups": 1 for x in ("q", "k", "v", "post_attention", "intermediate", "output")},
        "t5": {"d_kv": 8, "d_ff": 32, "dropout_rate": 0.0},
    }
    config = AutoConfig.for_model(kind, **size, **more.get(kind, {}))
    auto: Any = AutoModelForTextEncoding if config.is_encoder_decoder else AutoModel
    torch.manual_seed(0)
    auto.from_config(config).save_pretrained(folder)
    return str(folder)


def belongs(token: tuple[int, int], subword: tuple[int, int], text: str) -> bool:
    """Whether a subword is one of a token, by their characters; each is (first, last + 1).

    Spaces at the edges of a subword do not count, unless it has nothing else. A token of spaces has
    only such subwords.
    """
    start, end = subword
    own = text[start:end].strip()
    if own:
        start += len(text[start:end]) - len(text[start:end].lstrip())
        end = start + len(own)
    is_space = text[slice(*token)].isspace()
    return not (own and is_space) and max(token[0], start) < min(token[1], end)
