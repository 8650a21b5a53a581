"""HTML pages of errors: the report, and the review of gold annotation."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ..evaluation.matching import Entity
from ..templates import render
from . import plots, tables
from .segments import Side, colors_of, draw

MAX_ERRORS = 5_000  # errors in the page
CURVES = {
    "losses": "On training documents, by component.",
    "scores": "On development documents, in percent.",
    "speed": "On development documents.",
}


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
        "articles.js",
        title="Evaluation report",
        headline=tables.headline(results),
        facts=tables.facts(results),
        method=tables.method(results),
        sections=tables.sections(results),
        colors=colors_of(known),
        has_confidence=results["reliability"] is not None,
        plots=_plots(results),
        **listed,
    )


def review_page(
    findings: Sequence[dict[str, Any]],
    tasks: Mapping[int, dict[str, Any]],
    facts: Sequence[tuple[str, str]],
    summary: str,
    method: str,
) -> str:
    """Render gold annotation that is probably wrong, in this order, as one self-contained page.

    Args:
        findings: Errors as `error_analysis.errors` lists them, each with "log_odds" and "support".
        tasks: A record of JSON lines with the gold entities for each document in the page, by its
            number. From these, the page makes the answers that can be merged into the corpus.
        facts: Names and values for the head of the page.
        summary: What was found, in words.
        method: How it was found, in words.
    """
    own = [each for each in findings if each["doc"] in tasks]
    listed = _error_list(own, sorted({each["kind"] for each in own[:MAX_ERRORS]}))
    listed["unlisted"] += len(findings) - len(own)
    for each in listed["errors"]:
        each["change"] = {key: each[key] for key in ("doc", "gold", "predicted")}
    return render(
        "review.html.j2",
        "review.js",
        title="Gold annotation to review",
        facts=facts,
        summary=summary,
        method=method,
        tasks=tasks,
        colors=colors_of(_labels(listed["errors"])),
        has_confidence=True,
        **listed,
    )


def _error_list(errors: Sequence[dict[str, Any]], kinds: list[str]) -> dict[str, Any]:
    """Return what the list of errors in a template needs."""
    listed = []
    for error in errors[:MAX_ERRORS]:
        labels = {error[side]["label"] for side in ("gold", "predicted") if error[side]}
        own = {"labels": sorted(labels), "about": _about(error), "sides": _sides(error)}
        listed.append({**error, **own})
    every = {label for each in listed for label in each["labels"]}
    return {
        "errors": listed,
        "unlisted": len(errors) - len(listed),
        "filters": {"Kind": kinds, "Label": sorted(every)},
    }


def _about(error: Mapping[str, Any]) -> str:
    """Describe what is known about an error, in words."""
    p, q = error["confidence"], error["gold_probability"]
    odds, support = error.get("log_odds"), error.get("support", {})
    parts = [
        odds is not None and f"log odds {odds:.1f}",
        p is not None and f"confidence {p:.3f}",
        q is not None and f"probability of the gold entity {q:.3f}",
        any(support.values())
        and f"other texts: {support['predicted']:,} as predicted, {support['gold']:,} as gold",
        f"document {error['doc']}",
    ]
    return " · ".join(part for part in parts if part)


def _labels(errors: Iterable[Mapping[str, Any]]) -> set[str]:
    """Return the labels of errors, and of the entities beside them."""
    sides = [(each[side], *each["beside"][side]) for each in errors for side in each["beside"]]
    return {ent["label"] for ents in sides for ent in ents if ent}


def _sides(error: dict[str, Any]) -> dict[str, Side]:
    shift = len(error["before"]) - error["offset"]
    text = error["before"] + error["text"] + error["after"]

    def in_context(ent: dict[str, Any], confidence: float | None = None) -> Entity:
        start, end = max(0, ent["start"] + shift), min(len(text), ent["end"] + shift)
        return Entity(start, end, ent["label"], confidence)

    sides = {}
    for side, beside in error["beside"].items():
        p = error["confidence"] if side == "predicted" else None
        asked = in_context(error[side], p) if error[side] else None
        sides[side] = draw(text, [*filter(None, [asked]), *map(in_context, beside)], asked)
    return sides


def _plots(results: dict[str, Any]) -> dict[str, list[Plot]]:
    """Draw the plots of the sections that have some."""
    found: dict[str, list[Plot]] = {}
    if (reliability := results["reliability"]) is not None:
        about = "On the diagonal, accuracy equals confidence. The lines are Wilson's intervals."
        few = [b["count"] for b in reliability["bins"] if 0 < b["count"] < plots.MIN_BIN]
        if few:
            left_out = f"{tables.count(len(few), 'bin')}, with {tables.count(sum(few), 'entity')}"
            about += f" Left out, with fewer than {plots.MIN_BIN} entities each: {left_out}."
        thresholds = "For entities with a confidence of at least the number at the point."
        curve = plots.precision_recall_curve(results["thresholds"])
        found["Confidence"] = [
            Plot("Reliability", about, plots.reliability_diagram(reliability)),
            Plot("Precision and recall", thresholds, curve),
        ]
    if (coverage := results["coverage"]) is not None and coverage["curve"]:
        about = "A lower threshold finds more of the gold entities, and costs more candidates."
        curve = plots.coverage_curve(coverage["curve"], coverage["guarantees"])
        found["Guarantees"] = [Plot("Coverage of candidates", about, curve)]
    if (scores := results["transitions"]) and scores["tags"]:
        table = tables.transition_map(scores)
        about = (
            "From the tag of the row to the tag of the column. Blue is favored, red penalized, "
            f"the densest from {tables.DENSEST:g} on; crossed cells are forbidden."
        )
        found["Transitions"] = [Plot(table.title, about, table=table)]
    curves = {of: plots.training_curves(results["training"] or [], of) for of in CURVES}
    found["Training"] = [
        Plot(of.capitalize(), CURVES[of], chart) for of, chart in curves.items() if chart
    ]
    return found
