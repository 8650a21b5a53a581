"""Hashes of training texts: what is found again, who adds them, and saving and loading."""

from pathlib import Path
from typing import Any

import pytest
import spacy
import srsly
from hypothesis import given
from hypothesis import strategies as st
from spacy.language import Language
from spacy.pipeline import Sentencizer
from spacy.training import Example

from pipelines import copied, make_examples, small, train
from spacy_crf_ner.input_error import InputError
from spacy_crf_ner.pipeline.lookup import recognizer
from spacy_crf_ner.pipeline.seen_texts import SeenTexts, hashes_of, is_seen

TRAINED = 'Mrs Brandt left Oslo at 9.30. She wrote:\n"The toaster hums all night!"\nIt is broken.'


@pytest.mark.parametrize(
    "text",
    [
        TRAINED.upper(),
        TRAINED.replace("\n", " "),
        'Mrs Brandt left Oslo at 9.30 . She wrote : " The toaster hums all night ! " It is broken',
        "The toaster hums all night!",  # a sentence, a line
        '"The toaster hums all night!"\n',
        "She wrote:",
        f"Dear Sir. {TRAINED} Yours.",  # most of it
        TRAINED.replace("Mrs Brandt", "Mr Brand"),
    ],
)
def test_text_in_another_format_or_in_part_is_seen(text: str) -> None:
    assert is_seen(text, hashes_of([TRAINED]))
    assert is_seen(TRAINED, hashes_of([text])) == (len(text) > 60)


@pytest.mark.parametrize(
    "text", ["", " \n", "The toaster hums.", f"{'A new sentence follows. ' * 9}{TRAINED}", "!?"]
)
def test_other_text_is_not_seen(text: str) -> None:
    assert not is_seen(text, hashes_of([TRAINED, "...", ""]))


def test_text_of_symbols_is_seen() -> None:
    assert is_seen(":-) ", hashes_of([":-)"])) and not is_seen(":-(", hashes_of([":-)"]))


def test_sentences_end_where_those_of_spacy_do() -> None:
    for end in Sentencizer.default_punct_chars:
        assert is_seen("Ann left", hashes_of([f"Ann left{end}Bob came in"])), end


def test_composed_and_decomposed_characters_are_the_same_text() -> None:
    assert is_seen("Cafe\u0301 Ann left", hashes_of(["Caf\xe9 Ann left"]))


ODD = "aZ9 .!?\n\t-\u0130\u00df\u200b\u0301\u3002\uff1f\ud83d\U0001f600"


@given(st.lists(st.text(ODD, max_size=30), min_size=1, max_size=4))
def test_each_text_that_was_hashed_is_seen(texts: list[str]) -> None:
    hashes = hashes_of(texts)
    assert all(is_seen(text, hashes) == bool(text.strip()) for text in texts)


# In a component


def made(texts: str = "abc") -> tuple[Language, list[Example]]:
    nlp = small(width=8)
    return nlp, make_examples(nlp, [(f"Anna {each}", [(0, 4, "PER")]) for each in texts])


def hashes(*letters: str) -> set[int]:
    return hashes_of(f"Anna {letter}" for letter in letters)


def test_update_keeps_hashes_in_saved_and_sourced_pipelines(tmp_path: Path) -> None:
    nlp, examples = made()
    seen: Any = recognizer(nlp).seen_texts
    assert seen.known() == (False, set(), set())
    train(nlp, examples[:2], steps=2)
    assert seen.known() == (True, hashes("a", "b"), set())
    nlp.to_disk(tmp_path)
    saved, merged = spacy.load(tmp_path), spacy.blank("en")
    merged.add_pipe("crf_ner", "ner", source=saved)
    loaded = copied(merged)
    for same in (saved, merged, loaded):
        assert recognizer(same).seen_texts.known() == (True, hashes("a", "b"), set())
    optimizer = saved.resume_training()
    saved.update(examples[2:], sgd=optimizer)
    again = copied(saved)
    for same in (saved, again):
        assert recognizer(same).seen_texts.known().train == hashes("a", "b", "c")
    again.initialize(lambda: examples)
    assert recognizer(again).seen_texts.known() == (False, set(), set())


def test_rehearsal_keeps_hashes() -> None:
    nlp, examples = made()
    train(nlp, examples[:1], steps=1)
    optimizer = nlp.resume_training()
    nlp.rehearse(examples[1:2], sgd=optimizer)
    assert recognizer(nlp).seen_texts.known().train == hashes("a", "b")


def test_texts_evaluated_between_updates_are_dev() -> None:
    nlp, (first, second, third) = made()
    optimizer = nlp.initialize(lambda: [first])
    nlp.evaluate([second])  # before any update: nothing is chosen
    nlp.update([first], sgd=optimizer)
    seen: Any = recognizer(nlp).seen_texts
    nlp.evaluate([second])
    assert seen.known().dev == set()  # as of a test corpus after training
    nlp.update([first], sgd=optimizer)
    nlp.evaluate([third])
    assert seen.known() == (True, hashes("a"), hashes("b"))


