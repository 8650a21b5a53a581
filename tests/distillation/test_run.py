"""A student learns from teachers; an interrupted run resumes with identical results."""

import json
import shutil
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import spacy
from spacy.cli.train import train as spacy_train
from spacy.language import Language
from spacy.tokens import Doc, DocBin
from spacy.training.initialize import init_nlp
from spacy.util import load_config
from thinc.api import Config

from pipelines import SENTENCES, TOK2VEC, ents, make_examples, train
from spacy_crf_ner.annotate import WorkerError
from spacy_crf_ner.annotate.shards import Shard
from spacy_crf_ner.distillation import DEFAULTS, distill, folds, run, shards
from spacy_crf_ner.distillation.student import interval
from spacy_crf_ner.input_error import InputError
from spacy_crf_ner.pipeline.distill_targets import KEY
from spacy_crf_ner.pipeline.lookup import recognizer
from spacy_crf_ner.pipeline.queries import teacher_scores
from spacy_crf_ner.pipeline.seen_texts import hashes_of
from spacy_crf_ner.training.distill_corpus import distill_corpus
from spacy_crf_ner.training.teacher_shard import find_shards, read_shard

TEXTS = [text for text, _ in SENTENCES if text.strip()]


class Loop:
    """An engine of one worker in this process; it fails after that number of shards."""

    size = 1

    def __init__(self, after: int | None = None) -> None:
        self.after = after

    def map(self, work: Any, items: Any) -> Any:
        for done, item in enumerate(items):
            if isinstance(item, Shard) and done == self.after:
                raise RuntimeError("killed")
            yield work(item, -1)


