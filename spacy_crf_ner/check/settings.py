"""What a config says of how its corpus is read."""

from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional

from spacy.tokens import Doc, Span
from spacy.util import load_config, registry

from ..pipeline.lookup import FACTORY
from .subwords import Subwords, load_subwords


class Settings(NamedTuple):
    """What `check` wants to know, and the language.

    scheme: How tags spell entities: "biluo", "bio" or "io".
    incorrect_spans_key: Of the spans in `doc.spans` that are known to be wrong; None for none.
    window: Tokens that the transformer reads at once; None where it has no such number.
    subwords: Of the transformer; None for none.
    """

    lang: str = "en"
    scheme: str = "biluo"
    incorrect_spans_key: Optional[str] = None
    window: Optional[int] = None
    subwords: Optional[Subwords] = None


def read_settings(path: Path, transformer: Optional[str] = None) -> Settings:
    """Read a config of `spacy train`.

    transformer: Local folder, or a name on the hub, instead of that of the config; nothing where
        this has no transformer.

    Of several `crf_ner` components the first one counts; without any, the defaults.
    Raises ValueError for a file that is no such config, and where the tokenizer of its transformer
    cannot be loaded.
    """
    try:
        config = load_config(path, interpolate=True)
    except ValueError as error:
        raise ValueError(
            f"{path}: expected a config of spaCy, got another file: "
            f"{' '.join(str(error).split())} Make one with spacy init config."
        ) from error
    components = [c for c in config.get("components", {}).values() if isinstance(c, dict)]
    ner = next((c for c in components if c.get("factory") == FACTORY), {})
    settings = Settings(
        lang=config.get("nlp", {}).get("lang") or "en",
        scheme=ner.get("scheme", "biluo"),
        incorrect_spans_key=ner.get("incorrect_spans_key"),
    )
    found = next(_transformers(config.get("components", {})), None)
    if found is None:
        return settings
    getter = found["get_spans"]
    return settings._replace(
        window=getter.get("window"),
        subwords=load_subwords(
            transformer or found["name"], found.get("tokenizer_config", {}), _windows(getter)
        ),
    )


def _transformers(node: Any) -> Iterator[Dict[str, Any]]:
    """Find the models that have a name and windows, wherever in the config."""
    if isinstance(node, dict):
        if isinstance(node.get("get_spans"), dict) and isinstance(node.get("name"), str):
            yield node
        for child in node.values():
            yield from _transformers(child)


def _windows(getter: Dict[str, Any]) -> Callable[[Doc], List[Span]]:
    # Its import registers the getters; here, as it takes seconds.
    import spacy_transformers  # noqa: F401

    get_spans = registry.resolve({"get_spans": getter})["get_spans"]

    def windows(doc: Doc) -> List[Span]:
        if "sent_spans" in getter["@span_getters"] and not doc.has_annotation("SENT_START"):
            return [doc[:]]
        (spans,) = get_spans([doc])
        return list(spans)

    return windows
