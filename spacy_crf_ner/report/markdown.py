"""Figures as files: JSON for programs, Markdown and a page for people."""

import json
import re
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Sequence

import numpy as np

from ..evaluation import require_nervaluate
from .html import report_page
from .plots import require_matplotlib

WORST = 20  # errors in the Markdown file
LOGGED = 20  # rows of the training log there
TITLES = {"precision": "precision", "recall": "recall", "f1": "F1"}
MEANING = {
    "strict": "span and label are right",
    "exact": "the span is right",
    "partial": "it overlaps; half a point where the span is not right",
    "type": "it overlaps, and the label is right",
}
# What may begin markup within a line. An underscore within a word does not.
MARKUP = re.compile(r"[&<>|`*\[\]\\~$:@]|(?<![^\W_])_|_(?![^\W_])|(?<=www)\.", re.IGNORECASE)
Figures = Dict[str, Any]


def require_report() -> None:
    """Raise ValueError where a package that a report takes is not installed."""
    require_nervaluate()
    require_matplotlib()


def require_folder(out: Path) -> None:
    """Raise ValueError where a folder for a report is a file, or below one."""
    for path in (out, *out.parents):
        if path.exists() and not path.is_dir():
            raise ValueError(
                f"{path}: expected a folder, or nothing yet, got a file. Name another."
            )


def write_report(figures: Figures, out: Path) -> List[Path]:
    """Write figures as report.json, report.md and report.html, when all three are made.

    figures: What `evaluation.evaluate` or `evaluation.compare` returns.
    out: Folder; a report that is in it is replaced.

    Returns the three paths. Raises ValueError as `require_report` and `require_folder`.
    """
    require_report()
    require_folder(out)
    texts = {
        "report.json": json.dumps(figures, ensure_ascii=False, allow_nan=False, indent=1) + "\n",
        "report.md": markdown(figures),
        "report.html": report_page(figures),
    }
    out.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        # A name of a model may be no UTF-8: a file of any name can be given.
        (out / name).write_bytes(text.encode("utf-8", "replace"))
    return [out / name for name in texts]


def markdown(figures: Figures) -> str:
    """Write figures as short tables in Markdown; text and labels are data, never markup."""
    sections = [
        _summary(figures),
        _by_label(figures),
        _matchings(figures),
        _confusion(figures),
        _errors(figures),
        _confidence(figures),
        _comparison(figures),
        _training(figures),
    ]
    return "\n\n".join("\n".join(section) for section in map(list, sections) if section) + "\n"


def with_interval(value: Optional[float], interval: Optional[Sequence[float]]) -> str:
    """Write a figure in percent, and where it lies: "41.2 (38.0 to 44.1)"; "-" for None."""
    if value is None or interval is None:
        return percent(value)
    low, high = interval
    return f"{percent(value)} ({percent(low)} to {percent(high)})"


def percent(value: Optional[float]) -> str:
    """Write a share in percent, with one decimal; "-" for None, a share of nothing."""
    return "-" if value is None else f"{100 * value:.1f}"


def plain(text: str) -> str:
    """Write text for a cell of a Markdown table, so that it is shown as it is, on one line."""
    return _escape(text.strip())


def _summary(figures: Figures) -> Iterator[str]:
    f1, interval = figures["matching"]["strict"]["micro"]["f1"], figures["intervals"]["micro"]["f1"]
    yield f"# {plain(figures['model'])} on {plain(figures['data'])}"
    yield ""
    yield (
        f"{figures['docs']:,} docs, {figures['tokens']:,} tokens, {figures['gold']:,} gold "
        f"entities, {figures['predicted']:,} predicted, and {figures['left_out']:,} more left out "
        "where the gold annotation is missing."
    )
    yield f"Micro F1: **{with_interval(f1, interval)}**"


def _by_label(figures: Figures) -> Iterator[str]:
    strict, intervals = figures["matching"]["strict"], figures["intervals"]
    yield "## By label"
    yield ""
    yield (
        f"In percent: span and label are right. In brackets {intervals['level']:.0%} intervals, "
        f"from {intervals['resamples']:,} bootstrap resamples of the docs."
    )
    yield ""
    yield from _head("", "precision", "recall", "F1", "gold", "predicted")
    rows = [
        ("all, micro", strict["micro"], intervals["micro"]),
        ("all, macro", strict["macro"], intervals["macro"]),
    ]
    for label, row in strict["per_type"].items():
        rows.append((plain(label), row, intervals["per_type"][label]))
    for name, row, of_row in rows:
        cells = [with_interval(row[figure], of_row[figure]) for figure in TITLES]
        yield _row(name, *cells, row["gold"], row["predicted"])


