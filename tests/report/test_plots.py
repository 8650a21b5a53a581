"""Plots: what is drawn lies where the figures say, labels are data, and pages stay valid."""

from itertools import combinations, pairwise
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spacy_crf_ner.report import plots
from spacy_crf_ner.report.plots import (
    Chart,
    coverage_curve,
    precision_recall_curve,
    reliability_diagram,
    training_curves,
)
from spacy_crf_ner.report.tables import MAX_NUMBERED, transition_map
from spacy_crf_ner.templates import _ENVIRONMENT

RELIABILITY: dict[str, Any] = {
    "bins": [
        {"count": 4, "confidence": 0.12, "correct": 0.25, "interval": [0.05, 0.7]},
        {"count": 0, "confidence": None, "correct": None, "interval": None},
        {"count": 5, "confidence": 0.55, "correct": 0.4, "interval": [0.12, 0.77]},
        {"count": 20, "confidence": 0.9, "correct": 0.95, "interval": [0.76, 0.99]},
    ]
}
THRESHOLDS = [
    {"threshold": 0.0, "entities": 9, "precision": 0.6, "recall": 0.8},
    {"threshold": 0.5, "entities": 8, "precision": 0.7, "recall": 0.78},
    {"threshold": 0.8, "entities": 4, "precision": 0.85, "recall": 0.5},
    {"threshold": 0.9, "entities": 2, "precision": 1.0, "recall": 0.1},
    {"threshold": 0.99, "entities": 0, "precision": None, "recall": 0.0},
]
CURVE = [
    {"threshold": 0.9, "coverage": 0.41, "per_entity": 0.5},
    {"threshold": 0.1, "coverage": 0.86, "per_entity": 1.1},
    {"threshold": None, "coverage": 0.93, "per_entity": 1.9},
]
TRAINING = [
    {"step": 0, "epoch": 0, "losses": {"ner": 90.0, "_x": 4.0}, "scores": {"ents_f": 0.0}},
    {"step": 50, "epoch": 1, "losses": {"ner": 31.0}, "scores": {"ents_f": 0.5}},
    {"step": 200, "epoch": 3, "losses": {"ner": 12.0, "_x": 1.0}, "scores": {"ents_f": 0.625}},
]
TRANSITIONS: dict[str, Any] = {
    "tags": ["O", "B-PER", "I-PER"],
    "scores": [[1.5, -0.5, None], [0.25, -3.0, 2.0], [0.0, 0.75, 1.0]],
    "start": [0.5, -1.25, None],
    "end": [-0.004, 0.1, 0.35],
}


class Drawn:
    """The elements of a chart, as the page has them."""

    def __init__(self, chart: Chart | None) -> None:
        macros: Any = _ENVIRONMENT.get_template("macros.html.j2").module
        self.root = ElementTree.fromstring(f"<figure>{macros.chart(chart)}</figure>")
        *_, self.svg = self.root.findall("svg")
        self.texts = [each.text or "" for each in self.svg.iter("text")]

    def curves(self, kind: str = "accent") -> list[np.ndarray]:
        """The points of each line, (P, 2)."""
        paths = [each for each in self.svg.iter("path") if kind in each.get("class", "").split()]
        return [
            np.array((each.get("d") or "")[1:].split(), dtype=float).reshape(-1, 2)
            for each in paths
        ]

    def scale(self, panel: int = 0) -> tuple[Any, Any]:
        """Functions from pixels to numbers, by the ticks of both axes and their names."""
        axis = [each for each in self.svg.iter("path") if each.get("class") == "axis"][panel]
        marks = (axis.get("d") or "").split("M")[2:]
        found = []
        for is_x in (True, False):
            pixels = [
                float(mark.split()[0] if is_x else mark.split()[1].partition("h")[0])
                for mark in marks
                if ("v4" in mark) == is_x
            ]
            named = {
                float(each.get("x" if is_x else "y") or 0) - (0 if is_x else 4): each.text
                for each in self.svg.iter("text")
                if each.get("class") == ("x" if is_x else "y")
            }
            numbers = [float((named[pixel] or "").replace(",", "")) for pixel in pixels]
            found.append(np.poly1d(np.polyfit(pixels, numbers, 1)))
        return found[0], found[1]

    def numbers(self, pixels: np.ndarray, panel: int = 0) -> np.ndarray:
        x, y = self.scale(panel)
        return np.stack([x(pixels[:, 0]), y(pixels[:, 1])], axis=1)


