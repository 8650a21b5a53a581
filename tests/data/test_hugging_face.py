"""Datasets of Hugging Face: read as the library `datasets` writes them, and written for it."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pytest
import spacy
from datasets import ClassLabel, Dataset, DatasetDict, Features, List, Value
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import feather, parquet
from spacy.language import Language
from spacy.tokens import Doc, DocBin, Span
from typer.testing import CliRunner

from helpers import annotations, load, tags, write
from spacy_crf_ner import data
from spacy_crf_ner.cli import app
from spacy_crf_ner.data import ConversionLog, hugging_face
from spacy_crf_ner.data.hugging_face import download, read_hugging_face
from spacy_crf_ner.data.parquet import write_parquet
from spacy_crf_ner.docbin import document_of
from spacy_crf_ner.input_error import CorpusError, InputError
from spacy_crf_ner.pipeline.annotated_labels import mark_annotated_labels

LABELS = ("LOC", "PER")
NAMES = ["O", *(f"{prefix}-{label}" for label in LABELS for prefix in "BILU")]
Rows = list[tuple[list[str], list[Any]]]  # tokens and tags
ROWS: Rows = [
    (["Anna", "Schmidt", "saw", "Hanoi", "."], ["B-PER", "I-PER", "O", "B-LOC", "O"]),
    (["No", "one"], ["O", "O"]),
]
SAID = [["Anna Schmidt PER", "Hanoi LOC"], []]
runner = CliRunner()


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep what the library loads out of the home folder."""
    datasets.disable_progress_bars()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))
        yield


def dataset(rows: Rows, names: list[str] | None = NAMES, **columns: Any) -> Dataset:
    """Make a dataset whose tags are ids of these names; None: the tags as they are."""
    ids = {name: number for number, name in enumerate(names or [])}
    tags = [[ids.get(tag, tag) for tag in each] for _, each in rows]
    content = {"tokens": [words for words, _ in rows], "ner_tags": tags, **columns}
    if names is None:
        return Dataset.from_dict(content)
    features = {"tokens": List(Value("string")), "ner_tags": List(ClassLabel(names=names))}
    others = Dataset.from_dict(columns).features if columns else {}
    return Dataset.from_dict(content, features=Features({**features, **others}))


def folder(path: Path, rows: Rows, names: list[str] | None = NAMES) -> Path:
    dataset(rows, names).save_to_disk(path)
    return path


def write_arrow(table: pa.Table, path: Path) -> None:
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)


def said(docs: list[Doc]) -> list[list[str]]:
    return [[f"{ent.text} {ent.label_}" for ent in doc.ents] for doc in docs]


# Reading what the library writes


@pytest.mark.parametrize("form", ["folder", "shards", "parquet", "arrow", "feather"])
def test_read_hugging_face_file_forms_are_equal(form: str, tmp_path: Path, nlp: Language) -> None:
    path = tmp_path / "corpus"
    if form == "parquet":
        dataset(ROWS).to_parquet(path)
    elif form == "feather":
        feather.write_feather(dataset(ROWS).data.table, path, chunksize=1)
    else:
        dataset(ROWS).save_to_disk(path, num_shards=2 if form == "shards" else 1)
    if form == "arrow":
        (path,) = path.glob("*.arrow")
    log = ConversionLog()
    docs = list(read_hugging_face(path, nlp, log))
    assert [[token.text for token in doc] for doc in docs] == [words for words, _ in ROWS]
    assert said(docs) == SAID and docs[0].has_unknown_spaces
    assert data.detect_format(path) == "hugging_face"
    assert (log.totals["records"], log.totals["entities"]) == (2, 2)
    assert log.tag_schemes == {str(path): "IOB2"}


@given(
    drawn=st.lists(annotations(LABELS), min_size=1, max_size=4),
    scheme=st.sampled_from(["biluo", "bio"]),
)
def test_read_hugging_face_entities_match_tags(
    scratch: Path, nlp: Language, drawn: list[tuple[int, list[tuple[int, int, str]]]], scheme: str
) -> None:
    """The oracle writes tags from spans; the library stores their ids."""
    rows = [([f"w{i}" for i in range(T)], write(scheme, T, spans)) for T, spans in drawn]
    parquet.write_table(dataset(rows).data.table, scratch)
    docs = list(read_hugging_face(scratch, nlp))
    found = [[(ent.start, ent.end, ent.label_) for ent in doc.ents] for doc in docs]
    assert found == [spans for T, spans in drawn if T]


