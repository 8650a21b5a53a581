"""Plots as numbers in pixels; the macro `chart` of the templates draws them as SVG."""

from collections.abc import Iterable, Mapping, Sequence
from math import ceil, floor, inf, log10
from types import MappingProxyType
from typing import Any, NamedTuple

from .tables import level_name

# Pixels of a plot, and of the ends of its axes. Names of points need the space on the right.
WIDTH, HEIGHT = 430, 340
LEFT, RIGHT, TOP, BOTTOM = 60, 375, 10, 290
UNITS = {"losses": "loss", "scores": "score, %", "speed": "words/s"}
THRESHOLDS = (0.0, 0.5, 0.8, 0.9, 0.95, 0.99)  # named in the plot
MIN_DISTANCE = 6  # percent, between named points
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
    legend: Mapping[str, str] = MappingProxyType({})
    size: tuple[int, int] = (WIDTH, HEIGHT)


def reliability_diagram(reliability: dict[str, Any]) -> Chart:
    """Plot the accuracy of the entities of each bin over their confidence, and their number.

    Source: Niculescu-Mizil and Caruana (2005), ICML, figure 1; Guo et al. (2017), ICML, figure 1.
    """
    bins = reliability["bins"]
    points = [(each["confidence"], each["correct"]) for each in bins if each["count"]]
    most = max([1, *(each["count"] for each in bins)])
    bars = [(i / len(bins), (i + 0.9) / len(bins), b["count"]) for i, b in enumerate(bins)]
    x = _across("confidence", -0.03, 1.03)
    y = _up("share correct", -0.03, 1.03, bottom=215)
    counts = Axis("entities", 0, 1.05 * most, (0, most), BOTTOM, 230)
    diagonal = Curve([(0, 0), (1, 1)], "help", 0)
    listed = ", ".join(f"{p:.2f}: {correct:.2f}" for p, correct in points) or "none"
    return Chart(
        f"Reliability diagram; confidence and share correct: {listed}.",
        [Panel(x._replace(name=""), y, [diagonal, Curve(points)]), Panel(x, counts, bars=bars)],
    )


def precision_recall_curve(thresholds: Sequence[dict[str, Any]]) -> Chart:
    """Plot precision over recall for each threshold that keeps an entity; common ones are named."""
    kept = [
        (each["threshold"], 100 * each["recall"], 100 * each["precision"])
        for each in thresholds
        if each["recall"] is not None and each["precision"] is not None
    ]
    notes: list[Note] = []
    last = (-inf, -inf)
    for threshold, x, y in kept:
        if threshold in THRESHOLDS and max(abs(x - last[0]), abs(y - last[1])) > MIN_DISTANCE:
            last = (x, y)
            notes.append(Note(f"{threshold:g}", last))
    curves = [Curve([(x, y) for _, x, y in kept]), Curve([n.point for n in notes], "points", 4)]
    listed = ", ".join(f"{at:g}: {p:.1f} and {r:.1f}" for at, r, p in kept) or "none"
    axes = _across("recall, %", -3, 103), _up("precision, %", -3, 108)
    about = f"Precision-recall curve; threshold, precision and recall in percent: {listed}."
    return Chart(about, [Panel(*axes, curves, notes)])


def coverage_curve(curve: Sequence[dict[str, Any]], guaranteed: dict[str, dict[str, Any]]) -> Chart:
    """Plot the share of gold entities among candidates over the number of candidates.

    Both arguments are parts of the result of `monitoring.coverage`: "curve" and "guarantees".
    """
    points = [(at["per_entity"], 100 * at["coverage"]) for at in curve]
    names = [level_name(at["threshold"]) for at in curve]
    levels = [100 * guaranteed["recall"]["level"]] if "recall" in guaranteed else []
    x = _across("candidates per gold entity", 0, 1.05 * max(n for n, _ in points) or 1.0)
    y = _up("gold entities of a document, %", *_range([*levels, *(s for _, s in points)]))
    lines = [Curve([(x.low, level), (x.high, level)], "help", 0) for level in levels]
    notes = [Note(names[i], points[i], 8, 4) for i in (0, -1)]
    notes += [Note("guaranteed", (0, level), 5, 14, "muted") for level in levels]
    listed = ", ".join(f"{at}: {n:.2f} and {share:.1f}" for at, (n, share) in zip(names, points))
    about = f"Coverage; threshold, candidates per gold entity, coverage in percent: {listed}."
    return Chart(about, [Panel(x, y, [*lines, Curve(points)], notes)])


def training_curves(training: Sequence[dict[str, Any]], of: str) -> Chart | None:
    """Plot the "losses", "scores" or "speed" of a training over its steps; None without any.

    The "speed" is one of the scores in the log, but has a scale of its own.
    """
    values = [row["losses" if of == "losses" else "scores"] for row in training]
    names = dict.fromkeys(name for row in values for name in row)
    shown = [name for name in names if of == "losses" or (name == "speed") == (of == "speed")]
    if not shown:
        return None
    curves = []
    for i, name in enumerate(shown):
        points = [
            (log["step"], row[name])
            for log, row in zip(training, values)
            if row.get(name) is not None
        ]
        # Two colors and four line styles, to be distinguished without color too.
        kind = f"{('accent', 'ink')[i % 2]} dash{i // 2 % 4}"
        curves.append(Curve(points, kind, 2.5 if len(points) <= MAX_MARKED else 0))
    x = _across("step", *_range([log["step"] for log in training], 0.03))
    y = _up(UNITS[of], *_range([value for curve in curves for _, value in curve.points]))
    legend = {name: curve.kind for name, curve in zip(shown, curves)}
    return Chart(
        f"Training curves over steps; {of}: {', '.join(shown)}.", [Panel(x, y, curves)], legend
    )


def _across(name: str, low: float, high: float) -> Axis:
    return Axis(name, low, high, _round_numbers(low, high), LEFT, RIGHT)


def _up(name: str, low: float, high: float, bottom: float = BOTTOM) -> Axis:
    return Axis(name, low, high, _round_numbers(low, high), bottom, TOP)


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
