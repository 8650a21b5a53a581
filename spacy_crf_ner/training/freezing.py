"""Transformers that do not learn, or not in their lower layers."""

from typing import Any, Callable, List, Set

from spacy.language import Language

from .layer_index import depth

Callback = Callable[[Language], None]


def freeze_layers(component: str = "transformer", layers: int = 1) -> Callback:
    """Make `spacy-crf-ner.freeze_layers.v1`, for `[initialize.after_init]`.

    The embeddings and the lowest layers of a transformer keep their weights, and no gradients are
    computed for them. It is not stored: a loaded pipeline learns in all layers, until the callback
    is called on it.

    component: The component with the transformer.
    layers: How many of its layers, from the lowest; 0 for the embeddings alone.

    The callback raises ValueError where the component is not there, or has no transformer whose
    layers can be told by the names of their weights, or has no more than so many.
    """

    def after_init(nlp: Language) -> None:
        modules = _modules(_component(nlp, component))
        if not modules:
            raise ValueError(
                f"freeze_layers: expected a transformer in {component!r}, got none. Name the "
                "component that has one, and initialize or load it before."
            )
        for module in modules:
            _freeze(module, layers, component)

    return after_init


def load_frozen(component: str = "transformer") -> Callback:
    """Make `spacy-crf-ner.load_frozen.v1`, for `[initialize.before_init]`.

    `spacy train` does not initialize frozen components, so a frozen transformer that is not
    sourced from a pipeline would have no weights. This callback loads its pretrained ones, where
    it is frozen and has none; otherwise it does nothing.

    component: The component with the transformer.

    The callback raises ValueError where the component is not there.
    """

    def before_init(nlp: Language) -> None:
        pipe = _component(nlp, component)
        if component not in nlp.disabled or _modules(pipe):
            return
        pipe.initialize(lambda: [], nlp=nlp)
        for _, other in nlp.components:
            pipe.find_listeners(other)  # they learn its width

    return before_init


def _component(nlp: Language, name: str) -> Any:
    if name not in nlp.component_names:
        raise ValueError(
            f"Expected one of the components {nlp.component_names}, got {name!r}. Name the one "
            "with the transformer in [initialize]."
        )
    return nlp.get_pipe(name)


def _modules(pipe: Any) -> List[Any]:
    """The transformers of Hugging Face in a component that have weights."""
    nodes = pipe.model.walk() if getattr(pipe, "model", None) else []
    modules = (getattr(shim, "_model", None) for node in nodes for shim in node.shims)
    return [module for module in modules if _size(module) is not None]


def _size(module: Any) -> Any:
    """The number of layers of a transformer; None of another module."""
    return getattr(getattr(module, "config", None), "num_hidden_layers", None)


def _freeze(module: Any, layers: int, component: str) -> None:
    """Let the embeddings and the lowest layers be constants."""
    size = _size(module)
    if layers < 0:
        raise ValueError(f"freeze_layers: expected layers of 0 or more, got {layers}.")
    if layers >= size:
        raise ValueError(
            f"freeze_layers: expected fewer than the {size} layers of the transformer in "
            f"{component!r}, got {layers}. To freeze all of it, name the component in "
            "training.frozen_components and in training.annotating_components."
        )
    depths = {name: depth(name) for name, _ in module.named_parameters()}
    found: Set[int] = {deep for deep in depths.values() if deep is not None}
    if found != set(range(size + 1)):
        raise ValueError(
            f"freeze_layers: expected weights of embeddings and {size} layers in the transformer "
            f"in {component!r}, got names of {sorted(found)}, 0 for the embeddings. A "
            f"{type(module).__name__} cannot be frozen in part: name the component in "
            "training.frozen_components and in training.annotating_components."
        )
    for name, parameter in module.named_parameters():
        deep = depths[name]
        if deep is not None and deep <= layers:
            parameter.requires_grad_(False)
            parameter.grad = None
