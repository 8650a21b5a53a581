"""One page of the figures of an evaluation: an HTML string in which all that is told is data."""

from base64 import b64encode
from hashlib import sha256
from html import escape
from typing import Any, Dict, Iterable, List, Optional, Sequence, Tuple

from . import plots
from .html_template import PAGE, SCRIPT, STYLE
from .side_by_side import PALETTE

SHOWN = 100  # errors, before more are asked for
LISTED = 5_000  # errors that the page has at all
MATCHINGS = {
    "strict": "boundaries and label are right",
    "exact": "boundaries are right, whatever the label",
    "partial": "it overlaps; half for boundaries that are not right",
    "type": "it overlaps, and the label is right",
}
MEANS = ("micro", "macro")
MEASURES = ("precision", "recall", "f1")
NAMES = {"precision": "Precision", "recall": "Recall", "f1": "F1"}
NONE = "\N{EN DASH}"
Scores = Dict[str, Any]


def report_page(figures: Dict[str, Any]) -> str:
    """Draw the figures of an evaluation as a page.

    figures: As `evaluation.evaluate` returns them.

    Returns one self-contained HTML page, which asks nothing of any other place: its policy
    forbids the browser to.
    Raises ValueError where there is something to plot, and matplotlib is not installed.
    """
    drawn = {
        "Types": _types(figures),
        "Matchings": _matchings(figures["matching"]),
        "Confusion": _confusion(figures["confusion"]),
        "Errors": _errors(figures),
        "Confidence": _confidence(figures),
        "Transitions": _transitions(figures["transitions"]),
        "Training": _training(figures["training"]),
        "Comparison": _comparison(figures),
    }
    sections = {title: html for title, html in drawn.items() if html}
    script = b64encode(sha256(SCRIPT.encode()).digest()).decode()
    return PAGE.format(
        policy=f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{script}'; "
        "img-src data:; base-uri 'none'; form-action 'none'",
        title=_text(f"{figures['model']} on {figures['data']}"),
        style=STYLE,
        summary=_summary(figures),
        contents=" ".join(f'<a href="#{title}">{title}</a>' for title in sections),
        sections="\n".join(
            f'<section id="{title}"><h2>{title}</h2>\n{html}\n</section>'
            for title, html in sections.items()
        ),
        script=SCRIPT,
    )


def _summary(figures: Dict[str, Any]) -> str:
    micro, ranges = _strict(figures, None)
    intervals = figures["intervals"]
    measures = "".join(
        f"<div{' class=first' if measure == 'f1' else ''}><dt>{NAMES[measure]}, micro</dt>"
        f"<dd>{_percent(micro[measure])} "
        f"<small>{_range(ranges.get(measure))}</small></dd></div>"
        for measure in ("f1", "precision", "recall")
    )
    left_out = figures["left_out"]
    return (
        f'<dl class="headline">{measures}</dl>'
        f"<p>{_count(figures['docs'], 'document')}, {_count(figures['tokens'], 'token')}; "
        f"{_count(figures['gold'], 'gold entity')}, {figures['predicted']:,} predicted"
        + (f"; {left_out:,} more predicted where gold annotation is missing" if left_out else "")
        + ".</p>"
        f'<p class="muted">All in percent. An entity is right if its boundaries and its label '
        f"are. Ranges are {100 * intervals['level']:g}\N{NO-BREAK SPACE}% intervals, by the "
        f"bootstrap over documents, of {_count(intervals['resamples'], 'resample')}.</p>"
    )


def _types(figures: Dict[str, Any]) -> str:
    strict, intervals = figures["matching"]["strict"], figures["intervals"]
    colors = _colors(figures)

    def row(head: str, scores: Scores, ranges: Scores) -> List[str]:
        return [
            _row_head(head),
            *(_measured(scores, ranges, each) for each in MEASURES),
            *(f"<td>{scores[each]:,}</td>" for each in ("gold", "predicted")),
            f"<td>{_bar(scores['f1'], ranges.get('f1'))}</td>",
        ]

    rows = [row(_label(label, colors), *_strict(figures, label)) for label in strict["per_type"]]
    means = [row(f"{each} mean", strict[each], intervals[each] or {}) for each in MEANS]
    head = ["Label", *NAMES.values(), "Gold", "Predicted", "F1, 0 to 100"]
    return _table(head, rows, means, about="Scores of each label")


