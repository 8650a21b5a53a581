"""Train on all docs of a small corpus, and calibrate on what pipelines of folds predict."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from spacy.language import Language
from spacy.tokens import Doc
from spacy.training import Corpus, Example
from spacy.util import get_sourced_components, load_model_from_config
from thinc.api import Config

from ..evaluation.calibration import calibrate_on_folds
from ..input_error import InputError
from ..pipeline.gold import gold_entities
from ..pipeline.lookup import recognizer
from ..training.config_file import given_labels
from ..training.cross_validation import train_held_out, train_on_all


def train_with_folds(
    config: Config,
    docs: Sequence[Doc],
    folds: int,
    gpu_id: int,
    on_message: Callable[[str], None],
) -> tuple[Language, dict[str, Any]]:
    """Train a pipeline without each fold, and one on all docs; calibrate it on the folds.

    Returns the pipeline, whose scores are those of the folds, and how reliable the confidences are
    "before" and "after" the calibration. Raises InputError as `train_held_out`, and for a sourced
    component.
    """
    if sourced := [*get_sourced_components(config)]:
        raise InputError(
            f"folds: expected components with a factory, got {sourced} with a source, whose "
            "weights would be lost. Train without folds, or load weights in [initialize] instead."
        )
    nlp = load_model_from_config(config, auto_fill=True)
    pipe = recognizer(nlp)
    found = {ent.label_ for doc in docs for ent in gold_entities(doc, pipe.entities_key)}
    for label in given_labels(nlp) or sorted(found):
        pipe.add_label(label)
    examples = list(Corpus("").make_examples(nlp, docs))  # none of docs without tokens
    held_out = train_held_out(nlp, examples, folds, None, gpu_id)  # checks them first
    on_message(f"Training on all {len(examples)} docs")
    trained = train_on_all(nlp, [eg.reference for eg in examples], gpu_id)

    def of_folds() -> Iterator[tuple[Language, list[Example]]]:
        for number in range(1, folds + 1):
            on_message(f"Training without fold {number} of {folds}")
            yield next(held_out)

    measured = calibrate_on_folds(trained, of_folds())
    trained.meta["performance"] = measured.pop("scores")
    return trained, measured
