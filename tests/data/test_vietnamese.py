"""Vietnamese: syllables and words, composed and decomposed letters, and PhoBERT's subwords."""

import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any
from unicodedata import normalize

import pytest
import spacy
import srsly
from hypothesis import given
from hypothesis import strategies as st
from spacy.language import Language
from spacy.tokens import Doc, DocBin, Span, SpanGroup
from spacy.training import Example
from typer.testing import CliRunner

from phobert import KNOWN, TEXT, make_over_phobert
from pipelines import TOK2VEC, train
from spacy_crf_ner import data
from spacy_crf_ner.cli import app
from spacy_crf_ner.data import vietnamese as syllables
from spacy_crf_ner.input_error import CorpusError
from spacy_crf_ner.ml.transformer.subwords import CPU, divide
from spacy_crf_ner.pipeline.annotated_labels import KEY, annotated_labels, mark_annotated_labels

ROOT = Path(__file__).parents[2]
FORMS = ("NFC", "NFD")
SYLLABLES = TEXT.split(" ")
WORDS = ["Chủ_tịch", "Nguyễn", "Văn", "A", "thăm", "Hà_Nội"]
MARKUP = re.compile(r"\[([^\]]*)\]\((\w+)\)")


@pytest.fixture(scope="module")
def nlp() -> Language:
    """A pipeline of syllables, whether pyvi is there or not."""
    return data.blank_pipeline("vi", segment=False)


@pytest.fixture(scope="module")
def pyvi() -> Any:
    reason = "needs pyvi, of the extras vi and dev"
    return pytest.importorskip("pyvi.ViTokenizer", reason=reason).ViTokenizer


def words_of(doc: Doc) -> list[str]:
    return [token.text for token in doc]


def ents_of(doc: Doc) -> list[tuple[str, str]]:
    return [(ent.text, ent.label_) for ent in doc.ents]


def make_doc(nlp: Language, words: list[str], *ents: tuple[int, int, str]) -> Doc:
    doc = Doc(nlp.vocab, words, sent_starts=[i == 0 for i in range(len(words))])
    doc.set_ents([Span(doc, *ent) for ent in ents], default="outside")
    return doc


def offsets(span: Span) -> tuple[int, int, str, str, str]:
    return span.start_char, span.end_char, span.label_, span.kb_id_, span.id_


def annotation_of(doc: Doc) -> dict[str, Any]:
    """All that is to be kept."""
    return {
        "words": words_of(doc),
        "text": doc.text,
        "tokens": [(token.ent_iob, token.ent_type_, token.is_sent_start) for token in doc],
        "ents": [
            (ent.start, ent.end, ent.label_, ent.kb_id_, ent.id_, ent.text) for ent in doc.ents
        ],
        "user_data": doc.user_data,
        "spans": {key: [*map(offsets, group)] for key, group in doc.spans.items()},
        "attrs": {key: group.attrs for key, group in doc.spans.items()},
        "has_unknown_spaces": doc.has_unknown_spaces,
    }


# Syllables and words


def test_split_splits_words_and_entities(nlp: Language) -> None:
    doc = make_doc(nlp, WORDS, (1, 4, "PER"), (5, 6, "LOC"))
    doc.user_data["document"] = 3
    (made,) = syllables.split([doc])
    assert words_of(made) == SYLLABLES
    assert ents_of(made) == [("Nguyễn Văn A", "PER"), ("Hà Nội", "LOC")]
    assert [token.is_sent_start for token in made] == [True] + [False] * 7
    assert made.user_data == {"document": 3}
    assert made.has_unknown_spaces
    assert [token.ent_iob_ for token in made] == list("OOBIIOBI")
    assert words_of(doc) == WORDS  # the doc that was given stays as it was


@pytest.mark.parametrize("words", [[], ["\n"], WORDS])
def test_annotated_labels_are_kept(words: list[str], nlp: Language) -> None:
    doc = Doc(nlp.vocab, words)
    mark_annotated_labels(doc, ["PER"])
    (made,) = syllables.split([doc])
    assert annotated_labels(made) == {"PER"}
    assert [(span.start, span.end) for span in made.spans[KEY]] == [(0, len(made))]


