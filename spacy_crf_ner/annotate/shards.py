"""Cut a corpus into shards: consecutive records, annotated by one worker, written to one file."""

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Iterable, Iterator, List, Optional, Tuple

from .inputs import Source
from .readers import Item, read, schema_of
from .schema import infer_schema
from .settings import Settings

if TYPE_CHECKING:
    from pyarrow import Schema

# Characters; a shard ends with the document that exceeds it.
MAX_CHARACTERS = 2_000_000


@dataclass(frozen=True)
class Shard:
    """A part of a corpus. It is not a tuple, because Ray would store one as a list.

    name: Of its file, without the ending; sorted, names have the order of the input.
    items: The records, also those that could not be read.
    schema: Types of the columns of the input, for a format that has types.
    size: Bytes of the input that it takes.
    """

    name: str
    items: List[Item]
    schema: Optional["Schema"]
    size: int


def cut_shards(
    sources: Iterable[Source],
    settings: Settings,
    *,
    prefix: str = "part",
    schema: Optional["Schema"] = None,
) -> Iterator[Shard]:
    """Cut a corpus into shards, always at the same places for the same files and settings.

    A shard goes from file to file if they have the same columns: never with .parquet, .csv and
    .tsv, and never from one kind of file to another.

    prefix: How the names of the shards begin.
    schema: Types of the columns, if they are those of documents before these.
    """
    number = 0
    typed = settings.format == "parquet"
    for group in groups(sources):
        known = schema
        if typed and known is None:
            known = _with_id(schema_of(group[0]), settings.id_column)
        for items, size in _portions(group, settings):
            rows = [item.row for item in items if item.row is not None]
            if typed and known is None and rows:
                known = infer_schema(rows, settings.text_column)
            yield Shard(f"{prefix}-{number:06}", items, known, size)
            number += 1


def groups(sources: Iterable[Source]) -> Iterator[List[Source]]:
    """Divide files into those that have their columns in common."""
    alone = ("parquet", "csv", "tsv")
    keys = ((i if source.kind in alone else -1, source) for i, source in enumerate(sources))
    for _, group in groupby(keys, lambda each: (each[0], each[1].kind)):
        yield [source for _, source in group]


def _with_id(schema: Optional["Schema"], id_column: str) -> Optional["Schema"]:
    """Add the column of ids, if the input has none."""
    if schema is None or id_column in schema.names:
        return schema
    import pyarrow

    return schema.append(pyarrow.field(id_column, pyarrow.string()))


def _portions(group: List[Source], settings: Settings) -> Iterator[Tuple[List[Item], int]]:
    """Yield the items of each shard, and the bytes that they take in the files."""
    items: List[Item] = []
    size = characters = 0
    for source in group:
        before = 0
        for item in read(source, settings):
            items.append(item)
            size, before = size + item.position - before, item.position
            if item.row is not None:
                characters += len(item.row[settings.text_column])
            if len(items) >= settings.shard_size or characters >= MAX_CHARACTERS:
                yield items, size
                items, size, characters = [], 0, 0
    if items or size:
        yield items, size