@pytest.mark.parametrize("strings", [True, False])
@pytest.mark.parametrize(
    "names, tags, entities",
    [
        (["O", "B-a-b", "I-a-b", "E-a-b", "S-a-b"], ["S-a-b", "B-a-b", "E-a-b"], ["x", "y z"]),
        (["I-PER", "O", "I-LOC"], ["I-PER", "I-PER", "I-LOC"], ["x y", "z"]),
        (["O", "PER", "product or service"], ["PER", "O", "product or service"], ["x", "z"]),
        (["O", "B-PER", "I-PER"], ["O", "O", "O"], []),
    ],
)
def test_tags_may_be_ids_or_strings_in_any_scheme(
    strings: bool,
    names: list[str],
    tags: list[str],
    entities: list[str],
    tmp_path: Path,
    nlp: Language,
) -> None:
    path = folder(tmp_path / "d", [(["x", "y", "z"], tags)], None if strings else names)
    (doc,) = read_hugging_face(path, nlp)
    assert [ent.text for ent in doc.ents] == entities
    labels = {tag[2:] if tag[1:2] == "-" else tag for tag in tags if tag != "O"}
    assert {ent.label_ for ent in doc.ents} == labels


@pytest.mark.parametrize("label", ["PER", "e-mail", "B-PER"])
def test_spelling_of_tags_is_found_over_all_shards(
    label: str, tmp_path: Path, nlp: Language
) -> None:
    rows: Rows = [(["Ann", "saw"], [label, "O"]), (["Ann"], [label]), ([".", "."], ["O", "O"])]
    for each in (rows, rows[::-1]):
        dataset(each, None).save_to_disk(tmp_path / "d", num_shards=3)
        docs = list(read_hugging_face(tmp_path / "d", nlp))
        name = label.removeprefix("B-")
        assert sorted(said(docs)) == [[], [f"Ann {name}"], [f"Ann {name}"]]


def test_read_hugging_face_keeps_token_whitespace_only_with_spaces_column(
    tmp_path: Path, nlp: Language
) -> None:
    rows: Rows = [(["Tim ", " "], ["B-PER", "O"])]
    for columns, words in (({}, ["Tim", " "]), ({"spaces": [[False, False]]}, ["Tim ", " "])):
        dataset(rows, **columns).to_parquet(tmp_path / "a.parquet")
        (doc,) = read_hugging_face(tmp_path / "a.parquet", nlp)
        assert [token.text for token in doc] == words


def test_large_lists_of_large_strings_are_read(tmp_path: Path, nlp: Language) -> None:
    """As polars writes them."""
    kind = pa.large_list(pa.large_string())
    columns = {"tokens": [row[0] for row in ROWS], "ner_tags": [row[1] for row in ROWS]}
    arrays = {name: pa.array(values, kind) for name, values in columns.items()}
    parquet.write_table(pa.table(arrays), tmp_path / "a.parquet")
    assert said(list(read_hugging_face(tmp_path / "a.parquet", nlp))) == SAID


def test_tags_that_are_null_or_negative_are_not_annotated(tmp_path: Path, nlp: Language) -> None:
    rows: Rows = [(["a", "b", "c", "d", "e"], ["B-PER", -1, "O", None, -1])]
    (doc,) = read_hugging_face(folder(tmp_path / "ids", rows), nlp)
    assert tags(doc) == "B-O--"
    table = pa.table({"tokens": [["a", "b"]], "ner_tags": [[-100, 0]]})
    features = {"ner_tags": {"feature": {"names": ["O"], "_type": "ClassLabel"}}}
    meta = {"huggingface": json.dumps({"info": {"features": features}})}
    parquet.write_table(table.replace_schema_metadata(meta), tmp_path / "a.parquet")
    (doc,) = read_hugging_face(tmp_path / "a.parquet", nlp)
    assert tags(doc) == "-O"
    strings: Rows = [(["a", "b"], [None, "B-PER"])]
    (doc,) = read_hugging_face(folder(tmp_path / "strings", strings, None), nlp)
    assert tags(doc) == "-B"