@pytest.mark.parametrize(
    "word, parts",
    [
        ("Uỷ_ban_Nhân_dân", ["Uỷ", "ban", "Nhân", "dân"]),
        ("Hà Nội", ["Hà", "Nội"]),
        ("_", ["_"]),
        ("_Hà", ["_Hà"]),
        ("Hà_", ["Hà_"]),
        ("Hà__Nội", ["Hà__Nội"]),
        ("@anh_nam", ["@anh_nam"]),
        ("https://vn.org/a_b", ["https://vn.org/a_b"]),
        ("Hà\xa0Nội", ["Hà\xa0Nội"]),
        (normalize("NFD", "Hà_Nội"), [normalize("NFD", "Hà"), normalize("NFD", "Nội")]),
    ],
)
def test_split_splits_word_only_between_syllables(
    word: str, parts: list[str], nlp: Language
) -> None:
    (made,) = syllables.split([Doc(nlp.vocab, [word, "."], spaces=[False, False])])
    assert words_of(made) == [*parts, "."]
    assert made.text == word.replace("_", " " if len(parts) > 1 else "_") + "."
    assert not made.has_unknown_spaces


@st.composite
def docs(draw: st.DrawFn) -> Doc:
    """A Doc of syllables, with any annotation that a Doc can have."""
    vocab = spacy.blank("xx").vocab
    odd = ["_", "a_", "@b", "c/d", ".", "12", "\n", normalize("NFD", "Nội")]
    words = draw(st.lists(st.sampled_from(["Hà", "nội", "A", *odd]), max_size=9))
    spaces = draw(st.lists(st.booleans(), min_size=len(words), max_size=len(words)))
    starts = st.sampled_from([True, False, False, None])
    doc = Doc(
        vocab,
        words,
        spaces=spaces,
        user_data={"document": 7},
        sent_starts=draw(st.lists(starts, min_size=len(words), max_size=len(words))) or None,
    )
    kinds: dict[str, list[Span]] = {"missing": [], "blocked": [], "outside": [], "PER": []}
    edges = sorted({0, len(words), *draw(st.sets(st.integers(0, len(words))))})
    for start, end in pairwise(edges):
        kind = draw(st.sampled_from(list(kinds)))
        kinds[kind].append(Span(doc, start, end, "PER", kb_id="Q1", span_id="x"))
    ents = kinds.pop("PER")
    doc.set_ents(ents, **kinds)
    for key in draw(st.lists(st.sampled_from(["sc", "incorrect_spans"]), unique=True)):
        start, end = sorted(draw(st.lists(st.integers(0, len(words)), min_size=2, max_size=2)))
        spans = [Span(doc, start, end, "LOC", kb_id="Q2")] if start < end else []
        attrs = {"scores": [0.5] * len(spans)}
        doc.spans[key] = SpanGroup(doc, name=key, attrs=attrs, spans=spans)
    doc.has_unknown_spaces = draw(st.booleans())
    return doc


@given(docs(), st.lists(st.booleans(), min_size=9, max_size=9))
def test_split_restores_joined_doc(doc: Doc, wanted: list[bool]) -> None:
    """Whatever words the segmenter wants, right or wrong."""

    def segment(tokens: list[str]) -> list[bool]:
        return wanted[: len(tokens) - 1]

    before = annotation_of(doc)
    (joined,) = syllables._join([doc], segment)
    (again,) = syllables.split([joined])
    assert annotation_of(again) == before
    assert len(joined.text) == len(doc.text)
    # The edges of entities and other spans, and the starts of sentences are edges of words.
    assert [*map(offsets, joined.ents)] == [*map(offsets, doc.ents)]
    assert annotation_of(joined)["spans"] == before["spans"]
    assert [t.idx for t in joined if t.is_sent_start] == [t.idx for t in doc if t.is_sent_start]


def test_join_follows_segmenter_except_at_annotation_boundaries(nlp: Language) -> None:
    doc = make_doc(nlp, SYLLABLES, (2, 5, "PER"), (6, 8, "LOC"))
    (joined,) = syllables._join([doc], lambda tokens: [True] * (len(tokens) - 1))
    assert words_of(joined) == ["Chủ_tịch", "Nguyễn_Văn_A", "thăm", "Hà_Nội"]
    assert ents_of(joined) == [("Nguyễn_Văn_A", "PER"), ("Hà_Nội", "LOC")]
    two = Doc(nlp.vocab, SYLLABLES, sent_starts=[True, False] * 4)
    (joined,) = syllables._join([two], lambda tokens: [True] * (len(tokens) - 1))
    assert words_of(joined) == ["Chủ_tịch", "Nguyễn_Văn", "A_thăm", "Hà_Nội"]
    unannotated = Doc(nlp.vocab, SYLLABLES[:3], sent_starts=[None] * 3)
    (joined,) = syllables._join([unannotated], lambda tokens: [True, False])
    assert words_of(joined) == ["Chủ_tịch", "Nguyễn"]
    assert not joined.has_annotation("ENT_IOB") and not joined.has_annotation("SENT_START")


