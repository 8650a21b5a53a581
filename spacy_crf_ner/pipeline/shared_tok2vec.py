"""The spaCy component `shared_tok2vec`: spaCy's `tok2vec`, with fewer waits for a GPU."""

from collections.abc import Iterable
from typing import Any, cast

import numpy as np
from spacy.language import Language
from spacy.pipeline.tok2vec import DEFAULT_TOK2VEC_MODEL, Tok2Vec, Tok2VecListener
from spacy.tokens import Doc
from spacy.training import Example, validate_examples
from thinc.api import Model, Optimizer, set_dropout_rate
from thinc.types import Floats2d, Ints1d

from .transformer_config import set_optimizer


@Language.factory(
    "shared_tok2vec", assigns=["doc.tensor"], default_config={"model": DEFAULT_TOK2VEC_MODEL}
)
class SharedTok2Vec(Tok2Vec):
    """Compute token vectors that other components read through spaCy's `Tok2VecListener`.

    An update copies one number from the GPU for each listener; spaCy's `tok2vec` copies one for
    each doc too.

    Args:
        nlp: The pipeline.
        name: The name of the component in it.
        model: From docs to one vector per token, (T, nO) for each doc.
    """

    model: Model[list[Doc], list[Floats2d]]

    def __init__(self, nlp: Language, name: str, model: Model[list[Doc], list[Floats2d]]) -> None:
        super().__init__(nlp.vocab, model, name)
        set_optimizer(nlp, model)

    def remove_listener(self, listener: Tok2VecListener, component_name: str) -> bool:
        """Remove a listener; see spaCy's `Tok2Vec.remove_listener`.

        `nlp.replace_listeners` walks the list of listeners meanwhile: it is not changed.
        """
        self.listener_map = {name: [*found] for name, found in self.listener_map.items()}
        removed: bool = super().remove_listener(listener, component_name)
        return removed

    def update(
        self,
        examples: Iterable[Example],
        *,
        drop: float = 0.0,
        sgd: Optimizer | None = None,
        losses: dict[str, float] | None = None,
    ) -> dict[str, float]:
        """Send token vectors to the listeners; see spaCy's `Tok2Vec.update`.

        The last listener completes the update. The loss is the sum of the squared gradients of all.
        """
        losses = {} if losses is None else losses
        losses.setdefault(self.name, 0.0)
        examples = list(examples)
        validate_examples(examples, "SharedTok2Vec.update")
        docs = [eg.predicted for eg in examples]
        set_dropout_rate(self.model, drop)
        vectors, backprop = self.model.begin_update(docs)
        ops = self.model.ops
        lengths = cast(Ints1d, np.array([*map(len, docs)]))
        d_all = ops.xp.zeros_like(ops.flatten(vectors))

        def accumulate(d_vectors: list[Floats2d]) -> list[Floats2d]:
            nonlocal d_all
            of_listener = ops.flatten(d_vectors)
            d_all += of_listener
            losses[self.name] += float(ops.xp.vdot(of_listener, of_listener))
            return ops.unflatten(ops.xp.zeros_like(d_all), lengths)

        def complete(d_vectors: list[Floats2d]) -> Any:
            accumulate(d_vectors)
            d_docs = backprop(ops.unflatten(d_all, lengths))
            if sgd is not None:
                self.finish_update(sgd)
            return d_docs

        batch = Tok2VecListener.get_batch_id(docs)
        for listener in self.listeners:
            is_last = listener is self.listeners[-1]
            listener.receive(batch, vectors, complete if is_last else accumulate)
        return losses
