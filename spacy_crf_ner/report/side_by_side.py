"""Pages of annotated documents: HTML strings in which text and labels are data, never markup."""

from html import escape
from typing import Any, Dict, Iterable, List, Set, Tuple

from spacy import displacy
from spacy.tokens import Doc
from spacy.training import Example

# Readable behind dark text; displaCy's own colours are for its own labels only.
PALETTE = (
    "#aa9cfc", "#7aecec", "#feca74", "#bfe1d9", "#bfeeb7", "#ffeb80",
    "#ff9561", "#f0a3c4", "#9cc9cc", "#d9c7a3", "#a8d08d", "#8fb8ff",
)  # fmt: skip

PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 80rem; margin: 0 auto; padding: 1rem;
  overflow-wrap: anywhere; }}
h1 {{ font-size: 1.5rem; }}
h2 {{ font-size: .8rem; margin: 0; opacity: .7; text-transform: uppercase; }}
article {{ display: grid; grid-template-columns: 1fr 1fr; gap: 0 2rem; padding: .75rem;
  border-top: 1px solid #8886; border-left: .25rem solid transparent; }}
article.differs {{ border-left-color: #d9534f; }}
article > div {{ min-width: 0; }}
mark {{ color: #111; padding: .15em .35em; border-radius: .3em;
  box-decoration-break: clone; -webkit-box-decoration-break: clone; }}
mark span {{ font-size: .7em; font-weight: bold; margin-left: .5em; }}
body:has(#only:checked) article:not(.differs) {{ display: none; }}
@media (max-width: 40rem) {{ article {{ grid-template-columns: 1fr; }} }}
@media print {{ label {{ display: none; }} article {{ break-inside: avoid; }} }}
</style>
</head>
<body>
<h1>{title}</h1>
<p>{summary}</p>
<p><label><input type="checkbox" id="only">
Only documents where gold and predicted differ</label></p>
{articles}
</body>
</html>
"""

# displaCy's own has spaces around the text, which part an entity from its full stop.
ENTITY = '<mark style="background:{bg}">{text}<span>{label}</span></mark>'

ARTICLE = """<article{kind}>
<div><h2>Gold</h2>{gold}</div>
<div><h2>Predicted</h2>{predicted}</div>
</article>"""


def comparison_page(examples: Iterable[Example], title: str) -> str:
    """Draw the gold entities of each document beside the predicted ones.

    examples: Documents whose `predicted` a pipeline has annotated.
    title: Heading of the page.

    Returns one self-contained HTML page.
    """
    examples = list(examples)
    labels = {ent.label_ for eg in examples for doc in (eg.x, eg.y) for ent in doc.ents}
    colors = {label: PALETTE[i % len(PALETTE)] for i, label in enumerate(sorted(labels))}
    articles = []
    n_gold = n_predicted = n_equal = 0
    for eg in examples:
        gold, predicted = _offsets(eg.reference), _offsets(eg.predicted)
        n_gold += len(gold)
        n_predicted += len(predicted)
        n_equal += len(gold & predicted)
        articles.append(
            ARTICLE.format(
                kind="" if gold == predicted else ' class="differs"',
                gold=_entities(eg.reference, colors),
                predicted=_entities(eg.predicted, colors),
            )
        )
    summary = (
        f"{len(examples)} documents. {n_gold} gold entities, {n_predicted} predicted, "
        f"{n_equal} of them equal in boundaries and label. "
        "A red edge marks the documents where they differ."
    )
    return PAGE.format(title=escape(title), summary=summary, articles="\n".join(articles))


def _offsets(doc: Doc) -> Set[Tuple[int, int, str]]:
    return {(ent.start_char, ent.end_char, ent.label_) for ent in doc.ents}


def _entities(doc: Doc, colors: Dict[str, str]) -> str:
    """Draw a document by displaCy, which escapes the text but not the labels."""
    ents: List[Dict[str, Any]] = [
        {
            "start": ent.start_char,
            "end": ent.end_char,
            "label": escape(ent.label_),
            "params": {"bg": colors[ent.label_]},
        }
        for ent in doc.ents
    ]
    return displacy.render(
        {"text": doc.text, "ents": ents},
        style="ent",
        manual=True,
        jupyter=False,
        options={"template": ENTITY},
    )
