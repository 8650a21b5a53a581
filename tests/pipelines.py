"""Small pipelines, the sentences they learn, and transformers with random weights."""

import numpy as np
import pytest
import spacy
from spacy.tokens import Doc, DocBin, Span, SpanGroup
from spacy.training import Example

VOCAB = spacy.blank("en").vocab

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

# To the transformer of `make_tiny_transformer`.
LISTENER = {"@architectures": "spacy.Tok2VecListener.v1", "width": 16, "upstream": "*"}

OWN_TRANSFORMER = {
    "@architectures": "spacy-crf-ner.Transformer.v1",
    "get_spans": {"@misc": "spacy-crf-ner.doc_spans.v1"},
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


def write_docs(path, sentences):
    """Write gold docs to a .spacy file."""
    DocBin(docs=[eg.reference for eg in make_examples(spacy.blank("en"), sentences)]).to_disk(path)


def doc_of(words, spans, missing=()):
    """A doc with entities; the tokens that are missing have no annotation."""
    doc = Doc(VOCAB, words=list(words))
    unknown = [doc[i : i + 1] for i in missing]
    doc.set_ents([Span(doc, *span) for span in spans], missing=unknown, default="outside")
    return doc


def spans_of(words, spans, scores=None):
    """A doc with spans that may overlap, under the key "sc"."""
    doc = Doc(VOCAB, words=list(words))
    attrs = {} if scores is None else {"scores": np.array(scores, dtype=np.float32)}
    made = [Span(doc, *span) for span in spans]
    doc.spans["sc"] = SpanGroup(doc, name="sc", spans=made, attrs=attrs)
    return doc


def example_of(words, gold, predicted, confidences=(), missing=()):
    """An example of gold and predicted entities; tokens of gold that are missing are unknown."""
    doc = doc_of(words, predicted)
    for ent, confidence in zip(doc.ents, confidences):
        ent._.confidence = confidence
    return Example(doc, doc_of(words, gold, missing))


def train(nlp, examples, steps=40, drop=0.0, learn_rate=0.005, **initialize):
    """Initialize a pipeline and fit it to examples; returns the last losses.

    All weights have one learning rate, as transformers here are not pretrained. Skips the test
    where torch is not installed, as in `make test-runtime`.
    """
    pytest.importorskip("torch")
    spacy.util.fix_random_seed(0)
    settings = nlp.default_config["training"]["optimizer"] | {"learn_rate": learn_rate}
    optimizer = spacy.registry.resolve({"optimizer": settings})["optimizer"]
    nlp.initialize(lambda: examples, sgd=optimizer, **initialize)
    losses = {}
    for _ in range(steps):
        losses = nlp.update(examples, sgd=optimizer, drop=drop, losses={})
    return losses


def small(width=16, name="crf_ner", **settings):
    """A blank pipeline with a small crf_ner; not trained."""
    nlp = spacy.blank("en")
    config = {"model": {"hidden_width": width, "tok2vec": TOK2VEC}, **settings}
    nlp.add_pipe("crf_ner", name=name, config=config)
    return nlp


def copied(nlp):
    """A copy of a pipeline, by its bytes."""
    return spacy.blank("en").from_config(nlp.config).from_bytes(nlp.to_bytes())


def trained_elsewhere(nlp):
    """Let a pipeline guarantee something about the texts that it has learned; returns it."""
    for pipe in (pipe for _, pipe in nlp.components if hasattr(pipe, "seen_texts")):
        pipe.seen_texts.restart()
        pipe.seen_texts.remember("train", ["Some other text"])
    return nlp


def make_tiny_transformer(folder):
    """Write a real BERT of two small layers, with random weights, and its tokenizer."""
    from transformers import BertConfig, BertModel, BertTokenizerFast

    folder.mkdir(exist_ok=True)
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


TRANSFORMERS = ("bert", "roberta", "electra", "rembert", "mpnet", "deberta", "deberta-v2")
TRANSFORMERS += ("modernbert", "distilbert", "gpt2", "xlnet")


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
    made = {config.model_type: hf.AutoModel.from_config(config) for config in configs}
    assert (*made,) == TRANSFORMERS
    return made


def ents(doc):
    return [(ent.start_char, ent.end_char, ent.label_) for ent in doc.ents]


def add_shared(nlp, transformer, **settings):
    """Add a component with the transformer of a folder, which others can listen to."""
    model = {**OWN_TRANSFORMER, "name": transformer, **settings}
    return nlp.add_pipe("tok2vec", config={"model": model})


def listening(kind, upstream="*", tiny_transformer=None):
    """A pipeline whose crf_ner listens to a component: a CNN ("tok2vec"), or a transformer."""
    nlp = spacy.blank("en")
    layer = {**LISTENER, "upstream": upstream}
    if kind == "tok2vec":
        nlp.add_pipe("tok2vec", config={"model": TOK2VEC})
        layer["width"] = TOK2VEC["width"]
    else:
        add_shared(nlp, tiny_transformer)
    nlp.add_pipe("crf_ner", config={"model": {"hidden_width": 16, "tok2vec": layer}})
    return nlp
