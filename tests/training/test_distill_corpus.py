"""The reader of teachers' scores: it pairs and shuffles docs, with few files open at a time."""

import gc
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import spacy
from spacy.tokens import Doc, Span

from spacy_crf_ner.input_error import InputError
from spacy_crf_ner.pipeline.distill_targets import KEY, Teacher
from spacy_crf_ner.training import distill_corpus as module
from spacy_crf_ner.training.distill_corpus import distill_corpus
from spacy_crf_ner.training.teacher_shard import TeacherShard, checksum, read_shard, to_bytes

NLP = spacy.blank("en")
C = (5, 3)  # tags of two teachers


def teachers(seed: int = 0) -> list[Teacher]:
    rng = np.random.default_rng(seed)
    kinds = ("biluo", ("A",), False, 1), ("io", ("A", "B"), False, 1)
    arrays = [[rng.normal(size=s).astype("f") for s in ((c, c), c, c)] for c in C]
    return [Teacher(*kind, *scores) for kind, scores in zip(kinds, arrays)]


def shard(texts: list[str], seed: int = 0) -> TeacherShard:
    """The scores of a token are its length and its place, so they show which token they are of."""
    docs = [NLP.make_doc(text) for text in texts]
    scores = [[_scores(doc, c) for c in C] for doc in docs]
    return TeacherShard(docs, [checksum(doc) for doc in docs], teachers(seed), scores)


def _scores(doc: Doc, c: int) -> Any:
    return np.array([[len(t) + t.i / 100 + tag / 10000 for tag in range(c)] for t in doc], "f")


def write(folder: Path, number: int, content: TeacherShard) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / f"part-{number:06}.npz"
    path.write_bytes(to_bytes(content))
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for n in range(12):
        write(tmp_path, n, shard([f"doc {n} of {'x' * i} words." for i in range(n % 3 + 1)]))
    return tmp_path


def test_read_shard_restores_shard_with_equal_bytes(tmp_path: Path) -> None:
    given = shard(["one two", "three", "Anna's  house\n"])
    doc = given.docs[0]
    doc.set_ents([Span(doc, 0, 1, "A")])
    doc.spans["sc"] = [Span(doc, 0, 2, "A"), Span(doc, 1, 2, "B")]
    path = write(tmp_path, 0, given)
    found = read_shard(path, spacy.blank("en").vocab)
    assert [d.text for d in found.docs] == [d.text for d in given.docs]
    assert [str(e) for e in found.docs[0].ents] == ["one"]
    assert [(str(s), s.label_) for s in found.docs[0].spans["sc"]] == [
        ("one two", "A"),
        ("two", "B"),
    ]
    assert [t.ent_iob for t in found.docs[1]] == [0]  # not annotated
    assert [t.ent_iob_ for t in found.docs[0]] == ["B", "O"]
    assert found.checksums == given.checksums
    for a, b in zip(found.teachers, given.teachers, strict=True):
        assert a.equals(b) and a.labels == b.labels
    for of_doc, expected in zip(found.emissions, given.emissions, strict=True):
        for mine, theirs in zip(of_doc, expected, strict=True):
            np.testing.assert_array_equal(mine, theirs)
    assert to_bytes(found) == path.read_bytes()


def test_distill_corpus_pairs_each_doc_with_its_scores(folder: Path) -> None:
    read = distill_corpus(str(folder), weight=0.3, temperature=2.0)
    found = list(read(NLP))
    assert Counter(eg.text for eg in found) == Counter(
        f"doc {n} of {'x' * i} words." for n in range(12) for i in range(n % 3 + 1)
    )
    for eg in found:
        target = eg.reference.user_data[KEY]
        first = found[0].reference.user_data[KEY]
        assert all(a is b for a, b in zip(target.teachers, first.teachers, strict=True))
        assert target[2:] == (0.3, 2.0)
        for emissions, c in zip(target.emissions, C, strict=True):
            np.testing.assert_array_equal(emissions, _scores(eg.predicted, c))


