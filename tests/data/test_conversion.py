"""Conversion of any files to binary ones: whatever is left out is counted."""

import gc
import json
import os
import random
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import spacy
import srsly
from spacy.language import Language
from spacy.tokens import Doc, DocBin
from spacy.training import Corpus
from typer.testing import CliRunner

from helpers import load, put
from spacy_crf_ner import data
from spacy_crf_ner.check import check
from spacy_crf_ner.cli import app
from spacy_crf_ner.data import ConversionLog, Split, docbin, lines
from spacy_crf_ner.data.splits import split_units
from spacy_crf_ner.docbin import document_of, find_docbins
from spacy_crf_ner.input_error import CorpusError, InputError

HERE = Path(__file__).parents[1]
SHARES = (0.8, 0.1, 0.1)
runner = CliRunner()


def run(
    source: Any, target: Path, nlp: Language, log: ConversionLog | None = None, **options: Any
) -> dict[str, dict[str, int]]:
    return data.convert(source, target, data.ConvertOptions(**options), nlp=nlp, log=log)


def write(path: Path, *words: str) -> Path:
    """Write sentences of one word, each an entity."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{word}\tB-X\n\n" for word in words), encoding="utf-8")
    return path


def texts(path: Path, nlp: Language) -> list[str]:
    return [doc.text.strip() for doc in load(path, nlp)]


def numbered(n: int, prefix: str = "w") -> list[str]:
    return [f"{prefix}{i}" for i in range(n)]


# Several inputs


def test_convert_assigns_files_to_parts_by_name(tmp_path: Path, nlp: Language) -> None:
    files = [write(tmp_path / name, name) for name in ("a.testb", "a.train.conll", "valid.tsv")]
    log = ConversionLog()
    counts = data.convert(files, tmp_path / "out", nlp=nlp, log=log)
    assert list(counts) == list(log.parts) == ["train", "dev", "test"]
    for part, name in [("train", "a.train.conll"), ("dev", "valid.tsv"), ("test", "a.testb")]:
        assert texts(tmp_path / "out" / f"{part}.spacy", nlp) == [name]


def test_convert_splits_unnamed_files_as_one_corpus(tmp_path: Path, nlp: Language) -> None:
    """It is divided as the same sentences in one file; a folder may be one of them."""
    words = numbered(40)
    single = write(tmp_path / "all.conll", *words)
    files = [
        write(tmp_path / "z.conll", *words[:10]),
        write(tmp_path / "folder" / "b.conll", *words[10:30]).parent,
        write(tmp_path / "a.conll", *words[30:]),
    ]
    data.convert(single, tmp_path / "one", nlp=nlp)
    data.convert(files, tmp_path / "three", nlp=nlp)
    for part in data.SPLITS:
        name = f"{part}.spacy"
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "three" / name).read_bytes()


def test_convert_n_sents_does_not_group_across_files(tmp_path: Path, nlp: Language) -> None:
    files = [write(tmp_path / "a.conll", "a", "b", "c"), write(tmp_path / "b.conll", "d", "e")]
    run(files, tmp_path / "out.spacy", nlp, n_sents=2)
    assert texts(tmp_path / "out.spacy", nlp) == ["a b", "c", "d e"]


@pytest.mark.parametrize(
    "names, says",
    [
        (
            ["train.txt", "dev.txt", "x/train.conll"],
            r"for train, got .*train\.txt and .*train\.con",
        ),
        (["train.txt", "dev.txt", "other.txt"], r"parts named train, dev, test, got .*other\.txt"),
        (["dev.txt", "test.txt"], "one file for train, got none"),
        (["train.txt", "dev.txt", "train.txt"], "each file once, got a file twice"),
    ],
)
def test_convert_ambiguous_files_raise(
    names: list[str], says: str, tmp_path: Path, nlp: Language
) -> None:
    files = [write(tmp_path / name, "a") for name in names]
    with pytest.raises(CorpusError, match=says):
        data.convert(files, tmp_path / "out", nlp=nlp)
    assert not (tmp_path / "out").exists()


def test_convert_reads_brat_folders_as_parts(tmp_path: Path, nlp: Language) -> None:
    for part in ("train", "dev"):
        (tmp_path / "in" / part).mkdir(parents=True)
        (tmp_path / "in" / part / "a.txt").write_text(f"{part} Hanoi")
        (tmp_path / "in" / part / "a.ann").write_text("")
    counts = data.convert(tmp_path / "in", tmp_path / "out", nlp=nlp)
    assert {name: count["docs"] for name, count in counts.items()} == {"train": 1, "dev": 1}
    assert texts(tmp_path / "out" / "dev.spacy", nlp) == ["dev Hanoi"]


def test_convert_reads_binary_files_of_folder_without_other_files(
    tmp_path: Path, nlp: Language
) -> None:
    source = tmp_path / "in"
    write(source / "train.conll", "a")
    write(source / "dev.conll", "b")
    data.convert(source, source, nlp=nlp)
    run(source, source, nlp, overwrite=True)  # what is there does not matter
    for name in ("train", "dev"):
        (source / f"{name}.conll").unlink()
    data.convert(source, tmp_path / "out", nlp=nlp)
    assert texts(tmp_path / "out" / "train.spacy", nlp) == ["a"]


@pytest.mark.parametrize("name", ["test", "more", "brat"])
def test_convert_counts_skipped_subfolder(name: str, tmp_path: Path, nlp: Language) -> None:
    write(tmp_path / "in" / "train.conll", "a")
    write(tmp_path / "in" / "dev.conll", "b")
    write(tmp_path / "in" / name / "a.conll", "c")
    log = ConversionLog()
    data.convert(tmp_path / "in", tmp_path / "out", nlp=nlp, log=log)
    assert log.counts == {"skipped.file": 1}


# Output


@pytest.mark.parametrize("name", ["all.spacy", "all.jsonl"])
def test_convert_to_file_writes_whole_corpus_in_order(
    name: str, tmp_path: Path, nlp: Language
) -> None:
    files = [write(tmp_path / "train.conll", "a", "b"), write(tmp_path / "dev.conll", "c")]
    target = tmp_path / "new" / name
    counts = data.convert(files, target, nlp=nlp)
    assert counts == {
        "corpus": {"docs": 3, "sentences": 3, "tokens": 3, "entities": 3, "entities.X": 3}
    }
    assert [path.name for path in target.parent.iterdir()] == [name]
    again = tmp_path / "again.spacy"
    data.convert(target, again, nlp=nlp)
    assert texts(again, nlp) == ["a", "b", "c"]
    assert all([ent.label_ for ent in doc.ents] == ["X"] for doc in load(again, nlp))


@pytest.mark.parametrize("name", ["out.spacy", "out.jsonl", "out"])
def test_convert_bad_line_writes_nothing(name: str, tmp_path: Path, nlp: Language) -> None:
    source = write(tmp_path / "in" / "a.conll", *numbered(20))
    source.write_text(source.read_text() + "bad B\n")
    with pytest.raises(CorpusError, match="line 41"):
        data.convert(source, tmp_path / name, nlp=nlp)
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def all_kinds_of_docs(nlp: Language) -> list[Doc]:
    Doc.set_extension("seen", default=None, force=True)
    docs = [nlp(text) for text in ("Anna Lee saw Hanoi.", "", "Nothing\n here", "Vũ Hà " * 300)]
    docs[0].set_ents([docs[0].char_span(0, 8, "PER", kb_id="Q1", span_id="e1")], default="missing")
    docs[0].cats = {"news": 0.5}
    docs[0].spans["wrong"] = [docs[0][3:4], docs[0][2:4]]
    docs[2].user_data = {"meta": {"id": 7, "where": ("x", None)}, ("._.", "seen", None, None): 1}
    docs.append(Doc(nlp.vocab, ["a", "b"], sent_starts=[True, True]))
    return docs


@pytest.mark.parametrize("max_tokens", [10**6, 700, 5, 1])
def test_convert_spacy_to_spacy_keeps_all_doc_data(
    max_tokens: int, tmp_path: Path, nlp: Language, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one file, or in a folder of files with at most max_tokens tokens each."""
    monkeypatch.setattr(docbin, "MAX_TOKENS", max_tokens)
    docs = all_kinds_of_docs(nlp)
    DocBin(docs=docs, store_user_data=True).to_disk(tmp_path / "in.spacy")
    counts = data.convert(tmp_path / "in.spacy", tmp_path / "out.spacy", nlp=nlp)
    assert counts["corpus"]["docs"] == 5
    assert counts["corpus"]["sentences"] == 2  # of the last doc; of the empty one there is none
    files = find_docbins(tmp_path / "out.spacy")
    found = [load(file, nlp) for file in files]
    for each in found:
        assert sum(map(len, each)) <= max_tokens or len(list(filter(len, each))) == 1
    assert (len(files) > 1) == (tmp_path / "out.spacy").is_dir() == (max_tokens < 600)
    for doc, again in zip(docs, (doc for each in found for doc in each), strict=True):
        assert again.to_json() == doc.to_json()
        assert again.user_data == doc.user_data