def test_charts_are_to_the_scale_of_their_ticks():
    reliability = Drawn(reliability_diagram(RELIABILITY))
    (diagonal,) = reliability.curves("help")
    scale, shift = np.polyfit([0, 1], diagonal, 1)
    dots, lines = (
        np.concatenate(reliability.curves()),
        np.concatenate(reliability.curves("interval")),
    )
    for found, expected in (  # the first bin has too few entities
        (dots, [[0.55, 0.4], [0.9, 0.95]]),
        (lines, [[0.55, 0.12], [0.55, 0.77], [0.9, 0.76], [0.9, 0.99]]),
    ):
        np.testing.assert_allclose(found, np.array(expected) * scale + shift, atol=0.02)
    areas = [float(each.get("r") or 0) ** 2 for each in reliability.svg.iter("circle")]
    assert areas == pytest.approx([81 * 5 / 20, 81], rel=0.01)
    precision = Drawn(precision_recall_curve(THRESHOLDS))
    losses, scores = (Drawn(training_curves(TRAINING, of)) for of in ("losses", "scores"))
    coverage = Drawn(coverage_curve(CURVE, {"recall": {"level": 0.9}}))
    for drawn, curve, points in (
        (precision, precision.curves()[0], [[80, 60], [78, 70], [50, 85], [10, 100]]),
        # Those of a step, of 1, 50 and 150 steps since the row before.
        (losses, losses.curves("accent")[0], [[0, 90], [50, 31 / 50], [200, 12 / 150]]),
        (losses, losses.curves("ink")[0], [[0, 4], [200, 1 / 150]]),
        (scores, scores.curves()[0], [[0, 0], [50, 0.5], [200, 0.625]]),
        (coverage, coverage.curves()[0], [[0.5, 41], [1.1, 86], [1.9, 93]]),
    ):
        np.testing.assert_allclose(drawn.numbers(curve), points, atol=0.2, rtol=1e-3)
    assert coverage.numbers(coverage.curves("help")[0])[:, 1] == pytest.approx(90, abs=0.1)
    assert Drawn(coverage_curve(CURVE, {})).curves("help") == []


def test_bars_start_at_bin_edges_and_have_the_heights_of_the_counts():
    drawn = Drawn(reliability_diagram(RELIABILITY))
    (left, _), (right, _) = drawn.curves("help")[0]  # of the diagonal, from 0 to 1
    bars = [{key: float(each.get(key) or 0) for key in ("x", "width", "y", "height")}
            for each in drawn.svg.iter("rect")]  # fmt: skip
    starts = [(bar["x"] - left) / (right - left) for bar in bars]
    assert starts == pytest.approx([0, 0.25, 0.5, 0.75], abs=1e-3)
    widths = {bar["width"] / (right - left) for bar in bars}
    assert [*widths] == pytest.approx([0.9 / 4] * len(widths), abs=1e-3)
    assert [4 * bar["height"] / bars[0]["height"] for bar in bars] == pytest.approx(
        [4, 0, 5, 20], 0.01
    )
    assert {bar["y"] + bar["height"] for bar in bars} == {float(plots.BOTTOM)}


def test_points_are_named_by_threshold():
    drawn = Drawn(precision_recall_curve(THRESHOLDS))
    notes = [each for each in drawn.svg.iter("text") if "note" in each.get("class", "")]
    assert [each.text for each in notes] == ["0", "0.5", "0.8", "0.9"]
    for note, (x, y) in zip(notes, drawn.curves()[0]):
        assert (float(note.get("x") or 0), float(note.get("y") or 0)) == pytest.approx(
            (x + 6, y - 6)
        )
    drawn = Drawn(coverage_curve(CURVE, {"recall": {"level": 0.9}}))
    assert drawn.texts[-3:] == ["0.9", "by label", "guaranteed"]


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=2, max_size=6))
@example([(0.6, 0.7), (0.6, 0.7)])
def test_names_of_points_do_not_overlap(points):
    rows = [
        {"threshold": at, "precision": p, "recall": r}
        for at, (p, r) in zip(plots.THRESHOLDS, points)
    ]
    drawn = Drawn(precision_recall_curve(rows))
    notes = [each for each in drawn.svg.iter("text") if "note" in each.get("class", "")]
    assert notes[0].text == "0"
    for a, b in combinations(notes, 2):
        (ax, ay), (bx, by) = [[float(each.get(k) or 0) for k in "xy"] for each in (a, b)]
        # Letters of 12 pixels are at most 7 wide, and 12 high.
        is_apart = ax + 7 * len(a.text or "") <= bx or bx + 7 * len(b.text or "") <= ax
        assert is_apart or abs(ay - by) >= 12


