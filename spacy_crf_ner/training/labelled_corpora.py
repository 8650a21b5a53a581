"""Train one model on corpora that annotate different labels."""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from spacy.language import Language
from spacy.training import Corpus, Example

from ..input_error import InputError
from ..pipeline.label_sets import mark_annotated_labels

Reader = Callable[[Language], Iterable[Example]]


def labelled_corpora(
    paths: Sequence[str],
    labels: Sequence[Sequence[str] | None],
    weights: Sequence[float] | None = None,
    gold_preproc: bool = False,
    max_length: int = 0,
    limit: int = 0,
    augmenter: Callable[[Language, Example], Iterable[Example]] | None = None,
    seed: int = 0,
) -> Reader:
    """Build `spacy-crf-ner.LabelledCorpora.v1`, a reader of corpora with different labels.

    paths: A .spacy file, or a folder of them, for each corpus.
    labels: The labels that each corpus annotates; what it says is outside may be in an entity of
        another label. None for all labels, or those that `spacy-crf-ner convert --labels` stored.
    weights: How often the docs of each corpus are read in an epoch: once, unless given. 0.5 reads a
        random half of them, 2.5 reads all twice and a half of them once more.
    gold_preproc, max_length, limit, augmenter: As for `spacy.Corpus.v1`, for each corpus.
    seed: Of the choice of docs; another choice is made in each epoch.

    Raises InputError for lists of other lengths than `paths`, for a weight that is not over 0, and
    when it reads an entity of a label that its corpus is not said to annotate.
    """
    weights = [1.0] * len(paths) if weights is None else weights
    for name, values in (("labels", labels), ("weights", weights)):
        if len(values) != len(paths):
            raise InputError(
                f"LabelledCorpora, {name}: expected one for each of the {len(paths)} paths, got "
                f"{len(values)}."
            )
    if not paths or not all(weight > 0 for weight in weights):
        raise InputError(
            f"LabelledCorpora: expected paths, and weights over 0, got {[*paths]} and {[*weights]}."
        )
    readers = [
        Corpus(
            Path(path),
            gold_preproc=gold_preproc,
            max_length=max_length,
            limit=limit,
            augmenter=augmenter,
        )
        for path in paths
    ]
    rng = random.Random(seed)

    def read(nlp: Language) -> Iterator[Example]:
        for reader, known, weight in zip(readers, labels, weights):
            for eg in reader(nlp):
                if known is not None:
                    mark_annotated_labels(eg.reference, known)
                times = int(weight) + (rng.random() < weight % 1)
                yield from [eg] * times

    return read