def test_texts_evaluated_after_training_and_before_saving_are_dev(tmp_path: Path) -> None:
    """The evaluation may have chosen to save these weights, or to train on in another process."""
    nlp, (first, second, third) = made()
    train(nlp, [first], steps=1)
    nlp.evaluate([second])
    data = nlp.to_bytes()
    assert recognizer(nlp).seen_texts.known().dev == hashes("b")
    nlp.evaluate([third])
    nlp.to_disk(tmp_path)
    for load, source, letters in ((nlp.from_bytes, data, "b"), (nlp.from_disk, tmp_path, "bc")):
        load(source)
        assert recognizer(nlp).seen_texts.known() == (True, hashes("a"), hashes(*letters))


def test_texts_evaluated_after_loading_are_dev_once_training_goes_on() -> None:
    nlp, (first, second, third) = made()
    train(nlp, [first], steps=1)
    loaded = copied(nlp)
    seen: Any = recognizer(loaded).seen_texts
    loaded.evaluate([second])
    again = spacy.blank("en").from_config(nlp.config).from_bytes(loaded.to_bytes())
    for each in (loaded, again):  # as of a test corpus: it has chosen nothing
        assert recognizer(each).seen_texts.known().dev == set()
    loaded.update([third], sgd=loaded.resume_training())
    assert seen.known() == (True, hashes("a", "c"), hashes("b"))


def test_pipeline_saved_without_hashes_does_not_know_its_texts(tmp_path: Path) -> None:
    nlp, examples = made()
    train(nlp, examples, steps=1)
    nlp.to_disk(tmp_path)
    path = tmp_path / "crf_ner" / "cfg"
    path.with_name("digests.json").unlink()
    cfg = srsly.read_json(path)
    srsly.write_json(path, {key: value for key, value in cfg.items() if key != "seen"})
    old = spacy.load(tmp_path)
    assert recognizer(old).seen_texts.known() == (False, set(), set())
    old.update(examples[:1], sgd=old.resume_training())
    assert recognizer(old).seen_texts.known() == (False, hashes("a"), set())
    for damaged in ({"train": "AAAA"}, {"dev": "*" * 32}, {"dev": 5}):
        srsly.write_json(path, {**cfg, "seen": {**cfg["seen"], **damaged}})
        with pytest.raises(InputError, match=r"\[crf_ner\] The hashes of the training texts are d"):
            spacy.load(tmp_path)


def test_hashes_are_checked_on_loading_without_a_set_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A set of a million hashes takes half a second."""
    nlp, examples = made()
    train(nlp, examples, steps=1)
    pipe: Any = recognizer(nlp)
    data = pipe.to_bytes()
    monkeypatch.delattr(SeenTexts, "known")
    pipe.from_bytes(data)


def test_loading_into_a_trained_pipeline_replaces_its_hashes(tmp_path: Path) -> None:
    nlp, examples = made()
    train(nlp, examples[:1], steps=1)
    seen: Any = recognizer(nlp).seen_texts
    data = nlp.to_bytes()
    nlp.to_disk(tmp_path)
    for load, source in ((nlp.from_bytes, data), (nlp.from_disk, tmp_path)):
        nlp.update(examples[1:2], sgd=nlp.resume_training())
        nlp.evaluate(examples[2:])
        load(source)
        assert seen.known() == (True, hashes("a"), set())
        nlp.update(examples[:1], sgd=nlp.resume_training())
        assert seen.known() == (True, hashes("a"), set())


def test_loading_weights_without_hashes_forgets_those_of_other_weights() -> None:
    nlp, examples = made()
    train(nlp, examples[:1], steps=1)
    pipe: Any = recognizer(nlp)
    parts = srsly.msgpack_loads(pipe.to_bytes())
    cfg = srsly.json_loads(parts["cfg"])
    old = {**parts, "cfg": srsly.json_dumps({key: cfg[key] for key in cfg if key != "seen"})}
    for each in (old, {"model": parts["model"]}):
        pipe.from_bytes(srsly.msgpack_dumps(each))
        assert pipe.seen_texts.known() == (False, set(), set())
        pipe.from_bytes(srsly.msgpack_dumps(parts))
        assert pipe.seen_texts.known() == (True, hashes("a"), set())


@pytest.mark.parametrize("is_complete", [False, True])  # True: saved before its first update
def test_student_of_a_teacher_without_hashes_does_not_know_its_texts(is_complete: bool) -> None:
    nlp, examples = made()
    train(nlp, examples[:1], steps=1)
    seen: Any = recognizer(nlp).seen_texts
    seen.inherit({"is_complete": is_complete, "train": "", "dev": ""})
    assert seen.known() == (False, hashes("a"), set())


def test_pipeline_saved_before_its_first_update_knows_its_texts() -> None:
    nlp, examples = made()
    optimizer = nlp.initialize(lambda: examples)
    same = copied(nlp)
    assert recognizer(same).seen_texts.known() == (False, set(), set())
    nlp.update(examples[:1], sgd=optimizer)
    same.update(examples[:1], sgd=same.resume_training())
    for each in (nlp, same):
        assert recognizer(each).seen_texts.known() == (True, hashes("a"), set())


def test_hashes_are_small_and_do_not_depend_on_the_process() -> None:
    """Eight bytes for each sentence, as base64."""
    nlp, _ = made()
    seen: Any = recognizer(nlp).seen_texts
    seen.remember("train", (f"Sentence {i}" for i in range(300)))
    seen.store()
    cfg: Any = recognizer(nlp).cfg
    assert len(cfg["seen"]["train"]) == 300 * 8 * 4 / 3
    assert hashes_of(["Tim Cook visited Hanoi."]) == {16900659750689365058}