def test_convert_sharded_output_equals_single_file(
    tmp_path: Path, nlp: Language, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write(tmp_path / "all.conll", *numbered(50))
    data.convert(source, tmp_path / "small", nlp=nlp)
    monkeypatch.setattr(docbin, "MAX_TOKENS", 4)
    for _ in range(2):  # the second time, it is replaced
        run(source, tmp_path / "big", nlp, overwrite=True)
    assert len(list((tmp_path / "big" / "train.spacy").iterdir())) == 10
    assert sorted(path.name for path in (tmp_path / "big").iterdir()) == [
        f"{part}.spacy" for part in sorted(data.SPLITS)
    ]
    assert data.detect_format(tmp_path / "big") == "spacy"
    for part in data.SPLITS:
        file, folder = (tmp_path / size / f"{part}.spacy" for size in ("small", "big"))
        by_spacy = [[eg.reference.text for eg in Corpus(path)(nlp)] for path in (file, folder)]
        assert by_spacy[0] == by_spacy[1] != []
    again = data.convert(tmp_path / "big", tmp_path / "again", nlp=nlp)
    monkeypatch.setattr(docbin, "MAX_TOKENS", 1000)
    run(source, tmp_path / "big", nlp, overwrite=True)
    assert (tmp_path / "big" / "train.spacy").is_file()
    assert {name: count["docs"] for name, count in again.items()} == {
        "train": 40,
        "dev": 4,
        "test": 6,
    }


def test_split_stores_each_doc_at_most_twice(
    tmp_path: Path, nlp: Language, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once as read, and once in its part; the part is then moved to the output."""
    source = write(tmp_path / "all.conll", *numbered(50))
    monkeypatch.setattr(docbin, "MAX_TOKENS", 1)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    numbers, real = [0], docbin.CorpusWriter.write

    def counted(self: docbin.CorpusWriter, path: Path) -> None:
        real(self, path)
        numbers.append(sum(each.is_file() for each in tmp_path.rglob("*.spacy")))

    monkeypatch.setattr(docbin.CorpusWriter, "write", counted)
    data.convert(source, tmp_path / "out", nlp=nlp)
    assert max(numbers) == 2 * 50  # each doc has a file
    assert not list((tmp_path / "scratch").iterdir())


def test_convert_write_failure_keeps_existing_parts(
    tmp_path: Path, nlp: Language, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write(tmp_path / "all.conll", *numbered(20))
    data.convert(source, tmp_path / "out", nlp=nlp)
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    real = docbin.CorpusWriter.write

    def fail(self: docbin.CorpusWriter, path: Path) -> None:
        if path.name.startswith("test"):
            path.write_bytes(b"half")
            raise OSError("disk full")
        real(self, path)

    monkeypatch.setattr(docbin.CorpusWriter, "write", fail)
    with pytest.raises(OSError, match="disk full"):
        run(source, tmp_path / "out", nlp, split=Split(seed=1), overwrite=True)
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before


@pytest.fixture
def outputs(tmp_path: Path, nlp: Language, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A corpus, its parts in the folder `out`, and a folder of several files, `in.spacy`."""
    source = write(tmp_path / "all.conll", *numbered(20))
    data.convert(source, tmp_path / "out", nlp=nlp)
    data.convert(source, tmp_path / "deep" / "train.spacy" / "0.spacy", nlp=nlp)
    monkeypatch.setattr(docbin, "MAX_TOKENS", 4)
    data.convert(source, tmp_path / "in.spacy", nlp=nlp)
    (tmp_path / "link").symlink_to(tmp_path / "in.spacy")
    return tmp_path


NOT_A_FOLDER = r"expected a folder.*The output is the last"
AN_INPUT = "expected an output that is not an input"
IN_INPUT = "output that is not in an input folder, got one"  # which would be read with it


@pytest.mark.parametrize(
    "source, target, says",
    [
        # If the output argument is forgotten, the last input is taken for it.
        *(("out", name, NOT_A_FOLDER) for name in ("all.conll", "out/dev.spacy")),
        *((name, "out", AN_INPUT) for name in ("out", "out/dev.spacy")),
        ("deep/train.spacy/0.spacy", "deep", AN_INPUT),
        *(("out", f"out/{name}", IN_INPUT) for name in ("all.spacy", "more")),
        *(("in.spacy", f"in.spacy/{name}", IN_INPUT) for name in ("new.spacy", "a/b.spacy", "a")),
        ("in.spacy", "link/new.spacy", IN_INPUT),
        ("all.conll", "out", r"train\.spacy: expected a new file.*--overwrite"),
    ],
)
def test_convert_output_that_replaces_or_joins_a_file_raises(
    source: str, target: str, says: str, outputs: Path, nlp: Language
) -> None:
    before = {path: path.is_file() and path.read_bytes() for path in outputs.rglob("*")}
    with pytest.raises(InputError, match=says):
        data.convert(outputs / source, outputs / target, nlp=nlp)
    assert {path: path.is_file() and path.read_bytes() for path in outputs.rglob("*")} == before


def test_convert_writes_other_format_beside_docbin_input(outputs: Path, nlp: Language) -> None:
    counts = data.convert(outputs / "out", outputs / "out" / "all.jsonl", nlp=nlp)
    assert counts["corpus"]["docs"] == 20


def test_convert_allows_output_inside_input_folder_of_other_format(
    tmp_path: Path, nlp: Language, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "train.conll", "a")
    write(tmp_path / "dev.conll", "b")
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        counts = run(Path("."), Path("corpus"), nlp, overwrite=True)
        assert [(name, count["docs"]) for name, count in counts.items()] == [
            ("train", 1),
            ("dev", 1),
        ]
    corpus = Path("corpus/train.spacy")
    run(corpus, Path("corpus/new.jsonl"), nlp)
    (tmp_path / "brat").mkdir()
    (tmp_path / "brat" / "a.txt").write_text("Hanoi")
    (tmp_path / "brat" / "a.ann").write_text("")
    for name in ("one.spacy", "two.spacy"):
        counts = data.convert(tmp_path / "brat", tmp_path / "brat" / name, nlp=nlp)
        assert counts["corpus"]["docs"] == 1


def test_convert_leftover_part_of_earlier_split_raises(tmp_path: Path, nlp: Language) -> None:
    """Docs of the old test would be in the new train."""
    source = write(tmp_path / "all.conll", *numbered(20))
    data.convert(source, tmp_path / "out", nlp=nlp)
    with pytest.raises(InputError, match=r"test\.spacy: expected only the parts train\.spa"):
        run(source, tmp_path / "out", nlp, split=Split((0.5, 0.5)), overwrite=True)
    (tmp_path / "out" / "test.spacy").unlink()
    run(source, tmp_path / "out", nlp, split=Split((0.5, 0.5)), overwrite=True)


def test_metadata_and_sentences_are_kept(tmp_path: Path, nlp: Language) -> None:
    source = tmp_path / "a.jsonl"
    records = [
        {"text": f"Hanoi {i}", "spans": [], "meta": {"n": i}, "sent_starts": [0]} for i in range(3)
    ]
    srsly.write_jsonl(source, records)
    data.convert(source, tmp_path / "one.spacy", nlp=nlp)
    run(source, tmp_path / "two.spacy", nlp, n_sents=2)
    metas = [doc.user_data["meta"] for doc in load(tmp_path / "one.spacy", nlp)]
    assert metas == [{"n": 0}, {"n": 1}, {"n": 2}]
    pair, single = load(tmp_path / "two.spacy", nlp)
    assert pair.user_data["meta"] == {"sentences": ({"n": 0}, {"n": 1})}
    assert [sent.text for sent in pair.sents] == ["Hanoi 0", "Hanoi 1"]
    assert single.user_data["meta"] == {"n": 2}
    data.convert(tmp_path / "two.spacy", tmp_path / "two.jsonl", nlp=nlp)
    data.convert(tmp_path / "two.jsonl", tmp_path / "again.spacy", nlp=nlp)
    again = load(tmp_path / "again.spacy", nlp)
    assert [doc.to_json() for doc in again] == [pair.to_json(), single.to_json()]
    assert [doc.user_data["meta"] for doc in again] == [
        doc.user_data["meta"] for doc in (pair, single)
    ]


def test_whitespace_at_the_ends_of_tokens_is_stripped_if_spaces_are_unknown(
    tmp_path: Path, nlp: Language
) -> None:
    """Otherwise `write_jsonl` writes entities with whitespace at their edges."""
    (tmp_path / "a.conll").write_text("Tim \tB-PER\n\xa0Cook\tI-PER\n \tO\nsang\tO\n", "utf-8")
    source = tmp_path / "a.conll"
    for name in ("b.spacy", "c.jsonl", "d.spacy"):
        data.convert(source, tmp_path / name, nlp=nlp)
        source = tmp_path / name
    for name in ("b.spacy", "d.spacy"):
        (doc,) = load(tmp_path / name, nlp)
        assert [token.text for token in doc] == ["Tim", "Cook", " ", "sang"]
        assert [(ent.text, ent.label_) for ent in doc.ents] == [("Tim Cook", "PER")]


# Dividing


@pytest.mark.parametrize("n", [10, 57])
@pytest.mark.parametrize("shares, seed", [(SHARES, 0), (SHARES, 5), ((0.5, 0.5), 1), ((1.0,), 0)])
def test_convert_split_by_sentences_keeps_corpus_order(
    n: int, shares: tuple[float, ...], seed: int, tmp_path: Path, nlp: Language
) -> None:
    source = write(tmp_path / "all.conll", *numbered(n))
    split = Split(shares, seed, by="sentences")
    run(source, tmp_path / "out", nlp, split=split)
    parts = split_units([1] * n, shares, seed)
    for i, (name, _) in enumerate(zip(data.SPLITS, shares)):
        expected = [word for word, part in zip(numbered(n), parts) if part == i]
        assert texts(tmp_path / "out" / f"{name}.spacy", nlp) == expected


@pytest.mark.parametrize("mode", ["documents", "blocks", "sentences"])
def test_convert_keeps_equal_texts_in_one_part(mode: str, tmp_path: Path, nlp: Language) -> None:
    """Also where only whitespace differs; so `check` finds neither leaks nor divided documents."""
    rng = random.Random(0)
    records = [
        {
            "text": rng.choice(["Hi {}", "Hi  {}", "Hi {} "]).format(i % 97),
            "spans": [],
            **({"document": f"d{i // 10}"} if mode == "documents" else {}),
        }
        for i in rng.sample(range(300), 300)
    ]
    srsly.write_jsonl(
        tmp_path / "a.jsonl", sorted(records, key=lambda each: each.get("document", ""))
    )
    log = ConversionLog()
    split = Split((0.6, 0.2, 0.2), by="sentences" if mode == "sentences" else "documents")
    run(tmp_path / "a.jsonl", tmp_path / "out", nlp, log=log, split=split)
    found = {part: load(tmp_path / "out" / f"{part}.spacy", nlp) for part in data.SPLITS}
    parts = {(" ".join(doc.text.split()), part) for part, docs in found.items() for doc in docs}
    assert len(parts) == 97 and sum(map(len, found.values())) == 300
    assert all(abs(len(docs) - n) <= 20 for docs, n in zip(found.values(), (180, 60, 60)))
    assert "203 docs that repeat a text" in " ".join(log.notes)
    kinds = {finding.kind for finding in check(found["train"], found["dev"]).findings}
    assert kinds.isdisjoint(("leak", "divided-document"))


@pytest.mark.parametrize(
    "parts, shares",
    [
        (["train", "test"], SHARES),
        (["train", "test"], (0.5, 0.5)),
        (["train"], SHARES),
        (["train"], (0.25, 0.75, 0.0)),
    ],
)
def test_convert_without_dev_splits_dev_from_train(
    parts: list[str], shares: tuple[float, ...], tmp_path: Path, nlp: Language
) -> None:
    words = {part: numbered(90 if part == "train" else 7, part) for part in parts}
    files = [write(tmp_path / "in" / f"{part}.conll", *words[part]) for part in parts]
    log = ConversionLog()
    split = Split(shares, by="sentences")
    counts = run(tmp_path / "in", tmp_path / "out", nlp, log=log, split=split)
    found = {part: texts(tmp_path / "out" / f"{part}.spacy", nlp) for part in counts}
    train = round(90 * shares[0] / (shares[0] + shares[1]))
    assert {part: len(docs) for part, docs in found.items()} == {
        "train": train,
        "dev": 90 - train,
        **({"test": 7} if "test" in parts else {}),
    }
    assert sorted(found["train"] + found["dev"]) == sorted(words["train"])
    assert found.get("test", []) == words.get("test", [])
    (note,) = log.notes
    assert note.startswith("No file for dev: train was split doc by doc at random")
    assert note.endswith(f" ({train} train, {90 - train} dev; seed 0).")
    if len(files) == 2:  # given by name, they are the same
        run(files, tmp_path / "named", nlp, split=split)
        assert texts(tmp_path / "named" / "dev.spacy", nlp) == found["dev"]
    run(tmp_path / "in", tmp_path / "other", nlp, split=Split(shares, 1))
    assert texts(tmp_path / "other" / "dev.spacy", nlp) != found["dev"]


def sentences_of_documents(n: int) -> list[tuple[str, str]]:
    """The words of sentences with one word each, and their documents of 1 to 5 sentences."""
    numbers = [i for i in range(n) for _ in range(1 + i % 5)]
    return [(f"w{i}", f"d{number}") for i, number in enumerate(numbers)]


def write_documents(folder: Path, format: str, n: int = 30) -> Path:
    words = sentences_of_documents(n)
    path = folder / format
    if format == "docstart":
        text, last = "", ""
        for word, document in words:
            text += "-DOCSTART- O\n\n" * (document != last) + f"{word} B-X\n\n"
            last = document
        path.write_text(text)
    elif format == "column":
        rows = [f"{word}\t{document}\tB-X\nso\t{document}\tO\n\n" for word, document in words]
        path.write_text("".join(rows))
    elif format == "spacy":
        data.convert(write_documents(folder, "meta", n), folder / "a.spacy", nlp=spacy.blank("en"))
        path = folder / "a.spacy"
    else:
        named = [({"document": name}, {"doc_id": name}) for _, name in words]
        more = [key if format == "key" else {"meta": meta} for key, meta in named]
        srsly.write_jsonl(path, [{"text": w, "spans": [], **m} for (w, _), m in zip(words, more)])
    return path


@pytest.mark.parametrize("format", ["docstart", "column", "meta", "key", "spacy"])
def test_convert_puts_each_document_in_one_part(format: str, tmp_path: Path, nlp: Language) -> None:
    log = ConversionLog()
    source = write_documents(tmp_path, format)
    data.convert(source, tmp_path / "out", nlp=nlp, log=log)
    of = dict(sentences_of_documents(30))
    found: dict[str, set[str]] = {}
    for part in data.SPLITS:
        docs = load(tmp_path / "out" / f"{part}.spacy", nlp)
        for doc in docs:
            found.setdefault(of[doc[0].text], set()).add(part)
        # What is written still says it, for another split and for `check`.
        assert len({document_of(doc) for doc in docs}) == len({of[doc[0].text] for doc in docs})
    assert len(found) == 30 and all(len(parts) == 1 for parts in found.values())
    assert {part for parts in found.values() for part in parts} == {*data.SPLITS}
    assert any(note.startswith("Split by whole documents, 30 (") for note in log.notes)


def test_convert_by_sentences_divides_documents(tmp_path: Path, nlp: Language) -> None:
    source = write_documents(tmp_path, "docstart")
    output = convert(source, tmp_path / "out", "--split-by", "sentences")
    assert "Split doc by doc at random, whatever document they are from (72 train, 9 dev" in output
    parts: dict[str | None, set[str]] = {}
    for part in data.SPLITS:
        for doc in load(tmp_path / "out" / f"{part}.spacy", nlp):
            parts.setdefault(document_of(doc), set()).add(part)
    assert sum(len(each) > 1 for each in parts.values()) > 5


@pytest.mark.parametrize("names", [("1.txt", "1.ann"), ("1.conll",)])
def test_convert_documents_of_equal_names_in_the_folders_of_two_parts_differ(
    names: tuple[str, ...], tmp_path: Path, nlp: Language
) -> None:
    content = {".txt": "Ann left.", ".ann": "", ".conll": "-DOCSTART- O\n\nAnn O\nleft O\n"}
    found = []
    for part in ("train", "dev"):
        folder = tmp_path / part / "brat"
        folder.mkdir(parents=True)
        for name in names:
            (folder / name).write_text(content[Path(name).suffix])
        source = folder if len(names) > 1 else folder / names[0]
        data.convert(source, tmp_path / f"{part}.spacy", nlp=nlp)
        found += [document_of(doc) for doc in docbin.read_spacy(tmp_path / f"{part}.spacy", nlp)]
    assert len(found) == 2 and None not in found and found[0] != found[1]


def test_convert_notes_a_split_that_is_not_used(tmp_path: Path, nlp: Language) -> None:
    for part in ("train", "dev", "test"):
        write(tmp_path / "in" / f"{part}.conll", "a", "b")
    for target, split, noted in (
        ("a", Split((0.5, 0.5)), True),
        ("b", Split(by="sentences"), True),
        ("c.spacy", Split((0.5, 0.5)), True),
        ("d", Split(seed=3), False),
    ):
        log = ConversionLog()
        run(tmp_path / "in", tmp_path / target, nlp, log=log, split=split)
        assert any(note.startswith("The split is not used") for note in log.notes) == noted


@pytest.mark.parametrize("name", ["out.txt", "out.json", "out.conll", "new/corpus.csv"])
def test_convert_output_with_unknown_suffix_raises(
    name: str, tmp_path: Path, nlp: Language
) -> None:
    source = write(tmp_path / "a.conll", *numbered(20))
    with pytest.raises(InputError, match=r"expected a folder, or a file that ends in \.spacy or"):
        data.convert(source, tmp_path / name, nlp=nlp)
    assert [path.name for path in tmp_path.iterdir()] == ["a.conll"]
    (tmp_path / name).mkdir(parents=True)
    assert data.convert(source, tmp_path / name, nlp=nlp)
    assert data.convert(source, tmp_path / "corpus-1.0", nlp=nlp)


def test_convert_lists_all_mistakes_by_kind_and_what_repair_does(
    tmp_path: Path, nlp: Language
) -> None:
    lines = [f"[Anna](PER) came {i}\n" for i in range(80)]
    lines[10:10] = ["[Tim](PER)othy\n", "[open\n", "[Bo](LOC)b\n"]
    (tmp_path / "a.txt").write_text("".join(lines))
    with pytest.raises(CorpusError) as caught:
        data.convert(tmp_path / "a.txt", tmp_path / "out", nlp=nlp)
    first, *listed = str(caught.value).splitlines()
    assert "expected no mistakes, got 3 (alignment 2, record 1)" in first
    assert "--repair, which leaves out 1 of 83 records and 2 of 82 entities" in first
    kinds = [line for line in listed if not line.startswith(" ")]
    assert kinds == ["Rejected: alignment 2", "Rejected: record 1"]
    places = [re.findall(r"line (\d+): ", line) for line in listed if line.startswith(" ")]
    assert places == [["11"], ["13"], [], ["12"]]
    assert "Their edges inside tokens: 2 between a letter and a letter (Tim|othy)" in listed[3]
    assert not (tmp_path / "out").exists()
    # A single mistake is one line.
    lines[10:13] = ["[open\n"]
    (tmp_path / "a.txt").write_text("".join(lines))
    with pytest.raises(CorpusError, match=r"a\.txt, line 11: expected \[text\]\(LABEL\)") as caught:
        data.convert(tmp_path / "a.txt", tmp_path / "out", nlp=nlp)
    assert len(str(caught.value).splitlines()) == 1


def test_convert_shows_what_changed_entities_became(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("[Tim](PER)othy came\n")
    for alignment, became in (("expand", "'Timothy'"), ("missing", "not annotated")):
        target = tmp_path / f"{alignment}.spacy"
        output = convert(tmp_path / "a.txt", target, "--alignment", alignment)
        assert f"Aligned: {alignment} 1" in output
        assert f"line 1: 'Tim' (PER, 0:3) became {became}." in output
        assert "expected" not in output


@pytest.mark.parametrize("bad, allowed", [(1, True), (2, False), (19, False)])
def test_convert_repair_that_leaves_out_over_5_percent_raises(
    bad: int, allowed: bool, tmp_path: Path, nlp: Language
) -> None:
    lines = [f"[Anna](PER) came {i}\n" for i in range(20 - bad)] + ["[Tim](PER)othy\n"] * bad
    (tmp_path / "a.txt").write_text("".join(lines))
    log = ConversionLog(repair=True)
    if allowed:
        data.convert(tmp_path / "a.txt", tmp_path / "out", nlp=nlp, log=log)
        return
    says = rf"at most 5\.0% of the entities to be left out, got {bad} of 20"
    with pytest.raises(CorpusError, match=says):
        data.convert(tmp_path / "a.txt", tmp_path / "out", nlp=nlp, log=log)
    assert not (tmp_path / "out").exists()
    output = convert(tmp_path / "a.txt", tmp_path / "a.spacy", "--repair", "--max-loss", "1.0")
    assert f"Rejected: alignment {bad}" in output


def test_convert_max_loss_is_of_each_part_and_of_sentences_too(
    tmp_path: Path, nlp: Language
) -> None:
    write(tmp_path / "train.conll", *numbered(100))
    with write(tmp_path / "dev.conll", "a", "b", "c").open("a") as file:
        file.write("bad X\n")
    with pytest.raises(CorpusError, match=r"dev: expected at most 5\.0% of the records .* 1 of 4"):
        data.convert(tmp_path, tmp_path / "out", nlp=nlp, log=ConversionLog(repair=True))


def test_convert_counts_sentences_only_where_they_are_known(tmp_path: Path, nlp: Language) -> None:
    source = tmp_path / "a.jsonl"
    srsly.write_jsonl(source, [{"text": f"Hanoi {i}", "spans": []} for i in range(3)])
    (counts,) = data.convert(source, tmp_path / "a.spacy", nlp=nlp).values()
    assert counts == {"docs": 3, "tokens": 6, "entities": 0}
    assert "sentences 0" not in convert(source, tmp_path / "out")
    assert data.convert(write(tmp_path / "a.conll", "a"), tmp_path / "b.spacy", nlp=nlp) == {
        "corpus": {"docs": 1, "sentences": 1, "tokens": 1, "entities": 1, "entities.X": 1}
    }


def test_convert_without_dev_share_writes_no_dev(tmp_path: Path, nlp: Language) -> None:
    for part in ("train", "test"):
        write(tmp_path / "in" / f"{part}.conll", *numbered(9))
    log = ConversionLog()
    counts = run(tmp_path / "in", tmp_path / "out", nlp, log=log, split=Split((1.0,)))
    assert {part: count["docs"] for part, count in counts.items()} == {"train": 9, "test": 9}
    assert not log.notes


def test_convert_frees_docs(tmp_path: Path, nlp: Language, monkeypatch: pytest.MonkeyPatch) -> None:
    alive = []

    def read(path: Path, nlp: Language, log: ConversionLog) -> Iterator[Doc]:
        for i in range(50):
            if i in (5, 45):
                alive.append(sum(type(each) is Doc for each in gc.get_objects()))
            yield Doc(nlp.vocab, [f"w{i}"])

    monkeypatch.setitem(data.FORMATS, "fake", read)
    gc.freeze()  # what is there already need not be looked through
    try:
        for target in ("out", "out.spacy", "out.jsonl"):
            source = write(tmp_path / "a.conll", "a")
            run(source, tmp_path / target, nlp, format="fake")
    finally:
        gc.unfreeze()
    assert len(alive) == 6
    assert max(alive) - min(alive) <= 3


def test_convert_calls_on_progress_for_each_doc(tmp_path: Path, nlp: Language) -> None:
    source = write(tmp_path / "a.conll", *numbered(10))
    seen: list[tuple[str, int]] = []
    data.convert(source, tmp_path, nlp=nlp, on_progress=lambda *progress: seen.append(progress))
    assert seen == [("corpus", i) for i in range(11)]


# Counting


def test_convert_repair_counts_kept_and_rejected_records(tmp_path: Path, nlp: Language) -> None:
    good = "[Anna](PER) saw [Hanoi](LOC)\n"
    content = {
        "train": good * 3 + "[Bob](PER) and [Eve\n",
        "dev": good + "[ Bob ](PER) and [  ](PER) in [Han](LOC)oi\n",
    }
    for part, text in content.items():
        (tmp_path / f"{part}.txt").write_text(text)
    log = ConversionLog(repair=True, max_loss=0.5)
    counts = data.convert(tmp_path, tmp_path / "out", nlp=nlp, log=log)
    assert log.parts == {
        "train": {"records": 4, "entities": 7, "rejected.records": 1, "rejected.entities": 1},
        "dev": {"records": 2, "entities": 5, "rejected.records": 0, "rejected.entities": 2},
    }
    for part, totals in log.parts.items():
        assert counts[part]["docs"] == totals["records"] - totals["rejected.records"]
        assert counts[part]["entities"] == totals["entities"] - totals["rejected.entities"]
    assert log.counts == {
        "rejected.record": 1,
        "rejected.whitespace": 1,
        "rejected.alignment": 1,
        "trimmed.whitespace": 1,
    }
    assert len(log.messages) == 3
    assert log.messages[0].startswith(f"{tmp_path / 'train.txt'}, line 4: expected [text](LABEL)")


def test_convert_repair_with_alignment_missing_is_no_loss(tmp_path: Path, nlp: Language) -> None:
    path = put(tmp_path / "a.txt", "x [New York-sty](LOC)le\n" * 3)
    log = ConversionLog(repair=True, alignment="missing", max_loss=0.0)
    counts = data.convert(path, tmp_path / "a.spacy", nlp=nlp, log=log)
    assert counts["corpus"]["entities"] == 0 and log.counts == {"aligned.missing": 3}
    # What is left out by mistake still is.
    path.write_text("x [New York-sty](LOC)le\n" * 3 + "x [y\n")
    with pytest.raises(CorpusError, match=r"at most 0\.0% of the records"):
        data.convert(
            path, tmp_path / "b.spacy", nlp=nlp, log=ConversionLog(True, "missing", None, 0)
        )


def test_convert_repair_that_leaves_no_doc_lists_the_mistakes(
    tmp_path: Path, nlp: Language
) -> None:
    path = put(tmp_path / "a.txt", "x [Ann](PER) [y\n")
    says = r"at least one doc, got none, 1 rejected\.record(?s:.*)a\.txt, line 1: .*\[y"
    for name in ("a.spacy", "a.jsonl"):
        with pytest.raises(CorpusError, match=says):
            run(path, tmp_path / name, nlp, log=ConversionLog(repair=True), format="inline")
    assert [*tmp_path.iterdir()] == [path]


def test_convert_refuses_a_second_split_in_another_format_beside_the_first(
    tmp_path: Path, nlp: Language
) -> None:
    path = put(tmp_path / "a.txt", "[Ann](PER)\n[Bo](PER)\n[Cy](PER)\n")
    data.convert(path, tmp_path / "out", nlp=nlp)
    with pytest.raises(InputError, match=r"train\.spacy: expected only the parts train\.parq"):
        run(path, tmp_path / "out", nlp, parquet=True)
    run(path, tmp_path / "out", nlp, parquet=True, overwrite=True)


@pytest.mark.parametrize("line", ["[Ulm](GPE.city)", "- Oui, dit [Paul](PER)."])
def test_detect_format_knows_inline_labels_of_parts_and_dialogues(
    line: str, tmp_path: Path
) -> None:
    path = put(tmp_path / "a.txt", f"[Ann](PER) ran.\n{line}\n")
    assert data.detect_format(path) == "inline"
    path.write_text(f"[Ann](PER) ran.\n{line}\n[more](a.com)\n")
    with pytest.raises(CorpusError, match="web links"):
        data.detect_format(path)


def test_conversion_log_unknown_alignment_raises() -> None:
    with pytest.raises(
        ValueError, match="expected one of strict, expand, contract, split, missing, got"
    ):
        ConversionLog(alignment="loose")


# Hostile files


HOSTILE = {
    "empty": b"",
    "blank": b"\n \n\t\n\r\n",
    "nul": b"Anna\tB-X\nb\0c\tO\n",
    "utf-16-le": "Anna\tB-X\nb\tO\n".encode("utf-16-le"),
    "bytes": bytes(range(256)),
    "long": b"[Anna](PER) came\n" + b"a" * 400,
}


@pytest.mark.parametrize("format", ["auto", "inline", "conll", "table"])
@pytest.mark.parametrize("name", HOSTILE)
def test_convert_malformed_file_raises_error_with_path(
    name: str, format: str, tmp_path: Path, nlp: Language, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 300)
    path = tmp_path / "a.txt"
    path.write_bytes(HOSTILE[name])
    with pytest.raises(CorpusError) as caught:
        run(path, tmp_path / "out", nlp, format=format)
    assert str(caught.value).startswith(str(path))
    assert re.search(r": expected .*, got .*\. .*\.$", str(caught.value), re.S)
    assert not (tmp_path / "out").exists()


def test_read_inline_long_line_raises_or_is_rejected(
    tmp_path: Path, nlp: Language, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 30)
    path = tmp_path / "a.txt"
    path.write_bytes(b"[A](X) b\n" + b"c " * 100 + b"\n" + b"d" * 29 + b"\n" + b"e" * 30 + b"\n")
    with pytest.raises(CorpusError, match=r"line 2: expected a line of at most 30 bytes"):
        list(data.read_inline(path, nlp))
    log = ConversionLog(repair=True)
    docs = list(data.read_inline(path, nlp, log))
    assert [doc.text for doc in docs] == ["A b", "d" * 29]
    assert [note.split(":")[0][-6:] for note in log.messages] == ["line 2", "line 4"]


def test_read_inline_text_over_max_length_raises_with_line(tmp_path: Path) -> None:
    nlp = spacy.blank("en")
    nlp.max_length = 10
    path = put(tmp_path / "a.txt", "[A](X) b\nlonger than ten\n")
    with pytest.raises(CorpusError, match="line 2: expected a text of at most 10 characters"):
        list(data.read_inline(path, nlp))


# Format detection


LONG = "Hanoi " + "lorem ipsum " * 10_000


@pytest.mark.parametrize(
    "format, line",
    [
        ("jsonl", json.dumps({"text": LONG, "spans": [{"start": 0, "end": 5, "label": "GPE"}]})),
        ("doccano", json.dumps({"text": LONG, "label": [[0, 5, "GPE"]]})),
        ("label_studio", json.dumps([{"data": {"text": LONG}, "annotations": []}])),
        ("inline", f"[Hanoi](GPE){LONG[5:]}"),
        ("conll", f"{LONG.strip().replace(' ', '_')} B-GPE"),
    ],
)
def test_detect_format_reads_long_first_record(format: str, line: str, tmp_path: Path) -> None:
    path = put(tmp_path / "corpus", line + "\n")
    assert data.detect_format(path) == format


def test_detect_format_first_line_over_limit_raises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 100)
    (tmp_path / "a").write_text('{"text": "' + "a" * 200 + '"}')
    with pytest.raises(CorpusError, match="line 1: expected a line of at most 100 bytes"):
        data.detect_format(tmp_path / "a")


def test_detect_format_identifies_binary_file_without_suffix(tmp_path: Path, nlp: Language) -> None:
    DocBin(docs=[nlp("a")]).to_disk(tmp_path / "corpus")
    assert data.detect_format(tmp_path / "corpus") == "spacy"
    (tmp_path / "text").write_text("x [Hanoi](GPE)\n")  # the first byte is the same
    assert data.detect_format(tmp_path / "text") == "inline"


def test_convert_column_option_of_wrong_format_raises(tmp_path: Path, nlp: Language) -> None:
    source = HERE / "fixtures" / "columns.conllu"
    run(source, tmp_path / "a.spacy", nlp, columns={"token_column": 2, "tag_column": 4})
    assert len(load(tmp_path / "a.spacy", nlp)) == 3
    chosen: list[tuple[str, int | str]] = [("inline", 4), ("hugging_face", 4)]
    for format, column in chosen:
        says = f"tag_column: expected a format with such columns.*'{format}'"
        with pytest.raises(ValueError, match=says):
            options = data.ConvertOptions(format=format, columns={"tag_column": column})
            data.convert(source, tmp_path / "b.spacy", options, nlp=nlp)
    options = data.ConvertOptions(columns={"tag_column": "ner"})
    with pytest.raises(CorpusError, match=f"{source}: expected a column 'ner', got"):
        data.convert(source, tmp_path / "b.spacy", options, nlp=nlp)


BODY = '{"body": "Ann left", "persons": [[0, 3, "PER"]]}\n'
TABLE = 'text,entities\nAnn left,"[[0,3,""PER""]]"\n'


@pytest.mark.parametrize(
    "content, options, says",
    [
        ("word tag\nAnn B-PER\n", {"columns": {"tag_column": "tga"}}, "column 'tga'.* mean tag"),
        (TABLE, {"columns": {"text_column": "txt"}}, "column 'txt'.* mean text"),
        (BODY, {"columns": {"text_column": "boddy", "spans_column": "persons"}}, "mean body"),
        (BODY, {"columns": {"text_column": "body", "spans_column": "person"}}, "mean persons"),
        ("[Ann](PERSON)\n", {"labels": ["LOC", "PERSN"]}, "annotated labels.* mean PERSON"),
    ],
)
def test_convert_unknown_name_suggests_the_nearest_one(
    content: str, options: dict[str, Any], says: str, tmp_path: Path, nlp: Language
) -> None:
    (tmp_path / "a").write_text(content)
    with pytest.raises(CorpusError, match=rf"{says}\? [A-Z]"):
        run(tmp_path / "a", tmp_path / "a.spacy", nlp, **options)


def test_convert_chosen_columns_of_texts_are_also_those_of_a_table_with_tabs(
    tmp_path: Path, nlp: Language
) -> None:
    (tmp_path / "a.tsv").write_text('id\tticket\tfound\n7\tAnn left\t[[0, 3, "PER"]]\n')
    columns = {"text_column": "ticket", "spans_column": "found"}
    counts = run(tmp_path / "a.tsv", tmp_path / "a.spacy", nlp, columns=columns)
    assert counts["corpus"]["entities.PER"] == 1
    assert texts(tmp_path / "a.spacy", nlp) == ["Ann left"]


# The command


def convert(*arguments: Any) -> str:
    result = runner.invoke(app, ["convert", *map(str, arguments)])
    assert result.exit_code == 0, result.output
    return " ".join(result.output.replace("│", " ").split())


@pytest.mark.parametrize("mistakes", [20, 21])
def test_convert_command_prints_ellipsis_after_20_messages(tmp_path: Path, mistakes: int) -> None:
    path = put(tmp_path / "a.conll", "# a comment\na B-PER\n\n" + "b X\n\n" * mistakes)
    options = ["--repair", "--max-loss", "1.0", "--format", "conll"]
    lines = convert(path, tmp_path / "out.spacy", *options).split()
    assert f"Rejected: tag {mistakes}" in " ".join(lines) and "comment 1" in " ".join(lines)
    assert ("..." in lines) == (mistakes > 20)


def test_convert_command_prints_counts_and_messages(tmp_path: Path) -> None:
    path = put(tmp_path / "a.conll", "# a comment\na B-[red]\n\nb L-[red]\n\nc O\nd X\n")
    output = convert(path, tmp_path / "out.spacy", "--repair", "--max-loss", "0.5")
    assert "corpus, records 3 1 2 corpus, entities 2 0 2" in output
    assert f"Tags: BILUO ({path})" in output
    assert "Skipped: comment 1" in output
    assert "Rejected: tag 1" in output
    assert "Repaired: tags 2" in output
    assert f"{path}, line 7: expected a token and a tag" in output
    assert "entities.[red] 2" in output


@pytest.mark.parametrize("kind", ["-", "device", "stdout", "pipe"])
def test_convert_command_refuses_a_stream_at_once(kind: str, tmp_path: Path) -> None:
    """Opening a pipe that nobody reads would never end; replacing it would remove it."""
    (tmp_path / "a.conll").write_text("Hanoi B-GPE\n")
    outputs = {"-": "-", "device": os.devnull, "stdout": "/dev/stdout"}  # which may be a file
    output = outputs.get(kind, str(tmp_path / "pipe"))
    if kind == "pipe":
        os.mkfifo(output)
    result = CliRunner().invoke(app, ["convert", str(tmp_path / "a.conll"), output])
    assert result.exit_code == 1
    assert f"{output}: expected a folder or the name of a file, got a stream" in result.output
    assert kind == "-" or Path(output).exists()


def test_convert_command_accepts_several_inputs_and_columns(tmp_path: Path, nlp: Language) -> None:
    for part in ("train", "dev"):
        (tmp_path / f"{part}.conll").write_text("B-X x Anna y\nO x came y\n")
    inputs = [tmp_path / "train.conll", tmp_path / "dev.conll"]
    output = convert(*inputs, tmp_path / "out", "--tag-column", "1", "--token-column", "-2")
    assert "Format: conll" in output
    (doc,) = load(tmp_path / "out" / "dev.spacy", nlp)
    assert [(ent.text, ent.label_) for ent in doc.ents] == [("Anna", "X")]


def test_the_help_has_an_example_of_each_format() -> None:
    output = runner.invoke(app, ["convert", "--help"]).output
    for format in data.FORMATS:
        assert re.search(rf"^    {format}  +\S", output, re.M), format
