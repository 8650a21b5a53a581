"""Settings of a check, read from a training config."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import spacy
import srsly
from spacy.tokens import Doc
from spacy.util import get_model_meta, get_package_path, is_package, load_config

from ..extras import required
from ..input_error import InputError
from ..ml.checksummed import errors_of
from ..ml.transformer.spans import WINDOW
from ..ml.transformer.tokenizer import Tokenizer
from ..pipeline.annotation import SPANS_KEY
from ..pipeline.lookup import FACTORY
from ..pipeline.settings import with_changes
from ..pipeline.stored import CFG
from ..pipeline.training_steps import BATCHERS


class CheckSettings(NamedTuple):
    """How a corpus is used in training, and thresholds of the findings.

    Attributes:
        window: Tokens that the transformer reads at once; None if its windows have no fixed length.
        tokenizer: Tokenizer of the transformer; None without a transformer.
        spans_key: Key of the gold entities in `doc.spans`, which may overlap; doc.ents is gold if
            it is None, and for docs without this key.
        max_steps: Steps of a training of `crf_ner` over a transformer; None if they are not known.
        batcher: The block of the config that makes batches of this training.
        make_doc: The tokenizer of the pipeline; None if it is not known.
        long_entity: Longer entities, in tokens, are noted.
        long_doc: Longer docs, in tokens, are a risk for the memory: a batch contains whole docs.
        rare: A label with fewer entities in train is rare.
        frequent: Minimum number of entities, or of occurrences outside, of a frequent text.
        leak_error: Minimum share of dev for which a leak is an error.
        shared_tokens: Number of tokens in a row that are a repetition if they are in train and in
            dev, and a third of them are different words.
    """

    lang: str = "en"
    scheme: str = "biluo"
    incorrect_spans_key: str | None = None
    window: int | None = None
    tokenizer: Tokenizer | None = None
    spans_key: str | None = None
    max_steps: int | None = None
    batcher: Mapping[str, Any] = {}
    make_doc: Callable[[str], Doc] | None = None
    long_entity: int = 10
    long_doc: int = 5_000
    rare: int = 10
    frequent: int = 5
    leak_error: float = 0.1
    shared_tokens: int = 15


def read_settings(path: Path, transformer: str | None = None) -> CheckSettings:
    """Read the settings from a config of `spacy train`.

    They are those of the first `crf_ner` component, and of the first transformer; both may be
    sourced. Without a component, the defaults apply. Another transformer, a local folder or hub
    name, can be given instead of the one in the config, if it has one. Raises InputError for a file
    that is not a config, and if the tokenizer of the transformer cannot be loaded.
    """
    try:
        config = load_config(path, interpolate=True)
    except ValueError as error:
        raise InputError(
            f"{path}: expected a config of spaCy, got another file: "
            f"{' '.join(str(error).split())} Create one with spacy-crf-ner init."
        ) from error
    given = config.get("components", {}).items()
    components = {name: _sourced(each, name) for name, each in given if isinstance(each, dict)}
    ner = next((block for block in components.values() if block.get("factory") == FACTORY), {})
    overlapping = ner.get("overlap") is True
    settings = CheckSettings(
        lang=config.get("nlp", {}).get("lang") or "en",
        scheme=ner.get("scheme", "biluo"),
        incorrect_spans_key=ner.get("incorrect_spans_key"),
        spans_key=(ner.get("spans_key") or SPANS_KEY) if overlapping else None,
        make_doc=_tokenizer(config.get("nlp", {})),
    )
    model = next(_transformer_models(components), None)
    if model is None:
        return settings
    training = config.get("training", {})
    batcher = training.get("batcher") or {}
    has_known = batcher.get("@batchers") in BATCHERS and not batcher.get("get_length")
    if ner and has_known:  # other components may need more steps
        max_steps = training.get("max_steps") or None
        settings = settings._replace(max_steps=max_steps, batcher=batcher)
    window = (model.get("get_spans") or {"window": WINDOW}).get("window")
    return settings._replace(window=window, tokenizer=_transformer_tokenizer(model, transformer))


def _transformer_tokenizer(model: dict[str, Any], name: str | None) -> Tokenizer:
    """Load the tokenizer of a transformer, or of another one with this name."""
    with required("train"):
        from ..ml.transformer.stored import check_no_code, load_tokenizer  # takes seconds
    name = name or str(model["name"])
    given = model.get("tokenizer_config", {}), model.get("transformer_config", {})
    check_no_code(given, f"The config of the transformer {name!r}")
    return load_tokenizer(name, *given)[1]


def _tokenizer(block: dict[str, Any]) -> Callable[[str], Doc] | None:
    """Return the tokenizer of a pipeline, or None for one that this process cannot make."""
    tokenizer = {"nlp": {"tokenizer": block["tokenizer"]}} if block.get("tokenizer") else {}
    try:
        return spacy.blank(block.get("lang") or "en", config=tokenizer).make_doc
    except (ValueError, ImportError):  # another package has to be imported, or is not installed
        return None


def _sourced(block: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the config of a component; of a sourced one, that in its pipeline, if it is there."""
    source = str(block.get("source", ""))
    path = _pipeline_folder(source) / "config.cfg"
    if not source or not path.is_file():
        return block
    found = load_config(path, interpolate=True)["components"]
    name = block.get("component", name)
    cfg = path.parent / name / CFG
    if name not in found or found[name].get("factory") != FACTORY or not cfg.is_file():
        return dict(found.get(name, block))
    with errors_of(cfg):
        return with_changes(found[name], srsly.read_json(cfg))


def _pipeline_folder(source: str) -> Path:
    """Return the folder of a pipeline; in a package, it is named after package and version."""
    if not is_package(source):
        return Path(source)
    path = get_package_path(source)
    return path / f"{path.name}-{get_model_meta(path)['version']}"


def _transformer_models(node: Any) -> Iterator[dict[str, Any]]:
    """Find the transformers anywhere in the config, also those of spacy-transformers."""
    if isinstance(node, dict):
        if "Transformer" in str(node.get("@architectures")) and isinstance(node.get("name"), str):
            yield node
        for child in node.values():
            yield from _transformer_models(child)
