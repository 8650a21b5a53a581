"""The trellis of a text as an HTML page with an SVG drawing."""

from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from ..templates import render
from .trellis import entities_in_words, relevant_tags, visible

# Pixels: a node, the height of a row of tags, the least width of a column of tokens.
NODE_WIDTH, NODE_HEIGHT, ROW_HEIGHT, MIN_COLUMN_WIDTH = 48, 22, 40, 100
HEADER_HEIGHT, LETTER_WIDTH = 34, 7.5
MAX_NODES = 2000  # of a larger trellis, only the rows of relevant tags are drawn
MAX_LETTERS = 24  # of a name; the tooltip has the rest


class Name(NamedTuple):
    """The name of a token or a tag, at a position of the drawing, in full and shortened."""

    x: float
    y: float
    name: str
    short: str


class Node(NamedTuple):
    """A tag at a token; its score is None where no legal path reaches it."""

    x: float
    y: float
    score: Optional[float]
    marginal: float
    on_path: bool
    about: str


class Edge(NamedTuple):
    """A backpointer, drawn from the tag before."""

    x1: float
    y1: float
    x2: float
    y2: float
    on_path: bool


def trellis_page(explanation: Dict[str, Any]) -> str:
    """Draw the trellis of a text, the path through it, and the best analyses.

    explanation: What `explain` returns.

    Returns one self-contained page.
    """
    tokens, tags = [visible(token) for token in explanation["tokens"]], explanation["tags"]
    shown = _shown_tags(explanation)
    rows = {c: HEADER_HEIGHT + (i + 0.5) * ROW_HEIGHT for i, c in enumerate(shown)}
    columns, width = _columns(tokens)
    names_width = 16 + LETTER_WIDTH * max((len(_short(tags[c])) for c in shown), default=0)
    return render(
        "trellis.html.j2",
        title="Trellis of a text",
        explanation=explanation,
        n_hidden=len(tags) - len(shown),
        size=(width, HEADER_HEIGHT + ROW_HEIGHT * len(shown)),
        names_width=names_width,
        node_size=(NODE_WIDTH, NODE_HEIGHT),
        tag_names=[Name(names_width - 8, y, tags[c], _short(tags[c])) for c, y in rows.items()],
        token_names=[Name(x, HEADER_HEIGHT / 2, t, _short(t)) for t, x in zip(tokens, columns)],
        edges=sorted(_edges(explanation, rows, columns), key=lambda edge: edge.on_path),
        nodes=[
            _node(explanation, tokens[t], t, c, x, y)
            for t, x in enumerate(columns)
            for c, y in rows.items()
        ],
        steps=_steps(explanation, tokens),
        analyses=[
            [f"{analysis['probability']:.4f}", entities_in_words(analysis)]
            for analysis in explanation["analyses"]
        ],
    )


def _shown_tags(explanation: Dict[str, Any]) -> List[int]:
    """The tags that have a row: all, unless these are too many nodes to draw."""
    everything = list(range(len(explanation["tags"])))
    if len(everything) * len(explanation["tokens"]) <= MAX_NODES:
        return everything
    return sorted(set().union(*relevant_tags(explanation)))


def _columns(tokens: Sequence[str]) -> Tuple[List[float], float]:
    """The middle of the column of each token, and the width of all columns."""
    middles, x = [], 0.0
    for token in tokens:
        width = max(MIN_COLUMN_WIDTH, 16 + LETTER_WIDTH * len(_short(token)))
        middles.append(x + width / 2)
        x += width
    return middles, x


def _edges(
    explanation: Dict[str, Any], rows: Dict[int, float], columns: Sequence[float]
) -> List[Edge]:
    half = NODE_WIDTH / 2
    return [
        Edge(columns[t - 1] + half, rows[before], columns[t] - half, rows[c], path_tag == c)
        for t, (pointers, path_tag) in enumerate(
            zip(explanation["backpointers"], explanation["path"])
        )
        for c, before in enumerate(pointers)
        if before in rows and c in rows
    ]


def _node(explanation: Dict[str, Any], token: str, t: int, c: int, x: float, y: float) -> Node:
    tags, before = explanation["tags"], explanation["backpointers"][t][c]
    score, marginal = explanation["scores"][t][c], explanation["marginals"][t][c]
    about = f"{token}, {tags[c]}: no legal path"
    if score is not None:
        pointer = "" if before is None else f", backpointer {tags[before]}"
        emission = explanation["emissions"][t][c]
        about = (
            f"{token}, {tags[c]}: score {score:.3f}{pointer}, emission {emission:.3f}, "
            f"probability {marginal:.3f}"
        )
    return Node(x, y, score, marginal, explanation["path"][t] == c, about)


def _steps(explanation: Dict[str, Any], tokens: Sequence[str]) -> List[List[str]]:
    """The sums along the path: a row for each token, and one for the end."""
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


def _number(value: Optional[float]) -> str:
    return "none" if value is None else f"{value:.2f}"


def _short(name: str) -> str:
    return name if len(name) <= MAX_LETTERS else name[: MAX_LETTERS - 1] + "…"
