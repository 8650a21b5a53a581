"""How many corrupted entities `review` ranks first: docs/benchmarks.md."""

import random
from typing import Annotated

import typer
from spacy.tokens import Doc, Span

from benchmarks import common
from spacy_crf_ner.active_learning import review

KINDS = ("label", "boundary", "deleted")
TOPS = (0.01, 0.02, 0.05)  # of findings, as shares of the gold entities


def main(
    folder: common.Folder,
    out: common.Out,
    corpus: Annotated[str, typer.Option(help="A folder: gmb, wikigold or wnut17.")] = "wikigold",
    steps: common.Steps = 300,
    folds: Annotated[int, typer.Option(help="As for `review`.")] = 5,
    share: Annotated[float, typer.Option(help="Share of the entities that is corrupted.")] = 0.05,
    config: common.ConfigFile = common.CONFIGS / "char.cfg",
    transformer: common.Transformer = common.MINILM,
    seeds: common.Seeds = "0",
    gpu_id: common.Gpu = -1,
) -> None:
    """Corrupt gold entities at random, and measure how many of them `review` ranks first.

    Counts as many findings as 1, 2 and 5 % of the entities, and the recall among the last. Findings
    of real errors count as wrong.
    """
    common.print_machine(gpu_id)
    source = common.converted(folder / corpus, out) / "train.spacy"
    precisions = (f"precision at {top:.0%}" for top in TOPS)
    common.print_header("seed", "corrupted", *precisions, "recall", "recall by kind")
    for seed in common.numbers(seeds):
        docs = common.read_docs(source)
        corrupted = corrupt(docs, share, seed)
        path = out / f"{corpus}_corrupted_{seed}.spacy"
        common.write_docs(docs, path)
        settings = common.changed(config, common.schedule(1, seed))
        if settings["paths"].get("transformer"):
            settings["paths"]["transformer"] = transformer
        nlp = common.trained_on(docs, settings, gpu_id)
        training = nlp.config["training"]
        training.update(max_steps=steps, eval_frequency=steps)
        training["optimizer"]["learn_rate"]["total_steps"] = steps
        findings = review(nlp, path, folds, seed=seed).findings
        entities = sum(len(doc.ents) for doc in docs)
        cells = []
        for top in TOPS:
            first = findings[: round(top * entities)]
            right = [f for f in first if any(is_about(f, *each[:3]) for each in corrupted)]
            cells.append(f"{len(right) / len(first):.2f}" if first else "-")
        hits = [each for each in corrupted if any(is_about(found, *each[:3]) for found in first)]
        by_kind = []
        for kind in KINDS:
            own = [each for each in corrupted if each[3] == kind]
            by_kind.append(f"{kind} {sum(e in hits for e in own)} of {len(own)}")
        recall = f"{len(hits) / len(corrupted):.2f}"
        common.print_row(seed, len(corrupted), *cells, recall, ", ".join(by_kind))


def corrupt(docs: list[Doc], share: float, seed: int) -> list[tuple[int, int, int, str]]:
    """Change the label or a boundary of some entities, or delete them.

    Returns the doc of each, the characters of the old and the new entity together, and the kind.
    """
    rng = random.Random(seed)
    places = [(i, j) for i, doc in enumerate(docs) for j in range(len(doc.ents))]
    labels = sorted({ent.label_ for doc in docs for ent in doc.ents})
    changed = []
    by_doc: dict[int, dict[int, str]] = {}
    for i, j in rng.sample(places, round(share * len(places))):
        by_doc.setdefault(i, {})[j] = rng.choice(KINDS)
    for i, kinds in by_doc.items():
        doc, ents = docs[i], []
        taken = {token.i for ent in doc.ents for token in ent}
        for j, ent in enumerate(doc.ents):
            kind = kinds.get(j)
            new: Span | None = ent
            if kind == "label":
                others = [label for label in labels if label != ent.label_]
                new = Span(doc, ent.start, ent.end, rng.choice(others))
            elif kind == "boundary":
                bounds = [(ent.start + 1, ent.end), (ent.start, ent.end - 1)]
                bounds = [each for each in bounds if each[0] < each[1]]
                if ent.end < len(doc) and ent.end not in taken:
                    bounds.append((ent.start, ent.end + 1))
                if ent.start > 0 and ent.start - 1 not in taken:
                    bounds.append((ent.start - 1, ent.end))
                if not bounds:
                    kind, new = "deleted", None
                else:
                    new = Span(doc, *rng.choice(bounds), ent.label_)
            elif kind == "deleted":
                new = None
            if new is not None:
                ents.append(new)
                taken |= {token.i for token in new}
            if kind is not None:
                both = [ent] if new is None else [ent, new]
                start = min(each.start_char for each in both)
                changed.append((i, start, max(each.end_char for each in both), kind))
        doc.set_ents(ents, default="outside")
    return changed


def is_about(finding: common.Row, doc: int, start: int, end: int) -> bool:
    ents = [finding[side] for side in ("gold", "predicted") if finding[side]]
    return finding["doc"] == doc and any(e["start"] < end and start < e["end"] for e in ents)
