"""Frames in, frames with entities out; the oracle is a plain loop over `nlp.pipe`."""

import random
from itertools import pairwise

import pandas as pd
import pytest
import spacy
from hypothesis import given
from hypothesis import strategies as st
from spacy.language import Language
from spacy.tokens import Doc
from spacy.util import ignore_error

from pipelines import SENTENCES, ents
from spacy_crf_ner.annotate import Settings, annotate_frames, chunking, runner
from spacy_crf_ner.input_error import InputError

TEXTS = [text for text, _ in SENTENCES] + ["Ada Lovelace Byron left Paris, Texas, for Hanoi. " * 9]


@Language.component("fails_on_poison")
def fails_on_poison(doc):
    if "poison" in doc.text:
        raise RuntimeError(f"cannot do with {len(doc)} tokens")
    return doc


def ruled():
    """A pipeline whose entities depend on nothing but their words."""
    nlp = spacy.blank("en")
    ruler = nlp.add_pipe("entity_ruler")
    ruler.add_patterns([{"label": "GPE", "pattern": name} for name in ("Hanoi", "New York")])
    nlp.add_pipe("fails_on_poison")
    return nlp


RULED = ruled()


def found(row):
    return [(ent["start"], ent["end"], ent["label"]) for ent in row]


def annotate(texts, nlp=RULED, **settings):
    """The frame of texts, annotated."""
    frame = pd.DataFrame({"text": pd.Series(texts, dtype=object)})
    (annotated,) = annotate_frames([frame], nlp, **settings)
    return annotated


def test_annotate_frames_matches_nlp_pipe(trained) -> None:
    texts = TEXTS * 3
    random.Random(0).shuffle(texts)
    annotated = annotate(texts, trained)
    docs = list(trained.pipe(texts))
    assert [found(row) for row in annotated["entities"]] == [ents(doc) for doc in docs]
    assert sum(map(len, annotated["entities"])) > 10
    for row, doc in zip(annotated["entities"], docs):
        expected = [ent._.confidence for ent in doc.ents]
        assert [ent["confidence"] for ent in row] == pytest.approx(expected, abs=1e-5)
    assert annotated["error"].isna().all()
    assert annotated.attrs["words"] == sum(map(len, docs))


def test_annotate_frames_keeps_input_columns_and_index() -> None:
    frame = pd.DataFrame(
        {
            "number": [3, 1],
            "text": ["Hanoi", "no"],
            "list": [[1], None],
            "date": pd.to_datetime(["2020-01-01", None]),
        },
        index=["b", "a"],
    )
    before = frame.copy(deep=True)
    (annotated,) = annotate_frames([frame], RULED)
    pd.testing.assert_frame_equal(annotated[[*frame.columns]], before)
    pd.testing.assert_frame_equal(frame, before)
    assert [*annotated.columns] == [*frame.columns, "entities", "error"]


def test_annotate_frames_reads_frames_lazily() -> None:
    read = []

    def frames():
        for number in range(3):
            read.append(number)
            yield pd.DataFrame({"body": [f"{number} Hanoi"]})

    annotated = annotate_frames(frames(), RULED, text_column="body")
    next(annotated)
    assert read == [0]
    assert len(list(annotated)) == 2


DROPPING = ruled()
DROPPING.set_error_handler(ignore_error)


@given(
    st.lists(st.sampled_from(["Hanoi.", "poison", "", "a longer text, with Hanoi"]), max_size=12),
    st.sampled_from([0, 1, 3]),
    st.sampled_from([RULED, DROPPING]),
)
def test_annotate_frames_failing_document_keeps_other_documents(texts, batch_size, nlp) -> None:
    """Also if `nlp.pipe` would drop it, and returned fewer documents than it gets."""
    annotated = annotate(texts, nlp, batch_size=batch_size)
    assert len([*DROPPING.pipe(texts)]) == len(texts) - texts.count("poison")  # as before
    for text, row, error in zip(texts, annotated["entities"], annotated["error"]):
        if text == "poison":
            assert row == []
            assert error == "RuntimeError: cannot do with 1 tokens"
        else:
            assert pd.isna(error)
            assert found(row) == ents(RULED(text))


