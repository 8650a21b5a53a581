"""Plots of figures: inline SVG in the colours of the page that holds it."""

import re
import warnings
from contextlib import contextmanager
from io import StringIO
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Sequence, Tuple
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray

from ..input_error import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# What matplotlib draws in these, the page shows in colours of its own, light or dark.
INK, ACCENT, WRONG, MUTED = "#000000", "#3451b2", "#c0392f", "#5f6570"
COLORS = {
    INK: "currentColor",
    ACCENT: "var(--accent)",
    WRONG: "var(--wrong)",
    MUTED: "var(--muted)",
}
# Cells have them thin, over the ground of the page, so that text can be read on any.
FAVOURED, PENALISED, DENSEST = (0.26, 0.40, 0.92), (0.85, 0.30, 0.26), 0.6

SETTINGS: Dict[Any, Any] = {
    "text.parse_math": False,  # a label with two dollars is no formula
    "path.simplify": False,  # what is drawn is what was told, to the last point
    "svg.fonttype": "none",  # text stays text: it can be read aloud, searched and copied
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
SMALL = (4.4, 3.6)  # inches: of the width of a telephone
NUMBERED = 33  # tags, as of 8 labels in BILUO: of more, the numbers could not be read
LONGEST = 80  # characters of a label
UNITS = {"losses": "loss", "scores": "score, %", "speed": "words/s"}
THRESHOLDS = (0.0, 0.5, 0.8, 0.9, 0.95, 0.99)


def reliability_diagram(reliability: Dict[str, Any]) -> str:
    """Draw how often entities are right against how sure the model is of them.

    reliability: As `calibration.calibration` returns it.

    Returns an SVG element: a point for each bin that has entities, over a bar for their number.
    Raises ValueError where matplotlib is not installed.
    Source: Niculescu-Mizil and Caruana (2005), ICML, figure 1; Guo et al. (2017), ICML, figure 1.
    """
    bins = reliability["bins"]
    filled = [each for each in bins if each["count"]]
    with _settings():
        figure = _figure(*SMALL)
        axes, bars = figure.subplots(
            2, sharex=True, gridspec_kw={"height_ratios": (4, 1), "hspace": 0.12}
        )
        axes.plot([0, 1], [0, 1], color=MUTED, linewidth=0.8, linestyle=(0, (4, 3)))
        axes.plot(
            [each["confidence"] for each in filled],
            [each["correct"] for each in filled],
            color=ACCENT,
            marker="o",
            markersize=4,
        )
        axes.set(ylim=(-0.03, 1.03), ylabel="share correct")
        edges = np.arange(len(bins)) / len(bins)
        bars.bar(
            edges,
            [each["count"] for each in bins],
            width=0.9 / len(bins),
            align="edge",
            color=ACCENT,
        )
        bars.locator_params(axis="y", nbins=2, integer=True)
        bars.set(xlim=(-0.03, 1.03), xlabel="confidence", ylabel="entities")
        points = [f"{each['confidence']:.2f}: {each['correct']:.2f}" for each in filled]
        about = f"Reliability diagram; confidence and share correct: {', '.join(points) or 'none'}."
        return _svg(figure, "reliability", about)


def precision_recall_curve(thresholds: Sequence[Dict[str, Any]]) -> str:
    """Draw precision against recall, as fewer and fewer entities are kept.

    thresholds: As `calibration.precision_at` returns them.

    Returns an SVG element: a curve, a point for each threshold that leaves an entity, the
    common thresholds named.
    Raises ValueError where matplotlib is not installed.
    """
    kept = [
        (each["threshold"], 100 * each["recall"], 100 * each["precision"])
        for each in thresholds
        if each["recall"] is not None and each["precision"] is not None
    ]
    with _settings():
        figure = _figure(*SMALL)
        axes = figure.subplots()
        _, recall, precision = zip(*kept) if kept else ((), (), ())
        axes.plot(recall, precision, color=ACCENT, marker="o", markersize=3)
        for threshold, x, y in _apart([each for each in kept if each[0] in THRESHOLDS]):
            axes.plot([x], [y], color=ACCENT, marker="o", markersize=6)
            axes.annotate(f"{threshold:g}", (x, y), (5, 5), textcoords="offset points")
        axes.set(xlim=(-3, 103), ylim=(-3, 108), xlabel="recall, %", ylabel="precision, %")
        points = [f"{at:g}: {p:.1f} and {r:.1f}" for at, r, p in kept]
        about = (
            "Precision-recall curve; threshold, precision and recall in percent: "
            f"{', '.join(points) or 'none'}."
        )
        return _svg(figure, "precision-recall", about)


def transition_map(transitions: Dict[str, Any]) -> str:
    """Draw the scores of the transitions of a CRF as a heat map.

    transitions:
        "tags": Names of the tags, C of them.
        "scores": C rows of C, from the tag of the row to the tag of the column.
        "start", "end": C each. None anywhere: the transition is forbidden.

    Returns an SVG element: a row "start" and then one for each tag; a column for each tag, and
    then one "end". Forbidden cells are crossed. Up to 33 tags, the scores are written in the cells.
    Raises ValueError where matplotlib is not installed.
    """
    tags = [_plain(tag) for tag in transitions["tags"]]
    C = len(tags)
    rows = [[*transitions["start"], None]]
    rows += [[*row, end] for row, end in zip(transitions["scores"], transitions["end"])]
    scores = np.array(rows, dtype=float)  # (C + 1, C + 1); NaN where forbidden
    forbidden = np.isnan(scores)
    forbidden[0, C] = False  # no cell at all: from the start to the end goes an empty doc
    limit = largest(transitions)
    cell = 0.36 if C <= NUMBERED else 0.19  # inches
    with _settings():
        figure = _figure(cell * (C + 1), cell * (C + 1))
        axes = figure.add_axes((0, 0, 1, 1))
        axes.imshow(_shades(scores, limit), interpolation="none", aspect="auto")
        _cross(axes, np.argwhere(forbidden))
        if C <= NUMBERED:
            for y, x in np.argwhere(~np.isnan(scores)):
                axes.text(x, y, _signed(scores[y, x], limit), ha="center", va="center", size=7)
        _name_tags(axes, ["start", *tags], [*tags, "end"])
        of = f"{forbidden.sum()} of {scores.size - 1} are forbidden"
        about = f"Heat map of transition scores between {C} tags; {of}."
        return _svg(figure, "transitions", about)


def training_curves(training: Sequence[Dict[str, Any]], of: str) -> str:
    """Draw the losses, the scores, or the speed of a training over its steps.

    training: Each with its "step", and what `of` names: a number by the name of each curve; None,
        or no such name, leaves a point out.
    of: "losses", "scores" or "speed".

    Returns an SVG element: a curve for each name.
    Raises ValueError where matplotlib is not installed.
    """
    names = list(dict.fromkeys(name for row in training for name in row[of]))
    with _settings():
        figure = _figure(*SMALL)
        axes = figure.subplots()
        for i, name in enumerate(names):
            rows = [row for row in training if row[of].get(name) is not None]
            axes.plot(
                [row["step"] for row in rows],
                [row[of][name] for row in rows],
                # Two colours in four kinds of line: told apart without colour, too.
                color=(ACCENT, INK)[i % 2],
                linestyle=("-", "--", ":", "-.")[i // 2 % 4],
                marker="o" if len(rows) <= 30 else "",
                markersize=3,
                label="_",
            )
        # Given here, as a curve whose label begins with an underscore has no place in a legend.
        labels = [_plain(name) for name in names]
        axes.legend(axes.lines, labels, loc="lower left", bbox_to_anchor=(0, 1), ncols=3)
        axes.set(xlabel="step", ylabel=UNITS[of])
        axes.margins(x=0.03)
        about = f"Training curves over steps; {of}: {', '.join(map(_plain, names)) or 'none'}."
        return _svg(figure, of, about)


def largest(transitions: Dict[str, Any]) -> float:
    """Find the largest absolute score of the transitions, which has the densest colour.

    transitions: As for `transition_map`.

    Returns it; 0.0 where all are forbidden.
    """
    rows = [transitions["start"], transitions["end"], *transitions["scores"]]
    return max((abs(each) for row in rows for each in row if each is not None), default=0.0)


def require_matplotlib() -> None:
    """Raise InputError where matplotlib is not installed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise InputError(
            "plots: expected matplotlib, got no such package. "
            'Install it: pip install "spacy-crf-ner[report]".'
        ) from error


@contextmanager
def _settings() -> Iterator[None]:
    require_matplotlib()
    import matplotlib

    with matplotlib.rc_context(), warnings.catch_warnings():
        matplotlib.rcdefaults()  # and not what a user has set for plots of his own
        matplotlib.rcParams.update(SETTINGS)
        # The browser has the characters that matplotlib's font lacks.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield


def _figure(width: float, height: float) -> "Figure":
    """Make a figure that belongs to no window, and needs none: width and height in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height))


