"""Tables of Parquet."""

from typing import TYPE_CHECKING, Iterator, List, Optional, Tuple

from ...data.json_records import shorten
from ..inputs import Source
from .item import Item, Place, Row

if TYPE_CHECKING:
    from pyarrow import RecordBatch, Schema
    from pyarrow.parquet import FileMetaData

# Of rows that are in memory together.
BATCH_ROWS = 1000
BATCH_BYTES = 16 * 2**20
# Bytes. With it, and only without pre_buffer, a group of rows is not in memory whole.
BUFFER = 2**20


def read_parquet(source: Source) -> Iterator[Item]:
    """Read the rows of a table; values become those of Python.

    Raises ValueError for a column that is there twice, and what pyarrow raises.
    """
    from pyarrow.parquet import ParquetFile

    number = 0
    with ParquetFile(source.path, pre_buffer=False, buffer_size=BUFFER) as file:
        names, rows = file.schema_arrow.names, file.metadata.num_rows
        if len({*names}) < len(names):
            raise ValueError(f"expected columns of different names, got {shorten(names)}")
        for batch in file.iter_batches(_batch_size(file.metadata)):
            for row, reason in _rows(batch):
                number += 1
                position = source.size * number // rows
                yield Item(Place(str(source.path), number), row, reason, position)


def read_schema(source: Source) -> Optional["Schema"]:
    """Read the columns of a table and their types; None where the file is damaged."""
    from pyarrow import ArrowException
    from pyarrow.parquet import ParquetFile

    try:
        with ParquetFile(source.path) as file:
            return file.schema_arrow
    except (OSError, ArrowException):
        return None


def _batch_size(metadata: "FileMetaData") -> int:
    """Choose how many rows are read at once: fewer of long documents."""
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    longest = max([group.total_byte_size // max(group.num_rows, 1) for group in groups], default=0)
    return max(1, min(BATCH_ROWS, BATCH_BYTES // max(longest, 1)))


def _rows(batch: "RecordBatch") -> List[Tuple[Optional[Row], str]]:
    """Make rows, and reasons of those with a value that Python has not, such as bad UTF-8."""
    try:
        return [(row, "") for row in batch.to_pylist()]
    except Exception as problem:  # of what type depends on that of the value
        if batch.num_rows == 1:
            return [(None, f"expected values that Python has, got {problem}")]
    return [row for i in range(batch.num_rows) for row in _rows(batch.slice(i, 1))]