def _matchings(matching: Dict[str, Any]) -> str:
    rows = [
        [
            _row_head(name),
            *(f"<td>{_percent(matching[name]['micro'][each])}</td>" for each in MEASURES),
            f"<td>{matching[name]['micro']['correct']:g}</td>",
            f"<td>{meaning}</td>",
        ]
        for name, meaning in MATCHINGS.items()
    ]
    head = ["Matching", *NAMES.values(), "Correct", "An entity counts if"]
    about = "Micro means, by what is asked of a predicted entity"
    return _table(head, rows, about=about, kind="told")


def _confusion(confusion: Dict[str, Any]) -> str:
    labels, counts = confusion["labels"], confusion["counts"]
    if not labels:
        return "<p>There are no entities, neither gold nor predicted.</p>"
    rows = []
    for i, (head, row) in enumerate(zip([*map(_text, labels), "<i>spurious</i>"], counts)):
        total = sum(row) or 1
        cells = [_cell(count, count / total, i == j) for j, count in enumerate(row)]
        if i == len(labels):
            cells[-1] = "<td></td>"  # neither gold nor predicted: there is no such entity
        rows.append([_row_head(head), *cells])
    upright = len(labels) > 8 or max(map(len, labels)) > 10
    return (
        '<p class="muted">Rows are gold labels, columns predicted ones, of entities that overlap, '
        "whatever their boundaries. Missed: no predicted entity is there; spurious: no gold one. "
        "The denser the colour, the greater is a cell's share of its row.</p>"
    ) + _table(
        ["Gold \N{RIGHTWARDS ARROW} predicted", *map(_text, labels), "<i>missed</i>"],
        rows,
        about="Confusion matrix",
        kind="matrix upright" if upright else "matrix",
    )


def _errors(figures: Dict[str, Any]) -> str:
    errors, colors = figures["errors"], _colors(figures)
    counts, listed = errors["counts"], errors["list"]
    total = sum(counts.values())
    if not total:
        return "<p>There are no errors.</p>"
    rows = [
        [_row_head(kind), f"<td>{count:,}</td>", f"<td>{_percent(count / total)}</td>"]
        for kind, count in counts.items()
    ]
    rest = len(listed) - LISTED
    return "\n".join(
        [
            _table(["Kind", "Errors", "% of all"], rows, about="Errors of each kind"),
            "<p>Entities that were predicted come first, the surest of the wrong ones before all; "
            "then those that were missed.</p>",
            f"<p>{rest:,} more are in report.json.</p>" if rest > 0 else "",
            _filters(listed[:LISTED], counts),
            *(_error(each, i, colors) for i, each in enumerate(listed[:LISTED])),
            f'<button id="more" value="{SHOWN}" hidden>Show {SHOWN} more</button>',
        ]
    )


def _filters(errors: Sequence[Dict[str, Any]], kinds: Iterable[str]) -> str:
    labels = {ent["label"] for each in errors for ent in (each["gold"], each["predicted"]) if ent}
    selects = [
        f'<label>{name} <select id="{name.lower()}" autocomplete="off"><option>all</option>'
        + "".join(f'<option value="{_text(each)}">{_text(each)}</option>' for each in values)
        + "</select></label>"
        for name, values in (("Kind", kinds), ("Label", sorted(labels)))
    ]
    return (
        f'<div class="filters">{" ".join(selects)}<span id="found" role="status"></span></div>\n'
        f"<noscript><p>Without JavaScript, these are the first {SHOWN}.</p></noscript>"
    )