def test_axes_of_shares_begin_where_the_data_are():
    rows = [{"threshold": 0.1 * i, "precision": 0.96 + 0.01 * i, "recall": 0.8} for i in range(5)]
    (panel,) = precision_recall_curve(rows).panels
    assert 95 < panel.y.low < 96 and 100 < panel.y.high < 101
    assert panel.y.ticks == [96, 97, 98, 99, 100]


def test_score_is_left_out_beside_other_scores():
    rows = [{"step": i, "losses": {}, "scores": {"ents_f": 50.0, "score": 50.0}} for i in (0, 9)]
    for scores, expected in ((rows[0]["scores"], ["ents_f"]), ({"score": 50.0}, ["score"])):
        chart = training_curves([{**row, "scores": scores} for row in rows], "scores")
        assert chart is not None and [*chart.legend] == expected


def test_axes_and_text_alternatives_name_what_is_plotted():
    for chart, names, about in (
        (
            reliability_diagram(RELIABILITY),
            {"confidence", "share correct", "entities"},
            "confidence and share correct: 0.55: 0.40, 0.90: 0.95.",
        ),
        (
            precision_recall_curve(THRESHOLDS),
            {"recall, %", "precision, %"},
            "precision and recall in percent: 0: 60.0 and 80.0, 0.5",
        ),
        (
            coverage_curve(CURVE, {}),
            {"candidates per gold entity", "gold entities of a document, %"},
            "in percent: 0.9: 0.50 and 41.0, 0.1: 1.10 and 86.0, by label: 1.90 and 93.0.",
        ),
        (training_curves(TRAINING, "losses"), {"step", "loss of a step"}, "losses: ner, _x."),
        (training_curves(TRAINING, "scores"), {"step", "score, %"}, "scores: ents_f."),
    ):
        drawn = Drawn(chart)
        assert names <= {*drawn.texts}
        assert about in drawn.svg.get("aria-label", "") and drawn.svg.get("role") == "img"


def test_training_curves_have_distinct_styles_that_the_legend_names():
    names = [f"loss {i}" for i in range(7, -1, -1)]
    rows = [{"step": i, "losses": dict.fromkeys(names, 1.0)} for i in range(2)]
    chart = training_curves(rows, "losses")
    assert chart is not None
    kinds = [curve.kind for curve in chart.panels[0].curves]
    assert len({*kinds}) == 8 and chart.legend == dict(zip(names, kinds))
    paths = [each.get("class") for each in Drawn(chart).root.findall("p/span/svg/path")]
    assert paths == kinds
    assert training_curves([], "losses") is training_curves(TRAINING, "speed") is None


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6))
def test_ticks_are_four_to_twelve_round_numbers_within_the_axis(low, width):
    ticks = plots._round_numbers(low, low + width)
    steps = {round(b - a, 9) for a, b in pairwise(ticks)}
    assert 4 <= len(ticks) <= 12 and min(ticks) >= low - 1e-9 and max(ticks) <= low + width + 1e-9
    digits = {f"{step:.0e}"[0] for step in steps}
    assert digits in ({"1"}, {"2"}, {"5"})


def test_ticks_of_tiny_numbers_are_round_too():
    assert plots._round_numbers(0.0, 4.5e-13) == [0.0, 1e-13, 2e-13, 3e-13, 4e-13]


@given(st.lists(st.floats(-1e300, 1e300), min_size=1, max_size=3))
@example([1e-13, 6e-13])
@example([10**18, 10**18 + 1])
def test_curves_of_any_numbers_stay_between_the_axes(values):
    chart = training_curves(
        [{"step": i, "losses": {"a": x}} for i, x in enumerate(values)], "losses"
    )
    assert chart is not None
    (panel,) = chart.panels
    for x, y in panel.curves[0].points:
        assert plots.LEFT < panel.x.at(x) < plots.RIGHT
        assert plots.TOP <= panel.y.at(y) <= plots.BOTTOM
    assert len(panel.y.ticks) <= 50
    assert all(plots.TOP <= panel.y.at(tick) <= plots.BOTTOM for tick in panel.y.ticks)