@pytest.mark.parametrize("wrap", [lambda each: [each], lambda each: {"feature": each}])
def test_read_hugging_face_reads_tag_names_of_older_versions(
    wrap: Any, tmp_path: Path, nlp: Language
) -> None:
    label = {"num_classes": 2, "names": ["O", "B-X"], "id": None, "_type": "ClassLabel"}
    meta = {"huggingface": json.dumps({"info": {"features": {"ner_tags": wrap(label)}}})}
    table = pa.table({"tokens": [["a", "b"]], "ner_tags": [[1, 0]]})
    parquet.write_table(table.replace_schema_metadata(meta), tmp_path / "a.parquet")
    (doc,) = read_hugging_face(tmp_path / "a.parquet", nlp)
    assert said([doc]) == [["a X"]]


def test_rows_without_tokens_are_counted(tmp_path: Path, nlp: Language) -> None:
    log = ConversionLog()
    docs = list(read_hugging_face(folder(tmp_path / "d", [([], []), *ROWS]), nlp, log))
    assert said(docs) == SAID
    assert log.counts == {"skipped.empty row": 1}


def test_other_columns_are_chosen_by_name(tmp_path: Path) -> None:
    source = tmp_path / "tags.parquet"
    dataset(ROWS).rename_columns({"tokens": "words", "ner_tags": "fine"}).to_parquet(source)
    result = runner.invoke(app, ["convert", str(source), str(tmp_path / "out.spacy")])
    assert "tags.parquet: expected a column 'tokens', got ['words', 'fine']" in result.output
    options = ["--token-column", "words", "--tag-column", "fin"]
    result = runner.invoke(app, ["convert", str(source), str(tmp_path / "out.spacy"), *options])
    assert "expected a column 'fin', got ['words', 'fine']. Did you mean fine?" in result.output
    options[-1] = "fine"
    result = runner.invoke(app, ["convert", str(source), str(tmp_path / "out.spacy"), *options])
    assert result.exit_code == 0, result.output
    assert said(load(tmp_path / "out.spacy", spacy.blank("en"))) == SAID


# Mistakes


@pytest.mark.parametrize(
    "words, given, says",
    [
        (["a", "b"], [0], r"row 2: expected a tag for each token, got 2 words and 1 tags"),
        (["a"], None, r"row 2: expected a list for 'ner_tags', got None\."),
        (None, [0], r"row 2: expected a list for 'tokens', got None\."),
        (None, [], r"row 2: expected a list for 'tokens', got None\."),
        (["a", "b"], [0, 9], r"row 2: expected a tag id below 9, or -1, got 9 \(token 2\)"),
        (["a"], [-7], r"row 2: expected a tag id below 9, or -1, got -7 \(token 1\)"),
        (["a", ""], [0, 0], r"row 2: expected a token and a tag, as O or B-PER, got '' and 'O'"),
        (["a", None], [0, 0], r"row 2: expected a token and a tag"),
    ],
)
def test_read_hugging_face_bad_row_raises_or_is_rejected(
    words: Any, given: Any, says: str, tmp_path: Path, nlp: Language
) -> None:
    path = tmp_path / "a.parquet"
    good = dataset(ROWS).data.table
    bad = pa.table({"tokens": [words], "ner_tags": [given]}, schema=good.schema)
    parquet.write_table(pa.concat_tables([good.slice(0, 1), bad, good.slice(1)]), path)
    with pytest.raises(CorpusError, match=says):
        list(read_hugging_face(path, nlp))
    log = ConversionLog(repair=True)
    assert said(list(read_hugging_face(path, nlp, log))) == SAID
    assert log.totals["rejected.records"] == 1 and sum(log.counts.values()) == 1


@pytest.mark.parametrize(
    "tags, spaces", [(["O"], [True]), (["O", "O"], [True, False, True]), (["O", "O"], [True])]
)
def test_other_number_of_spaces_than_of_tokens_is_an_error(
    tags: list[str], spaces: list[bool], tmp_path: Path, nlp: Language
) -> None:
    table = pa.table({"tokens": [["Tim", "left"]], "ner_tags": [tags], "spaces": [spaces]})
    parquet.write_table(table, tmp_path / "a.parquet")
    says = rf"row 1: expected as many spaces as tokens, got 2 tokens and {len(spaces)} spaces"
    with pytest.raises(CorpusError, match=says):
        list(read_hugging_face(tmp_path / "a.parquet", nlp))


