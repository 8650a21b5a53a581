"""The kernels and waits of a batch, counted in the stand-in: upper bounds, which do not grow.

Counts do not depend on widths, so that the models are narrow. `python -m pytest -s` prints them.
"""

import random
from functools import partial
from pathlib import Path

import pytest
import spacy
from counts import counted
from spacy.schemas import ConfigSchemaTraining
from spacy.tokens import Doc, Span
from spacy.training import Example
from spacy.util import load_config, registry
from transformers import BertConfig, BertModel, BertTokenizerFast

from spacy_crf_ner import accelerate

ROOT = Path(__file__).parents[2]
WORDS = ["Anna", "saw", "Bonn", "it", "in", "the", "house", "of", "Apple", "Paris", "and", "we"]
LABELS = {"Anna": "PER", "Bonn": "LOC", "Paris": "LOC", "Apple": "ORG"}
# Bounds: launches and waits of an update of 40 docs, and of a prediction of 128, of 25 words each.
# Half of the launches of cnn and char are of spaCy's layers: a copy for each doc, and the step of
# thinc's Adam for each array.
BOUNDS = {
    "transformer": ((940, 1), (205, 1)),
    "cnn": ((740, 7), (365, 6)),
    "char": ((415, 7), (210, 6)),
}


@pytest.fixture(scope="module")
def six_layers(tmp_path_factory):
    """A narrow transformer with as many layers as MiniLM, and one subword for each word."""
    folder = tmp_path_factory.mktemp("six")
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *map(str.lower, WORDS)]
    (folder / "vocab.txt").write_text("\n".join(vocabulary), encoding="utf-8")
    BertTokenizerFast(str(folder / "vocab.txt"), model_max_length=128).save_pretrained(folder)
    size = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2}
    BertModel(BertConfig(vocab_size=len(vocabulary), num_hidden_layers=6, **size)).save_pretrained(
        folder
    )
    return str(folder)


def make_examples(nlp, docs, words=25):
    rng = random.Random(0)
    examples = []
    for _ in range(docs):
        texts = rng.choices(WORDS, k=words)
        gold = Doc(nlp.vocab, texts)
        gold.ents = [Span(gold, i, i + 1, LABELS[w]) for i, w in enumerate(texts) if w in LABELS]
        examples.append(Example(Doc(nlp.vocab, texts), gold))
    return examples


def load(name, six_layers):
    """A shipped config, as `spacy train` initializes it, and its optimizer."""
    spacy.require_gpu()
    overrides = {"paths.transformer": six_layers, "training.dropout": 0.1}
    config = load_config(ROOT / "configs" / f"{name}.cfg", overrides=overrides)
    nlp = spacy.util.load_model_from_config(config, auto_fill=True)
    nlp.initialize(lambda: make_examples(nlp, 8))
    T = registry.resolve(nlp.config.interpolate()["training"], schema=ConfigSchemaTraining)
    return nlp, T["optimizer"]


def count_update(nlp, optimizer, docs):
    examples = make_examples(nlp, docs)
    with counted(trace=True) as counts:
        nlp.update(examples, sgd=False, drop=0.1)
        for _, pipe in nlp.pipeline:
            pipe.finish_update(optimizer)
        optimizer.step_schedules()
    return report("update", counts)


def count_prediction(nlp, docs):
    predicted = [eg.predicted for eg in make_examples(nlp, docs)]
    with counted(trace=True) as counts:
        assert len(list(nlp.pipe(predicted, batch_size=docs))) == docs
    return report("prediction", counts)


def report(what, counts):
    launches, waits = counts.sums()
    print(f"\n{what}: {launches} launches, {waits} waits")
    for name, number in [*counts.launches.most_common(6), *counts.places.most_common(12)]:
        print(f"  {number:5} {name}")
    return launches, waits


@pytest.mark.parametrize("name", BOUNDS)
def test_launches_and_waits_of_batch_stay_within_bounds(name, six_layers):
    nlp, optimizer = load(name, six_layers)
    of_update, of_prediction = BOUNDS[name]
    for _ in range(2):  # the first allocates
        count_update(nlp, optimizer, 4)
    check_bounded(name, partial(count_update, nlp, optimizer), 40, of_update)
    accelerate(nlp, "bf16")
    count_prediction(nlp, 4)  # the first converts the weights
    check_bounded(name, partial(count_prediction, nlp), 128, of_prediction)


def check_bounded(name, count, docs, bounds):
    launches, waits = count(docs)
    assert launches <= bounds[0] and waits <= bounds[1]
    fewer = count(docs // 2)
    assert fewer[1] == waits
    if name == "transformer":
        assert fewer[0] == launches
