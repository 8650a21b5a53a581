"""Calibration on a few entities, beside none: docs/benchmarks.md."""

import random
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, pstdev
from typing import Annotated, Any

import numpy as np
import spacy
import typer
from spacy.training import Corpus, Example

from benchmarks.common import numbers, print_header, print_row
from spacy_crf_ner.evaluation.calibration import reliability
from spacy_crf_ner.evaluation.matching import annotated, collect_entities
from spacy_crf_ner.pipeline.calibration import forget_calibration
from spacy_crf_ner.pipeline.lookup import run_upstream


def main(
    models: Annotated[list[Path], typer.Argument(help="Trained pipelines.")],
    dev: Annotated[list[Path], typer.Option(help="To calibrate on: a .spacy file for each.")],
    test: Annotated[list[Path], typer.Option(help="To measure on: a .spacy file for each.")],
    sizes: Annotated[str, typer.Option(help="Numbers of entities.")] = "5,10,20,50,100,200",
    draws: Annotated[int, typer.Option(help="Random parts of dev for each number.")] = 20,
    limit: Annotated[int, typer.Option(help="Random documents of test.")] = 500,
) -> None:
    """Measure confidences on test, calibrated on random documents of dev with a few entities.

    Prints negative log likelihood and ECE of the predicted entities, uncalibrated and calibrated,
    with the standard deviation of the draws.
    """
    compared = "uncalibrated, calibrated"
    print_header("pipeline", "entities", f"NLL: {compared}", f"ECE: {compared}")
    for model, dev_file, test_file in zip(models, dev, test):
        nlp = spacy.load(model)
        pipe: Any = nlp.get_pipe("ner")
        forget_calibration(pipe)
        parts = [[*Corpus(file)(nlp)] for file in (dev_file, test_file)]
        for part in parts:
            random.Random(1).shuffle(part)
        of_dev = run_upstream(nlp, "ner", parts[0])
        of_test = run_upstream(nlp, "ner", parts[1][:limit])
        before = _measure(pipe, of_test)
        total = sum(len(eg.reference.ents) for eg in of_dev)
        for size in [*(n for n in numbers(sizes) if n < total), total]:
            after = []
            for seed in range(draws if size < total else 1):
                chosen = _draw(of_dev, size, seed)
                pipe.fit_temperature(chosen)
                pipe.fit_platt_scaling(chosen)
                after.append(_measure(pipe, of_test))
            pairs = [
                f"{was:.3f}, {mean(now):.3f} ± {pstdev(now):.3f}"
                for was, now in zip(before, zip(*after))
            ]
            print_row(model.parent.name, size, *pairs)


def _draw(examples: Sequence[Example], size: int, seed: int) -> list[Example]:
    """Choose random documents, until they have so many entities."""
    order = np.random.default_rng(seed).permutation(len(examples))
    numbers = np.cumsum([len(examples[i].reference.ents) for i in order])
    return [examples[i] for i in order[: np.searchsorted(numbers, size) + 1]]


def _measure(pipe: Any, examples: Sequence[Example]) -> tuple[float, float]:
    docs = collect_entities(annotated(pipe, examples))
    p = [ent.confidence for doc in docs for ent in doc.predicted]
    correct = np.array([right for doc in docs for right in doc.correct()])
    p_of_truth = np.where(correct, p, 1 - np.array(p)).clip(1e-7)
    return float(-np.log(p_of_truth).mean()), float(reliability(docs)["ece"])
