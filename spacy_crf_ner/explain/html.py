"""The trellis of a text as an HTML page with an SVG drawing."""

from typing import Any

from ..templates import render
from .trellis import entities_in_words, relevant_tags, visible

# Pixels: a node, the height of a row of tokens, the minimum width of a column of tags.
NODE_SIZE, ROW_HEIGHT, MIN_COLUMN_WIDTH = (42, 22), 44, 50
HEADER_HEIGHT, LETTER_WIDTH, MARGIN = 40, 7.5, 8
MAX_LETTERS = 14  # in a name; the tooltip has all of it


def trellis_page(explanation: dict[str, Any], model: str = "") -> str:
    """Draw the relevant part of a trellis, the path through it, and the best labelings."""
    tokens, tags = [visible(token) for token in explanation["tokens"]], explanation["tags"]
    relevant = relevant_tags(explanation)
    columns, width = {}, 0.0
    for c in sorted(set().union(*relevant)):
        own = max(MIN_COLUMN_WIDTH, _width(tags[c].partition("-")[2]))
        columns[c] = width + own / 2
        width += own
    label = explanation["label"]
    facts = [
        ("Pipeline", model),
        ("Component", explanation["component"]),
        ("Labels", label or ", ".join(explanation["labels"])),
        ("Size", f"{len(tokens)} tokens, {len(tags)} tags"),
        ("Confidences", explanation["calibration"].partition(": ")[2]),
    ]
    return render(
        "trellis.html.j2",
        title="How the entities were found",
        facts=facts,
        explanation=explanation,
        tokens=tokens,
        relevant=relevant,
        columns=columns,
        rows=[(t + 0.5) * ROW_HEIGHT for t in range(len(tokens))],
        size=(width, ROW_HEIGHT * len(tokens)),
        header_height=HEADER_HEIGHT,
        names_width=MARGIN + max(map(_width, tokens), default=0),
        node_size=NODE_SIZE,
        margin=MARGIN,
        max_letters=MAX_LETTERS,
        steps=_steps(explanation, tokens),
        labelings=[
            [f"{labeling['probability']:.4f}", entities_in_words(labeling)]
            for labeling in explanation["labelings"]
        ],
    )


def _width(name: str) -> float:
    """Return the width of a name and its margins, in pixels."""
    return MARGIN + LETTER_WIDTH * min(len(name), MAX_LETTERS)


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
