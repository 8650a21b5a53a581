"""Samples of raw texts: which texts are drawn, and what the earlier components annotate."""

from pathlib import Path

import pytest
import spacy

from spacy_crf_ner.annotate.sample import read_sample
from spacy_crf_ner.annotate.settings import Settings
from spacy_crf_ner.input_error import InputError


def test_read_sample_returns_distinct_texts_of_all_files(tmp_path: Path) -> None:
    nlp = spacy.blank("en")
    nlp.add_pipe("sentencizer")
    nlp.add_pipe("entity_ruler", name="ner")
    nlp.get_pipe("ner").add_patterns([{"label": "X", "pattern": "text"}])
    texts = [f"text {i}. More" for i in range(300)]
    (tmp_path / "a.txt").write_text("\n".join(texts[:100]))
    (tmp_path / "b.txt").write_text("\n".join(texts[100:]))
    names = nlp.pipe_names
    docs = list(read_sample(nlp, "ner", [str(tmp_path)], Settings(), 60))
    found = [doc.text for doc in docs]
    assert len(set(found)) == len(found) == 60 and set(found) <= set(texts)
    assert all(5 < len(set(found) & set(texts[i : i + 100])) < 40 for i in (0, 100, 200))
    assert all(len(list(doc.sents)) == 2 and not doc.ents for doc in docs)
    assert nlp.pipe_names == names
    every = read_sample(nlp, "ner", [str(tmp_path)], Settings(), 1000)
    assert [doc.text for doc in every] == texts


def test_read_sample_too_long_text_raises_before_first_doc(tmp_path: Path) -> None:
    nlp = spacy.blank("en")
    nlp.add_pipe("entity_ruler", name="ner")
    nlp.max_length = 10
    (tmp_path / "a.txt").write_text("short\nmuch longer than this")
    with pytest.raises(InputError, match=r"a.txt:2: expected at most 10 characters, got 21"):
        read_sample(nlp, "ner", [str(tmp_path / "a.txt")], Settings(), 10)