def _matchings(figures: Figures) -> Iterator[str]:
    yield "## What counts as right"
    yield ""
    yield from _head("", "precision", "recall", "F1", "right is an entity where")
    for name, meaning in MEANING.items():
        micro = figures["matching"][name]["micro"]
        yield _row(name, *(percent(micro[figure]) for figure in TITLES), meaning)


def _confusion(figures: Figures) -> Iterator[str]:
    labels = [plain(label) for label in figures["confusion"]["labels"]]
    yield "## Gold labels (rows) against predicted ones"
    yield ""
    yield from _head("", *labels, "missed")
    for name, row in zip([*labels, "spurious"], figures["confusion"]["counts"]):
        yield _row(name, *row)


def _errors(figures: Figures) -> Iterator[str]:
    errors = figures["errors"]
    yield "## Errors"
    yield ""
    yield from _head(*errors["counts"])
    yield _row(*errors["counts"].values())
    if not errors["list"]:
        return
    yield ""
    yield f"The {min(WORST, len(errors['list']))} surest of {len(errors['list']):,}:"
    yield ""
    yield from _head("error", "confidence", "gold", "predicted", "text", "doc")
    for error in errors["list"][:WORST]:
        yield _row(
            error["kind"],
            percent(error["confidence"]),
            _entity(error["gold"]),
            _entity(error["predicted"]),
            _in_context(error),
            error["doc"],
        )


def _confidence(figures: Figures) -> Iterator[str]:
    reliability = figures["reliability"]
    if reliability is None:
        return
    yield "## Confidence"
    yield ""
    yield (
        f"Expected calibration error: {percent(reliability['ece'])} %. Brier score, times 100: "
        f"{percent(reliability['brier'])}. Kept are the entities that are at least as sure as this:"
    )
    yield ""
    yield from _head("confidence", "entities", "precision", "recall")
    for row in figures["thresholds"][::2]:
        yield _row(
            f"{row['threshold']:.2f}",
            row["entities"],
            percent(row["precision"]),
            percent(row["recall"]),
        )


def _comparison(figures: Figures) -> Iterator[str]:
    comparison = figures["comparison"]
    if comparison is None:
        return
    this, other = figures["matching"]["strict"], comparison["other"]["matching"]["strict"]
    difference = comparison["difference"]
    yield f"## Compared with {plain(comparison['model'])}"
    yield ""
    yield (
        f"The difference is in points; its interval and p are of a {comparison['test']}, with "
        f"{comparison['resamples']:,} resamples."
    )
    yield ""
    yield from _head("", "this", "other", "difference", "p")
    rows = [(f"all, micro {TITLES[name]}", this["micro"], other["micro"], name, row)
            for name, row in difference["micro"].items()]  # fmt: skip
    rows += [(f"{plain(label)} F1", this["per_type"].get(label), other["per_type"].get(label), "f1",
              row["f1"]) for label, row in difference["per_type"].items()]  # fmt: skip
    for name, mine, theirs, figure, row in rows:
        values = [percent(each[figure] if each else None) for each in (mine, theirs)]
        p = "-" if row["p"] is None else f"{row['p']:.3f}"
        yield _row(name, *values, with_interval(row["difference"], row["interval"]), p)


def _training(figures: Figures) -> Iterator[str]:
    training = figures["training"]
    if training is None:
        return
    losses, scores = (
        list(dict.fromkeys(name for row in training for name in row[key]))
        for key in ("losses", "scores")
    )
    rows = [
        training[i] for i in sorted({round(i) for i in np.linspace(0, len(training) - 1, LOGGED)})
    ]
    yield "## Training"
    yield ""
    yield f"{len(rows):,} of {len(training):,} evaluations on dev; scores in percent."
    yield ""
    yield from _head("step", "epoch", *(plain(f"loss {name}") for name in losses),
                     *map(plain, scores))  # fmt: skip
    for row in rows:
        values = [*(row["losses"].get(name) for name in losses),
                  *(row["scores"].get(name) for name in scores)]  # fmt: skip
        cells = ["-" if value is None else f"{value:,.2f}" for value in values]
        yield _row(row["step"], row["epoch"], *cells)


def _head(first: str, *names: str) -> Iterator[str]:
    yield _row(first, *names)
    yield "|---" * (1 + len(names)) + "|"


def _row(*cells: Any) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def _entity(ent: Optional[Figures]) -> str:
    return "-" if ent is None else f"{plain(ent['text'])} ({plain(ent['label'])})"


def _in_context(error: Figures) -> str:
    before, text, after = (_escape(error[part]) for part in ("before", "text", "after"))
    # Two asterisks would be no markup beside some punctuation.
    return f"{before}<b>{text}</b>{after}"


def _escape(text: str) -> str:
    return MARKUP.sub(lambda found: f"&#{ord(found[0])};", re.sub(r"\s+", " ", text))
