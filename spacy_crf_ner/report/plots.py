"""Plots as inline SVG in the colors of the page. They need matplotlib."""

import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from html import escape
from io import StringIO
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..extras import required

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# The page replaces these colors by its own, light or dark ones.
INK, ACCENT, MUTED = "#000000", "#3451b2", "#5f6570"
COLORS = {INK: "currentColor", ACCENT: "var(--accent)", MUTED: "var(--muted)"}
# Colors of cells, with an opacity that keeps the text readable.
FAVORED, PENALIZED, DENSEST = (0.26, 0.40, 0.92), (0.85, 0.30, 0.26), 0.6

SETTINGS: dict[Any, Any] = {
    "text.parse_math": False,  # a label with two dollars is not a formula
    "path.simplify": False,  # draw every point
    "svg.fonttype": "none",  # keep text, to be read aloud, searched and copied
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "lines.linewidth": 1.5,
    "legend.frameon": False,
}
SMALL = (4.4, 3.6)  # inches: the width of a phone
MAX_NUMBERED = 33  # tags, 8 labels in BILUO: with more, numbers are too small
MAX_LETTERS = 80  # in a label
UNITS = {"losses": "loss", "scores": "score, %", "speed": "words/s"}
THRESHOLDS = (0.0, 0.5, 0.8, 0.9, 0.95, 0.99)  # named in the plot
MIN_DISTANCE = 6  # percent, between named points


def reliability_diagram(reliability: dict[str, Any]) -> str:
    """Draw the accuracy of entities against their confidence.

    Args:
        reliability: The result of `calibration.reliability`.

    Returns:
        An SVG element: a point for each bin with entities, over a bar for their number.

    Source: Niculescu-Mizil and Caruana (2005), ICML, figure 1; Guo et al. (2017), ICML, figure 1.
    """
    bins = reliability["bins"]
    points = [(each["confidence"], each["correct"]) for each in bins if each["count"]]
    with _figure(*SMALL) as figure:
        axes, bars = figure.subplots(
            2, sharex=True, gridspec_kw={"height_ratios": (4, 1), "hspace": 0.12}
        )
        axes.plot([0, 1], [0, 1], color=MUTED, linewidth=0.8, linestyle=(0, (4, 3)))
        axes.plot(*_columns(points, 2), color=ACCENT, marker="o", markersize=4)
        axes.set(ylim=(-0.03, 1.03), ylabel="share correct")
        edges, counts = np.arange(len(bins)) / len(bins), [each["count"] for each in bins]
        bars.bar(edges, counts, width=0.9 / len(bins), align="edge", color=ACCENT)
        bars.locator_params(axis="y", nbins=2, integer=True)
        bars.set(xlim=(-0.03, 1.03), xlabel="confidence", ylabel="entities")
        listed = ", ".join(f"{p:.2f}: {correct:.2f}" for p, correct in points) or "none"
        about = f"Reliability diagram; confidence and share correct: {listed}."
        return _svg(figure, "reliability", about)


def precision_recall_curve(thresholds: Sequence[dict[str, Any]]) -> str:
    """Draw precision against recall for increasing thresholds.

    Args:
        thresholds: The result of `calibration.precision_at`.

    Returns:
        An SVG element: a curve with a point for each threshold that keeps an entity, and names for
        common thresholds.
    """
    kept = [
        (each["threshold"], 100 * each["recall"], 100 * each["precision"])
        for each in thresholds
        if each["recall"] is not None and each["precision"] is not None
    ]
    with _figure(*SMALL) as figure:
        axes = figure.subplots()
        axes.plot(*_columns(kept, 3)[1:], color=ACCENT, marker="o", markersize=3)
        last = (-np.inf, -np.inf)
        for threshold, x, y in kept:
            if threshold in THRESHOLDS and max(abs(x - last[0]), abs(y - last[1])) > MIN_DISTANCE:
                axes.plot([x], [y], color=ACCENT, marker="o", markersize=6)
                axes.annotate(f"{threshold:g}", (x, y), (5, 5), textcoords="offset points")
                last = (x, y)
        axes.set(xlim=(-3, 103), ylim=(-3, 108), xlabel="recall, %", ylabel="precision, %")
        listed = ", ".join(f"{at:g}: {p:.1f} and {r:.1f}" for at, r, p in kept) or "none"
        about = f"Precision-recall curve; threshold, precision and recall in percent: {listed}."
        return _svg(figure, "precision-recall", about)


