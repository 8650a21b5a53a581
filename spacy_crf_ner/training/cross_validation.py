"""Train a pipeline once for each fold of a corpus, without the docs of the fold."""

import io
import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import spacy
from spacy.language import Language
from spacy.tokens import Doc, DocBin, Span
from spacy.training import Corpus, Example
from spacy.training.initialize import init_nlp
from spacy.training.loop import train
from spacy.util import get_sourced_components, load_model_from_config
from thinc.api import Config

from ..docbin import document_of
from ..evaluation.calibration import calibrate_on_folds
from ..input_error import InputError
from ..pipeline.gold import gold_entities
from ..pipeline.lookup import recognizer, recognizer_names
from ..pipeline.settings import copy_settings
from .calibration import without_calibration
from .config_file import given_labels, reader_block, set_corpora
from .distill_corpus import READER as DISTILL
from .labeled_corpora import READER as LABELLED
from .rehearsal import CALLBACK as REHEARSAL

DEV = 0.1  # the share of the training docs that choose the checkpoint


def divide(texts: Sequence[str], folds: int, seed: int = 0) -> list[int]:
    """Assign each text, or name of a document, to a fold at random; equal ones to the same fold.

    Raises InputError if there are fewer different ones than folds, or fewer than 2 folds.
    """
    distinct = sorted(set(texts))
    if len(distinct) < 2:
        raise InputError(f"folds: expected at least 2 different documents, got {len(distinct)}.")
    if not 2 <= folds <= len(distinct):
        raise InputError(
            f"folds: expected 2 to {len(distinct)}, the number of different documents, got {folds}."
        )
    random.Random(seed).shuffle(distinct)
    fold_of = {text: i % folds for i, text in enumerate(distinct)}
    return [fold_of[text] for text in texts]


def train_folds(
    config: Config,
    docs: Sequence[Doc],
    fold_of: Sequence[int],
    gpu_id: int = -1,
    seed: int = 0,
    negative_key: str | None = None,
    only: Collection[int] | None = None,
    source: Language | None = None,
) -> Iterator[tuple[Language, list[int]]]:
    """Train a pipeline without each fold; yield it with the indices of the docs of the fold.

    Args:
        config: A config for `spacy train`, with readers of the training and the dev corpus that
            have a path. Other paths in it, such as those of vectors, must exist. A student is
            trained on gold alone.
        docs: Gold docs. A tenth of those to train on chooses the checkpoint.
        fold_of: The fold of each doc.
        negative_key: The key in `doc.spans` of negative spans; None for none. Those with a label
            that the pipeline does not have after initialization are left out.
        only: The folds to leave out, one after the other; None for all.
        source: The pipeline that the config is of: its frozen components keep their weights,
            and all have its settings, also those that were changed later.

    Raises:
        InputError: For a config whose corpora have no path, and for fewer than 2 docs with a token
            to train on.
    """
    for fold in sorted(set(fold_of) if only is None else only):
        held_out = [i for i, each in enumerate(fold_of) if each == fold]
        rest = [i for i, each in enumerate(fold_of) if each != fold and len(docs[i])]
        if len(rest) < 2:
            raise InputError(
                f"folds: expected at least 2 docs with tokens to train on, got {len(rest)}. Add "
                "gold docs."
            )
        dev = _draw_dev(rest, seed + fold)
        parts = {
            part: [docs[i] for i in rest if (i in dev) == (part == "dev")]
            for part in ("train", "dev")
        }
        yield _train(config, parts, "model-best", gpu_id, negative_key, source), held_out