def test_charts_without_data_can_be_drawn():
    nothing = {"count": 0, "confidence": None, "correct": None, "interval": None}
    same = [{"threshold": 0.5, "coverage": 1.0, "per_entity": 0.0}] * 2
    logged = [{"step": 0, "losses": {"ner": None}, "scores": {}}]
    for chart in (
        reliability_diagram({"bins": [nothing] * 15}),
        precision_recall_curve(THRESHOLDS[-1:]),
        coverage_curve(same, {}),
        training_curves(logged, "losses"),
    ):
        assert not any("nan" in str(each.attrib) for each in Drawn(chart).svg.iter())


def test_labels_are_text_and_charts_have_no_reference_and_no_color_of_their_own():
    labels = ["$x^2$", "<b>bold</b>", "&amp;", "\"'", "{x}", "{{ 1 }}", "人名", "\N{GRINNING FACE}"]
    chart = training_curves([{"step": 1, "losses": dict.fromkeys(labels, 1.0)}], "losses")
    drawn = Drawn(chart)
    shown = [(each.findall("svg")[-1].tail or "").strip() for each in drawn.root.findall("p/span")]
    assert shown == labels
    assert {each.tag for each in drawn.root.iter()} == {
        "figure", "p", "span", "svg", "path", "circle", "text",
    }  # fmt: skip
    names = {name for each in drawn.root.iter() for name in each.attrib}
    assert not names & {"id", "style", "href", "fill", "stroke", "onclick"}


# The map of transitions


def test_transition_map_has_scores_colors_and_crosses():
    table = transition_map(TRANSITIONS)
    assert [cell.text for cell in table.header] == ["", *TRANSITIONS["tags"], "end"]
    assert [row[0].text for row in table.rows] == ["start", *TRANSITIONS["tags"]]
    texts = [[cell.text.replace("\N{MINUS SIGN}", "-") for cell in row[1:]] for row in table.rows]
    assert texts == [
        ["0.50", "-1.25", "", ""],
        ["1.50", "-0.50", "", "0.00"],
        ["0.25", "-3.00", "2.00", "0.10"],
        ["0.00", "0.75", "1.00", "0.35"],
    ]
    numbers = [TRANSITIONS["start"], *TRANSITIONS["scores"]]
    ends = [None, *TRANSITIONS["end"]]
    for i, (row, scores) in enumerate(zip(table.rows, numbers)):
        for j, (cell, score) in enumerate(zip(row[1:], [*scores, ends[i]])):
            if (i, j) == (0, 3):  # only an empty doc goes from start to end
                assert cell.kind == "" and cell.shade is None
            elif score is None:
                assert cell.kind == "forbidden" and cell.shade is None
            else:
                assert (cell.kind == "favored") == (score > 0) and cell.kind != "forbidden"
                assert cell.shade == pytest.approx(min(1, abs(score) / 2))


@pytest.mark.parametrize("place", ["start", "end", "scores"])
def test_largest_score_of_transitions_sets_the_decimals(place):
    row = [None, -12.34, 0.01]
    told = TRANSITIONS | {place: [row] * 3 if place == "scores" else row}
    table = transition_map(told)
    cells = {cell.text for each in table.rows for cell in each}
    assert "\N{MINUS SIGN}12.3" in cells and "0.0" in cells


@pytest.mark.parametrize("C, has_numbers", [(MAX_NUMBERED, True), (MAX_NUMBERED + 1, False)])
def test_transition_map_of_many_tags_has_no_numbers(C, has_numbers):
    told = {"tags": ["x"] * C, "scores": [[0.5] * C] * C, "start": [0.5] * C, "end": [0.5] * C}
    table = transition_map(told)
    assert {cell.text for row in table.rows[1:] for cell in row[1:]} == {
        "0.50" if has_numbers else ""
    }
    assert ("small" in table.kind) != has_numbers


def test_transition_map_of_scores_that_are_all_0_has_no_color():
    table = transition_map({"tags": ["O"], "scores": [[0.0]], "start": [0], "end": [-0.0]})
    assert {cell.shade for row in table.rows for cell in row} == {0.0, None}
    assert {cell.text for row in table.rows for cell in row[1:]} == {"0.00", ""}
