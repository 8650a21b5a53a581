"""Prediction time by part of the pipeline."""

import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import spacy
import typer
from spacy.language import Language
from spacy.training import Corpus
from spacy_transformers import Transformer
from spacy_transformers.data_classes import FullTransformerBatch
from spacy_transformers.layers import transformer_model

from benchmark import _piping, _print_machine
from benchmark_speed import document_sets
from spacy_crf_ner import accelerate
from spacy_crf_ner.ml.torch_layer import TorchShim
from spacy_crf_ner.ml.transformer import model as transformer
from spacy_crf_ner.pipeline.lookup import recognizer_name

Function = tuple[Any, str]  # what it is an attribute of, and its name


def parts(
    model: Annotated[Path, typer.Argument(help="Trained pipeline over a transformer.")],
    corpus: Annotated[Path, typer.Argument(help="Texts: a .spacy file.")],
    dtypes: Annotated[str, typer.Option(help="Comma-separated; plain is not accelerated.")] = (
        "plain,fp32,bf16"
    ),
    rounds: Annotated[int, typer.Option(min=1, help="Rounds; figures are medians.")] = 7,
) -> None:
    """Measure the microseconds of each part of a prediction, on the mix of `speed`."""
    _print_machine(-1)
    nlp = spacy.load(model)
    texts = document_sets([eg.reference.text for eg in Corpus(corpus)(nlp)], 1.0)["mix"]
    words = sum(len(nlp.make_doc(text)) for text in texts)
    pipelines = {name: spacy.load(model) for name in dtypes.split(",")}
    for name, each in pipelines.items():
        if name != "plain":
            accelerate(each, name)
    taken: dict[str, list[dict[str, float]]] = {name: [] for name in pipelines}
    for i in range(rounds + 1):
        for name, each in pipelines.items():
            start = perf_counter()
            with _apart(_functions(each)) as seconds:
                _piping(each, texts, each.batch_size)()
            whole = perf_counter() - start
            if i:  # the first is slower
                rest = whole - sum(seconds.values())
                taken[name].append({**seconds, "the rest": rest, "all": whole})
    print(f"| us/word, of {words:,} words | {' | '.join(pipelines)} |")
    print("|---" * (1 + len(pipelines)) + "|")
    for part in taken[name][0]:
        figures = [
            statistics.median(1e6 * each[part] / words for each in of) for of in taken.values()
        ]
        print(f"| {part} | {' | '.join(f'{figure:.1f}' for figure in figures)} |")


def _functions(nlp: Language) -> dict[str, list[Function]]:
    """Return the functions of each part."""
    recognizer = nlp.get_pipe(recognizer_name(nlp))
    return {
        "tokens": [(nlp, "make_doc")],
        "subwords": [(transformer_model, "huggingface_tokenize"), (transformer, "_tokenize")],
        "transformer": [(transformer.TransformerShim, "predict")],
        "its windows, batches, alignment": [
            (Transformer, "predict"),
            (FullTransformerBatch, "split_by_doc"),
        ],
        "vectors of tokens": [(recognizer, "potentials")],
        "BiLSTM, projection": [(TorchShim, "predict")],
        "Viterbi, confidences": [(recognizer, "predict"), (recognizer, "posterior")],
        "entities set": [(recognizer, "set_annotations")],
    }


@contextmanager
def _apart(parts: dict[str, list[Function]]) -> Iterator[dict[str, float]]:
    """Sum the seconds in the functions of each part, without nested functions of other parts."""
    seconds: dict[str, float] = dict.fromkeys(parts, 0.0)
    inner: list[float] = []

    def timed(part, original):
        def call(*args, **kwargs):
            inner.append(0.0)
            start = perf_counter()
            try:
                return original(*args, **kwargs)
            finally:
                taken = perf_counter() - start
                seconds[part] += taken - inner.pop()
                if inner:
                    inner[-1] += taken

        return call

    originals = [(*function, getattr(*function)) for of in parts.values() for function in of]
    for part, of in parts.items():
        for function in of:
            setattr(*function, timed(part, getattr(*function)))
    try:
        yield seconds
    finally:
        for owner, name, original in originals:
            setattr(owner, name, original)
