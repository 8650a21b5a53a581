"""Teachers that have not seen the gold docs that they read: one for each fold of them."""

from collections.abc import Callable, Sequence
from hashlib import blake2b
from pathlib import Path

from spacy.language import Language
from spacy.tokens import Doc, DocBin

from ..atomic import atomic_write
from ..docbin import read_docbin
from ..pipeline.calibrated_pipe import read_by_earlier
from ..pipeline.lookup import recognizer
from ..training.cross_validation import divide, train_folds
from ..training.taught_shard import as_example
from .shards import LoadedTeacher


def train_fold_teachers(
    teachers: Sequence[LoadedTeacher],
    gold: Path,
    folds: int,
    output: Path,
    *,
    gpu_id: int = -1,
    again: bool = False,
    on_fold: Callable[[int], None] = lambda number: None,
) -> tuple[list[Path], list[list[str]]]:
    """Train teachers again, once for each fold of a gold corpus, on its other folds.

    Their configs and labels are those of the given ones. The temperature of each is fitted to the
    fold that it has not seen.

    gold: A .spacy file, or a folder of them.
    output: Folder for the folds, .spacy files, and for the pipelines. Those of an earlier call with
        the same docs and configs are kept, unless `again`.
    gpu_id: To train on; -1 for the CPU.
    on_fold: Called with the number of a fold, from 1, before each training.

    Returns the files of the folds, and the folders of the teachers of each.
    Raises InputError as `divide` and `train_folds`.
    """
    _, found = read_docbin(gold, teachers[0].nlp.vocab)
    docs = list(found)
    fold_of = divide([doc.text for doc in docs], folds)
    configs = [teacher.nlp.config.copy() for teacher in teachers]
    for teacher, config in zip(teachers, configs):  # a label may be in one fold only
        labels = {"labels": [*teacher.pipe.labels]}
        config["initialize"]["components"][teacher.pipe.name] = labels
    content = DocBin(docs=docs, store_user_data=True).to_bytes()
    settings = [f"{folds}", *(config.to_str() for config in configs)]
    digest = blake2b(content + "\n".join(settings).encode(), digest_size=8).hexdigest()
    files = [output / digest / f"fold-{fold}.spacy" for fold in range(folds)]
    pipelines = [
        [str(output / digest / f"fold-{fold}-teacher-{k}") for k in range(len(teachers))]
        for fold in range(folds)
    ]
    for fold, file in enumerate(files):
        if not file.exists():
            own = [doc for doc, of in zip(docs, fold_of) if of == fold]
            with atomic_write(file) as unfinished:
                DocBin(docs=own, store_user_data=True).to_disk(unfinished)
        for teacher, config, name in zip(teachers, configs, pipelines[fold]):
            if again or not Path(name).exists():
                on_fold(fold + 1)
                ((trained, held_out),) = train_folds(config, docs, fold_of, gpu_id, only=[fold])
                _fit(trained, teacher.pipe.name, [docs[i] for i in held_out])
                with atomic_write(Path(name)) as unfinished:
                    trained.to_disk(unfinished)
    return files, pipelines


def _fit(nlp: Language, name: str, held_out: Sequence[Doc]) -> None:
    """Fit the temperature to gold docs that the pipeline was not trained on."""
    pipe = recognizer(nlp, name)
    examples = [as_example(nlp, doc) for doc in held_out if len(doc)]
    annotated = [eg for eg in examples if pipe.chains.is_annotated(eg)]
    if annotated:
        pipe.fit_temperature(read_by_earlier(nlp, name, annotated))
