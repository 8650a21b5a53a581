"""Plots as numbers in pixels; the macro `chart` of the templates draws them as SVG."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from math import ceil, floor, log10, sqrt
from typing import Any, NamedTuple

from .tables import level_name

# Pixels of the ends of the axes, in 430 x 340. Names of points need the space on the right.
LEFT, RIGHT, TOP, BOTTOM = 60, 375, 10, 290
UNITS = {"losses": "loss of a step", "scores": "score, %", "speed": "words/s"}
THRESHOLDS = (0.0, 0.5, 0.8, 0.9, 0.95, 0.99)  # named in the plot
LETTER, LINE = 8, 14  # pixels of the names of points
MIN_BIN = 5  # entities of a bin that is drawn
MAX_RADIUS = 9  # of the dot of the largest bin
MAX_MARKED = 30  # points of a curve that are marked

Point = tuple[float, float]


class Axis(NamedTuple):
    """An axis from `low` to `high`; these numbers are at the pixels `first` and `last`."""

    name: str
    low: float
    high: float
    ticks: Sequence[float]
    first: float
    last: float

    def at(self, value: float) -> float:
        """Return the pixel of a value."""
        share = (value - self.low) / (self.high - self.low)
        return round(self.first + share * (self.last - self.first), 2)


class Curve(NamedTuple):
    """A line through points, which are marked unless `radius` is 0; `kind` is its CSS classes."""

    points: Sequence[Point]
    kind: str = "accent"
    radius: float = 2.5


class Note(NamedTuple):
    """A text beside a point, shifted by dx to the right and dy down."""

    text: str
    point: Point
    dx: float = 6
    dy: float = -6
    kind: str = ""


class Panel(NamedTuple):
    """Curves, notes, and bars (start, end, height), between two axes."""

    x: Axis
    y: Axis
    curves: Sequence[Curve] = ()
    notes: Sequence[Note] = ()
    bars: Sequence[tuple[float, float, float]] = ()


class Chart(NamedTuple):
    """A plot: a text alternative, panels over each other, and names of curves by their kind."""

    about: str
    panels: Sequence[Panel]
    legend: Mapping[str, str] | None = None


def reliability_diagram(reliability: dict[str, Any]) -> Chart:
    """Plot the accuracy of the entities of each bin over their confidence, and their number.

    The area of a dot is in proportion to the number of entities, the line through it is Wilson's
    interval. Bins of fewer than `MIN_BIN` entities have no dot.

    Source: Niculescu-Mizil and Caruana (2005), ICML, figure 1; Guo et al. (2017), ICML, figure 1.
    """
    bins = reliability["bins"]
    most = max([1, *(each["count"] for each in bins)])
    bars = [(i / len(bins), (i + 0.9) / len(bins), b["count"]) for i, b in enumerate(bins)]
    curves, told = [Curve([(0, 0), (1, 1)], "help", 0)], []
    for each in bins:
        p, share, count = each["confidence"], each["correct"], each["count"]
        if count >= MIN_BIN:
            curves.append(Curve([(p, end) for end in each["interval"]], "interval", 0))
            curves.append(Curve([(p, share)], "accent", round(MAX_RADIUS * sqrt(count / most), 2)))
            told.append(f"{p:.2f}: {share:.2f}")
    x = _across("confidence", -0.03, 1.03)
    y = _up("share correct", -0.03, 1.03, bottom=215)
    counts = Axis("entities", 0, 1.05 * most, (0, most), BOTTOM, 230)
    return Chart(
        f"Reliability diagram; confidence and share correct: {', '.join(told) or 'none'}.",
        [Panel(x._replace(name=""), y, curves), Panel(x, counts, bars=bars)],
    )


def precision_recall_curve(thresholds: Sequence[dict[str, Any]]) -> Chart:
    """Plot precision over recall for each threshold that keeps an entity; common ones are named."""
    kept = [
        (each["threshold"], 100 * each["recall"], 100 * each["precision"])
        for each in thresholds
        if each["recall"] is not None and each["precision"] is not None
    ]
    x = _percent(_across, "recall, %", [x for _, x, _ in kept])
    y = _percent(_up, "precision, %", [y for _, _, y in kept])
    notes: list[Note] = []
    for threshold, *point in kept:
        note = Note(f"{threshold:g}", (point[0], point[1]))
        if threshold in THRESHOLDS and not any(_collide(note, each, x, y) for each in notes):
            notes.append(note)
    curves = [Curve([(x, y) for _, x, y in kept]), Curve([n.point for n in notes], "points", 4)]
    listed = ", ".join(f"{at:g}: {p:.1f} and {r:.1f}" for at, r, p in kept) or "none"
    about = f"Precision-recall curve; threshold, precision and recall in percent: {listed}."
    return Chart(about, [Panel(x, y, curves, notes)])


def coverage_curve(curve: Sequence[dict[str, Any]], guaranteed: dict[str, dict[str, Any]]) -> Chart:
    """Plot the share of gold entities among candidates over the number of candidates.

    Both arguments are parts of the result of `monitoring.coverage`: "curve" and "guarantees".
    """
    points = [(at["per_entity"], 100 * at["coverage"]) for at in curve]
    names = [level_name(at["threshold"]) for at in curve]
    levels = [100 * guaranteed["recall"]["level"]] if "recall" in guaranteed else []
    x = _across("candidates per gold entity", 0, 1.05 * max(n for n, _ in points) or 1.0)
    shares = [*levels, *(share for _, share in points)]
    y = _percent(_up, "gold entities of a document, %", shares)
    lines = [Curve([(x.low, level), (x.high, level)], "help", 0) for level in levels]
    notes = [Note(names[i], points[i], 8, 4) for i in (0, -1)]
    notes += [Note("guaranteed", (0, level), 5, 14, "muted") for level in levels]
    listed = ", ".join(f"{at}: {n:.2f} and {share:.1f}" for at, (n, share) in zip(names, points))
    about = f"Coverage; threshold, candidates per gold entity, coverage in percent: {listed}."
    return Chart(about, [Panel(x, y, [*lines, Curve(points)], notes)])


def training_curves(training: Sequence[dict[str, Any]], of: str) -> Chart | None:
    """Plot the "losses", "scores" or "speed" of a training over its steps; None without any.

    A loss in the log is the sum since the row before; the mean of a step is plotted. The "speed" is
    one of the scores in the log, but has a scale of its own. The "score", which selects the best
    model, is plotted if it is the only one: often it equals another.
    """
    values = [row["losses" if of == "losses" else "scores"] for row in training]
    names = dict.fromkeys(name for row in values for name in row)
    shown = [name for name in names if of == "losses" or (name == "speed") == (of == "speed")]
    if of == "scores" and len(shown) > 1:
        shown = [name for name in shown if name != "score"]
    if not shown:
        return None
    steps = [row["step"] for row in training]
    sizes = [
        max(1, step - before) if of == "losses" else 1 for before, step in pairwise([-1, *steps])
    ]
    curves = []
    for i, name in enumerate(shown):
        points = [
            (step, row[name] / size)
            for step, size, row in zip(steps, sizes, values)
            if row.get(name) is not None
        ]
        # Two colors and four line styles, to be distinguished without color too.
        kind = f"{('accent', 'ink')[i % 2]} dash{i // 2 % 4}"
        curves.append(Curve(points, kind, 2.5 if len(points) <= MAX_MARKED else 0))
    x = _across("step", *_range(steps, 0.03))
    y = _up(UNITS[of], *_range([value for curve in curves for _, value in curve.points]))
    legend = {name: curve.kind for name, curve in zip(shown, curves)}
    return Chart(
        f"Training curves over steps; {of}: {', '.join(shown)}.", [Panel(x, y, curves)], legend
    )


def _across(name: str, low: float, high: float) -> Axis:
    return Axis(name, low, high, _round_numbers(low, high), LEFT, RIGHT)


def _up(name: str, low: float, high: float, bottom: float = BOTTOM) -> Axis:
    return Axis(name, low, high, _round_numbers(low, high), bottom, TOP)


def _percent(axis: Callable[[str, float, float], Axis], name: str, values: list[float]) -> Axis:
    """Return an axis of the range of values in percent, with no ticks below 0 or above 100."""
    found = axis(name, *_range(values))
    return found._replace(ticks=[tick for tick in found.ticks if 0 <= tick <= 100])


def _collide(a: Note, b: Note, x: Axis, y: Axis) -> bool:
    """Return whether the texts of two notes overlap."""
    (left, letters), (right, _) = sorted((x.at(each.point[0]), len(each.text)) for each in (a, b))
    apart = abs(y.at(a.point[1]) - y.at(b.point[1]))
    return right - left < LETTER * letters and apart < LINE


def _range(values: Iterable[float], margin: float = 0.05) -> tuple[float, float]:
    """Return the range of values, with a margin on both sides."""
    values = [*map(float, values)] or [0.0]
    low, high = min(values), max(values)
    space = margin * (high - low) or margin * abs(high) or 0.5
    return low - space, high + space


def _round_numbers(low: float, high: float) -> list[float]:
    """Return four to ten multiples of 1, 2 or 5 times a power of ten."""
    step = 10.0 ** floor(log10((high - low) / 4))
    step = max(step * times for times in (1, 2, 5) if (high - low) / (step * times) >= 4)
    return [float(f"{i * step:.12g}") for i in range(ceil(low / step), floor(high / step) + 1)]
