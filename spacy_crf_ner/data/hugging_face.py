"""Read datasets of Hugging Face: rows with lists of tokens and of tags, in Arrow or Parquet."""

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from spacy.language import Language
from spacy.tokens import Doc

from ..docbin import DOCUMENTS
from ..extras import required
from ..input_error import InputError
from .iob import TAG, TaggedToken, tagged_docs
from .json_records import shorten
from .lines import Problem
from .repair_log import ConversionLog, error

if TYPE_CHECKING:
    from pyarrow import RecordBatch, Schema

# The first bytes of files; Arrow has a format for streams, and one for files (Feather).
PARQUET, STREAM, ARROW = b"PAR1", b"\xff\xff\xff\xff", b"ARROW1"
STATE = "state.json"  # of a folder that Dataset.save_to_disk has written
TOKENS, TAGS = "tokens", "ner_tags"  # the usual names of the columns
SPACES = "spaces"  # a column of `write_parquet`: whether a space follows each token
NOT_ANNOTATED = (None, -1, -100)  # -1 in a ClassLabel; the loss of PyTorch ignores -100
BATCH_ROWS = 1000
BUFFER = 2**20  # bytes


class Tags(NamedTuple):
    """The tags of a dataset.

    Attributes:
        names: The name of each tag id; None for tags that are strings.
        plain: Whether the tags are labels without a prefix, as PER instead of I-PER.
    """

    names: tuple[str, ...] | None
    plain: bool


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
    token_column: str = TOKENS,
    tag_column: str = TAGS,
) -> Iterator[Doc]:
    """Read the rows of a dataset, each as a sentence; spaCy trains on their tokens.

    Args:
        path: A folder of `Dataset.save_to_disk`, or a file of Parquet or of one of Arrow's formats.
            A few rows are in memory at a time. Tags are ids, whose names are in the metadata of the
            schema (`ClassLabel`), or strings, in any tag scheme of `read_conll`; if none of them
            has a prefix, as in O and PER, adjacent tokens of one label are one entity. A tag that
            is null, -1 or -100 is not annotated. The column "spaces" of `write_parquet` is read
            too; without it, whitespace at the ends of tokens is removed. So is a column of strings
            or numbers whose name says that it has the document, see `docbin.DOCUMENTS`.
        nlp: Pipeline with the vocabulary, and the tokenizer for formats without tokens.
        log: Decides what happens to mistakes, and counts them; None raises the first one.
        token_column: Name of the column of the tokens.
        tag_column: Name of the column of the tags.

    Yields:
        A Doc for each row that has tokens; the others are skipped and counted.

    Raises:
        CorpusError: For a damaged file, other columns, tag ids without names, tags without prefixes
            and O; and for a row with an empty token, an unknown tag, or lists of different lengths.
        InputError: Without pyarrow.
    """
    with required("datasets"):
        import pyarrow.parquet  # noqa: F401
    log = log or ConversionLog()
    columns = token_column, tag_column
    if token_column == tag_column:
        fix = "Choose two columns"
        raise error(str(path), "a column of tokens and one of tags", shorten(columns), fix)
    files = _files(path)
    found, used = set[tuple[str, ...] | None](), set[str | None]()
    for file in files:
        names, own = _names(file, *columns)
        found.add(None if names is None else tuple(names))
        used.update(own)
    if len(found) > 1:
        got = " and ".join(shorten([*(each or ())]) for each in found)
        raise error(str(path), "the same names of tags in all files", got, "Save it again")
    is_plain = _is_plain(used, f"{path}, column {tag_column!r}")
    tags = Tags(next(iter(found), None), is_plain)
    return tagged_docs(path, nlp, log, partial(_rows, files, tags, columns))


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


def _schema(table: Any) -> "Schema":
    return table.schema_arrow if hasattr(table, "schema_arrow") else table.schema


def _names(
    file: Path, token_column: str, tag_column: str
) -> tuple[list[str] | None, Iterable[str | None]]:
    """Check the columns of a file. Returns the names of the tag ids, None for strings; and tags."""
    from pyarrow import types

    with _opened(file) as opened:
        schema = _schema(opened)
        kinds = {}
        for option, column in (("--token-column", token_column), ("--tag-column", tag_column)):
            if schema.names.count(column) != 1:
                fix = f"Set {option} to the name of a column"
                raise error(str(file), f"a column {column!r}", shorten(schema.names), fix)
            kinds[column] = kind = schema.field(column).type
            if not _is_list(kind):
                fix = f"Set {option} to a column of lists"
                raise error(f"{file}, column {column!r}", "lists", str(kind), fix)
        for column, kind in kinds.items():
            items = kind.value_type
            text = types.is_string(items) or types.is_large_string(items)
            if not text and not (column == tag_column and types.is_integer(items)):
                fix = "Choose another column"
                expected = "lists of strings" + " or of ids" * (column == tag_column)
                raise error(f"{file}, column {column!r}", expected, str(kind), fix)
        if text:
            found = {tag for batch in _batches(opened, [tag_column]) for tag in _distinct(batch)}
            return None, found
        names = _class_names(schema, tag_column)
        if names is None:
            fix = "Name the ids: cast_column with Sequence(ClassLabel(names=[...])), and save it"
            got = "none in the metadata"
            raise error(f"{file}, column {tag_column!r}", "the names of the tag ids", got, fix)
        return names, names