def test_annotate_frames_documents_dropped_by_component_get_errors() -> None:
    nlp = ruled()

    class Drop:
        def __call__(self, doc):
            return doc

        def pipe(self, docs, batch_size):
            return (doc for doc in docs if "gone" not in doc.text)

    Language.component("drops_some", func=Drop())
    nlp.add_pipe("drops_some")
    annotated = annotate(["gone", "in Hanoi", "gone, too", "to New York"], nlp)
    assert annotated["error"].isna().tolist() == [False, True, False, True]
    assert [len(row) for row in annotated["entities"]] == [0, 1, 0, 1]


@pytest.mark.parametrize(
    "error",
    [
        OSError(5, "Input/output error"),
        MemoryError(),
        RuntimeError("CUDA error: an illegal memory access was encountered"),
        RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR"),
        RuntimeError("HIP out of memory. Tried to allocate 2.00 GiB."),
        RuntimeError("[enforce fail at alloc_cpu.cpp:117] data. can't allocate memory: you tried"),
        type("OutOfMemoryError", (Exception,), {"__module__": "cupy.cuda.memory"})(),
    ],
)
def test_annotate_frames_machine_error_raises(error) -> None:
    nlp = ruled()

    def fail(doc):
        if "broken" in doc.text:
            raise error
        return doc

    name = f"fails_{id(error)}"  # component names are unique in a process
    Language.component(name, func=fail)
    nlp.add_pipe(name)
    nlp.set_error_handler(ignore_error)
    with pytest.raises(type(error)) as raised:
        annotate(["in Hanoi", "broken", "to Hanoi"], nlp)
    assert raised.value is error


def test_is_machine_error_quoted_message_or_other_type_returns_false() -> None:
    assert not runner.is_machine_error(RuntimeError("the text 'CUDA error' has no tokens"))
    assert not runner.is_machine_error(ValueError("CUDA error"))


def test_annotate_frames_failed_batch_retries_with_fresh_documents() -> None:
    nlp = spacy.blank("en")

    def once(doc):
        assert not doc.ents
        return doc

    Language.component("expects_no_entities", func=once)
    nlp.add_pipe("expects_no_entities")
    nlp.add_pipe("entity_ruler").add_patterns([{"label": "GPE", "pattern": "Hanoi"}])
    nlp.add_pipe("fails_on_poison")
    docs = [nlp.make_doc(text).to_bytes() for text in ("in Hanoi", "to Hanoi, poison")]
    annotated = annotate(docs, nlp)
    assert [found(row) for row in annotated["entities"]] == [[(3, 8, "GPE")], []]
    assert annotated["error"].isna().tolist() == [True, False]


def test_annotate_frames_out_of_memory_halves_batch() -> None:
    nlp = spacy.blank("en")

    class Small:
        def __call__(self, doc):
            return doc

        def pipe(self, docs, batch_size):
            docs = list(docs)
            if len(docs) > 2:
                raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB.")
            return docs

    Language.component("small_memory", func=Small())
    nlp.add_pipe("small_memory")
    annotated = annotate(["x"] * 9, nlp)
    assert annotated["error"].isna().all()
    assert annotated.attrs["words"] == 9


@pytest.mark.parametrize(
    "value, said",
    [(None, "got none"), (float("nan"), "got none"), (3, "got int"), (b"\x00rubbish", "")],
)
def test_annotate_frames_non_text_value_sets_document_error(value, said) -> None:
    annotated = annotate(["Hanoi", value])
    assert pd.isna(annotated["error"][0])
    assert said in annotated["error"][1]
    assert [len(row) for row in annotated["entities"]] == [1, 0]


def test_annotate_frames_lone_surrogate_sets_document_error(trained) -> None:
    annotated = annotate(["Hanoi", "a \ud800 b"], trained)
    assert annotated["error"].isna().tolist() == [True, False]