def _error(error: Dict[str, Any], i: int, colors: Dict[str, str]) -> str:
    sides = {side: error[side] for side in ("gold", "predicted")}
    labels = "".join(f' data-{side}="{_text(ent["label"])}"' for side, ent in sides.items() if ent)
    sure = error["confidence"]
    about = [
        f"<b>{_text(error['kind'])}</b>",
        *([f"confidence {sure:.3f}"] if sure is not None else []),
        f"document {error['doc']}",
    ]
    drawn = "\n".join(
        f'<div><p class="side">{side.title()}</p>'
        f'<p class="text" dir="auto">{_in_context(error, ent, colors)}</p></div>'
        for side, ent in sides.items()
    )
    return (
        f'<article tabindex="-1" data-kind="{_text(error["kind"])}"{labels}'
        f"{' hidden' if i >= SHOWN else ''}>\n"
        f'<p class="about">{" · ".join(about)}</p>\n{drawn}\n</article>'
    )


def _in_context(
    error: Dict[str, Any], entity: Optional[Dict[str, Any]], colors: Dict[str, str]
) -> str:
    before, text, after = error["before"], error["text"], error["after"]
    if entity is None:
        return _text(before + text + after)
    start, end = (entity[each] - error["offset"] for each in ("start", "end"))
    label = f"<span>{_text(entity['label'])}</span>"
    marked = (
        f'<mark style="background:{colors[entity["label"]]}">{_text(text[start:end])}{label}</mark>'
    )
    return _text(before + text[:start]) + marked + _text(text[end:] + after)


def _confidence(figures: Dict[str, Any]) -> str:
    reliability, thresholds = figures["reliability"], figures["thresholds"]
    drawn = []
    if reliability is not None:
        ece, brier = reliability["ece"], reliability["brier"]
        drawn.append(
            f"<figure>{plots.reliability_diagram(reliability)}<figcaption>"
            "<b>Reliability.</b> On the diagonal, entities are right as often as the model says. "
            f"Expected calibration error {_percent(ece)}\N{NO-BREAK SPACE}%, Brier score "
            f"{NONE if brier is None else f'{brier:.3f}'}, of "
            f"{_count(reliability['entities'], 'entity')} in {len(reliability['bins'])} bins."
            f"</figcaption>{_details('The bins in figures', _bins(reliability['bins']))}</figure>"
        )
    if thresholds is not None:
        drawn.append(
            f"<figure>{plots.precision_recall_curve(thresholds)}<figcaption>"
            "<b>Precision and recall</b> where only entities are kept whose confidence is at least "
            "the number at the point.</figcaption>"
            f"{_details('The curve in figures', _curve(thresholds))}</figure>"
        )
    if not drawn:
        return "<p>This pipeline gives its entities no confidences.</p>"
    return f'<div class="plots">{"".join(drawn)}</div>'


def _bins(bins: Sequence[Dict[str, Any]]) -> str:
    rows = [
        [
            _row_head(f"{i / len(bins):.3f} to {(i + 1) / len(bins):.3f}"),
            f"<td>{each['count']:,}</td>",
            f"<td>{_percent(each['confidence'])}</td>",
            f"<td>{_percent(each['correct'])}</td>",
        ]
        for i, each in enumerate(bins)
    ]
    head = ["Confidence", "Entities", "Mean confidence", "% correct"]
    return _table(head, rows, about="Bins of the reliability diagram")


def _curve(thresholds: Sequence[Dict[str, Any]]) -> str:
    rows = [
        [
            _row_head(f"{each['threshold']:.2f}"),
            f"<td>{each['entities']:,}</td>",
            f"<td>{_percent(each['precision'])}</td>",
            f"<td>{_percent(each['recall'])}</td>",
        ]
        for each in thresholds
    ]
    head = ["Threshold", "Entities", "Precision", "Recall"]
    return _table(head, rows, about="Precision and recall at each threshold")


