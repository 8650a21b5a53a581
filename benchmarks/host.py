"""What the host computes beside a GPU: docs/benchmarks.md, "GPUs"."""

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time
from typing import Annotated

import spacy
import torch
import typer
from spacy.tokens import Doc, Span
from spacy.training import Corpus, Example
from spacy.training.batchers import minibatch_by_padded_size
from spacy.util import load_config
from transformers import BertConfig, BertModel

from benchmarks import common
from spacy_crf_ner import accelerate, crf
from spacy_crf_ner.ml.layer import Graph
from spacy_crf_ner.ml.shim import TorchShim

PARTS: dict[str, list[common.Function]] = {
    "crf": [(crf, name) for name in ("nll_with_gradient", "viterbi", "forward_backward")],
    "torch": [
        (TorchShim, "begin_update"),
        (Graph, "backward"),
        (TorchShim, "finish_update"),
        (TorchShim, "predict"),
    ],
}


def main(
    corpus: Annotated[Path, typer.Argument(help="Sentences with entities: a .spacy file.")],
    labels: Annotated[int, typer.Option(min=1, help="Labels, drawn for the entities.")] = 4,
    words: Annotated[int, typer.Option(min=1, help="Words of a batch, with padding.")] = 4000,
    batches: Annotated[int, typer.Option(min=1, help="Batches to measure.")] = 3,
    rounds: common.Rounds = 6,
) -> None:
    """Measure CPU milliseconds of `transformer.cfg` on one thread, without its torch modules.

    These would run on a GPU, as would the optimizer; here they are narrow. The CRF is measured by
    itself; the rest is tokens, subwords, alignment, gold tags, spans and entities. Figures are the
    minima of the rounds.
    """
    torch.set_num_threads(1)
    with TemporaryDirectory() as folder:
        nlp = spacy.util.load_model_from_config(
            load_config(
                common.CONFIGS / "transformer.cfg",
                overrides={"paths.transformer": _narrow_transformer(Path(folder))},
            ),
            auto_fill=True,
        )
        examples = [_relabeled(eg.reference, labels) for eg in Corpus(corpus)(nlp)]
        nlp.initialize(lambda: examples)
    optimizer = nlp.create_optimizer()
    chosen = list(minibatch_by_padded_size(examples, size=words, buffer=len(examples)))
    random.Random(0).shuffle(chosen)
    tags = len(nlp.get_pipe("ner").scheme.tags)

    def update(batch: list[Example]) -> None:
        own = [Example(nlp.make_doc(eg.reference.text), eg.reference) for eg in batch]
        nlp.update(own, sgd=optimizer, drop=0.1)

    def predict(batch: list[Example]) -> None:
        list(nlp.pipe([eg.reference.text for eg in batch], batch_size=len(batch)))

    common.print_header("", "tags", "docs", "words", "CRF", "the rest")
    for what, act in (("update", update), ("prediction", predict)):
        for batch in chosen[:batches]:
            crf_ms, rest_ms = _measured(lambda act=act, batch=batch: act(batch), rounds)
            words = sum(len(eg.x) for eg in batch)
            common.print_row(what, tags, len(batch), words, f"{crf_ms:.1f}", f"{rest_ms:.1f}")
        accelerate(nlp, "fp32")


def _narrow_transformer(folder: Path) -> str:
    """Make a transformer with MiniLM's tokenizer and number of layers."""
    for path in Path(common.MINILM).glob("*"):
        if path.name.startswith(("tokenizer", "vocab", "special_tokens")):
            shutil.copy(path, folder)
    size = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2}
    BertModel(BertConfig(num_hidden_layers=6, **size)).save_pretrained(folder)
    return str(folder)


def _relabeled(gold: Doc, labels: int) -> Example:
    rng = random.Random(gold.text)
    for ent in gold.ents:
        label = f"L{rng.randrange(labels)}"
        gold.set_ents([Span(gold, ent.start, ent.end, label)], default="unmodified")
    return Example(gold.copy(), gold)


def _measured(act: Callable[[], None], rounds: int) -> tuple[float, float]:
    """Return the milliseconds of the CRF, and those of the rest without the torch modules."""
    found = []
    for _ in range(rounds):
        with common.apart(PARTS, process_time) as seconds:
            start = process_time()
            act()
            whole = process_time() - start
        found.append((1000 * seconds["crf"], 1000 * (whole - sum(seconds.values()))))
    return min(of_crf for of_crf, _ in found), min(rest for _, rest in found)
