"""The trellis of a text as a page: an SVG in which text and labels are data, never markup."""

from html import escape
from typing import Any, Dict, Iterable, List, Optional, Set, Tuple

from .trellis import relevant_tags, visible

# Sizes in pixels: of a node, of the room of a tag (a row), and of the least room of a token.
NODE, ROW, COLUMN = (48, 22), 40, 100
HEAD, LETTER = 34, 7.5  # of the line of tokens, and of a letter of their names
MAX_NODES = 2000  # of a larger trellis, only the rows of tags that matter are drawn
MAX_LETTERS = 24  # of a name; the tooltip has it whole

PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Trellis of a text</title>
<style>
:root {{ color-scheme: light dark; --page: #fff; --text: #1a1a1a; --shade: #79aaf5;
  --edge: #8a8f98; --path: #c0392b; }}
@media (prefers-color-scheme: dark) {{ :root {{ --page: #16181c; --text: #eee; --shade: #2f66b8;
  --edge: #737983; --path: #ff8a73; }} }}
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 80rem; margin: 0 auto; padding: 1rem;
  background: var(--page); color: var(--text); overflow-wrap: anywhere; }}
h1 {{ font-size: 1.5rem; }}
h2 {{ font-size: 1.1rem; margin-top: 2rem; }}
blockquote {{ margin: 1rem 0; padding-left: 1rem; border-left: .25rem solid var(--edge);
  white-space: pre-wrap; }}
.scroll {{ overflow-x: auto; }}
.trellis {{ display: flex; width: max-content; }}
.names {{ position: sticky; left: 0; background: var(--page); flex: none; }}
svg {{ display: block; flex: none; font: 12px system-ui, sans-serif; }}
svg text {{ fill: var(--text); }}
.token {{ text-anchor: middle; font-weight: bold; }}
.tag {{ text-anchor: end; }}
.score {{ text-anchor: middle; font-size: 11px; font-variant-numeric: tabular-nums; }}
.node {{ stroke: var(--edge); fill: var(--shade); }}
.none {{ stroke: var(--edge); stroke-dasharray: 2 3; fill: none; opacity: .8; }}
.edge {{ stroke: var(--edge); stroke-width: 1; opacity: .7; }}
.path.edge {{ stroke: var(--path); stroke-width: 3.5; opacity: 1; }}
.path.node {{ stroke: var(--path); stroke-width: 2.5; }}
.ground {{ fill: var(--page); }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; }}
th, td {{ padding: .2rem .8rem .2rem 0; text-align: left; vertical-align: top;
  border-top: 1px solid #8886; }}
.number {{ text-align: right; }}
@media print {{ .scroll {{ overflow: visible; }} }}
</style>
</head>
<body>
<h1>How the entities were found</h1>
<blockquote>{text}</blockquote>
<p>{summary}</p>
{search}
</body>
</html>
"""

SEARCH = """{trellis}
<p>A node is a tag at a token. The number in it is the score of the best legal path that ends
there; the line to its left is its backpointer, to the tag before on that path. The shade is the
tag's posterior probability, over all paths. The thick line is the best path of the text; what no
legal path reaches is dashed. {left_out}</p>
<h2>The path, step by step</h2>
<p>The score at a token is that of the tag before, plus the score of the transition from it, plus
the emission of the tag at this token.</p>
<div class="scroll" tabindex="0" role="region" aria-label="The path, step by step">
<table><thead>{steps_head}</thead><tbody>
{steps}
</tbody></table></div>
<h2>The most probable analyses</h2>
<div class="scroll" tabindex="0" role="region" aria-label="The most probable analyses">
<table><thead>{analyses_head}</thead><tbody>
{analyses}
</tbody></table></div>"""


def trellis_page(explanation: Dict[str, Any]) -> str:
    """Draw the trellis of a text, the path through it, and the best analyses.

    explanation: As `explain` returns it.

    Returns one self-contained HTML page.
    """
    return PAGE.format(
        text=escape(explanation["text"]),
        summary=escape(_summary(explanation)),
        search=_search(explanation) if explanation["tokens"] else "",
    )


def _search(explanation: Dict[str, Any]) -> str:
    shown = _shown_tags(explanation)
    left_out = len(explanation["tags"]) - len(shown)
    steps = ["Token", "Tag", "Before", "Transition", "Emission", "Score", "Probability"]
    return SEARCH.format(
        trellis=_trellis(explanation, shown),
        left_out=f"{left_out} of {len(explanation['tags'])} tags are left out, as none of them "
        "has a probability of 0.01 at any token." if left_out else "",
        steps_head=_row(steps, "th", numbers=range(2, 7)),
        steps="\n".join(_row(cells, "td", numbers=range(2, 7)) for cells in _steps(explanation)),
        analyses_head=_row(["Probability", "Entities"], "th", numbers=[0]),
        analyses="\n".join(
            _row([f"{analysis['probability']:.4f}", _entities(analysis)], "td", numbers=[0])
            for analysis in explanation["analyses"]
        ),
    )  # fmt: skip


def _summary(explanation: Dict[str, Any]) -> str:
    tokens, tags = len(explanation["tokens"]), len(explanation["tags"])
    if not tokens:
        return "The text has no token, so there is nothing to search."
    return (
        f"{tokens} tokens, {tags} tags. The component {explanation['component']!r} found the path "
        f"of the highest score, {explanation['score']:.2f}, among all legal sequences of tags."
    )


def _shown_tags(explanation: Dict[str, Any]) -> List[int]:
    """The tags that have a row: all, unless these are too many nodes to draw."""
    everything = list(range(len(explanation["tags"])))
    if len(everything) * len(explanation["tokens"]) <= MAX_NODES:
        return everything
    return sorted(set().union(*map(set, relevant_tags(explanation))))


# The drawing


def _trellis(explanation: Dict[str, Any], shown: List[int]) -> str:
    rows = {c: HEAD + (i + 0.5) * ROW for i, c in enumerate(shown)}
    words = [visible(token) for token in explanation["tokens"]]
    columns, width = _columns(words)
    height = HEAD + ROW * len(rows)
    parts = [*_edges(explanation, rows, columns), *_nodes(explanation, rows, columns)]
    parts += [
        f'<text class="token" x="{x:g}" y="{HEAD / 2:g}">{_title(word)}{escape(_short(word))}'
        "</text>"
        for word, x in zip(words, columns)
    ]
    return (
        '<div class="scroll" tabindex="0" role="region" aria-label="Trellis"><div class="trellis">'
        f"{_names(explanation['tags'], rows, height)}\n"
        f'<svg width="{width:g}" height="{height:g}" role="img" aria-label="Tokens from left to '
        'right, tags from top to bottom; the table below has the path in words">\n'
        + "\n".join(parts)
        + "\n</svg></div></div>"
    )


def _names(tags: List[str], rows: Dict[int, float], height: float) -> str:
    """The names of the tags, which stay where they are when the rest is scrolled."""
    width = 16 + LETTER * max(len(_short(tags[c])) for c in rows)
    texts = (
        f'<text class="tag" x="{width - 8:g}" y="{y + 4:g}">{_title(tags[c])}'
        f"{escape(_short(tags[c]))}</text>"
        for c, y in rows.items()
    )
    return (
        f'<svg class="names" width="{width:g}" height="{height:g}" aria-hidden="true">\n'
        + "\n".join(texts)
        + "\n</svg>"
    )


def _columns(words: List[str]) -> Tuple[List[float], float]:
    """The middle of the column of each word, and the width of all."""
    middles, x = [], 0.0
    for word in words:
        width = max(COLUMN, 16 + LETTER * len(_short(word)))
        middles.append(x + width / 2)
        x += width
    return middles, x


def _edges(
    explanation: Dict[str, Any], rows: Dict[int, float], columns: List[float]
) -> Iterable[str]:
    """Back-pointers, those of the path last, over the others."""
    path = explanation["path"]
    others: List[str] = []
    along: List[str] = []
    for t, pointers in enumerate(explanation["backpointers"]):
        for c, before in enumerate(pointers):
            if before is None or c not in rows or before not in rows:
                continue
            on_path = path[t] == c  # its back-pointer is on the path too
            line = (
                f'<line class="{"path edge" if on_path else "edge"}" '
                f'x1="{columns[t - 1] + NODE[0] / 2:g}" y1="{rows[before]:g}" '
                f'x2="{columns[t] - NODE[0] / 2:g}" y2="{rows[c]:g}"/>'
            )
            (along if on_path else others).append(line)
    return [*others, *along]


def _nodes(
    explanation: Dict[str, Any], rows: Dict[int, float], columns: List[float]
) -> Iterable[str]:
    for t, x in enumerate(columns):
        for c, y in rows.items():
            yield _node(explanation, t, c, x, y)


def _node(explanation: Dict[str, Any], t: int, c: int, x: float, y: float) -> str:
    score, p = explanation["scores"][t][c], explanation["marginals"][t][c]
    what = f"{visible(explanation['tokens'][t])}, {explanation['tags'][c]}"
    if score is None:
        return (
            f'<g>{_title(f"{what}: no legal path")}<circle class="none" cx="{x:g}" cy="{y:g}" '
            'r="5"/></g>'
        )
    before = explanation["backpointers"][t][c]
    came = "" if before is None else f", backpointer {explanation['tags'][before]}"
    told = f"{what}: score {score:.3f}{came}, emission {explanation['emissions'][t][c]:.3f}, "
    box = f'x="{x - NODE[0] / 2:g}" y="{y - NODE[1] / 2:g}" width="{NODE[0]}" height="{NODE[1]}"'
    kind = "path node" if explanation["path"][t] == c else "node"
    return (
        f"<g>{_title(f'{told}probability {p:.3f}')}"
        f'<rect class="ground" {box} rx="6"/>'
        f'<rect class="{kind}" {box} rx="6" fill-opacity="{p:.3f}"/>'
        f'<text class="score" x="{x:g}" y="{y + 4:g}">{score:.1f}</text></g>'
    )


def _short(name: str) -> str:
    return name if len(name) <= MAX_LETTERS else name[: MAX_LETTERS - 1] + "…"


def _title(text: str) -> str:
    return f"<title>{escape(text)}</title>"


# The tables


def _steps(explanation: Dict[str, Any]) -> Iterable[List[str]]:
    """The sums along the path: a row a token, and one for the end."""
    path, tags = explanation["path"], explanation["tags"]
    before: Optional[int] = None
    for t, c in enumerate(path):
        moved = explanation["start"][c] if before is None else explanation["transitions"][before][c]
        last = 0.0 if before is None else explanation["scores"][t - 1][before]
        numbers = last, moved, explanation["emissions"][t][c], explanation["scores"][t][c]
        p = explanation["marginals"][t][c]
        yield [visible(explanation["tokens"][t]), tags[c], *map(_number, numbers), f"{p:.3f}"]
        before = c
    if before is not None:
        last, moved = explanation["scores"][-1][before], explanation["end"][before]
        yield ["", "end", _number(last), _number(moved), "", _number(explanation["score"]), ""]


def _number(value: Optional[float]) -> str:
    return "none" if value is None else f"{value:.2f}"


def _entities(analysis: Dict[str, Any]) -> str:
    return ", ".join(f"{e['text']} ({e['label']})" for e in analysis["entities"]) or "none"


def _row(cells: Iterable[str], element: str, numbers: Iterable[int]) -> str:
    right: Set[int] = set(numbers)
    scope = ' scope="col"' if element == "th" else ""
    found = (
        f"<{element}{scope}{' class=number' if i in right else ''}>{escape(cell)}</{element}>"
        for i, cell in enumerate(cells)
    )
    return f"<tr>{''.join(found)}</tr>"
