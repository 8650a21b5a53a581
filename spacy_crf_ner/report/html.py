"""HTML pages of annotated documents: the report, and gold beside predicted entities."""

from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

from spacy.tokens import Doc
from spacy.training import Example

from ..evaluation.matching import collect_entities
from ..templates import render
from . import plots, tables

PAGE_SIZE = 100  # errors, before more are asked for
MAX_ERRORS = 5_000  # errors that the page has at all
# Readable behind dark text.
PALETTE = (
    "#aa9cfc", "#7aecec", "#feca74", "#bfe1d9", "#bfeeb7", "#ffeb80",
    "#ff9561", "#f0a3c4", "#9cc9cc", "#d9c7a3", "#a8d08d", "#8fb8ff",
)  # fmt: skip
Segment = Tuple[str, str]  # text and label, empty outside of entities


class Plot(NamedTuple):
    """A figure of the report: an SVG element, its caption, and whether it scrolls in a box."""

    svg: str
    title: str
    caption: str
    scrolls: bool = False


def report_page(results: Dict[str, Any]) -> str:
    """Draw the results of an evaluation as one self-contained page.

    results: What `evaluation.evaluate` or `evaluation.compare` returns.

    Raises InputError where there is something to plot, and matplotlib is not installed.
    """
    listed = results["errors"]["list"][:MAX_ERRORS]
    ents = [error[side] for error in listed for side in ("gold", "predicted") if error[side]]
    labels = {ent["label"] for ent in ents}
    every = (results, results["comparison"]["other"]) if results["comparison"] else (results,)
    known = labels.union(*(each["matching"]["strict"]["per_type"] for each in every))
    return render(
        "report.html.j2",
        "errors.js",
        title=f"{results['model']} on {results['data']}",
        headline=tables.headline(results),
        size=tables.size(results),
        method=tables.method(results),
        sections=tables.sections(results),
        colors=_colors(known),
        errors=[error | {"segments": _error_segments(error)} for error in listed],
        unlisted=len(results["errors"]["list"]) - len(listed),
        page_size=PAGE_SIZE,
        filters={"Kind": list(results["errors"]["counts"]), "Label": sorted(labels)},
        plots={
            "Confidence": _confidence_plots(results),
            "Transitions": _transition_plots(results["transitions"]),
            "Training": _training_plots(results["training"] or []),
        },
    )


def comparison_page(examples: Iterable[Example], title: str) -> str:
    """Draw the gold entities of each document beside the predicted ones.

    examples: Documents whose `predicted` a pipeline has annotated.
    title: Heading of the page.

    Returns one self-contained page.
    Raises InputError where a predicted and a gold doc differ in their text.
    """
    examples = list(examples)
    docs = []
    n_gold = n_predicted = n_equal = n_left_out = 0
    for eg, found in zip(examples, collect_entities(examples)):
        gold, predicted = (
            {(ent.span, ent.label) for ent in ents} for ents in (found.gold, found.predicted)
        )
        n_gold += len(gold)
        n_predicted += len(predicted)
        n_equal += len(gold & predicted)
        n_left_out += len(found.left_out)
        sides = {"gold": _doc_segments(eg.reference), "predicted": _doc_segments(eg.predicted)}
        docs.append({"differs": gold != predicted, **sides})
    summary = (
        f"{tables.count(len(examples), 'document')}. {tables.count(n_gold, 'gold entity')}, "
        f"{n_predicted:,} predicted, {n_equal:,} of them equal in boundaries and label"
        + (
            f"; {n_left_out:,} more predicted where gold annotation is missing"
            if n_left_out
            else ""
        )
        + ". A red edge marks the documents where they differ."
    )
    labels = {ent.label_ for eg in examples for doc in (eg.x, eg.y) for ent in doc.ents}
    return render(
        "comparison.html.j2", title=title, summary=summary, docs=docs, colors=_colors(labels)
    )


def _colors(labels: Iterable[str]) -> Dict[str, str]:
    return {label: PALETTE[i % len(PALETTE)] for i, label in enumerate(sorted(labels))}


def _segments(text: str, ents: Iterable[Tuple[int, int, str]]) -> List[Segment]:
    """Cut a text at its entities, which are in order."""
    segments, done = [], 0
    for start, end, label in ents:
        segments += [(text[done:start], ""), (text[start:end], label)]
        done = end
    return [*segments, (text[done:], "")]


def _doc_segments(doc: Doc) -> List[Segment]:
    return _segments(doc.text, [(ent.start_char, ent.end_char, ent.label_) for ent in doc.ents])


def _error_segments(error: Dict[str, Any]) -> Dict[str, List[Segment]]:
    shift = len(error["before"]) - error["offset"]
    text = error["before"] + error["text"] + error["after"]
    return {
        side: _segments(
            text, [(ent["start"] + shift, ent["end"] + shift, ent["label"])] if ent else []
        )
        for side, ent in (("gold", error["gold"]), ("predicted", error["predicted"]))
    }


def _confidence_plots(results: Dict[str, Any]) -> List[Plot]:
    if results["reliability"] is None:
        return []
    return [
        Plot(
            plots.reliability_diagram(results["reliability"]),
            "Reliability",
            "On the diagonal, entities are right as often as their confidence says.",
        ),
        Plot(
            plots.precision_recall_curve(results["thresholds"]),
            "Precision and recall",
            "Of the entities whose confidence is at least the number at the point.",
        ),
    ]


def _transition_plots(transitions: Optional[Dict[str, Any]]) -> List[Plot]:
    if not transitions or not transitions["tags"]:
        return []
    caption = (
        "From the tag of the row to the tag of the column. Blue is favoured, red penalised, the "
        f"densest at {plots.largest(transitions):.2f} from 0; crossed cells are forbidden."
    )
    return [Plot(plots.transition_map(transitions), "Transition scores", caption, scrolls=True)]


def _training_plots(training: Sequence[Dict[str, Any]]) -> List[Plot]:
    # Speed is no percentage: it has a scale of its own.
    rows = [
        row | {
            "scores": {name: x for name, x in row["scores"].items() if name != "speed"},
            "speed": {name: x for name, x in row["scores"].items() if name == "speed"},
        }
        for row in training
    ]  # fmt: skip
    captions = {
        "losses": "On training documents, by component.",
        "scores": "On development documents, in percent.",
        "speed": "On development documents.",
    }
    return [
        Plot(plots.training_curves(rows, of), of.capitalize(), caption)
        for of, caption in captions.items()
        if any(row[of] for row in rows)
    ]
