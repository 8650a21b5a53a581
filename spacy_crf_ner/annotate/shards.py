"""Shards: consecutive records of a corpus that one worker annotates and writes to one file."""

from collections.abc import Iterator
from itertools import count, groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from .inputs import Source
from .output_folder import ShardReport, write_report
from .readers import Item, read, schema_of
from .runner import annotate_texts
from .schema import infer_schema
from .settings import ENTITIES, Settings
from .storage import Location
from .worker import load
from .writers import WRITERS

if TYPE_CHECKING:
    from pyarrow import Schema

# Characters; a shard ends with the document that exceeds it.
SHARD_CHARACTERS = 2_000_000


class Shard(NamedTuple):
    """A part of a corpus.

    Attributes:
        name: The name of its file, without extension; sorted names are in the order of the input.
        items: The records, including those that could not be read.
        schema: Types of the input columns, for a format that has types.
        size: Bytes of the input.
    """

    name: str
    items: list[Item]
    schema: "Schema | None"
    size: int

    @property
    def blank(self) -> int:
        """The number of blank lines."""
        return sum(item.row is None and not item.reason for item in self.items)

    def errors(self, id_column: str) -> list[dict[str, Any]]:
        """Describe each record that is left out: file, line, id and reason."""
        return [_error_record(item, id_column) for item in self.items if item.reason]

    def report(self, id_column: str, words: int, entities: int = 0, empty: int = 0) -> ShardReport:
        """Return the counts of the shard; `empty` texts count as blank lines."""
        blank = self.blank + empty
        errors = self.errors(id_column)
        return ShardReport(
            self.name, len(self.items) - blank, blank, words, entities, self.size, errors
        )


def cut_shards(
    sources: list[Source], settings: Settings, added: str | None = None
) -> Iterator[Shard]:
    """Split a corpus into shards, which depend only on the files and settings.

    A shard may contain several files with the same columns, but never several kinds or groups of
    files, and never more than one .parquet, .csv or .tsv file.

    Args:
        added: A column that the records may not have, since the output has it.
    """
    names = (f"part-{number:06}" for number in count())
    typed = settings.format == "parquet"
    for group in _groups(sources):
        schema = _schema_with_id(group[0], settings.id_column) if typed else None
        for items, size in _portions(group, settings):
            for item in items:
                if item.row is not None and added in item.row:
                    item.reason = f"expected no column {added!r}, which is added: rename it"
                    item.id, item.row = item.row[settings.id_column], None
            rows = [item.row for item in items if item.row is not None]
            if typed and schema is None and rows:
                schema = infer_schema(rows, settings.text_column)
            yield Shard(next(names), items, schema, size)


def annotate_shard(
    shard: Shard, gpu_id: int, *, model: str, settings: Settings, output: Location
) -> ShardReport:
    """Annotate a shard; write the documents without errors, then the report.

    Raises:
        OSError: If a file cannot be written, and for other errors of the machine; also MemoryError,
            and errors of a GPU.
    """
    column, docs, schema = settings.text_column, settings.format == "spacy", shard.schema
    given = [(item, item.row) for item in shard.items if item.row is not None]
    nlp, texts = load(model, gpu_id, settings.dtype), [row[column] for _, row in given]
    found = annotate_texts(nlp, texts, settings.batch_size, settings.max_characters, docs)
    annotated, rows = [], []
    for (item, row), each in zip(given, found):
        if each.error is not None:
            item.reason = each.error
            continue
        annotated.append((item, each))
        rows.append({**row, column: each.text, ENTITIES: each.entities})
    if docs or not settings.keep_text:
        for row in rows:
            del row[column]
        if schema is not None and column in schema.names:
            schema = schema.remove(schema.get_field_index(column))
    contents = [each.doc for _, each in annotated if each.doc is not None]
    content, unwritten = WRITERS[settings.format](rows, contents, schema)
    for i, reason in unwritten.items():
        annotated[i][0].reason = reason
    (output / f"{shard.name}.{settings.format}").write([content])
    written = [each for item, each in annotated if not item.reason]
    words = sum(each.words for each in written)
    entities = sum(len(each.entities) for each in written)
    report = shard.report(settings.id_column, words, entities)
    write_report(output, report)
    return report


def _error_record(item: Item, id_column: str) -> dict[str, Any]:
    identity = item.id if item.row is None else item.row[id_column]
    return {"file": item.file, "line": item.line, "id": identity, "reason": item.reason}


def _groups(sources: list[Source]) -> Iterator[list[Source]]:
    """Group consecutive files of a group with the same columns."""
    alone = ("parquet", "csv", "tsv")
    keys = ((i if source.kind in alone else -1, source) for i, source in enumerate(sources))
    for _, group in groupby(keys, lambda each: (each[0], each[1].kind, each[1].group)):
        yield [source for _, source in group]


def _schema_with_id(source: Source, id_column: str) -> "Schema | None":
    """Read the types of a .parquet file, and add a missing id column; None for other files."""
    schema = schema_of(source)
    if schema is not None and ENTITIES in schema.names:  # all rows are refused
        schema = schema.remove(schema.get_field_index(ENTITIES))
    if schema is None or id_column in schema.names:
        return schema
    import pyarrow

    return schema.append(pyarrow.field(id_column, pyarrow.string()))


def _portions(group: list[Source], settings: Settings) -> Iterator[tuple[list[Item], int]]:
    """Yield the items of each shard, and their bytes in the files."""
    items: list[Item] = []
    size = characters = 0
    for source in group:
        before = 0
        for item in read(source, settings):
            items.append(item)
            size, before = size + item.position - before, item.position
            if item.row is not None:
                characters += len(item.row[settings.text_column])
            if len(items) >= settings.shard_size or characters >= SHARD_CHARACTERS:
                yield items, size
                items, size, characters = [], 0, 0
    if items:
        yield items, size
