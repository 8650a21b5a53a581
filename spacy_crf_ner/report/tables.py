"""The tables of a report, as data; `markdown` and `html` render them."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ..evaluation.bootstrap import FEW

MEASURES = {"precision": "Precision", "recall": "Recall", "f1": "F1"}
MATCHINGS = {
    "strict": "boundaries and label are right",
    "exact": "boundaries are right, with any label",
    "partial": "it overlaps a gold entity; half a point if boundaries differ",
    "type": "it overlaps a gold entity of its label",
}
MAX_NUMBERED = 33  # tags, 8 labels in BILUO: with more, the map of transitions has no numbers
DENSEST = 2.0  # transition score, of either sign: a factor of 7; smaller ones may be noise
LOG_ROWS = 20  # maximum number of rows of the training log
MINUS = "\N{MINUS SIGN}"
UNDEFINED = "\N{EN DASH}"  # a zero denominator
Interval = Sequence[float] | None


class Cell(NamedTuple):
    """A cell of a table."""

    text: str
    detail: str = ""  # shown small, or in brackets, after the text
    kind: str = ""  # CSS classes: "label", "significant" (bold), "bar" (only for HTML) and others
    shade: float | None = None  # the density of the background, 0 to 1
    bar: tuple[float, ...] = ()  # a score and its interval, drawn on a line from 0 to 1


class Table(NamedTuple):
    """A table; the first column has the names of the rows."""

    title: str
    header: list[Cell]
    rows: list[list[Cell]]
    foot: Sequence[list[Cell]] = ()  # rows below a line, such as means
    kind: str = "plain"  # CSS classes
    folded: bool = False  # whether an HTML page shows it only on demand


class Section(NamedTuple):
    """A section of a report: an explanation, and tables."""

    title: str
    meaning: str
    tables: Sequence[Table] = ()


def sections(results: dict[str, Any]) -> list[Section]:
    """Convert the result of `evaluation.evaluate` or `compare` to the sections of a report."""
    parts = [_labels, _matching, _confusion, _errors, _confidence]
    if results["nesting"] is not None:
        parts.insert(1, _nesting)
    if results["coverage"] is not None:
        parts.append(_guarantees)
    parts.append(_transitions)
    if results["training"]:
        parts.append(_training)
    if results["comparison"] is not None:
        parts.insert(0, _comparison)
    return [part(results) for part in parts]


def headline(results: dict[str, Any]) -> list[tuple[str, Cell]]:
    """Return the micro scores, F1 first; of two models, the F1 of both and the difference."""
    scores, intervals = _strict(results, None)
    if (comparison := results["comparison"]) is not None:
        values, resamples = comparison["difference"]["micro"]["f1"], comparison["resamples"]
        other = _score(*_strict(comparison["other"], None), "f1")
        return [
            ("F1, new minus old", _difference(values, resamples)[0]),
            ("F1, old", _score(scores, intervals, "f1")),
            ("F1, new", other),
        ]
    names = ("f1", "precision", "recall")
    return [(f"{MEASURES[name]}, micro", _score(scores, intervals, name)) for name in names]


def facts(results: dict[str, Any]) -> list[tuple[str, str]]:
    """Return what was evaluated, as names and values for the head of the report."""
    pipelines = [("Pipeline", results)]
    if (comparison := results["comparison"]) is not None:
        pipelines = [("Old", results), ("New", comparison["other"])]
    rows = [
        *((name, each["model"]) for name, each in pipelines),
        ("Corpus", results["data"]),
        ("Size", f"{count(results['docs'], 'document')}, {count(results['tokens'], 'token')}"),
        ("Labels", ", ".join(results["matching"]["strict"]["per_type"]) or "none"),
        ("Gold", count(results["gold"], "entity")),
    ]
    for name, each in pipelines:
        of = f", {name.lower()}" if comparison else ""
        more = each["left_out"]
        left_out = f"; {more:,} more where gold annotation is missing" if more else ""
        rows.append((f"Predicted{of}", count(each["predicted"], "entity") + left_out))
        if each["calibration"]:
            rows.append((f"Confidences{of}", each["calibration"].partition(": ")[2]))
    return rows


def method(results: dict[str, Any]) -> str:
    """Return the footnote: units, matching rule, interval method."""
    intervals = results["intervals"]
    return (
        "Scores are in percent. An entity is right if its boundaries and its label are right. "
        f"Ranges are {100 * intervals['level']:g}\N{NO-BREAK SPACE}% intervals by the bootstrap "
        f"over documents, with {count(intervals['resamples'], 'resample')}; of a score with fewer "
        f"than {FEW} right or {FEW} wrong entities, Wilson's. A dash means undefined (zero "
        "denominator)."
    )


def count(number: int, noun: str) -> str:
    """Format a number and its noun: "1 gold entity", "1,000 tokens"."""
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural}"


def percent(share: float | None) -> str:
    """Format a share in percent, with one decimal."""
    return UNDEFINED if share is None else f"{100 * share:.1f}"


def _labels(results: dict[str, Any]) -> Section:
    strict, intervals = results["matching"]["strict"], results["intervals"]

    def row(head: Cell, scores: dict[str, Any], ranges: dict[str, Interval]) -> list[Cell]:
        f1, interval = scores["f1"], ranges.get("f1")
        bar = () if f1 is None else (f1, *(interval or (f1, f1)))
        cells = [_score(scores, ranges, name) for name in MEASURES]
        return _row(head, *cells, scores["gold"], scores["predicted"], Cell("", "", "bar", bar=bar))

    header = _row("Label", *MEASURES.values(), "Gold", "Predicted", Cell("F1, 0 to 100", "", "bar"))
    labels = [
        row(Cell(label, "", "label"), *_strict(results, label)) for label in strict["per_type"]
    ]
    means = [
        row(Cell(f"{each} mean"), strict[each], intervals[each] or {})
        for each in ("micro", "macro")
    ]
    return Section("Labels", "", [Table("Scores of each label", header, labels, means)])


def _nesting(results: dict[str, Any]) -> Section:
    nesting = results["nesting"]

    def row(head: Cell, counts: dict[str, Any]) -> list[Cell]:
        kinds = (counts[kind] for kind in ("flat", "overlapping"))
        cells = [cell for each in kinds for cell in (percent(each["recall"]), each["gold"])]
        return _row(head, *cells, counts["lost"])

    header = ("Recall, flat", "Gold, flat", "Recall, overlapping", "Gold, overlapping", "Too deep")
    rows = [row(Cell(label, "", "label"), each) for label, each in nesting["per_type"].items()]
    meaning = (
        "Overlapping: another gold entity is inside, around or across the entity. Too deep: nested "
        f"in more levels of its label than the model has, which is {nesting['max_nesting']}. A "
        "model that finds all others has a recall of "
        f"{percent(nesting['ceiling'])}\N{NO-BREAK SPACE}%."
    )
    foot = [row(Cell("all"), nesting["micro"])]
    table = Table("Recall of flat and overlapping entities", _row("Label", *header), rows, foot)
    return Section("Nesting", meaning, [table])


def _matching(results: dict[str, Any]) -> Section:
    header = _row("Rule", *MEASURES.values(), "Correct", "A predicted entity is right if")
    rows = []
    for name, matching in results["matching"].items():
        micro = matching["micro"]
        scores = [_score(micro, {}, each) for each in MEASURES]
        rows.append(_row(name, *scores, f"{micro['correct']:g}", MATCHINGS[name]))
    table = Table("Micro scores by matching rule", header, rows, kind="told")
    left_out = [name for name in MATCHINGS if name not in results["matching"]]
    meaning = f"Not defined for entities that overlap: {', '.join(left_out)}." if left_out else ""
    return Section("Matching", meaning, [table])


def _confusion(results: dict[str, Any]) -> Section:
    labels, counts = results["confusion"]["labels"], results["confusion"]["counts"]
    if not labels:
        return Section("Confusion", "There are no gold and no predicted entities.")
    heads = [*map(Cell, labels), Cell("spurious", "", "other")]
    rows = []
    for i, (head, numbers) in enumerate(zip(heads, counts)):
        cells = []
        for j, number in enumerate(numbers):
            kinds = [kind for kind, holds in (("right", i == j), ("zero", not number)) if holds]
            # The square root makes rare cells visible.
            density = (number / (sum(numbers) or 1)) ** 0.5
            cells.append(Cell(f"{number:,}", "", " ".join(kinds), density))
        rows.append([head, *cells])
    rows[-1][-1] = Cell("")  # neither gold nor predicted
    header = _row("Gold \N{RIGHTWARDS ARROW} predicted", *labels, Cell("missed", "", "other"))
    upright = len(labels) > 8 or max(map(len, labels)) > 10
    meaning = (
        "Rows are gold labels, columns are predicted labels, for entities matched one to one: the "
        "same span first, then the largest overlap. Missed: no predicted entity is left that "
        "overlaps. Spurious: no gold entity is. In the page, a denser color is a greater share of "
        "the row."
    )
    kind = "matrix upright" if upright else "matrix"
    return Section("Confusion", meaning, [Table("Confusion matrix", header, rows, kind=kind)])


def _errors(results: dict[str, Any]) -> Section:
    counts = results["errors"]["counts"]
    total = sum(counts.values())
    rows = [_row(kind, n, percent(n / total if total else None)) for kind, n in counts.items()]
    table = Table("Errors of each kind", _row("Kind", "Errors", "% of all"), rows)
    return Section("Errors", "" if total else "There are no errors.", [table])


def _confidence(results: dict[str, Any]) -> Section:
    reliability, thresholds = results["reliability"], results["thresholds"]
    if reliability is None:
        return Section("Confidence", "This pipeline does not set confidences.")
    bins, brier = reliability["bins"], reliability["brier"]
    meaning = (
        f"Expected calibration error {percent(reliability['ece'])}\N{NO-BREAK SPACE}% "
        f"({percent(reliability['ece_by_chance'])}\N{NO-BREAK SPACE}% by chance), Brier score "
        f"{UNDEFINED if brier is None else f'{brier:.3f}'}, of "
        f"{count(reliability['entities'], 'entity')} in {len(bins)} bins."
    )
    ends = [f"{i / len(bins):.3f}" for i in range(len(bins) + 1)]
    in_bins = [
        _row(f"{low} to {high}", b["count"], percent(b["confidence"]), percent(b["correct"]))
        for low, high, b in zip(ends, ends[1:], bins)
    ]
    by_threshold = [
        _row(f"{t['threshold']:.2f}", t["entities"], percent(t["precision"]), percent(t["recall"]))
        for t in thresholds
    ]
    header = _row("Confidence", "Entities", "Mean confidence", "% correct")
    scores = _row("Threshold", "Entities", "Precision", "Recall")
    title = "Precision and recall by confidence threshold"
    return Section("Confidence", meaning, [
        Table("Bins of the reliability diagram", header, in_bins, folded=True),
        Table(title, scores, by_threshold, folded=True),
    ])  # fmt: skip


def _guarantees(results: dict[str, Any]) -> Section:
    coverage = results["coverage"]
    header = _row("Guarantee", "Level", "Confidence level", "Fitted to documents", "Found here")
    rows = []
    for kind, guarantee in coverage["guarantees"].items():
        sure = guarantee["confidence_level"]
        told = percent(guarantee["level"]), percent(sure) if sure else "on average"
        found = guarantee["found"]
        by_name = {kind: found}
        if isinstance(found, dict):
            by_name = {f"{kind} of {label}": share for label, share in found.items()}
        rows += [
            _row(name, *told, guarantee["documents"], percent(share))
            for name, share in by_name.items()
        ]
    tables = [Table("Guarantees, in %", header, rows)] if rows else []
    if coverage["curve"]:
        header = _row(
            "Threshold", "Candidates per gold entity", "% of the gold entities of a document"
        )
        rows = [
            _row(level_name(at["threshold"]), f"{at['per_entity']:.2f}", percent(at["coverage"]))
            for at in coverage["curve"]
        ]
        tables.append(Table("Candidates by threshold", header, rows, folded=True))
    if not coverage["guarantees"]:
        meaning = "This pipeline guarantees nothing of new documents."
    else:
        meaning = (
            "Guarantees hold for new documents from the source of those that they were fitted to. "
            f"Found here: the mean share in a document, of {count(coverage['docs'], 'document')} "
            "with complete annotation."
        )
    return Section("Guarantees", meaning, tables)


def level_name(threshold: float | None) -> str:
    """Format a threshold of candidates; None stands for those by label."""
    return "by label" if threshold is None else f"{threshold:.2g}"


def _transitions(results: dict[str, Any]) -> Section:
    transitions = results["transitions"]
    if transitions is None:
        return Section("Transitions", "This pipeline has no transition scores.")
    return Section("Transitions", "" if transitions["tags"] else "This pipeline has no tags.")


def transition_map(transitions: dict[str, Any]) -> Table:
    """Return the transition scores as a table of colored cells, the densest from `DENSEST` on.

    It has a row "start" and one for each tag, and a column for each tag and one "end". A score of
    None is a forbidden transition.
    """
    tags = transitions["tags"]
    rows = [[*transitions["start"], 0.0]]
    rows += [[*row, end] for row, end in zip(transitions["scores"], transitions["end"])]
    largest = max((abs(score) for row in rows for score in row if score is not None), default=0.0)
    has_numbers = len(tags) <= MAX_NUMBERED

    def cell(score: float | None) -> Cell:
        if score is None:
            return Cell("", "", "forbidden")
        text = f"{score:.{2 if largest < 10 else 1}f}" if has_numbers else ""
        text = text if float(text or 0) else text.lstrip("-")  # no negative zero
        kind = "favored" if score > 0 else "penalized"
        return Cell(text.replace("-", MINUS), "", kind, min(1.0, abs(score) / DENSEST))

    body = [[Cell(name), *map(cell, row)] for name, row in zip(["start", *tags], rows)]
    body[0][-1] = Cell("")  # not a transition: only an empty doc goes from start to end
    kind = f"matrix upright map{'' if has_numbers else ' small'}"
    return Table("Transition scores", _row("", *tags, "end"), body, kind=kind)


def _training(results: dict[str, Any]) -> Section:
    log = results["training"]
    names = [
        (key, name)
        for key in ("losses", "scores")
        for name in dict.fromkeys(name for row in log for name in row[key])
    ]
    shown = sorted({round(i) for i in np.linspace(0, len(log) - 1, LOG_ROWS)})
    rows = []
    for row in (log[i] for i in shown):
        values = [row[key].get(name) for key, name in names]
        cells = [UNDEFINED if value is None else f"{value:,.2f}" for value in values]
        rows.append(_row(str(row["step"]), str(row["epoch"]), *cells))
    heads = [f"loss {name}" if key == "losses" else name for key, name in names]
    title = f"{len(rows):,} of {len(log):,} evaluations during training"
    done = f"{count(log[-1]['step'], 'step')}, up to epoch {log[-1]['epoch']}"
    table = Table(title, _row("Step", "Epoch", *heads), rows, folded=True)
    return Section("Training", f"{done}. Scores, except speed, are in percent.", [table])


def _comparison(results: dict[str, Any]) -> Section:
    comparison = results["comparison"]
    other, difference = comparison["other"], comparison["difference"]
    compared = [
        (Cell(f"{MEASURES[name]}, micro"), None, name, values)
        for name, values in difference["micro"].items()
    ]
    compared += [
        (Cell(label, "F1", "label"), label, "f1", values["f1"])
        for label, values in difference["per_type"].items()
    ]
    rows = []
    for head, label, name, values in compared:
        scores = [_score(*_strict(each, label), name) for each in (results, other)]
        rows.append([head, *scores, *_difference(values, comparison["resamples"])])
    models = ("Old", "New")
    kinds = [
        _row(kind, *(each["errors"]["counts"][kind] for each in (results, other)))
        for kind in results["errors"]["counts"]
    ]
    meaning = (
        "A difference is the new model minus the old one, in percentage points, bold if its "
        f"interval excludes 0. p is from the {comparison['test']}, with "
        f"{count(comparison['resamples'], 'resample')}. All other sections are of the old model."
    )
    return Section("Comparison", meaning, [
        Table("Scores of both models", _row("Strict", *models, "New minus old", "p"), rows),
        Table("Errors of both models", _row("Errors", *models), kinds),
    ])  # fmt: skip


def _strict(results: dict[str, Any], label: str | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the strict scores of a label, or the micro ones, and their intervals."""
    strict, intervals = results["matching"]["strict"], results["intervals"]
    if label is None:
        return strict["micro"], intervals["micro"] or {}
    return strict["per_type"].get(label, {}), intervals["per_type"].get(label, {})


