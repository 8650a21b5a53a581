"""Gold corpora of the commands: an unreadable file raises `InputError`."""

from pathlib import Path

import pytest
import spacy
from spacy.tokens import Doc, DocBin
from spacy.training import Corpus

from spacy_crf_ner.cli.gold_corpus import read_examples
from spacy_crf_ner.input_error import InputError


def test_docs_without_tokens_are_skipped_and_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nlp = spacy.blank("en")
    docs = [Doc(nlp.vocab, ["Hanoi", "now"], ents=["B-GPE", "O"]), Doc(nlp.vocab)]
    DocBin(docs=docs).to_disk(tmp_path / "dev.spacy")
    (eg,) = read_examples(nlp, tmp_path)
    assert [ent.text for ent in eg.reference.ents] == ["Hanoi"] and not eg.predicted.ents
    assert "1 docs without tokens" in capsys.readouterr().err


def test_read_examples_skips_hidden_files_like_spacy_corpus(tmp_path: Path) -> None:
    nlp = spacy.blank("en")
    for name in ("dev.spacy", ".dev.spacy", ".ipynb_checkpoints/dev.spacy", "more/dev.spacy"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        DocBin(docs=[Doc(nlp.vocab, ["Hanoi"], ents=["B-GPE"])]).to_disk(tmp_path / name)
    expected = list(Corpus(tmp_path)(nlp))
    assert len(read_examples(nlp, tmp_path)) == len(expected) == 2


def test_read_examples_too_long_doc_raises_with_number(tmp_path: Path) -> None:
    nlp = spacy.blank("en")
    words = "Hanoi", "x" * 30
    docs = [Doc(nlp.vocab, [word], spaces=[False], ents=["O"]) for word in words]
    DocBin(docs=docs).to_disk(tmp_path / "dev.spacy")
    nlp.max_length = 29
    unknown = Doc(nlp.vocab, ["x" * 30], ents=["O"])  # without spaces: its tokens are read
    assert unknown.has_unknown_spaces
    DocBin(docs=[unknown]).to_disk(tmp_path / "tokens.spacy")
    assert len(read_examples(nlp, tmp_path / "tokens.spacy")) == 1
    with pytest.raises(InputError, match=r"dev\.spacy, doc 2: expected at most 29 characters"):
        read_examples(nlp, tmp_path / "dev.spacy")
