"""Files and records that no reader reads: what they are, and the nearest shape that one does."""

import re
import shlex
from collections.abc import Iterable

from ..input_error import CorpusError, did_you_mean
from .inline import MARKUP, is_link
from .json_keys import ANNOTATION, OURS, TEXTS, WORDS
from .json_records import JsonObject, shorten
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


XML = re.compile(r"\s*<(?:\?xml|!DOCTYPE|html)", re.I)
# What the beginning of a file of XML has, with the name of its format, and a way through.
XML_FORMATS = {
    "xmi:XMI": ("UIMA XMI", "export WebAnno TSV 3, from INCEpTION or WebAnno"),
    "<GateDocument": ("GATE XML", "save it in GATE as inline XML, one sentence per line"),
    "BioC.dtd": ("BioC", "export PubTator, or offsets as JSON lines"),
}
TABLES = (".csv", ".tsv")
TEMPLATES = {
    "conll": ("Tim\tB-PER", "Cook\tI-PER", "left\tO"),
    "inline": ("[Tim Cook](PER) left.", "He saw [Hanoi](LOC).", "Nobody came."),
}


def refuse_xml(where: str, lines: list[str]) -> None:
    """Raise CorpusError for XML, which names its format, and another one to export."""
    head = "\n".join(lines[:50])[:10_000].lstrip()
    if not head.startswith("<"):
        return
    for mark, (name, way) in XML_FORMATS.items():
        if mark in head:
            raise error(where, "a format of `convert --help`", name, way[0].upper() + way[1:])
    if XML.match(head):
        fix = f"Export another format, or write {TEMPLATE}"
        raise error(where, "a format of `convert --help`", "XML", fix)


def unknown_format(where: str, lines: list[str]) -> CorpusError:
    """Make the error for a text file in none of the formats: it names the nearest one."""
    if not lines:
        return error(where, "a corpus", "no text", "See convert --help for examples")
    separator = max("\t", ";", ",", key=lambda each: sum(each in line for line in lines))
    rows = [line.split(separator) for line in lines]
    is_table = len(rows[0]) > 1 and len({*map(len, rows)}) == 1
    is_named_so = where.lower().endswith(TABLES) and len(rows[0]) > 1
    if is_named_so or (is_table and separator != "\t"):
        return unknown_table(where, [cell.strip('"') for cell in rows[0]])
    if is_table or len({len(line.split()) for line in lines}) == 1 < len(lines[0].split()):
        format, why = "conll", f"no column of tags, as O and B-PER: {lines[0][:60]!r}"
    else:
        format, why = "inline", f"no entity in brackets, {lines[0][:60]!r}"
    chosen = "" if format == "inline" else "choose the column of tags, as in --tag-column 2, or "
    fix = (
        "\n  ".join(["Annotate it as in", *TEMPLATES[format]]) + f"\nor {chosen}see convert --help"
    )
    return error(where, f"annotation (the nearest format is {format})", why, fix)


TEXT_ROWS = ("text,entities", '"Tim Cook left.","[[0, 8, ""PERSON""]]"')
TOKEN_ROWS = ("sentence,word,tag", "1,Tim,B-PERSON", "1,left,O")


def unknown_table(where: str, header: list[str]) -> CorpusError:
    """Make the error for a table without entities or tags: it names its columns."""
    fix = "\n".join(
        (
            "Write the entities of a text in one cell, as in",
            *(f"  {row}" for row in TEXT_ROWS),
            "where --text-column and --spans-column name other columns; or a token in each row:",
            *(f"  {row}" for row in TOKEN_ROWS),
            "where --token-column and --tag-column do; or see convert --help",
        )
    )
    got = f"the columns {', '.join(map(shorten, header))}"
    return error(where, "a column of entities or tags (the nearest format is table)", got, fix)


TEMPLATE = '{"text": "Ann left.", "spans": [{"start": 0, "end": 3, "label": "PER"}]}'
ROWS = '{"tokens": ["Ann", "left"], "ner_tags": ["B-PER", "O"]}'
PAIR = '["Ann left.", {"entities": [[0, 3, "PER"]]}]'


def check_annotated(where: str, record: JsonObject) -> None:
    """Check that a record without entities says that it was annotated, as by an answer."""
    if not record.keys().isdisjoint(OURS) and record.get("answer") != "ignore":
        fix = "Annotate the text, or leave the record out"
        expected = f"annotation, one of the keys {', '.join(ANNOTATION)}"
        raise error(where, expected, "null as the spans", fix)
    if all(record.get(key) is None for key in ANNOTATION):
        raise unannotated(where, record)


def unannotated(where: str, record: JsonObject, chosen: str = "") -> CorpusError:
    """Make the error for a record without entities, a text, or the chosen key: what is nearest."""
    given = {key: value for key, value in record.items() if value is not None and key != "meta"}
    words = next((key for key in WORDS if isinstance(given.get(key), list)), None)
    text = next((key for key in TEXTS if isinstance(given.get(key), str)), None)
    nested = [key for key in given if isinstance(given[key], (list, dict)) and key != words]
    strings = [key for key in given if isinstance(given[key], str) and key != "id"]
    nearest, option = "JSON lines of a text and spans", "--spans-column"
    lacks, others = f"no entities beside {text!r}", nested
    if words and not text:
        nearest, option = "rows of tokens and tags", "--tag-column"
        lists = {key: len(given[key]) for key in nested if isinstance(given[key], list)}
        lacks = f"{len(given[words])} {words}, and lists of {lists or 'nothing else'}"
    elif not text:
        lacks, option, others = "no text", "--text-column", strings
    fix = "Annotate the text, or leave the record out"
    if key := next(filter(str.isprintable, others), None):
        fix = f"If {shorten(key)} has what is missing, use {option} {shlex.quote(key)}"
    templates = "\n  ".join((TEMPLATE, ROWS, PAIR))
    if chosen not in ("", *given):
        lacks = f"no {shorten(chosen)}"
    got = f"{lacks} (the keys {', '.join(map(shorten, sorted(record)))})"
    hint = did_you_mean(chosen, filter(str.isprintable, given))
    return error(where, nearest, got, f"{fix}. These would be read:\n  {templates}", hint)