def test_distill_corpus_order_depends_on_epoch_and_seed(folder: Path) -> None:
    one, same, other = (distill_corpus(folder, seed=seed) for seed in (0, 0, 1))
    epochs = [[eg.text for eg in one(NLP)] for _ in range(2)]
    assert epochs == [[eg.text for eg in same(NLP)] for _ in range(2)]
    orders = [*epochs, [eg.text for eg in other(NLP)]]
    assert len({tuple(order) for order in orders}) == 3
    assert len({tuple(sorted(order)) for order in orders}) == 1


def test_distill_corpus_shuffles_docs_of_file(tmp_path: Path) -> None:
    write(tmp_path, 0, shard([f"doc {i}" for i in range(20)]))
    order = [int(eg.text.split()[1]) for eg in distill_corpus(tmp_path)(NLP)]
    assert sorted(order) == [*range(20)] and order not in ([*range(20)], [*range(20)][::-1])


def test_distill_corpus_spreads_small_files_among_large_one(tmp_path: Path) -> None:
    write(tmp_path, 0, shard([f"large {i}" for i in range(100)]))
    for n in range(1, module.OPEN_FILES):
        write(tmp_path, n, shard([f"small {n} {i}" for i in range(5)]))
    order = [eg.text for eg in distill_corpus(tmp_path)(NLP)]
    places = [i for i, text in enumerate(order) if text.startswith("small")]
    assert len(order) == 135 and 50 < np.mean(places) < 85  # by chance 67


def test_distill_corpus_changes_file_order_in_each_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "OPEN_FILES", 1)
    for n in range(10):
        write(tmp_path, n, shard([f"{n} {i}" for i in range(2)]))
    read = distill_corpus(tmp_path)
    orders = [[eg.text[0] for eg in read(NLP)] for _ in range(2)]
    assert all(order[::2] == order[1::2] for order in orders)
    assert sorted(orders[0]) == sorted(orders[1]) and orders[0] != orders[1]


def docs_in_memory() -> int:
    gc.collect()
    return sum(type(each) is Doc for each in gc.get_objects())


def test_distill_corpus_limits_open_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "OPEN_FILES", 3)
    for n in range(30):
        write(tmp_path, n, shard([f"{n} {i}" for i in range(10)]))
    seen = 0
    gc.freeze()  # collects and counts only what is new, as all objects of the tests take seconds
    try:
        for eg in distill_corpus(tmp_path)(NLP):
            seen += 1
            if seen % 10 == 0:
                assert 0 < docs_in_memory() <= 3 * 10 + 10
            del eg
    finally:
        gc.unfreeze()
    assert seen == 300


@pytest.mark.parametrize(
    "seen",
    [
        '[{"is_complete": true, "train": "***", "dev": ""}]',
        '[{"is_complete": true, "train": "AAAA", "dev": ""}]',
        '[{"is_complete": true, "train": 5, "dev": ""}]',
        '[{"is_complete": true}]',
        '{"train": ""}',
        "5",
        '[{"is_complete": tr',
        "",
    ],
)
def test_distill_corpus_with_damaged_hashes_of_teachers_raises(folder: Path, seen: str) -> None:
    nlp = spacy.blank("en")
    nlp.add_pipe("crf_ner")
    (folder / "seen_texts.json").write_text(seen)
    with pytest.raises(InputError, match=r"seen_texts\.json cannot be read: .*distill again"):
        next(iter(distill_corpus(folder)(nlp)))


