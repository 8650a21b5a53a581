"""Read datasets of Hugging Face: rows with lists of tokens and of tags, in Arrow or Parquet."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from spacy.language import Language
from spacy.tokens import Doc

from ..docbin import DOCUMENT, DOCUMENTS
from ..extras import required
from ..input_error import InputError, did_you_mean
from . import json_keys as usual
from .docs import make_docs
from .json_annotation import NOT_ANNOTATED
from .json_reader import read_values
from .json_records import shorten
from .record import Record
from .repair_log import ConversionLog, error
from .table import decoded

if TYPE_CHECKING:
    from pyarrow import RecordBatch, Schema

# The first bytes of files; Arrow has a format for streams, and one for files (Feather).
PARQUET, STREAM, ARROW = b"PAR1", b"\xff\xff\xff\xff", b"ARROW1"
STATE = "state.json"  # of a folder that Dataset.save_to_disk has written
TOKENS, TAGS = usual.WORDS[0], usual.TAGS[0]  # the columns of `write_parquet`
SPACES = "spaces"  # a column of `write_parquet`: whether a space follows each token
ANSWERS = ("_view_id", "_is_binary", "answer")  # of Prodigy, about the spans of a text
STRINGS, LISTS = ("string", "large_string"), ("list<", "large_list<")  # types of columns
BATCH_ROWS = 1000
BUFFER = 2**20  # bytes


def is_hugging_face(path: Path) -> bool:
    """Return whether a path is a folder of `Dataset.save_to_disk`, or an Arrow or Parquet file."""
    if path.is_dir():
        return (path / STATE).is_file()
    return _head(path).startswith((PARQUET, STREAM, ARROW))


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(len(ARROW))


def read_hugging_face(
    path: Path,
    nlp: Language,
    log: ConversionLog | None = None,
    *,
    token_column: str | None = None,
    tag_column: str | None = None,
    text_column: str | None = None,
    spans_column: str | None = None,
) -> Iterator[Doc]:
    """Read the rows of a dataset, each as a sentence or, with spans instead of tags, as a text.

    Args:
        path: A folder of `Dataset.save_to_disk`, or a file of Parquet or of one of Arrow's formats.
            A few rows are in memory at a time. The columns have the usual names, see `json_keys`.
            Tags are ids, whose names are in the metadata of the schema (`ClassLabel`), or strings.
            A tag that is null, -1 or -100 is not annotated. The column "spaces" of `write_parquet`
            is read too; without it, whitespace at the ends of tokens is removed. So is a column of
            `docbin.DOCUMENTS`.
        token_column: Name of the column of the tokens, and so for the others.

    Yields:
        A Doc for each row that has tokens, or a text; the others are skipped and counted.
    """
    with required("datasets"):
        import pyarrow.parquet  # noqa: F401
    files = _files(path)
    keys = usual.Keys(text_column, spans_column, token_column, tag_column)
    found = {_columns(file, keys) for file in files}
    if len({columns.names for columns in found}) > 1:
        got = " and ".join(shorten([*(columns.names or ())]) for columns in found)
        raise error(str(path), "the same names of tags in all files", got, "Save it again")
    return make_docs(path, nlp, log, partial(_records, files, next(iter(found))))


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    state = path / STATE
    try:
        return [path / each["filename"] for each in json.loads(state.read_bytes())["_data_files"]]
    except (ValueError, KeyError, TypeError) as problem:
        got = f"{type(problem).__name__}: {problem}"
        raise error(str(state), "a file of save_to_disk", got, "Save the dataset again") from None


@contextmanager
def _opened(file: Path) -> Iterator[Any]:
    """Open a file: yield its reader, of Parquet or Arrow. An error of its data has its name."""
    import pyarrow
    from pyarrow.parquet import ParquetFile

    try:
        head = _head(file)
        if head.startswith(PARQUET):
            # Only with a buffer and without pre_buffer are row groups not completely in memory.
            with ParquetFile(file, pre_buffer=False, buffer_size=BUFFER) as table:
                yield table
        else:
            read = pyarrow.ipc.open_file if head == ARROW else pyarrow.ipc.open_stream
            with pyarrow.memory_map(str(file)) as mapped, read(mapped) as table:
                yield table
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as problem:  # of a name
        if isinstance(problem, OSError) and problem.errno is not None:
            raise  # an error of the machine
        fix = "Download it again, or save it again with the library datasets"
        raise error(str(file), "a complete file of Arrow or Parquet", str(problem), fix) from None


class Columns(NamedTuple):
    """The columns of a file that are read; `names` are those of the ids in the second one."""

    words: str
    tags: str
    names: tuple[str, ...] | None
    others: tuple[str, ...]


def _columns(file: Path, keys: usual.Keys) -> Columns:
    from pyarrow import types

    with _opened(file) as opened:
        schema: Schema = getattr(opened, "schema_arrow", None) or opened.schema
        kinds = {each.name: each.type for each in schema if schema.names.count(each.name) == 1}
    # The types of the items of lists.
    items = {k: each.value_type for k, each in kinds.items() if str(each).startswith(LISTS)}
    words = keys.words or usual.first_key(items, usual.WORDS)
    tags = keys.tags or usual.first_key(items, usual.TAGS)
    if keys.text or keys.spans or not (words and tags):
        words = keys.text or keys.words or usual.first_key(kinds, usual.TEXTS) or TOKENS
        tags = (
            keys.spans or keys.tags or usual.first_key(kinds, (*usual.OURS, *usual.SPANS)) or TAGS
        )
    for option, name in (("token", words), ("tag", tags)):
        if name not in kinds:
            fix = f"Set --{option}-column to the name of a column"
            hint = did_you_mean(name, schema.names)
            raise error(str(file), f"a column {name!r}", shorten(schema.names), fix, hint)
    if words == tags:
        fix = "Choose two columns"
        raise error(str(file), "a column of tokens and one of tags", shorten((words, tags)), fix)
    is_tags = tags in items and (str(items[tags]) in STRINGS or not types.is_nested(items[tags]))
    if is_tags and not (words in items and str(items[words]) in STRINGS):
        fix = "Set --token-column to a column of lists"
        raise error(f"{file}, column {words!r}", "lists of strings", str(kinds[words]), fix)
    if is_tags and not (str(items[tags]) in STRINGS or types.is_integer(items[tags])):
        expected, got = "lists of strings or of ids", str(kinds[tags])
        raise error(f"{file}, column {tags!r}", expected, got, "Choose another column")
    names = None
    if is_tags and types.is_integer(items[tags]):
        names = _class_names(schema, tags)
        if names is None:
            fix = "Name the ids: cast_column with Sequence(ClassLabel(names=[...])), and save it"
            got = "none in the metadata"
            raise error(f"{file}, column {tags!r}", "the names of the tag ids", got, fix)
    others = [name for name in DOCUMENTS if name in kinds.keys() - {words, tags}]
    documents = [
        each for each in others if str(kinds[each]) in STRINGS or types.is_integer(kinds[each])
    ]
    answers = [name for name in ANSWERS if name in kinds and ANSWERS[0] in kinds and not is_tags]
    has_spaces = SPACES in items and types.is_boolean(items[SPACES])
    return Columns(words, tags, names, (*documents[:1], *[SPACES] * has_spaces, *answers))


def _class_names(schema: "Schema", column: str) -> tuple[str, ...] | None:
    """Read the names of a ClassLabel from what the library datasets has put into the metadata."""
    try:
        feature = json.loads(schema.metadata[b"huggingface"])["info"]["features"][column]
        while "names" not in feature:  # a list of them: Sequence, List, LargeList, or [...]
            feature = feature[0] if isinstance(feature, list) else feature["feature"]
        return tuple(str(name) for name in feature["names"])
    except (ValueError, KeyError, IndexError, TypeError):
        return None


def _batches(table: Any, columns: list[str]) -> Iterator["RecordBatch"]:
    """Read some columns, a few rows at a time, and check that strings are UTF-8."""
    if hasattr(table, "iter_batches"):
        batches = table.iter_batches(BATCH_ROWS, columns=columns)
    else:
        stored = table
        if hasattr(table, "num_record_batches"):  # a file, which has no iterator
            stored = map(table.get_batch, range(table.num_record_batches))
        batches = (
            batch.slice(start, BATCH_ROWS).select(columns)
            for batch in stored
            for start in range(0, batch.num_rows, BATCH_ROWS)
        )
    for batch in batches:
        batch.validate(full=True)
        yield batch.select(columns)


def _records(files: list[Path], columns: Columns, log: ConversionLog) -> Iterator[Record]:
    keys = usual.Keys(text=columns.words, spans=columns.tags)
    for file in files:
        with _opened(file) as opened:
            number = 0
            wanted = [columns.words, columns.tags, *columns.others]
            for batch in _batches(opened, wanted):
                for row in batch.to_pylist():
                    number += 1
                    where = f"{file}, row {number}"
                    if row[columns.words] in ([], ""):
                        log.skipped("empty row")
                    elif isinstance(row[columns.words], str):
                        if isinstance(row[columns.tags], str):
                            row[columns.tags] = decoded(row[columns.tags])
                        yield from read_values([(where, row)], keys, {}, log)
                    else:
                        yield _record(where, row, columns, log)


def _record(where: str, row: dict[str, Any], columns: Columns, log: ConversionLog) -> Record:
    words, tags, spaces = row[columns.words], row[columns.tags], row.get(SPACES)
    if words is None:
        nothing = error(where, f"a list for {columns.words!r}", "None")
        return Record(where, problem=("row", nothing))
    if spaces is not None and len(spaces) != len(words):
        got = f"{len(words)} tokens and {len(spaces)} {SPACES}"
        differ = error(where, "as many spaces as tokens", got, "Correct the row")
        return Record(where, problem=("row", differ))
    bad: list[str] = []
    if columns.names is not None and tags is not None:
        names = dict(enumerate(columns.names))
        known = {*NOT_ANNOTATED, *names}
        bad = [f"{tag} (token {i})" for i, tag in enumerate(tags, 1) if tag not in known]
        tags = [names.get(tag) for tag in tags]
    value: dict[str, Any] = {TOKENS: [word or "" for word in words], TAGS: tags}
    if spaces is not None:
        tokens = [*zip(words, map(bool, spaces))]
        value[TOKENS] = [{"text": word, "ws": space} for word, space in tokens]
        value["text"] = "".join(f"{word}{' ' * space}" for word, space in tokens)
    if columns.others and columns.others[0] != SPACES and row[columns.others[0]] is not None:
        value[DOCUMENT] = str(row[columns.others[0]])
    (record,) = read_values([(where, value)], usual.Keys(words=TOKENS, tags=TAGS), {}, log)
    if bad:
        expected = f"a tag id below {len(columns.names or ())}, or -1"
        record.problem = "tag", error(where, expected, bad[0], "Correct the row")
    return record


def download(name: str, folder: Path) -> None:
    """Load a dataset from the Hugging Face hub, and save it for `read_hugging_face`.

    Args:
        name: Name of the dataset, such as "user/corpus", with ":config" if it has several
            configurations.
        folder: A new folder.

    Raises:
        InputError: If the library datasets is missing, or cannot load the dataset.
    """
    with required("datasets"):
        from datasets import load_dataset
    path, _, config = name.partition(":")
    try:
        dataset = load_dataset(path, config or None)
    except (OSError, RuntimeError, ValueError) as problem:
        raise InputError(
            f"--hub {name}: expected a dataset that can be loaded, got {type(problem).__name__}: "
            f"{problem}. Check its name, the network and the variable HF_HUB_OFFLINE; without a "
            "network, convert a folder with its files."
        ) from problem
    dataset.save_to_disk(folder)
