"""Files and records that no reader reads: what they are, and the nearest shape that one does."""

import re
from collections.abc import Iterable

from ..input_error import CorpusError
from .inline import MARKUP, is_link
from .json_records import Record, shorten
from .repair_log import error

RASA = re.compile(r"\s*(?:#{2}\s*(?:intent|regex|lookup|synonym)\b|nlu:|-\s*(?:intent|regex):)")
# A list, a heading, a quotation, a table, or a key of YAML.
MARKDOWN = re.compile(r"\s*(?:[-*+>|]\s|#{1,6}\s|[0-9]+[.)]\s|---|[\w-]+:\s*(?:[|>]-?)?$)")
LABEL = re.compile(r"\w[\w&+-]*(?:\.[\w&+-]+)*")  # also GPE.city; city:OSL is Rasa's
DIALOGUE = re.compile(r"\s*-\s+[^\Wa-z\d_].*[.!?…]\s*")
SPANS = '{"text": "Ann left.", "spans": [{"start": 0, "end": 3, "label": "PER"}]}'
# Keys of records, with the tool or the shape that has all of them, and what to do.
SHAPES: list[tuple[set[str], str]] = [
    ({"content", "annotation"}, "an export of Dataturks, whose ends are inclusive: add 1 to each"),
    ({"data", "annotations"}, "tasks of Label Studio: write them as one JSON array"),
    ({"data", "completions"}, "tasks of Label Studio: write them as one JSON array"),
    ({"text", "annotations"}, "doccano's, before version 1.0: export it with labels as texts"),
]
ROWS = "rows of tokens and tags: save them as Parquet, with Dataset.from_json(...).to_parquet(...)"


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


def unannotated(where: str, record: Record, keys: Iterable[str]) -> CorpusError:
    """Make the error for a record without the keys of entities: it names the nearest shape."""
    found = {key for key, value in record.items() if value is not None}
    named = [advice for shape, advice in SHAPES if shape <= found]
    if not named and isinstance(record.get("tokens"), list):
        named = (
            [ROWS] if any(isinstance(record.get(key), list) for key in found - {"tokens"}) else []
        )
    nested = [key for key in record if isinstance(record[key], (list, dict)) and key != "meta"]
    if named:
        fix = f"It looks like {named[0]}; or write {SPANS}"
    elif nested:
        fix = f"If its entities are in {nested[0]!r}, write them as in {SPANS}"
    else:
        fix = f"Annotate the text, as in {SPANS}, or leave the record out"
    got = f"only the keys {', '.join(map(shorten, sorted(record)))}"
    return error(where, f"annotation, one of the keys {', '.join(keys)}", got, fix)