def test_distill_corpus_skips_held_out_docs(folder: Path) -> None:
    read = distill_corpus(folder, hold_out=2)
    texts = [f"doc {n} of {'x' * i} words." for n in range(12) for i in range(n % 3 + 1)]
    assert sorted(eg.text for eg in read(NLP)) == sorted(texts[1::2])
    five = distill_corpus(folder, hold_out=5)
    assert {*texts} - {eg.text for eg in five(NLP)} == {*texts[::5]}
    assert list(distill_corpus(folder, hold_out=10)(NLP)) != []
    one = write(folder / "one", 0, shard(["alone"])).parent
    with pytest.raises(InputError, match="one: expected docs to train on, got none beside"):
        list(distill_corpus(one, hold_out=10)(NLP))
    assert [eg.text for eg in distill_corpus(one)(NLP)] == ["alone"]
    write(folder, 0, shard(["alone"]))
    assert "alone" not in [eg.text for eg in distill_corpus(folder, hold_out=10)(NLP)]


def test_distill_corpus_with_shifted_rows_raises(folder: Path) -> None:
    """Also where the docs have as many tokens."""
    given = shard(["one two", "six ten", "two one"])
    shifted = given._replace(docs=given.docs[1:] + given.docs[:1])
    path = write(folder, 5, shifted)
    with pytest.raises(InputError, match=f"{path}, doc '.*': expected the tokens that"):
        list(distill_corpus(folder)(NLP))


def test_distill_corpus_with_other_tokenizer_raises(folder: Path) -> None:
    other = spacy.blank("en")
    other.tokenizer.suffix_search = None
    with pytest.raises(InputError, match=r"got \['doc', .* Use the tokenizer of the config"):
        list(distill_corpus(folder)(other))


def test_distill_corpus_with_damaged_file_raises(folder: Path) -> None:
    path = folder / "part-000007.npz"
    content = path.read_bytes()
    middle = content.index(b"emissions_0.npy") + 200
    damaged = [content[: len(content) // 2], content[:middle] + b"\xff" + content[middle + 1 :]]
    for each in (*damaged, b"", b"text"):
        path.write_bytes(each)
        with pytest.raises(InputError, match=f"{path}: expected docs .* --resume"):
            list(distill_corpus(folder)(NLP))
    path.unlink()
    path.mkdir()
    with pytest.raises(OSError):
        list(distill_corpus(folder)(NLP))


def test_distill_corpus_keeps_teachers_of_each_file(folder: Path) -> None:
    write(folder, 3, shard(["other"], seed=1))
    write(folder, 4, shard(["another"], seed=1))
    targets = {eg.text: eg.reference.user_data[KEY] for eg in distill_corpus(folder)(NLP)}
    own = [targets.pop(name).teachers for name in ("other", "another")]
    for target in targets.values():
        assert all(a.equals(b) for a, b in zip(target.teachers, teachers(0), strict=True))
    for ours in own:
        assert all(a.equals(b) for a, b in zip(ours, teachers(1), strict=True))
    assert all(a is b for a, b in zip(*own))


def test_distill_corpus_with_other_kinds_of_teachers_raises(folder: Path) -> None:
    path = write(folder, 3, shard(["other"], seed=1))
    one = shard(["one"])
    parts = [[of_first] for of_first, _ in one.emissions]
    path.write_bytes(to_bytes(one._replace(teachers=one.teachers[:1], emissions=parts)))
    with pytest.raises(InputError, match="expected the kinds of teachers of the other files"):
        list(distill_corpus(folder)(NLP))
    swapped = [[b, a] for a, b in one.emissions]
    path.write_bytes(to_bytes(one._replace(teachers=one.teachers[::-1], emissions=swapped)))
    with pytest.raises(InputError, match="expected the kinds of teachers of the other files"):
        list(distill_corpus(folder)(NLP))


@pytest.mark.parametrize(
    "settings",
    [{"weight": 1.5}, {"weight": -0.1}, {"temperature": 0.0}, {"hold_out": 1}, {"hold_out": -1},
     {"temperature": float("nan")}, {"temperature": float("inf")}],
)  # fmt: skip
def test_distill_corpus_with_number_out_of_range_raises(settings: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="expected a weight from"):
        distill_corpus(tmp_path, **settings)


def test_distill_corpus_with_empty_folder_raises(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"expected files part-\*\.npz"):
        list(distill_corpus(tmp_path)(NLP))