def test_read_hugging_face_error_names_shard_and_row(tmp_path: Path, nlp: Language) -> None:
    path = tmp_path / "d"
    dataset([*ROWS, *ROWS]).save_to_disk(path, num_shards=2)
    second = sorted(path.glob("*.arrow"))[1]
    good = dataset(ROWS[:1]).data.table
    bad = pa.table({"tokens": [["a"]], "ner_tags": [[9]]}, schema=good.schema)
    write_arrow(pa.concat_tables([good, bad]), second)
    with pytest.raises(CorpusError, match=rf"{re.escape(second.name)}, row 2: expected a tag id"):
        list(read_hugging_face(path, nlp))


@pytest.mark.parametrize(
    "columns, says",
    [
        (
            {"tokens": ["a b"], "ner_tags": [["O"]]},
            "column 'tokens': expected lists of strings, got st",
        ),
        ({"tokens": [[1]], "ner_tags": [["O"]]}, "'tokens': expected lists of strings, got list"),
        ({"tokens": [["a"]], "ner_tags": [[3]]}, "'ner_tags': expected the names of the tag ids"),
        ({"tokens": [["a"]], "ner_tags": [[0.5]]}, "lists of strings or of ids, got list<.*double"),
        ({"tokens": [["a"]], "pos": [["O"]]}, "a column 'ner_tags', got .'tokens', 'pos'.. Set "),
    ],
)
def test_read_hugging_face_columns_of_wrong_type_raise(
    columns: dict[str, Any], says: str, tmp_path: Path, nlp: Language
) -> None:
    parquet.write_table(pa.table(columns), tmp_path / "a.parquet")
    with pytest.raises(CorpusError, match=says):
        list(read_hugging_face(tmp_path / "a.parquet", nlp))


@pytest.mark.parametrize("spaces", [[1, 2], [["a"], ["b"]], [[True] * 5, [None, False]]])
def test_read_hugging_face_uses_spaces_column_only_if_valid(
    spaces: Any, tmp_path: Path, nlp: Language
) -> None:
    dataset(ROWS, spaces=spaces).to_parquet(tmp_path / "a.parquet")
    docs = list(read_hugging_face(tmp_path / "a.parquet", nlp))
    assert said(docs) == SAID
    assert docs[0].has_unknown_spaces == (spaces[0] != [True] * 5)


def test_read_hugging_face_shards_with_other_names_raise(tmp_path: Path, nlp: Language) -> None:
    path = tmp_path / "d"
    dataset(ROWS).save_to_disk(path, num_shards=2)
    other = folder(tmp_path / "other", ROWS, [*reversed(NAMES)])
    (source,), target = other.glob("*.arrow"), sorted(path.glob("*.arrow"))[1]
    target.write_bytes(source.read_bytes())
    with pytest.raises(CorpusError, match="the same names of tags in all files"):
        list(read_hugging_face(path, nlp))


