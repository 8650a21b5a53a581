"""What a pipeline guarantees about new documents, as long as it is the one that was fitted."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import srsly
from spacy.language import Language
from spacy.pipeline import Sentencizer
from thinc.api import Model

from ..atomic import atomic_write
from ..input_error import InputError
from ..ml.digest import weights_digest
from ..pipeline.checks import check_own_key
from ..pipeline.crf_ner import CRFEntityRecognizer
from ..pipeline.load import load
from ..pipeline.lookup import (
    model_layers,
    read_components,
    recognizer,
    recognizer_name,
    recognizer_names,
)
from ..pipeline.settings import CALIBRATION, FITS, SETTINGS, current_settings

# The settings that one kind of guarantee sets or depends on. All others matter to each of them.
SETTINGS_OF = {
    "recall": ("spans_key", "candidate_threshold", "candidate_thresholds"),
    "precision": ("decode", "f_score_threshold", "threshold", "thresholds"),
    "set_coverage": (),
}
# For tokenizers that are not of spaCy.
PROBE = "Dr. O'Neill-Smith (born 3.5.1990) said:  \"E-mail me, don't call!\"\nHe left..."
IRRELEVANT = {"confidence", "incorrect_spans_key"}
# What calibration and guarantees may change in a component.
FITTED_SETTINGS = (
    *(*CALIBRATION, "overwrite", "calibrated_on"),
    *(*SETTINGS_OF["recall"], *SETTINGS_OF["precision"]),
)


def guarantees(nlp: Language, name: str | None = None) -> dict[str, Any]:
    """Return the guarantees of a pipeline: "recall", "precision", "set_coverage".

    Args:
        name: The `crf_ner` component; None for the only one.

    Returns:
        For each guarantee its "level", 0 to 1; its "confidence_level" over the documents of
        the fit, None if it holds on average over them; their number, "documents"; its "threshold",
        or those by label; for recall whether it is guaranteed "by_label"; and:

        - "unit", "tokens", "labels": A document, the mean number of its tokens, and the labels.
        - "texts", "different_texts": The numbers of texts of the fit, with and without repetitions:
            documents that are copies of others prove less.
        - "compared_with": The parts of the training with which they were compared, to leave out
            what the pipeline has seen: "train", "dev"; neither if the user stated that they are
            new.
        - "counts_dev": Whether documents that chose the weights or served the calibration count.
        - "drift": What `drift` has found last: the number of "documents", and the statistics that
            "differ"; or None.

    Raises:
        InputError: If the pipeline has no such component, or several and none is named; if another
            component writes to the candidates; and if weights, labels, settings, precision,
            vectors, tokenizer or the components before it are no longer those for which the
            guarantees were given.
    """
    name = recognizer_name(nlp, name)
    pipe = recognizer(nlp, name)
    stored: dict[str, Any] = deepcopy(pipe.cfg.get("guarantees", {}))
    digest, computed_in = stored.pop("digest", None), stored.pop("computed_in", [])
    drift = stored.pop("drift", None)
    stored.pop("reference", None)
    if not stored:
        return {}
    if "recall" in stored:
        check_own_key(nlp, pipe, pipe.spans_key)
    changed = []
    if digest != _digest(nlp, name):
        changed.append("weights, tokenizer or earlier components")
    if computed_in != (now_in := _dtypes(nlp, name)):
        changed.append(f"dtype ({', '.join(now_in) or 'fp32'})")
    for kind, given in stored.items():
        now, then = _settings(pipe, kind), given["settings"]
        if then.get("disabled_labels") == now["disabled_labels"]:
            changed += ["labels"] if given.get("labels") != [*pipe.enabled_labels] else []
        changed += [key for key, x in then.items() if _rounded(now[key]) != _rounded(x)]
    if changed:
        raise InputError(
            f"[{name}] The promises do not hold. Expected the pipeline for which "
            f"{', '.join(stored)} were promised, got other {', '.join(dict.fromkeys(changed))}. "
            "Promise them again: spacy-crf-ner promise fit."
        )
    for given in stored.values():
        del given["settings"]
        given["drift"] = drift
    return dict(_rounded(stored))


def store(
    nlp: Language,
    name: str,
    kept: Mapping[str, Mapping[str, Any]],
    reference: Mapping[str, list[float]],
) -> None:
    """Store guarantees in a component, bound to its weights, its settings and what comes before it.

    They are the values of `guarantees` by kind. The reference is what `monitoring.describe` returns
    for the docs that they were fitted to.
    """
    pipe = recognizer(nlp, name)
    pipe.cfg["guarantees"] = {
        **{kind: {**each, "settings": _settings(pipe, kind)} for kind, each in kept.items()},
        "digest": _digest(nlp, name),
        "computed_in": _dtypes(nlp, name),
        "reference": reference,
    }


def save_fitted(model: str | Path, fitted: Language, target: Path) -> Language:
    """Save a pipeline with what calibration and guarantees have changed in a loaded copy of it.

    The pipeline is loaded again, and returned: words of the corpus and settings for speed are not
    saved. It replaces what is in the folder `target`.

    Raises:
        InputError: If the pipeline cannot be loaded.
        OSError: If it cannot be saved.
    """
    nlp = load(str(model))
    for name in recognizer_names(nlp):
        pipe, copy = recognizer(nlp, name), recognizer(fitted, name)
        for setting in FITTED_SETTINGS:
            setattr(pipe, setting, getattr(copy, setting))
        pipe.cfg["guarantees"] = copy.cfg["guarantees"]
        pipe.seen_texts.new["dev"] |= copy.seen_texts.new["dev"]
    with atomic_write(target) as folder:
        nlp.to_disk(folder)
    return nlp


@contextmanager
def restored_on_error(pipe: CRFEntityRecognizer) -> Iterator[None]:
    """Give a component its settings back if fitting others fails, or is interrupted."""
    before = {name: getattr(pipe, name) for name in FITTED_SETTINGS}
    try:
        yield
    except BaseException:  # also an interrupt: thresholds are settings while they are tried
        for name, value in before.items():
            setattr(pipe, name, value)
        raise


def renew(nlp: Language, name: str) -> None:
    """Bind the guarantees of a component to its weights, where they only changed their form."""
    recognizer(nlp, name).cfg["guarantees"]["digest"] = _digest(nlp, name)


def _settings(pipe: CRFEntityRecognizer, kind: str) -> dict[str, Any]:
    """The settings that a kind of guarantee depends on, also those that are new in this package."""
    others = {name for each in SETTINGS_OF if each != kind for name in SETTINGS_OF[each]}
    names = {*SETTINGS, *CALIBRATION} - IRRELEVANT - (others - {*SETTINGS_OF[kind]})
    values = {name: getattr(pipe, name) for name in sorted(names)}
    values["disabled_labels"] = sorted(pipe.disabled_labels)
    return {name: dict(x) if isinstance(x, Mapping) else x for name, x in values.items()}


def _rounded(value: Any) -> Any:
    """Round numbers to the ten decimals that are saved."""
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    return round(value, 10) if isinstance(value, float) else value


def _dtypes(nlp: Language, name: str) -> list[str]:
    """The dtypes other than float32 in which a component and those before it predict."""
    nodes = [node for pipe in read_components(nlp, name).values() for node in model_layers(pipe)]
    shims = (shim for node in nodes for shim in node.shims)
    found = {getattr(shim, "resolved_dtype", None) or "fp32" for shim in shims}
    return sorted(found - {"fp32"})


def _digest(nlp: Language, name: str) -> str:
    """The digest of the weights of a component, and of what comes before it."""
    pipes = read_components(nlp, name)
    models = [getattr(pipe, "model", None) for pipe in pipes.values()]
    weights = weights_digest(model for model in models if isinstance(model, Model))
    digest = blake2b(weights.encode(), digest_size=16)
    earlier = [[each, nlp.get_pipe_meta(each).factory] for each in pipes if each != name]
    digest.update(srsly.json_dumps([nlp.lang, earlier]).encode())
    vectors = nlp.vocab.vectors
    digest.update(vectors.data.tobytes())
    digest.update(np.array(sorted(vectors.key2row.items()), dtype=np.uint64).tobytes())
    digest.update(srsly.json_dumps(_tokenization(nlp)).encode())
    if hasattr(nlp.tokenizer, "to_bytes"):
        digest.update(nlp.tokenizer.to_bytes(exclude=["vocab"]))
    for pipe in [pipes[each] for each in pipes if each != name]:
        if isinstance(pipe, CRFEntityRecognizer):
            fitted = {name: getattr(pipe, name) for name in FITS}
            settings = current_settings(pipe) | fitted | {"labels": [*pipe.labels]}
            digest.update(srsly.json_dumps(_rounded(settings), sort_keys=True).encode())
        elif isinstance(pipe, Sentencizer):  # the order of its bytes differs by process
            characters = sorted(pipe.punct_chars)
            digest.update(srsly.json_dumps([characters, pipe.overwrite]).encode())
        elif hasattr(pipe, "to_bytes") and not hasattr(pipe, "listener_map"):
            # Labels and settings; the vocab grows with each new word, and weights are read above.
            digest.update(pipe.to_bytes(exclude=["vocab", "model"]))
    return digest.hexdigest()


def _tokenization(nlp: Language) -> list[Any]:
    """The class of the tokenizer; of one that spaCy does not save, also how it divides a text."""
    kind = type(nlp.tokenizer)
    found: list[Any] = [kind.__module__, kind.__qualname__]
    if not kind.__module__.startswith("spacy."):
        found += [[token.text, token.whitespace_] for token in nlp.tokenizer(PROBE)]
    return found