def _score(scores: dict[str, Any], intervals: dict[str, Interval], name: str) -> Cell:
    interval = intervals.get(name)
    return Cell(percent(scores.get(name)), UNDEFINED.join(map(percent, interval or ())))


def _difference(values: dict[str, Any], resamples: int) -> list[Cell]:
    difference, interval, p = (values[key] for key in ("difference", "interval", "p"))
    if difference is None:
        return [Cell(UNDEFINED), Cell(UNDEFINED)]
    low, high = interval or (0.0, 0.0)
    detail = f"{_points(low)} to {_points(high)}" if interval else ""
    kind = "significant" if low > 0 or high < 0 else ""
    smallest = max(0.001, 1 / resamples)  # for this number of resamples
    shown = UNDEFINED if p is None else f"{p:.3f}" if p >= smallest else f"< {smallest:.3f}"
    return [Cell(_points(difference), detail, kind), Cell(shown)]


def _points(difference: float) -> str:
    """Format a difference in percentage points, with its sign."""
    return f"{100 * difference:+.1f}".replace("-", MINUS)


def _row(*cells: Cell | str | int) -> list[Cell]:
    return [
        cell if isinstance(cell, Cell) else Cell(f"{cell:,}" if isinstance(cell, int) else cell)
        for cell in cells
    ]
