"""Plots: what is drawn lies where the figures say, labels are data, and no two get in each other's
way.
"""

import re
import sys
import warnings
from base64 import b64decode
from collections.abc import Sequence
from html import unescape
from io import BytesIO
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from numpy.typing import NDArray

from spacy_crf_ner.report.plots import (
    coverage_curve,
    largest,
    precision_recall_curve,
    reliability_diagram,
    training_curves,
    transition_map,
)

matplotlib = pytest.importorskip("matplotlib")

TAGS = ["O", "B-PER", "I-PER"]
TRANSITIONS: dict[str, Any] = {
    "tags": TAGS,
    "scores": [[1.5, -0.5, None], [0.25, -3.0, 2.0], [0.0, 0.75, 1.0]],
    "start": [0.5, -1.25, None],
    "end": [-0.004, 0.1, 0.35],
}
RELIABILITY: dict[str, Any] = {
    "bins": [
        {"count": 3, "confidence": 0.12, "correct": 0.25},
        {"count": 0, "confidence": None, "correct": None},
        {"count": 5, "confidence": 0.55, "correct": 0.4},
        {"count": 9, "confidence": 0.9, "correct": 0.95},
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
LABELS = ["$x^2$", "$", "a_b", "<b>bold</b>", "&amp;", "\"'", "{x}", 'style="fill: #000000"', "\\n"]


NAMES = ("reliability", "precision-recall", "transitions", "losses", "scores", "coverage")


def plots() -> dict[str, str]:
    return dict(
        zip(
            NAMES,
            (
                reliability_diagram(RELIABILITY),
                precision_recall_curve(THRESHOLDS),
                transition_map(TRANSITIONS),
                training_curves(TRAINING, "losses"),
                training_curves(TRAINING, "scores"),
                coverage_curve(CURVE, {"recall": {"level": 0.9}}),
            ),
        )
    )


@pytest.fixture(scope="module")
def drawn() -> dict[str, str]:
    """Plots, drawn once."""
    return plots()


def texts(svg: str) -> list[str]:
    return [unescape(each) for each in re.findall(r"<text[^>]*>([^<]*)</text>", svg)]


def between(labels: Sequence[str]) -> dict[str, Any]:
    """Transitions between tags of the given names."""
    C = len(labels)
    return {"tags": labels, "scores": [[0.5] * C] * C, "start": [0.5] * C, "end": [None] * C}


def axes(svg: str) -> list[str]:
    """The names of the axes; those of the vertical ones are rotated."""
    found = re.findall(r"rotate\(-(90|0) [^>]*>([^<]*)</text>", svg)
    return [f"{'y' if angle == '90' else 'x'}: {text}" for angle, text in found]


def places(svg: str) -> dict[str, tuple[float, float]]:
    """Where the texts begin that name points, x and y."""
    found = re.findall(r'text-anchor: start" x="(\S+)" y="(\S+)"[^>]*>([^<]*)</text>', svg)
    return {text: (float(x), float(y)) for x, y, text in found}


def curves(svg: str) -> list[NDArray[np.float64]]:
    """The points of each path that is a line and no mark or frame, (P, 2)."""
    paths = re.findall(r'<path d="([^"]*)" clip-path="[^"]*" style="fill: none', svg)
    return [points(path) for path in paths]


def points(path: str) -> NDArray[np.float64]:
    found = re.findall(r"[ML] (\S+) (\S+)", path)
    return np.array(found, dtype=float)


def is_to_scale(drawn: NDArray[np.float64], told: Sequence[Sequence[float]]) -> bool:
    """Whether points, (P, 2), match those given, except for a scale and a shift of each axis."""
    for i, upwards in ((0, True), (1, False)):
        values = np.array(told)[:, i]
        scale, shift = np.polyfit(values, drawn[:, i], 1)
        if (scale > 0) != upwards or not np.allclose(scale * values + shift, drawn[:, i], atol=0.1):
            return False
    return len(drawn) == len(told)


def test_reliability_diagram_curve_is_to_scale() -> None:
    svg = reliability_diagram(RELIABILITY)
    diagonal, curve = curves(svg)
    expected = [[0, 0], [1, 1], [0.12, 0.25], [0.55, 0.4], [0.9, 0.95]]
    assert is_to_scale(np.concatenate([diagonal, curve]), expected)


def test_bars_have_the_heights_of_the_counts() -> None:
    svg = reliability_diagram(RELIABILITY)
    paths = re.findall(r'<path d="([^"]*)" clip-path="[^"]*" style="fill: var\(--accent\)"', svg)
    heights = [np.ptp(points(path)[:, 1]) for path in paths]
    assert np.allclose(np.array(heights) / heights[0], [1, 0, 5 / 3, 3], atol=0.01)


def test_reliability_diagram_bars_start_at_bin_edges() -> None:
    svg = reliability_diagram(RELIABILITY)
    paths = re.findall(r'<path d="([^"]*)" clip-path="[^"]*" style="fill: var\(--accent\)"', svg)
    (left, _), (right, _) = curves(svg)[0]  # of the diagonal, from 0 to 1
    bars = (np.array([points(path)[:2, 0] for path in paths]) - left) / (right - left)
    assert bars == pytest.approx(np.array([[i / 4, (i + 0.9) / 4] for i in range(4)]), abs=1e-3)


def test_precision_recall_curve_is_to_scale_with_marked_thresholds() -> None:
    svg = precision_recall_curve(THRESHOLDS)
    curve = curves(svg)[0]
    assert is_to_scale(curve, [[80, 60], [78, 70], [50, 85], [10, 100]])
    assert [each for each in texts(svg) if "." in each] == ["0.5", "0.8", "0.9"]


def test_precision_recall_curve_marks_equal_points_once() -> None:
    rows = [
        {"threshold": each, "entities": 5, "precision": 0.7, "recall": 0.6} for each in (0.5, 0.8)
    ]
    assert [each for each in texts(precision_recall_curve(rows)) if "." in each] == ["0.5"]


def test_curves_place_threshold_names_at_points() -> None:
    svg = precision_recall_curve(THRESHOLDS)
    found = places(svg)
    for name, (x, y) in zip(("0", "0.5", "0.8", "0.9"), curves(svg)[0]):
        assert found[name] == pytest.approx((x + 5, y - 5), abs=0.1)
    svg = coverage_curve(CURVE, {})
    (curve,) = curves(svg)
    for name, (x, y) in (("0.9", curve[0]), ("by label", curve[-1])):
        assert places(svg)[name] == pytest.approx((x + 8, y + 4), abs=0.1)


def test_axes_are_named(drawn: dict[str, str]) -> None:
    named = {
        "reliability": {"x: confidence", "y: share correct", "y: entities"},
        "precision-recall": {"x: recall, %", "y: precision, %"},
        "losses": {"x: step", "y: loss"},
        "scores": {"x: step", "y: score, %"},
        "coverage": {"x: candidates per gold entity", "y: gold entities of a document, %"},
    }
    for name, expected in named.items():
        found = axes(drawn[name])
        assert expected <= {*found}, name
        assert {each for each in found if each.startswith("y")} <= expected


def test_plots_aria_label_contains_figures(drawn: dict[str, str]) -> None:
    trees = {name: ElementTree.fromstring(svg) for name, svg in drawn.items()}
    about = {name: str(tree.get("aria-label")) for name, tree in trees.items()}
    assert "confidence and share correct: 0.12: 0.25, 0.55: 0.40" in about["reliability"]
    assert "precision and recall in percent: 0: 60.0 and 80.0, 0.5" in about["precision-recall"]
    assert "per gold entity, coverage in percent: 0.9: 0.50 and 41.0" in about["coverage"]
    assert "by label: 1.90 and 93.0." in about["coverage"]
    assert "between 3 tags; 2 of 15 are forbidden" in about["transitions"]


def test_training_curves_have_distinct_styles() -> None:
    names = [f"loss {i}" for i in range(7, -1, -1)]
    rows = [{"step": i, "losses": dict.fromkeys(names, 1.0)} for i in range(2)]
    svg = training_curves(rows, "losses")
    lines = re.findall(r'style="fill: none; ([^"]*stroke-width: 1.5[^"]*)"', svg)
    assert len({*lines}) == 8 and lines[:8] == lines[8:]  # the legend has them in the same order
    assert [each for each in texts(svg) if each in names] == names


def test_coverage_curve_is_to_scale_with_guarantee_line() -> None:
    line, curve = curves(coverage_curve(CURVE, {"recall": {"level": 0.9}}))
    assert is_to_scale(curve, [[0.5, 41], [1.1, 86], [1.9, 93]])
    scale, shift = np.polyfit([41, 86, 93], curve[:, 1], 1)
    assert line[:, 1] == pytest.approx(scale * 90 + shift, abs=0.1)
    assert len(curves(coverage_curve(CURVE, {}))) == 1
    assert {"0.9", "by label"} <= set(texts(coverage_curve(CURVE, {})))


def test_training_curves_are_to_scale() -> None:
    losses, scores = (curves(training_curves(TRAINING, of)) for of in ("losses", "scores"))
    assert is_to_scale(losses[0], [[0, 90], [50, 31], [200, 12]])
    assert is_to_scale(np.concatenate(losses[:2]), [[0, 90], [50, 31], [200, 12], [0, 4], [200, 1]])
    assert is_to_scale(scores[0], [[0, 0], [50, 0.5], [200, 0.625]])
    assert {"ner", "_x"} <= set(texts(training_curves(TRAINING, "losses")))


def test_scores_of_transitions_are_written_in_their_cells() -> None:
    svg = transition_map(TRANSITIONS).replace("\N{MINUS SIGN}", "-")
    found = texts(svg)
    written = [each for each in found if re.fullmatch(r"-?\d\.\d\d", each)]
    rows = ["0.50 -1.25", "1.50 -0.50 0.00", "0.25 -3.00 2.00 0.10", "0.00 0.75 1.00 0.35"]
    assert written == " ".join(rows).split()
    assert [each for each in found if each not in written] == [*TAGS, "end", "start", *TAGS]


def test_large_scores_have_one_decimal() -> None:
    told = TRANSITIONS | {"start": [-12.34, 0.01, None]}
    assert ["\N{MINUS SIGN}12.3", "0.0"] == [
        each for each in texts(transition_map(told)) if "." in each
    ][:2]


def image(svg: str) -> NDArray[np.int64]:
    """The colors and opacities of the cells, (Y, X, 4)."""
    from PIL import Image

    (data,) = re.findall(r'href="data:image/png;base64,([^"]*)"', svg)
    return np.asarray(Image.open(BytesIO(b64decode(data))).convert("RGBA")).astype(int)


def test_transition_map_colors_show_sign_and_size() -> None:
    colors = image(transition_map(TRANSITIONS))
    table = [[*TRANSITIONS["start"], None]]
    table += [[*row, end] for row, end in zip(TRANSITIONS["scores"], TRANSITIONS["end"])]
    assert colors.shape == (4, 4, 4)
    for row, scores in zip(colors, table):
        for (red, _, blue, opacity), score in zip(row, scores):
            assert opacity == pytest.approx(255 * 0.6 * abs(score or 0) / 3.0, abs=1.5)
            if opacity:
                assert (blue > red) == (score > 0)


@pytest.mark.parametrize("key", ["start", "end", "scores"])
def test_largest_finds_score_in_start_end_or_scores(key: str) -> None:
    row = [None, -4.5, 0.0]
    assert largest(TRANSITIONS | {key: [row] if key == "scores" else row}) == 4.5


def crossed(svg: str, n_cells: int) -> list[tuple[int, int]]:
    """The cells, row and column, in whose middle two strokes cross."""
    (path,) = re.findall(
        r'<path d="([^"]*)" clip-path="[^"]*" style="fill: none; stroke: var\(--muted\)', svg
    )
    middles = points(path).reshape(-1, 4, 2).mean(axis=1)
    corner = re.search(r"matrix\((\S+) 0 0 (\S+) (\S+) (\S+)\)", svg)
    assert corner
    width, height, left, top = map(float, corner.groups())
    assert width == pytest.approx(height, rel=0.01)
    found = ((middles - (left, top)) / (width, height) - 0.5).round(2)
    assert (found == found.round()).all() and found.max() < n_cells
    return sorted((int(y), int(x)) for x, y in found)


def test_transition_map_crosses_out_forbidden_transitions() -> None:
    # Rows start, O, B-PER, I-PER; columns O, B-PER, I-PER, end.
    assert crossed(transition_map(TRANSITIONS), 4) == [(0, 2), (1, 2)]


def test_transition_map_large_map_has_all_crosses_and_names() -> None:
    C = 81
    rng = np.random.default_rng(0)
    scores = np.where(rng.random((C, C)) < 0.7, None, rng.normal(size=(C, C)).round(3)).tolist()
    tags = [f"B-LABEL_{i}" for i in range(C)]
    told = {"tags": tags, "scores": scores, "start": [0.5] * C, "end": [0.5] * C}
    svg = transition_map(told)
    expected = [(y + 1, x) for y in range(C) for x in range(C) if scores[y][x] is None]
    assert crossed(svg, C + 1) == expected
    # On all four sides, as the page scrolls; the numbers would be too small.
    assert sorted(texts(svg)) == sorted([*tags, *tags, "start", "end"] * 2)
    assert len(svg) < 1_000_000


def test_transition_map_without_forbidden_has_no_crosses() -> None:
    told = TRANSITIONS | {"scores": [[0.0] * 3] * 3, "start": [0.0] * 3, "end": [0.0] * 3}
    svg = transition_map(told)
    assert "var(--muted)" not in svg
    assert image(svg)[..., 3].max() == 0


def test_plots_show_labels_verbatim() -> None:
    svg = transition_map(between(LABELS))
    assert sorted(texts(svg)) == sorted([*LABELS, *LABELS, "start", "end"] + ["0.50"] * 90)
    rows = [{"step": 1, "losses": dict.fromkeys(LABELS, 1.0)}]
    assert set(LABELS) <= set(texts(training_curves(rows, "losses")))
    assert {each.tag for each in ElementTree.fromstring(svg).iter()} <= {
        "svg", "g", "defs", "path", "use", "text", "image", "clipPath", "rect",
    }  # fmt: skip


def test_labels_of_any_script_and_with_any_character_can_be_drawn() -> None:
    labels = ["人名", "שם", "Đ\u0323", "a\nb", "\0\x1b\ud800", "\N{GRINNING FACE}", "L" * 500]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = texts(transition_map(between(labels)))
    for text in ("人名", "שם", "a b", "\ufffd" * 3, "\N{GRINNING FACE}", "L" * 79 + "…"):
        assert text in found


@pytest.mark.parametrize("name", NAMES)
def test_plot_has_unique_ids_and_no_external_reference(drawn: dict[str, str], name: str) -> None:
    svg = drawn[name]
    tree = ElementTree.fromstring(svg)
    ids = re.findall(r' id="([^"]*)"', svg)
    used = re.findall(r'(?:url\(|href=")#([^")]*)', svg)
    assert set(ids) == set(used) and len(ids) == len(set(ids))
    others = "".join(other for of, other in drawn.items() if of != name)
    assert not any(f'id="{each}"' in others for each in ids)
    assert not {"style", "metadata", "script"} & {each.tag for each in tree.iter()}
    assert "http" not in svg and "xmlns" not in svg
    assert tree.get("role") == "img" and tree.get("aria-label")


@pytest.mark.parametrize("name", NAMES)
def test_plot_uses_colors_and_font_of_page(drawn: dict[str, str], name: str) -> None:
    svg = drawn[name]
    assert not re.findall(r'style="[^"]*(?:#[0-9a-f]{3}|font-family)', svg)
    assert 'fill="currentColor"' in svg


def test_plots_ignore_and_keep_matplotlib_settings_of_user(
    drawn: dict[str, str],
) -> None:
    with matplotlib.rc_context({"text.usetex": True, "axes.edgecolor": "red", "font.size": 30}):
        assert plots() == drawn
        assert matplotlib.rcParams["font.size"] == 30


def test_plots_without_data_are_empty() -> None:
    nothing = {"count": 0, "confidence": None, "correct": None}
    assert "none" in reliability_diagram({"bins": [nothing] * 15})
    assert "none" in precision_recall_curve(THRESHOLDS[-1:])
    assert "0 of 3" in transition_map({"tags": ["O"], "scores": [[0.0]], "start": [0], "end": [0]})


def test_plot_without_matplotlib_error_names_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ValueError, match=r'pip install "spacy-crf-ner\[report\]"'):
        reliability_diagram(RELIABILITY)
