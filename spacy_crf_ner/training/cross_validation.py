"""Train a pipeline once for each fold of a corpus, without the docs of the fold."""

import io
import random
from collections.abc import Iterator, Sequence
from copy import deepcopy
from pathlib import Path
from tempfile import TemporaryDirectory

import spacy
from spacy.language import Language
from spacy.tokens import Doc, DocBin
from spacy.training.initialize import init_nlp
from spacy.training.loop import train
from thinc.api import Config

from ..input_error import InputError

DEV = 0.1  # the share of the training docs that choose the checkpoint


def divide(texts: Sequence[str], folds: int, seed: int = 0) -> list[int]:
    """Assign each text to a fold at random; equal texts to the same fold.

    Raises InputError if there are fewer different texts than folds, or fewer than 2 folds.
    """
    distinct = sorted(set(texts))
    if not 2 <= folds <= len(distinct):
        raise InputError(
            f"folds: expected 2 to {len(distinct)}, the number of different texts, got {folds}."
        )
    random.Random(seed).shuffle(distinct)
    fold_of = {text: i % folds for i, text in enumerate(distinct)}
    return [fold_of[text] for text in texts]


def train_folds(
    config: Config, docs: Sequence[Doc], fold_of: Sequence[int], gpu_id: int = -1, seed: int = 0
) -> Iterator[tuple[Language, list[int]]]:
    """Train with a config on all docs but those of a fold, for each fold.

    config: As for `spacy train`, with readers of the training and the dev corpus that have a path.
        Other paths in it, such as those of vectors, must exist.
    docs: Gold docs. A tenth of those to train on chooses the checkpoint.
    fold_of: The fold of each doc.

    Yields each pipeline, with the indices of the docs that it has not seen.
    Raises InputError for a config whose corpora have no path.
    """
    for fold in sorted(set(fold_of)):
        held_out = [i for i, each in enumerate(fold_of) if each == fold]
        rest = [i for i, each in enumerate(fold_of) if each != fold]
        dev = {*random.Random(seed + fold).sample(rest, max(1, round(DEV * len(rest))))}
        with TemporaryDirectory() as name:
            folder = Path(name)
            for part in ("train", "dev"):
                chosen = (docs[i] for i in rest if (i in dev) == (part == "dev"))
                DocBin(docs=chosen, store_user_data=True).to_disk(folder / f"{part}.spacy")
            own = _with_corpora(config, folder)
            nlp = init_nlp(own, use_gpu=gpu_id)
            train(nlp, folder, use_gpu=gpu_id, stdout=io.StringIO())
            yield spacy.load(folder / "model-best"), held_out


def _with_corpora(config: Config, folder: Path) -> Config:
    """Replace the paths of both corpora."""
    own = deepcopy(config)
    for part in ("train", "dev"):
        path = str(folder / f"{part}.spacy")
        reader = own["training"][f"{part}_corpus"].split(".")
        block = own
        for key in reader:
            block = block.get(key, {})
        if "path" not in block:
            raise InputError(
                f"[{'.'.join(reader)}] expected a reader with a path, such as spacy.Corpus.v1, got "
                f"{block.get('@readers')}. Use a pipeline that was trained with such a config."
            )
        block["path"] = path
        if part in own.get("paths", {}):
            own["paths"][part] = path
    return own