def _apart(points: Sequence[Tuple[float, float, float]]) -> List[Tuple[float, float, float]]:
    """Leave out points, all but their first number coordinates, that are near the one before."""
    chosen: List[Tuple[float, float, float]] = []
    for point in points:
        if not chosen or max(abs(a - b) for a, b in zip(point[1:], chosen[-1][1:])) > 6:
            chosen.append(point)
    return chosen


def _shades(scores: NDArray[np.float64], limit: float) -> NDArray[np.float64]:
    """Give each cell, (Y, X), a colour with its opacity, (Y, X, 4): none where it is NaN."""
    shades = np.where(scores[..., None] > 0, (*FAVOURED, 0.0), (*PENALISED, 0.0))
    shades[..., 3] = DENSEST * np.abs(np.nan_to_num(scores)) / (limit or 1.0)
    return shades


def _cross(axes: "Axes", cells: NDArray[np.int64]) -> None:
    """Cross out cells, (K, 2), all in one path: there may be thousands."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    if not len(cells):
        return
    middle = cells[:, None, ::-1]
    corners = 0.2 * np.array([(-1, -1), (1, 1), (-1, 1), (1, -1)])
    codes = np.array([Path.MOVETO, Path.LINETO] * (2 * len(cells)), dtype=np.uint8)
    path = Path((middle + corners).reshape(-1, 2), codes)
    axes.add_patch(PathPatch(path, fill=False, edgecolor=MUTED, linewidth=0.4))


def _name_tags(axes: "Axes", rows: Sequence[str], columns: Sequence[str]) -> None:
    """Name rows and columns, of a large map on all four sides, and part off start and end."""
    C = len(columns) - 1
    large = C > NUMBERED
    size = 7 if large else 8
    axes.set_yticks(range(C + 1), rows, fontsize=size)
    axes.set_xticks(range(C + 1), columns, fontsize=size)
    axes.tick_params(length=0, top=True, bottom=False, labeltop=True, labelbottom=large)
    axes.tick_params(axis="y", labelright=large)
    for tick in axes.xaxis.get_major_ticks():
        # Anchored, as the font that it is shown in has another width than that it is measured in.
        for text, side in ((tick.label1, "right"), (tick.label2, "left")):
            text.set(rotation=90, rotation_mode="anchor", ha=side, va="center")
    axes.spines[:].set_visible(False)
    axes.axhline(0.5, color=INK, linewidth=0.6)
    axes.axvline(C - 0.5, color=INK, linewidth=0.6)


def _signed(score: float, limit: float) -> str:
    """Write a score in a cell: of scores that reach the limit, as many decimals as have room."""
    told = f"{score:.2f}" if limit < 10 else f"{score:.1f}"
    return (told if float(told) else told.lstrip("-")).replace("-", "\N{MINUS SIGN}")


def _plain(label: str) -> str:
    """Make a label what XML can hold, on one line; shorten one longer than a line."""
    label = re.sub(r"\s", " ", label)
    label = re.sub(
        r"[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]", "\N{REPLACEMENT CHARACTER}", label
    )
    return label if len(label) <= LONGEST else label[: LONGEST - 1] + "…"


def _svg(figure: "Figure", name: str, about: str) -> str:
    """Write a figure as an SVG element to stand in a page with others.

    name: Unique in the page; the ids in it begin with this.
    about: What is told in place of the figure to those who do not see it.
    """
    import matplotlib

    out = StringIO()
    with matplotlib.rc_context({"svg.hashsalt": name}):
        figure.savefig(out, format="svg", transparent=True, bbox_inches="tight")
    svg = ElementTree.fromstring(out.getvalue())
    _keep_to_itself(svg, name)
    svg.attrib.update({"role": "img", "aria-label": about, "fill": "currentColor"})
    return ElementTree.tostring(svg, encoding="unicode")


def _keep_to_itself(svg: ElementTree.Element, name: str) -> None:
    """Take from a SVG document what would reach, or clash with, the rest of a page.

    Its stylesheet holds for the whole page, its ids are those of all of matplotlib's figures, and
    its namespaces are those that a page has without being told.
    """
    for parent in list(svg.iter()):
        for child in list(parent):
            if child.tag.endswith(("}metadata", "}style")):
                parent.remove(child)
    for element in svg.iter():
        element.tag = element.tag.rpartition("}")[2]
        element.tail = None
        if element.tag != "text":
            element.text = None
        for key, value in list(element.attrib.items()):
            del element.attrib[key]
            key = key.rpartition("}")[2]
            element.set(key, _attribute(key, value, name))
    used = set(re.findall(rf"#({name}-\w+)", str([element.attrib for element in svg.iter()])))
    for element in svg.iter():
        if element.get("id") not in used:
            element.attrib.pop("id", None)


def _attribute(key: str, value: str, name: str) -> str:
    if key == "id":
        return f"{name}-{value}"
    if key == "style":
        value = re.sub(r"font-family: [^;]*;? ?", "", value)  # that of the page
        return re.sub("#[0-9a-f]{6}", lambda color: COLORS.get(color[0], color[0]), value)
    if key == "clip-path":
        return value.replace("#", f"#{name}-")
    if key == "href" and value.startswith("#"):
        return f"#{name}-{value[1:]}"
    return re.sub(r"\s+", " " if key == "d" else "", value) if key in ("d", "href") else value