def coverage_curve(curve: Sequence[dict[str, Any]], guaranteed: dict[str, dict[str, Any]]) -> str:
    """Draw the share of gold entities among candidates against the number of candidates.

    Args:
        curve: The "curve" of the result of `coverage.coverage`.
        guaranteed: Its "guarantees".

    Returns:
        An SVG element: a curve with a point for each threshold, and a line at the guarantee.
    """
    points = [(at["per_entity"], 100 * at["coverage"]) for at in curve]
    names = ["by label" if at["threshold"] is None else f"{at['threshold']:.2g}" for at in curve]
    with _figure(*SMALL) as figure:
        axes = figure.subplots()
        if "recall" in guaranteed:
            level = 100 * guaranteed["recall"]["level"]
            axes.axhline(level, color=MUTED, linewidth=0.8, linestyle=(0, (4, 3)))
            axes.annotate(
                "guaranteed", (0, level), (5, -10), textcoords="offset points", color=MUTED
            )
        axes.plot(*_columns(points, 2), color=ACCENT, marker="o", markersize=3)
        for i in (0, -1):
            axes.annotate(names[i], points[i], (8, -4), textcoords="offset points")
        axes.set(
            xlim=(0, None),
            xlabel="candidates per gold entity",
            ylabel="gold entities of a document, %",
        )
        listed = ", ".join(
            f"{at}: {n:.2f} and {share:.1f}" for at, (n, share) in zip(names, points)
        )
        about = f"Coverage; threshold, candidates per gold entity, coverage in percent: {listed}."
        return _svg(figure, "coverage", about)


def transition_map(transitions: dict[str, Any]) -> str:
    """Draw the scores of the transitions of a CRF as a heat map.

    Args:
        transitions:
            - "tags": Names of the tags, C of them.
            - "scores": C rows of C, from the tag of the row to the tag of the column.
            - "start", "end": C each. None is a forbidden transition.

    Returns:
        An SVG element: a row "start" and one for each tag; a column for each tag and one "end".
        Forbidden cells are crossed. With up to 33 tags, cells show the scores.
    """
    tags = [_plain(tag) for tag in transitions["tags"]]
    C = len(tags)
    rows = [[*transitions["start"], None]]
    rows += [[*row, end] for row, end in zip(transitions["scores"], transitions["end"])]
    scores = np.array(rows, dtype=float)  # (C + 1, C + 1); NaN where forbidden
    forbidden = np.isnan(scores)
    forbidden[0, C] = False  # not a cell: only an empty doc goes from start to end
    limit = largest(transitions)
    # (C + 1, C + 1, 4): colors with opacity, 0 if forbidden.
    shades = np.where(scores[..., None] > 0, (*FAVORED, 0.0), (*PENALIZED, 0.0))
    shades[..., 3] = DENSEST * np.abs(np.nan_to_num(scores)) / (limit or 1.0)
    side = (0.36 if C <= MAX_NUMBERED else 0.19) * (C + 1)  # inches
    with _figure(side, side) as figure:
        axes = figure.add_axes((0, 0, 1, 1))
        axes.imshow(shades, interpolation="none", aspect="auto")
        _cross(axes, np.argwhere(forbidden))
        if C <= MAX_NUMBERED:
            for y, x in np.argwhere(~np.isnan(scores)):
                axes.text(x, y, _signed(scores[y, x], limit), ha="center", va="center", size=7)
        _name_tags(axes, ["start", *tags], [*tags, "end"])
        share = f"{forbidden.sum()} of {scores.size - 1} are forbidden"
        about = f"Heat map of transition scores between {C} tags; {share}."
        return _svg(figure, "transitions", about)