def _transitions(transitions: Optional[Dict[str, Any]]) -> str:
    if transitions is None:
        return "<p>This pipeline has no transition scores.</p>"
    if not transitions["tags"]:
        return "<p>This pipeline has no tags.</p>"
    limit = plots.largest(transitions)
    drawn = _scroll(plots.transition_map(transitions), "Heat map", "scroll tall")
    return (
        f"<figure>{drawn}<figcaption>"
        "Scores from the tag of the row to the tag of the column. Blue is favoured, red penalised, "
        f"the densest at {limit:.2f} from 0; what is crossed is forbidden.</figcaption></figure>"
    )


def _training(training: Optional[Sequence[Dict[str, Any]]]) -> str:
    if not training:
        return ""
    rows = [row | _apart(row["scores"]) for row in training]
    drawn = [
        f"<figure>{plots.training_curves(rows, of)}<figcaption>{caption}</figcaption></figure>"
        for of, caption in (
            ("losses", "<b>Losses</b> on training documents, by component."),
            ("scores", "<b>Scores</b> on development documents, in percent."),
            ("speed", "<b>Speed</b> on development documents."),
        )
        if any(row[of] for row in rows)
    ]
    steps, epochs = training[-1]["step"], training[-1]["epoch"]
    about = f"<p>{_count(steps, 'step')}, up to epoch {epochs}.</p>"
    return f'{about}<div class="plots">{"".join(drawn)}</div>'


def _apart(scores: Scores) -> Dict[str, Scores]:
    """Part the one score that is no percentage from the rest: it has a scale of its own."""
    shares = {name: score for name, score in scores.items() if name != "speed"}
    return {"scores": shares, "speed": {name: scores[name] for name in scores.keys() - shares}}


def _comparison(figures: Dict[str, Any]) -> str:
    comparison = figures["comparison"]
    if comparison is None:
        return ""
    other, difference = comparison["other"], comparison["difference"]
    resamples = comparison["resamples"]
    colors = _colors(figures) | _colors(other)
    compared: List[Tuple[str, Optional[str], str, Dict[str, Any]]]
    compared = [(f"{NAMES[each]}, micro", None, each, difference["micro"]) for each in MEASURES]
    compared += [
        (f"F1, {_label(label, colors)}", label, "f1", measures)
        for label, measures in difference["per_type"].items()
    ]
    rows = [
        [
            _row_head(head),
            *(_measured(*_strict(each, label), measure) for each in (figures, other)),
            *_difference(measures[measure], resamples),
        ]
        for head, label, measure, measures in compared
    ]
    models = [_text(figures["model"]), _text(comparison["model"])]
    kinds = [
        [
            _row_head(kind),
            *(f"<td>{each['errors']['counts'][kind]:,}</td>" for each in (figures, other)),
        ]
        for kind in figures["errors"]["counts"]
    ]
    return (
        '<p class="muted">A difference is the first model less the second, in points, bold where '
        f"its interval leaves out 0; p is that of the {_text(comparison['test'])}, of "
        f"{_count(resamples, 'resample')}.</p>"
        + _table(["Strict", *models, "Difference", "p"], rows, about="Scores of both models")
        + _table(["Errors", *models], kinds, about="Errors of both models")
    )


def _strict(figures: Dict[str, Any], label: Optional[str]) -> Tuple[Scores, Scores]:
    """Find the scores of a label, or the micro means, and their intervals; none of no entity."""
    strict, intervals = figures["matching"]["strict"], figures["intervals"]
    if label is None:
        return strict["micro"], intervals["micro"] or {}
    return strict["per_type"].get(label, {}), intervals["per_type"].get(label, {})


def _difference(of: Dict[str, Any], resamples: int) -> List[str]:
    value, interval, p = (of[each] for each in ("difference", "interval", "p"))
    if value is None:
        return [f"<td>{NONE}</td>"] * 2
    about, sure = "", ""
    if interval is not None:
        low, high = interval
        about = f"{_points(low)} to {_points(high)}"
        sure = ' class="sure"' if low > 0 or high < 0 else ""
    least = max(0.001, 1 / resamples)  # so few resamples can tell no smaller p
    told = NONE if p is None else f"{p:.3f}" if p >= least else f"&lt; {least:.3f}"
    return [f"<td{sure}>{_points(value)} <small>{about}</small></td>", f"<td>{told}</td>"]


