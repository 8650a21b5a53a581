"""Draw the charts of the documentation, light and dark, from measurements."""

import re
import statistics
from collections.abc import Callable
from html import escape
from typing import Annotated

import matplotlib
import spacy
import srsly
import typer

matplotlib.use("svg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from benchmarks import common
from spacy_crf_ner.input_error import InputError

RUNS = common.ROOT / "benchmarks" / "results" / "active_learning.csv"
ASSETS = common.ROOT / "docs" / "assets"
PAGE = ASSETS.parent / "benchmarks.md"
ACCEPT = 0.9  # entities of this confidence, in the picture of a sentence
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


def main(
    chart: Annotated[str, typer.Argument(help="bars, coverage, learning or sentence.")],
    inputs: Annotated[
        list[str] | None, typer.Argument(help="NAME=REPORT.JSON, or CORPUS, or MODEL TEXT.")
    ] = None,
) -> None:
    """Draw charts into docs/assets.

    \b
    bars: speed and accuracy, from the tables in docs/benchmarks.md.
    coverage NAME=REPORT.JSON ...: precision over coverage, from `spacy-crf-ner report`.
    learning CORPUS: F1 over annotated tokens, from benchmarks/results/active_learning.csv.
    sentence MODEL TEXT: the entities of a text, with bars for their confidences.
    """
    if chart == "bars":
        bar_chart("speed", 4, "words/s, mixed lengths", "{:,.0f}")
        bar_chart("accuracy", 7, "F1 on GMB", "{:.1f}")
    elif chart == "coverage" and inputs:
        coverage(inputs)
    elif chart == "learning" and inputs:
        for corpus in inputs:
            learning(corpus)
    elif chart == "sentence" and inputs and len(inputs) == 2:
        sentence(*inputs)
    else:
        known = "bars, coverage, learning or sentence"
        raise InputError(f"Expected {known} with inputs, got {chart!r}.")


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


def coverage(reports: list[str]) -> None:
    """Draw precision over the share of predicted entities that is accepted."""
    curves = {}
    for report in reports:
        name, _, path = report.partition("=")
        thresholds = srsly.read_json(path)["thresholds"]
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


def learning(corpus: str, config: str = "char") -> None:
    """Draw F1 over the annotated tokens that each strategy chose."""
    rows = common.Rows(RUNS).matching({"corpus": corpus, "config": config})

    def paint(axes: Axes, gray: str, accent: str) -> None:
        draw_curves(rows, axes)
        axes.grid(alpha=0.25)

    draw(f"learning-{corpus}", (7, 3.6), paint)


def draw_curves(rows: list[common.Row], axes: Axes) -> None:
    """Draw F1 over annotated tokens: the mean of the seeds, and a band from lowest to highest.

    Without questions about spans, which do not cost tokens.
    """
    for (strategy,), own in common.by_key(rows, "strategy").items():
        if strategy in ("all", "spans"):
            continue
        by_round = common.by_key(own, "round").values()
        at = [statistics.mean(row["tokens"] for row in each) for each in by_round]
        scores = [[row["f1"] for row in each] for each in by_round]
        (line,) = axes.plot(at, [statistics.mean(each) for each in scores], label=strategy)
        low, high = [min(each) for each in scores], [max(each) for each in scores]
        axes.fill_between(at, low, high, alpha=0.15, color=line.get_color())
    whole = [row["f1"] for row in rows if row["strategy"] == "all"]
    axes.axhline(statistics.mean(whole), color="gray", linestyle="--", label="all data")
    axes.set(xlabel="annotated tokens", ylabel="F1 on test")
    axes.legend(frameon=False)


def sentence(model: str, text: str) -> None:
    """Draw the entities of a text in color, and below it a bar for each confidence."""
    doc = spacy.load(model)(text)
    height = 80 + 52 * len(doc.ents)
    for suffix, (ink, gray, _) in INKS.items():
        pieces, end = [], 0
        rows = [f'<g font-size="22" fill="{ink}">']
        for i, ent in enumerate(doc.ents):
            sure = ent._.confidence
            hue = 120 * max(0, 2 * sure - 1)  # red at 0.5, green at 1
            color = f"hsl({hue:.0f} {'75% 32%' if not suffix else '55% 58%'})"
            pieces += [escape(text[end : ent.start_char])]
            pieces += [f'<tspan fill="{color}" font-weight="bold">{escape(ent.text)}</tspan>']
            end, y = ent.end_char, 105 + 52 * i
            verdict = "accept" if sure >= ACCEPT else "ask a person"
            rows += [
                f'<text x="16" y="{y}">{escape(ent.text)}</text>',
                f'<text x="250" y="{y}" opacity="0.7">{escape(ent.label_)}</text>',
                f'<rect x="390" y="{y - 17}" width="170" height="20" rx="4" fill="{gray}" '
                f'opacity="0.25"/>',
                f'<rect x="390" y="{y - 17}" width="{170 * sure:.0f}" height="20" rx="4" '
                f'fill="{color}"/>',
                f'<text x="575" y="{y}">{sure:.2f}</text>',
                f'<text x="640" y="{y}" fill="{color}">{verdict}</text>',
            ]
        pieces += [escape(text[end:])]
        head = f'<text x="16" y="42" font-size="23" fill="{ink}">{"".join(pieces)}</text>'
        path = ASSETS / f"sentence{suffix}.svg"
        path.write_text(
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 800 {height}" '
            f'font-family="sans-serif">\n{head}\n' + "\n".join([*rows, "</g>", "</svg>", ""]),
            "utf-8",
        )
        typer.echo(path)