@given(st.lists(st.sampled_from(["Hanoi", "New York", "x", "is.", "\n"]), max_size=60), st.data())
def test_annotate_frames_chunked_text_matches_whole_text(words, data) -> None:
    text = " ".join(words)
    annotated = annotate([text], max_characters=data.draw(st.integers(12, 80)), docs=True)
    doc = RULED(text)
    assert found(annotated["entities"][0]) == ents(doc)
    assert annotated.attrs["words"] == len(doc)
    again = Doc(spacy.blank("en").vocab).from_bytes(annotated["doc"][0])
    assert [token.text_with_ws for token in again] == [token.text_with_ws for token in doc]
    assert ents(again) == ents(doc)


def test_annotate_frames_failing_chunk_sets_one_document_error() -> None:
    text = "Hanoi is. " * 20 + "poison. " + "Hanoi is. " * 20
    annotated = annotate([text, "Hanoi"], max_characters=50)
    assert [len(row) for row in annotated["entities"]] == [0, 1]
    assert annotated["error"].isna().tolist() == [False, True]


def test_annotate_frames_text_over_max_length_finds_all_entities(monkeypatch) -> None:
    monkeypatch.setattr(RULED, "max_length", 120_000)
    text = "All that is in Hanoi. " * 6000
    assert len(text) > RULED.max_length
    annotated = annotate([text])
    starts = [ent["start"] for ent in annotated["entities"][0]]
    assert starts == [22 * i + 15 for i in range(6000)]


@pytest.mark.parametrize("size, overlap", [(100_000, 2000), (20, 2000), (20, 4), (7, 3), (3, 2)])
def test_docs_keep_their_tokens_and_entities(size, overlap, monkeypatch) -> None:
    monkeypatch.setattr(
        runner, "chunk_text", lambda text, size: chunking.chunk_text(text, size, overlap)
    )
    vocab = spacy.blank("en").vocab
    doc = Doc(vocab, ["Ha", "noi", "Hanoi", "Hanoi", "x"] * 6, [False, True, True, False, True] * 6)
    doc.ents = [doc.char_span(0, 5, "GOLD")]
    annotated = annotate([doc.to_bytes()], max_characters=size, docs=True)
    assert annotated["text"][0] == doc.text
    again = Doc(vocab).from_bytes(annotated["doc"][0])
    assert [token.text for token in again] == [token.text for token in doc]
    ruled = [(token.idx, token.idx + 5, "GPE") for token in doc if token.text == "Hanoi"]
    assert found(annotated["entities"][0]) == [(0, 5, "GOLD"), *ruled]
    assert annotated.attrs["words"] == len(doc)


def test_annotate_frames_docs_keep_confidences(trained) -> None:
    annotated = annotate(["Tim Cook visited Hanoi."], trained, docs=True)
    doc = Doc(trained.vocab).from_bytes(annotated["doc"][0])
    expected = [ent["confidence"] for ent in annotated["entities"][0]]
    assert len(expected) == 2
    assert [ent._.confidence for ent in doc.ents] == expected


@pytest.mark.parametrize("size", [100_000, 60])
def test_annotate_texts_alternatives_are_of_the_chunk_of_each_entity(trained, size) -> None:
    text = "Tim Cook visited Hanoi. Apple hired Ada Lovelace Byron. " * 5
    doc = trained.make_doc(text)
    texts = [text, doc.to_bytes(), "", "nothing"]
    annotated = runner.annotate_texts(
        trained, texts, Settings(max_characters=size), component="crf_ner"
    )
    assert annotated[0].entities == annotated[1].entities and len(annotated[0].entities) == 20
    for entity in annotated[0].entities:
        p = {each["label"]: each["confidence"] for each in entity["alternatives"]}
        assert p[entity["label"]] == pytest.approx(entity["confidence"], abs=1e-5)
        assert {*p} == {*trained.get_pipe("crf_ner").labels, None}


def test_annotate_frames_docs_token_over_chunk_size_sets_document_error() -> None:
    annotated = annotate(["x" * 5000, "Hanoi"], max_characters=1000, docs=True)
    assert "cannot be split" in annotated["error"][0]
    assert pd.isna(annotated["error"][1])


