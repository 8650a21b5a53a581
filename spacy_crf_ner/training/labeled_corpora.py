"""Train one model on corpora that annotate different labels."""

import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import zip_longest
from pathlib import Path

from spacy.language import Language
from spacy.training import Corpus, Example

from ..input_error import InputError
from ..pipeline.annotated_labels import KEY, annotated_labels, mark_annotated_labels

READER = "spacy-crf-ner.LabeledCorpora.v1"

Augmenter = Callable[[Language, Example], Iterable[Example]]
Reader = Callable[[Language], Iterable[Example]]


def labeled_corpora(
    paths: Sequence[str],
    labels: Sequence[Sequence[str] | None],
    weights: Sequence[float] | None = None,
    gold_preproc: bool = False,
    max_length: int = 0,
    limit: int = 0,
    augmenter: Augmenter | None = None,
    seed: int = 0,
    spans_key: str | None = None,
) -> Reader:
    """Build `spacy-crf-ner.LabeledCorpora.v1`, a reader of corpora with different labels.

    The corpora take turns, so that a stream (`max_epochs = -1`) mixes them too. A stream also needs
    the labels of the component in `[initialize.components.ner.labels]`.

    Args:
        paths: A .spacy file, or a folder of them, for each corpus.
        labels: The labels that each corpus annotates; what it says is outside may be in an entity
            of another label. None for all labels, or those that `spacy-crf-ner convert --labels`
            stored.
        weights: How often the docs of each corpus are read in an epoch: once, unless given. 2.5
            reads all of them twice, and a random half of them once more.
        gold_preproc: Split docs into sentences, with gold tokens.
        max_length: Split docs of more tokens into sentences; 0 for no limit.
        limit: Number of examples to read of each corpus; 0 for all.
        augmenter: Changes the examples, or adds some; None for none.
        seed: Seed of the choice of docs, which is the same in each epoch.
        spans_key: The key of overlapping entities in `doc.spans`; None for those in `doc.ents`.

    Raises:
        InputError: For lists of other lengths than `paths`, for a path that does not exist, for a
            weight below 1 or without limit, for labels that are not in a list, for no labels of a
            corpus whose docs are split, for overlapping entities whose docs are split, and when it
            reads an entity of a label that its corpus does not annotate, or an augmenter cannot
            move `doc.spans`.
    """
    weights = [1.0] * len(paths) if weights is None else weights
    for name, values in (("labels", labels), ("weights", weights)):
        if len(values) != len(paths):
            raise InputError(
                f"LabeledCorpora, {name}: expected one for each of the {len(paths)} paths, got "
                f"{len(values)}."
            )
    if not paths or not all(1 <= weight < math.inf for weight in weights):
        raise InputError(
            f"LabeledCorpora: expected paths, and weights of 1 or more, got {[*paths]} and "
            f"{[*weights]}."
        )
    if spans_key is not None and (gold_preproc or max_length):
        raise InputError(
            "LabeledCorpora, spans_key: expected whole docs, got gold_preproc or max_length. "
            "Splitting docs loses doc.spans: convert the corpus to shorter docs."
        )
    for path, known in zip(paths, labels):
        if isinstance(known, str):
            raise InputError(
                f"LabeledCorpora, labels: expected a list of labels for {path!r}, got {known!r}. "
                f"Write a list in the list: [[{known!r}]]."
            )
        if not Path(path).exists():
            raise InputError(f"LabeledCorpora, paths: expected a file or a folder, got {path!r}.")
        if known is None and (gold_preproc or max_length):
            raise InputError(
                f"LabeledCorpora, labels: expected those of {path!r}, got none. Splitting docs "
                "(gold_preproc, max_length) loses the labels that are stored with them."
            )
    readers = [
        Corpus(
            Path(path),
            gold_preproc=gold_preproc,
            max_length=max_length,
            limit=limit,
            augmenter=None if augmenter is None else _keeping_labels(augmenter, spans_key),
        )
        for path in paths
    ]

    def read(nlp: Language) -> Iterator[Example]:
        streams = map(partial(read_one, nlp), readers, labels, weights)
        for examples in zip_longest(*streams):
            yield from (eg for eg in examples if eg is not None)

    def read_one(
        nlp: Language, reader: Corpus, known: Sequence[str] | None, weight: float
    ) -> Iterator[Example]:
        rng = random.Random(seed)
        for eg in reader(nlp):
            if known is not None:
                mark_annotated_labels(eg.reference, known, spans_key)
            yield from [eg] * (int(weight) + (rng.random() < weight % 1))

    return read


def _keeping_labels(augmenter: Augmenter, spans_key: str | None) -> Augmenter:
    """Mark augmented docs again: spaCy cannot move spans to a text of another length."""

    def augment(nlp: Language, eg: Example) -> Iterator[Example]:
        labels = annotated_labels(eg.reference)
        eg.reference.spans.pop(KEY, None)
        try:
            augmented = list(augmenter(nlp, eg))
        except ValueError as problem:
            if not eg.reference.spans:
                raise
            raise InputError(
                "LabeledCorpora, augmenter: expected one that keeps the length of texts, as spaCy "
                f"cannot move doc.spans, got an error at the doc {eg.text[:60]!r}: {problem}"
            ) from problem
        for each in augmented:
            if labels is not None:
                mark_annotated_labels(each.reference, labels, spans_key)
            yield each

    return augment