@pytest.mark.parametrize("form", FORMS)
def test_join_matches_pyvi_words(form: str, nlp: Language, pyvi: Any) -> None:
    texts = [TEXT, "Sinh viên Đại học Bách khoa chế tạo thành công chiếc xe đạp , giá 12 triệu ."]
    for text in texts:
        (joined,) = syllables.join([make_doc(nlp, normalize(form, text).split(" "))])
        assert joined.text.strip() == normalize(form, pyvi.tokenize(text))
        assert "_" in joined.text
        assert joined.text.replace("_", " ").strip() == normalize(form, text)


def test_join_accepts_tokens_of_spacy_tokenizer(pyvi: Any) -> None:
    doc = spacy.blank("vi")(TEXT)
    assert "Hà Nội" in words_of(doc)
    (joined,) = syllables.join([doc])
    assert joined.text == pyvi.tokenize(TEXT)


def test_join_without_pyvi_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("pyvi", "pyvi.ViTokenizer"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ValueError, match=r'The package pyvi.*"\.\[vi\]"'):
        syllables.join([])
    (tmp_path / "a.txt").write_text("[Anna](PER)\n" * 20)
    arguments = ["convert", str(tmp_path / "a.txt"), str(tmp_path / "out"), "--lang", "vi"]
    result = CliRunner().invoke(app, [*arguments, "--syllables", "join"])
    assert result.exit_code == 1 and '".[vi]"' in result.output
    assert not (tmp_path / "out").exists()


# Converting


def convert(folder: Path, content: str, *options: str) -> list[Doc]:
    """Convert a corpus that is one part, by the command, and read what it wrote."""
    folder.mkdir(exist_ok=True)
    (folder / "corpus.txt").write_text(content, encoding="utf-8")
    arguments = ["convert", str(folder / "corpus.txt"), str(folder), "--lang", "vi"]
    result = CliRunner().invoke(app, [*arguments, "--split", "1", "--overwrite", *options])
    assert result.exit_code == 0, result.output
    vocab = spacy.blank("xx").vocab
    return list(DocBin().from_disk(folder / "train.spacy").get_docs(vocab))


@pytest.mark.parametrize("format", ["conll", "inline"])
def test_convert_splits_words(format: str, tmp_path: Path) -> None:
    tags = ["O", "B-PER", "I-PER", "I-PER", "O", "B-LOC"]
    contents = {
        "conll": "".join(f"{word} {tag}\n" for word, tag in zip(WORDS, tags, strict=True)),
        "inline": "Chủ_tịch [Nguyễn Văn A](PER) thăm [Hà_Nội](LOC)\n",
    }
    expected = {"keep": WORDS, "split": SYLLABLES}
    for choice, words in expected.items():
        (doc,) = convert(tmp_path, contents[format], "--syllables", choice)
        if (format, choice) != ("inline", "keep"):  # where words are pyvi's, if it is there
            assert words_of(doc) == words
        ents = [(ent.text.replace("_", " "), ent.label_) for ent in doc.ents]
        assert ents == [("Nguyễn Văn A", "PER"), ("Hà Nội", "LOC")]
        assert doc.has_unknown_spaces == (format == "conll")


def test_convert_joins_syllables(tmp_path: Path, pyvi: Any) -> None:
    content = "Chủ tịch [Nguyễn Văn A](PER) thăm [Hà Nội](LOC), [Huế](LOC).\n"
    (doc,) = convert(tmp_path, content, "--syllables", "join")
    assert {"Chủ_tịch", "Hà_Nội", "Huế", ",", "."} < set(words_of(doc))
    assert [ent.text.replace("_", " ") for ent in doc.ents] == ["Nguyễn Văn A", "Hà Nội", "Huế"]
    assert doc.text.replace("_", " ") == MARKUP.sub(r"\1", content).strip()


def test_convert_unknown_syllables_option_raises(tmp_path: Path, nlp: Language) -> None:
    with pytest.raises(ValueError, match="syllables: expected keep, split, join, got 'both'"):
        data.convert(
            tmp_path, tmp_path, data.ConvertOptions(format="conll", syllables="both"), nlp=nlp
        )


def plain(line: str) -> str:
    return re.sub(r"\\([\[\]])", r"\1", MARKUP.sub(r"\1", line))


def check_sample(form: str, nlp: Language, tmp_path: Path) -> None:
    for part in data.SPLITS:
        path = ROOT / "assets" / "sample_vi" / f"{part}.txt"
        content = normalize(form, path.read_text("utf-8"))
        (tmp_path / "sample.txt").write_text(content, encoding="utf-8")
        docs = list(data.read_inline(tmp_path / "sample.txt", nlp))
        lines = content.splitlines()
        assert [doc.text for doc in docs] == [plain(line) for line in lines]
        assert [ents_of(doc) for doc in docs] == [MARKUP.findall(line) for line in lines]


