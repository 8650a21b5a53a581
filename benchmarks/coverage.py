"""Guarantees of recall: what they keep, and what they cost: docs/benchmarks.md."""

import random
from itertools import product
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import spacy
import typer
from spacy.training import Corpus

from benchmarks.common import print_header, print_row
from spacy_crf_ner.evaluation.risk_control import recall_threshold

RISKS = (0.01, 0.02, 0.05, 0.1)
SPLITS = 200
LOWEST = 1e-5  # of the scores of candidates
LONGEST = 12  # tokens of a candidate by mean marginals

Scores = np.ndarray[tuple[int], np.dtype[np.float64]]


class Scored(NamedTuple):
    """A document: the scores of its gold entities, and of all candidates."""

    gold: Scores
    candidates: Scores


def main(
    models: Annotated[list[Path], typer.Argument(help="Trained pipelines.")],
    corpora: Annotated[
        list[Path], typer.Option("--corpus", help="Folder with dev.spacy and test.spacy, for each.")
    ],
) -> None:
    """Guarantee recall on random halves of dev and test, and measure it on the others.

    Candidates are spans by their posterior, and by the mean of the marginals of their tags.
    """
    missed = ("missed at most", "missed, mean", "worst of 20")
    print_header("corpus", *missed, "candidates per entity", "refused")
    for model, corpus in zip(models, corpora):
        for how, documents in zip(("posterior", "mean marginal"), _scored(model, corpus)):
            for risk in RISKS:
                print_row(f"{corpus.name}, {how}", f"{risk:.0%}", *_on_splits(documents, risk))


def _on_splits(documents: list[Scored], risk: float) -> list[str]:
    rng = random.Random(0)
    missed, cost, refused = [], [], 0
    for _ in range(SPLITS):
        shuffled = rng.sample(documents, len(documents))
        half = len(shuffled) // 2
        threshold = recall_threshold([d.gold for d in shuffled[:half] if len(d.gold)], risk)
        if threshold is None or threshold < LOWEST:
            refused += 1
            continue
        new = shuffled[half:]
        missed.append(np.mean([(d.gold < threshold).mean() for d in new if len(d.gold)]))
        found = sum(int((d.candidates >= threshold).sum()) for d in new)
        cost.append(found / sum(len(d.gold) for d in new))
    if not missed:
        return ["-", "-", "-", f"{refused}"]
    worst = np.quantile(missed, 0.95)
    return [f"{np.mean(missed):.1%}", f"{worst:.1%}", f"{np.mean(cost):.1f}", f"{refused}"]


def _scored(model: Path, corpus: Path) -> tuple[list[Scored], list[Scored]]:
    """Score the gold entities and the candidates of dev and test in both ways."""
    nlp = spacy.load(model)
    ner: Any = nlp.get_pipe("ner")
    ner.spans_key, ner.candidate_threshold = "sc", LOWEST
    results: tuple[list[Scored], list[Scored]] = ([], [])
    for part in ("dev", "test"):
        examples = list(Corpus(corpus / f"{part}.spacy")(nlp))
        with nlp.select_pipes(disable="ner"):
            docs = list(nlp.pipe([eg.predicted for eg in examples]))
        for eg, doc in zip(examples, docs):
            gold = [doc.char_span(e.start_char, e.end_char, e.label_) for e in eg.reference.ents]
            marginals = _mean_marginals(ner, doc)
            keys = [(span.start, span.end, span.label_) for span in gold]
            means = [marginals.get(key, 0.0) for key in keys]
            posteriors = ner.span_posteriors(doc, gold)
            ner(doc)
            found = np.array(doc.spans["sc"].attrs["scores"], dtype=np.float64)
            results[0].append(Scored(np.array(posteriors), found))
            results[1].append(Scored(np.array(means), np.array([*marginals.values()])))
    return results


def _mean_marginals(ner: Any, doc: Any) -> dict[tuple[int, int, str], float]:
    """Average the marginals of the BILUO tags of each span."""
    if not len(doc):
        return {}
    trellis = ner.trellis(doc)
    column = {tag: trellis.marginals[:, i] for i, tag in enumerate(trellis.tags)}
    found = {}
    for label, start in product(ner.labels, range(len(doc))):
        inside = 0.0
        for end in range(start + 1, min(start + LONGEST, len(doc)) + 1):
            if end == start + 1:
                score = column[f"U-{label}"][start]
            else:
                inside += column[f"I-{label}"][end - 2] if end > start + 2 else 0.0
                ends = column[f"B-{label}"][start] + column[f"L-{label}"][end - 1]
                score = (ends + inside) / (end - start)
            if score >= LOWEST:
                found[start, end, label] = float(score)
    return found
