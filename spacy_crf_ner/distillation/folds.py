"""Teachers that have not seen the gold docs that they read: one for each fold of them."""

import json
from collections.abc import Callable, Sequence
from hashlib import blake2b
from pathlib import Path

from spacy.language import Language
from spacy.tokens import Doc, DocBin

from ..annotate.run import PACKAGES
from ..atomic import atomic_write
from ..docbin import read_docbin
from ..extras import versions
from ..input_error import InputError
from ..ml.onnx_network import check_trainable
from ..pipeline.crf_ner import CRFEntityRecognizer
from ..pipeline.gold import count_entities
from ..pipeline.lookup import recognizer, recognizer_names, run_upstream
from ..pipeline.settings import current_settings
from ..training.cross_validation import check_not_frozen, divide, train_folds, with_corpora
from ..training.teacher_shard import as_example
from .shards import LoadedTeacher


class FoldTeachers:
    """Teachers that are trained again, once for each fold of gold docs, on the other folds.

    Their configs and labels, and the weights of frozen components, are those of the given ones. The
    temperature of each is fitted to the fold that it has not seen. What an earlier run has written
    to the output for the same docs and configs is kept. `files` has the .spacy file of each fold,
    and `pipelines` the folders of its teachers.

    Raises InputError for fewer different texts than folds, a frozen component, a teacher whose
    config cannot be trained, and one that reads other gold entities than the student.
    """

    def __init__(
        self,
        teachers: Sequence[LoadedTeacher],
        student: CRFEntityRecognizer,
        gold: Path,
        folds: int,
        output: Path,
    ) -> None:
        self.teachers = teachers
        self.docs = [*read_docbin(gold, teachers[0].nlp.vocab)[1]]
        of_text = dict(zip(texts := [d.text for d in self.docs if len(d)], divide(texts, folds)))
        self.fold_of = [of_text.get(doc.text, 0) for doc in self.docs]
        self.configs = [teacher.nlp.config.copy() for teacher in teachers]
        for teacher, config in zip(teachers, self.configs):
            if teacher.pipe.entities_key != student.entities_key:
                raise InputError(
                    f"folds: expected teachers with the spans_key {student.entities_key!r} of the "
                    f"student, got one with {teacher.pipe.entities_key!r}, which would be trained "
                    "on other spans. Change the spans_key of the student."
                )
            check_trainable(teacher.pipe.model)
            check_not_frozen(teacher.nlp, teacher.pipe.name)
            with_corpora(config, output)
            # A label may be in one fold only.
            labels = {"labels": [*teacher.pipe.labels]}
            config["initialize"]["components"][teacher.pipe.name] = labels
        digest = blake2b(DocBin(docs=self.docs, store_user_data=True).to_bytes(), digest_size=8)
        settings = [f"{folds}", *(teacher.pipe.name for teacher in teachers)]
        settings += [config.to_str() for config in self.configs]
        for nlp in (teacher.nlp for teacher in teachers):  # they may have changed since the config
            for name in recognizer_names(nlp):
                changed = current_settings(recognizer(nlp, name))
                settings.append(json.dumps(changed, sort_keys=True))
        settings.append(json.dumps(versions(PACKAGES)))
        digest.update("\n".join(settings).encode())
        self.folder = output / digest.hexdigest()
        self.files = [self.folder / f"fold-{fold}.spacy" for fold in range(folds)]
        self.pipelines = [
            [str(self.folder / f"fold-{fold}-teacher-{k}") for k in range(len(teachers))]
            for fold in range(folds)
        ]

    def earlier(self) -> list[Path]:
        """Find what earlier runs have written, for these or for other folds."""
        return [file.parent for file in self.folder.parent.glob(f"*/{self.files[0].name}")]

    def train(self, gpu_id: int, on_fold: Callable[[int], None]) -> None:
        """Write the folds, and train the teachers that are not there yet.

        `on_fold` is called with the number of a fold, from 1, before each training. Raises
        InputError for a config whose corpora have no path, and for fewer than 2 docs with a token
        to train on.
        """
        for fold, file in enumerate(self.files):
            if not file.exists():
                own = [doc for doc, of in zip(self.docs, self.fold_of) if of == fold]
                with atomic_write(file) as unfinished:
                    DocBin(docs=own, store_user_data=True).to_disk(unfinished)
            for teacher, config, path in zip(self.teachers, self.configs, self.pipelines[fold]):
                if not Path(path).exists():
                    on_fold(fold + 1)
                    ((nlp, held_out),) = train_folds(
                        config, self.docs, self.fold_of, gpu_id, only=[fold], source=teacher.nlp
                    )
                    _fit(nlp, teacher.pipe.name, [self.docs[i] for i in held_out])
                    with atomic_write(Path(path)) as unfinished:
                        nlp.to_disk(unfinished)


def _fit(nlp: Language, name: str, held_out: Sequence[Doc]) -> None:
    """Fit the temperature to gold docs that were not trained on, if they have entities."""
    pipe = recognizer(nlp, name)
    examples = [as_example(nlp, doc) for doc in held_out if len(doc)]
    annotated = [eg for eg in examples if pipe.encoding.is_annotated(eg)]
    if count_entities(annotated, pipe.entities_key, pipe.excluded):
        pipe.fit_temperature(run_upstream(nlp, name, annotated))
