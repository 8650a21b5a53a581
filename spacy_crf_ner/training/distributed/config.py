"""A config for one process, made one for several."""

from typing import Any, Dict

from thinc.api import Config

# What a block of one process is in a config for several: the setting that holds it.
WRAPPED = {
    "nlp.before_creation": "then",
    "training.before_update": "then",
    "training.batcher": "batcher",
    "training.logger": "logger",
}
OPTIMIZERS = ("spacy-crf-ner.Adam.v1", "Adam.v1")
READERS = ("spacy.Corpus.v1",)


def spread(config: Config, overlay: Config) -> Config:
    """Put what distributed training needs over a config for one process.

    The optimizer and the reader of the corpus get other names and keep their settings; thinc's
    Adam becomes ours, whose L2 leaves biases and layer norms alone. The batcher, the logger and
    the callbacks that are there are kept inside of ours.

    config: A config for one process; it is not changed.
    overlay: The shipped distributed.cfg.

    Returns the other config.
    Raises ValueError for another optimizer or reader, or where a block is missing.
    """
    result, overlay = config.copy(), overlay.copy()
    for place, inner in WRAPPED.items():
        section, name = place.split(".")
        block = overlay[section][name]
        kept = result.setdefault(section, {}).get(name)
        if kept is not None:
            block[inner] = kept
        result[section][name] = block
    optimizer = _block(result, "training.optimizer", "@optimizers", OPTIMIZERS)
    optimizer.update(overlay["training"]["optimizer"])
    reader = _block(
        result, result["training"].get("train_corpus", "corpora.train"), "@readers", READERS
    )
    reader.update(overlay["corpora"]["train"])
    return result


def _block(config: Config, place: str, kind: str, expected: Any) -> Dict[str, Any]:
    block: Any = config
    for name in place.split("."):
        block = block.get(name) if isinstance(block, dict) else None
    got = block.get(kind) if isinstance(block, dict) else None
    if got not in expected:
        raise ValueError(
            f"[{place}] {kind}: expected one of {[*expected]}, got {got!r}. Only these can be "
            "spread over several processes, and only once."
        )
    found: Dict[str, Any] = block
    return found
