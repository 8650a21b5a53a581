"""Files and records that no reader reads: what they are, and the nearest shape that one does."""

import re
from collections.abc import Iterable

from .inline import MARKUP, is_link
from .json_records import shorten
from .repair_log import error

RASA = re.compile(r"\s*(?:#{2}\s*(?:intent|regex|lookup|synonym)\b|nlu:|-\s*(?:intent|regex):)")
# A list, a heading, a quotation, a table, or a key of YAML.
MARKDOWN = re.compile(r"\s*(?:[-*+>|]\s|#{1,6}\s|[0-9]+[.)]\s|---|[\w-]+:\s*(?:[|>]-?)?$)")
LABEL = re.compile(r"\w[\w&+-]*(?:\.[\w&+-]+)*")  # also GPE.city; city:OSL is Rasa's
DIALOGUE = re.compile(r"\s*-\s+[^\Wa-z\d_].*[.!?…]\s*")


def refuse_markdown(where: str, lines: Iterable[str]) -> None:
    """Raise CorpusError for Markdown and YAML, whose links and lists look like inline annotation.

    Inline annotation has labels that are words, and no line that begins as a list does, but for
    some with the dash of a dialogue.
    """
    lines = [*lines]
    is_rasa = any(map(RASA.match, lines))
    marked = [line for line in lines if MARKDOWN.match(line)]
    if all(map(DIALOGUE.fullmatch, marked)) and len(marked) <= len(lines) / 2:
        marked = []  # someone speaks, as in "- Bonjour, dit [Paul](PER)."
    labels = [match[2] for line in lines for match in MARKUP.finditer(line) if match[2]]
    others = [label for label in labels if not LABEL.fullmatch(label) or is_link(label)]
    if not is_rasa and not (labels and (marked or others)):
        return
    kind = "training data of Rasa" if is_rasa else "Markdown or YAML"
    if others and not is_rasa and not marked:
        kind = "web links" if any(map(is_link, others)) else "labels that are no words"
    got = f"{kind}, {shorten((marked or others or lines)[0])}"
    fix = (
        "Write one sentence per line, as [Oslo](city) is cold, without list marks, headings and "
        "links; --format inline reads all lines as they are"
    )
    raise error(where, "sentences with entities in brackets", got, fix)