@pytest.mark.parametrize("suffix", ["parquet", "arrow", "feather"])
def test_read_hugging_face_damaged_file_error_names_file(
    suffix: str, tmp_path: Path, nlp: Language
) -> None:
    """Whatever is cut off or changed: an error that names the file, or the rows as they were."""
    rows = ROWS * 50
    if suffix == "parquet":
        dataset(rows).to_parquet(tmp_path / "whole")
    elif suffix == "feather":
        feather.write_feather(dataset(rows).data.table, tmp_path / "whole")
    else:
        folder(tmp_path / "folder", rows)
        next((tmp_path / "folder").glob("*.arrow")).rename(tmp_path / "whole")
    whole, path = (tmp_path / "whole").read_bytes(), tmp_path / f"a.{suffix}"
    cuts = range(4, len(whole), max(1, len(whole) // 60))
    damaged = [whole[:at] for at in cuts] + [
        whole[:at] + b"\xff\xfe" + whole[at + 2 :] for at in cuts
    ]
    failed = 0
    for content in damaged:
        path.write_bytes(content)
        try:
            list(read_hugging_face(path, nlp))
        except CorpusError as problem:
            assert str(problem).startswith(str(path))
            failed += 1
    assert failed > len(damaged) / 4


def test_read_hugging_face_invalid_utf8_in_column_name_raises(
    tmp_path: Path, nlp: Language
) -> None:
    path = folder(tmp_path / "folder", ROWS)
    (file,) = path.glob("*.arrow")
    whole = file.read_bytes()
    assert b"tokens" in whole
    file.write_bytes(whole.replace(b"tokens", b"tok\xffns"))
    with pytest.raises(CorpusError, match=r"arrow: expected a complete file of Arrow or Parquet"):
        list(read_hugging_face(file, nlp))


def test_read_hugging_face_os_error_propagates(
    tmp_path: Path, nlp: Language, monkeypatch: pytest.MonkeyPatch
) -> None:
    def memory_map(path: str) -> Any:
        raise OSError(5, "Input/output error", path)

    path = folder(tmp_path / "d", ROWS)
    monkeypatch.setattr(pa, "memory_map", memory_map)
    with pytest.raises(OSError, match="Input/output error"):
        list(read_hugging_face(path, nlp, ConversionLog(repair=True)))


def test_read_hugging_face_invalid_utf8_raises(tmp_path: Path, nlp: Language) -> None:
    words = pa.array([[b"a\xff"]], pa.list_(pa.binary())).cast(pa.list_(pa.binary()))
    text = pa.ListArray.from_arrays([0, 1], words.values.view(pa.string()))
    table = pa.table({"tokens": text, "ner_tags": [["O"]]})
    write_arrow(table, tmp_path / "a.arrow")
    with pytest.raises(CorpusError, match="Invalid UTF8"):
        list(read_hugging_face(tmp_path / "a.arrow", nlp))


def test_hugging_face_without_pyarrow_error_names_extra(
    tmp_path: Path, nlp: Language, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder(tmp_path / "d", ROWS)
    monkeypatch.setitem(__import__("sys").modules, "pyarrow.parquet", None)
    with pytest.raises(InputError, match=r'pip install .* "\.\[datasets\]"'):
        list(read_hugging_face(path, nlp))
    with pytest.raises(InputError, match=r'pip install .* "\.\[datasets\]"'):
        write_parquet([], tmp_path / "a.parquet", LABELS)


# Parts


def test_splits_become_parts(tmp_path: Path, nlp: Language) -> None:
    parts = {"train": "train", "validation": "dev", "test": "test"}
    splits = {name: dataset([([name], ["U-LOC"])]) for name in parts}
    DatasetDict(splits).save_to_disk(tmp_path / "dict")
    for name, split in splits.items():
        split.to_parquet(tmp_path / "files" / f"{name}-00000-of-00001.parquet")
    for source in ("dict", "files"):
        log = ConversionLog()
        data.convert(tmp_path / source, tmp_path / f"{source}_out", nlp=nlp, log=log)
        for name, part in parts.items():
            docs = load(tmp_path / f"{source}_out" / f"{part}.spacy", nlp)
            assert said(docs) == [[f"{name} LOC"]]
        assert not log.counts


@pytest.mark.parametrize("column, known", [("doc_id", True), ("document", True), ("page", False)])
def test_read_hugging_face_reads_the_document_of_each_row(
    column: str, known: bool, tmp_path: Path, nlp: Language
) -> None:
    numbers = [7, 7, None]
    table = pa.table({"tokens": [["a"]] * 3, "ner_tags": [["O"]] * 3, column: numbers})
    parquet.write_table(table, tmp_path / "a.parquet")
    docs = list(read_hugging_face(tmp_path / "a.parquet", nlp))
    assert [document_of(doc) for doc in docs] == (["7", "7", None] if known else [None] * 3)


def test_convert_names_skipped_hugging_face_split(tmp_path: Path, nlp: Language) -> None:
    splits = {name: dataset(ROWS) for name in ("train", "validation", "test", "unchecked")}
    DatasetDict(splits).save_to_disk(tmp_path / "dataset")
    log = ConversionLog()
    data.convert(tmp_path / "dataset", tmp_path / "out", nlp=nlp, log=log)
    assert log.counts == {"skipped.file": 1}
    assert "Skipped: unchecked." in log.notes


def test_convert_joins_shards_and_raises_if_one_is_missing(tmp_path: Path, nlp: Language) -> None:
    source = tmp_path / "data"
    words = [f"w{i}" for i in range(6)]
    for i in range(3):
        part = dataset([([word], ["O"]) for word in words[2 * i : 2 * i + 2]])
        part.to_parquet(source / f"train-{i:05}-of-00003.parquet")
    dataset(ROWS).to_parquet(source / "validation-00000-of-00001.parquet")
    data.convert(source, tmp_path / "out", nlp=nlp)
    assert [doc.text.strip() for doc in load(tmp_path / "out" / "train.spacy", nlp)] == words
    for number in (1, 2, 0):  # also the first or the last one
        lost = source / f"train-{number:05}-of-00003.parquet"
        content = lost.read_bytes()
        lost.unlink()
        with pytest.raises(CorpusError, match="expected one file for train"):
            data.convert(source, tmp_path / "lost", nlp=nlp)
        lost.write_bytes(content)


# Writing, for the library to read


def make_docs(nlp: Language) -> list[Doc]:
    docs = [nlp("Anna Schmidt saw Hanoi, twice."), nlp("No one."), nlp("Paris Bonn?")]
    docs[0].set_ents([Span(docs[0], 0, 2, "PER"), Span(docs[0], 3, 4, "LOC")])
    docs[1].set_ents([], missing=[docs[1][0:1]], default="outside")
    docs[2].set_ents([Span(docs[2], 0, 1, "LOC"), Span(docs[2], 1, 2, "LOC")])
    return docs


def test_write_parquet_output_loads_with_datasets(tmp_path: Path, nlp: Language) -> None:
    docs = make_docs(nlp)
    path = tmp_path / "corpus" / "train.parquet"
    path.parent.mkdir()
    assert not +write_parquet(docs, path, {"PER", "LOC", "ORG"})
    for loaded in (
        Dataset.from_parquet(str(path), cache_dir=str(tmp_path / "cache")),
        datasets.load_dataset(str(path.parent))["train"],
    ):
        label = loaded.features["ner_tags"].feature
        assert label.names == ["O", "B-LOC", "I-LOC", "B-ORG", "I-ORG", "B-PER", "I-PER"]
        tags = [
            [label.int2str(tag) if tag >= 0 else "-" for tag in row] for row in loaded["ner_tags"]
        ]
        assert tags == [
            ["B-PER", "I-PER", "O", "B-LOC", "O", "O", "O"],
            ["-", "O", "O"],
            ["B-LOC", "B-LOC", "O"],
        ]
        assert loaded["tokens"][:] == [[token.text for token in doc] for doc in docs]


@pytest.mark.parametrize("spaces", [True, False])
def test_write_parquet_round_trip_keeps_docs(spaces: bool, tmp_path: Path, nlp: Language) -> None:
    docs = make_docs(nlp)
    if not spaces:
        docs = [Doc(nlp.vocab, [token.text for token in doc]) for doc in docs]
        docs[0].set_ents([Span(docs[0], 0, 2, "PER")], missing=[docs[0][3:5]], default="outside")
    write_parquet(docs, tmp_path / "a.parquet", LABELS)
    back = list(read_hugging_face(tmp_path / "a.parquet", nlp))
    assert [doc.text for doc in back] == [doc.text for doc in docs]
    assert [doc.has_unknown_spaces for doc in back] == [not spaces] * 3
    assert [tags(doc) for doc in back] == [tags(doc) for doc in docs]
    assert said(back) == said(docs)


def test_convert_command_parquet_round_trip_keeps_corpus(tmp_path: Path, nlp: Language) -> None:
    """Its parts have the same names of tags, also if a label is in one of them only."""
    rows = {"train": ROWS * 3, "dev": ROWS[1:], "test": [(["Bonn"], ["B-GPE"])]}
    for part, each in rows.items():
        text = "\n\n".join("\n".join(f"{w}\t{t}" for w, t in zip(*row)) for row in each)
        (tmp_path / "conll").mkdir(exist_ok=True)
        (tmp_path / "conll" / f"{part}.conll").write_text(text)
    data.convert(tmp_path / "conll", tmp_path / "before", nlp=nlp)
    result = runner.invoke(
        app, ["convert", str(tmp_path / "before"), str(tmp_path / "hf"), "--parquet"]
    )
    assert result.exit_code == 0, result.output
    loaded = datasets.load_dataset(str(tmp_path / "hf"))
    assert {name: split.num_rows for name, split in loaded.items()} == {
        "train": 6, "validation": 1, "test": 1,
    }  # fmt: skip
    data.convert(tmp_path / "hf", tmp_path / "after", nlp=nlp)
    for part in rows:
        before, after = (
            load(tmp_path / each / f"{part}.spacy", nlp) for each in ("before", "after")
        )
        assert [doc.to_json() for doc in before] == [doc.to_json() for doc in after]


def test_convert_to_parquet_notes_data_not_written(tmp_path: Path, nlp: Language) -> None:
    doc = nlp("Anna saw Bonn. She left.")
    doc.set_ents([Span(doc, 0, 1, "PER", kb_id="Q1")])
    doc.spans["incorrect_spans"] = [doc[2:3]]
    doc.user_data["meta"] = {"id": 1}
    for token in doc:
        token.is_sent_start = token.i in (0, 4)
    DocBin(docs=[doc], store_user_data=True).to_disk(tmp_path / "a.spacy")
    log = ConversionLog()
    data.convert(tmp_path / "a.spacy", tmp_path / "a.parquet", nlp=nlp, log=log)
    assert log.notes == [
        "Not written: 1 ids of entities.",
        "Not written: 1 sentence starts in a row.",
        "Not written: 1 docs with metadata.",
        "Not written: 1 spans of doc.spans['incorrect_spans'].",
    ]


@pytest.mark.parametrize("labels, outside", [(["LOC"], -1), (["LOC", "PER"], 0)])
def test_convert_to_parquet_tokens_with_unannotated_labels_get_no_tag(
    labels: list[str], outside: int, tmp_path: Path, nlp: Language
) -> None:
    some, all_of_them = nlp("in Bonn"), nlp("Anna in Bonn")
    some.set_ents([Span(some, 1, 2, "LOC")], default="outside")
    mark_annotated_labels(some, labels)
    ents = [Span(all_of_them, 0, 1, "PER"), Span(all_of_them, 2, 3, "LOC")]
    all_of_them.set_ents(ents, default="outside")
    DocBin(docs=[some, all_of_them]).to_disk(tmp_path / "a.spacy")
    log = ConversionLog()
    data.convert(tmp_path / "a.spacy", tmp_path / "a.parquet", nlp=nlp, log=log)
    rows = parquet.read_table(tmp_path / "a.parquet")["ner_tags"].to_pylist()
    assert rows == [[outside, 1], [3, 0, 1]]  # O, B-LOC, I-LOC, B-PER, I-PER
    notes = ["Not written: 1 annotated labels of docs that annotate some labels only."]
    if outside == -1:
        notes.append(
            "Not written: 1 tokens outside of entities of some labels, which may have others."
        )
    assert log.notes == notes


def test_read_hugging_face_with_spans_key_needs_all_tags(tmp_path: Path, nlp: Language) -> None:
    path = folder(tmp_path / "d", [*ROWS, (["a"], [-1])])
    log = ConversionLog(repair=True, spans_key="sc")
    docs = list(read_hugging_face(path, nlp, log))
    assert [[span.text for span in doc.spans["sc"]] for doc in docs] == [
        ["Anna Schmidt", "Hanoi"],
        [],
    ]
    assert log.counts == {"rejected.record": 1}


@pytest.mark.parametrize("entities", [[{"start": 0, "end": 3, "label": "PER"}], '[[0, 3, "PER"]]'])
def test_read_hugging_face_reads_texts_and_spans(
    entities: Any, tmp_path: Path, nlp: Language
) -> None:
    table = pa.table({"id": ["a", "b"], "text": ["Ann left", ""], "entities": [entities, entities]})
    parquet.write_table(table, tmp_path / "a.parquet")
    log = ConversionLog()
    assert said(list(read_hugging_face(tmp_path / "a.parquet", nlp, log))) == [["Ann PER"]]
    assert log.counts == {"skipped.empty row": 1}


def test_convert_to_parquet_with_spans_key_raises(tmp_path: Path, nlp: Language) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a", "spans": []}\n')
    for target, parquet_files in (("o.parquet", False), ("o", True)):
        with pytest.raises(InputError, match="an output with entities that may overlap"):
            data.convert(
                tmp_path / "a.jsonl",
                tmp_path / target,
                data.ConvertOptions(parquet=parquet_files),
                nlp=nlp,
                log=ConversionLog(spans_key="sc"),
            )


# The hub


def test_a_dataset_is_loaded_by_its_name(tmp_path: Path, nlp: Language) -> None:
    """A local folder stands in for the hub: the library loads both by the same function."""
    dataset(ROWS).to_parquet(tmp_path / "hub" / "train.parquet")
    dataset(ROWS[:1]).to_parquet(tmp_path / "hub" / "test.parquet")
    args = ["convert", str(tmp_path / "out"), "--hub", str(tmp_path / "hub"), "--split", "1"]
    result = runner.invoke(app, args)
    assert result.exit_code == 0, result.output
    assert said(load(tmp_path / "out" / "train.spacy", nlp)) == SAID
    assert said(load(tmp_path / "out" / "test.spacy", nlp)) == SAID[:1]


@pytest.mark.parametrize("name, config", [("user/corpus", None), ("user/corpus:vi", "vi")])
def test_download_passes_configuration_to_load_dataset(
    name: str, config: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def load_dataset(*arguments: Any) -> Dataset:
        asked.append(arguments)
        return dataset(ROWS)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    download(name, tmp_path / "d")
    assert asked == [("user/corpus", config)] and (tmp_path / "d" / "state.json").exists()


def test_convert_command_hub_unknown_name_prints_error(tmp_path: Path) -> None:
    """HF_HUB_OFFLINE is set for all tests."""
    args = ["convert", str(tmp_path / "out"), "--hub", "nobody/nothing:config"]
    result = runner.invoke(app, args)
    assert result.exit_code == 1
    assert "Error: --hub nobody/nothing:config: expected a dataset that can be" in result.output
    assert not (tmp_path / "out").exists()


def test_convert_command_requires_either_input_or_hub(tmp_path: Path) -> None:
    for args, says in (
        ([str(tmp_path)], f"OUTPUT is missing: got {tmp_path} alone"),
        (["a", "b", "--hub", "c"], "expected INPUT, or --hub NAME, got both"),
    ):
        result = runner.invoke(app, ["convert", *args])
        assert says in result.output and result.exit_code == 1


# Memory


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_memory_does_not_grow_with_the_file(suffix: str, tmp_path: Path) -> None:
    """In one row group or batch, as in many files of the hub; above the pages of Parquet, 1 MB."""

    def peak(rows: int) -> int:
        words = pa.array([f"w{i}" for i in range(50 * rows)])
        ends = pa.array(range(0, 50 * rows + 1, 50), pa.int32())
        lists = pa.ListArray.from_arrays(ends, words)
        table, path = pa.table({"tokens": lists, "ner_tags": lists}), tmp_path / f"{rows}.{suffix}"
        if suffix == "parquet":
            parquet.write_table(table, path, row_group_size=rows)
        else:
            write_arrow(table, path)
        del words, lists, table
        before, highest, number = pa.total_allocated_bytes(), 0, 0
        with hugging_face._opened(path) as opened:
            for batch in hugging_face._batches(opened, ["tokens", "ner_tags"]):
                assert batch.num_rows <= hugging_face.BATCH_ROWS
                number += batch.num_rows
                highest = max(highest, pa.total_allocated_bytes() - before)
        assert number == rows  # no row is dropped between two batches
        return highest

    assert peak(10_001) < 1.5 * peak(2001) + 2**20


def test_read_hugging_face_rejected_spans_of_prodigy_are_incorrect(
    tmp_path: Path, nlp: Language
) -> None:
    spans = [[{"start": 0, "end": 3, "label": "PER"}]] * 2
    columns = {"text": ["Ann left."] * 2, "spans": spans, "_view_id": ["ner"] * 2}
    table = pa.table({**columns, "answer": ["accept", "reject"]})
    parquet.write_table(table, tmp_path / "a.parquet")
    accepted, rejected = read_hugging_face(tmp_path / "a.parquet", nlp)
    assert [ent.text for ent in accepted.ents] == ["Ann"] and not rejected.ents
    assert [span.text for span in rejected.spans["incorrect_spans"]] == ["Ann"]