def training_curves(training: Sequence[dict[str, Any]], of: str) -> str:
    """Draw the losses, the scores, or the speed of a training over its steps.

    Args:
        training: The result of `read_training_log`. Missing values and None are left out.
        of: "losses", "scores" or "speed", which is one of the scores, with its own scale.

    Returns:
        An SVG element with a curve for each name; "" if there is no name.
    """
    values = [row["losses" if of == "losses" else "scores"] for row in training]
    names = dict.fromkeys(name for row in values for name in row)
    shown = [name for name in names if of == "losses" or (name == "speed") == (of == "speed")]
    if not shown:
        return ""
    with _figure(*SMALL) as figure:
        axes = figure.subplots()
        for i, name in enumerate(shown):
            points = [
                (log["step"], row[name])
                for log, row in zip(training, values)
                if row.get(name) is not None
            ]
            axes.plot(
                *_columns(points, 2),
                # Two colors and four line styles, to be distinguished without color too.
                color=(ACCENT, INK)[i % 2],
                linestyle=("-", "--", ":", "-.")[i // 2 % 4],
                marker="o" if len(points) <= 30 else "",
                markersize=3,
                label="_",
            )
        # Set here: matplotlib omits curves whose label begins with an underscore from a legend.
        labels = [_plain(name) for name in shown]
        axes.legend(axes.lines, labels, loc="lower left", bbox_to_anchor=(0, 1), ncols=3)
        axes.set(xlabel="step", ylabel=UNITS[of])
        axes.margins(x=0.03)
        return _svg(figure, of, f"Training curves over steps; {of}: {', '.join(labels)}.")


def largest(transitions: dict[str, Any]) -> float:
    """Return the largest absolute score of the transitions; 0.0 if all are forbidden."""
    rows = [transitions["start"], transitions["end"], *transitions["scores"]]
    return max((abs(each) for row in rows for each in row if each is not None), default=0.0)


@contextmanager
def _figure(width: float, height: float) -> Iterator["Figure"]:
    """Make a figure without a window; width and height in inches."""
    with required("report"):
        import matplotlib
        from matplotlib.figure import Figure

    with matplotlib.rc_context(), warnings.catch_warnings():
        matplotlib.rcdefaults()  # without the user's settings
        matplotlib.rcParams.update(SETTINGS)
        # The browser has the glyphs that matplotlib's font lacks.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield Figure(figsize=(width, height))


def _columns(points: Sequence[Sequence[float]], n: int) -> NDArray[np.float64]:
    """Return the n coordinates of P points, (n, P); P may be 0."""
    return np.array(points, dtype=float).reshape(-1, n).T


def _cross(axes: "Axes", cells: NDArray[np.int64]) -> None:
    """Cross out cells, (K, 2), with one line, because there may be thousands."""
    if len(cells):
        gap = (np.nan, np.nan)
        strokes = np.array([(-1, -1), (1, 1), gap, (-1, 1), (1, -1), gap])
        x, y = (cells[:, None, ::-1] + 0.2 * strokes).reshape(-1, 2).T
        axes.plot(x, y, color=MUTED, linewidth=0.4, scalex=False, scaley=False)


def _name_tags(axes: "Axes", rows: Sequence[str], columns: Sequence[str]) -> None:
    """Label rows and columns, on all four sides of a large map, and separate start and end."""
    C = len(columns) - 1
    large = C > MAX_NUMBERED
    size = 7 if large else 8
    axes.set_yticks(range(C + 1), rows, fontsize=size)
    axes.set_xticks(range(C + 1), columns, fontsize=size)
    axes.tick_params(length=0, top=True, bottom=False, labeltop=True, labelbottom=large)
    axes.tick_params(axis="y", labelright=large)
    for tick in axes.xaxis.get_major_ticks():
        # Anchored, because the page's font has another width than matplotlib's.
        for text, side in ((tick.label1, "right"), (tick.label2, "left")):
            text.set(rotation=90, rotation_mode="anchor", ha=side, va="center")
    axes.spines[:].set_visible(False)
    axes.axhline(0.5, color=INK, linewidth=0.6)
    axes.axvline(C - 0.5, color=INK, linewidth=0.6)


def _signed(score: float, limit: float) -> str:
    """Format a score for a cell, with the decimals that fit for the largest score."""
    text = f"{score:.2f}" if limit < 10 else f"{score:.1f}"
    return (text if float(text) else text.lstrip("-")).replace("-", "\N{MINUS SIGN}")


def _plain(label: str) -> str:
    """Make a label valid in XML, on one line, and shorten a long one."""
    label = re.sub(r"\s", " ", label)
    label = re.sub(
        r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]", "\N{REPLACEMENT CHARACTER}", label
    )
    return label if len(label) <= MAX_LETTERS else label[: MAX_LETTERS - 1] + "…"


def _svg(figure: "Figure", name: str, about: str) -> str:
    """Convert a figure to an SVG element for a page with several figures.

    Args:
        name: A unique name in the page, from which ids are hashed.
        about: A text alternative.
    """
    import matplotlib

    out = StringIO()
    metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with matplotlib.rc_context({"svg.hashsalt": name}):
        figure.savefig(out, format="svg", transparent=True, bbox_inches="tight", metadata=metadata)
    svg = out.getvalue()
    # Remove the stylesheet, which would apply to the whole page.
    svg = re.sub("<style.*?</style>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    used = set(re.findall(r'(?:url\(|href=")#([^")]*)', svg))

    def for_page(tag: re.Match[str]) -> str:
        text = re.sub(r"\s+", " ", tag[0]).replace("xlink:href", "href")
        text = re.sub(r' xmlns[^=]*="[^"]*"', "", text)
        text = re.sub(r' id="([^"]*)"', lambda id: id[0] if id[1] in used else "", text)
        text = re.sub(r'font-family: [^;"]*;? ?', "", text)  # use the page's font
        return re.sub("#[0-9a-f]{6}", lambda color: COLORS.get(color[0], color[0]), text)

    svg = re.sub("<[^>]*>", for_page, svg)  # "<" in labels is escaped
    label = f'<svg role="img" aria-label="{escape(about)}" fill="currentColor"'
    return re.sub(r">\s*\n\s*<", "><", svg.replace("<svg", label, 1))
