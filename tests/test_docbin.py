"""Reading .spacy files: data errors raise InputError, machine errors are passed on."""

from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import MethodType
from typing import Any

import catalogue
import pytest
import spacy
import srsly
from spacy.tokens import Doc, DocBin
from spacy.training.corpus import walk_corpus

from spacy_crf_ner.docbin import find_docbins, find_encoders_once, read_docbin
from spacy_crf_ner.input_error import InputError

VOCAB = spacy.blank("en").vocab


@pytest.fixture
def file(tmp_path: Path) -> Path:
    doc = Doc(VOCAB, words=["Ems"])
    doc.user_data["source"] = "by hand"
    DocBin(docs=[doc, Doc(VOCAB)], store_user_data=True).to_disk(tmp_path / "train.spacy")
    return tmp_path / "train.spacy"


def test_read_docbin_returns_complete_and_empty_docs(file: Path) -> None:
    total, docs = read_docbin(file, VOCAB)
    first, second = docs
    assert (total, first.text, len(second)) == (2, "Ems ", 0)
    assert first.user_data["source"] == "by hand"


@pytest.mark.parametrize(
    "raised, expected", [(KeyError, InputError), (OSError, OSError), (MemoryError, MemoryError)]
)
def test_read_docbin_raises_input_error_only_for_data_errors(
    raised: type[Exception], expected: type[Exception], file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def get_docs(*args: Any) -> Iterator[Doc]:
        raise raised
        yield

    monkeypatch.setattr(DocBin, "get_docs", get_docs)
    _, docs = read_docbin(file, VOCAB)
    with pytest.raises(expected):
        list(docs)


def test_read_docbin_of_damaged_file_raises(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:50])
    with pytest.raises(InputError, match=r"train\.spacy: expected spaCy's binary format"):
        read_docbin(file, VOCAB)


def test_read_docbin_reads_folder_named_like_file(file: Path, tmp_path: Path) -> None:
    parts = tmp_path / "corpus" / "train.spacy"
    parts.mkdir(parents=True)
    for name in ("00000.spacy", "00001.spacy"):
        (parts / name).write_bytes(file.read_bytes())
    for folder in (parts, parts.parent):
        total, docs = read_docbin(folder, VOCAB)
        assert total == len(list(docs)) == 4


def test_find_docbins_follows_same_links_as_spacy(file: Path, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    for name in ("stored/part", ".hidden"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "a.spacy").write_bytes(file.read_bytes())
    corpus.mkdir()
    for name in ("stored", ".hidden"):
        (corpus / name).symlink_to(tmp_path / name)
    (corpus / "b.spacy").symlink_to(file)
    assert [*map(str, find_docbins(corpus))] == [*map(str, walk_corpus(corpus, ".spacy"))]
    total, docs = read_docbin(corpus, VOCAB)
    assert total == len(list(docs)) == 4


@pytest.mark.parametrize("word, tag", [("unheard-of", "O"), ("Ems", "B-unheard-of")])
def test_read_docbin_of_doc_with_missing_strings_raises(word: str, tag: str, file: Path) -> None:
    docs = [Doc(VOCAB, words=["Ems"]), Doc(VOCAB, words=[word], ents=[tag])]
    packed = DocBin(docs=docs)
    packed.strings.remove("unheard-of")
    packed.to_disk(file)
    _, read = read_docbin(file, spacy.blank("en").vocab)
    assert next(read).text == "Ems "
    with pytest.raises(InputError, match=r"train\.spacy, doc 2: expected spaCy's binary format"):
        next(read)


def test_find_encoders_once_prevents_repeated_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    """No Doc searches again, and the encoder that a package has registered is still used."""
    encoders, decoders = srsly.msgpack_encoders, srsly.msgpack_decoders
    searches = []

    def encode(value: Any, chain: Any = None) -> Any:
        return {"set": sorted(value)} if isinstance(value, set) else value

    def decode(value: Any, chain: Any = None) -> Any:
        return set(value["set"]) if "set" in value else value

    def search(self: catalogue.Registry) -> dict[str, Any]:
        searches.append(self)
        return {"set": encode if self is encoders else decode}

    for registry in (encoders, decoders):  # monkeypatch restores what is there
        monkeypatch.setattr(registry, "get_entry_points", MethodType(search, registry))
        for name in ("get_all", "register"):  # as srsly has them
            monkeypatch.setattr(registry, name, getattr(catalogue.Registry, name).__get__(registry))
    doc = Doc(VOCAB, words=["Ems"])
    doc.user_data["set"] = {1, 2}
    written = doc.to_bytes()
    assert len(searches) > 2
    find_encoders_once()
    searches.clear()
    for _ in range(2):
        assert doc.to_bytes() == written
        assert Doc(VOCAB).from_bytes(written).user_data["set"] == {1, 2}
    assert sorted(map(id, searches)) == sorted(map(id, (encoders, decoders)))
    monkeypatch.delitem(catalogue.REGISTRY, ("srsly", "msgpack_encoders", "late"), raising=False)
    encoders("late")(lambda value, chain=None: ["late"] if value == {1, 2} else value)
    assert srsly.msgpack_loads(srsly.msgpack_dumps({1, 2})) == ["late"]


def test_package_that_spacy_imports_prevents_repeated_searches(file, monkeypatch) -> None:
    """Also where spaCy itself reads a corpus, as in `spacy train`."""
    import_module("spacy_crf_ner.pipeline")
    searches = Counter[str]()
    search = catalogue.Registry._get_entry_points

    def count(self: catalogue.Registry) -> Any:
        searches[self.entry_point_namespace] += 1
        return search(self)

    monkeypatch.setattr(catalogue.Registry, "_get_entry_points", count)
    for _ in range(3):
        packed = DocBin().from_disk(file)
        DocBin(docs=packed.get_docs(VOCAB), store_user_data=True).to_bytes()
    assert all(searches[f"srsly_msgpack_{kind}"] <= 1 for kind in ("encoders", "decoders"))


def test_find_docbins_skips_links_to_parent_folders(tmp_path):
    folder = tmp_path / "corpus" / "more"
    folder.mkdir(parents=True)
    (folder / "a.spacy").touch()
    for link, target in (("self", folder), ("again", folder), ("up", tmp_path / "corpus")):
        (folder / link).symlink_to(target)
    assert find_docbins(tmp_path / "corpus") == [folder / "a.spacy"]
