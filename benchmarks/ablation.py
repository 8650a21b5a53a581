"""F1 and speed of variants of the model with one budget: docs/benchmarks.md, "Ablation"."""

import shutil
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import spacy
import typer
from spacy.language import Language
from spacy.training import Corpus
from thinc.api import require_gpu

from benchmarks import common
from benchmarks.systems import Budget, Comparison, System
from spacy_crf_ner.data import SPLITS
from spacy_crf_ner.evaluation.calibration import calibrate
from spacy_crf_ner.input_error import InputError
from spacy_crf_ner.pipeline.network import is_constrained

VARIANTS = Path(__file__).with_suffix(".yml")
COMPONENT = "ner"  # its name in the configs
TIMED_ROUNDS = 3


def main(
    corpus: Annotated[Path, typer.Argument(help="Folder with train.spacy, dev.spacy, test.spacy.")],
    out: common.Out,
    variants: common.VariantFile = VARIANTS,
    names: common.VariantNames = None,
    transformer: common.Transformer = "assets/minilm",
    steps: common.Steps = 200,
    seeds: common.Seeds = "0,1,2",
    gpu_id: common.Gpu = -1,
) -> None:
    """Train variants of the model on a corpus, and compare them.

    All variants have the same steps, batches and seeds. Finished runs are not repeated: you can
    stop the command at any time and continue with the same command.

    \b
    Files in the output folder:
      ablation.csv  one row per run, added when it is measured
      table.md      mean and standard deviation over the seeds
      chart.svg     F1 of each variant
    """
    for part in SPLITS:
        if not (corpus / f"{part}.spacy").exists():
            raise InputError(
                f"{corpus}: expected train.spacy, dev.spacy and test.spacy, got no {part}.spacy. "
                "Convert the corpus with spacy-crf-ner convert."
            )
    chosen = common.read_variants(variants, names or ())
    common.check_same(out, {"corpus": corpus, **common.variant_inputs(chosen, transformer)})
    rows = common.Rows(out / "ablation.csv")
    comparison = Comparison(out, gpu_id=gpu_id)
    found = []
    for seed in common.numbers(seeds):
        for variant in chosen:
            key = variant.key(transformer, steps, seed, gpu_id)
            row = rows.known(key)
            if row is None:
                model = trained(comparison, variant, corpus, Budget(transformer, steps, None, seed))
                figures = common.in_new_process(measure, model, corpus, gpu_id)
                row = rows.add({**key, **figures}, common.environment(gpu_id))
                shutil.rmtree(model)
            found.append(row)
    chart(found, out / "chart.svg")
    with (out / "table.md").open("w", encoding="utf-8") as file:
        for write in (None, file):
            print_table(found, write)
    print(f"Folder: {out}")


def trained(comparison: Comparison, variant: common.Variant, corpus: Path, budget: Budget) -> Path:
    """Train a variant, unless it is trained already."""
    folder = comparison.out / "configs"
    folder.mkdir(exist_ok=True)
    path = folder / f"{variant.name}.cfg"
    # The final weights are evaluated on test. dev only calibrates: 50 docs are enough.
    config = common.changed(variant.config, {**variant.settings, "corpora.dev.limit": 50})
    config.to_disk(path, interpolate=False)
    model = f"{variant.name} {common.digest(path)[:8]}"  # its settings may change
    system = System(variant.name, "spacy_pipeline", model)
    try:
        return comparison.trained(system, corpus, budget, path)[0]
    except RuntimeError as error:
        log = comparison.out / "logs" / f"{variant.name}.log"
        raise InputError(
            f"{variant.name}, seed {budget.seed}: expected a trained pipeline, got {error}. Its "
            f"output is in {log}; fix the cause and run the command again."
        ) from error


