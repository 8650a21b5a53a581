"""The trellis of a text as an HTML page with an SVG drawing."""

from itertools import accumulate
from typing import Any

from ..templates import render
from .trellis import entities_in_words, relevant_tags, visible

# Pixels: a node, the height of a row of tags, the minimum width of a column of tokens.
NODE_SIZE, ROW_HEIGHT, MIN_COLUMN_WIDTH = (48, 22), 40, 100
HEADER_HEIGHT, LETTER_WIDTH = 34, 7.5
MAX_NODES = 2000  # in a larger trellis, only rows of relevant tags are drawn
MAX_LETTERS = 24  # in a name; the tooltip has all of it


def trellis_page(explanation: dict[str, Any]) -> str:
    """Draw the trellis of an explanation, the path through it, and the best labelings."""
    tokens, tags = [visible(token) for token in explanation["tokens"]], explanation["tags"]
    shown = list(range(len(tags)))
    if len(tags) * len(tokens) > MAX_NODES:
        shown = sorted(set().union(*relevant_tags(explanation)))
    widths = [max(MIN_COLUMN_WIDTH, _width(token)) for token in tokens]
    return render(
        "trellis.html.j2",
        title=f"Trellis of {explanation['label'] or 'a text'}",
        explanation=explanation,
        tokens=tokens,
        columns=[right - width / 2 for right, width in zip(accumulate(widths), widths)],
        rows={c: HEADER_HEIGHT + (i + 0.5) * ROW_HEIGHT for i, c in enumerate(shown)},
        size=(sum(widths), HEADER_HEIGHT + ROW_HEIGHT * len(shown)),
        names_width=max((_width(tags[c]) for c in shown), default=0),
        node_size=NODE_SIZE,
        max_letters=MAX_LETTERS,
        steps=_steps(explanation, tokens),
        labelings=[
            [f"{labeling['probability']:.4f}", entities_in_words(labeling)]
            for labeling in explanation["labelings"]
        ],
    )


def _width(name: str) -> float:
    """Return the width of a name and its margins, in pixels."""
    return 16 + LETTER_WIDTH * min(len(name), MAX_LETTERS)


def _steps(explanation: dict[str, Any], tokens: list[str]) -> list[list[str]]:
    """Return the sums along the path: a row for each token, and one for the end."""
    path, tags, rows = explanation["path"], explanation["tags"], []
    last, transitions = 0.0, explanation["start"]
    for t, c in enumerate(path):
        score = explanation["scores"][t][c]
        numbers = [last, transitions[c], explanation["emissions"][t][c], score]
        p = explanation["marginals"][t][c]
        rows.append([tokens[t], tags[c], *map(_number, numbers), f"{p:.3f}"])
        last, transitions = score, explanation["transitions"][c]
    if path:
        end, score = explanation["end"][path[-1]], explanation["score"]
        rows.append(["", "end", _number(last), _number(end), "", _number(score), ""])
    return rows


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.2f}"