def train_with_folds(
    config: Config,
    docs: Sequence[Doc],
    folds: int,
    gpu_id: int,
    on_message: Callable[[str], None],
) -> tuple[Language, dict[str, Any]]:
    """Train a pipeline on all docs, and one without each fold; calibrate the first on the folds.

    The sentences of a document are in one fold, where the corpus marks documents. The pipeline has
    the weights of the last step, whose learning rate is the lowest, as no docs are left to choose a
    checkpoint. Its scores are those of the folds.

    Returns the pipeline, and how reliable the confidences are "before" and "after" the calibration.
    Raises InputError for a sourced component, a frozen one, fewer different documents than folds,
    and as `train_folds`.
    """
    if sourced := [*get_sourced_components(config)]:
        raise InputError(
            f"folds: expected components with a factory, got {sourced} with a source, whose "
            "weights would be lost. Train without folds, or load weights in [initialize] instead."
        )
    nlp = load_model_from_config(config, auto_fill=True)
    pipe = recognizer(nlp)
    check_not_frozen(nlp, pipe.name)
    docs = [doc for doc in docs if len(doc)]
    fold_of = divide([document_of(doc) or doc.text for doc in docs], folds)
    found = {ent.label_ for doc in docs for ent in gold_entities(doc, pipe.entities_key)}
    config = nlp.config.copy()
    # One of the labels may be in one fold.
    labels = [*given_labels(nlp)] or sorted(found)
    config["initialize"]["components"][pipe.name] = {"labels": labels}
    key = pipe.incorrect_spans_key
    on_message(f"Training on all {len(docs)} docs")
    parts = {"train": docs, "dev": [docs[i] for i in sorted(_draw_dev(range(len(docs)), 0))]}
    trained = _train(config, parts, "model-last", gpu_id, key, None)
    held_out = train_folds(config, docs, fold_of, gpu_id, 0, key)

    def of_folds() -> Iterator[tuple[Language, list[Example]]]:
        for number in range(1, folds + 1):
            on_message(f"Training without fold {number} of {folds}")
            without, rows = next(held_out)
            yield without, [*Corpus("").make_examples(without, [docs[i] for i in rows])]

    measured = calibrate_on_folds(trained, of_folds())
    trained.meta["performance"] = measured.pop("scores")
    return trained, measured


def _draw_dev(numbers: Sequence[int], seed: int) -> set[int]:
    """Draw the docs for the evaluations."""
    return {*random.Random(seed).sample(numbers, max(1, round(DEV * len(numbers))))}


def _train(
    config: Config,
    parts: Mapping[str, Sequence[Doc]],
    chosen: str,
    gpu_id: int,
    negative_key: str | None,
    source: Language | None,
) -> Language:
    """Train a pipeline, and load the best or the last one."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        paths = {part: folder / f"{part}.spacy" for part in parts}
        for part, path in paths.items():
            DocBin(docs=parts[part], store_user_data=True).to_disk(path)
        own = with_corpora(config, folder)
        nlp = init_nlp(own, use_gpu=gpu_id)
        labels: set[str] = set()
        for each in recognizer_names(nlp):
            own_pipe = recognizer(nlp, each)
            if source is not None:
                copy_settings(recognizer(source, each), own_pipe)
            if own_pipe.incorrect_spans_key == negative_key:
                labels.update(own_pipe.labels)
        for part, path in paths.items() if negative_key is not None else ():
            known = (known_negatives(doc, negative_key, labels) for doc in parts[part])
            DocBin(docs=known, store_user_data=True).to_disk(path)
        for each in own["training"]["frozen_components"]:
            pipe: Any = nlp.get_pipe(each)
            if source is not None and hasattr(pipe, "from_bytes"):
                given: Any = source.get_pipe(each)
                pipe.from_bytes(given.to_bytes())
        train(nlp, folder, use_gpu=gpu_id, stdout=io.StringIO())
        return spacy.load(folder / chosen)


def check_not_frozen(nlp: Language, name: str) -> None:
    """Raise InputError for a component that would not be trained again: it has seen all folds."""
    if name in nlp.config.interpolate()["training"]["frozen_components"]:
        raise InputError(
            f"folds: expected a config that trains [{name}], got one with it in training."
            "frozen_components. It would be applied to docs that it was trained on: remove it "
            "there, or do without folds."
        )


def known_negatives(doc: Doc, key: str | None, labels: Collection[str]) -> Doc:
    """Return a gold doc without the negative spans of other labels; if it has some, a copy."""
    spans = [] if key is None else doc.spans.get(key, [])
    known = [span for span in spans if span.label_ in ("", "O", *labels)]
    if key is None or len(known) == len(spans):
        return doc
    own = doc.copy()
    own.spans[key] = [Span(own, span.start, span.end, span.label_) for span in known]
    return own


def with_corpora(config: Config, folder: Path) -> Config:
    """Replace the paths of both corpora; who holds out a fold calibrates on it.

    Rehearsal is left out, as the weights are new. Raises InputError for corpora without a path.
    """
    own = deepcopy(config)
    without_calibration(own)
    if (own["training"].get("before_update") or {}).get("@callbacks") == REHEARSAL:
        own["training"]["before_update"] = None
    for part in ("train", "dev"):
        _, block = reader_block(own, part)
        # Scores of teachers are of other docs; labels are stored with these docs.
        if block.get("@readers") in (DISTILL, LABELLED):
            block.clear()
            block.update({"@readers": "spacy.Corpus.v1", "path": None})
            own["training"]["max_epochs"] = max(own["training"]["max_epochs"], 0)  # no stream
    set_corpora(own, {part: folder / f"{part}.spacy" for part in ("train", "dev")})
    return own
