"""HTML pages of annotated documents: the report, and gold beside predicted entities."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from markupsafe import Markup, escape
from spacy import displacy
from spacy.tokens import Doc
from spacy.training import Example

from ..evaluation.matching import Entity, collect_entities
from ..templates import render
from . import plots, tables

PAGE_SIZE = 100  # errors shown at first
MAX_ERRORS = 5_000  # errors in the page
# Background colors for dark text.
PALETTE = (
    "#aa9cfc", "#7aecec", "#feca74", "#bfe1d9", "#bfeeb7", "#ffeb80",
    "#ff9561", "#f0a3c4", "#9cc9cc", "#d9c7a3", "#a8d08d", "#8fb8ff",
)  # fmt: skip
CURVES = {
    "losses": "On training documents, by component.",
    "scores": "On development documents, in percent.",
    "speed": "On development documents.",
}
# A text, the entity that it is, if any, and whether this is the one in question.
Segment = tuple[str, Entity | None, bool]


class Plot(NamedTuple):
    """A figure of the report: a chart, or a table that is read as a picture."""

    title: str
    caption: str
    chart: plots.Chart | None = None
    table: tables.Table | None = None


def report_page(results: dict[str, Any]) -> str:
    """Render the result of `evaluation.evaluate` or `compare` as one self-contained page."""
    every = (results, results["comparison"]["other"]) if results["comparison"] else (results,)
    errors = results["errors"]
    listed = _error_list(errors["list"], list(errors["counts"]))
    known = _labels(listed["errors"])
    known.update(*(each["matching"]["strict"]["per_type"] for each in every))
    return render(
        "report.html.j2",
        "errors.js",
        title=f"{results['model']} on {results['data']}",
        headline=tables.headline(results),
        facts=tables.facts(results),
        method=tables.method(results),
        sections=tables.sections(results),
        colors=_colors(known),
        plots=_plots(results),
        **listed,
    )


def _error_list(errors: Sequence[dict[str, Any]], kinds: list[str]) -> dict[str, Any]:
    """Return what the list of errors in a template needs."""
    listed = errors[:MAX_ERRORS]
    ents = [error[side] for error in listed for side in ("gold", "predicted") if error[side]]
    return {
        "errors": [{**error, "sides": _error_sides(error)} for error in listed],
        "unlisted": len(errors) - len(listed),
        "page_size": PAGE_SIZE,
        "filters": {"Kind": kinds, "Label": sorted({ent["label"] for ent in ents})},
    }


def comparison_page(examples: Iterable[Example], title: str, key: str | None = None) -> str:
    """Render the gold entities of each document beside the predicted ones, as one page.

    Entities under a key in `doc.spans` may overlap: they are lines under the text, the gold ones
    above the predicted ones. Without a key, entities are those in `doc.ents`.
    """
    examples = list(examples)
    docs = []
    counts: Counter[str] = Counter()
    collected = collect_entities(examples, key)
    labels = {ent.label for found in collected for ents in found[1:] for ent in ents}
    colors = _colors(labels)
    for eg, found in zip(examples, collected):
        sizes = {"gold": len(found.gold), "predicted": len(found.predicted)}
        equal = sum(found.correct())
        counts.update(sizes, equal=equal, left_out=len(found.left_out))
        predicted = sorted(found.predicted + found.left_out, key=lambda ent: ent.start)
        sides = {"gold": (eg.reference, found.gold), "predicted": (eg.predicted, predicted)}
        shown = {
            side: _segments(doc.text, ents) if key is None else _lines(doc, ents, colors)
            for side, (doc, ents) in sides.items()
        }
        docs.append({"differs": set(sizes.values()) != {equal}, **shown})
    summary = (
        f"{tables.count(len(examples), 'document')}. {tables.count(counts['gold'], 'gold entity')},"
        f" {counts['predicted']:,} predicted, {counts['equal']:,} of them equal in boundaries and "
        f"label{tables.left_out(counts['left_out'])}. A red edge marks the documents where they "
        "differ."
    )
    return render(
        "comparison.html.j2",
        title=title,
        summary=summary,
        docs=docs,
        colors=colors,
        overlapping=key is not None,
    )


def review_page(findings: Sequence[dict[str, Any]], title: str, summary: str, method: str) -> str:
    """Render gold annotation that is probably wrong, in this order, as one self-contained page.

    Findings are errors as `error_analysis.errors` lists them, each with "gold_probability",
    "log_odds" and "support".
    """
    told = [{**each, "confidence": None, "note": _odds(each)} for each in findings]
    listed = _error_list(told, sorted({each["kind"] for each in told[:MAX_ERRORS]}))
    return render(
        "review.html.j2",
        "errors.js",
        title=title,
        summary=summary,
        method=method,
        colors=_colors(_labels(listed["errors"])),
        **listed,
    )


def _odds(finding: Mapping[str, Any]) -> str:
    """Describe how sure the model is, in words."""
    names = {"gold_probability": "gold", "confidence": "prediction"}
    support = finding["support"]
    known = {name: finding[key] for key, name in names.items()}
    if finding["predicted"] is None:
        del known["prediction"]
    shown = [f"P({name}) {p:.3f}" for name, p in known.items() if p is not None]
    texts = f"texts like prediction : gold {support['predicted']:,} : {support['gold']:,}"
    return f"log odds {finding['log_odds']:.1f}, {', '.join(shown)}, {texts}"


def _colors(labels: Iterable[str]) -> dict[str, str]:
    return {label: PALETTE[i % len(PALETTE)] for i, label in enumerate(sorted(labels))}


def _labels(errors: Iterable[Mapping[str, Any]]) -> set[str]:
    """Return the labels of errors, and of the entities beside them."""
    sides = [(each[side], *each["beside"][side]) for each in errors for side in each["beside"]]
    return {ent["label"] for ents in sides for ent in ents if ent}


def _segments(text: str, ents: Iterable[Entity], asked: Entity | None = None) -> list[Segment]:
    """Split a text at its entities, which are in order; one of them may be in question."""
    segments: list[Segment] = []
    done = 0
    for ent in ents:
        inside = text[ent.start : ent.end], ent, ent is asked
        segments += [(text[done : ent.start], None, False), inside]
        done = ent.end
    return [*segments, (text[done:], None, False)]


def _lines(doc: Doc, ents: Iterable[Entity], colors: Mapping[str, str]) -> Markup:
    """Draw entities as lines under the text, with displaCy."""
    spans, shown = [], {}
    for ent in ents:
        span = doc.char_span(*ent.span)
        if span is None:  # a span without tokens
            continue
        p = "" if ent.confidence is None else f" {ent.confidence:.3f}"
        label = str(escape(ent.label + p))  # displaCy escapes the text alone
        shown[label] = colors[ent.label]
        spans.append({"start_token": span.start, "end_token": span.end, "label": label})
    parsed = {"tokens": [token.text for token in doc], "spans": spans}
    drawn = displacy.render(
        parsed, style="span", manual=True, jupyter=False, options={"colors": shown}
    )
    return Markup(drawn)


class Side(NamedTuple):
    """The gold or the predicted entities of an error in its context."""

    segments: list[Segment]  # with the one in question, if any, and those that do not overlap it
    others: list[Entity]  # that overlap one of these


def _error_sides(error: dict[str, Any]) -> dict[str, Side]:
    shift = len(error["before"]) - error["offset"]
    text = error["before"] + error["text"] + error["after"]

    def in_context(ent: dict[str, Any]) -> Entity:
        start, end = max(0, ent["start"] + shift), min(len(text), ent["end"] + shift)
        return Entity(start, end, ent["label"])

    sides = {}
    for side, beside in error["beside"].items():
        asked = in_context(error[side]) if error[side] else None
        drawn, others = [asked] if asked else [], list[Entity]()
        for ent in map(in_context, beside):
            is_free = all(ent.end <= each.start or each.end <= ent.start for each in drawn)
            (drawn if is_free else others).append(ent)
        sides[side] = Side(_segments(text, sorted(drawn, key=lambda e: e.start), asked), others)
    return sides


def _plots(results: dict[str, Any]) -> dict[str, list[Plot]]:
    """Draw the plots of each section."""
    confidence, candidates, transitions = [], [], []
    if results["reliability"] is not None:
        reliability = plots.reliability_diagram(results["reliability"])
        curve = plots.precision_recall_curve(results["thresholds"])
        confidence = [
            Plot("Reliability", "On the diagonal, accuracy equals confidence.", reliability),
            Plot(
                "Precision and recall",
                "For entities with a confidence of at least the number at the point.",
                curve,
            ),
        ]
    if results["coverage"] is not None and results["coverage"]["curve"]:
        about = "A lower threshold finds more of the gold entities, and costs more candidates."
        curve = plots.coverage_curve(
            results["coverage"]["curve"], results["coverage"]["guarantees"]
        )
        candidates.append(Plot("Coverage of candidates", about, curve))
    scores = results["transitions"]
    if scores and scores["tags"]:
        table, largest = tables.transition_map(scores)
        about = (
            "From the tag of the row to the tag of the column. Blue is favored, red penalized, "
            f"the densest at {largest:.2f} from 0; crossed cells are forbidden."
        )
        transitions.append(Plot(table.title, about, table=table))
    curves = {of: plots.training_curves(results["training"] or [], of) for of in CURVES}
    return {
        "Confidence": confidence,
        "Guarantees": candidates,
        "Transitions": transitions,
        "Training": [
            Plot(of.capitalize(), CURVES[of], chart) for of, chart in curves.items() if chart
        ],
    }