def _is_plain(names: Iterable[str | None], where: str) -> bool:
    """Whether tags are labels. Raises CorpusError if they are no tags of any other kind either."""
    given = {name for name in names if name}
    labels = sorted(given - {"O"})
    if any(map(TAG.fullmatch, labels)):
        return False
    # A label may begin like a tag, as "e-mail"; but no scheme has L-, E- or M- only.
    is_lower = all(TAG.fullmatch(label[:1].upper() + label[1:]) for label in labels) and any(
        label.startswith(("b-", "i-", "u-", "s-")) for label in labels
    )
    if labels and (is_lower or _are_halves(labels) or "O" not in given):
        fix = "Rename the tags; O is for tokens outside of entities"
        raise error(where, "tags as O, B-PER and I-PER, or as O and PER", shorten(labels), fix)
    return True


def _are_halves(labels: list[str]) -> bool:
    """Whether all are such as B_PER, PER-B or B, or some differ in B and I alone."""
    if all(re.fullmatch(r"(?i)[BIESLUM][-_.:]?", each) for each in labels):
        return {"B", "I"} <= {each.upper() for each in labels} or any(each[1:] for each in labels)
    for kind, some in ((r"[BIESLUM][_.:]\S+", r"[BI].*"), (r"\S+-[BIESLUM]", r".*[BI]")):
        if all(re.fullmatch(kind, each) for each in labels) and any(
            re.fullmatch(some, each) for each in labels
        ):
            return True
    halves = {
        (label[1:] if at == 0 else label[:-1], at, label[at].upper())
        for label in labels
        if len(label) > 2
        for at, beside in ((0, 1), (-1, -2))
        if not label[beside].isalnum() and label[at] in "BIbi"
    }
    return any((rest, at, "I") in halves for rest, at, half in halves if half == "B")


def _distinct(batch: "RecordBatch") -> list[str | None]:
    from pyarrow import compute

    tags: list[str | None] = compute.unique(compute.list_flatten(batch.column(0))).to_pylist()
    return tags


def _class_names(schema: "Schema", column: str) -> list[str] | None:
    """Read the names of a ClassLabel from what the library datasets has put into the metadata."""
    try:
        feature = json.loads(schema.metadata[b"huggingface"])["info"]["features"][column]
        while "names" not in feature:  # a list of them: Sequence, List, LargeList, or [...]
            feature = feature[0] if isinstance(feature, list) else feature["feature"]
        return [str(name) for name in feature["names"]]
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


def _rows(
    files: list[Path], tags: Tags, columns: tuple[str, str], log: ConversionLog
) -> Iterator[TaggedToken]:
    sentence = 0
    for file in files:
        with _opened(file) as opened:
            spaces = [SPACES] if _has_spaces(_schema(opened)) else []
            of = _document_column(_schema(opened), columns)
            number = 0
            for batch in _batches(opened, [*columns, *spaces, *of]):
                cells = [column.to_pylist() for column in batch.columns]
                documents = cells.pop() if of else [None] * batch.num_rows
                for document, values in zip(documents, zip(*cells)):
                    number += 1
                    sentence += 1
                    log.skipped("empty row", int(values[0] == []))
                    for row in _row(f"{file}, row {number}", values, tags, columns, sentence):
                        yield row if document is None else row._replace(document=str(document))


def _document_column(schema: "Schema", others: tuple[str, str]) -> list[str]:
    """Return the name of the column that says which document each row is from, if there is one."""
    from pyarrow import types

    kinds = {field.name: field.type for field in schema if schema.names.count(field.name) == 1}
    is_name = types.is_string, types.is_large_string, types.is_integer
    named = [name for name in DOCUMENTS if name in kinds and name not in others]
    return [name for name in named if any(check(kinds[name]) for check in is_name)][:1]


def _has_spaces(schema: "Schema") -> bool:
    """Whether there is the column of `write_parquet`, and no other one of its name."""
    from pyarrow import types

    kinds = [field.type for field in schema if field.name == SPACES]
    return len(kinds) == 1 and _is_list(kinds[0]) and types.is_boolean(kinds[0].value_type)


def _is_list(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_list(kind) or types.is_large_list(kind))


def _row(
    where: str, values: tuple[Any, ...], scheme: Tags, columns: tuple[str, str], sentence: int
) -> Iterator[TaggedToken]:
    words, tags = values[:2]
    spaces = values[2] if len(values) > 2 and values[2] is not None else [None] * len(words or ())
    if words is None or tags is None or not len(words) == len(tags) == len(spaces):
        sizes = (
            f"{len(each)} {name}" if each is not None else f"no {name}"
            for name, each in zip((*columns, SPACES), (words, tags, *values[2:]))
        )
        lengths = error(where, "a tag for each token", ", ".join(sizes), "Correct the row")
        yield TaggedToken(where, "", "O", sentence, problem=("row", lengths))
        return
    for word, value, space in zip(words, tags, spaces):
        problem: Problem | None = None
        missing = value in NOT_ANNOTATED
        tag = "O" if missing else value
        if scheme.names is not None and not missing:
            if 0 <= value < len(scheme.names):
                tag = scheme.names[value]
            else:
                expected = f"a tag id below {len(scheme.names)}, or -1"
                problem = "tag", error(where, expected, f"{value} ({word})", "Correct the row")
                tag = "O"
        if scheme.plain and tag != "O":
            tag = f"I-{tag}"
        yield TaggedToken(
            where, word or "", tag, sentence, problem=problem, missing=missing, space=space
        )


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