@pytest.mark.parametrize("form", FORMS)
def test_each_character_of_the_sample_corpus_is_kept(
    form: str, nlp: Language, tmp_path: Path
) -> None:
    check_sample(form, nlp, tmp_path)


@pytest.mark.parametrize("form", FORMS)
def test_read_inline_with_pyvi_keeps_each_character(form: str, pyvi: Any, tmp_path: Path) -> None:
    """An entity may begin or end inside of a word that pyvi makes."""
    check_sample(form, spacy.blank("vi"), tmp_path)


def test_read_inline_entity_inside_other_token_raises(nlp: Language, tmp_path: Path) -> None:
    for line in ("[Nguy](PER)ễn", normalize("NFD", "[Hà](PER)nh"), "[U.S](LOC).A.x"):
        (tmp_path / "a.txt").write_text(line, encoding="utf-8")
        with pytest.raises(CorpusError, match="an entity of whole tokens"):
            list(data.read_inline(tmp_path / "a.txt", nlp))


@pytest.mark.parametrize("text", [TEXT + ", Huế (Việt Nam).", "Hà_Nội, Huế.", "Đà Lạt!"])
def test_vietnamese_tokenizer_separates_punctuation(text: str, nlp: Language) -> None:
    assert words_of(nlp(text)) == re.findall(r"\w+|[^\w\s]", text)


# Training and predicting


def learn(nlp: Language, form: str, words: list[str]) -> list[tuple[str, str]]:
    """Train on one sentence, and predict it from its text."""
    tags = ["B-PER" if word == "Nguyễn" else "O" for word in words]
    tags = [{"Văn": "I-PER", "A": "I-PER", "Nội": "I-LOC"}.get(w, t) for w, t in zip(words, tags)]
    tags = ["B-LOC" if word[:2] == "Hà" else tag for word, tag in zip(words, tags)]
    text = normalize(form, " ".join(words))
    gold = Doc(nlp.vocab, [normalize(form, word) for word in words], ents=tags)
    nlp.add_pipe("crf_ner", config={"model": {"hidden_width": 32, "tok2vec": TOK2VEC}})
    train(nlp, [Example(nlp.make_doc(text), gold)], steps=20)
    doc = nlp(text)
    assert doc.text == text
    return [(normalize("NFC", ent), label) for ent, label in ents_of(doc)]


@pytest.mark.torch
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("words", [SYLLABLES, WORDS], ids=["syllables", "words"])
def test_syllables_and_words_are_learned(form: str, words: list[str]) -> None:
    found = learn(data.blank_pipeline("vi", segment=False), form, words)
    assert found == [("Nguyễn Văn A", "PER"), (words[-1] if "_" in words[-1] else "Hà Nội", "LOC")]


@pytest.mark.torch
def test_words_of_pyvi_are_learned(pyvi: Any, tmp_path: Path) -> None:
    nlp = spacy.blank("vi")
    assert learn(nlp, "NFC", SYLLABLES) == [("Nguyễn Văn A", "PER"), ("Hà Nội", "LOC")]
    assert len(nlp(TEXT).ents[-1]) == 1  # one word, which holds a space
    nlp.to_disk(tmp_path)
    assert ents_of(spacy.load(tmp_path)(TEXT)) == ents_of(nlp(TEXT))


# PhoBERT


@pytest.fixture(scope="module")
def over_phobert(phobert: str) -> Language:
    return make_over_phobert(phobert)


def aligned(doc: Doc, nlp: Language) -> list[list[str]]:
    """The subwords of each token, in a pipeline with a shared PhoBERT."""
    tokenizer = nlp.get_pipe("tok2vec").model.shims[0].tokenizer
    whole = [doc], lambda doc: [(0, len(doc))]
    found = divide(*whole, tokenizer.encode, tokenizer.longest, tokenizer.pad_id, CPU)
    ids = [number for batch in found.batches for number in batch.ids.ravel()]
    pieces = tokenizer._tokenizer.convert_ids_to_tokens(ids)
    edges = [*found.firsts.tolist(), len(found.rows)]
    return [[pieces[row] for row in found.rows[i:j]] for i, j in pairwise(edges)]


