"""Distillation: the teachers' scores of a corpus, and the training of a student on them."""

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import srsly
from spacy.cli.train import train
from spacy.language import Language

from ..annotate import Settings
from ..annotate.files import Source
from ..annotate.multiprocess import processes
from ..annotate.readers import check_text_column, read
from ..annotate.run import STATE, OnProgress, Run, Summary, make_fingerprint
from ..annotate.shards import Shard, cut_shards
from ..atomic import atomic_write, check_folder_name
from ..docbin import SUFFIX, find_docbins, read_docbin
from ..input_error import InputError
from ..pipeline.gold import gold_entities
from ..pipeline.lookup import recognizer
from ..pipeline.seen_texts import SEEN_TEXTS
from ..training.distill_corpus import check_numbers
from ..training.teacher_shard import SUFFIX as SHARD_SUFFIX
from ..training.teacher_shard import as_example
from .folds import FoldTeachers
from .shards import LoadedTeacher, forget_teachers, load_in_worker, teach_shard
from .student import check_teachers, load_student, student_config, write_held_out

# The reader has several shards in memory, and a longer text is cut into several docs.
DEFAULTS = Settings(format="spacy", shard_size=500, max_characters=10_000, dtype="fp32")


def distill(
    teachers: Sequence[str],
    inputs: Sequence[str | Path],
    output: str | Path,
    config: str | Path,
    settings: Settings = DEFAULTS,
    *,
    gold: Path | None = None,
    dev: Path | None = None,
    weight: float = 0.5,
    temperature: float = 1.0,
    folds: int = 0,
    component: str | None = None,
    workers: int = 0,
    gpu_ids: Sequence[int] = (),
    resume: bool = False,
    restart: bool = False,
    progress: AbstractContextManager[OnProgress] = nullcontext(lambda progress: None),  # noqa: B008
    on_fold: Callable[[int], None] = lambda number: None,
) -> Summary:
    """Train a student pipeline on the distributions of teachers over the entities of texts.

    The teachers' scores are computed once, and written in shards. The student is trained by
    `spacy train` with the config that is written beside them.

    Args:
        teachers: Folders or packages of pipelines with a `crf_ner`, of the same labels. The student
            learns the mean of their distributions.
        inputs: Files, globs, folders or URIs of texts: .txt, .jsonl, .csv, .tsv, also .gz and .zst;
            .parquet; .spacy. None are needed if there is a gold corpus.
        output: Folder for teachers/ with the shards, config.cfg, model-best and model-last.
        config: The student: a config for `spacy train`, or the name of a shipped one. Its corpora
            are replaced.
        settings: How texts are read. Texts longer than `max_characters` are cut into several docs.
        gold: A .spacy file, or a folder of them: docs with entities, which the teachers read too.
        dev: Docs with entities for the evaluations; None measures agreement with the teachers on a
            tenth of the docs, or about 1000, which are not trained on.
        weight: Weight of the divergence from the teachers, 0 to 1. The weight of the gold entities,
            in docs that have them, is 1 - weight.
        temperature: Divides the scores of the teachers and of the student. A higher one gives more
            weight to less probable entities.
        folds: If not 0, each fold of the gold docs is read by teachers that are trained, with the
            configs of the given ones, on the other folds. They stay in the output, in folds/.
        component: The name of the teachers' component, if they have several.
        workers: Processes for the teachers, each with one thread; 0 chooses the number.
        gpu_ids: The GPUs that the workers share; empty for none. The first one also trains.
        resume: Continue an earlier run: keep its finished shards. The training starts again.
        restart: Replace the output of an earlier run.
        progress: A context for the run of the teachers, of a function that is called when a worker
            has loaded them, and after each shard.
        on_fold: Called with the number of a fold, from 1, before its teachers are trained.

    Returns:
        The counts of the documents, and the folder of the student, "model".

    Raises:
        InputError: For teachers of other labels than each other, the gold corpus or the config, for
            no document with a token, for folds without a gold corpus, for teachers whose config
            cannot be trained again, and for invalid settings, inputs and folders.
        WorkerError: If a worker fails or dies.
        OSError: If a file cannot be read or written.
    """
    check_numbers(weight, temperature)
    if not teachers:
        raise InputError("teachers: expected a pipeline, got none. Give one with --teacher.")
    out = Path(output)
    check_folder_name(out)
    _check_free(
        out, {"--teacher": teachers, "--config": [config], "--gold": [gold], "--dev": [dev]}
    )
    if folds and gold is None:
        raise InputError(
            f"folds: expected a gold corpus, to divide into {folds}, got none. Add it."
        )
    nlp = load_student(config)
    loaded = [LoadedTeacher(each, -1, None, component) for each in teachers]
    kinds = [each.common for each in loaded]
    check_teachers(nlp, kinds, teachers)
    for path in filter(None, (gold, dev)):
        _check_gold(nlp, path, kinds[0].labels)
    golds = [] if gold is None else find_docbins(gold)
    again = out / "teachers", settings, resume, restart
    run = Run([*golds, *inputs], *again)
    for source in run.found.sources[len(golds) :][:1]:
        check_text_column(source, settings)
    teachers_of: dict[str, list[str]] = {}
    gpu_id = [*gpu_ids, -1][0]
    if gold is not None and folds:
        made = FoldTeachers(loaded, recognizer(nlp), gold, folds, out / "folds")
        _train_folds(made, run, gpu_id, on_fold)
        golds, run = made.files, Run([*made.files, *inputs], *again)
        teachers_of = dict(zip((each.name for each in run.found.sources), made.pipelines))
        del made
    for teacher in loaded:
        teacher.pipe.seen_texts.store()
    seen = [teacher.pipe.cfg["seen"] for teacher in loaded]  # as they save it
    del loaded
    forget_teachers()  # they may have changed since an earlier run in this process
    sources = run.found.sources
    models = [*teachers, *chain.from_iterable(teachers_of.values())]
    fingerprint = _fingerprint(models, nlp, sources, settings)
    work = partial(
        teach_shard,
        teachers=teachers,
        teachers_of=teachers_of,
        component=component,
        student=nlp.config.to_str(),
    )
    with progress as on_progress:
        summary = run.execute(
            _cut(sources[: len(golds)], sources[len(golds) :], bool(folds), settings),
            {**fingerprint, "gold": len(golds), "component": component},
            processes(workers, gpu_ids, sources, settings),
            on_progress,
            load=partial(load_in_worker, teachers=teachers, component=component),
            work=work,
            ending=SHARD_SUFFIX,
            summarize=_summary,
        )
    forget_teachers()
    if not summary["out"]:
        raise InputError(
            f"{out}: expected documents with a token, got none of {summary['in']}, and "
            f"{summary['empty']} that are empty. See {out / 'teachers' / 'errors.jsonl'}."
        )
    with atomic_write(out / "teachers" / SEEN_TEXTS) as unfinished:
        srsly.write_json(unfinished, seen)
    hold_out = 0
    if dev is None:
        dev = out / "dev.spacy"
        hold_out = write_held_out(nlp, out / "teachers", dev)
    complete = student_config(
        nlp,
        kinds[0].labels,
        out / "teachers",
        dev,
        weight=weight,
        temperature=temperature,
        hold_out=hold_out,
    )
    complete.to_disk(out / "config.cfg")
    train(out / "config.cfg", out, use_gpu=gpu_id)
    return {**summary, "output": str(out), "model": str(out / "model-best")}


