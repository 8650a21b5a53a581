"""The benchmark of students: the parts of a corpus, and the table."""

from pathlib import Path

import spacy
from spacy.tokens import DocBin

from benchmark_distill import make_tenth, measure, table


def test_make_tenth_splits_corpus_into_tenth_and_rest(tmp_path: Path) -> None:
    nlp = spacy.blank("en")
    docs = [nlp.make_doc(f"doc {i}") for i in range(25)]
    DocBin(docs=docs).to_disk(tmp_path / "train.spacy")
    make_tenth(tmp_path)
    parts = [
        [doc.text for doc in DocBin().from_disk(tmp_path / f"{name}.spacy").get_docs(nlp.vocab)]
        for name in ("tenth", "rest")
    ]
    assert parts[0] == ["doc 0", "doc 10", "doc 20"]
    assert sorted(parts[0] + parts[1]) == sorted(doc.text for doc in docs)
    before = (tmp_path / "rest.spacy").stat()
    make_tenth(tmp_path)
    assert (tmp_path / "rest.spacy").stat() == before


def test_measure_same_pipeline_has_full_agreement(trained: spacy.Language, tmp_path: Path) -> None:
    doc = spacy.blank("en").make_doc("Tim Cook visited Hanoi.")
    doc.ents = [doc.char_span(0, 8, "PERSON")]
    DocBin(docs=[doc]).to_disk(tmp_path / "test.spacy")
    trained = spacy.util.load_model_from_config(trained.config).from_bytes(trained.to_bytes())
    trained.rename_pipe("crf_ner", "ner")
    found = measure(trained, trained, tmp_path / "test.spacy")
    assert (found["agreement"], found["f"]) == (1.0, 2 / 3)


def test_table_has_mean_over_seeds_and_share_of_teacher_f1() -> None:
    row = {"corpus": "gmb", "steps": 10, "agreement": 0.5, "ece": 0.1, "words_per_second": 1000}
    rows = [
        {**row, "student": "teacher", "f": 0.8},
        {**row, "student": "cnn", "condition": "gold", "seed": 0, "f": 0.5},
        {**row, "student": "cnn", "condition": "gold", "seed": 1, "f": 0.7},
    ]
    expected = "| cnn, gold | 60.0 ± 14.1 | 75 % | 50.0 ± 0.0 | 10.0 ± 0.0 | 1,000 |"
    assert expected in table(rows).splitlines()