def measure(model: Path, corpus: Path, gpu_id: int = -1) -> common.Row:
    """Measure a trained pipeline on the test part of a corpus.

    If it decodes for the F-score, its threshold is fitted on the dev part.

    Returns p, r, f, from 0 to 1; invalid: the share of docs for which the best tag
    of each token alone gives an illegal sequence (None for a CRF decoder, which does not score
    tokens alone); train_speed and predict_speed: words per second, medians; parameters: their
    number in the pipeline.
    """
    if gpu_id >= 0:
        require_gpu(gpu_id)
    nlp = spacy.load(model)
    if nlp.get_pipe(COMPONENT).decode == "max_expected_f":
        calibrate(nlp, list(Corpus(corpus / "dev.spacy")(nlp)), COMPONENT, f_beta=1.0)
    examples = list(Corpus(corpus / "test.spacy")(nlp))
    scores = nlp.evaluate(examples, batch_size=nlp.batch_size)
    texts = [eg.reference.text for eg in examples]
    taken = common.alternate({"pipe": lambda: list(nlp.pipe(texts))}, TIMED_ROUNDS)["pipe"]
    rates = common.training_rates({"ours": nlp}, TIMED_ROUNDS, corpus / "train.spacy")
    return {
        **{name: round(scores[f"ents_{name}"], 6) for name in "prf"},
        "invalid": invalid_share(nlp, texts),
        "predict_speed": sum(len(eg.x) for eg in examples) / statistics.median(taken),
        "train_speed": statistics.median(rates["ours"]),
        "parameters": count_parameters(nlp),
    }


def invalid_share(nlp: Language, texts: Sequence[str]) -> float | None:
    """Return the share of docs in which the best tags of single tokens are an illegal sequence."""
    ner: Any = nlp.get_pipe(COMPONENT)
    if is_constrained(ner.model):
        return None
    invalid = total = 0
    docs = [doc for doc in nlp.pipe(texts, disable=[COMPONENT]) if len(doc)]
    follows, start, end = ner.scheme.constraints
    for i in range(0, len(docs), nlp.batch_size):
        batch = docs[i : i + nlp.batch_size]
        potentials = ner.model.predict(batch)
        best = np.asarray(potentials.emissions.argmax(1).tolist())
        for tags in np.split(best, np.cumsum(potentials.lengths)[:-1]):
            legal = start[tags[0]] and end[tags[-1]] and follows[tags[:-1], tags[1:]].all()
            invalid += not legal
        total += len(batch)
    return invalid / total


def count_parameters(nlp: Language) -> int:
    nodes = [node for _, p in nlp.pipeline if hasattr(p, "model") for node in p.model.walk()]
    arrays = [node.get_param(n) for node in nodes for n in node.param_names if node.has_param(n)]
    weights = [w for node in nodes for shim in node.shims for w in shim._model.parameters()]
    return sum(array.size for array in arrays) + sum(weight.numel() for weight in weights)


def print_table(rows: Sequence[common.Row], file: Any = None) -> None:
    """Print the results as a Markdown table: mean and spread of seeds."""
    grouped = common.by_key(rows, "variant")
    speeds = {"train_speed": "training, words/s", "predict_speed": "prediction, words/s"}
    titles = ("F1", "precision", "recall", "invalid sequences", "parameters", *speeds.values())
    common.print_header("model", *titles, "seeds", file=file)
    for (variant,), own in grouped.items():
        cells = [common.mean_and_deviation([100 * row[name] for row in own]) for name in "fpr"]
        invalid = [100 * row["invalid"] for row in own if row.get("invalid") is not None]
        cells.append(f"{common.mean_and_deviation(invalid)} %" if invalid else "-")
        cells.append(f"{own[0]['parameters'] / 1e6:.1f} M")
        cells += [f"{statistics.median(row[name] for row in own):,.0f}" for name in speeds]
        common.print_row(variant, *cells, len(own), file=file)


def chart(rows: Sequence[common.Row], path: Path) -> None:
    """Draw F1 of each variant: a bar for the mean, a dot for each seed."""
    from matplotlib.figure import Figure

    grouped = common.by_key(rows, "variant")
    figure = Figure(figsize=(8, 0.9 + 0.34 * len(grouped)), layout="constrained")
    axes = figure.subplots()
    for y, of_variant in enumerate(grouped.values()):
        scores = [100 * row["f"] for row in of_variant]
        mean = statistics.mean(scores)
        axes.barh(y, mean, color="#8fb4d9", height=0.7)
        axes.plot(scores, [y] * len(scores), "o", color="#1f3a5f", markersize=4)
        axes.annotate(f"{mean:.1f}", (max(scores), y), (6, 0), textcoords="offset points",
                      va="center", fontsize=9)  # fmt: skip
    axes.set_yticks(range(len(grouped)), [variant for (variant,) in grouped])
    axes.invert_yaxis()
    axes.set_xlabel("F1 on test, mean of the seeds; each seed is a dot")
    axes.margins(x=0.08)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)
