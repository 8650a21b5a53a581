"""A corpus in shards: consecutive records, annotated by one worker and written to one file."""

from itertools import chain
from typing import TYPE_CHECKING, Iterable, Iterator, List, NamedTuple, Optional, Tuple

from .inputs import Source
from .readers import Item, Row, read, schema_of
from .schema import infer_schema
from .settings import Settings

if TYPE_CHECKING:
    from pyarrow import Schema

# Characters; a shard ends with the document that exceeds it.
CHARACTERS = 2_000_000


class Shard(NamedTuple):
    """A part of a corpus.

    number: From 0, in the order of the input.
    items: The records, those that could not be read among them.
    schema: Types of the columns of the input, for a format that has types.
    size: Bytes of the input that it takes.
    """

    number: int
    items: List[Item]
    schema: Optional["Schema"]
    size: int

    @property
    def rows(self) -> List[Row]:
        """The records that could be read."""
        return [item.row for item in self.items if item.row is not None]


def cut_shards(sources: Iterable[Source], settings: Settings) -> Iterator[Shard]:
    """Cut a corpus into shards, always at the same places for the same files and settings.

    A shard goes from file to file where they have the same columns: never with .parquet, .csv and
    .tsv, and never from one kind of file to another.
    """
    number = 0
    typed = settings.format == "parquet"
    for group in _groups(sources):
        schema = _with_id(schema_of(group[0]), settings.id_column) if typed else None
        for items, size in _portions(group, settings):
            shard = Shard(number, items, schema, size)
            if typed and schema is None and shard.rows:
                schema = infer_schema(shard.rows, settings.text_column)
                shard = shard._replace(schema=schema)
            yield shard
            number += 1


def _with_id(schema: Optional["Schema"], id_column: str) -> Optional["Schema"]:
    """Add the column of ids, where the input has none."""
    if schema is None or id_column in schema.names:
        return schema
    import pyarrow

    return schema.append(pyarrow.field(id_column, pyarrow.string()))


def _groups(sources: Iterable[Source]) -> Iterator[List[Source]]:
    group: List[Source] = []
    for source in sources:
        alone = source.kind in ("parquet", "csv", "tsv")
        if group and (alone or source.kind != group[0].kind):
            yield group
            group = []
        group.append(source)
    if group:
        yield group


def _portions(group: List[Source], settings: Settings) -> Iterator[Tuple[List[Item], int]]:
    """Yield as many items as a shard has, and the bytes that they take in the files."""
    items: List[Item] = []
    size = characters = 0
    for item, read_since in chain.from_iterable(_sized(source, settings) for source in group):
        items.append(item)
        size += read_since
        if item.row is not None:
            characters += len(item.row[settings.text_column])
        if len(items) >= settings.shard_size or characters >= CHARACTERS:
            yield items, size
            items, size, characters = [], 0, 0
    if items or size:
        yield items, size


def _sized(source: Source, settings: Settings) -> Iterator[Tuple[Item, int]]:
    before = 0
    for item in read(
        source,
        text_column=settings.text_column,
        id_column=settings.id_column,
        whole_files=settings.whole_files,
    ):
        yield item, item.position - before
        before = item.position