def _points(difference: float) -> str:
    """Write a difference in points, with its sign; a minus is as wide as a plus."""
    return f"{100 * difference:+.1f}".replace("-", "\N{MINUS SIGN}")


def _measured(scores: Scores, ranges: Scores, measure: str) -> str:
    interval = _range(ranges.get(measure))
    return f"<td>{_percent(scores.get(measure))} <small>{interval}</small></td>"


def _percent(share: Optional[float]) -> str:
    return NONE if share is None else f"{100 * share:.1f}"


def _range(interval: Optional[Sequence[Optional[float]]]) -> str:
    if interval is None or None in interval:
        return ""
    return NONE.join(map(_percent, interval))


def _bar(score: Optional[float], interval: Optional[Sequence[float]]) -> str:
    """Draw a score as a dot, its interval as a bar, on a line from 0 to 100."""
    if score is None:
        return ""
    low, high = (100 * each for each in interval or (score, score))
    return (
        '<svg class="bar" viewBox="-4 0 108 8" aria-hidden="true"><line x1="0" x2="100" y1="4" '
        f'y2="4"/><rect x="{low:.1f}" width="{high - low:.1f}" y="2" height="4"/>'
        f'<circle cx="{100 * score:.1f}" cy="4" r="3"/></svg>'
    )


def _cell(count: int, share: float, right: bool) -> str:
    kinds = [name for name, holds in (("right", right), ("zero", not count)) if holds]
    kind = f' class="{" ".join(kinds)}"' if kinds else ""
    # The square root, so that what is rare is seen beside what is common.
    return f'<td{kind} style="--density:{100 * share**0.5:.0f}%">{count:,}</td>'


def _colors(figures: Dict[str, Any]) -> Dict[str, str]:
    """Give each label a colour, the same as on a page of documents if all labels are there."""
    errors = figures["errors"]["list"]
    labels = {ent["label"] for each in errors for ent in (each["gold"], each["predicted"]) if ent}
    labels.update(figures["confusion"]["labels"], figures["matching"]["strict"]["per_type"])
    return {label: PALETTE[i % len(PALETTE)] for i, label in enumerate(sorted(labels))}


def _label(label: str, colors: Dict[str, str]) -> str:
    return f'<mark style="background:{colors[label]}">{_text(label)}</mark>'


def _table(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    last: Sequence[Sequence[str]] = (),
    *,
    about: str,
    kind: str = "plain",
) -> str:
    """Write a table that scrolls by itself where it is wider than the page.

    head: Of each column, HTML.
    rows, last: Cells, from their `<th>` or `<td>` on; those below a line are the last.
    about: What it is, in a few words, for those who do not see it.
    """
    columns = "".join(f'<th scope="col">{each}</th>' for each in head)
    body, foot = ("\n".join(f"<tr>{''.join(row)}</tr>" for row in part) for part in (rows, last))
    return _scroll(
        f'<table class="{kind}">'
        + f"<thead><tr>{columns}</tr></thead>\n<tbody>\n{body}\n</tbody>"
        + (f"\n<tfoot>\n{foot}\n</tfoot>" if last else "")
        + "</table>",
        about,
    )


def _row_head(html: str) -> str:
    return f'<th scope="row">{html}</th>'


def _scroll(html: str, about: str, kind: str = "scroll") -> str:
    """Let it scroll in a box of its own, by the keyboard too."""
    return f'<div class="{kind}" role="region" aria-label="{about}" tabindex="0">{html}</div>'


def _details(summary: str, html: str) -> str:
    return f"<details><summary>{summary}</summary>{html}</details>"


def _count(number: int, noun: str) -> str:
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural}"


def _text(data: object) -> str:
    """Make data text, in an element or in quotes, and never markup."""
    return escape(str(data))
