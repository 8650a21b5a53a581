"""A PhoBERT of few words with random weights: its tokenizer is a slow one."""

from pathlib import Path
from unicodedata import normalize

import spacy
from spacy.language import Language

from pipelines import add_shared
from spacy_crf_ner import data

ROOT = Path(__file__).parents[1]
TEXT = "Chủ tịch Nguyễn Văn A thăm Hà Nội"
SPANS = {"@misc": "spacy-crf-ner.strided_spans.v1", "window": 128, "stride": 96}
# Each word is built up from its letters, from left to right.
KNOWN = ["Hà_Nội", "Hà", "thăm", "Nguyễn", "Văn"]


def make_phobert(folder: Path) -> str:
    """Write PhoBERT's tokenizer, of few words, and a RoBERTa with random weights, into a folder."""
    from transformers import PhobertTokenizer, RobertaConfig, RobertaModel

    merges: list[tuple[str, str]] = []
    for word in KNOWN:
        letters = [*word[:-1], word[-1] + "</w>"]
        starts = ["".join(letters[:i]) for i in range(1, len(letters))]
        merges += [pair for pair in zip(starts, letters[1:], strict=True) if pair not in merges]
    composed = "".join(path.read_text("utf-8") for path in (ROOT / "assets/sample_vi").iterdir())
    letters = sorted(set(composed + normalize("NFD", composed) + "@_<>/" + TEXT) - set(" \n"))
    pieces = [piece for letter in letters for piece in (letter, f"{letter}@@")]
    pieces += ["".join(pair).removesuffix("</w>") + "@@" * (pair[1][-1] != ">") for pair in merges]
    (folder / "vocab.txt").write_text(
        "".join(f"{piece} 1\n" for piece in dict.fromkeys(pieces)), encoding="utf-8"
    )
    (folder / "bpe.codes").write_text("".join(f"{a} {b} 1\n" for a, b in merges), encoding="utf-8")
    files = (str(folder / "vocab.txt"), str(folder / "bpe.codes"))
    tokenizer = PhobertTokenizer(*files, model_max_length=256)
    tokenizer.save_pretrained(folder)
    spacy.util.fix_random_seed(0)
    config = RobertaConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=258,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        pad_token_id=1,
    )
    RobertaModel(config).save_pretrained(folder)
    return str(folder)


def make_over_phobert(phobert: str) -> Language:
    nlp = data.blank_pipeline("vi", segment=False)
    add_shared(nlp, phobert, get_spans=SPANS)
    nlp.initialize()
    return nlp