@pytest.fixture(autouse=True)
def engine(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The engine of the runs; `engine["after"]` ends them. No student is trained."""
    settings: dict[str, Any] = {}
    monkeypatch.setattr(run, "processes", lambda *args: nullcontext(Loop(**settings)))
    monkeypatch.setattr(run, "train", lambda *args, **settings: None)
    return settings


@pytest.fixture
def trains(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Students are trained."""
    monkeypatch.setattr(run, "train", spacy_train)


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """The teachers of the folds are not trained or calibrated: they are the given ones."""

    def train_folds(
        config: Any, docs: Any, fold_of: Any, gpu_id: int, only: Any, source: Language
    ) -> Any:
        for fold in only:
            yield source, [i for i, each in enumerate(fold_of) if each == fold]

    monkeypatch.setattr(folds, "train_folds", train_folds)
    monkeypatch.setattr(folds, "_fit", lambda *args: None)


@pytest.fixture(scope="module")
def teacher(trained: Language) -> str:
    """The folder of a small pipeline that has learned all of SENTENCES."""
    return str(trained.path)


@pytest.fixture
def student(tmp_path: Path) -> Path:
    return write_config(tmp_path / "small.cfg")


def write_config(path: Path, steps: int = 3, **settings: Any) -> Path:
    model = {"@architectures": "spacy-crf-ner.BiLSTMCRF.v1", "hidden_width": 8, "tok2vec": TOK2VEC}
    changes = {
        "nlp": {"lang": "en", "pipeline": ["ner"]},
        "components": {"ner": {"factory": "crf_ner", "model": model, **settings}},
        "training": {
            "max_steps": steps,
            "eval_frequency": steps,
            "optimizer": {"@optimizers": "Adam.v1", "learn_rate": 0.01},
            "batcher": {"@batchers": "spacy.batch_by_sequence.v1", "size": 2},
        },
    }
    Config(spacy.blank("en").config).merge(changes).to_disk(path)
    return path


def write_texts(path: Path, texts: list[str]) -> Path:
    content = "".join(json.dumps({"text": text}) + "\n" for text in texts)
    if not path.exists() or path.read_text() != content:  # a run resumes with the same file
        path.write_text(content)
    return path


def write_gold(path: Path, times: int = 1) -> Path:
    examples = make_examples(spacy.blank("en"))
    DocBin(docs=[eg.reference for eg in examples] * times).to_disk(path)
    return path


def teacher_docs(out: Path) -> list[Doc]:
    vocab = spacy.blank("en").vocab
    return [doc for file in find_shards(out / "teachers") for doc in read_shard(file, vocab).docs]


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def teach(teacher: str, student: Path, tmp_path: Path, out: Path) -> Any:
    """Distill texts, or a path, into `out`: `teach(texts, teachers, config, ...)`."""

    def run(
        texts: Any = TEXTS, teachers: Any = (teacher,), config: Any = student, **more: Any
    ) -> Any:
        names = more.keys() & {*DEFAULTS._fields}
        settings = DEFAULTS._replace(**{name: more.pop(name) for name in names})
        if not isinstance(texts, Path):
            texts = write_texts(tmp_path / "in.jsonl", texts)
        return distill(teachers, [texts], out, config, settings, **more)

    return run


@pytest.fixture
def teach_folds(trainable: str, student: Path, tmp_path: Path, teach: Any) -> Any:
    """Distill gold docs, and texts, from teachers of two folds."""
    gold = write_gold(tmp_path / "gold.spacy")

    def run(
        teachers: Any = (trainable,), config: Any = student, texts: Any = (), **more: Any
    ) -> Any:
        return teach(texts, teachers, config, **{"gold": gold, "dev": gold, "folds": 2, **more})

    return run


def contents(folder: Path, *names: str) -> dict[str, bytes]:
    files = [each for name in names for each in sorted(folder.glob(name))]
    assert files
    return {each.name: each.read_bytes() for each in files}


@pytest.mark.slow
@pytest.mark.usefixtures("trains")
def test_distill_student_matches_teacher_predictions(teach, tmp_path, trained) -> None:
    """Without gold entities, which the texts of the teacher had."""
    config = write_config(tmp_path / "config.cfg", steps=60, scheme="bio")
    summary = teach(TEXTS * 8, config=config, weight=1.0)
    assert summary["in"] == summary["out"] == len(TEXTS) * 8
    nlp = spacy.load(summary["model"])
    assert nlp.get_pipe("ner").labels == trained.get_pipe("crf_ner").labels
    for text in TEXTS:
        assert ents(nlp(text)) == ents(trained(text))
        confidences = ([e._.confidence for e in p(text).ents] for p in (nlp, trained))
        np.testing.assert_allclose(*confidences, atol=0.15)


@pytest.mark.usefixtures("trains")
def test_student_knows_the_texts_of_its_teachers(teach: Any, teacher: str, tmp_path: Path) -> None:
    other = spacy.load(teacher)
    recognizer(other).seen_texts.remember("train", ["Known to one teacher"])
    recognizer(other).seen_texts.remember("dev", ["It chose this teacher"])
    other.to_disk(tmp_path / "other")
    teach([f"A new text {i}" for i in range(9)], [teacher, str(tmp_path / "other")])
    found = recognizer(spacy.load(tmp_path / "out" / "model-last")).seen_texts.known()
    assert found.is_complete and found.train > hashes_of([*TEXTS, "Known to one teacher"])
    assert found.train & hashes_of(f"A new text {i}" for i in range(9))
    assert found.dev >= hashes_of(["It chose this teacher"])


@pytest.mark.usefixtures("trains")
def test_the_student_is_that_of_spacy_train_with_its_config(teach, out, tmp_path) -> None:
    """The same bits."""
    teach()
    spacy_train(out / "config.cfg", tmp_path / "again")
    names = [f"model-last/{name}" for name in ("ner/model", "ner/cfg", "config.cfg")]
    assert contents(out, *names) == contents(tmp_path / "again", *names)


@pytest.mark.usefixtures("trains")
def test_distill_resumed_run_gives_identical_bytes(teach, out, tmp_path, engine) -> None:
    again = partial(teach, TEXTS * 3, shard_size=4)
    again()
    out.rename(tmp_path / "whole")
    engine["after"] = 2
    with pytest.raises(WorkerError, match=r"killed\. 2 finished shards are kept: continue wi"):
        again()
    before = contents(out / "teachers", "*.npz")
    assert len(before) == 2 and not (out / "config.cfg").exists()
    engine["after"] = None
    with pytest.raises(InputError, match="Continue that run with --resume"):
        again()
    summary = again(resume=True)
    assert (summary["resumed_shards"], summary["shards"]) == (2, 4)
    names = ("teachers/*.npz", "dev.spacy", "model-last/ner/model")
    assert contents(tmp_path / "whole", *names) == contents(out, *names)
    assert before.items() <= contents(out / "teachers", "*.npz").items()


def test_distill_resume_with_changed_input_raises(teacher, student, tmp_path, out) -> None:
    texts, gold = write_texts(tmp_path / "in.jsonl", TEXTS), write_gold(tmp_path / "gold.spacy")
    distill([teacher], [gold, texts], out, student)

    def refuse(
        teachers: Any = (teacher,), inputs: Any = (gold, texts), more: Any = DEFAULTS, **own: Any
    ) -> None:
        with pytest.raises(InputError, match=r"of the earlier run, .* with --restart"):
            distill(teachers, inputs, out, student, more, resume=True, **own)

    refuse(teachers=[teacher, teacher])
    refuse(inputs=[texts, gold])
    refuse(inputs=[texts], gold=gold)
    refuse(more=DEFAULTS._replace(max_characters=100))
    given = student.read_text()
    student.write_text(given.replace('lang = "en"', 'lang = "de"'))  # another tokenizer
    refuse()
    student.write_text(given)
    write_texts(texts, TEXTS * 2)
    refuse()
    summary = distill([teacher], [gold, texts], out, student, restart=True)
    assert summary["resumed_shards"] == 0 and summary["out"] > 2 * len(TEXTS)


def test_load_in_worker_auto_dtype_depends_on_all_teachers(teacher, monkeypatch) -> None:
    load = partial(shards.load_in_worker, "auto", -1, teachers=[teacher, teacher], component=None)
    for of_teachers, expected in (
        (["bf16", "bf16"], "bf16"),
        ([None, "int8"], "int8"),
        (["bf16", "int8"], "fp32"),
        ([None, None], "auto"),
    ):
        monkeypatch.setattr(shards, "resolved_dtype", partial(next, iter(of_teachers)))
        assert load() == expected


def test_distill_accepts_dtype_auto(teach: Any) -> None:
    assert teach(dtype="auto")["out"] == len(TEXTS)


@pytest.mark.usefixtures("trains")
def test_distill_resume_reuses_scores_for_another_student(teach, tmp_path, monkeypatch) -> None:
    teach()
    monkeypatch.setattr(run, "teach_shard", lambda *args, **settings: 1 / 0)
    other = write_config(tmp_path / "other.cfg", scheme="io")
    summary = teach(config=other, temperature=2.0, resume=True)
    assert spacy.load(summary["model"]).get_pipe("ner").scheme.name == "io"


@pytest.mark.slow
@pytest.mark.usefixtures("trains")
def test_distill_weight_0_equals_plain_training(teach: Any, out: Path, tmp_path: Path) -> None:
    """The same bits as `spacy train` on the gold docs in the same order."""
    config = write_config(tmp_path / "config.cfg", steps=8)
    gold = write_gold(tmp_path / "gold.spacy", times=4)
    teach((), config=config, gold=gold, dev=gold, weight=0.0)
    order = [eg.reference for eg in distill_corpus(out / "teachers")(spacy.blank("en"))]
    assert [doc.text for doc in order] != sorted(doc.text for doc in order)
    DocBin(docs=order).to_disk(tmp_path / "ordered.spacy")
    plain = Config().from_disk(out / "config.cfg", interpolate=False)
    plain["paths"]["train"] = str(tmp_path / "ordered.spacy")
    plain["corpora"]["train"] = {"@readers": "spacy.Corpus.v1", "path": "${paths.train}"}
    plain.to_disk(tmp_path / "plain.cfg")
    spacy_train(tmp_path / "plain.cfg", tmp_path / "plain")
    model = "model-last/ner/model"
    assert (tmp_path / "plain" / model).read_bytes() == (out / model).read_bytes()
    teach((), config=config, gold=gold, dev=gold, weight=0.5, resume=True)
    assert (tmp_path / "plain" / model).read_bytes() != (out / model).read_bytes()


def test_distill_gold_docs_keep_entities_and_get_scores(teach, tmp_path, out) -> None:
    gold, texts = write_gold(tmp_path / "gold.spacy"), tmp_path / "in.spacy"
    raw = [eg.reference for eg in make_examples(spacy.blank("en"))][:1]  # its entities are not read
    DocBin(docs=raw).to_disk(texts)
    summary = teach(texts, gold=gold, dev=gold)
    found = list(distill_corpus(out / "teachers")(spacy.blank("en")))
    by_text = {(eg.text, ents(eg.reference) != []) for eg in found}
    sentences = {(text, entities != []) for text, entities in SENTENCES if text}
    assert by_text == sentences | {(SENTENCES[0][0], False)}
    assert all(KEY in eg.reference.user_data for eg in found)
    assert (summary["empty"], summary["in"]) == (1, len(SENTENCES))  # one is "", one more is raw
    unannotated = next(eg for eg in found if eg.text == SENTENCES[0][0] and not eg.reference.ents)
    assert not any(token.ent_iob for token in unannotated.reference)


@pytest.fixture(scope="module")
def trainable(shared: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A teacher that `spacy train` has made, so that its config has corpora."""

    def make() -> Language:
        folder = tmp_path_factory.mktemp("trainable")
        gold = write_gold(folder / "gold.spacy", 2)
        config = write_config(folder / "teacher.cfg", steps=8)
        paths = {"paths.train": str(gold), "paths.dev": str(gold)}
        spacy_train(config, folder, overrides=paths)
        return spacy.load(folder / "model-last")

    return str(shared("trainable_teacher", make))


def untrained(config: Path, gold: Path, folder: Path) -> str:
    """A teacher that `spacy train` would train, as it is before the first step."""
    paths = {"paths.train": str(gold), "paths.dev": str(gold)}
    init_nlp(load_config(config, overrides=paths)).to_disk(folder)
    return str(folder)


@pytest.mark.slow
def test_distill_folds_teach_gold_docs_by_teachers_trained_without_them(
    teach_folds: Any, trainable: str, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[str]] = []
    read = folds.train_folds

    def train_folds(config: Any, docs: Any, *args: Any, **settings: Any) -> Any:
        for nlp, held_out in read(config, docs, *args, **settings):
            seen.append([doc.text for i, doc in enumerate(docs) if i not in held_out])
            yield nlp, held_out

    monkeypatch.setattr(folds, "train_folds", train_folds)
    numbers: list[int] = []
    again = partial(teach_folds, [trainable] * 2, texts=TEXTS[:2], on_fold=numbers.append)
    summary = again()
    assert numbers == [1, 1, 2, 2]
    assert (summary["in"], summary["empty"]) == (len(SENTENCES) + 1, 1)
    (folder,) = (out / "folds").iterdir()
    vocab = spacy.blank("en").vocab
    readings = [list(DocBin().from_disk(each).get_docs(vocab)) for each in folder.glob("*.spacy")]
    assert sorted(doc.text for docs in readings for doc in docs) == sorted(t for t, _ in SENTENCES)
    # The scores of each doc are those of the teachers that were trained without it.
    given = spacy.load(trainable)
    found = 0
    for fold, file in enumerate(find_shards(out / "teachers")):
        shard = read_shard(file, vocab)
        names = [trainable] * 2
        if fold < 2:
            own = DocBin().from_disk(folder / f"fold-{fold}.spacy").get_docs(vocab)
            of_fold = {doc.text for doc in own}
            assert {doc.text for doc in shard.docs} == of_fold - {""}
            names = [str(folder / f"fold-{fold}-teacher-{k}") for k in (0, 1)]
            assert not of_fold & {*seen[2 * fold], *seen[2 * fold + 1]}
            assert of_fold | {*seen[2 * fold]} == {text for text, _ in SENTENCES}
        for k, name in enumerate(names):
            nlp = spacy.load(name)
            assert nlp.get_pipe("ner").labels == given.get_pipe("ner").labels
            for doc, emissions in zip(shard.docs, shard.emissions, strict=True):
                _, (expected,) = teacher_scores(nlp.get_pipe("ner"), [nlp.make_doc(doc.text)])
                np.testing.assert_allclose(emissions[k], expected, atol=1e-5)
                found += 1
    assert found == 2 * (sum(map(bool, dict(SENTENCES))) + 2)
    fitted = [spacy.load(each).get_pipe("ner").calibrated_on for each in folder.glob("*-teacher-0")]
    assert fitted and all(fitted)
    # What is there is not trained again, and the result is the same.
    before = contents(out, "teachers/part-*", "config.cfg")
    again(resume=True)
    assert len(numbers) == 4
    assert contents(out, "teachers/part-*", "config.cfg") == before


@pytest.mark.usefixtures("copies")
def test_distill_interrupted_folds_are_not_trained_again(teach_folds, out, tmp_path) -> None:
    for last, expected in ((2, [1, 2]), (0, [2])):
        numbers: list[int] = []
        with pytest.raises(KeyboardInterrupt) if last else nullcontext():
            teach_folds(on_fold=killed_in(last, numbers))
        assert numbers == expected
    # Other gold docs have other folds.
    other = write_gold(tmp_path / "other.spacy", 2)
    teach_folds(gold=other, on_fold=numbers.append, restart=True)
    assert numbers == [2, 1, 2]


@pytest.mark.usefixtures("copies")
def test_distill_invalid_input_raises_before_training_folds(
    teach_folds: Any, trainable: str, tmp_path: Path, out: Path
) -> None:
    numbers: list[int] = []
    teach_folds = partial(teach_folds, on_fold=numbers.append)
    gold = tmp_path / "gold.spacy"
    (tmp_path / "no_text.csv").write_text("a,b\n1,2\n")
    for wrong, message in (
        (gold, "expected every file once"),
        (tmp_path / "missing.txt", "missing.txt"),
        (tmp_path / "no_text.csv", "text"),
    ):
        with pytest.raises(InputError, match=message):
            teach_folds(texts=wrong)
    other = write_config(tmp_path / "other.cfg", scheme="bio", overlap=True, spans_key="other")
    config = write_config(tmp_path / "teacher.cfg", overlap=True)
    overlapping = untrained(config, gold, tmp_path / "overlapping")
    with pytest.raises(InputError, match="spans_key 'other' of the student, got one with 'sc'"):
        teach_folds([overlapping], other)
    frozen = spacy.load(trainable)
    (name,) = frozen.pipe_names
    frozen.config["training"]["frozen_components"] = [name]
    frozen.to_disk(tmp_path / "frozen")
    with pytest.raises(InputError, match="folds: expected a config that trains"):
        teach_folds([str(tmp_path / "frozen")])
    assert numbers == []
    teach_folds()
    assert numbers == [1, 2]
    with pytest.raises(InputError, match="got one with an earlier run"):
        teach_folds(folds=3)
    with pytest.raises(InputError, match="the gold docs, teachers and folds of the earlier run"):
        teach_folds(folds=3, resume=True)
    assert numbers == [1, 2]
    # A run that replaces this one can be continued too.
    with pytest.raises(KeyboardInterrupt):
        teach_folds(folds=3, on_fold=killed_in(2, numbers), restart=True)
    teach_folds(folds=3, resume=True)
    assert numbers == [1, 2, 1, 2, 2, 3]
    assert len([*(out / "folds").iterdir()]) == 1


def killed_in(last: int, numbers: list[int]) -> Any:
    def on_fold(number: int) -> None:
        numbers.append(number)
        if number == last:
            raise KeyboardInterrupt

    return on_fold


def test_distill_unknown_gpu_raises_before_training_folds(teach_folds: Any) -> None:
    with pytest.raises(InputError, match="expected a GPU with the number 99"):
        teach_folds(on_fold=pytest.fail, gpu_ids=[99])


@pytest.mark.slow
def test_distill_folds_accept_softmax_teacher(tmp_path, teach_folds, trainable) -> None:
    gold = tmp_path / "gold.spacy"
    config = Config().from_disk(write_config(tmp_path / "softmax.cfg"), interpolate=False)
    config["components"]["ner"]["model"]["decoder"] = "softmax"
    config.to_disk(tmp_path / "softmax.cfg")
    teachers = [untrained(tmp_path / "softmax.cfg", gold, tmp_path / "softmax"), trainable]
    summary = teach_folds(teachers)
    assert summary["errors"] == 0


@pytest.mark.slow
def test_frozen_components_of_teachers_keep_their_weights(tmp_path, teach_folds, out) -> None:
    tagger = spacy.blank("en")
    tagger.add_pipe("tagger").add_label("X")  # type: ignore[attr-defined]
    tagger.initialize()
    tagger.to_disk(tmp_path / "tagger")
    config = Config().from_disk(write_config(tmp_path / "teacher.cfg"), interpolate=False)
    config["nlp"]["pipeline"] = ["tagger", "ner"]
    config["components"]["tagger"] = {"source": str(tmp_path / "tagger")}
    config["training"]["frozen_components"] = ["tagger"]
    config.to_disk(tmp_path / "teacher.cfg")
    gold = tmp_path / "gold.spacy"
    teacher = untrained(tmp_path / "teacher.cfg", gold, tmp_path / "teacher")
    teach_folds([teacher])
    made = [*(out / "folds").rglob("fold-*-teacher-0")]
    assert len(made) == 2
    for each in made:
        pair = (spacy.load(name).get_pipe("tagger").model.to_bytes() for name in (each, teacher))
        assert len({*pair}) == 1


def test_distill_invalid_fold_count_raises(teach: Any, teach_folds: Any) -> None:
    with pytest.raises(InputError, match="folds: expected a gold corpus, to divide into 2, got no"):
        teach(folds=2)
    for number in (1, 100):
        with pytest.raises(InputError, match=f"folds: expected 2 to .*, got {number}"):
            teach_folds(folds=number)


def test_empty_texts_and_failures_are_counted(teach, tmp_path, out, monkeypatch) -> None:
    """A column of entities, as `predict` writes it, is no failure."""
    texts = [*TEXTS, "", "poison", "", "poison too"]
    original = shards._adopt

    def adopt(nlp: Any, doc: Doc) -> Doc:
        if "poison" in doc.text:
            raise ValueError("bad doc")
        return original(nlp, doc)

    monkeypatch.setattr(shards, "_adopt", adopt)
    path = write_texts(tmp_path / "in.jsonl", texts)
    with path.open("a") as file:
        file.write('\n{"text": 3}\n{"text": "more", "entities": []}\n')
    summary = teach(path)
    expected = {"in": len(TEXTS) + 4, "out": len(TEXTS) + 1, "errors": 3, "empty": 3}
    assert expected.items() <= summary.items()
    lines = (out / "teachers" / "errors.jsonl").read_text().splitlines()
    errors = [(error["line"], error["reason"]) for error in map(json.loads, lines)]
    n = len(TEXTS)
    assert [line for line, _ in errors] == [n + 2, n + 4, n + 6]
    assert errors[0][1] == "ValueError: bad doc"
    assert [doc.text for doc in teacher_docs(out)] == [*TEXTS, "more"]


@Language.component("merge_and_split")
def merge_and_split(doc: Doc) -> Doc:
    """Keep the number of tokens."""
    if doc.text.startswith("Tim Cook visited"):
        with doc.retokenize() as retokenizer:
            retokenizer.merge(doc[:2])
            retokenizer.split(doc[2], ["vis", "ited"], [doc[2], doc[2]])
    return doc


@pytest.mark.parametrize(
    "components, message",
    [
        (["entity_ruler", "merge_entities"], "the 9 tokens of the student, got 7 others"),
        (["merge_and_split"], "the 4 tokens of the student, got 4 others"),
    ],
)
def test_distill_teacher_with_other_tokens_logs_doc_error(
    components: list[str], message: str, trained: Any, teach: Any, tmp_path: Path, out: Path
) -> None:
    nlp = spacy.blank("en")
    for name in components:
        pipe: Any = nlp.add_pipe(name)
        if name == "entity_ruler":
            pipe.add_patterns([{"label": "GPE", "pattern": "Nothing to see"}])
    nlp.add_pipe("crf_ner", source=trained)
    nlp.to_disk(tmp_path / "other")
    teach(["Tim Cook visited Hanoi", *TEXTS[1:]], [str(tmp_path / "other")])
    (line,) = (out / "teachers" / "errors.jsonl").read_text().splitlines()
    assert f"expected {message}" in line


def test_distill_only_empty_texts_raises(teach: Any) -> None:
    with pytest.raises(InputError, match="expected documents with a token, got none of 0, and 2"):
        teach(["", ""])


@pytest.mark.slow
def test_a_long_text_is_cut_into_docs(teach: Any, out: Path) -> None:
    text = "Tim Cook visited Hanoi, and no one else did. " * 23_000  # a megabyte
    assert teach([text, TEXTS[0]])["out"] == 2
    docs = teacher_docs(out)
    assert "".join(doc.text for doc in docs[:-1]) == text
    assert all(len(doc.text) <= 10_000 for doc in docs) and len(docs) > 100
    assert all(doc.text.startswith("Tim Cook") for doc in docs)


def test_distill_uses_tokens_of_student(trained, teach, tmp_path, out) -> None:
    """Not of the teacher, which splits other words."""
    other = spacy.blank("de")
    other.add_pipe("crf_ner", source=trained)
    other.to_disk(tmp_path / "german")
    teach(["I cannot visit Hanoi z.B. today"] * 10, [str(tmp_path / "german")])
    words = [token.text for token in spacy.blank("en")("I cannot visit Hanoi z.B. today")]
    assert words != [token.text for token in spacy.blank("de")("I cannot visit Hanoi z.B. today")]
    for eg in distill_corpus(out / "teachers")(spacy.blank("en")):
        assert [token.text for token in eg.predicted] == words


def test_distill_measures_agreement_on_held_out_docs(teach: Any, out: Path, trained: Any) -> None:
    teach([f"{text} {i}" for i in range(9) for text in TEXTS])
    nlp = spacy.blank("en")
    held = list(DocBin().from_disk(out / "dev.spacy").get_docs(nlp.vocab))
    config = Config().from_disk(out / "config.cfg")
    train_texts = {eg.text for eg in distill_corpus(out / "teachers", hold_out=10)(nlp)}
    assert config["corpora"]["train"]["hold_out"] == 10
    assert len(held) == 5 and len(train_texts) == 40
    assert not train_texts & {doc.text for doc in held}
    for doc in held:
        predicted = [ent for ent in trained(doc.text).ents if ent._.confidence > 0.5]
        assert ents(doc) == [(e.start_char, e.end_char, e.label_) for e in predicted]
        assert all(token.ent_iob for token in doc)
    assert (interval(50), interval(9_999), interval(50_000)) == (10, 10, 50)


@pytest.mark.usefixtures("trains")
def test_distill_accepts_teachers_with_different_label_order(teach, teacher, tmp_path, out) -> None:
    other = spacy.blank("en")
    model = {"hidden_width": 8, "tok2vec": TOK2VEC}
    other.add_pipe("crf_ner", name="finder", config={"scheme": "io", "model": model})
    finder: Any = other.get_pipe("finder")
    for label in ("PERSON", "GPE", "ORG"):
        finder.add_label(label)
    train(other, make_examples(other), steps=2)
    finder.temperature = 1.5
    other.to_disk(tmp_path / "other")
    summary = teach(TEXTS, [teacher, str(tmp_path / "other")])
    (file,) = find_shards(out / "teachers")
    shard = read_shard(file, spacy.blank("en").vocab)
    assert [t.labels for t in shard.teachers] == [
        ("GPE", "ORG", "PERSON"),
        ("PERSON", "GPE", "ORG"),
    ]
    docs = [other.make_doc(text) for text in TEXTS]
    np.testing.assert_array_equal(shard.emissions[0][1], teacher_scores(finder, docs)[1][0])
    assert spacy.load(summary["model"])


@pytest.mark.slow
@pytest.mark.usefixtures("trains")
def test_distill_overlapping_entities_scores_spans(teach: Any, tmp_path: Path, out: Path) -> None:
    nlp = spacy.blank("en")
    model = {"hidden_width": 16, "tok2vec": TOK2VEC}
    nlp.add_pipe("crf_ner", config={"overlap": True, "model": model, "scheme": "bio"})
    train(nlp, make_examples(nlp))
    nlp.to_disk(tmp_path / "teacher")
    config = write_config(tmp_path / "config.cfg", overlap=True, spans_key="sc")
    teach(TEXTS * 3, [str(tmp_path / "teacher")], config)
    (held, *_) = DocBin().from_disk(out / "dev.spacy").get_docs(nlp.vocab)
    assert [(str(s), s.label_) for s in held.spans["sc"]] == [
        ("Tim Cook", "PERSON"),
        ("Hanoi", "GPE"),
    ]
    nlp = spacy.load(out / "model-best")
    assert nlp.get_pipe("ner").overlap
    assert nlp.meta["performance"]["spans_sc_f"] is not None
    weights = nlp.config["training"]["score_weights"]
    assert {name for name, weight in weights.items() if weight} == {"spans_sc_f"}


def change_config(path: Path, section: str, **settings: Any) -> None:
    config = Config().from_disk(path)
    config[section].update(settings)
    config.to_disk(path)


@pytest.mark.usefixtures("trains")
def test_distill_mismatched_labels_raise(teach, teacher, student, tmp_path, out) -> None:
    nlp = spacy.blank("en")
    doc = nlp.make_doc("a place")
    doc.ents = [spacy.tokens.Span(doc, 0, 2, "PLACE")]
    DocBin(docs=[doc]).to_disk(tmp_path / "gold.spacy")
    with pytest.raises(InputError, match=r"gold.spacy, entity 'a place' .*\['GPE', .* got 'PLACE'"):
        teach(gold=tmp_path / "gold.spacy")
    other = spacy.blank("en")
    ner: Any = other.add_pipe("crf_ner", config={"model": {"hidden_width": 8, "tok2vec": TOK2VEC}})
    ner.add_label("GPE")
    other.initialize()
    other.to_disk(tmp_path / "other")
    with pytest.raises(InputError, match=r"other: expected a teacher of .* without \['ORG', 'PERS"):
        teach(TEXTS, [teacher, str(tmp_path / "other")])
    overlapping = write_config(tmp_path / "overlapping.cfg", overlap=True)
    with pytest.raises(InputError, match="expected a teacher with overlap True and max_nesting 1"):
        teach(config=overlapping)
    change_config(student, "initialize", components={"ner": {"labels": ["ORG", "GPE"]}})
    with pytest.raises(InputError, match=r"labels \['GPE', 'ORG'\], got one also of \['PERSON'\]"):
        teach()
    assert not out.exists()
    change_config(student, "initialize", components={"ner": {"labels": ["PERSON", "ORG", "GPE"]}})
    summary = teach()
    assert spacy.load(summary["model"]).get_pipe("ner").labels == ("PERSON", "ORG", "GPE")


def test_distill_invalid_arguments_raise(teach: Any, tmp_path: Path) -> None:
    blank, gold = tmp_path / "blank", write_gold(tmp_path / "gold.spacy")
    spacy.blank("en").to_disk(blank)
    for settings, message in (
        ({"teachers": [str(blank)]}, "expected a pipeline with a crf_ner component, got"),
        ({"config": blank / "config.cfg"}, "expected a pipeline with a crf_ner component, got"),
        ({"config": "cn"}, r"There is no config 'cn'. Did you mean cnn\?"),
        ({"teachers": []}, "teachers: expected a pipeline, got none"),
        ({"weight": 2.0}, r"expected a weight from 0\.0 to 1\.0"),
        ({"texts": gold, "gold": gold}, "expected every file once"),
    ):
        with pytest.raises(InputError, match=message):
            teach(**settings)


def test_distill_does_not_replace_inputs_or_foreign_files(teacher, student, tmp_path) -> None:
    texts, gold = write_texts(tmp_path / "in.jsonl", TEXTS), write_gold(tmp_path / "gold.spacy")
    out = tmp_path / "training"
    shutil.copytree(teacher, out / "model-best")
    with pytest.raises(InputError, match=r"training: expected a new folder, .* \['model-best'\]"):
        distill([teacher], [texts], out, student)
    state = out / "teachers" / "_progress"
    state.mkdir(parents=True)
    (state / "fingerprint.json").write_text("{}")
    shutil.copy(student, out / "config.cfg")
    gold.rename(out / "dev.spacy")
    paths: Any = {"gold": out / "dev.spacy"}
    for teachers, config, given, option in (
        ([teacher, f"{out}/../training/model-best"], student, {}, "--teacher"),
        ([teacher, str(out)], student, {}, "--teacher"),
        ([teacher], out / "config.cfg", {}, "--config"),
        ([teacher], student, paths, "--gold"),
        ([teacher], student, {"dev": out / "model-best" / "dev.spacy"}, "--dev"),
    ):
        with pytest.raises(InputError, match=f"{option} .*: expected a path that the run does not"):
            distill(teachers, [texts], out, config, restart=True, **given)
    summary = distill([teacher], [texts], out, student, dev=out / "dev.spacy", restart=True)
    assert summary["out"] == len(TEXTS)


@pytest.mark.parametrize(
    "settings", [{"max_epochs": 2}, {"max_steps": 0, "patience": 0}], ids=["epochs", "endless"]
)
def test_distill_config_with_endless_training_raises(settings, teach, student, out) -> None:
    change_config(student, "training", **settings)
    with pytest.raises(InputError, match=r"small.cfg: expected max_steps or patience .* Set max_s"):
        teach()
    assert not out.exists()


def test_many_small_files_hold_out_a_tenth(teach: Any, tmp_path: Path, out: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for i in range(20):
        (folder / f"{i:02}.csv").write_text(f"text\nTim Cook visited Hanoi {i}\n")
    teach(folder)
    held = list(DocBin().from_disk(out / "dev.spacy").get_docs(spacy.blank("en").vocab))
    assert [doc.text.split()[-1] for doc in held] == ["0", "10"]
    rest = {eg.text for eg in distill_corpus(out / "teachers", hold_out=10)(spacy.blank("en"))}
    assert len(rest) == 18 and not rest & {doc.text for doc in held}


def test_distill_invalid_gold_raises_before_teaching(teach: Any, tmp_path: Path, out: Path) -> None:
    nlp = spacy.blank("en")
    doc = nlp.make_doc("in Hanoi  today")
    doc.ents = [spacy.tokens.Span(doc, 1, 3, "GPE")]
    DocBin(docs=[doc]).to_disk(tmp_path / "space.spacy")
    for option in ("gold", "dev"):
        for name, error, message in (
            ("none.spacy", OSError, "none.spacy"),
            ("in.jsonl", InputError, "expected spaCy's binary format, a .spacy file"),
            ("space.spacy", InputError, "begins and ends with a word"),
        ):
            with pytest.raises(error, match=message):
                teach(**{option: tmp_path / name})
    assert not out.exists()


@pytest.mark.parametrize(
    "section, content, message",
    [
        ("components", {"first": {"source": "teacher"}}, r"got \['first'\] with a source"),
        (
            "initialize",
            {"before_init": {"@callbacks": "spacy.copy_from_base_model.v1", "tokenizer": "en"}},
            "got a tokenizer or spacy.copy",
        ),
        ("initialize", {"tokenizer": {"pkuseg_model": "mixed"}}, "got a tokenizer or spacy.copy"),
    ],
)
def test_distill_student_with_source_or_tokenizer_init_raises(
    section: str, content: Any, message: str, teach: Any, student: Path
) -> None:
    change_config(student, section, **content)
    with pytest.raises(InputError, match=message):
        teach()


def test_folds_of_teacher_with_a_changed_setting_are_others(trained, tmp_path) -> None:
    gold = tmp_path / "gold.spacy"
    DocBin(docs=[eg.reference for eg in make_examples(trained)]).to_disk(gold)
    trained.to_disk(tmp_path / "teacher")
    found = []
    for disabled in ([], [], ["GPE"]):
        teacher = shards.LoadedTeacher(str(tmp_path / "teacher"), -1, None, None)
        teacher.pipe.disabled_labels = disabled
        made = folds.FoldTeachers([teacher], teacher.pipe, gold, 2, tmp_path / "folds")
        found.append(made.folder)
    assert found[0] == found[1] != found[2]