def _train_folds(
    of_folds: FoldTeachers, run: Run, gpu_id: int, on_fold: Callable[[int], None]
) -> None:
    """Train the teachers of the folds. Nothing else may write to the output meanwhile."""
    with run.opened():
        before = run.earlier()
        if run.restart:
            for earlier in of_folds.earlier():
                shutil.rmtree(earlier)
        elif before is not None:
            names = [name for name, *_ in before["input"]]
            if [*map(str, of_folds.files)] != names[: len(of_folds.files)]:
                raise InputError(
                    f"{run.output.name}: expected the gold docs, teachers and folds of the earlier "
                    "run, got others. Use the earlier ones, or replace the run with --restart."
                )
        if gpu_id >= 0:
            from ..ml.hardware import use_gpu

            use_gpu(gpu_id)
        of_folds.train(gpu_id, on_fold)


def _fingerprint(
    models: Sequence[str], student: Language, sources: list[Source], settings: Settings
) -> dict[str, Any]:
    """Describe what the scores depend on: the teachers, the texts, and the student's tokens."""
    prints = [make_fingerprint(each, sources, settings) for each in models]
    language = student.config.interpolate()["nlp"]
    tokenizer = {name: language[name] for name in ("lang", "tokenizer", "vectors")}
    return {**prints[0], "model": [each["model"] for each in prints], "tokenizer": tokenizer}


def _cut(
    golds: list[Source], texts: list[Source], alone: bool, settings: Settings
) -> Iterator[Shard]:
    """Cut gold docs, whose files may each have shards of their own, and texts."""
    groups = [[source] for source in golds] if alone else [golds]
    reader = partial(read, annotated=True)
    return chain(
        chain.from_iterable(cut_shards(group, settings, reader) for group in groups),
        cut_shards(texts, settings),
    )


def _summary(summary: Summary) -> Summary:
    kept = {name: value for name, value in summary.items() if name != "entities"}
    return {"empty": kept.pop("blank_lines"), **kept}


def _check_free(out: Path, read: Mapping[str, Sequence[str | Path | None]]) -> None:
    """Raise InputError if the training would replace what is not of an earlier run, or is read."""
    written = [out / name for name in ("config.cfg", "model-best", "model-last", "dev.spacy")]
    found = [path.name for path in written if path.exists()]
    if found and not (out / "teachers" / STATE).exists():
        raise InputError(
            f"{out}: expected a new folder, or one of an earlier run, got one with {found}. Choose "
            "another folder."
        )
    if any(read["--dev"]):
        written.pop()
    for option, given in read.items():
        for each in (each for each in given if each):
            source = Path(each).resolve()
            for path in (path.resolve() for path in written):
                if source.is_relative_to(path) or path.is_relative_to(source):
                    raise InputError(
                        f"{option} {each}: expected a path that the run does not write to, got one "
                        f"that it replaces, in {out}. Choose another folder for the output."
                    )


def _check_gold(nlp: Language, gold: Path, labels: Sequence[str]) -> None:
    """Raise InputError for a corpus that the student cannot read, or with unknown labels."""
    ner = recognizer(nlp)
    encoding = ner.encoding_of(ner.scheme.name, tuple(labels))
    if not gold.is_dir() and gold.suffix != SUFFIX:
        raise InputError(
            f"{gold}: expected spaCy's binary format, a {SUFFIX} file, got another. Convert it "
            "with spacy-crf-ner convert."
        )
    for doc in read_docbin(gold, nlp.vocab)[1]:
        for ent in gold_entities(doc, ner.entities_key):
            if ent.label_ not in labels:
                raise InputError(
                    f"{gold}, entity {ent.text[:60]!r} in the doc {doc.text[:60]!r}: expected one "
                    f"of the labels of the teachers, {[*labels]}, got {ent.label_!r}. Rename it, "
                    "or train a teacher of these labels."
                )
        if len(doc):
            examples = [as_example(nlp, doc)]
            encoding.gold(examples)
            encoding.negatives(examples, ner.incorrect_spans_key)