ALIGNED: dict[str, list[tuple[str, str]]] = {
    "NFC": [
        ("Hà thăm Nội", "Hà | thăm | N@@ ộ@@ i"),
        ("Hà_Nội thăm", "Hà_Nội | thăm"),
        ("thăm Hà_Nội.", "thăm | Hà_Nộ@@ i@@ | ."),
        ("(Hà)", "(@@ | Hà@@ | )"),
        ("Nguyễn Văn A, Hà", "Nguyễn | Văn | A@@ | , | Hà"),
        ("@an", "@@@ a@@ n"),
        ("a@b @ n@", "a@@ @@@ b | @ | n@@ @"),
        ("an@@ @@ a@@n", "a@@ n@@ @@@ @ | @@@ @ | a@@ @@@ @@@ n"),
        ("Hà 🙂 thăm 漢a", "Hà | <unk> | thăm | <unk> a"),
        ("Hà  thăm", "Hà | | thăm"),
        ("a <unk> Hà", "a | <unk> | <unk> | <unk> | Hà"),
    ],
    "NFD": [
        ("Hà thăm", "H@@ a@@ ̀ | th@@ a@@ ̆@@ m"),
        ("Hà_Nội.", "H@@ a@@ ̀@@ _@@ N@@ o@@ ̣@@ ̂@@ i@@ | ."),
        ("Nội @a", "N@@ o@@ ̣@@ ̂@@ i | @@@ a"),
    ],
}


@pytest.mark.parametrize(
    "form, text, expected",
    [(form, *case) for form, cases in ALIGNED.items() for case in cases],
)
def test_phobert_alignment_gives_each_token_its_subwords(
    form: str, text: str, expected: str, over_phobert: Language
) -> None:
    doc = over_phobert.make_doc(normalize(form, text))
    assert [" ".join(pieces) for pieces in aligned(doc, over_phobert)] == [
        cell.strip() for cell in expected.split("|")
    ]


@given(st.lists(st.sampled_from([*KNOWN, "an", "a@b", "🙂", ".", "@@", "x_y", "Nội"]), min_size=1))
def test_phobert_alignment_matches_tokenizing_each_word(
    over_phobert: Language, words: list[str]
) -> None:
    tokenizer = over_phobert.get_pipe("tok2vec").model.shims[0].tokenizer._tokenizer
    doc = Doc(over_phobert.vocab, [normalize("NFC", word) for word in words])
    for token, pieces in zip(doc, aligned(doc, over_phobert), strict=True):
        ids = tokenizer(token.text)["input_ids"][1:-1]
        assert pieces == tokenizer.convert_ids_to_tokens(ids)


def test_phobert_reads_each_token_of_a_long_doc(over_phobert: Language) -> None:
    doc = over_phobert.make_doc("an " * 200 + "a" * 300 + " Hà")
    made = aligned(doc, over_phobert)
    assert [len(pieces) for pieces in made] == [2] * 200 + [255, 1]  # <s> is the first of 256


def test_phobert_pipeline_reloads_from_disk_unchanged(
    over_phobert: Language, tmp_path: Path
) -> None:
    text = "Hà 🙂 thăm a@b Hà_Nội."
    expected = over_phobert(text)
    over_phobert.to_disk(tmp_path / "first")
    first = spacy.load(tmp_path / "first")
    first.to_disk(tmp_path / "second")  # as `calibrate` does
    for nlp in (first, spacy.load(tmp_path / "second")):
        assert (nlp(text).tensor == expected.tensor).all() and expected.tensor.any()


@pytest.mark.slow
def test_project_over_phobert_trains_and_predicts(phobert: str, tmp_path: Path) -> None:
    folder = tmp_path / "project"
    (folder / "assets").mkdir(parents=True)
    for name in ("project.yml", "configs", "assets/sample_vi"):
        (folder / name).symlink_to(ROOT / name)
    variables = {
        "lang": "vi",
        "dataset": "sample_vi",
        "transformer": phobert,
        "steps": "2",
        "eval_frequency": "1",
    }
    command = [sys.executable, "-m", "spacy", "project", "run", "all", str(folder)]
    command += [part for name, value in variables.items() for part in (f"--vars.{name}", value)]
    result = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    assert result.returncode == 0, result.stdout + result.stderr
    metrics = srsly.read_json(folder / "metrics" / "sample_vi_transformer.json")
    assert set(metrics["ents_per_type"]) == {"PER", "LOC", "ORG"}
    nlp = spacy.load(folder / "training" / "sample_vi_transformer" / "model-best")
    for form in FORMS:
        text = normalize(form, TEXT + ", Huế.")
        assert nlp(text).text == text
        shown = CliRunner().invoke(app, ["predict", str(nlp.path), text], env={"COLUMNS": "300"})
        assert shown.exit_code == 0 and text in shown.output
