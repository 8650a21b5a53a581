"""Prediction time by part of the pipeline: docs/speed.md."""

import statistics
from pathlib import Path
from time import perf_counter
from typing import Annotated

import spacy
import typer
from spacy.language import Language
from spacy.training import Corpus

from benchmarks import common
from spacy_crf_ner import accelerate
from spacy_crf_ner.ml import char_embed
from spacy_crf_ner.ml.shim import TorchShim
from spacy_crf_ner.ml.transformer import model as transformer
from spacy_crf_ner.pipeline.lookup import recognizer_name


def main(
    model: Annotated[Path, typer.Argument(help="Trained pipeline over a transformer.")],
    corpus: Annotated[Path, typer.Argument(help="Texts: a .spacy file.")],
    dtypes: Annotated[str, typer.Option(help="Comma-separated; plain is not accelerated.")] = (
        "plain,fp32,bf16"
    ),
    rounds: common.Rounds = 7,
) -> None:
    """Measure the microseconds of each part of a prediction, on the mix of `speed`."""
    common.print_machine()
    nlp = spacy.load(model)
    texts = common.document_sets([eg.reference.text for eg in Corpus(corpus)(nlp)], 1.0)["mix"]
    words = sum(len(nlp.make_doc(text)) for text in texts)
    pipelines = {name: spacy.load(model) for name in dtypes.split(",")}
    for name, each in pipelines.items():
        if name != "plain":
            accelerate(each, name)
    taken: dict[str, list[dict[str, float]]] = {name: [] for name in pipelines}
    for i in range(rounds + 1):
        for name, each in pipelines.items():
            start = perf_counter()
            with common.apart(functions(each)) as seconds:
                list(each.pipe(texts, batch_size=each.batch_size))
            whole = perf_counter() - start
            if i:  # the first is slower
                rest = whole - sum(seconds.values())
                taken[name].append({**seconds, "the rest": rest, "all": whole})
    common.print_header(f"us/word, of {words:,} words", *pipelines)
    for part in taken[name][0]:
        figures = [
            statistics.median(1e6 * each[part] / words for each in of) for of in taken.values()
        ]
        common.print_row(part, *(f"{figure:.1f}" for figure in figures))


def functions(nlp: Language) -> dict[str, list[common.Function]]:
    """Return the functions of each part."""
    recognizer = nlp.get_pipe(recognizer_name(nlp))
    return {
        "tokens": [(nlp, "make_doc")],
        "subwords, windows, alignment": [(transformer, "divide")],
        "transformer": [(transformer.TransformerShim, "predict")],
        "distinct words": [(char_embed, "read_words")],
        "their vectors, BiLSTM, projection": [(TorchShim, "predict")],
        "Viterbi, confidences": [(recognizer, "predict"), (recognizer, "posterior")],
        "network, without the parts above": [(recognizer, "potentials")],
        "entities set": [(recognizer, "set_annotations")],
    }