def test_make_doc_entity_misaligned_at_cut_raises() -> None:
    """A tokenizer may split a text differently, depending on the text before it."""
    found = {None: [chunking.FoundEntity(3, 11, "GPE", None)]}
    tokens = [("to", True), ("New", True), ("York now", False)]
    with pytest.raises(ValueError, match="an entity of whole tokens at a cut of the text"):
        runner._make_doc(RULED.vocab, "to New York now", tokens, found)


@pytest.mark.parametrize("column", ["doc", "body"])
def test_annotate_frames_existing_doc_column_raises_only_with_docs(column) -> None:
    frame = pd.DataFrame({column: ["in Hanoi"]})
    (annotated,) = annotate_frames([frame], RULED, text_column=column)
    assert [*annotated.columns] == [column, "entities", "error"]
    frame = pd.DataFrame({"text": ["in Hanoi"], "doc": [1]})
    (annotated,) = annotate_frames([frame], RULED)
    assert annotated["doc"].tolist() == [1]
    with pytest.raises(ValueError, match=r"'doc'.*Rename them"):
        next(annotate_frames([frame], RULED, docs=True))


def test_annotate_frames_vocab_size_stays_bounded(monkeypatch) -> None:
    """Else memory would grow with the corpus."""
    monkeypatch.setattr(runner, "MAX_NEW_WORDS", 40)
    nlp = ruled()
    before = len(nlp.vocab.strings)
    sizes = []
    for i in range(50):  # a new call each time, as in a worker
        annotate([f"word{i}a word{i}b Hanoi"] * 2, nlp)
        sizes.append(len(nlp.vocab.strings) - before)
    assert 40 < sizes[-1] < 60
    assert len(set(sizes[25:])) == 1


@pytest.mark.parametrize("batch_size", [0, 100])
def test_batches_fill_up_to_size_limits(batch_size) -> None:
    rng = random.Random(0)
    lengths = [rng.randint(0, 300) for _ in range(900)] + [7_000, 20_000, 29_000] * 9
    lengths += [60_000, 70_000]
    rng.shuffle(lengths)
    batches: list[list[int]] = []
    assert runner.map_batches(lambda b: batches.append(b) or b, lengths, lengths, batch_size) == (
        lengths
    )
    assert [length for batch in batches for length in batch] == sorted(lengths)

    def fits(batch):
        if batch_size:
            return len(batch) <= batch_size
        return len(batch) == 1 or (len(batch) <= 256 and sum(batch) <= 50_000)

    assert all(map(fits, batches))
    assert not any(fits([*batch, after[0]]) for batch, after in pairwise(batches))


def test_annotate_frames_loads_model_folder_once(tmp_path) -> None:
    folder = str(tmp_path / "model")
    nlp = spacy.blank("en")
    nlp.add_pipe("entity_ruler").add_patterns([{"label": "GPE", "pattern": "Hanoi"}])
    nlp.to_disk(folder)
    for _ in range(2):
        annotated = annotate(["in Hanoi"], folder)
        assert found(annotated["entities"][0]) == [(3, 8, "GPE")]
        (tmp_path / "model" / "meta.json").unlink(missing_ok=True)


NO_TEXTS = [["b"], [0], ["0", "0"], ["0", "0", "b"], [("0", "")]]


@pytest.mark.parametrize(
    "columns, message",
    [(["0", "entities"], "Rename"), *((each, "text_column: .* got '0'") for each in NO_TEXTS)],
)
def test_annotate_frames_without_one_column_of_texts_raises(columns, message) -> None:
    frame = pd.DataFrame([["x"] * len(columns)])
    frame.columns = pd.Index(columns, tupleize_cols=False)
    with pytest.raises(InputError, match=message):
        next(annotate_frames([frame], RULED, text_column="0"))


@pytest.mark.parametrize("sizes", [{"max_characters": 0}, {"batch_size": -1}])
def test_annotate_frames_too_small_size_raises(sizes) -> None:
    """With chunks of zero characters, chunking would not end."""
    (name,) = sizes
    with pytest.raises(InputError, match=f"{name}: expected . or more, got .*larger one"):
        annotate(["in Hanoi"], **sizes)


def test_annotate_frames_empty_frame_adds_columns() -> None:
    annotated = annotate([])
    assert [*annotated.columns] == ["text", "entities", "error"]
    assert len(annotated) == 0
