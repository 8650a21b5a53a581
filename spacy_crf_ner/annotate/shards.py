"""Shards: consecutive records of a corpus that one worker annotates and writes to one file."""

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from spacy.language import Language

from ..pipeline import load as loading
from ..pipeline.lookup import model_layers
from .files import Source
from .readers import Item, Row, read, schema_of
from .runner import AnnotatedText, annotate_texts
from .settings import ENTITIES, Settings
from .writers import WRITERS, infer_schema

if TYPE_CHECKING:
    from pyarrow import Schema

load = lru_cache(maxsize=1)(loading.load)  # once per process

# Characters; a shard ends with the document that exceeds it.
SHARD_CHARACTERS = 2_000_000
ALONE = ("parquet", "csv", "tsv")  # kinds of files that are not in a shard with others


class ShardReport(NamedTuple):
    """The counts of a shard."""

    name: str
    documents: int  # read, including those in `errors`
    blank: int  # lines, in formats in which a line is a record
    words: int
    entities: int
    size: int  # bytes of the input
    errors: list[dict[str, Any]]  # file, line, id and reason of each document that is left out


class Shard(NamedTuple):
    """A part of a corpus: records, including those that could not be read."""

    items: list[Item]
    schema: "Schema | None"  # of the input columns, for a format that has types
    size: int  # bytes of the input
    name: str = ""  # of its file, without extension; sorted names are in the order of the input

    @property
    def rows(self) -> list[tuple[Item, Row]]:
        """The items without an error, each with its record."""
        return [(item, item.row) for item in self.items if item.row is not None and not item.reason]

    def report(self, words: int = 0, entities: int = 0) -> ShardReport:
        """Count the records, and describe each that is left out."""
        blank = sum(item.row is None and not item.reason for item in self.items)
        errors = [
            {"file": item.file, "line": item.line, "id": item.id, "reason": item.reason}
            for item in self.items
            if item.reason
        ]
        documents = len(self.items) - blank
        return ShardReport(self.name, documents, blank, words, entities, self.size, errors)


def cut_shards(
    sources: list[Source],
    settings: Settings,
    reader: Callable[[Source, Settings], Iterator[Item]] = read,
) -> Iterator[Shard]:
    """Split a corpus into shards, which depend only on the files and settings.

    A shard may contain several files with the same columns, but never several kinds of files, and
    never more than one .parquet, .csv or .tsv file.
    """
    typed = settings.format == "parquet"
    keys = ((i if source.kind in ALONE else -1, source) for i, source in enumerate(sources))
    for _, group in groupby(keys, lambda each: (each[0], each[1].kind)):
        files = [source for _, source in group]
        schema = schema_of(files[0], settings.id_column) if typed else None
        for items, size in portions((reader(source, settings) for source in files), settings):
            rows = [item.row for item in items if item.row is not None]
            if typed and schema is None and rows:
                schema = infer_schema(rows, settings.text_column)
            yield Shard(items, schema, size)


def load_model(dtype: str | None, gpu_id: int, *, model: str) -> str | None:
    """Load a pipeline in a worker; return the dtype, with "auto" resolved."""
    return resolved_dtype(load(model, gpu_id, dtype)) or dtype


def resolved_dtype(nlp: Language) -> str | None:
    """Return what "auto" is for a pipeline, or for its transformer; None without "auto"."""
    nodes = (node for _, pipe in nlp.pipeline for node in model_layers(pipe))
    shims: Iterator[Any] = (shim for node in nodes for shim in node.shims)
    auto = [shim for shim in shims if getattr(shim, "dtype", None) == "auto"]
    largest = max(auto, key=lambda shim: bool(shim.is_large), default=None)
    return None if largest is None else largest.resolved_dtype


def annotate_rows(
    nlp: Language,
    shard: Shard,
    settings: Settings,
    docs: bool = False,
    component: str | None = None,
) -> list[tuple[Item, Row, AnnotatedText]]:
    """Add the entities to the records of a shard, as in the output; see `annotate_texts`.

    Items that cannot be annotated get a reason, and are left out.
    """
    column = settings.text_column
    for item, row in shard.rows:
        if ENTITIES in row:
            item.reason = f"expected no column {ENTITIES!r}, which is added: rename it"
    records = shard.rows
    found = annotate_texts(nlp, [row[column] for _, row in records], settings, docs, component)
    for (item, _), each in zip(records, found):
        item.reason = each.error or ""
    return [
        (item, {**row, column: each.text, ENTITIES: each.entities}, each)
        for (item, row), each in zip(records, found)
        if not item.reason
    ]


def annotate_shard(
    shard: Shard, gpu_id: int, settings: Settings, *, model: str
) -> tuple[bytes, ShardReport]:
    """Annotate a shard; return the content of its file, with the documents without errors."""
    column, docs, schema = settings.text_column, settings.format == "spacy", shard.schema
    annotated = annotate_rows(load(model, gpu_id, settings.dtype), shard, settings, docs)
    rows = [row for _, row, _ in annotated]
    if docs or not settings.keep_text:
        for row in rows:
            del row[column]
        if schema is not None and column in schema.names:
            schema = schema.remove(schema.get_field_index(column))
    contents = [each.doc for _, _, each in annotated if each.doc is not None]
    content, unwritten = WRITERS[settings.format](rows, contents, schema)
    for i, reason in unwritten.items():
        annotated[i][0].reason = reason
    written = [each for item, _, each in annotated if not item.reason]
    words = sum(each.words for each in written)
    entities = sum(len(each.entities) for each in written)
    return content, shard.report(words, entities)


def portions(
    files: Iterable[Iterable[Item]], settings: Settings
) -> Iterator[tuple[list[Item], int]]:
    """Yield the items of each shard, and their bytes in the files."""
    items: list[Item] = []
    size = characters = 0
    for file in files:
        before = 0
        for item in file:
            items.append(item)
            size, before = size + item.position - before, item.position
            if item.row is not None:
                characters += len(item.row[settings.text_column])
            if len(items) >= settings.shard_size or characters >= SHARD_CHARACTERS:
                yield items, size
                items, size, characters = [], 0, 0
    if items:
        yield items, size
