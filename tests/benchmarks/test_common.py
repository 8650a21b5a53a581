"""What benchmarks share: no mixed inputs, no run twice, arithmetic by other means."""

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import spacy

from benchmarks import common
from benchmarks.common import Rows, apart, check_same, converted, read_docs
from pipelines import make_examples
from spacy_crf_ner.input_error import InputError


def write_corpus(folder: Path, word: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for part in ("train", "dev", "test"):
        sentences = (f"{word}{i} B-PER\nsleeps O\n\n" for i in range(3))
        (folder / f"{part}.conll").write_text("".join(sentences))
    return folder


def another(name: str) -> Any:
    return pytest.raises(InputError, match=f"expected the {name} of the results")


def test_inputs_with_changed_content_are_refused(tmp_path: Path) -> None:
    folder, out = tmp_path / "folder", tmp_path / "out"
    (folder / "deeper").mkdir(parents=True)
    (folder / "deeper" / "train.txt").write_text("one")
    with pytest.raises(InputError, match=r"gmb: expected the corpus gmb, got nothing"):
        check_same(out, {"corpus gmb": tmp_path / "gmb"})
    assert not out.exists()
    check_same(out, {"corpus": folder, "file": folder / "deeper" / "train.txt"})
    (folder / ".hidden").write_text("left out")
    check_same(out, {"corpus": folder})
    (folder / "deeper" / "train.txt").write_text("two")
    with another("corpus"):
        check_same(out, {"corpus": folder})
    check_same(tmp_path / "new", {"corpus": folder})


def test_converted_corpus_has_whole_blocks_of_sentences_in_each_part(tmp_path: Path) -> None:
    source = tmp_path / "data" / "mine"
    source.mkdir(parents=True)
    lines = "".join(f"s{i} O\nleft O\n\n" for i in range(1000))
    (source / "all.conll").write_text(lines)
    parts = [
        [int(doc[0].text[1:]) for doc in read_docs(converted(source, tmp_path) / f"{part}.spacy")]
        for part in ("train", "dev", "test")
    ]
    assert [*map(len, parts)] == [700, 100, 200]
    blocks = [{i // 50 for i in part} for part in parts]
    assert sum(map(len, blocks)) == 20 == len(set.union(*blocks))


def test_converted_corpus_of_a_changed_source_is_refused(tmp_path: Path) -> None:
    source, out = write_corpus(tmp_path / "data" / "gmb", "Ann"), tmp_path / "out"
    for _ in range(2):
        assert converted(source, out) == out / "gmb" == converted(out / "gmb", out)
        converted(out / "gmb", tmp_path / "copy")
    write_corpus(source, "Bob")
    with another("corpus gmb"):
        converted(source, out)


@pytest.mark.parametrize("threshold", [0.3, 0.6, 0.7, 1e-4, None])
def test_a_finished_run_is_known_by_its_whole_key(tmp_path: Path, threshold: Any) -> None:
    rows = Rows(tmp_path / "results.csv")
    key = {"system": "spaCy ner, CNN", "threshold": threshold, "seed": 0}
    assert rows.known(key) is None
    first, second = ({"machine": each, "versions": {"torch": "2"}} for each in ("a", "b"))
    rows.add({**key, "f": 1 / 3}, first)
    rows.add({"system": "another", "steps": 200}, second)  # another column
    rows.add({**key, "seed": 1}, first)
    known = rows.known(key)
    assert known is not None and known["f"] == 1 / 3 and known["steps"] is None
    assert rows.known({**key, "threshold": 0.35}) is None
    assert [row["environment"] for row in rows] == [0, 1, 0]


def test_seconds_of_nested_parts_count_for_the_inner_one_only() -> None:
    """On a clock that each function advances by a known number."""
    now = [0.0]
    own = SimpleNamespace(inner=lambda: now.__setitem__(0, now[0] + 2))
    own.outer = lambda: (now.__setitem__(0, now[0] + 3), own.inner())
    before = vars(own).copy()
    parts = {"a": [(own, "outer")], "b": [(own, "inner")]}
    with apart(parts, lambda: now[0]) as seconds:
        own.outer()
        own.inner()
    assert seconds == {"a": 3, "b": 4} and vars(own) == before


def test_f1_matches_spacys_evaluation(trained: spacy.Language) -> None:
    rng = random.Random(0)
    gold = [eg.reference.copy() for eg in make_examples(trained)]
    for doc in gold:
        doc.set_ents([ent for ent in doc.ents if rng.random() < 0.5], default="outside")
    examples = [spacy.training.Example(common.without_entities(d, trained.vocab), d) for d in gold]
    expected = trained.evaluate(examples)
    assert common.f1(trained, gold) == pytest.approx(100 * expected["ents_f"])
    assert expected["ents_f"] < 1
    label = max(expected["ents_per_type"], key=lambda each: expected["ents_per_type"][each]["f"])
    of_label = 100 * expected["ents_per_type"][label]["f"]
    assert common.f1(trained, gold, [label]) == pytest.approx(of_label)
