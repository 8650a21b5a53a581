"""Draw the charts of the documentation, light and dark, from measurements.

python benchmarks/figures.py bars
    Speed and accuracy, from the tables in docs/benchmarks.md.
python benchmarks/figures.py coverage NAME=report.json ...
    Precision over coverage: of the most confident entities, from `spacy-crf-ner report`.
python benchmarks/figures.py learning CORPUS
    F1 over annotated tokens, from benchmarks/results/active_learning.jsonl.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import matplotlib
import srsly
import typer

matplotlib.use("svg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from benchmark_active_learning import draw_curves

RUNS = Path(__file__).parent / "results" / "active_learning.jsonl"
ASSETS = Path(__file__).parents[1] / "docs" / "assets"
PAGE = ASSETS.parent / "benchmarks.md"
INKS = {"": ("#1a1f36", "#9aa0b8", "#3f51b5"), "-dark": ("#e8eaf6", "#6d7391", "#7c8df0")}
# Systems of the speed table, in the fastest precision of each.
SYSTEMS = {
    "`crf_ner`, bf16": "crf_ner, bfloat16",
    "`crf_ner`, fp32": "crf_ner, float32",
    "EDS-NLP `ner_crf` (bfloat16)": "EDS-NLP ner_crf, bfloat16",
    "the same, bfloat16": "Hugging Face, bfloat16",
    "flair, RNN + CRF": "flair, float32",
    "spaCy `transformer` + `ner`": "spaCy ner, float32",
}

app = typer.Typer(add_completion=False)


def draw(name: str, size: tuple[float, float], paint: Callable[[Axes, str, str], None]) -> None:
    """Write a chart for each background; `paint` gets the axes, a gray and the accent color."""
    for suffix, (ink, gray, accent) in INKS.items():
        colors = {
            key: ink for key in ("text.color", "axes.labelcolor", "xtick.color", "ytick.color")
        }
        style = {**colors, "axes.edgecolor": gray, "font.size": 11, "svg.hashsalt": name}
        with plt.rc_context({**style, "svg.fonttype": "none", "font.family": "sans-serif"}):
            figure, axes = plt.subplots(figsize=size, layout="constrained")
            axes.spines[["top", "right"]].set_visible(False)
            paint(axes, gray, accent)
            path = ASSETS / f"{name}{suffix}.svg"
            figure.savefig(path, transparent=True, metadata={"Date": None})
            plt.close(figure)
            typer.echo(path)


def rows(header: str) -> list[list[str]]:
    """Return the cells of a table in the page, found by the start of its header."""
    text = PAGE.read_text("utf-8")
    table = text[text.index(header) :].split("\n\n")[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table[2:]]


@app.command()
def bars() -> None:
    """Draw words per second, and F1, of the systems."""
    bar_chart("speed", 4, "words/s, mixed lengths", "{:,.0f}")
    bar_chart("accuracy", 7, "F1 on GMB", "{:.1f}")


def bar_chart(name: str, column: int, label: str, form: str) -> None:
    """Draw a column of the speed table."""
    table = {row[0]: row for row in rows("| words/s, median")}
    cells = [table[key][column] for key in SYSTEMS]
    values = [float(re.split(r"[ (]", cell)[0].replace(",", "")) for cell in cells]
    order = sorted(zip(values, SYSTEMS.values()))

    def paint(axes: Axes, gray: str, accent: str) -> None:
        colors = [accent if system.startswith("crf_ner") else gray for _, system in order]
        drawn = axes.barh([s for _, s in order], [value for value, _ in order], color=colors)
        axes.bar_label(drawn, fmt=form, padding=4)
        axes.set_xlabel(label)
        axes.margins(x=0.12)

    draw(name, (7, 3), paint)


@app.command()
def coverage(reports: Annotated[list[str], typer.Argument(metavar="NAME=REPORT.JSON")]) -> None:
    """Draw precision over the share of predicted entities that is accepted."""
    curves = {}
    for report in reports:
        name, _, path = report.partition("=")
        thresholds = json.loads(Path(path).read_text("utf-8"))["thresholds"]
        total = thresholds[0]["entities"]
        kept = [row for row in thresholds if row["entities"] >= 20]  # fewer say little
        curves[name] = [(row["entities"] / total, row["precision"]) for row in kept]

    def paint(axes: Axes, gray: str, accent: str) -> None:
        for (name, curve), color in zip(curves.items(), (accent, gray)):
            axes.plot(*zip(*curve), color=color, linewidth=2, label=name)
        axes.set_xlabel("coverage: share of the predicted entities that is accepted")
        axes.set_ylabel("precision")
        axes.set_xlim(0, 1)
        axes.grid(alpha=0.25)
        axes.legend(frameon=False)

    draw("coverage", (7, 3.6), paint)


@app.command()
def learning(corpus: str, config: str = "char") -> None:
    """Draw F1 over the annotated tokens that each strategy chose."""
    found = srsly.read_jsonl(RUNS)
    rows = [row for row in found if (row["corpus"], row["config"]) == (corpus, config)]

    def paint(axes: Axes, gray: str, accent: str) -> None:
        draw_curves(rows, axes)
        axes.grid(alpha=0.25)

    draw(f"learning-{corpus}", (7, 3.6), paint)


if __name__ == "__main__":
    app()
